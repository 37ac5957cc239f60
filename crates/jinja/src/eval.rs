//! Evaluates expressions.

use std::rc::Rc;

use crate::arguments::Arguments;
use crate::ast::{Argument, BinaryOp, CompareOp, Expr, ExprKind, FilterCall, VariableName};
use crate::compare;
use crate::error::{TemplateResult, refused};
use crate::filters;
use crate::functions;
use crate::interpreter::Interpreter;
use crate::methods;
use crate::operators;
use crate::value::{Callable, Items, LoopState, Value, Variables, dict, list, text, tuple};

impl<'t> Interpreter<'t> {
    /// The value of an expression.
    pub(crate) fn eval(&mut self, expr: &'t Expr, scope: &Rc<Variables>) -> TemplateResult<Value> {
        self.meter.step(1)?;
        // Constants and variables do not count as a nesting level.
        match &expr.kind {
            ExprKind::Const(index) => return Ok(self.constant(*index)),
            ExprKind::Name(name) => return self.variable(*name, scope),
            _ => {}
        }
        self.deeper(|this| this.composite(expr, scope)).map_err(|fault| fault.at(expr.line))
    }

    fn composite(&mut self, expr: &'t Expr, scope: &Rc<Variables>) -> TemplateResult<Value> {
        match &expr.kind {
            ExprKind::Const(index) => Ok(self.constant(*index)),
            ExprKind::Name(name) => self.variable(*name, scope),
            ExprKind::List(items) => {
                let items = self.eval_all(items, scope)?;
                list(&self.meter, items)
            }
            ExprKind::Tuple(items) => {
                let items = self.eval_all(items, scope)?;
                tuple(&self.meter, items)
            }
            ExprKind::Dict(pairs) => {
                let result = dict(&self.meter, false)?;
                for (key, value) in pairs {
                    let (key, value) = (self.eval(key, scope)?, self.eval(value, scope)?);
                    compare::insert(&self.meter, &result, key, value)?;
                }
                Ok(Value::Dict(result))
            }
            ExprKind::Negative(value) => operators::negative(&self.eval(value, scope)?),
            ExprKind::Positive(value) => operators::positive(&self.eval(value, scope)?),
            ExprKind::Not(value) => Ok(Value::Bool(!self.eval(value, scope)?.is_true())),
            ExprKind::Binary(operator @ (BinaryOp::And | BinaryOp::Or), left, right) => {
                let left = self.eval(left, scope)?;
                if left.is_true() == (*operator == BinaryOp::And) { self.eval(right, scope) } else { Ok(left) }
            }
            ExprKind::Binary(operator, left, right) => {
                let (left, right) = (self.eval(left, scope)?, self.eval(right, scope)?);
                self.binary(*operator, &left, &right)
            }
            ExprKind::Compare(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (operator, right) in rest {
                    let right = self.eval(right, scope)?;
                    if !self.compare(*operator, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            ExprKind::Conditional(condition, value, otherwise) => {
                match (self.eval(condition, scope)?.is_true(), otherwise) {
                    (true, _) => self.eval(value, scope),
                    (false, Some(otherwise)) => self.eval(otherwise, scope),
                    (false, None) => Ok(Value::Undefined),
                }
            }
            ExprKind::Attribute(value, name) => {
                let value = self.eval(value, scope)?;
                self.attribute(&value, name)
            }
            ExprKind::Item(value, key) => {
                let (value, key) = (self.eval(value, scope)?, self.eval(key, scope)?);
                self.item(&value, &key)
            }
            ExprKind::Slice(value, parts) => {
                let value = self.eval(value, scope)?;
                let mut bounds = [None, None, None];
                for (bound, part) in bounds.iter_mut().zip(parts) {
                    *bound = part.as_ref().map(|part| self.eval(part, scope)).transpose()?;
                }
                operators::slice(&self.meter, &value, &bounds)
            }
            ExprKind::Call(function, arguments) => self.call_expr(function, arguments, scope),
            ExprKind::Filter(value, filter) => {
                let value = self.eval(value, scope)?;
                self.filter(filter, value, scope)
            }
            ExprKind::Test(value, test) => {
                let value = self.eval(value, scope)?;
                let arguments = self.arguments(&test.arguments, scope)?;
                self.test(&test.name, &value, arguments).map(Value::Bool)
            }
        }
    }

    fn eval_all(&mut self, exprs: &'t [Expr], scope: &Rc<Variables>) -> TemplateResult<Vec<Value>> {
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    /// The value of a variable, or the function of that name.
    pub(crate) fn variable(&mut self, name: VariableName, scope: &Rc<Variables>) -> TemplateResult<Value> {
        Ok(match scope.get(name)? {
            Some(value) => value,
            None => {
                let name = self.ast.symbols.get(name as usize).map_or("", |name| name);
                functions::number(name).map_or(Value::Undefined, |number| Value::callable(Callable::Function(number)))
            }
        })
    }

    /// Charges the meter for what an operation may read of a value: its text, or its items.
    pub(crate) fn read(&self, value: &Value) -> TemplateResult<()> {
        match value {
            Value::Text(text) => self.meter.read(text.len()),
            Value::List(list) => self.meter.step(list.len() / 32),
            Value::Dict(dict) => self.meter.step(dict.len() / 32),
            _ => Ok(()),
        }
    }

    pub(crate) fn binary(&mut self, operator: BinaryOp, left: &Value, right: &Value) -> TemplateResult<Value> {
        self.read(left)?;
        self.read(right)?;
        operators::binary(&self.meter, operator, left, right)
    }

    pub(crate) fn compare(&mut self, operator: CompareOp, left: &Value, right: &Value) -> TemplateResult<bool> {
        let meter = &self.meter;
        Ok(match operator {
            CompareOp::Equal => compare::equal(meter, left, right)?,
            CompareOp::Unequal => !compare::equal(meter, left, right)?,
            CompareOp::Less => compare::order(meter, left, right)?.is_lt(),
            CompareOp::LessOrEqual => compare::order(meter, left, right)?.is_le(),
            CompareOp::Greater => compare::order(meter, left, right)?.is_gt(),
            CompareOp::GreaterOrEqual => compare::order(meter, left, right)?.is_ge(),
            CompareOp::In => compare::contains(meter, right, left)?,
            CompareOp::NotIn => !compare::contains(meter, right, left)?,
        })
    }

    /// `value.name`: an item of that name, or a method.
    pub(crate) fn attribute(&mut self, value: &Value, name: &str) -> TemplateResult<Value> {
        let found = match value {
            Value::Dict(dict) => dict.get(name)?,
            Value::Loop(state) => loop_attribute(state, name),
            Value::Callable(callable) => match (callable.as_ref(), name) {
                (Callable::Macro(index, _), "name") => {
                    let name = self.ast.macros.get(*index).map_or("", |definition| &definition.name);
                    Some(text(&self.meter, name)?)
                }
                _ => None,
            },
            _ => None,
        };
        Ok(match found {
            Some(found) => found,
            None if methods::exists(value, name) => Value::callable(Callable::Method(value.clone(), name.into())),
            None => Value::Undefined,
        })
    }

    /// `value[key]`
    pub(crate) fn item(&mut self, value: &Value, key: &Value) -> TemplateResult<Value> {
        match (value, key) {
            (Value::Dict(dict), key) => match key {
                Value::Text(name) => match dict.get(name)? {
                    Some(found) => Ok(found),
                    None => self.attribute(value, name),
                },
                key => Ok(compare::find(&self.meter, dict, key)?
                    .and_then(|at| dict.at(at))
                    .map_or(Value::Undefined, |it| it.1)),
            },
            (Value::List(list), key) if key.as_int().is_some() => {
                Ok(key.index_in(list.len()).and_then(|index| list.at(index)).unwrap_or_default())
            }
            (Value::Text(text), key) if key.as_int().is_some() => operators::character(&self.meter, text, key),
            (_, Value::Text(name)) => self.attribute(value, name),
            _ => Ok(Value::Undefined),
        }
    }

    fn arguments(&mut self, given: &'t [Argument], scope: &Rc<Variables>) -> TemplateResult<Arguments> {
        let mut arguments = Arguments::new(&self.meter)?;
        for argument in given {
            match argument {
                Argument::Positional(expr) => arguments.push(self.eval(expr, scope)?)?,
                Argument::Named(name, expr) => {
                    let value = self.eval(expr, scope)?;
                    arguments.push_named(name, value)?;
                }
                Argument::Items(expr) => {
                    let value = self.eval(expr, scope)?;
                    self.iterate(&value)?.iter().try_for_each(|item| arguments.push(item.clone()))?;
                }
                Argument::Pairs(expr) => match self.eval(expr, scope)? {
                    Value::Dict(dict) => {
                        for (name, value) in dict.items()?.drain(..) {
                            let Value::Text(name) = name else {
                                return refused("expected strings as names of arguments");
                            };
                            arguments.push_named(&name, value)?;
                        }
                    }
                    other => return refused(format!("expected a dictionary after **, got {}", other.type_name())),
                },
            }
        }
        Ok(arguments)
    }

    fn call_expr(&mut self, function: &'t Expr, given: &'t [Argument], scope: &Rc<Variables>) -> TemplateResult<Value> {
        let caller = self.next_caller.take();
        // A method is called directly, without making a value for the bound method.
        if let ExprKind::Attribute(receiver, name) = &function.kind {
            let receiver = self.eval(receiver, scope)?;
            let method = match &receiver {
                value if methods::exists(value, name) => None,
                value => Some(self.attribute(value, name)?),
            };
            let arguments = self.arguments(given, scope)?;
            self.next_caller = caller;
            return match method {
                None => methods::call(self, &receiver, name, arguments),
                Some(Value::Undefined) => refused(format!("{} has no method '{name}'", receiver.type_name())),
                Some(function) => self.call(&function, arguments, scope),
            };
        }
        let value = self.eval(function, scope)?;
        let arguments = self.arguments(given, scope)?;
        self.next_caller = caller;
        if let (Value::Undefined, ExprKind::Name(name)) = (&value, &function.kind) {
            let name = self.ast.symbols.get(*name as usize).map_or("", |name| name);
            return refused(format!("'{name}' is undefined"));
        }
        self.call(&value, arguments, scope)
    }

    /// Evaluates a call whose macro gets `caller`.
    pub(crate) fn call_with_caller(
        &mut self,
        call: &'t Expr,
        caller: Value,
        scope: &Rc<Variables>,
    ) -> TemplateResult<Value> {
        self.next_caller = Some(caller);
        let value = self.eval(call, scope);
        self.next_caller = None;
        value
    }

    /// Calls a value.
    pub(crate) fn call(
        &mut self,
        function: &Value,
        arguments: Arguments,
        scope: &Rc<Variables>,
    ) -> TemplateResult<Value> {
        match function {
            Value::Callable(callable) => match callable.as_ref() {
                Callable::Function(number) => functions::call(self, *number, arguments),
                Callable::Macro(index, defined_in) => {
                    // Its scope is gone if the macro was kept in a namespace: then the macro sees global variables only.
                    let defined_in = defined_in.upgrade().unwrap_or_else(|| Rc::clone(&self.globals));
                    self.call_macro(*index, &defined_in, arguments)
                }
                Callable::Method(receiver, name) => methods::call(self, receiver, name, arguments),
            },
            Value::Loop(state) => {
                let Some(index) = state.recursive else { return refused("the loop is not recursive") };
                let [items] = arguments.bind("loop", ["items"])?;
                let (ast, depth) = (self.ast, state.depth + 1);
                let Some(for_loop) = ast.loops.get(index) else { return Ok(Value::Undefined) };
                let items = items.unwrap_or_default();
                self.captured(|this| this.for_loop(index, for_loop, &items, scope, depth))
            }
            other => refused(format!("{} cannot be called", other.type_name())),
        }
    }

    /// Applies a filter.
    pub(crate) fn filter(
        &mut self,
        filter: &'t FilterCall,
        value: Value,
        scope: &Rc<Variables>,
    ) -> TemplateResult<Value> {
        let arguments = self.arguments(&filter.arguments, scope)?;
        self.apply(&filter.name, value, arguments).map_err(|fault| fault.at(filter.line))
    }

    /// Applies a filter by name.
    pub(crate) fn apply(&mut self, name: &str, value: Value, arguments: Arguments) -> TemplateResult<Value> {
        filters::call(self, name, value, arguments)
    }

    /// The items of what can be iterated over: a list's items, a dictionary's keys, a text's characters.
    pub(crate) fn iterate(&mut self, value: &Value) -> TemplateResult<Items> {
        match value {
            Value::Undefined => Items::new(&self.meter),
            Value::List(list) => list.items(),
            Value::Dict(dict) => {
                let mut keys = Items::new(&self.meter)?;
                for (key, _) in dict.items()?.drain(..) {
                    keys.push(key)?;
                }
                Ok(keys)
            }
            Value::Text(string) => {
                let mut characters = Items::new(&self.meter)?;
                for c in string.chars() {
                    characters.push(text(&self.meter, c.encode_utf8(&mut [0; 4]))?)?;
                }
                Ok(characters)
            }
            other => refused(format!("cannot iterate over {}", other.type_name())),
        }
    }
}

fn loop_attribute(state: &Rc<LoopState>, name: &str) -> Option<Value> {
    let (index, len) = (state.index.get(), state.items.len());
    Some(match name {
        "index" => Value::int(index + 1),
        "index0" => Value::int(index),
        "revindex" => Value::int(len - index),
        "revindex0" => Value::int(len - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == len),
        "length" => Value::int(len),
        "depth" => Value::int(state.depth),
        "depth0" => Value::int(state.depth - 1),
        "previtem" => index.checked_sub(1).and_then(|before| state.items.get(before)).cloned().unwrap_or_default(),
        "nextitem" => state.items.get(index + 1).cloned().unwrap_or_default(),
        _ => return None,
    })
}
