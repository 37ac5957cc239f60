//! The values of a template. They have Python's semantics: lists and dictionaries are shared and can be modified.
//!
//! Values belong to one rendering and to its thread. Each counts its memory as long as it exists. A container can be made to contain
//! itself, as in Python: code that walks through values bounds the depth, dropping does not recurse, and the interpreter empties
//! modified containers at its end, so that none is leaked.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::{Rc, Weak};

use crate::error::TemplateResult;
use crate::meter::{Held, Meter};
use crate::scope::Scope;
use crate::text::{Text, TextBuilder};

/// A value.
#[derive(Clone, Default)]
pub enum Value {
    /// The undefined value: it has no text, no items, and all of its attributes are undefined.
    #[default]
    Undefined,
    /// Python's `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer. Python's are unbounded; an overflow is an error.
    Int(i128),
    /// A float.
    Float(f64),
    /// A text.
    Text(Rc<Text>),
    /// A list or a tuple.
    List(Rc<List>),
    /// A dictionary or a namespace.
    Dict(Rc<Dict>),
    /// A function, a macro, a method of a value.
    Callable(Rc<Callable>),
    /// The variable `loop`.
    Loop(Rc<LoopState>),
}

/// The kind of sequence that a list is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKind {
    List,
    Tuple,
}

/// A list or a tuple.
pub struct List {
    items: RefCell<Vec<Value>>,
    kind: ListKind,
    is_modified: Cell<bool>,
    held: Held,
}

impl List {
    const OVERHEAD: usize = 96;
    const ITEM: usize = size_of::<Value>();

    fn new(meter: &Rc<Meter>, kind: ListKind, items: Vec<Value>) -> TemplateResult<Rc<List>> {
        meter.step(items.len() / 8)?;
        let held = Held::new(meter, List::OVERHEAD + items.len() * List::ITEM)?;
        Ok(Rc::new(List { items: RefCell::new(items), kind, is_modified: Cell::new(false), held }))
    }

    pub(crate) fn kind(&self) -> ListKind {
        self.kind
    }

    pub(crate) fn len(&self) -> usize {
        self.items.borrow().len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<Value> {
        self.items.borrow().get(index).cloned()
    }

    /// A copy of the items. Counted as steps, and as memory only while it exists.
    pub(crate) fn items(&self) -> TemplateResult<Items> {
        let len = self.len();
        self.held.meter().step(len / 4)?;
        let held = Held::new(self.held.meter(), len * List::ITEM)?;
        Ok(Items { items: self.items.borrow().clone(), held })
    }

    pub(crate) fn insert(&self, index: usize, item: Value) -> TemplateResult<()> {
        let len = self.len();
        self.held.meter().step((len - index.min(len)) / 32)?;
        self.held.grow(List::ITEM)?;
        self.items.borrow_mut().insert(index.min(len), item);
        Ok(())
    }

    pub(crate) fn remove(&self, index: usize) -> TemplateResult<Option<Value>> {
        let len = self.len();
        if index >= len {
            return Ok(None);
        }
        self.held.meter().step((len - index) / 32)?;
        self.held.shrink(List::ITEM);
        let removed = self.items.borrow_mut().remove(index);
        Ok(Some(removed))
    }

    /// Replaces all items by these.
    pub(crate) fn replace(&self, items: Vec<Value>) -> TemplateResult<()> {
        let (new, old) = (items.len() * List::ITEM, self.len() * List::ITEM);
        self.held.grow(new)?;
        let before = std::mem::replace(&mut *self.items.borrow_mut(), items);
        self.held.shrink(old);
        drop(before);
        Ok(())
    }

    /// Whether this is the first modification.
    pub(crate) fn begin_modification(&self) -> bool {
        !self.is_modified.replace(true)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        drop_all(std::mem::take(self.items.get_mut()));
    }
}

/// The pairs of a dictionary, in the order of insertion.
type Pairs = Vec<(Value, Value)>;

/// A dictionary or a namespace.
pub struct Dict {
    pairs: RefCell<Pairs>,
    is_namespace: bool,
    is_modified: Cell<bool>,
    held: Held,
}

impl Dict {
    const OVERHEAD: usize = 96;
    const PAIR: usize = 2 * size_of::<Value>();

    pub(crate) fn is_namespace(&self) -> bool {
        self.is_namespace
    }

    pub(crate) fn len(&self) -> usize {
        self.pairs.borrow().len()
    }

    /// The position of a key that is a text.
    fn position(&self, key: &str) -> TemplateResult<Option<usize>> {
        let pairs = self.pairs.borrow();
        let meter = self.held.meter();
        for (at, (name, _)) in pairs.iter().enumerate() {
            if at % 8 == 7 {
                meter.step(1)?;
            }
            if let Value::Text(name) = name
                && name.len() == key.len()
            {
                meter.step(key.len() / 32)?;
                if ***name == *key {
                    return Ok(Some(at));
                }
            }
        }
        Ok(None)
    }

    pub(crate) fn get(&self, key: &str) -> TemplateResult<Option<Value>> {
        let position = self.position(key)?;
        Ok(position.and_then(|position| self.at(position)).map(|(_, value)| value))
    }

    pub(crate) fn at(&self, position: usize) -> Option<(Value, Value)> {
        self.pairs.borrow().get(position).cloned()
    }

    /// A copy of the pairs. Counted as steps, and as memory only while it exists.
    pub(crate) fn pairs(&self) -> TemplateResult<CopiedPairs> {
        let len = self.len();
        self.held.meter().step(len / 4)?;
        let held = Held::new(self.held.meter(), len * Dict::PAIR)?;
        Ok(CopiedPairs { pairs: self.pairs.borrow().clone().into_iter(), _held: held })
    }

    /// Adds a pair whose key is not in it.
    pub(crate) fn push(&self, key: Value, value: Value) -> TemplateResult<()> {
        self.held.grow(Dict::PAIR)?;
        self.pairs.borrow_mut().push((key, value));
        Ok(())
    }

    pub(crate) fn replace_at(&self, position: usize, value: Value) {
        let before = self.pairs.borrow_mut().get_mut(position).map(|(_, old)| std::mem::replace(old, value));
        drop(before);
    }

    pub(crate) fn remove_at(&self, position: usize) -> TemplateResult<Option<(Value, Value)>> {
        let len = self.len();
        if position >= len {
            return Ok(None);
        }
        self.held.meter().step((len - position) / 32)?;
        self.held.shrink(Dict::PAIR);
        let removed = self.pairs.borrow_mut().remove(position);
        Ok(Some(removed))
    }

    pub(crate) fn clear(&self) {
        let before = std::mem::take(&mut *self.pairs.borrow_mut());
        self.held.shrink(before.len() * Dict::PAIR);
    }

    /// Sets the value of a key that is a text.
    pub(crate) fn set(&self, key: &str, value: Value) -> TemplateResult<()> {
        match self.position(key)? {
            Some(position) => self.replace_at(position, value),
            None => self.push(text(self.held.meter(), key)?, value)?,
        }
        Ok(())
    }

    /// Whether this is the first modification.
    pub(crate) fn begin_modification(&self) -> bool {
        !self.is_modified.replace(true)
    }
}

/// A copy of a dictionary's pairs, whose memory is counted.
pub(crate) struct CopiedPairs {
    pairs: std::vec::IntoIter<(Value, Value)>,
    _held: Held,
}

impl CopiedPairs {
    /// The pairs that are left.
    pub(crate) fn as_mut(&mut self) -> &mut [(Value, Value)] {
        self.pairs.as_mut_slice()
    }
}

impl Iterator for CopiedPairs {
    type Item = (Value, Value);

    fn next(&mut self) -> Option<(Value, Value)> {
        self.pairs.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.pairs.size_hint()
    }
}

impl ExactSizeIterator for CopiedPairs {}

impl Drop for Dict {
    fn drop(&mut self) {
        drop_all(std::mem::take(self.pairs.get_mut()).into_iter().flat_map(|(key, value)| [key, value]).collect());
    }
}

/// Drops values without recursion, however deeply they are nested.
fn drop_all(mut values: Vec<Value>) {
    while let Some(value) = values.pop() {
        match value {
            Value::List(list) => {
                if let Some(mut list) = Rc::into_inner(list) {
                    values.append(list.items.get_mut());
                }
            }
            Value::Dict(dict) => {
                if let Some(mut dict) = Rc::into_inner(dict) {
                    values
                        .extend(std::mem::take(dict.pairs.get_mut()).into_iter().flat_map(|(key, value)| [key, value]));
                }
            }
            Value::Callable(callable) => {
                if let Some(mut callable) = Rc::into_inner(callable) {
                    values.append(&mut callable.take());
                }
            }
            Value::Loop(state) => {
                if let Some(mut state) = Rc::into_inner(state) {
                    values.append(&mut state.items.items);
                }
            }
            _ => {}
        }
    }
}

/// The variables of a block.
pub type Variables = Scope<Value>;

/// A callable value.
pub enum Callable {
    /// A function that every template has, by its number.
    Function(usize),
    /// A macro, or the body of a `call` block, by its number, with the scope in which it was defined.
    Macro(usize, Weak<Variables>),
    /// A method of a value, by name.
    Method(Value, Box<str>),
}

impl Callable {
    /// Takes the values in it.
    fn take(&mut self) -> Vec<Value> {
        match self {
            Callable::Function(_) | Callable::Macro(..) => Vec::new(),
            Callable::Method(value, _) => vec![std::mem::take(value)],
        }
    }
}

impl Drop for Callable {
    fn drop(&mut self) {
        drop_all(self.take());
    }
}

/// The variable `loop`.
pub struct LoopState {
    pub(crate) items: Items,
    pub(crate) index: Cell<usize>,
    pub(crate) depth: usize,
    /// The loop's number, if it is recursive.
    pub(crate) recursive: Option<usize>,
}

impl LoopState {
    /// A loop at its first item. `recursive` is its number, if it is recursive.
    pub(crate) fn new(items: Items, depth: usize, recursive: Option<usize>) -> TemplateResult<Rc<LoopState>> {
        Ok(Rc::new(LoopState { items, index: Cell::new(0), depth, recursive }))
    }
}

/// A copy of a container's items, whose memory is counted.
pub struct Items {
    items: Vec<Value>,
    held: Held,
}

impl Items {
    pub(crate) fn new(meter: &Rc<Meter>) -> TemplateResult<Items> {
        Ok(Items { items: Vec::new(), held: Held::new(meter, 0)? })
    }

    pub(crate) fn push(&mut self, item: Value) -> TemplateResult<()> {
        self.held.meter().step(1)?;
        self.held.grow(List::ITEM)?;
        self.items.push(item);
        Ok(())
    }

    pub(crate) fn into_list(self) -> TemplateResult<Value> {
        self.into_kind(ListKind::List)
    }

    pub(crate) fn into_kind(mut self, kind: ListKind) -> TemplateResult<Value> {
        let items = std::mem::take(&mut self.items);
        self.held.shrink(usize::MAX);
        Ok(Value::List(List::new(self.held.meter(), kind, items)?))
    }

    /// The items. Their memory is no longer counted.
    pub(crate) fn into_vec(mut self) -> Vec<Value> {
        std::mem::take(&mut self.items)
    }

    pub(crate) fn as_mut(&mut self) -> &mut Vec<Value> {
        &mut self.items
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        drop_all(std::mem::take(&mut self.items));
    }
}

impl Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.items
    }
}

impl TextBuilder {
    /// The finished text as a value.
    pub(crate) fn finish(self) -> Value {
        Value::Text(Rc::new(self.into_text()))
    }
}

/// A text value.
pub(crate) fn text(meter: &Rc<Meter>, text: &str) -> TemplateResult<Value> {
    let mut builder = TextBuilder::new(meter)?;
    builder.push_str(text)?;
    Ok(builder.finish())
}

/// A list value.
pub(crate) fn list(meter: &Rc<Meter>, items: Vec<Value>) -> TemplateResult<Value> {
    Ok(Value::List(List::new(meter, ListKind::List, items)?))
}

/// A tuple value.
pub(crate) fn tuple(meter: &Rc<Meter>, items: Vec<Value>) -> TemplateResult<Value> {
    Ok(Value::List(List::new(meter, ListKind::Tuple, items)?))
}

/// An empty dictionary, or a namespace.
pub(crate) fn dict(meter: &Rc<Meter>, is_namespace: bool) -> TemplateResult<Rc<Dict>> {
    let (pairs, is_modified) = (RefCell::default(), Cell::new(false));
    Ok(Rc::new(Dict { pairs, is_namespace, is_modified, held: Held::new(meter, Dict::OVERHEAD)? }))
}

impl Value {
    pub(crate) fn callable(callable: Callable) -> Value {
        Value::Callable(Rc::new(callable))
    }

    pub(crate) fn int(number: usize) -> Value {
        Value::Int(number as i128)
    }

    /// Python's `bool(value)`.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(flag) => *flag,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => list.len() > 0,
            Value::Dict(dict) => dict.is_namespace() || dict.len() > 0,
            Value::Callable(_) | Value::Loop(_) => true,
        }
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined)
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// An integer or a truth value as an integer.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Bool(flag) => Some(i128::from(*flag)),
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// The position that an index means, which counts from the end if it is negative.
    pub(crate) fn index_in(&self, len: usize) -> Option<usize> {
        let index = self.as_int()?;
        let index = if index < 0 { index.checked_add(len as i128)? } else { index };
        usize::try_from(index).ok().filter(|index| *index < len)
    }

    /// A number as a float.
    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            other => other.as_int().map(|number| number as f64),
        }
    }

    /// The name of the type, for error messages.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined => "an undefined value",
            Value::None => "None",
            Value::Bool(_) => "a truth value",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(list) if list.kind() == ListKind::List => "a list",
            Value::List(_) => "a tuple",
            Value::Dict(dict) if dict.is_namespace() => "a namespace",
            Value::Dict(_) => "a dictionary",
            Value::Callable(_) => "a function",
            Value::Loop(_) => "the loop",
        }
    }
}
