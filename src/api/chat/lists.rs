//! Mutable lists: minijinja's values are immutable, but some templates call Python's `append` and `pop`.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value, functions};
use parking_lot::Mutex;

/// The name of the function that returns an empty list. Templates have no other function with this name.
pub const MAKE: &str = "__mutable_list";
/// The maximum number of items in a list.
const MAX_ITEMS: usize = 1 << 16;
/// The maximum nesting of items.
const MAX_DEPTH: usize = 32;
/// The maximum number of values in an item. A shared value counts each time it occurs.
const MAX_VISITS: usize = 1 << 16;

/// A mutable list. It contains no other mutable list, so that it cannot contain itself.
#[derive(Default)]
struct MutableList(Mutex<Vec<Value>>);

/// An empty list.
pub fn make() -> Value {
    Value::from_object(MutableList::default())
}

/// Jinja's `namespace`, with mutable lists.
pub fn namespace(kwargs: Kwargs) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    for name in kwargs.args() {
        let value: Value = kwargs.get(name)?;
        let value = match value.kind() {
            ValueKind::Seq if value.downcast_object_ref::<MutableList>().is_none() => {
                Value::from_object(MutableList(Mutex::new(value.try_iter()?.collect())))
            }
            _ => value,
        };
        pairs.push((name.to_owned(), value));
    }
    kwargs.assert_all_used()?;
    let kwargs = Kwargs::from_iter(pairs);
    functions::namespace(Some(Value::from(kwargs).into()))
}

impl Object for MutableList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.lock().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        // A copy, because a loop may change the list.
        Enumerator::Values(self.0.lock().clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.lock().len())
    }

    fn call_method(self: &Arc<Self>, state: &mut State, method: &str, args: &[Value]) -> Result<Value, Error> {
        match method {
            "append" => {
                let (item,): (Value,) = from_args(args)?;
                self.add(usize::MAX, item)
            }
            "insert" => {
                let (index, item): (i64, Value) = from_args(args)?;
                let len = self.0.lock().len();
                // As in Python, an index before the first item means the first.
                self.add(if index < 0 && resolve_index(index, len) > len { 0 } else { resolve_index(index, len) }, item)
            }
            "extend" => {
                let (items,): (Value,) = from_args(args)?;
                for item in items.try_iter()? {
                    self.add(usize::MAX, item)?;
                }
                Ok(Value::from(()))
            }
            "clear" => {
                let () = from_args(args)?;
                self.0.lock().clear();
                Ok(Value::from(()))
            }
            "pop" => {
                let (index,): (Option<i64>,) = from_args(args)?;
                let mut items = self.0.lock();
                let index = resolve_index(index.unwrap_or(-1), items.len());
                if index >= items.len() {
                    return Err(Error::new(ErrorKind::InvalidOperation, "pop: the list has no such item"));
                }
                Ok(items.remove(index))
            }
            _ => {
                let plain = Value::from(self.0.lock().clone());
                super::filters::method(state, &plain, method, args)
            }
        }
    }
}

impl MutableList {
    /// Inserts an item at `index`, or at the end if `index` is beyond it.
    fn add(&self, index: usize, item: Value) -> Result<Value, Error> {
        let refuse = |reason: &str| Err(Error::new(ErrorKind::InvalidOperation, format!("append: {reason}")));
        let mut visits = MAX_VISITS;
        if !is_plain(&item, MAX_DEPTH, &mut visits) {
            return refuse("the item contains a mutable list, or too many values");
        }
        let mut items = self.0.lock();
        if items.len() >= MAX_ITEMS {
            return refuse("the list is too long");
        }
        let index = index.min(items.len());
        items.insert(index, item);
        Ok(Value::from(()))
    }
}

/// Converts Python's index, where negative numbers count from the end. The result is out of range if there is no such item.
fn resolve_index(index: i64, len: usize) -> usize {
    let distance = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
    if index < 0 { len.checked_sub(distance).unwrap_or(usize::MAX) } else { distance }
}

/// Whether `value` contains no mutable list. False if the limits `depth` or `visits` are reached first.
fn is_plain(value: &Value, depth: usize, visits: &mut usize) -> bool {
    if value.downcast_object_ref::<MutableList>().is_some() || depth == 0 || *visits == 0 {
        return false;
    }
    *visits -= 1;
    if value.as_object().is_none() {
        return true;
    }
    let is_map = value.kind() == ValueKind::Map;
    value.try_iter().is_ok_and(|mut items| {
        items.all(|item| {
            // The iterator of a map returns its keys.
            let value = if is_map { value.get_item(&item).ok() } else { None };
            is_plain(&item, depth - 1, visits) && value.is_none_or(|inner| is_plain(&inner, depth - 1, visits))
        })
    })
}

impl fmt::Debug for MutableList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter()).finish()
    }
}
