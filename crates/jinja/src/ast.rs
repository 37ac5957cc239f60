//! A parsed template.

/// The number of an interned variable name.
pub(crate) type VariableName = u32;

/// A parsed template. It is immutable and can be rendered by several threads at once.
#[derive(Debug, Default)]
pub(crate) struct Ast {
    pub(crate) body: Vec<Stmt>,
    /// The names of variables, by symbol.
    pub(crate) symbols: Vec<Box<str>>,
    pub(crate) constants: Vec<Constant>,
    /// The texts outside of tags.
    pub(crate) raw: Vec<Box<str>>,
    pub(crate) macros: Vec<MacroDef>,
    pub(crate) loops: Vec<ForLoop>,
}

/// A literal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Constant {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
}

/// A macro, or the body of a `call` block.
#[derive(Debug)]
pub(crate) struct MacroDef {
    pub(crate) name: Box<str>,
    pub(crate) parameters: Vec<(VariableName, Box<str>, Option<Expr>)>,
    pub(crate) body: Vec<Stmt>,
}

#[derive(Debug)]
pub(crate) struct ForLoop {
    pub(crate) target: Target,
    pub(crate) iterable: Expr,
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Vec<Stmt>,
    pub(crate) otherwise: Vec<Stmt>,
    pub(crate) is_recursive: bool,
}

/// The target of an assignment.
#[derive(Debug)]
pub(crate) enum Target {
    Name(VariableName),
    /// An attribute of a namespace.
    Attribute(VariableName, Box<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(crate) struct Stmt {
    pub(crate) line: u32,
    pub(crate) kind: StmtKind,
}

#[derive(Debug)]
pub(crate) enum StmtKind {
    /// The text with this number.
    Raw(usize),
    Print(Expr),
    /// An expression whose value is dropped.
    Do(Expr),
    For(usize),
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    Set(Target, Expr),
    SetBlock(Target, Vec<FilterCall>, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    /// Statements with variables of their own: `block`, `generation`, `autoescape`.
    Scope(Vec<Stmt>),
    Macro(VariableName, usize),
    /// A call with a block as `caller`.
    Call(Expr, usize),
    Filter(Vec<FilterCall>, Vec<Stmt>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) line: u32,
    /// How deeply it is nested.
    pub(crate) depth: u32,
    pub(crate) kind: ExprKind,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
    Const(usize),
    Name(VariableName),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Not(Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// A chain such as `a < b <= c`.
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    /// Condition, value, other value.
    Conditional(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
    Attribute(Box<Expr>, Box<str>),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, [Option<Box<Expr>>; 3]),
    Call(Box<Expr>, Vec<Argument>),
    Filter(Box<Expr>, FilterCall),
    Test(Box<Expr>, FilterCall),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    /// `~`
    Concatenate,
    And,
    Or,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompareOp {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// The call of a filter or a test.
#[derive(Debug)]
pub(crate) struct FilterCall {
    pub(crate) line: u32,
    pub(crate) name: Box<str>,
    pub(crate) arguments: Vec<Argument>,
}

#[derive(Debug)]
pub(crate) enum Argument {
    Positional(Expr),
    Named(Box<str>, Expr),
    /// `*list`
    Items(Expr),
    /// `**dictionary`
    Pairs(Expr),
}
