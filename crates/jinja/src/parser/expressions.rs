//! Expressions.

use super::TemplateParser;
use crate::ast::{Argument, BinaryOp, CompareOp, Constant, Expr, ExprKind, FilterCall};
use crate::error::TemplateResult;
use crate::lexer::Lexeme;

fn boxed(expr: Expr) -> Box<Expr> {
    Box::new(expr)
}

fn depths(items: &[Expr]) -> Vec<u32> {
    items.iter().map(|item| item.depth).collect()
}

fn argument_depths(arguments: &[Argument]) -> Vec<u32> {
    let depth = |argument: &Argument| match argument {
        Argument::Positional(expr) | Argument::Named(_, expr) | Argument::Items(expr) | Argument::Pairs(expr) => {
            expr.depth
        }
    };
    arguments.iter().map(depth).collect()
}

impl TemplateParser {
    /// An expression, or several with commas between them, which are a tuple.
    pub(super) fn tuple(&mut self) -> TemplateResult<Expr> {
        let line = self.line();
        let first = self.expression()?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_operator(",") {
            let is_end = matches!(
                self.peek(),
                None | Some(Lexeme::BlockEnd | Lexeme::PrintEnd | Lexeme::Operator(")" | "]" | "="))
            );
            if is_end {
                break;
            }
            items.push(self.expression()?);
        }
        self.node(line, depths(&items), ExprKind::Tuple(items))
    }

    pub(super) fn expression(&mut self) -> TemplateResult<Expr> {
        self.nested(TemplateParser::conditional)
    }

    fn conditional(&mut self) -> TemplateResult<Expr> {
        let mut value = self.or()?;
        while self.is_name("if") {
            let line = self.line();
            self.at += 1;
            let condition = self.or()?;
            let otherwise =
                if self.skip_name("else") { Some(boxed(self.nested(TemplateParser::conditional)?)) } else { None };
            let depths = [value.depth, condition.depth, otherwise.as_ref().map_or(0, |it| it.depth)];
            value = self.node(line, depths, ExprKind::Conditional(boxed(condition), boxed(value), otherwise))?;
        }
        Ok(value)
    }

    pub(super) fn or(&mut self) -> TemplateResult<Expr> {
        self.chain(&[("or", BinaryOp::Or)], TemplateParser::and)
    }

    fn and(&mut self) -> TemplateResult<Expr> {
        self.chain(&[("and", BinaryOp::And)], TemplateParser::not)
    }

    fn not(&mut self) -> TemplateResult<Expr> {
        let line = self.line();
        if !self.skip_name("not") {
            return self.comparison();
        }
        let value = self.nested(TemplateParser::not)?;
        self.node(line, [value.depth], ExprKind::Not(boxed(value)))
    }

    fn comparison(&mut self) -> TemplateResult<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let (operator, tokens) = match (self.peek(), self.peek_second()) {
                (Some(Lexeme::Operator("==")), _) => (CompareOp::Equal, 1),
                (Some(Lexeme::Operator("!=")), _) => (CompareOp::Unequal, 1),
                (Some(Lexeme::Operator("<")), _) => (CompareOp::Less, 1),
                (Some(Lexeme::Operator("<=")), _) => (CompareOp::LessOrEqual, 1),
                (Some(Lexeme::Operator(">")), _) => (CompareOp::Greater, 1),
                (Some(Lexeme::Operator(">=")), _) => (CompareOp::GreaterOrEqual, 1),
                (Some(Lexeme::Name(name)), _) if name == "in" => (CompareOp::In, 1),
                (Some(Lexeme::Name(name)), Some(Lexeme::Name(next))) if name == "not" && next == "in" => {
                    (CompareOp::NotIn, 2)
                }
                _ => break,
            };
            self.at += tokens;
            rest.push((operator, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        let depths: Vec<u32> = rest.iter().map(|(_, expr)| expr.depth).chain([first.depth]).collect();
        self.node(line, depths, ExprKind::Compare(boxed(first), rest))
    }

    /// A chain of operators of one precedence, from the left.
    fn chain(
        &mut self,
        operators: &[(&str, BinaryOp)],
        operand: impl Fn(&mut TemplateParser) -> TemplateResult<Expr>,
    ) -> TemplateResult<Expr> {
        let mut left = operand(self)?;
        while let Some((_, operator)) =
            operators.iter().find(|(token, _)| self.is_operator(token) || self.is_name(token))
        {
            let line = self.line();
            self.at += 1;
            let right = operand(self)?;
            left =
                self.node(line, [left.depth, right.depth], ExprKind::Binary(*operator, boxed(left), boxed(right)))?;
        }
        Ok(left)
    }

    fn sum(&mut self) -> TemplateResult<Expr> {
        self.chain(&[("+", BinaryOp::Add), ("-", BinaryOp::Subtract)], TemplateParser::concatenation)
    }

    fn concatenation(&mut self) -> TemplateResult<Expr> {
        self.chain(&[("~", BinaryOp::Concatenate)], TemplateParser::product)
    }

    fn product(&mut self) -> TemplateResult<Expr> {
        let operators = [
            ("*", BinaryOp::Multiply),
            ("/", BinaryOp::Divide),
            ("//", BinaryOp::FloorDivide),
            ("%", BinaryOp::Remainder),
        ];
        self.chain(&operators, TemplateParser::power)
    }

    fn power(&mut self) -> TemplateResult<Expr> {
        self.chain(&[("**", BinaryOp::Power)], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> TemplateResult<Expr> {
        let line = self.line();
        let mut value = if self.skip_operator("-") {
            let value = self.nested(|parser| parser.unary(false))?;
            self.node(line, [value.depth], ExprKind::Negative(boxed(value)))?
        } else if self.skip_operator("+") {
            let value = self.nested(|parser| parser.unary(false))?;
            self.node(line, [value.depth], ExprKind::Positive(boxed(value)))?
        } else {
            let primary = self.primary()?;
            self.postfix(primary)?
        };
        if !with_filters {
            return Ok(value);
        }
        loop {
            let line = self.line();
            if self.skip_operator("|") {
                let filter = self.filter_call()?;
                let depths: Vec<u32> = argument_depths(&filter.arguments).into_iter().chain([value.depth]).collect();
                value = self.node(line, depths, ExprKind::Filter(boxed(value), filter))?;
            } else if self.skip_name("is") {
                value = self.test(value, line)?;
            } else if self.is_operator("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    /// The name and arguments of a filter, after `|`.
    pub(super) fn filter_call(&mut self) -> TemplateResult<FilterCall> {
        let line = self.line();
        let mut name = self.expect_name()?;
        while self.skip_operator(".") {
            name += &format!(".{}", self.expect_name()?);
        }
        let arguments = if self.is_operator("(") { self.arguments()? } else { Vec::new() };
        Ok(FilterCall { line, name: name.into(), arguments })
    }

    /// A test, after `is`.
    fn test(&mut self, value: Expr, line: u32) -> TemplateResult<Expr> {
        let is_negated = self.skip_name("not");
        let name = self.expect_name()?;
        let arguments = match self.peek() {
            Some(Lexeme::Operator("(")) => self.arguments()?,
            Some(Lexeme::Name(next)) if ["else", "or", "and", "is", "if", "not", "in"].contains(&next.as_str()) => {
                Vec::new()
            }
            Some(
                Lexeme::Name(_) | Lexeme::Text(_) | Lexeme::Int(_) | Lexeme::Float(_) | Lexeme::Operator("[" | "{"),
            ) => {
                let primary = self.primary()?;
                vec![Argument::Positional(self.postfix(primary)?)]
            }
            _ => Vec::new(),
        };
        let depths: Vec<u32> = argument_depths(&arguments).into_iter().chain([value.depth]).collect();
        let test = FilterCall { line, name: name.into(), arguments };
        let tested = self.node(line, depths, ExprKind::Test(boxed(value), test))?;
        if is_negated { self.node(line, [tested.depth], ExprKind::Not(boxed(tested))) } else { Ok(tested) }
    }

    fn primary(&mut self) -> TemplateResult<Expr> {
        let line = self.line();
        let Some(token) = self.peek().cloned() else { return self.unexpected("an expression") };
        match token {
            Lexeme::Name(name) => {
                self.at += 1;
                Ok(match name.as_str() {
                    "true" | "True" => self.constant(Constant::Bool(true), line),
                    "false" | "False" => self.constant(Constant::Bool(false), line),
                    "none" | "None" => self.constant(Constant::None, line),
                    _ => {
                        let kind = ExprKind::Name(self.symbol(&name));
                        Expr { line, depth: 1, kind }
                    }
                })
            }
            Lexeme::Text(mut text) => {
                self.at += 1;
                // Adjacent strings are one.
                while let Some(Lexeme::Text(next)) = self.peek() {
                    text += next;
                    self.at += 1;
                }
                Ok(self.constant(Constant::Text(text), line))
            }
            Lexeme::Int(number) => {
                self.at += 1;
                Ok(self.constant(Constant::Int(number), line))
            }
            Lexeme::Float(number) => {
                self.at += 1;
                Ok(self.constant(Constant::Float(number), line))
            }
            Lexeme::Operator("(") => {
                self.at += 1;
                if self.skip_operator(")") {
                    return Ok(Expr { line, depth: 1, kind: ExprKind::Tuple(Vec::new()) });
                }
                let inner = self.tuple()?;
                self.expect_operator(")")?;
                Ok(inner)
            }
            Lexeme::Operator("[") => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.skip_operator("]") {
                    items.push(self.expression()?);
                    if !self.is_operator("]") {
                        self.expect_operator(",")?;
                    }
                }
                self.node(line, depths(&items), ExprKind::List(items))
            }
            Lexeme::Operator("{") => {
                self.at += 1;
                let mut pairs = Vec::new();
                while !self.skip_operator("}") {
                    let key = self.expression()?;
                    self.expect_operator(":")?;
                    pairs.push((key, self.expression()?));
                    if !self.is_operator("}") {
                        self.expect_operator(",")?;
                    }
                }
                let depths: Vec<u32> = pairs.iter().map(|(key, value)| key.depth.max(value.depth)).collect();
                self.node(line, depths, ExprKind::Dict(pairs))
            }
            _ => self.unexpected("an expression"),
        }
    }

    /// Parses the attributes, items and calls that follow a primary expression.
    fn postfix(&mut self, mut value: Expr) -> TemplateResult<Expr> {
        loop {
            let line = self.line();
            if self.skip_operator(".") {
                value = match self.peek().cloned() {
                    Some(Lexeme::Name(name)) => {
                        self.at += 1;
                        self.node(line, [value.depth], ExprKind::Attribute(boxed(value), name.into()))?
                    }
                    Some(Lexeme::Int(number)) => {
                        self.at += 1;
                        let index = self.constant(Constant::Int(number), line);
                        self.node(line, [value.depth], ExprKind::Item(boxed(value), boxed(index)))?
                    }
                    _ => return self.unexpected("a name"),
                };
            } else if self.skip_operator("[") {
                value = self.subscript(value, line)?;
            } else if self.is_operator("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn call(&mut self, function: Expr) -> TemplateResult<Expr> {
        let line = self.line();
        let arguments = self.arguments()?;
        let depths: Vec<u32> = argument_depths(&arguments).into_iter().chain([function.depth]).collect();
        self.node(line, depths, ExprKind::Call(boxed(function), arguments))
    }

    /// An item or a slice, after `[`.
    fn subscript(&mut self, value: Expr, line: u32) -> TemplateResult<Expr> {
        let mut parts: [Option<Box<Expr>>; 3] = [None, None, None];
        let (mut colons, mut depth) = (0, value.depth);
        loop {
            if self.skip_operator("]") {
                break;
            } else if self.skip_operator(":") {
                colons += 1;
                if colons > 2 {
                    return self.unexpected("']'");
                }
            } else {
                let part = if colons == 0 { self.tuple()? } else { self.expression()? };
                depth = depth.max(part.depth);
                match parts.get_mut(colons) {
                    Some(place @ None) => *place = Some(boxed(part)),
                    _ => return self.unexpected("']'"),
                }
            }
        }
        match (colons, parts) {
            (0, [Some(item), _, _]) => self.node(line, [depth], ExprKind::Item(boxed(value), item)),
            (0, _) => self.unexpected("an expression"),
            (_, parts) => self.node(line, [depth], ExprKind::Slice(boxed(value), parts)),
        }
    }

    /// Arguments in parentheses.
    pub(super) fn arguments(&mut self) -> TemplateResult<Vec<Argument>> {
        self.expect_operator("(")?;
        let mut arguments = Vec::new();
        while !self.skip_operator(")") {
            arguments.push(if self.skip_operator("**") {
                Argument::Pairs(self.expression()?)
            } else if self.skip_operator("*") {
                Argument::Items(self.expression()?)
            } else if let (Some(Lexeme::Name(name)), Some(Lexeme::Operator("="))) = (self.peek(), self.peek_second()) {
                let name = name.as_str().into();
                self.at += 2;
                Argument::Named(name, self.expression()?)
            } else {
                Argument::Positional(self.expression()?)
            });
            if !self.is_operator(")") {
                self.expect_operator(",")?;
            }
        }
        Ok(arguments)
    }
}
