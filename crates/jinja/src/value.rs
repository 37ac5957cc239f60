//! The values of a template. They have Python's semantics: lists and dictionaries are shared and can be modified.
//!
//! Values belong to one rendering and to its thread. Each counts its memory as long as it exists. A container can be made to contain
//! itself, as in Python: code that walks through values bounds the depth, dropping does not recurse, and the interpreter empties
//! modified containers at its end, so that none is leaked.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
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

/// The items of a container: values, or pairs of them.
pub trait ContainerItem: Clone {
    /// All values in these items.
    fn values(items: Vec<Self>) -> Vec<Value>;
}

impl ContainerItem for Value {
    fn values(items: Vec<Value>) -> Vec<Value> {
        items
    }
}

impl ContainerItem for (Value, Value) {
    fn values(pairs: Vec<(Value, Value)>) -> Vec<Value> {
        pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()
    }
}

/// The items of a list, or the pairs of a dictionary in the order of insertion. Their memory is counted.
pub struct Container<T: ContainerItem> {
    items: RefCell<Vec<T>>,
    is_modified: Cell<bool>,
    held: Held,
}

impl<T: ContainerItem> Container<T> {
    const OVERHEAD: usize = 96;
    const ITEM: usize = size_of::<T>();

    fn new(meter: &Rc<Meter>, items: Vec<T>) -> TemplateResult<Container<T>> {
        meter.step(items.len() / 8)?;
        let held = Held::new(meter, Self::OVERHEAD + items.len() * Self::ITEM)?;
        Ok(Container { items: RefCell::new(items), is_modified: Cell::new(false), held })
    }

    pub(crate) fn len(&self) -> usize {
        self.items.borrow().len()
    }

    pub(crate) fn at(&self, position: usize) -> Option<T> {
        self.items.borrow().get(position).cloned()
    }

    /// A copy of the items. Counted as steps, and as memory only while it exists.
    pub(crate) fn items(&self) -> TemplateResult<CopiedItems<T>> {
        let len = self.len();
        self.held.meter().step(len / 4)?;
        let held = Held::new(self.held.meter(), len * Self::ITEM)?;
        Ok(CopiedItems { items: self.items.borrow().clone(), held })
    }

    /// Inserts an item, at the end if the position is behind it.
    pub(crate) fn insert(&self, position: usize, item: T) -> TemplateResult<()> {
        let len = self.len();
        self.held.meter().step((len - position.min(len)) / 32)?;
        self.held.grow(Self::ITEM)?;
        self.items.borrow_mut().insert(position.min(len), item);
        Ok(())
    }

    pub(crate) fn remove(&self, position: usize) -> TemplateResult<Option<T>> {
        let len = self.len();
        if position >= len {
            return Ok(None);
        }
        self.held.meter().step((len - position) / 32)?;
        self.held.shrink(Self::ITEM);
        let removed = self.items.borrow_mut().remove(position);
        Ok(Some(removed))
    }

    /// Replaces all items by these.
    pub(crate) fn replace(&self, items: Vec<T>) -> TemplateResult<()> {
        self.held.grow(items.len() * Self::ITEM)?;
        let before = std::mem::replace(&mut *self.items.borrow_mut(), items);
        self.held.shrink(before.len() * Self::ITEM);
        drop(before);
        Ok(())
    }

    /// Whether this is the first modification.
    pub(crate) fn begin_modification(&self) -> bool {
        !self.is_modified.replace(true)
    }

    fn take_values(&mut self) -> Vec<Value> {
        T::values(std::mem::take(self.items.get_mut()))
    }
}

impl<T: ContainerItem> Drop for Container<T> {
    fn drop(&mut self) {
        drop_all(self.take_values());
    }
}

/// A list or a tuple.
pub struct List {
    items: Container<Value>,
    kind: ListKind,
}

impl List {
    pub(crate) fn kind(&self) -> ListKind {
        self.kind
    }
}

impl Deref for List {
    type Target = Container<Value>;

    fn deref(&self) -> &Container<Value> {
        &self.items
    }
}

/// A dictionary or a namespace.
pub struct Dict {
    pairs: Container<(Value, Value)>,
    is_namespace: bool,
}

impl Deref for Dict {
    type Target = Container<(Value, Value)>;

    fn deref(&self) -> &Container<(Value, Value)> {
        &self.pairs
    }
}

impl Dict {
    pub(crate) fn is_namespace(&self) -> bool {
        self.is_namespace
    }

    /// The position of a key that is a text.
    fn position(&self, key: &str) -> TemplateResult<Option<usize>> {
        let pairs = self.pairs.items.borrow();
        let meter = self.pairs.held.meter();
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

    /// Adds a pair whose key is not in it.
    pub(crate) fn push(&self, key: Value, value: Value) -> TemplateResult<()> {
        self.insert(usize::MAX, (key, value))
    }

    pub(crate) fn replace_at(&self, position: usize, value: Value) {
        let before = self.pairs.items.borrow_mut().get_mut(position).map(|(_, old)| std::mem::replace(old, value));
        drop(before);
    }

    /// Sets the value of a key that is a text.
    pub(crate) fn set(&self, key: &str, value: Value) -> TemplateResult<()> {
        match self.position(key)? {
            Some(position) => self.replace_at(position, value),
            None => self.push(text(self.pairs.held.meter(), key)?, value)?,
        }
        Ok(())
    }
}

/// Drops values without recursion, however deeply they are nested.
fn drop_all(mut values: Vec<Value>) {
    while let Some(value) = values.pop() {
        let inner = match value {
            Value::List(list) => Rc::into_inner(list).map(|mut list| list.items.take_values()),
            Value::Dict(dict) => Rc::into_inner(dict).map(|mut dict| dict.pairs.take_values()),
            Value::Callable(callable) => Rc::into_inner(callable).map(|mut callable| callable.take()),
            Value::Loop(state) => Rc::into_inner(state).map(|mut state| std::mem::take(&mut state.items.items)),
            _ => None,
        };
        values.extend(inner.into_iter().flatten());
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
pub struct CopiedItems<T: ContainerItem> {
    items: Vec<T>,
    held: Held,
}

/// Copied values, or values that become a list.
pub type Items = CopiedItems<Value>;

impl Items {
    pub(crate) fn new(meter: &Rc<Meter>) -> TemplateResult<Items> {
        Ok(Items { items: Vec::new(), held: Held::new(meter, 0)? })
    }

    pub(crate) fn push(&mut self, item: Value) -> TemplateResult<()> {
        self.held.meter().step(1)?;
        self.held.grow(size_of::<Value>())?;
        self.items.push(item);
        Ok(())
    }

    pub(crate) fn into_list(self) -> TemplateResult<Value> {
        self.into_kind(ListKind::List)
    }

    pub(crate) fn into_kind(mut self, kind: ListKind) -> TemplateResult<Value> {
        let items = std::mem::take(&mut self.items);
        self.held.shrink(usize::MAX);
        sequence(self.held.meter(), kind, items)
    }

    /// The items. Their memory is no longer counted.
    pub(crate) fn into_vec(mut self) -> Vec<Value> {
        std::mem::take(&mut self.items)
    }
}

impl<T: ContainerItem> Drop for CopiedItems<T> {
    fn drop(&mut self) {
        drop_all(T::values(std::mem::take(&mut self.items)));
    }
}

impl<T: ContainerItem> Deref for CopiedItems<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.items
    }
}

impl<T: ContainerItem> DerefMut for CopiedItems<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.items
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

fn sequence(meter: &Rc<Meter>, kind: ListKind, items: Vec<Value>) -> TemplateResult<Value> {
    Ok(Value::List(Rc::new(List { items: Container::new(meter, items)?, kind })))
}

/// A list value.
pub(crate) fn list(meter: &Rc<Meter>, items: Vec<Value>) -> TemplateResult<Value> {
    sequence(meter, ListKind::List, items)
}

/// A tuple value.
pub(crate) fn tuple(meter: &Rc<Meter>, items: Vec<Value>) -> TemplateResult<Value> {
    sequence(meter, ListKind::Tuple, items)
}

/// An empty dictionary, or a namespace.
pub(crate) fn dict(meter: &Rc<Meter>, is_namespace: bool) -> TemplateResult<Rc<Dict>> {
    Ok(Rc::new(Dict { pairs: Container::new(meter, Vec::new())?, is_namespace }))
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
