//! Runs the statements of a template.

use std::rc::Rc;

use crate::arguments::Arguments;
use crate::ast::{Ast, Constant, FilterCall, ForLoop, Stmt, StmtKind, Target, VariableName};
use crate::error::{Fault, FaultKind, TemplateResult, refused};
use crate::meter::{Held, Meter};
use crate::print;
use crate::text::TextBuilder;
use crate::value::{Callable, Items, LoopState, Value, Variables, text, tuple};

/// A filter: gets its own name, the value and its arguments.
pub(crate) type Filter = fn(&mut Interpreter, &str, Value, Arguments) -> TemplateResult<Value>;

/// Where a list of statements ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Normal,
    Break,
    Continue,
}

/// One rendering.
pub(crate) struct Interpreter<'t> {
    pub(crate) ast: &'t Ast,
    pub(crate) meter: Rc<Meter>,
    pub(crate) globals: Rc<Variables>,
    /// Seconds since 1970.
    pub(crate) now: u64,
    out: TextBuilder,
    constants: Vec<Value>,
    depth: usize,
    loop_symbol: Option<VariableName>,
    caller_symbol: Option<VariableName>,
    varargs_symbol: Option<VariableName>,
    kwargs_symbol: Option<VariableName>,
    /// Containers that something was put into, which can therefore contain themselves. They are emptied at the end.
    modified: Vec<Value>,
    /// The body of a `call` block, for the macro that is called next.
    pub(crate) next_caller: Option<Value>,
}

impl<'t> Interpreter<'t> {
    pub(crate) fn new(ast: &'t Ast, meter: &Rc<Meter>, now: u64) -> TemplateResult<Interpreter<'t>> {
        let constants = ast.constants.iter().map(|constant| match constant {
            Constant::None => Ok(Value::None),
            Constant::Bool(flag) => Ok(Value::Bool(*flag)),
            Constant::Int(number) => Ok(Value::Int(*number)),
            Constant::Float(number) => Ok(Value::Float(*number)),
            Constant::Text(string) => text(meter, string),
        });
        let symbol = |name: &str| ast.symbols.iter().position(|known| **known == *name).map(|at| at as VariableName);
        Ok(Interpreter {
            ast,
            meter: Rc::clone(meter),
            globals: Variables::outermost(meter)?,
            now,
            out: TextBuilder::new(meter)?,
            constants: constants.collect::<TemplateResult<_>>()?,
            depth: 0,
            loop_symbol: symbol("loop"),
            caller_symbol: symbol("caller"),
            varargs_symbol: symbol("varargs"),
            kwargs_symbol: symbol("kwargs"),
            modified: Vec::new(),
            next_caller: None,
        })
    }

    /// Runs the template and returns its output.
    pub(crate) fn run(mut self) -> TemplateResult<String> {
        let (ast, globals) = (self.ast, Rc::clone(&self.globals));
        let result = self.statements(&ast.body, &globals);
        // Variables of macros refer to scopes weakly, so only modified containers can be cycles.
        globals.clear();
        let modified = std::mem::take(&mut self.modified);
        self.meter.release(modified.len() * size_of::<Value>());
        for container in modified {
            match container {
                Value::List(list) => list.replace(Vec::new())?,
                Value::Dict(dict) => dict.replace(Vec::new())?,
                _ => {}
            }
        }
        result.and_then(|_| self.meter.check_output(self.out.len())).map(|()| self.out.into_string())
    }

    pub(crate) fn constant(&self, index: usize) -> Value {
        self.constants.get(index).cloned().unwrap_or_default()
    }

    /// Does something one level deeper.
    pub(crate) fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> TemplateResult<T>) -> TemplateResult<T> {
        if self.depth >= self.meter.depth() {
            return Err(Fault::new(FaultKind::Depth, format!("is nested more than {} levels", self.meter.depth())));
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }

    /// Remembers a container into which `item` is put.
    pub(crate) fn note_modified(&mut self, container: &Value, item: &Value) -> TemplateResult<()> {
        let is_first = match (container, item) {
            (_, Value::Undefined | Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_)) => {
                false
            }
            (Value::List(list), _) => list.begin_modification(),
            (Value::Dict(dict), _) => dict.begin_modification(),
            _ => false,
        };
        if is_first {
            self.meter.hold(size_of::<Value>())?;
            self.modified.push(container.clone());
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, text: &str) -> TemplateResult<()> {
        self.out.push_str(text)
    }

    /// Runs something, and returns what it writes.
    pub(crate) fn captured(&mut self, work: impl FnOnce(&mut Self) -> TemplateResult<()>) -> TemplateResult<Value> {
        let outer = std::mem::replace(&mut self.out, TextBuilder::new(&self.meter)?);
        let result = work(self);
        let inner = std::mem::replace(&mut self.out, outer);
        result.map(|()| inner.finish())
    }

    /// Runs statements in a scope.
    pub(crate) fn statements(&mut self, statements: &'t [Stmt], scope: &Rc<Variables>) -> TemplateResult<Flow> {
        self.deeper(|this| {
            for statement in statements {
                this.meter.step(1)?;
                let flow = this.statement(statement, scope).map_err(|fault| fault.at(statement.line))?;
                if flow != Flow::Normal {
                    return Ok(flow);
                }
            }
            Ok(Flow::Normal)
        })
    }

    fn statement(&mut self, statement: &'t Stmt, scope: &Rc<Variables>) -> TemplateResult<Flow> {
        match &statement.kind {
            StmtKind::Raw(index) => self.write(self.ast.raw.get(*index).map_or("", |text| text))?,
            StmtKind::Print(expr) => {
                let value = self.eval(expr, scope)?;
                self.print(&value)?;
            }
            StmtKind::Do(expr) => {
                self.eval(expr, scope)?;
            }
            StmtKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition, scope)?.is_true() {
                        return self.statements(body, scope);
                    }
                }
                return self.statements(otherwise, scope);
            }
            StmtKind::For(index) => {
                let Some(for_loop) = self.ast.loops.get(*index) else { return Ok(Flow::Normal) };
                let iterable = self.eval(&for_loop.iterable, scope)?;
                self.for_loop(*index, for_loop, &iterable, scope, 1)?;
            }
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::SetBlock(target, filters, body) => {
                let captured = self.captured(|this| this.statements(body, &Variables::within(scope)?).map(|_| ()))?;
                let value = self.filtered(captured, filters, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::With(variables, body) => {
                let inner = Variables::within(scope)?;
                for (target, expr) in variables {
                    let value = self.eval(expr, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.statements(body, &inner);
            }
            StmtKind::Scope(body) => return self.statements(body, &Variables::within(scope)?),
            StmtKind::Macro(name, index) => {
                scope.set(*name, Value::callable(Callable::Macro(*index, Rc::downgrade(scope))))?;
            }
            StmtKind::Call(call, body) => {
                let caller = Value::callable(Callable::Macro(*body, Rc::downgrade(scope)));
                let value = self.call_with_caller(call, caller, scope)?;
                self.print(&value)?;
            }
            StmtKind::Filter(filters, body) => {
                let captured = self.captured(|this| this.statements(body, &Variables::within(scope)?).map(|_| ()))?;
                let value = self.filtered(captured, filters, scope)?;
                self.print(&value)?;
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Normal)
    }

    fn print(&mut self, value: &Value) -> TemplateResult<()> {
        match value {
            Value::Text(text) => self.write(text),
            other => print::append(&mut self.out, other),
        }
    }

    fn filtered(&mut self, value: Value, filters: &'t [FilterCall], scope: &Rc<Variables>) -> TemplateResult<Value> {
        filters.iter().try_fold(value, |value, filter| self.filter(filter, value, scope))
    }

    pub(crate) fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Variables>) -> TemplateResult<()> {
        match target {
            Target::Name(name) => scope.set(*name, value)?,
            Target::Attribute(name, attribute) => match self.variable(*name, scope)? {
                Value::Dict(dict) if dict.is_namespace() => {
                    self.note_modified(&Value::Dict(Rc::clone(&dict)), &value)?;
                    dict.set(attribute, value)?;
                }
                other => {
                    return refused(format!("cannot set an attribute of {}, only of a namespace", other.type_name()));
                }
            },
            Target::Tuple(targets) => {
                let items = self.iterate(&value)?;
                if items.len() != targets.len() {
                    return refused(format!("expected {} values to unpack, got {}", targets.len(), items.len()));
                }
                for (target, item) in targets.iter().zip(items.iter()) {
                    self.assign(target, item.clone(), scope)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a loop over these items. Its number is `index`.
    pub(crate) fn for_loop(
        &mut self,
        index: usize,
        for_loop: &'t ForLoop,
        iterable: &Value,
        scope: &Rc<Variables>,
        depth: usize,
    ) -> TemplateResult<()> {
        let mut items = self.iterate(iterable)?;
        if let Some(filter) = &for_loop.filter {
            let mut kept = Items::new(&self.meter)?;
            let inner = Variables::within(scope)?;
            for item in items.iter() {
                self.assign(&for_loop.target, item.clone(), &inner)?;
                if self.eval(filter, &inner)?.is_true() {
                    kept.push(item.clone())?;
                }
            }
            items = kept;
        }
        if items.is_empty() {
            self.statements(&for_loop.otherwise, &Variables::within(scope)?)?;
            return Ok(());
        }
        let recursive = for_loop.is_recursive.then_some(index);
        let state = LoopState::new(items, depth, recursive)?;
        let inner = Variables::within(scope)?;
        for (position, item) in state.items.iter().enumerate() {
            self.meter.step(1)?;
            state.index.set(position);
            inner.clear();
            if let Some(symbol) = self.loop_symbol {
                inner.set(symbol, Value::Loop(Rc::clone(&state)))?;
            }
            self.assign(&for_loop.target, item.clone(), &inner)?;
            if self.statements(&for_loop.body, &inner)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// Calls a macro.
    pub(crate) fn call_macro(
        &mut self,
        index: usize,
        defined_in: &Rc<Variables>,
        mut arguments: Arguments,
    ) -> TemplateResult<Value> {
        let ast = self.ast;
        let Some(definition) = ast.macros.get(index) else { return Ok(Value::Undefined) };
        let scope = Variables::within(defined_in)?;
        let caller = self.next_caller.take();
        if let Some(symbol) = self.caller_symbol
            && definition.name.as_ref() != "caller"
        {
            scope.set(symbol, caller.unwrap_or_default())?;
        }
        for (name, text, default) in &definition.parameters {
            self.meter.step(1)?;
            let named = arguments.find_named(text)?;
            let value = match (arguments.take_first(), named) {
                (Some(_), Some(_)) => return refused(format!("the argument '{text}' is given twice")),
                (Some(value), None) => value,
                (None, Some(at)) => arguments.named.swap_remove(at).1,
                (None, None) => match default {
                    Some(default) => self.eval(default, &scope)?,
                    None => Value::Undefined,
                },
            };
            scope.set(*name, value)?;
        }
        match self.varargs_symbol {
            Some(symbol) => scope.set(symbol, tuple(&self.meter, std::mem::take(&mut arguments.positional).into())?)?,
            None if !arguments.positional.is_empty() => {
                return refused(format!(
                    "macro '{}' takes {} arguments, got {} more",
                    definition.name,
                    definition.parameters.len(),
                    arguments.positional.len()
                ));
            }
            None => {}
        }
        match self.kwargs_symbol {
            Some(symbol) => {
                let pairs = crate::value::dict(&self.meter, false)?;
                for (name, value) in arguments.named {
                    pairs.set(&name, value)?;
                }
                scope.set(symbol, Value::Dict(pairs))?;
            }
            None => {
                if let Some((name, _)) = arguments.named.first() {
                    return refused(format!("macro '{}' has no argument '{name}'", definition.name));
                }
            }
        }
        self.captured(|this| this.statements(&definition.body, &scope).map(|_| ()))
    }

    /// Memory for something that exists during a call.
    pub(crate) fn held(&self, bytes: usize) -> TemplateResult<Held> {
        Held::new(&self.meter, bytes)
    }
}
