//! Variables, and the scopes that they belong to.

use std::cell::RefCell;
use std::rc::Rc;

use crate::ast::VariableName;
use crate::error::TemplateResult;
use crate::meter::{Held, Meter};

/// The variables of a block, and the scope around it.
pub struct Scope<V> {
    variables: RefCell<Vec<(VariableName, V)>>,
    parent: Option<Rc<Scope<V>>>,
    held: Held,
}

/// Variables that count as one step when a name is looked up.
const STEP_VARIABLES: usize = 16;

impl<V: Clone> Scope<V> {
    const OVERHEAD: usize = size_of::<Scope<V>>();
    const VARIABLE: usize = size_of::<(VariableName, V)>();

    /// A scope without a scope around it.
    pub(crate) fn outermost(meter: &Rc<Meter>) -> TemplateResult<Rc<Scope<V>>> {
        let held = Held::new(meter, Self::OVERHEAD)?;
        Ok(Rc::new(Scope { variables: RefCell::default(), parent: None, held }))
    }

    /// A scope within another one.
    pub(crate) fn within(parent: &Rc<Scope<V>>) -> TemplateResult<Rc<Scope<V>>> {
        let held = Held::new(parent.held.meter(), Self::OVERHEAD)?;
        Ok(Rc::new(Scope { variables: RefCell::default(), parent: Some(Rc::clone(parent)), held }))
    }

    /// The variable's value, here or in a scope around this one.
    pub(crate) fn get(&self, name: VariableName) -> TemplateResult<Option<V>> {
        let (mut scope, mut visited) = (self, 0);
        let found = loop {
            let variables = scope.variables.borrow();
            if let Some((at, (_, value))) = variables.iter().enumerate().find(|(_, (known, _))| *known == name) {
                visited += at;
                break Some(value.clone());
            }
            visited += 1 + variables.len();
            let Some(parent) = scope.parent.as_deref() else { break None };
            scope = parent;
        };
        self.held.meter().step(visited / STEP_VARIABLES)?;
        Ok(found)
    }

    /// Sets the variable in this scope.
    pub(crate) fn set(&self, name: VariableName, value: V) -> TemplateResult<()> {
        let mut variables = self.variables.borrow_mut();
        let position = variables.iter().position(|(known, _)| *known == name);
        self.held.meter().step(position.unwrap_or(variables.len()) / STEP_VARIABLES)?;
        let before = match position.and_then(|position| variables.get_mut(position)) {
            Some((_, old)) => Some(std::mem::replace(old, value)),
            None => {
                self.held.grow(Self::VARIABLE)?;
                variables.push((name, value));
                None
            }
        };
        drop(variables);
        drop(before);
        Ok(())
    }

    /// Forgets all variables of this scope, without those around it.
    pub(crate) fn clear(&self) {
        let before = std::mem::take(&mut *self.variables.borrow_mut());
        self.held.shrink(before.len() * Self::VARIABLE);
        drop(before);
    }
}
