//! Statements.

use super::TemplateParser;
use crate::ast::{Expr, ExprKind, FilterCall, ForLoop, MacroDef, Stmt, StmtKind, Target, VariableName};
use crate::error::TemplateResult;
use crate::lexer::Lexeme;

/// A macro's parameter and its default value.
type Parameter = (VariableName, Box<str>, Option<Expr>);

impl TemplateParser {
    /// Statements up to a tag with one of these names, which is not read; up to the template's end, if there are none.
    pub(super) fn statements(&mut self, ends: &[&str]) -> TemplateResult<Vec<Stmt>> {
        self.nested(|parser| {
            let mut statements = Vec::new();
            loop {
                let line = parser.line();
                let Some(token) = parser.peek().cloned() else {
                    let Some(end) = ends.last() else { return Ok(statements) };
                    return parser.fail(format!("unexpected end of the template, expected '{end}'"));
                };
                parser.at += 1;
                let kind = match token {
                    Lexeme::Data(text) => {
                        parser.ast.raw.push(text.into());
                        StmtKind::Raw(parser.ast.raw.len() - 1)
                    }
                    Lexeme::PrintBegin => {
                        let value = parser.tuple()?;
                        parser.expect(&Lexeme::PrintEnd, "the end of the expression")?;
                        StmtKind::Print(value)
                    }
                    Lexeme::BlockBegin => {
                        let name = parser.expect_name()?;
                        if ends.contains(&name.as_str()) {
                            parser.at -= 2;
                            return Ok(statements);
                        }
                        parser.statement(&name)?
                    }
                    _ => return parser.unexpected("text or a tag"),
                };
                statements.push(Stmt { line, kind });
            }
        })
    }

    /// The statements of a block up to its end, which is read.
    fn block(&mut self, end: &str) -> TemplateResult<Vec<Stmt>> {
        self.end_of_tag()?;
        let body = self.statements(&[end])?;
        self.at += 2;
        // The name of a block may stand behind its end.
        if matches!(self.peek(), Some(Lexeme::Name(_))) {
            self.at += 1;
        }
        self.end_of_tag()?;
        Ok(body)
    }

    fn end_of_tag(&mut self) -> TemplateResult<()> {
        self.expect(&Lexeme::BlockEnd, "the end of the block")
    }

    /// A statement, after its name.
    fn statement(&mut self, name: &str) -> TemplateResult<StmtKind> {
        match name {
            "for" => self.for_loop(),
            "if" => self.condition(),
            "set" => self.assignment(),
            "with" => {
                let mut variables = Vec::new();
                while self.peek() != Some(&Lexeme::BlockEnd) {
                    let target = self.target()?;
                    self.expect_operator("=")?;
                    variables.push((target, self.expression()?));
                    if self.peek() != Some(&Lexeme::BlockEnd) {
                        self.expect_operator(",")?;
                    }
                }
                Ok(StmtKind::With(variables, self.block("endwith")?))
            }
            "macro" => {
                let name = self.expect_name()?;
                let parameters = self.parameters()?;
                let symbol = self.symbol(&name);
                Ok(StmtKind::Macro(symbol, self.macro_def(&name, parameters, "endmacro")?))
            }
            "call" => {
                let parameters = if self.is_operator("(") { self.parameters()? } else { Vec::new() };
                let call = self.expression()?;
                if !matches!(call.kind, ExprKind::Call(..)) {
                    return self.unexpected("a call");
                }
                Ok(StmtKind::Call(call, self.macro_def("caller", parameters, "endcall")?))
            }
            "filter" => {
                let filters = self.filters(false)?;
                Ok(StmtKind::Filter(filters, self.block("endfilter")?))
            }
            "block" => {
                self.expect_name()?;
                while self.skip_name("scoped") || self.skip_name("required") {}
                Ok(StmtKind::Scope(self.block("endblock")?))
            }
            "autoescape" => {
                self.expression()?;
                Ok(StmtKind::Scope(self.block("endautoescape")?))
            }
            // Marks the assistant's text for training.
            "generation" => Ok(StmtKind::Scope(self.block("endgeneration")?)),
            "do" => {
                let value = self.tuple()?;
                self.end_of_tag()?;
                Ok(StmtKind::Do(value))
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.fail(format!("'{name}' outside of a loop"));
                }
                self.end_of_tag()?;
                Ok(if name == "break" { StmtKind::Break } else { StmtKind::Continue })
            }
            "include" | "import" | "from" | "extends" => self.fail(format!("'{name}' is not supported")),
            _ => self.fail(format!("unknown tag '{name}'")),
        }
    }

    fn for_loop(&mut self) -> TemplateResult<StmtKind> {
        let target = self.targets()?;
        if !self.skip_name("in") {
            return self.unexpected("'in'");
        }
        let line = self.line();
        let first = self.or()?;
        let iterable = if self.is_operator(",") {
            let mut items = vec![first];
            while self.skip_operator(",") {
                items.push(self.or()?);
            }
            let depths: Vec<u32> = items.iter().map(|item| item.depth).collect();
            self.node(line, depths, ExprKind::Tuple(items))?
        } else {
            first
        };
        let filter = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let is_recursive = self.skip_name("recursive");
        self.end_of_tag()?;
        self.loops += 1;
        let body = self.statements(&["else", "endfor"]);
        self.loops -= 1;
        let body = body?;
        self.at += 1;
        let mut otherwise = Vec::new();
        if self.skip_name("else") {
            self.end_of_tag()?;
            otherwise = self.statements(&["endfor"])?;
            self.at += 1;
        }
        self.at += 1;
        self.end_of_tag()?;
        self.ast.loops.push(ForLoop { target, iterable, filter, body, otherwise, is_recursive });
        Ok(StmtKind::For(self.ast.loops.len() - 1))
    }

    fn condition(&mut self) -> TemplateResult<StmtKind> {
        let (mut branches, mut otherwise) = (Vec::new(), Vec::new());
        loop {
            let condition = self.tuple()?;
            self.end_of_tag()?;
            branches.push((condition, self.statements(&["elif", "else", "endif"])?));
            self.at += 1;
            if self.skip_name("elif") {
                continue;
            }
            if self.skip_name("else") {
                self.end_of_tag()?;
                otherwise = self.statements(&["endif"])?;
                self.at += 1;
            }
            self.at += 1;
            self.end_of_tag()?;
            return Ok(StmtKind::If(branches, otherwise));
        }
    }

    fn assignment(&mut self) -> TemplateResult<StmtKind> {
        let target = self.targets()?;
        if self.skip_operator("=") {
            let value = self.tuple()?;
            self.end_of_tag()?;
            return Ok(StmtKind::Set(target, value));
        }
        let filters = if self.is_operator("|") { self.filters(true)? } else { Vec::new() };
        Ok(StmtKind::SetBlock(target, filters, self.block("endset")?))
    }

    /// Filters with `|` between them, and before the first if `with_bar`.
    fn filters(&mut self, with_bar: bool) -> TemplateResult<Vec<FilterCall>> {
        let mut filters = Vec::new();
        if !with_bar {
            filters.push(self.filter_call()?);
        }
        while self.skip_operator("|") {
            filters.push(self.filter_call()?);
        }
        Ok(filters)
    }

    /// One target, or several with commas between them.
    fn targets(&mut self) -> TemplateResult<Target> {
        let first = self.target()?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_operator(",") {
            if !matches!(self.peek(), Some(Lexeme::Name(name)) if name != "in") && !self.is_operator("(") {
                break;
            }
            targets.push(self.target()?);
        }
        Ok(Target::Tuple(targets))
    }

    fn target(&mut self) -> TemplateResult<Target> {
        if self.skip_operator("(") {
            let inner = self.nested(TemplateParser::targets)?;
            self.expect_operator(")")?;
            return Ok(inner);
        }
        let name = self.expect_name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&name.as_str()) {
            return self.fail(format!("cannot assign to '{name}'"));
        }
        let symbol = self.symbol(&name);
        if self.skip_operator(".") {
            return Ok(Target::Attribute(symbol, self.expect_name()?.into()));
        }
        Ok(Target::Name(symbol))
    }

    fn parameters(&mut self) -> TemplateResult<Vec<Parameter>> {
        self.expect_operator("(")?;
        let mut parameters = Vec::new();
        while !self.skip_operator(")") {
            let name = self.expect_name()?;
            let default = if self.skip_operator("=") { Some(self.expression()?) } else { None };
            parameters.push((self.symbol(&name), name.into(), default));
            if !self.is_operator(")") {
                self.expect_operator(",")?;
            }
        }
        Ok(parameters)
    }

    fn macro_def(&mut self, name: &str, parameters: Vec<Parameter>, end: &str) -> TemplateResult<usize> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.block(end);
        self.loops = loops;
        self.ast.macros.push(MacroDef { name: name.into(), parameters, body: body? });
        Ok(self.ast.macros.len() - 1)
    }
}
