//! Renders probe conversations with marked names, arguments and texts, and compares the results.

use std::cell::Cell;
use std::io::{self, Read};

use serde_json::{Map, Value, json};

use crate::format::{Block, CallArguments, CallObject, CallPart, Calls, ChatFormat, TagKind, TaggedValue, Tags};

/// A conversation to render.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// OpenAI's messages. The arguments of calls are objects.
    pub messages: &'a [Value],
    /// OpenAI's tools, or none.
    pub tools: Option<&'a Value>,
    /// The prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
}

/// Texts that no template has.
const TEXT: &str = "probetext71c3";
const THOUGHT: &str = "probethought71c3";
const NAMES: [&str; 3] = ["probe_alpha_71c3", "probe_beta_71c3", "probe_gamma_71c3"];
const KEYS: [&str; 3] = ["probe_key_a71", "probe_key_b71", "probe_key_c71"];
const VALUES: [&str; 2] = ["probevaluea71", "probevaluec71"];
const NUMBER: &str = "71337";
const IDS: [&str; 3] = ["probeid71", "probeid72", "probeid73"];

/// The longest prompt that is looked at, in bytes. Each look reads it once, so the time for all of them has a limit. The longest prompt of a
/// known template has a tenth of it.
const MAX_PROMPT: usize = 64 << 10;
/// The bytes of JSON that are read in all prompts of a template. JSON can begin at each brace of a prompt, so this takes more than a look.
const MAX_JSON: usize = 256 << 10;

/// The texts that a template renders.
pub(crate) struct Probes<'a> {
    texts: &'a [&'a str],
    json: JsonBudget,
    /// A user's message, without and with the beginning of the assistant's turn.
    pub(crate) user: String,
    pub(crate) begun: String,
    /// An assistant's text, and reasoning with a text.
    pub(crate) text: String,
    pub(crate) reasoned: String,
    pub(crate) shows_tools: bool,
    /// Three calls, and one call.
    pub(crate) calls: Option<String>,
    pub(crate) call: Option<String>,
    /// A call with an array in its arguments.
    pub(crate) array: Option<String>,
}

impl<'a> Probes<'a> {
    pub(crate) fn new(texts: &'a [&'a str], render: &dyn Fn(&Conversation) -> Option<String>) -> Probes<'a> {
        let tools: Vec<Value> = NAMES.iter().enumerate().map(|(index, name)| probe_tool(index, name)).collect();
        let tools = Value::from(tools);
        let user = json!({"role": "user", "content": "Hello?"});
        let print = |messages: &[Value], add_generation_prompt: bool| {
            let render = |tools| render(&Conversation { messages, tools, add_generation_prompt });
            let with = |tools| render(tools).filter(|prompt| prompt.len() <= MAX_PROMPT);
            with(Some(&tools)).or_else(|| with(None))
        };
        let after_user = |message: Value| print(&[user.clone(), message], false);
        let called = |calls: Vec<Value>| {
            let n = calls.len();
            let mut message = json!({"role": "assistant", "content": "", "tool_calls": calls});
            let shows = |prompt: &String| NAMES.iter().take(n).all(|name| after(prompt, "Hello?").contains(name));
            let empty = after_user(message.clone()).filter(shows);
            empty.or_else(|| {
                if let Value::Object(message) = &mut message {
                    message.insert("content".to_owned(), Value::Null);
                }
                after_user(message).filter(shows)
            })
        };
        let mut reasoned = json!({"role": "assistant", "content": TEXT});
        add_thought(&mut reasoned);
        Probes {
            texts,
            json: JsonBudget(Cell::new(MAX_JSON)),
            user: print(std::slice::from_ref(&user), false).unwrap_or_default(),
            begun: print(std::slice::from_ref(&user), true).unwrap_or_default(),
            text: after_user(json!({"role": "assistant", "content": TEXT})).unwrap_or_default(),
            reasoned: after_user(reasoned).unwrap_or_default(),
            shows_tools: print(std::slice::from_ref(&user), true).is_some_and(|prompt| prompt.contains(NAMES[0])),
            calls: called((0..3).map(probe_call).collect()),
            call: called(vec![probe_call(0)]),
            array: called(vec![call_of(0, &json!({KEYS[0]: [VALUES[0]]}))]),
        }
    }

    /// Whether a text of the template contains this one.
    pub(crate) fn has_text(&self, text: &str) -> bool {
        self.texts.iter().any(|own| own.contains(text))
    }

    /// The text that the template adds for the assistant's turn.
    pub(crate) fn generation_prompt(&self) -> &str {
        let n = common_prefix(&self.user, &self.begun);
        self.begun.get(n..).unwrap_or_default()
    }

    /// The text after an assistant's text.
    pub(crate) fn turn_end(&self) -> &str {
        self.text.rsplit_once(TEXT).map_or("", |(_, end)| end)
    }

    /// The format that comparing the probes shows.
    pub(crate) fn compared(&self) -> ChatFormat {
        let reasoning = self.reasoning();
        let calls = self.calls.as_deref().and_then(|calls| self.compared_calls(calls, reasoning.as_ref()));
        let single = || {
            let mut calls = self.compared_calls(self.call.as_deref()?, reasoning.as_ref())?;
            calls.is_single = true;
            Some(calls)
        };
        ChatFormat {
            calls: calls.or_else(single).into_iter().collect(),
            content: self.content_block(),
            before_content: self.before_content(reasoning.as_ref()),
            turn_end: self.space_after_calls(),
            reasoning,
            ..ChatFormat::default()
        }
    }

    /// The space between calls and the end of the turn.
    fn space_after_calls(&self) -> String {
        let prompt = self.calls.as_deref().or(self.call.as_deref()).unwrap_or_default();
        let end = first_tag(self.turn_end()).unwrap_or_default();
        let before = prompt.rsplit_once(end).filter(|_| !end.is_empty()).map_or("", |(before, _)| before);
        before.get(before.trim_end().len()..).unwrap_or_default().to_owned()
    }

    /// The tags around reasoning.
    pub(crate) fn reasoning(&self) -> Option<Block> {
        let shown = self.reasoned.rsplit_once(THOUGHT).and_then(|(before, rest)| {
            let (between, _) = rest.split_once(TEXT)?;
            let (begin, end) = (last_tag(before)?, first_tag(between)?);
            // With the space that the template prints inside of the block.
            let space = before.get(before.trim_end().len()..)?;
            let end_at = between.find(end)? + end.len();
            Some((format!("{begin}{space}"), between.get(..end_at)?.to_owned()))
        });
        if let Some((begin, end)) = shown.filter(|(begin, _)| !self.user.ends_with(begin.trim())) {
            // Reasoning may begin with a text in the place of a tag.
            let stated = self.generation_prompt().rsplit_once(begin.trim()).map_or("", |(_, rest)| rest.trim_start());
            let is_tag = stated.trim().is_empty() || stated.trim() == end.trim();
            return Some(Block::new(if is_tag { &begin } else { stated }, &end));
        }
        let known = [
            ("<think>", "</think>"),
            ("[THINK]", "[/THINK]"),
            ("<|inner_prefix|>", "<|inner_suffix|>"),
            ("<|START_THINKING|>", "<|END_THINKING|>"),
        ];
        let (begin, end) = known.iter().find(|(begin, end)| {
            let asked = self.generation_prompt().contains(begin);
            asked || self.has_text(begin) && self.has_text(end)
        })?;
        Some(Block::new(&format!("{begin}\n"), &format!("\n{end}")))
    }

    /// The text between reasoning and an assistant's text.
    fn before_content(&self, reasoning: Option<&Block>) -> String {
        let between = self.reasoned.rsplit_once(THOUGHT).and_then(|(_, rest)| rest.split_once(TEXT));
        let end = reasoning.map_or("", |block| block.end().trim());
        let gap = between.and_then(|(between, _)| between.split_once(end)).map_or("\n\n", |(_, gap)| gap);
        if gap.trim().is_empty() { gap.to_owned() } else { String::new() }
    }

    /// Tags around an assistant's text.
    fn content_block(&self) -> Option<Block> {
        let (before, _) = self.text.rsplit_once(TEXT)?;
        let begin = last_tag(before).filter(|tag| before.ends_with(tag))?;
        let end = first_tag(self.turn_end())?;
        // A role's header is printed by the prompt, too.
        let is_block =
            !self.generation_prompt().contains(begin) && !begin.starts_with("</") && self.turn_end().starts_with(end);
        let is_pair = begin.replace("START", "END") == end || begin.replace('<', "</") == end;
        (is_block && is_pair).then(|| Block::new(begin, end))
    }

    /// How calls are written, from the prompt with calls.
    fn compared_calls(&self, prompt: &str, reasoning: Option<&Block>) -> Option<Calls> {
        let n_shared = common_prefix(&self.user, prompt);
        let turn = prompt.get(n_shared..)?;
        let n_calls = NAMES.iter().filter(|name| turn.contains(*name)).count();
        let objects: Option<Vec<(Span, Value)>> = (0..n_calls).map(|index| self.json.object_of(turn, index)).collect();
        let objects = objects.filter(|objects| !objects.is_empty());
        let spans = match &objects {
            Some(objects) => objects.iter().map(|(span, _)| *span).collect(),
            None => (0..n_calls).map(|index| self.json.bare_call(turn, index)).collect::<Option<Vec<_>>>()?,
        };
        let (first, last) = (spans.first()?, spans.last()?);
        let before = turn.get(..first.start)?;
        // The beginning of the turn, as before a text.
        let text_before = self.text.rsplit_once(TEXT)?.0;
        let shared = common_prefix(text_before.get(n_shared..).unwrap_or_default(), before);
        let mut before = before.get(back_to_tag(before, shared)..)?;
        for end in reasoning.iter().flat_map(|block| &block.ends) {
            before = before.rsplit_once(end.trim()).map_or(before, |(_, rest)| rest);
        }
        let after = turn.get(last.end..)?;
        let is_object = objects.is_some();
        let arguments = self.json.arguments(turn.get(first.start..first.end)?);
        let tags = if is_object || arguments.is_some() {
            None
        } else {
            let prints_python =
                self.array.as_ref().is_some_and(|prompt| prompt.contains(&format!("['{}']", VALUES[0])));
            Some(tagged_parts(turn, &spans, prints_python)?)
        };
        let (head, tail, begin, separator, end) = match spans.get(1) {
            Some(second) => {
                let between = turn.get(first.end..second.start)?;
                let tail = match &tags {
                    // The call without arguments is the last one, so the texts after calls differ.
                    Some((_, tail)) => between.get(..between.find(tail.trim())? + tail.trim().len())?,
                    None => between.get(..back_to_tag(between, common_prefix(between, after)))?.trim_end(),
                };
                let rest = between.get(tail.len()..)?;
                let n_head = common_suffix(rest, before);
                let head = rest.get(on_to_tag(rest, rest.len() - n_head)..)?.trim_start();
                let separator = rest.strip_suffix(head)?;
                let begin = before.strip_suffix(head)?.trim_start_matches(['\n', '\r']);
                let after_tail = match &tags {
                    Some((_, tail)) => after.get(after.find(tail.trim())? + tail.trim().len()..)?,
                    None => after.get(tail.len()..)?,
                };
                (head, tail, begin, separator, self.without_turn_end(after_tail, begin, prompt))
            }
            None => (before.trim_start(), self.without_turn_end(after, "", prompt), "", "", ""),
        };
        // Without a beginning of all calls, the rest is the turn's end.
        let end = if begin.trim().is_empty() { "" } else { end };
        let begin = if begin.trim().is_empty() { "" } else { begin };
        let head = if begin.is_empty() { head.trim_start_matches(['\n', '\r']) } else { head };
        let mut call = Vec::new();
        push_text(&mut call, head);
        let is_anchored = is_object && head.trim().is_empty() && begin.is_empty();
        match tags {
            Some((mut parts, _)) => call.append(&mut parts),
            None => {
                match objects.as_ref().and_then(|objects| objects.first()) {
                    Some((_, object)) => {
                        let object = object_format(object)?;
                        call.push(CallPart::Object(CallObject { may_have_type: is_anchored, ..object }));
                    }
                    None => call.append(&mut bare_parts(turn.get(first.start..first.end)?, arguments?)?),
                }
                push_text(&mut call, tail);
            }
        }
        Some(Calls {
            begin: begin.to_owned(),
            separator: separator.to_owned(),
            end: end.to_owned(),
            call,
            is_anchored,
            ..Calls::default()
        })
    }

    /// The text after calls, without the end of the turn. `begin`: the text before them.
    fn without_turn_end<'t>(&self, text: &'t str, begin: &str, prompt: &str) -> &'t str {
        // The end of a prompt with a text, too.
        let n_shared = common_suffix(prompt, &self.text).min(text.len());
        let start = on_to_tag(text, floor(text, text.len() - n_shared));
        let text = text.get(..start).unwrap_or_default();
        let closing = last_tag(begin.trim_end_matches(['[', ' ', '\n'])).map(|tag| tag.replacen('<', "</", 1));
        if let Some(at) = closing.as_ref().and_then(|closing| Some(text.find(closing.as_str())? + closing.len())) {
            return text.get(..at).unwrap_or_default();
        }
        let first = first_tag(self.turn_end()).unwrap_or_default();
        match text.find(first).filter(|_| !first.is_empty()) {
            Some(at) => text.get(..at).unwrap_or_default(),
            None => text,
        }
    }
}

/// The parts of a call whose arguments are JSON, and whose name is outside of it. `arguments`: their place.
fn bare_parts(text: &str, arguments: Span) -> Option<Vec<CallPart>> {
    let [name, ..] = NAMES;
    let [id, ..] = IDS;
    let Span { start, end } = arguments;
    let mut marks = vec![(text.find(name)?, name.len(), CallPart::Name)];
    marks.extend(text.find(id).map(|at| (at, id.len(), CallPart::Id)));
    marks.push((start, end - start, CallPart::Arguments(CallArguments::Json)));
    marks.sort_by_key(|(at, _, _)| *at);
    let (mut parts, mut done) = (Vec::new(), 0);
    for (at, length, mark) in marks {
        push_text(&mut parts, text.get(done..at)?);
        parts.push(mark);
        done = at + length;
    }
    push_text(&mut parts, text.get(done..)?);
    Some(parts)
}

/// Adds a text, unless it is empty.
fn push_text(parts: &mut Vec<CallPart>, text: &str) {
    if !text.is_empty() {
        parts.push(CallPart::Text(text.to_owned()));
    }
}

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    start: usize,
    end: usize,
}

fn probe_tool(index: usize, name: &str) -> Value {
    let [a, b, c] = KEYS;
    let properties = match index {
        0 => json!({a: {"type": "string", "description": "a"}, b: {"type": "integer", "description": "b"}}),
        1 => json!({c: {"type": "string", "description": "c"}}),
        _ => json!({}),
    };
    json!({"type": "function", "function": {"name": name, "description": "probe",
        "parameters": {"type": "object", "properties": properties, "required": []}}})
}

fn probe_call(index: usize) -> Value {
    let [a, b, c] = KEYS;
    let [first, second] = VALUES;
    let arguments = match index {
        0 => json!({a: first, b: NUMBER.parse::<u64>().unwrap_or_default()}),
        1 => json!({c: second}),
        _ => json!({}),
    };
    call_of(index, &arguments)
}

fn call_of(index: usize, arguments: &Value) -> Value {
    json!({"type": "function", "id": IDS.get(index), "function": {"name": NAMES.get(index), "arguments": arguments}})
}

fn add_thought(message: &mut Value) {
    if let Value::Object(message) = message {
        for key in ["reasoning_content", "reasoning", "thinking"] {
            message.insert(key.to_owned(), THOUGHT.into());
        }
    }
}

/// How many bytes of JSON may still be read.
struct JsonBudget(Cell<usize>);

/// Reads a text until the budget is spent.
struct BudgetReader<'a>(&'a [u8], &'a JsonBudget);

impl Read for BudgetReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let JsonBudget(left) = self.1;
        left.set(left.get().checked_sub(buffer.len()).ok_or(io::ErrorKind::QuotaExceeded)?);
        self.0.read(buffer)
    }
}

impl JsonBudget {
    /// The first JSON object in a text that is accepted, and its place.
    fn first_object(&self, text: &str, accepts: impl Fn(Span, &Value) -> bool) -> Option<(Span, Value)> {
        text.match_indices('{').take_while(|_| self.0.get() > 0).find_map(|(start, _)| {
            let reader = BudgetReader(text.as_bytes().get(start..)?, self);
            let mut values = serde_json::Deserializer::from_reader(reader).into_iter::<Value>();
            let value = values.next()?.ok()?;
            let span = Span { start, end: start + values.byte_offset() };
            accepts(span, &value).then_some((span, value))
        })
    }

    /// The JSON object that has the name of a call, if the call is one.
    fn object_of(&self, turn: &str, index: usize) -> Option<(Span, Value)> {
        let at = turn.find(NAMES.get(index)?)?;
        self.first_object(turn, |span, _| (span.start..span.end).contains(&at))
    }

    /// The place of a call's arguments in its text, if they are a JSON object.
    fn arguments(&self, text: &str) -> Option<Span> {
        self.first_object(text, |_, value| value.get(KEYS[0]).is_some()).map(|(span, _)| span)
    }

    /// A call whose name is outside of JSON: from the name, or the id if that comes first, to the end of the arguments.
    fn bare_call(&self, turn: &str, index: usize) -> Option<Span> {
        let name = NAMES.get(index)?;
        let at = turn.find(name)?;
        let next = NAMES.get(index + 1).and_then(|next| turn.find(next)).unwrap_or(turn.len());
        let id = IDS.get(index).and_then(|id| turn.get(..next)?.find(id));
        let is_before = |id: &usize| *id < at && !turn.get(*id..at).is_some_and(|text| text.contains('\n'));
        let after_name = at + name.len();
        let after_id = id.filter(|id| *id > at).map_or(after_name, |id| id + IDS.get(index).map_or(0, |id| id.len()));
        let rest = turn.get(after_id..next)?;
        // A JSON object, empty or not.
        let object = self.first_object(rest, |_, _| true).map(|(span, _)| after_id + span.end);
        let last_value = match index {
            0 => rest.find(NUMBER).map(|at| after_id + at + NUMBER.len()),
            1 => rest.find(VALUES[1]).map(|at| after_id + at + VALUES[1].len()),
            _ => Some(after_id),
        };
        Some(Span { start: id.filter(is_before).unwrap_or(at), end: object.or(last_value)? })
    }
}

/// The keys of a call in a JSON object.
fn object_format(value: &Value) -> Option<CallObject> {
    let outer = value.as_object()?;
    let key_of = |object: &Map<String, Value>, is: &dyn Fn(&Value) -> bool| {
        object.iter().position(|(_, value)| is(value)).and_then(|at| Some((at, object.keys().nth(at)?.clone())))
    };
    let is_name = |value: &Value| value == NAMES[0];
    let has_key = |value: &Value| value.get(KEYS[0]).is_some();
    if outer.contains_key(NAMES[0]) {
        return Some(CallObject::default());
    }
    let (wrapper, inner) = match key_of(outer, &is_name) {
        Some(_) => (None, outer),
        None => {
            let (key, inner) = outer.iter().find_map(|(key, value)| Some((key, value.as_object()?)))?;
            (Some(key.clone()), inner)
        }
    };
    let (name_at, name) = key_of(inner, &is_name)?;
    let (arguments_at, arguments) = key_of(inner, &has_key)?;
    // Some templates print the number of the call.
    let is_id = |value: &Value| value == IDS[0] || value == "0" || value == 0;
    let id = key_of(outer, &is_id).filter(|(_, key)| key.contains("id")).map(|(at, key)| (key, at == 0));
    Some(CallObject {
        name: Some(name),
        arguments,
        id,
        wrapper,
        arguments_first: arguments_at < name_at,
        may_have_type: false,
    })
}

/// The parts of calls with arguments between tags, and the text with which a call ends. The first call has two arguments, the second has
/// one, the third has none. `prints_python`: see [`Tags`].
fn tagged_parts(turn: &str, spans: &[Span], prints_python: bool) -> Option<(Vec<CallPart>, String)> {
    let [first, second, third] = spans else { return None };
    let one = turn.get(first.start..second.start)?;
    let [key_a, key_b, key_c] = KEYS;
    let [value_a, value_c] = VALUES;
    let between = |text: &str, from: &str, to: &str| -> Option<String> {
        let start = text.find(from)? + from.len();
        let rest = text.get(start..)?;
        Some(rest.get(..rest.find(to)?)?.to_owned())
    };
    let to_first = between(one, NAMES[0], key_a)?;
    let open_text = between(one, key_a, value_a)?;
    let to_second = between(one, value_a, key_b)?;
    let open_number = between(one, key_b, NUMBER)?;
    let after_last = one.get(one.find(NUMBER)? + NUMBER.len()..)?;
    let two = turn.get(second.start..third.start)?;
    let open_again = between(two, key_c, value_c)?;
    if open_again != open_text {
        return None;
    }
    let n_before = common_suffix(&to_first, &to_second);
    let before_key = to_first.get(on_to_tag(&to_first, to_first.len() - n_before)..)?.trim_start();
    let after_name = to_first.strip_suffix(before_key)?;
    let to_second = to_second.strip_suffix(before_key)?;
    let n_close = common_prefix(to_second, after_last);
    let close = to_second.get(..back_to_tag(to_second, n_close))?.trim_end();
    let gap = to_second.strip_prefix(close)?;
    // The end of a call without arguments.
    let bare_rest = turn.get(third.end..)?.strip_prefix(after_name.trim_end())?;
    let with_rest = after_last.strip_prefix(close)?;
    let tail = tail_of(with_rest, bare_rest)?;
    // Space before the tail belongs to each argument, if it is between two arguments too.
    let n_space = with_rest.len() - with_rest.trim_start().len();
    let space = with_rest.get(..n_space)?;
    let bare_space = bare_rest.get(..bare_rest.len() - bare_rest.trim_start().len())?;
    let name_space = after_name.get(after_name.trim_end().len()..)?;
    let own_space = bare_space.strip_prefix(name_space).unwrap_or_default();
    let (close, separator, tail) = if gap == space && own_space.is_empty() {
        (format!("{close}{gap}"), String::new(), tail.to_owned())
    } else {
        (close.to_owned(), gap.to_owned(), format!("{}{tail}", if own_space.is_empty() { "" } else { space }))
    };
    let by_schema = |open: &str, kind| TaggedValue { open: open.to_owned(), close: close.clone(), kind };
    let values = match open_text == open_number {
        true => vec![by_schema(&open_text, TagKind::BySchema)],
        false => vec![by_schema(&open_text, TagKind::Text), by_schema(&open_number, TagKind::Json(""))],
    };
    let tags = Tags { before_key: before_key.to_owned(), values, separator, prints_python, ..Tags::default() };
    let mut parts = vec![CallPart::Name];
    push_text(&mut parts, after_name);
    parts.push(CallPart::Arguments(CallArguments::Tags(tags)));
    parts.push(CallPart::Text(tail.clone()));
    Some((parts, tail))
}

/// The text with which a call ends after its arguments, from the texts after one with and one without arguments.
fn tail_of<'a>(with: &'a str, without: &str) -> Option<&'a str> {
    let (with, without) = (with.trim_start(), without.trim_start());
    let n = back_to_tag(with, common_prefix(with, without));
    with.get(..n).map(str::trim_end).filter(|tail| !tail.is_empty())
}

/// The length of the longest common beginning.
pub(crate) fn common_prefix(one: &str, other: &str) -> usize {
    let n = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    floor(one, n)
}

/// The length of the longest common end.
fn common_suffix(one: &str, other: &str) -> usize {
    let mut n = one.bytes().rev().zip(other.bytes().rev()).take_while(|(one, other)| one == other).count();
    while !one.is_char_boundary(one.len() - n) {
        n -= 1;
    }
    n
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The place, moved back to before a tag that it is inside of.
fn back_to_tag(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    match before.rfind(['<', '[']) {
        Some(open) => {
            let end = if before.get(open..).unwrap_or_default().starts_with('<') { '>' } else { ']' };
            let is_tag = before.get(open..).is_some_and(|rest| !rest.contains(end));
            let continues = end == '>' || text.get(open..).is_some_and(|rest| rest.contains(end));
            if is_tag && continues { open } else { at }
        }
        None => at,
    }
}

/// The place, moved on to behind a tag that it is inside of.
fn on_to_tag(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let (close, open) = (rest.find('>'), rest.find('<').unwrap_or(rest.len()));
    match close {
        Some(close) if close < open => at + close + 1,
        _ => at,
    }
}

pub(crate) fn after<'a>(text: &'a str, word: &str) -> &'a str {
    text.rsplit_once(word).map_or(text, |(_, rest)| rest)
}

/// The last tag of a text: `<...>` or `[...]`.
fn last_tag(text: &str) -> Option<&str> {
    let text = text.trim_end();
    let open = match text.chars().last()? {
        '>' => text.rfind('<')?,
        ']' => text.rfind('[')?,
        _ => return None,
    };
    text.get(open..)
}

/// The first tag of a text.
fn first_tag(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = match text.chars().next()? {
        '<' => text.find('>')?,
        '[' => text.find(']')?,
        _ => return None,
    };
    text.get(..=end)
}
