//! Tokens to a parsed template: Jinja2's grammar, without templates that load others.

mod expressions;
mod statements;

use std::collections::HashMap;

use crate::ast::{Ast, Constant, Expr, ExprKind, VariableName};
use crate::error::{Fault, FaultKind, TemplateResult};
use crate::lexer::{Lexeme, tokens};

/// The maximum nesting of expressions and blocks.
const MAX_NESTING: u32 = 200;

pub(crate) fn parse(source: &str) -> TemplateResult<Ast> {
    let mut parser = TemplateParser {
        tokens: tokens(source)?,
        at: 0,
        nesting: 0,
        loops: 0,
        ast: Ast::default(),
        symbols: HashMap::new(),
    };
    let body = parser.statements(&[])?;
    parser.ast.body = body;
    Ok(parser.ast)
}

struct TemplateParser {
    tokens: Vec<(Lexeme, u32)>,
    at: usize,
    nesting: u32,
    /// The loops around the current statement, within the current macro.
    loops: usize,
    ast: Ast,
    symbols: HashMap<String, VariableName>,
}

impl TemplateParser {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    fn fail<T>(&self, message: impl Into<String>) -> TemplateResult<T> {
        Err(Fault::new(FaultKind::Syntax, message).at(self.line()))
    }

    fn peek(&self) -> Option<&Lexeme> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn peek_second(&self) -> Option<&Lexeme> {
        self.tokens.get(self.at + 1).map(|(token, _)| token)
    }

    /// Fails at the current token.
    fn unexpected<T>(&self, expected: &str) -> TemplateResult<T> {
        let found = match self.peek() {
            None => "the end of the template".to_owned(),
            Some(Lexeme::BlockEnd) => "the end of the block".to_owned(),
            Some(Lexeme::PrintEnd) => "the end of the expression".to_owned(),
            Some(Lexeme::Name(name)) => format!("'{name}'"),
            Some(Lexeme::Operator(operator)) => format!("'{operator}'"),
            Some(Lexeme::Text(_)) => "a string".to_owned(),
            Some(Lexeme::Int(_) | Lexeme::Float(_)) => "a number".to_owned(),
            Some(Lexeme::Data(_) | Lexeme::PrintBegin | Lexeme::BlockBegin) => "text".to_owned(),
        };
        self.fail(format!("expected {expected}, got {found}"))
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Some(Lexeme::Operator(found)) if *found == operator)
    }

    fn skip_operator(&mut self, operator: &str) -> bool {
        let is_next = self.is_operator(operator);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect_operator(&mut self, operator: &str) -> TemplateResult<()> {
        if self.skip_operator(operator) { Ok(()) } else { self.unexpected(&format!("'{operator}'")) }
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Lexeme::Name(found)) if found == name)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let is_next = self.is_name(name);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect_name(&mut self) -> TemplateResult<String> {
        match self.peek() {
            Some(Lexeme::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn expect(&mut self, token: &Lexeme, what: &str) -> TemplateResult<()> {
        if self.peek() == Some(token) {
            self.at += 1;
            Ok(())
        } else {
            self.unexpected(what)
        }
    }

    fn symbol(&mut self, name: &str) -> VariableName {
        if let Some(symbol) = self.symbols.get(name) {
            return *symbol;
        }
        let symbol = self.ast.symbols.len() as VariableName;
        self.ast.symbols.push(name.into());
        self.symbols.insert(name.to_owned(), symbol);
        symbol
    }

    fn constant(&mut self, constant: Constant, line: u32) -> Expr {
        self.ast.constants.push(constant);
        Expr { line, depth: 1, kind: ExprKind::Const(self.ast.constants.len() - 1) }
    }

    /// Parses something nested.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut TemplateParser) -> TemplateResult<T>) -> TemplateResult<T> {
        if self.nesting >= MAX_NESTING {
            return self.fail(format!("is nested more than {MAX_NESTING} levels"));
        }
        self.nesting += 1;
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    /// A node above these. Chains (`a + b + c`) nest without recursion of the parser, so the depth is checked here.
    fn node(&self, line: u32, depths: impl IntoIterator<Item = u32>, kind: ExprKind) -> TemplateResult<Expr> {
        let depth = 1 + depths.into_iter().max().unwrap_or_default();
        if depth > MAX_NESTING {
            return Err(Fault::new(FaultKind::Syntax, format!("is nested more than {MAX_NESTING} levels")).at(line));
        }
        Ok(Expr { line, depth, kind })
    }
}
