//! The tree of rules: the one form in which schemas, chat formats and GBNF reach the automaton.
//!
//! A [`Tree`] is an arena of nodes; a [`NodeId`] names one of them. Nodes are added by the methods of a [`TreeBuilder`], parts before the
//! nodes that contain them. Equal nodes share an id, so it costs nothing to ask for the same part again. A rule that contains itself is
//! declared first ([`TreeBuilder::declare`] or [`TreeBuilder::rule`]) and defined later.
//!
//! ```
//! # use foredraft_grammar::tree::{Mark, Tree, TreeBuilder};
//! let tree = TreeBuilder::new();
//! let space = tree.repeat(tree.one_of(" \n"), 0, None);
//! let digits = tree.repeat(tree.class(&[(0x30, 0x39)]), 1, Some(9));
//! let digits = tree.mark(Mark::Verbatim, digits);
//! let call = tree.seq(&[tree.text("<call>{"), space, digits, space, tree.text("}</call>")]);
//! let content = tree.mark(Mark::Content, tree.free_text(&["<call>"]));
//! let root = tree.seq(&[content, tree.mark(Mark::Call, call)]);
//! let tree = Tree::from(tree);
//! ```
//!
//! The order of alternatives counts where a tree has marks: the first one in which the whole text can be read is taken. A repetition goes
//! on before it ends, and free text ends before it goes on.
//!
//! Authors of chat formats keep text flowing by two rules. Free text does not follow free text. Nothing optional stands between free text
//! that may go on and a part that could begin at every byte. Otherwise a second reading lives along, and a reader holds all text back.
//! A reader follows text: nodes of tokens by id are for masks, and no reader reads them.

mod machine;

use std::cell::RefCell;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use foredraft_base::work::Work;

pub(crate) use self::machine::{Machine, MachineStep};
pub use self::machine::{TextEnd, TextWithout};

/// The most that a tree may hold: its nodes, their children and bytes, and the transitions of its machines.
pub const MAX_SIZE: usize = 1 << 22;

/// The most characters of white space between reasoning and a text behind it.
const MAX_GAP: u32 = 8;

/// A node of a [`Tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

/// The meaning of a part of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mark {
    /// Reasoning.
    Reasoning,
    /// Reasoning with the tags around it, from the first one on. Its own text is not shown. The limit on reasoning counts inside of it.
    ReasoningBlock,
    /// Content.
    Content,
    /// A call of a tool: its name, id and arguments are inside.
    Call,
    /// A call of a tool that the request does not offer, as a [`Mark::Call`].
    Foreign,
    /// The name of a call's tool.
    Name,
    /// The id of a call.
    CallId,
    /// A part of a call's arguments that is JSON as it stands.
    Verbatim,
    /// A part of a string in a call's arguments, which JSON must escape.
    Text,
}

/// A set of marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MarkSet(u16);

impl MarkSet {
    pub(crate) const NONE: MarkSet = MarkSet(0);
    pub(crate) const ALL: MarkSet = MarkSet(u16::MAX);

    pub(crate) fn of(mark: Mark) -> MarkSet {
        MarkSet(1 << mark as u8)
    }

    pub(crate) fn with(self, other: MarkSet) -> MarkSet {
        MarkSet(self.0 | other.0)
    }

    pub(crate) fn shared(self, other: MarkSet) -> MarkSet {
        MarkSet(self.0 & other.0)
    }

    pub(crate) fn has(self, mark: Mark) -> bool {
        self.shared(MarkSet::of(mark)) != MarkSet::NONE
    }
}

/// The items of a [`TreeBuilder::each`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Each {
    /// Each occurs at most once. `true`: it must occur.
    pub items: Vec<(NodeId, bool)>,
    /// Stands between two items.
    pub separator: NodeId,
    /// May occur any number of times: among the items if they come in any order, or else behind them.
    pub further: Option<NodeId>,
    /// The fewest items. All further ones count as one, because a reader may take one for the other, unless that cannot reach `least`.
    pub least: u32,
    /// The most items, each further one counted.
    pub most: Option<u32>,
    /// The items come in any order, or else in the order of `items`.
    pub any_order: bool,
}

/// A node. Its progress is kept in the automaton's stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// These bytes. Not empty. Progress: an offset.
    Text(Box<[u8]>),
    /// The texts of a machine. Progress: its state.
    Machine(Arc<Machine>),
    /// One token by id.
    Token(u32),
    /// Any one token except this.
    NotToken(u32),
    /// One after the other. Progress: an index.
    Seq(Box<[NodeId]>),
    /// One of these. The earlier ones have priority.
    Alt(Box<[NodeId]>),
    /// A node `min` to `max` times. Progress: a count, which without a `max` stops at `min`.
    Repeat(NodeId, u32, Option<u32>),
    /// Items, each at most once. Progress: an index of the automaton's list of the items seen.
    Each(Box<Each>),
    /// The node's text is this. Progress: 1 inside of it.
    Mark(Mark, NodeId),
    /// Text of the arguments that the completion does not have.
    Emit(Box<str>),
    /// All alternatives of less priority end.
    Commit,
    /// A rule, by index.
    Rule(u32),
}

/// The texts of a machine, as its author asks for them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum MachineTexts {
    /// [`TreeBuilder::class`], or if `true` [`TreeBuilder::class_except`].
    Class(bool, Vec<(u32, u32)>),
    /// [`TreeBuilder::text_without`]: the fields of a [`TextWithout`].
    Without(Vec<String>, Vec<(u32, u32)>, TextEnd, bool),
}

/// Nodes and rules, which a [`TreeBuilder`] adds. See the [module](self).
#[derive(Debug, Clone, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    node_ids: HashMap<Node, NodeId>,
    /// The machines so far. Each is made once.
    machine_ids: HashMap<MachineTexts, NodeId>,
    /// The body of each rule; `None` until it is defined.
    rules: Vec<Option<NodeId>>,
    named_rules: HashMap<String, NodeId>,
    size: usize,
    is_too_large: bool,
    is_ordered: bool,
    decides: bool,
    has_reasoning: bool,
}

/// Builds a [`Tree`]. Its methods need no exclusive access, so a call can stand where another one needs its node.
#[derive(Debug, Clone, Default)]
pub struct TreeBuilder {
    /// Borrowed inside of one method at a time, while nothing else is called.
    tree: RefCell<Tree>,
}

impl From<TreeBuilder> for Tree {
    fn from(builder: TreeBuilder) -> Tree {
        builder.tree.into_inner()
    }
}

impl From<TreeBuilder> for Arc<Tree> {
    fn from(builder: TreeBuilder) -> Arc<Tree> {
        Arc::new(builder.into())
    }
}

impl TreeBuilder {
    /// A tree without nodes.
    #[must_use]
    pub fn new() -> TreeBuilder {
        TreeBuilder::default()
    }

    /// Returns whether the tree would have become larger than [`MAX_SIZE`]. It then has lost nodes, and no grammar can be made of it.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.tree.borrow().is_too_large
    }

    /// The size of the tree so far, as [`MAX_SIZE`] counts it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.tree.borrow().size
    }

    /// The empty text.
    pub fn empty(&self) -> NodeId {
        self.add(Node::Seq(Box::new([])))
    }

    /// This text.
    pub fn text(&self, text: impl AsRef<[u8]>) -> NodeId {
        let text = text.as_ref();
        if text.is_empty() { self.empty() } else { self.add(Node::Text(text.into())) }
    }

    /// These characters by code point. Surrogates are written with three bytes.
    pub(crate) fn chars(&self, chars: &[u32]) -> NodeId {
        let mut text = Vec::with_capacity(chars.len());
        for &char in chars {
            let last = |shift: u32| 0x80 | u8::try_from(char >> shift & 0x3F).unwrap_or_default();
            let first = |shift: u32, mark: u8| mark | u8::try_from(char >> shift).unwrap_or_default();
            match char {
                0..=0x7F => text.push(first(0, 0)),
                0x80..=0x7FF => text.extend([first(6, 0xC0), last(0)]),
                0x800..=0xFFFF => text.extend([first(12, 0xE0), last(6), last(0)]),
                0x1_0000..=0x10_FFFF => text.extend([first(18, 0xF0), last(12), last(6), last(0)]),
                _ => return self.class(&[]),
            }
        }
        self.text(text)
    }

    /// One of these texts.
    pub fn texts(&self, texts: &[impl AsRef<[u8]>]) -> NodeId {
        let texts: Vec<NodeId> = texts.iter().map(|text| self.text(text)).collect();
        self.alt(&texts)
    }

    /// One character in UTF-8 whose code point is in one of these ranges, both ends included. Surrogates are written with three bytes.
    pub fn class(&self, ranges: &[(u32, u32)]) -> NodeId {
        self.machine(MachineTexts::Class(false, ranges.to_vec()), || Some(machine::class(false, ranges)))
    }

    /// One character in UTF-8 whose code point is in none of these ranges.
    pub fn class_except(&self, ranges: &[(u32, u32)]) -> NodeId {
        self.machine(MachineTexts::Class(true, ranges.to_vec()), || Some(machine::class(true, ranges)))
    }

    /// One of these characters.
    pub fn one_of(&self, chars: &str) -> NodeId {
        self.class(&ranges_of(chars))
    }

    /// One character that is none of these.
    pub fn none_of(&self, chars: &str) -> NodeId {
        self.class_except(&ranges_of(chars))
    }

    /// UTF-8 text up to the first of the delimiters, one of which must follow.
    pub fn until(&self, delimiters: &[&str]) -> NodeId {
        self.text_without(&TextWithout { delimiters, excluded: &[], end: TextEnd::BeforeDelimiter, is_utf8: true })
    }

    /// Bytes in which none of the delimiters occurs. They may end anywhere.
    pub fn free_text(&self, delimiters: &[&str]) -> NodeId {
        self.text_without(&TextWithout { delimiters, excluded: &[], end: TextEnd::Anywhere, is_utf8: false })
    }

    /// Text in which certain delimiters and characters do not occur.
    pub fn text_without(&self, text: &TextWithout<'_>) -> NodeId {
        let delimiters = text.delimiters.iter().map(|text| (*text).to_owned()).collect();
        let texts = MachineTexts::Without(delimiters, text.excluded.to_vec(), text.end, text.is_utf8);
        self.machine(texts, || machine::text_without(text))
    }

    /// One token by id, whatever its text is.
    pub fn token(&self, token: u32) -> NodeId {
        self.add(Node::Token(token))
    }

    /// Any one token except this.
    pub fn not_token(&self, token: u32) -> NodeId {
        self.add(Node::NotToken(token))
    }

    /// These nodes, one after the other.
    pub fn seq(&self, parts: &[NodeId]) -> NodeId {
        let mut tree = self.tree.borrow_mut();
        let mut joined: Vec<NodeId> = Vec::with_capacity(parts.len());
        for &part in parts {
            match (joined.last().and_then(|last| tree.node(*last)), tree.node(part)) {
                (_, Some(Node::Seq(none))) if none.is_empty() => {}
                (Some(Node::Text(first)), Some(Node::Text(second))) => {
                    let both = Node::Text([&**first, &**second].concat().into());
                    joined.pop();
                    joined.push(tree.add(both));
                }
                _ => joined.push(part),
            }
        }
        if let [only] = *joined { only } else { tree.add(Node::Seq(joined.into())) }
    }

    /// One of these nodes. The earlier ones have priority.
    pub fn alt(&self, parts: &[NodeId]) -> NodeId {
        if let [only] = parts { *only } else { self.add(Node::Alt(parts.into())) }
    }

    /// A node or nothing.
    pub fn opt(&self, node: NodeId) -> NodeId {
        self.repeat(node, 0, Some(1))
    }

    /// A node `min` to `max` times; without a `max`, any number of times from `min` on.
    pub fn repeat(&self, node: NodeId, min: u32, max: Option<u32>) -> NodeId {
        match (min, max) {
            (1, Some(1)) => node,
            (_, Some(0)) => self.empty(),
            _ => self.add(Node::Repeat(node, min, max)),
        }
    }

    /// Items, each at most once.
    pub fn each(&self, each: Each) -> NodeId {
        self.add(Node::Each(Box::new(each)))
    }

    /// Says what the text of a node is.
    pub fn mark(&self, mark: Mark, node: NodeId) -> NodeId {
        self.add(Node::Mark(mark, node))
    }

    /// Text that a call's arguments have here and the completion does not.
    pub fn emit(&self, json: &str) -> NodeId {
        self.add(Node::Emit(json.into()))
    }

    /// A text of the completion that stands for another one in a call's arguments.
    pub fn as_text(&self, text: &str, json: &str) -> NodeId {
        self.seq(&[self.text(text), self.emit(json)])
    }

    /// Decides for what was read up to here: alternatives of less priority end. Only between the parts of a turn, not inside of marks other
    /// than [`Mark::Foreign`].
    pub fn commit(&self) -> NodeId {
        self.add(Node::Commit)
    }

    /// A rule that [`TreeBuilder::define`] gives a body.
    pub fn declare(&self) -> NodeId {
        let mut tree = self.tree.borrow_mut();
        let rule = machine::number(tree.rules.len());
        tree.rules.push(None);
        tree.add(Node::Rule(rule))
    }

    /// Gives a rule its body. The last one counts.
    pub fn define(&self, rule: NodeId, body: NodeId) {
        let mut tree = self.tree.borrow_mut();
        if let Some(&Node::Rule(rule)) = tree.node(rule)
            && let Some(defined) = tree.rules.get_mut(rule as usize)
        {
            *defined = Some(body);
        }
    }

    /// The rule of this name, and whether it is new, so that it must be defined.
    pub fn rule(&self, name: &str) -> (NodeId, bool) {
        if let Some(known) = self.tree.borrow().named_rules.get(name) {
            return (*known, false);
        }
        let rule = self.declare();
        self.tree.borrow_mut().named_rules.insert(name.to_owned(), rule);
        (rule, true)
    }

    fn machine(&self, texts: MachineTexts, make: impl FnOnce() -> Option<Machine>) -> NodeId {
        if let Some(known) = self.tree.borrow().machine_ids.get(&texts) {
            return *known;
        }
        let made = make();
        let mut tree = self.tree.borrow_mut();
        let id = match made {
            Some(machine) => tree.add(Node::Machine(Arc::new(machine))),
            None => tree.refuse(),
        };
        tree.machine_ids.insert(texts, id);
        id
    }

    fn add(&self, node: Node) -> NodeId {
        self.tree.borrow_mut().add(node)
    }
}

impl Tree {
    /// Adds a text behind reasoning that has begun and ends with one of `ends`. White space may stand between them.
    pub fn behind_reasoning(&mut self, ends: &[&str], text: NodeId) -> NodeId {
        let tree = TreeBuilder { tree: RefCell::new(std::mem::take(self)) };
        let thought = tree.seq(&[tree.free_text(ends), tree.texts(ends)]);
        let gap = tree.repeat(tree.one_of(" \n"), 0, Some(MAX_GAP));
        let root = tree.seq(&[tree.mark(Mark::ReasoningBlock, thought), gap, text]);
        *self = tree.into();
        root
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0 as usize)
    }

    /// Whether the order of alternatives counts.
    pub(crate) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Whether it has a [`Mark::ReasoningBlock`].
    pub(crate) fn has_reasoning(&self) -> bool {
        self.has_reasoning
    }

    /// Whether it has a [`TreeBuilder::commit`].
    pub(crate) fn decides(&self) -> bool {
        self.decides
    }

    /// The text of an [`TreeBuilder::emit`].
    pub(crate) fn emitted(&self, node: NodeId) -> &str {
        if let Some(Node::Emit(text)) = self.node(node) { text } else { "" }
    }

    /// Says why no grammar can be made of a node, or that `work` has ended.
    pub(crate) fn check(&self, root: NodeId, work: &Work) -> Result<(), &'static str> {
        if self.is_too_large {
            return Err("the rules are too large");
        }
        // Whether a node stands inside of a mark in which nothing may be decided.
        let mut todo = vec![(root, false)];
        let mut seen = HashSet::from_iter([(root, false)]);
        while let Some((id, is_inside)) = todo.pop() {
            work.step(1).map_err(|_| "not all rules are read")?;
            let mut add = |parts: &[NodeId], is_inside| {
                todo.extend(parts.iter().map(|part| (*part, is_inside)).filter(|part| seen.insert(*part)));
            };
            match self.node(id) {
                Some(Node::Seq(parts) | Node::Alt(parts)) => add(parts, is_inside),
                Some(Node::Repeat(part, ..)) => add(&[*part], is_inside),
                Some(Node::Each(each)) => {
                    each.items.iter().for_each(|(item, _)| add(&[*item], is_inside));
                    add(&[each.separator], is_inside);
                    add(each.further.as_slice(), is_inside);
                }
                Some(Node::Mark(mark, part)) => add(&[*part], is_inside || *mark != Mark::Foreign),
                Some(Node::Rule(rule)) => add(&[self.body(*rule).ok_or("a rule is not defined")?], is_inside),
                Some(Node::Commit) if is_inside => return Err("a part of a turn is decided inside of it"),
                _ => {}
            }
        }
        Ok(())
    }

    /// The body of a rule.
    pub(crate) fn body(&self, rule: u32) -> Option<NodeId> {
        self.rules.get(rule as usize).copied().flatten()
    }

    fn add(&mut self, node: Node) -> NodeId {
        if let Some(known) = self.node_ids.get(&node) {
            return *known;
        }
        let size = match &node {
            Node::Text(text) => text.len(),
            Node::Seq(parts) | Node::Alt(parts) => parts.len(),
            Node::Each(each) => each.items.len(),
            Node::Emit(text) => text.len(),
            Node::Machine(machine) => machine.size(),
            _ => 0,
        };
        if !self.has_room_for(1 + size) {
            return self.refuse();
        }
        self.decides |= matches!(node, Node::Commit);
        self.has_reasoning |= matches!(node, Node::Mark(Mark::ReasoningBlock, _));
        self.is_ordered |= matches!(node, Node::Mark(..) | Node::Emit(_) | Node::Commit);
        let id = NodeId(machine::number(self.nodes.len()));
        self.nodes.push(node.clone());
        self.node_ids.insert(node, id);
        id
    }

    fn has_room_for(&mut self, size: usize) -> bool {
        let has_room = self.size + size <= MAX_SIZE;
        self.size += if has_room { size } else { 0 };
        has_room
    }

    /// A node in place of one for which there is no room.
    fn refuse(&mut self) -> NodeId {
        self.is_too_large = true;
        NodeId(0)
    }
}

fn ranges_of(chars: &str) -> Vec<(u32, u32)> {
    chars.chars().map(|char| (u32::from(char), u32::from(char))).collect()
}

#[cfg(test)]
mod tests;
