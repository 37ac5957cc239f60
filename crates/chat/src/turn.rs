//! The tree of a turn: one builder for the grammar that constrains a completion and for the reader of its message.
//!
//! [`TurnBuilder`] makes a tree of rules from a [`ChatFormat`] and the tools, in which marks say what is reasoning, content and a call. The
//! strict tree is the grammar, and reads what the grammar allowed. The lenient tree reads completions that nothing constrained, and accepts
//! every text. They differ only in these places:
//!
//! | Place | Strict | Lenient |
//! |---|---|---|
//! | where calls begin for good | their first tag | the end of the whole call |
//! | a text that is no call | impossible behind the first tag | content |
//! | values | those of the schema | any |
//! | space, ends of sections | as models write them | any, and they may be missing |
//!
//! - `turn`: the parts of a turn, in order. `builder`: what they are written with. `calls`: calls with the texts around them. `object`: a call as one JSON object. `tags`: arguments
//!   one by one, between tags or as Python's literals.
//!
//! A new way to write calls is a part in [`TurnBuilder::call_parts`]: a list of nodes, with [`Mark::Name`], [`Mark::CallId`] and the marks of
//! arguments inside. Parts that all tools share stand first and are the same nodes, so that they are read once. The tests of round trips,
//! broken texts and random texts run over all formats.

mod builder;
mod calls;
mod object;
mod tags;

use std::sync::Arc;

use foredraft_base::error::Result;
use foredraft_base::work::Work;
use foredraft_grammar::CompletionReader;
use foredraft_grammar::tree::{Mark, NodeId, Tree};
use foredraft_schema::{CompileOptions, Schema, Unenforced};

pub use self::builder::TurnRequest;
use self::builder::{TurnBuilder, core, cores};
use self::calls::CallForm;
use crate::format::{Block, ChatFormat, TurnStart};
use crate::tool::Tool;

/// The tag before the name of a message's channel.
const CHANNEL: &str = "<|channel|>";

/// The grammar of a turn.
#[derive(Debug, Clone)]
pub struct TurnGrammar {
    /// The rules.
    pub tree: Arc<Tree>,
    /// The texts that the grammar allows.
    pub root: NodeId,
    /// The grammar's texts begin with the end of the prompt, so it also reads the message.
    pub is_begun: bool,
    /// The end of the prompt with which the grammar's texts begin.
    pub prefix: String,
    /// The keywords of schemas that the grammar does not enforce, each with the name of the tool; no name: of the document.
    pub unenforced: Vec<(Option<String>, Unenforced)>,
}

impl ChatFormat {
    /// The grammar of a turn after a prompt that ends with `start`: its strict tree. `None`: anything may be written. `work` counts the steps.
    ///
    /// # Errors
    /// `invalid_request`: a schema has no valid values, or the tree would be too large. `cancelled`: `work` was interrupted.
    pub fn grammar(&self, request: &TurnRequest, start: &TurnStart, work: &Work) -> Result<Option<TurnGrammar>> {
        let has_calls = !request.tools.is_empty() && !self.calls.is_empty();
        if !has_calls && request.document.is_none() {
            return Ok(None);
        }
        let builder = TurnBuilder::new(self, request.tools, false);
        let root = match request.is_required || request.document.is_some() {
            true => builder.required(request)?,
            false => builder.free(request)?,
        };
        let (tree, unenforced) = (Arc::<Tree>::from(builder.tree), builder.unenforced.into_inner());
        // A text that is continued can be one that the grammar does not allow.
        let mut reader = CompletionReader::new(Arc::clone(&tree), root, work)?;
        reader.push_within(start.opened.as_bytes(), work, &mut |_| {})?;
        let is_begun = !reader.is_lost();
        let prefix = if is_begun { start.opened.clone() } else { String::new() };
        Ok(Some(TurnGrammar { tree, root, is_begun, prefix, unenforced }))
    }
}

/// The lenient tree of a turn.
///
/// # Errors
/// As [`ChatFormat::grammar`].
pub(crate) fn lenient(format: &ChatFormat, tools: &[Tool]) -> Result<(Arc<Tree>, NodeId)> {
    let builder = TurnBuilder::new(format, tools, true);
    let root = builder.free(&TurnRequest { tools, parallel: true, ..TurnRequest::default() })?;
    Ok((builder.tree.into(), root))
}

impl TurnBuilder<'_> {
    /// A turn of reasoning, content and calls in any order.
    fn free(&self, request: &TurnRequest) -> Result<NodeId> {
        let forms = self.forms(request)?;
        let delimiters = self.delimiters(&forms, request.tools);
        let after_calls = match request.parallel {
            true => None,
            false => Some(self.parts(&[], &delimiters, None, request).1),
        };
        let (begun, after) = self.parts(&forms, &delimiters, after_calls, request);
        let Some(end) = self.bare_end() else { return Ok(begun) };
        let space = self.space();
        let bare = self.tree.seq(&[space, end, space, self.first_of(&[after], begun)]);
        Ok(self.tree.alt(&[bare, begun]))
    }

    /// The end of reasoning alone, which means nothing at the beginning of a turn.
    fn bare_end(&self) -> Option<NodeId> {
        let block = self.format.reasoning.as_ref().filter(|_| !self.format.is_reasoning_content)?;
        let between = cores(&self.format.between);
        let ends: Vec<String> = cores(&block.ends).into_iter().filter(|end| !between.contains(end)).collect();
        self.tag(&ends)
    }

    /// The texts that content does not have: in a strict tree those with which calls begin, too.
    fn delimiters(&self, forms: &[CallForm], tools: &[Tool]) -> Vec<String> {
        let reasoning = self.format.reasoning.iter().flat_map(|block| &block.begins);
        let content = self.format.content.iter().flat_map(|block| block.begins.iter().chain(&block.ends));
        let others: Vec<String> = reasoning
            .chain(content)
            .chain(&self.between())
            .chain(&self.format.foreign)
            .map(|text| core(text).to_owned())
            .collect();
        let calls = forms.iter().filter(|form| !self.is_lenient && !form.is_anchored);
        let mut all: Vec<String> = calls.flat_map(|form| form.begins(&others, tools)).chain(others.clone()).collect();
        all.retain(|text| !text.is_empty());
        all
    }

    /// The texts between parts, with the turn's end.
    fn between(&self) -> Vec<String> {
        self.format
            .between
            .iter()
            .chain([&self.format.turn_end])
            .filter(|text| !core(text).is_empty())
            .cloned()
            .collect()
    }

    /// The parts that a turn can have at its beginning or after another one: with content at once, and behind a part with an end of its own.
    /// `after_calls`: what may follow calls, if not the same.
    fn parts(
        &self,
        forms: &[CallForm],
        delimiters: &[String],
        after_calls: Option<NodeId>,
        request: &TurnRequest,
    ) -> (NodeId, NodeId) {
        let delimiters: Vec<&str> = delimiters.iter().map(String::as_str).collect();
        let content = self.tree.mark(Mark::Content, self.tree.free_text(&delimiters));
        let (space, rest) = (self.space(), self.tree.declare());
        let text = self.tree.seq(&[content, rest]);
        // Where messages have recipients, a mask lets no text stand outside of them.
        let outside = if self.is_lenient || self.format.foreign.is_empty() { text } else { rest };
        let after = self.tree.seq(&[space, outside]);
        let after_calls = after_calls.unwrap_or(after);
        // Anchored calls come first in a turn, or behind reasoning.
        let anchored: Vec<NodeId> = forms
            .iter()
            .filter(|form| form.is_anchored)
            .map(|form| self.anchored(form, after_calls, request))
            .collect();
        let begun = self.first_of(&anchored, outside);
        let is_content = self.format.is_reasoning_content;
        let after_reasoning = self.first_of(&anchored, if is_content { text } else { after });
        let mut ways = Vec::new();
        if let Some(block) = &self.format.reasoning {
            ways.extend(self.reasoning(block, forms, request, after_reasoning, Some(text)));
        }
        // A repeated header comes before calls, too, and would begin a message to another recipient.
        let has_others = self.is_lenient && !self.format.foreign.is_empty();
        let header = self.tree.opt(self.words(if has_others { &self.format.before_calls } else { "" }));
        for form in forms.iter().filter(|form| !form.is_anchored) {
            ways.push(self.tree.seq(&[space, header, space, self.call(form), after_calls]));
        }
        if let Some(block) = &self.format.content {
            for (texts, next) in [(&block.begins, text), (&block.ends, after)] {
                if let Some(tag) = self.tag(texts) {
                    ways.push(self.tree.seq(&[space, tag, next]));
                }
            }
        }
        let foreign = self.foreign(rest);
        ways.extend(foreign.map(|(whole, _)| whole));
        if let Some(tag) = self.tag(&self.between()) {
            ways.push(self.tree.seq(&[space, tag, after]));
        }
        ways.extend(foreign.map(|(_, broken)| broken));
        ways.push(self.tree.empty());
        self.tree.define(rest, self.tree.alt(&ways));
        (begun, after)
    }

    /// Reasoning and what follows it. Calls inside of it count only at the end of the turn, because models also reason about calls. With
    /// `in_content`, which may follow the beginning of the content's block, that beginning also ends reasoning, and reasoning may break off.
    fn reasoning(
        &self,
        block: &Block,
        forms: &[CallForm],
        request: &TurnRequest,
        after: NodeId,
        in_content: Option<NodeId>,
    ) -> Option<NodeId> {
        let begin = self.tag(&block.begins)?;
        let ends = cores(&block.ends);
        let content = self.format.content.as_ref().filter(|_| in_content.is_some() && !ends.is_empty());
        let content = content.map_or(Vec::new(), |content| cores(&content.begins));
        let space = self.space();
        let (begin, gap) = (self.shown(self.tree.seq(&[space, begin])), self.shown(space));
        let thought = self.tree.free_text(&ends.iter().chain(&content).map(String::as_str).collect::<Vec<_>>());
        let mark = if self.format.is_reasoning_content { Mark::Content } else { Mark::Reasoning };
        let thought = self.tree.mark(mark, thought);
        let inside = |parts: &[NodeId]| self.tree.mark(Mark::ReasoningBlock, self.tree.seq(parts));
        let mut ways = Vec::new();
        for form in forms.iter().filter(|form| !form.is_anchored) {
            let inside = inside(&[gap, thought, space, form.tag]);
            let more = self.more_calls(form, form.rest_inside, request);
            ways.push(self.tree.seq(&[inside, form.rest_inside, more, self.turn_end()]));
        }
        match self.tag(&ends) {
            Some(end) => {
                let end = self.shown(self.tree.seq(&[space, end]));
                ways.push(self.tree.seq(&[inside(&[gap, thought, end]), after]));
                if let Some(in_content) = in_content {
                    let begun = self.tag(&content).map(|begin| self.tree.seq(&[begin, in_content]));
                    let rest = self.first_of(begun.as_slice(), self.tree.empty());
                    ways.push(self.tree.seq(&[inside(&[gap, thought, gap]), rest]));
                }
            }
            None => ways.push(self.tree.seq(&[inside(&[gap, thought]), after])),
        }
        // Nothing else begins so, although its tag may begin another text.
        Some(self.tree.seq(&[begin, self.tree.commit(), self.tree.alt(&ways)]))
    }

    /// Text around reasoning, which is content if reasoning is.
    fn shown(&self, node: NodeId) -> NodeId {
        if self.format.is_reasoning_content { self.tree.mark(Mark::Content, node) } else { node }
    }

    /// A message to a recipient that the request does not offer, and what follows; and one that breaks off. `None`: the format has none, or a
    /// mask forbids them.
    fn foreign(&self, rest: NodeId) -> Option<(NodeId, NodeId)> {
        if !self.is_lenient || self.format.foreign.is_empty() {
            return None;
        }
        let content = self.format.content.iter().flat_map(|block| &block.ends);
        let ends: Vec<&str> = content.chain(&self.format.between).map(|text| core(text)).collect();
        let (space, body, message) = (self.space(), self.tree.free_text(&ends), self.tree.text("<|message|>"));
        let name = self.tree.mark(Mark::Name, self.tree.until(&[" ", "<|"]));
        let header = self.tree.until(&["<|message|>", CHANNEL]);
        let (mut whole, mut begins) = (Vec::new(), Vec::new());
        for begin in &self.format.foreign {
            let mut headers = vec![self.tree.seq(&[self.tree.text(" "), header]), self.tree.empty()];
            // A message has one channel.
            if !begin.contains(CHANNEL) {
                headers.push(self.tree.seq(&[self.tree.text(CHANNEL), header]));
            }
            let foreign = self.tree.seq(&[name, self.tree.alt(&headers), message, self.tree.commit(), body]);
            let begin = self.tree.text(core(begin));
            whole.push(self.tree.seq(&[space, begin, self.tree.mark(Mark::Foreign, foreign), rest]));
            begins.push(begin);
        }
        let broken = self.tree.mark(Mark::Foreign, self.tree.seq(&[name, self.tree.free_text(&[])]));
        Some((self.tree.alt(&whole), self.tree.seq(&[space, self.tree.alt(&begins), broken])))
    }

    /// A turn of calls or a document, with reasoning before it.
    fn required(&self, request: &TurnRequest) -> Result<NodeId> {
        let forms = self.forms(request)?;
        let mut after = Vec::new();
        // Calls that nothing surrounds begin at once, or a model could write space for ever.
        let is_bare = self.format.reasoning.is_none() && forms.iter().all(|form| form.is_anchored);
        if !forms.is_empty() {
            let before = self.before(&self.format.before_calls, is_bare && request.document.is_none());
            let calls = |form| self.tree.seq(&[self.call(form), self.more_calls(form, form.rest, request)]);
            let calls: Vec<NodeId> = forms.iter().map(calls).collect();
            after.push(self.tree.seq(&[before, self.tree.alt(&calls), self.turn_end()]));
        }
        if let Some((schema, options)) = request.document.filter(|_| !request.is_required || forms.is_empty()) {
            after.push(self.document(schema, &options)?);
        }
        let after = self.tree.alt(&after);
        let mut ways = Vec::new();
        if let Some(block) = &self.format.reasoning {
            ways.extend(self.reasoning(block, &forms, request, after, None));
        }
        if let Some(end) = self.bare_end() {
            ways.push(self.tree.seq(&[self.gap(), end, after]));
        }
        ways.push(after);
        Ok(self.tree.alt(&ways))
    }

    /// The text between reasoning and calls or content.
    fn before(&self, text: &str, is_bare: bool) -> NodeId {
        let gap = if is_bare { self.tree.empty() } else { self.gap() };
        self.tree.seq(&[gap, self.tree.opt(self.words(text)), gap])
    }

    /// The content's block with a document.
    fn document(&self, schema: &Schema, options: &CompileOptions) -> Result<NodeId> {
        let before = self.before(&self.format.before_content, false);
        let compiled = schema.compile(options, &self.tree)?;
        self.unenforced.borrow_mut().extend(compiled.unenforced.into_iter().map(|it| (None, it)));
        let content = self.tree.mark(Mark::Content, compiled.node);
        let block = self.format.content.clone().unwrap_or_default();
        let begins: Vec<NodeId> = block.begins.iter().map(|begin| self.words(begin)).collect();
        let begin = if begins.is_empty() { self.tree.empty() } else { self.tree.alt(&begins) };
        Ok(self.tree.seq(&[before, begin, content, self.tree.opt(self.words(block.end()))]))
    }
}
