//! Variables.

use std::cell::RefCell;
use std::rc::Rc;

use crate::ast::Symbol;
use crate::value::Value;

/// The variables of a block, and the scope around it.
#[derive(Default)]
pub struct Scope {
    variables: RefCell<Vec<(Symbol, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub(crate) fn within(parent: &Rc<Scope>) -> Rc<Scope> {
        Rc::new(Scope { variables: RefCell::default(), parent: Some(Rc::clone(parent)) })
    }

    /// The variable's value, here or in a scope around this one; and how many variables were looked at.
    pub(crate) fn get(&self, name: Symbol) -> (Option<Value>, usize) {
        let (mut scope, mut visited) = (self, 0);
        loop {
            let variables = scope.variables.borrow();
            if let Some((at, (_, value))) = variables.iter().enumerate().find(|(_, (known, _))| *known == name) {
                return (Some(value.clone()), visited + at);
            }
            visited += 1 + variables.len();
            let Some(parent) = scope.parent.as_deref() else { return (None, visited) };
            scope = parent;
        }
    }

    /// Sets the variable in this scope.
    pub(crate) fn set(&self, name: Symbol, value: Value) {
        let mut variables = self.variables.borrow_mut();
        let before = match variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => Some(std::mem::replace(old, value)),
            None => {
                variables.push((name, value));
                None
            }
        };
        drop(variables);
        drop(before);
    }

    /// Forgets all variables of this scope, without those around it.
    pub(crate) fn clear(&self) {
        let before = std::mem::take(&mut *self.variables.borrow_mut());
        drop(before);
    }
}
