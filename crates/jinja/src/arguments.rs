//! The arguments of a call.

use crate::error::{TemplateResult, refused};
use crate::value::Value;

/// The arguments of a call.
#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Box<str>, Value)>,
}

impl Arguments {
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
        if self.positional.is_empty() { None } else { Some(self.positional.remove(0)) }
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
