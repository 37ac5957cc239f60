//! Calls with the texts around them.

use foredraft_base::error::Result;
use foredraft_grammar::tree::{Mark, NodeId};
use foredraft_schema::{Notation, Values};

use super::builder::{TurnBuilder, TurnRequest, core, words_of};
use super::tags::TaggedCall;
use crate::format::{CallArguments, CallObject, CallPart, Calls};
use crate::tool::Tool;

/// The longest id in characters.
const MAX_ID: u32 = 64;
/// The most digits of a call's number.
const MAX_DIGITS: u32 = 4;

/// A way to write calls: a text with which they begin, and the rest of them.
pub(super) struct CallForm {
    /// The text that the model must write. Empty: the calls are anchored.
    word: String,
    /// The text between the word and the name of the tool, and the text behind that.
    around_name: Option<(String, String)>,
    /// Reads the word, or of anchored calls the beginning up to the name.
    pub(super) tag: NodeId,
    /// Reads the rest, up to the end of these calls.
    pub(super) rest: NodeId,
    /// The same inside of reasoning, where the end is not left out.
    pub(super) rest_inside: NodeId,
    /// The text between two such calls.
    separator: NodeId,
    pub(super) is_anchored: bool,
    /// A text that begins like the call is one.
    is_certain: bool,
}

impl CallForm {
    /// The texts that begin a call wherever they occur. `others`: the texts with which other parts begin. A word that they share needs the
    /// tool's name.
    pub(super) fn begins(&self, others: &[String], tools: &[Tool]) -> Vec<String> {
        let is_shared = others.iter().any(|other| other.starts_with(self.word.as_str()));
        match &self.around_name {
            Some((before, after)) if is_shared => {
                tools.iter().map(|tool| format!("{}{before}{}{after}", self.word, tool.name)).collect()
            }
            _ => vec![self.word.clone()],
        }
    }
}

impl TurnBuilder<'_> {
    /// All ways to write calls.
    pub(super) fn forms(&self, request: &TurnRequest) -> Result<Vec<CallForm>> {
        let mut forms = Vec::new();
        if request.tools.is_empty() {
            return Ok(forms);
        }
        for calls in &self.format.calls {
            let several = self.is_lenient || request.parallel && !calls.is_single;
            self.add_forms(calls, several, request.tools, &mut forms)?;
        }
        Ok(forms)
    }

    fn add_forms(&self, calls: &Calls, several: bool, tools: &[Tool], forms: &mut Vec<CallForm>) -> Result<()> {
        let (head, parts) = match calls.call.split_first() {
            Some((CallPart::Text(text), rest)) if !core(text).is_empty() => (text.as_str(), rest),
            _ => ("", calls.call.as_slice()),
        };
        let is_anchored = calls.is_anchored && head.is_empty() && core(&calls.begin).is_empty();
        // The last tag of a call, which models leave out. Another name may begin like its own, unless that has an end.
        let tail = match parts {
            [.., CallPart::Text(tail)]
                if self.is_lenient && !is_anchored && core(tail).starts_with('<') && has_end(parts) =>
            {
                tail
            }
            _ => "",
        };
        let n_parts = parts.len() - usize::from(!tail.is_empty());
        let mut ways = Vec::with_capacity(tools.len());
        for tool in tools {
            let is_line = !head.is_empty() && !core(head).starts_with(['<', '[']);
            ways.push(self.call_parts((parts, n_parts), is_line, calls.is_anchored, tool)?);
        }
        let (shared, rests) = self.without_shared(&ways);
        let (gap, nothing) = (self.gap(), self.tree.empty());
        let separator = self.tree.seq(&[gap, self.words(&calls.separator), gap]);
        if is_anchored {
            // Marks stand inside of the call.
            let (before, shared) = if self.is_lenient { (Vec::new(), shared) } else { (shared, Vec::new()) };
            let rest = self.tree.mark(Mark::Call, self.joined(&shared, &[rests]));
            forms.push(CallForm {
                word: String::new(),
                around_name: None,
                tag: self.tree.seq(&before),
                rest,
                rest_inside: rest,
                separator,
                is_anchored,
                is_certain: matches!(parts, [CallPart::Object(CallObject { name: Some(_), .. }), ..]),
            });
            return Ok(());
        }
        let whole_head = self.words(head);
        let several_calls = |tail: NodeId| {
            let one = self.tree.mark(Mark::Call, self.joined(&shared, &[rests, tail]));
            let another = self.tree.seq(&[separator, whole_head, one]);
            (one, if several { self.tree.repeat(another, 0, None) } else { nothing })
        };
        let (tail, optional_tail) = (self.words(tail), self.optional_words(tail));
        let (one, more) = several_calls(optional_tail);
        // A call inside of reasoning is whole.
        let (one_inside, more_inside) = if optional_tail == nothing { (one, more) } else { several_calls(tail) };
        let end = self.tree.seq(&[gap, self.words(&calls.end)]);
        let optional_end = self.optional_words(&calls.end);
        let is_section = !core(&calls.begin).is_empty();
        let around_name = match parts {
            [CallPart::Name, CallPart::Text(after), ..] if !is_section => {
                Some(words_of(after).next().unwrap_or(after).to_owned())
            }
            _ => None,
        };
        let mut add = |text: &str, parts: &[NodeId], inside: &[NodeId]| {
            let (word, behind) = self.first_tag(text);
            let mut behind_word = self.spaced(behind);
            if word.starts_with(['<', '[']) && word.ends_with(['>', ']']) {
                behind_word.insert(0, gap);
            }
            forms.push(CallForm {
                word: word.to_owned(),
                around_name: around_name.clone().map(|after| (behind.to_owned(), after)),
                tag: self.tree.text(word),
                rest: self.joined(&behind_word, parts),
                rest_inside: self.joined(&behind_word, inside),
                separator,
                is_anchored,
                is_certain: true,
            });
        };
        if is_section {
            let end_inside = if calls.end_is_optional { optional_end } else { end };
            let end = if self.is_lenient { optional_end } else { end_inside };
            add(&calls.begin, &[whole_head, one, more, end], &[whole_head, one_inside, more_inside, end_inside]);
            // Models leave out the texts around all calls.
            if core(head).contains('<') {
                add(head, &[one, more, optional_end], &[one_inside, more_inside, optional_end]);
            }
        } else {
            let has_separator = !core(&calls.separator).is_empty();
            let ends = |more| if has_separator { more } else { nothing };
            add(head, &[one, ends(more)], &[one_inside, ends(more_inside)]);
        }
        Ok(())
    }

    /// The first tag of a text, and what is behind it. The whole text, if its tag begins other parts, too.
    fn first_tag<'t>(&self, text: &'t str) -> (&'t str, &'t str) {
        let text = text.trim_start();
        let close = match text.chars().next() {
            Some('<') => text.find('>'),
            Some('[') => text.find(']'),
            _ => None,
        };
        let blocks = [&self.format.reasoning, &self.format.content].into_iter().flatten();
        let mut others = blocks.flat_map(|block| &block.begins).chain(&self.format.between);
        let split = close.and_then(|close| text.split_at_checked(close + 1));
        let split = split
            .filter(|(tag, _)| !tag.contains(char::is_whitespace) && !others.any(|other| core(other).starts_with(tag)));
        split.unwrap_or_else(|| text.split_at(text.trim_end().len()))
    }

    /// The words of an end, of which models leave out the last ones or all.
    fn optional_words(&self, text: &str) -> NodeId {
        let (gap, nothing) = (self.gap(), self.tree.empty());
        let words: Vec<&str> = words_of(text).collect();
        words.into_iter().rfold(nothing, |next, word| self.tree.opt(self.tree.seq(&[gap, self.tree.text(word), next])))
    }

    /// A call. In a lenient tree it is one only when it is complete.
    pub(super) fn call(&self, form: &CallForm) -> NodeId {
        let commit = if self.is_lenient { self.tree.commit() } else { self.tree.empty() };
        self.tree.seq(&[form.tag, form.rest, commit])
    }

    /// More calls of a form behind one of them. `rest`: of the form.
    pub(super) fn more_calls(&self, form: &CallForm, rest: NodeId, request: &TurnRequest) -> NodeId {
        if !self.is_lenient && !request.parallel {
            return self.tree.empty();
        }
        let between = if form.is_anchored { form.separator } else { self.gap() };
        self.tree.repeat(self.tree.seq(&[between, form.tag, rest]), 0, None)
    }

    /// Calls that begin a turn, and what follows. `after`: any parts.
    pub(super) fn anchored(&self, form: &CallForm, after: NodeId, request: &TurnRequest) -> NodeId {
        let (space, more) = (self.space(), self.more_calls(form, form.rest, request));
        if self.is_lenient {
            return self.tree.seq(&[space, form.tag, form.rest, more, self.tree.commit(), after]);
        }
        let begun = if form.is_certain { self.tree.commit() } else { self.tree.empty() };
        self.tree.seq(&[space, form.tag, begun, form.rest, more, self.turn_end()])
    }

    /// The first `n` parts of a call of one tool. `is_line`: no tag begins it, so white space ends its name.
    fn call_parts(
        &self,
        (parts, n): (&[CallPart], usize),
        is_line: bool,
        is_anchored: bool,
        tool: &Tool,
    ) -> Result<Vec<NodeId>> {
        let mut nodes = Vec::new();
        for (index, part) in parts.iter().enumerate().take(n) {
            match part {
                CallPart::Text(text) if is_line && core(text).is_empty() => nodes.push(self.tree.text(text)),
                CallPart::Text(text) => nodes.extend(self.spaced(text)),
                CallPart::AnyText(texts) => {
                    let texts: Vec<NodeId> = texts.iter().map(|text| self.words(text)).collect();
                    nodes.push(self.tree.alt(&texts));
                }
                CallPart::Name => nodes.push(self.name(tool)),
                CallPart::Id => nodes.push(self.id()),
                CallPart::Number => nodes.push(self.number()),
                CallPart::NumberedName { prefix, separator } => {
                    let (prefix, separator) = (self.tree.text(prefix), self.tree.text(separator));
                    let id = self.tree.seq(&[prefix, self.name(tool), separator, self.number()]);
                    nodes.push(self.tree.mark(Mark::CallId, id));
                }
                CallPart::Object(object) if self.is_lenient => nodes.push(self.any_object_call(object)),
                CallPart::Object(object) => nodes.extend(self.object(object, is_anchored, tool)?),
                CallPart::Arguments(CallArguments::Json) => nodes.push(self.arguments(Notation::Json, tool)?),
                CallPart::Arguments(CallArguments::Gemma) => {
                    let mut forms = vec![self.arguments(Notation::Gemma, tool)?];
                    // Models fall back to JSON.
                    if self.is_lenient {
                        forms.push(self.arguments(Notation::Json, tool)?);
                    }
                    nodes.push(self.tree.alt(&forms));
                }
                CallPart::Arguments(CallArguments::Tags(tags)) => {
                    let tail = match parts.get(index + 1) {
                        Some(CallPart::Text(text)) => text.as_str(),
                        _ => "",
                    };
                    nodes.push(self.tagged_arguments(TaggedCall { tags, tail, tool })?);
                }
            }
        }
        Ok(nodes)
    }

    pub(super) fn name(&self, tool: &Tool) -> NodeId {
        self.tree.mark(Mark::Name, self.tree.text(&tool.name))
    }

    /// The name of any tool.
    pub(super) fn any_name(&self) -> NodeId {
        let names: Vec<NodeId> = self.tools.iter().map(|tool| self.name(tool)).collect();
        self.tree.alt(&names)
    }

    /// The letters, digits and signs of an id, in which the first one is a letter or a digit.
    pub(super) fn id(&self) -> NodeId {
        let ranges = [(0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)];
        let signs = ['_', '.', ':', '-'].map(|char| (u32::from(char), u32::from(char)));
        let (first, next) = (self.tree.class(&ranges), self.tree.class(&[&ranges[..], &signs].concat()));
        self.tree.mark(Mark::CallId, self.tree.seq(&[first, self.tree.repeat(next, 0, Some(MAX_ID - 1))]))
    }

    fn number(&self) -> NodeId {
        self.tree.repeat(self.tree.class(&[(0x30, 0x39)]), 1, Some(MAX_DIGITS))
    }

    /// The arguments of a call as one object.
    pub(super) fn arguments(&self, notation: Notation, tool: &Tool) -> Result<NodeId> {
        let mut values = Values::new(&self.tree, notation, self.options());
        let node = values.object(&tool.schema)?;
        self.note(tool, values.into_unenforced());
        Ok(if notation == Notation::Json { self.tree.mark(Mark::Verbatim, node) } else { node })
    }

    /// The nodes with which all of these lists begin, and the alternatives behind them.
    fn without_shared(&self, lists: &[Vec<NodeId>]) -> (Vec<NodeId>, NodeId) {
        let Some((first, others)) = lists.split_first() else { return (Vec::new(), self.tree.class(&[])) };
        let same = |other: &Vec<NodeId>| first.iter().zip(other).take_while(|(one, other)| one == other).count();
        // One tool alone begins like several: its name is its own.
        let name = self.tools.first().map(|tool| self.name(tool));
        let own = first.iter().position(|node| Some(*node) == name).unwrap_or(first.len());
        let n_shared = others.iter().map(same).fold(own, usize::min);
        let mut rests: Vec<NodeId> = Vec::new();
        for list in lists {
            let rest = self.tree.seq(list.get(n_shared..).unwrap_or_default());
            if !rests.contains(&rest) {
                rests.push(rest);
            }
        }
        (first.get(..n_shared).unwrap_or_default().to_vec(), self.tree.alt(&rests))
    }
}

/// Whether the name of a call ends before the last of its parts, whatever the arguments are.
fn has_end(parts: &[CallPart]) -> bool {
    let behind_name = parts.iter().rev().skip(1).take_while(|part| !matches!(part, CallPart::Name));
    behind_name.into_iter().any(|part| match part {
        CallPart::Text(text) => !core(text).is_empty(),
        CallPart::Arguments(arguments) => !matches!(arguments, CallArguments::Tags(_)),
        _ => true,
    })
}
