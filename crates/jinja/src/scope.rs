//! Variables, and the scopes that they belong to.

use std::cell::RefCell;
use std::rc::Rc;

use crate::ast::VariableName;

/// The variables of a block, and the scope around it.
pub struct Scope<V> {
    variables: RefCell<Vec<(VariableName, V)>>,
    parent: Option<Rc<Scope<V>>>,
}

impl<V> Default for Scope<V> {
    fn default() -> Self {
        Scope { variables: RefCell::default(), parent: None }
    }
}

impl<V: Clone> Scope<V> {
    pub(crate) fn within(parent: &Rc<Scope<V>>) -> Rc<Scope<V>> {
        Rc::new(Scope { variables: RefCell::default(), parent: Some(Rc::clone(parent)) })
    }

    /// The variable's value, here or in a scope around this one; and how many variables were looked at.
    pub(crate) fn get(&self, name: VariableName) -> (Option<V>, usize) {
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
    pub(crate) fn set(&self, name: VariableName, value: V) {
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
