//! The arguments of a call.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::error::{TemplateResult, refused};
use crate::meter::{Held, Meter};
use crate::value::Value;

/// The arguments of a call. They count like the items of a list, because `f(*list, *list)` makes any number of them.
pub(crate) struct Arguments {
    pub(crate) positional: VecDeque<Value>,
    pub(crate) named: Vec<(Box<str>, Value)>,
    /// The memory of both.
    pub(crate) held: Held,
}

impl Arguments {
    const POSITIONAL: usize = size_of::<Value>();
    const NAMED: usize = size_of::<(Box<str>, Value)>();

    /// No arguments.
    pub(crate) fn new(meter: &Rc<Meter>) -> TemplateResult<Arguments> {
        Ok(Arguments { positional: VecDeque::new(), named: Vec::new(), held: Held::new(meter, 0)? })
    }

    /// Positional arguments.
    pub(crate) fn of(meter: &Rc<Meter>, values: impl IntoIterator<Item = Value>) -> TemplateResult<Arguments> {
        let mut arguments = Arguments::new(meter)?;
        values.into_iter().try_for_each(|value| arguments.push(value))?;
        Ok(arguments)
    }

    /// Adds a positional argument.
    pub(crate) fn push(&mut self, value: Value) -> TemplateResult<()> {
        self.held.meter().step(1)?;
        self.held.grow(Arguments::POSITIONAL)?;
        self.positional.push_back(value);
        Ok(())
    }

    /// Adds a named argument.
    pub(crate) fn push_named(&mut self, name: &str, value: Value) -> TemplateResult<()> {
        self.held.meter().read(name.len())?;
        self.held.grow(Arguments::NAMED + name.len())?;
        self.named.push((name.into(), value));
        Ok(())
    }

    /// The same arguments for another call.
    pub(crate) fn copied(&self) -> TemplateResult<Arguments> {
        let mut copy = Arguments::of(self.held.meter(), self.positional.iter().cloned())?;
        self.named.iter().try_for_each(|(name, value)| copy.push_named(name, value.clone()))?;
        Ok(copy)
    }

    /// The position of a named argument.
    pub(crate) fn find_named(&self, name: &str) -> TemplateResult<Option<usize>> {
        self.held.meter().step(self.named.len() * (1 + name.len() / 32) / 8)?;
        Ok(self.named.iter().position(|(given, _)| **given == *name))
    }

    /// The arguments by parameter. Those not given are None.
    pub(crate) fn bind<const N: usize>(
        self,
        function: &str,
        parameters: [&str; N],
    ) -> TemplateResult<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            return refused(format!("{function}: expected at most {N} arguments, got {}", self.positional.len()));
        }
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let place = parameters.iter().position(|parameter| **parameter == *name);
            match place.and_then(|place| bound.get_mut(place)) {
                Some(place @ None) => *place = Some(value),
                Some(Some(_)) => return refused(format!("{function}: the argument '{name}' is given twice")),
                None => return refused(format!("{function}: there is no argument '{name}'")),
            }
        }
        Ok(bound)
    }

    /// Takes the first positional argument.
    pub(crate) fn take_first(&mut self) -> Option<Value> {
        self.positional.pop_front()
    }
}

/// An integer argument.
pub(crate) fn int(function: &str, value: Option<Value>, default: i128) -> TemplateResult<i128> {
    match value {
        None | Some(Value::Undefined) => Ok(default),
        Some(value) => match value.as_int() {
            Some(number) => Ok(number),
            None => refused(format!("{function}: expected an integer, got {}", value.type_name())),
        },
    }
}

/// An integer argument that is a size. Negative ones count as 0.
pub(crate) fn size(function: &str, value: Option<Value>, default: usize) -> TemplateResult<usize> {
    let number = int(function, value, default as i128)?;
    Ok(usize::try_from(number.max(0)).unwrap_or(usize::MAX))
}

/// An argument that is required.
pub(crate) fn required(function: &str, value: Option<Value>) -> TemplateResult<Value> {
    value.map_or_else(|| refused(format!("{function}: an argument is missing")), Ok)
}

/// A text that is required.
pub(crate) fn required_text(function: &str, value: Option<Value>) -> TemplateResult<Value> {
    let value = required(function, value)?;
    if value.as_str().is_some() {
        Ok(value)
    } else {
        refused(format!("{function}: expected a string, got {}", value.type_name()))
    }
}

/// A truth value.
pub(crate) fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}
