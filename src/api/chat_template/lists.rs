//! Lists that can grow: minijinja's values are immutable, but some templates call Python's `append` and `pop`.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value, functions};
use parking_lot::Mutex;

/// The function that makes an empty one; no template calls something so.
pub const MAKE: &str = "__growing_list";
/// Items of one list.
const MAX_ITEMS: usize = 1 << 16;
/// How deep the items may be nested.
const MAX_DEPTH: usize = 32;
/// The most values in an item, counted as often as they are in it.
const MAX_VISITS: usize = 1 << 16;

/// A list with a state. It holds no other list of its kind, so that it cannot hold itself.
#[derive(Default)]
struct List(Mutex<Vec<Value>>);

/// An empty list.
pub fn make() -> Value {
    Value::from_object(List::default())
}

/// Jinja's `namespace`, where lists can grow.
pub fn namespace(kwargs: Kwargs) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    for name in kwargs.args() {
        let value: Value = kwargs.get(name)?;
        let value = match value.kind() {
            ValueKind::Seq if value.downcast_object_ref::<List>().is_none() => {
                Value::from_object(List(Mutex::new(value.try_iter()?.collect())))
            }
            _ => value,
        };
        pairs.push((name.to_owned(), value));
    }
    kwargs.assert_all_used()?;
    let kwargs = Kwargs::from_iter(pairs);
    functions::namespace(Some(Value::from(kwargs).into()))
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.lock().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        // As it is now: a loop may change it.
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
                // Python takes an index before the first item for the first.
                self.add(if index < 0 && place(index, len) > len { 0 } else { place(index, len) }, item)
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
                let index = place(index.unwrap_or(-1), items.len());
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

impl List {
    /// Inserts an item; at the end when `index` is behind it.
    fn add(&self, index: usize, item: Value) -> Result<Value, Error> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidOperation, format!("append: {why}")));
        let mut visits = MAX_VISITS;
        if !is_plain(&item, MAX_DEPTH, &mut visits) {
            return refuse("the item holds a list that can grow, or too much");
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

/// Python's index, where negative ones count from the end; too large when there is no such item.
fn place(index: i64, len: usize) -> usize {
    let distance = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
    if index < 0 { len.checked_sub(distance).unwrap_or(usize::MAX) } else { distance }
}

/// Whether there is no list of this kind in `value`, as far as `visits` let it be known.
fn is_plain(value: &Value, depth: usize, visits: &mut usize) -> bool {
    if value.downcast_object_ref::<List>().is_some() || depth == 0 || *visits == 0 {
        return false;
    }
    *visits -= 1;
    if value.as_object().is_none() {
        return true;
    }
    let is_map = value.kind() == ValueKind::Map;
    value.try_iter().is_ok_and(|mut items| {
        items.all(|item| {
            // What a map's iterator tells are its keys.
            let behind = if is_map { value.get_item(&item).ok() } else { None };
            is_plain(&item, depth - 1, visits) && behind.is_none_or(|inner| is_plain(&inner, depth - 1, visits))
        })
    })
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter()).finish()
    }
}
