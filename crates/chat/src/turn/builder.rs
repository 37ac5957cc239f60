//! The builder of a turn's tree with its elements: texts of the format, and the white space around them.

use std::cell::RefCell;

use foredraft_grammar::tree::{NodeId, TreeBuilder};
use foredraft_schema::{CompileOptions, Schema, Unenforced};

use crate::format::ChatFormat;
use crate::tool::Tool;

/// The most white space between two parts where nothing else may stand.
const MAX_GAP: u32 = 8;

/// The parts that a turn must or may have.
#[derive(Debug, Clone, Copy, Default)]
pub struct TurnRequest<'a> {
    /// The tools that can be called.
    pub tools: &'a [Tool],
    /// A tool must be called.
    pub is_required: bool,
    /// There can be several calls.
    pub parallel: bool,
    /// The content is a document of this schema, which is compiled so.
    pub document: Option<(&'a Schema, CompileOptions)>,
}

/// Writes the tree of a turn.
pub(super) struct TurnBuilder<'f> {
    pub(super) format: &'f ChatFormat,
    pub(super) tools: &'f [Tool],
    pub(super) is_lenient: bool,
    pub(super) tree: TreeBuilder,
    pub(super) unenforced: RefCell<Vec<(Option<String>, Unenforced)>>,
}

impl<'f> TurnBuilder<'f> {
    pub(super) fn new(format: &'f ChatFormat, tools: &'f [Tool], is_lenient: bool) -> TurnBuilder<'f> {
        TurnBuilder { format, tools, is_lenient, tree: TreeBuilder::new(), unenforced: RefCell::default() }
    }

    /// Any white space, beside free text.
    pub(super) fn space(&self) -> NodeId {
        self.tree.repeat(self.tree.one_of(" \t\r\n"), 0, None)
    }

    /// White space between two texts. It is bounded where a mask lets nothing else through.
    pub(super) fn gap(&self) -> NodeId {
        if self.is_lenient {
            return self.space();
        }
        self.tree.repeat(self.tree.one_of(" \t\r\n"), 0, Some(MAX_GAP))
    }

    /// A text of the format, in which white space stands for any or none, as beside tags.
    pub(super) fn words(&self, text: &str) -> NodeId {
        self.tree.seq(&self.spaced(text))
    }

    /// The parts of [`TurnBuilder::words`].
    pub(super) fn spaced(&self, text: &str) -> Vec<NodeId> {
        let gap = self.gap();
        let mut parts = Vec::new();
        let is_tag = |char: char| "<>[](){}".contains(char) || char.is_whitespace();
        if text.starts_with(is_tag) {
            parts.push(gap);
        }
        for (index, word) in words_of(text).enumerate() {
            parts.extend((index > 0).then_some(gap));
            parts.push(self.tree.text(word));
        }
        if text.ends_with(is_tag) && !text.trim().is_empty() {
            parts.push(gap);
        }
        parts
    }

    /// Parts one after the other, with one gap where two meet.
    pub(super) fn joined(&self, first: &[NodeId], then: &[NodeId]) -> NodeId {
        let gap = self.gap();
        let mut parts = [first, then].concat();
        parts.dedup_by(|one, other| one == other && *one == gap);
        self.tree.seq(&parts)
    }

    /// One of these texts of the format. `None`: there are none.
    pub(super) fn tag(&self, texts: &[String]) -> Option<NodeId> {
        let texts = cores(texts);
        (!texts.is_empty()).then(|| self.tree.texts(&texts))
    }

    pub(super) fn first_of(&self, first: &[NodeId], last: NodeId) -> NodeId {
        let ways: Vec<NodeId> = first.iter().copied().chain([last]).collect();
        self.tree.alt(&ways)
    }

    /// The end of a turn, which models leave out.
    pub(super) fn turn_end(&self) -> NodeId {
        let gap = self.gap();
        self.tree.seq(&[gap, self.tree.opt(self.words(&self.format.turn_end)), gap])
    }
}

/// A text of the format without the white space around it, which parts have of their own.
pub(super) fn core(text: &str) -> &str {
    text.trim()
}

pub(super) fn cores(texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| core(text).to_owned()).filter(|text| !text.is_empty()).collect()
}

/// The words of a text: white space separates them, and so do the ends and beginnings of tags.
pub(super) fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let tags = text.split_whitespace().flat_map(|word| word.split_inclusive('>'));
    tags.flat_map(|word| {
        let begin = ["<|", "</"].iter().filter_map(|begin| word.find(begin)).min().unwrap_or(0);
        let (before, tag) = word.split_at(begin);
        [before, tag].into_iter().filter(|part| !part.is_empty())
    })
}
