//! Four chat formats as trees, for tests of the reader. `is_lenient`: for completions that nothing constrained.

use super::values::{Notation, Values};
use crate::tree::{Each, Mark, NodeId as Id, Tree, TreeBuilder};
use serde_json::Value;

pub(super) struct Tool {
    pub(super) name: String,
    pub(super) schema: Value,
}

#[derive(Clone, Copy)]
pub(super) struct How {
    pub(super) is_lenient: bool,
    /// Calls only.
    pub(super) is_required: bool,
}

/// A turn of content and calls: in the strict tree the first tag decides, in the lenient one the whole call does.
fn turn(tree: &TreeBuilder, before: Id, calls: Id, tags: &[&str], how: How) -> Id {
    let (space, commit) = (space(tree), tree.commit());
    let content = if how.is_lenient { tree.free_text(&[]) } else { tree.free_text(tags) };
    let content = tree.mark(Mark::Content, content);
    let calls = if how.is_lenient { tree.seq(&[calls, commit]) } else { calls };
    let calls = tree.seq(&[space, calls]);
    if how.is_required {
        let more = tree.repeat(calls, 1, None);
        return tree.seq(&[before, more]);
    }
    let (first, after) = (tree.opt(content), tree.seq(&[space, content]));
    let after = tree.opt(after);
    let part = tree.seq(&[calls, after]);
    let parts = tree.repeat(part, 0, None);
    tree.seq(&[before, first, parts])
}

/// Reasoning between tags, or none.
fn reasoning(tree: &TreeBuilder, begin: &str, ends: &[&str]) -> Id {
    let (space, begin, end) = (space(tree), tree.text(begin), tree.texts(ends));
    let thought = tree.free_text(ends);
    let thought = tree.mark(Mark::Reasoning, thought);
    let commit = tree.commit();
    let block = tree.seq(&[space, begin, commit, space, thought, space, end, space]);
    // An end alone, where there is no reasoning.
    let bare = tree.seq(&[space, end, commit, space]);
    let none = tree.seq(&[]);
    tree.alt(&[block, bare, none])
}

fn by_tool(tree: &TreeBuilder, tools: &[Tool], mut one: impl FnMut(&TreeBuilder, &Tool) -> Id) -> Id {
    let ids: Vec<Id> = tools.iter().map(|tool| one(tree, tool)).collect();
    tree.alt(&ids)
}

fn name(tree: &TreeBuilder, tool: &Tool) -> Id {
    let name = tree.text(&tool.name);
    tree.mark(Mark::Name, name)
}

fn json(tree: &TreeBuilder, schema: &Value, is_lenient: bool) -> Id {
    let mut values = Values::new(tree, Notation::Json, is_lenient);
    let object = values.value(schema);
    tree.mark(Mark::Verbatim, object)
}

/// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, with an id before or behind.
pub(super) fn hermes(tools: &[Tool], how: How) -> (Tree, Id) {
    let tree = TreeBuilder::new();
    let t = &tree;
    let before = reasoning(t, "<think>", &["</think>"]);
    let space = space(t);
    let (open, name_key, args_key, quote, comma, close) = (
        t.text("{"),
        t.texts(&["\"name\":", "\"name\" :"]),
        t.text("\"arguments\""),
        t.text("\""),
        t.text(","),
        t.text("}"),
    );
    let colon = t.text(":");
    let (id_char, id_key) = (
        t.class(&[
            (u32::from(b'a'), u32::from(b'z')),
            (u32::from(b'A'), u32::from(b'Z')),
            (u32::from(b'0'), u32::from(b'9')),
            (u32::from(b'_'), u32::from(b'_')),
            (u32::from(b'-'), u32::from(b'-')),
        ]),
        t.text("\"id\""),
    );
    let id_text = t.repeat(id_char, 1, Some(64));
    let id_text = t.mark(Mark::CallId, id_text);
    let id = t.seq(&[id_key, space, colon, space, quote, id_text, quote, space]);
    let (id_first, id_last) = (t.seq(&[id, comma, space]), t.seq(&[comma, space, id]));
    let (id_first, id_last) = (t.opt(id_first), t.opt(id_last));
    let rest = by_tool(t, tools, |t, tool| {
        let (name, arguments) = (name(t, tool), json(t, &tool.schema, how.is_lenient));
        t.seq(&[name, quote, space, comma, space, args_key, space, colon, space, arguments, space])
    });
    let object = t.seq(&[open, space, id_first, name_key, space, quote, rest, id_last, close]);
    let object = t.mark(Mark::Call, object);
    let (begin, end) = (t.text("<tool_call>"), t.text("</tool_call>"));
    let call = t.seq(&[begin, space, object, space, end]);
    let root = turn(t, before, call, &["<tool_call>"], how);
    (tree.into(), root)
}

/// Gemma 4: `<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>`.
pub(super) fn gemma(tools: &[Tool], how: How) -> (Tree, Id) {
    let tree = TreeBuilder::new();
    let t = &tree;
    let before = reasoning(t, "<|channel>thought", &["<channel|>"]);
    let (word, space) = (t.text("call:"), space(t));
    let word = t.opt(word);
    let call = by_tool(t, tools, |t, tool| {
        let name = name(t, tool);
        let arguments = Values::new(t, Notation::Gemma, how.is_lenient).value(&tool.schema);
        t.seq(&[name, arguments])
    });
    let call = t.mark(Mark::Call, call);
    let (begin, end) = (t.text("<|tool_call>"), t.text("<tool_call|>"));
    let call = t.seq(&[begin, space, word, call, space, end]);
    let again = t.text("<|tool_response>");
    let again = t.opt(again);
    let call = t.seq(&[call, again]);
    let root = turn(t, before, call, &["<|tool_call>"], how);
    (tree.into(), root)
}

/// LFM2: `<|tool_call_start|>[f(a='x')]<|tool_call_end|>`.
pub(super) fn python(tools: &[Tool], how: How) -> (Tree, Id) {
    let tree = TreeBuilder::new();
    let t = &tree;
    let before = reasoning(t, "<think>", &["</think>"]);
    let space = space(t);
    let call = by_tool(t, tools, |t, tool| {
        let name = name(t, tool);
        let required: Vec<&str> =
            tool.schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut items = Vec::new();
        for (key, schema) in tool.schema["properties"].as_object().into_iter().flatten() {
            let text = t.as_text(key, &format!("{}: ", Value::from(key.as_str())));
            let value = Values::new(t, Notation::Python, how.is_lenient).value(schema);
            let equals = t.text("=");
            items.push((t.seq(&[text, space, equals, space, value, space]), required.contains(&key.as_str())));
        }
        let comma = t.as_text(",", ", ");
        let comma = t.seq(&[comma, space]);
        let each = t.each(Each { items, separator: comma, further: None, least: 0, most: None, any_order: true });
        let (open, close) = (t.as_text("(", "{"), t.as_text(")", "}"));
        t.seq(&[name, open, space, each, close])
    });
    let call = t.mark(Mark::Call, call);
    let (begin, open, comma, close, end) =
        (t.text("<|tool_call_start|>"), t.text("["), t.text(","), t.text("]"), t.text("<|tool_call_end|>"));
    let more = t.seq(&[space, comma, space, call]);
    let more = t.repeat(more, 0, None);
    let calls = t.seq(&[begin, space, open, space, call, more, space, close, space, end]);
    let root = turn(t, before, calls, &["<|tool_call_start|>"], how);
    (tree.into(), root)
}

/// gpt-oss: messages with headers.
pub(super) fn harmony(tools: &[Tool], how: How) -> (Tree, Id) {
    let tree = TreeBuilder::new();
    let t = &tree;
    let ends = ["<|end|>", "<|return|>", "<|call|>", "<|start|>"];
    let (nothing, commit, body) = (t.seq(&[]), t.commit(), t.free_text(&ends));
    let (end, body) = (t.texts(&ends[..3]), body);
    // Behind an end there may be text without a header.
    let junk = t.free_text(&[]);
    let junk = t.mark(Mark::Content, junk);
    let ended = if how.is_lenient { t.alt(&[nothing, junk]) } else { nothing };
    let ended = t.seq(&[end, ended]);
    let end = t.alt(&[ended, nothing]);
    let message = t.text("<|message|>");
    let (thought, content) = (t.mark(Mark::Reasoning, body), t.mark(Mark::Content, body));
    let (analysis, final_, commentary) =
        (t.text("<|channel|>analysis"), t.text("<|channel|>final"), t.text("<|channel|>commentary"));
    let kind = t.texts(&[" <|constrain|>json", "<|constrain|>json", " json", " code"]);
    let kind = t.opt(kind);
    let thinks = t.seq(&[analysis, message, commit, thought, end]);
    let shown = t.alt(&[final_, commentary]);
    let says = t.seq(&[shown, kind, message, commit, content, end]);
    let channel = t.alt(&[commentary, analysis]);
    let (to, functions) = (t.text(" to="), t.text("functions."));
    let mut forms = vec![thinks, says];
    let prefix = if how.is_lenient { t.opt(functions) } else { functions };
    let decided = if how.is_lenient { commit } else { nothing };
    for is_early in [false, true] {
        let call = by_tool(t, tools, |t, tool| {
            let (name, arguments) = (name(t, tool), json(t, &tool.schema, how.is_lenient));
            let channel = if is_early { channel } else { t.seq(&[]) };
            t.seq(&[name, channel, kind, message, arguments])
        });
        let call = t.mark(Mark::Call, call);
        let channel = if is_early { nothing } else { channel };
        forms.push(t.seq(&[channel, to, prefix, call, decided, end]));
    }
    if how.is_lenient {
        // A recipient that was not offered: no content, and no call of the request's.
        let (header, other) = (t.free_text(&["<|", " "]), t.free_text(&["<|message|>"]));
        let (name, body) = (t.mark(Mark::Name, header), t.mark(Mark::Verbatim, body));
        let behind = [t.text(" "), t.text("<|channel|>")].map(|begin| t.seq(&[begin, other]));
        let (some, none) = (t.alt(&behind), nothing);
        let other = t.alt(&[some, none]);
        let parts = t.seq(&[name, other, message, commit, body]);
        let foreign = t.mark(Mark::Foreign, parts);
        forms.push(t.seq(&[channel, to, foreign, end]));
    }
    let part = t.alt(&forms);
    let start = t.text("<|start|>assistant");
    let start = t.opt(start);
    let part = t.seq(&[start, part]);
    let parts = t.repeat(part, if how.is_lenient { 0 } else { 1 }, None);
    if !how.is_lenient {
        return (tree.into(), parts);
    }
    let text = t.seq(&[junk, parts]);
    let root = t.alt(&[parts, text]);
    (tree.into(), root)
}

/// Any space.
fn space(tree: &TreeBuilder) -> Id {
    let one = tree.one_of(" \t\n\r");
    tree.repeat(one, 0, None)
}
