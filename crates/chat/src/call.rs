//! Reads one call, piece by piece.

use std::collections::HashSet;

use foredraft_schema::ArgumentKind;
use serde_json::Value;

use crate::elements;
use crate::format::{CallArguments, CallObject, CallPart, Calls, KEY, TagKind, TaggedValue, Tags};
use crate::scan::{TextMatch, compare};
use crate::tool::Tool;
use crate::value::{Scan, ValueNotation, ValueScanner, escape, overlap};

/// The longest id, or name of an argument, in bytes.
const MAX_NAME: usize = 512;
/// The longest value in bytes that is read as a whole, because its schema allows both strings and other values.
const MAX_EITHER: usize = 16 << 20;

/// A call that is being read.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallReader {
    /// The index of the part that comes next.
    part: usize,
    state: PartState,
    /// The tool, once its name was read.
    pub(crate) tool: Option<usize>,
    pub(crate) id: String,
    pub(crate) arguments: String,
    /// The id is known, or does not come before the arguments.
    has_id: bool,
    /// The index of the part with the arguments.
    arguments_part: usize,
    /// The texts before the arguments have other space than the format's.
    has_other_space: bool,
}

#[derive(Debug, Clone, Default)]
enum PartState {
    #[default]
    New,
    Value(ValueScanner),
    Object(ObjectState),
    Tags(TagsState),
}

/// The state of a call in a JSON object.
#[derive(Debug, Clone)]
struct ObjectState {
    expect: ObjectExpect,
    /// The objects that are open: one, or two with a wrapper.
    depth: usize,
    has_arguments: bool,
}

#[derive(Debug, Clone)]
enum ObjectExpect {
    Open,
    KeyOrEnd,
    Colon(ObjectField),
    Value(ObjectField),
    /// A value whose text is collected or passed on.
    Scanning(ObjectField, ValueScanner, String),
    CommaOrEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectField {
    Name,
    Arguments,
    Id,
    Wrapper,
    Other,
}

/// The state of arguments between tags.
#[derive(Debug, Clone, Default)]
struct TagsState {
    seen: HashSet<String>,
    expect: TagsExpect,
}

#[derive(Debug, Clone, Default)]
enum TagsExpect {
    /// Another argument, or the end.
    #[default]
    Argument,
    Key,
    /// A value as text. `close`: the text after it.
    Text {
        close: String,
        is_first: bool,
    },
    /// A value that is text or JSON.
    Either {
        close: String,
        key: String,
        text: String,
    },
    Json {
        close: String,
        scanner: ValueScanner,
    },
    Close(String),
}

/// The result of reading a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// These bytes were read.
    Read(usize),
    /// More text is needed.
    More,
    /// The call is complete.
    Done,
    /// The text is no call.
    Bad,
}

impl From<TextMatch> for Progress {
    fn from(comparison: TextMatch) -> Progress {
        match comparison {
            TextMatch::Full(n) => Progress::Read(n),
            TextMatch::Partial => Progress::More,
            TextMatch::No => Progress::Bad,
        }
    }
}

impl CallReader {
    pub(crate) fn new(calls: &Calls) -> CallReader {
        let id_comes_late = calls.call.iter().any(|part| match part {
            CallPart::Id | CallPart::NumberedName { .. } => true,
            CallPart::Object(object) => object.id.is_some(),
            _ => false,
        });
        let has_arguments = |part: &CallPart| matches!(part, CallPart::Object(_) | CallPart::Arguments(_));
        let arguments_part = calls.call.iter().position(has_arguments).unwrap_or_default();
        CallReader { has_id: !id_comes_late, arguments_part, ..CallReader::default() }
    }

    /// Whether a grammar makes sure of the call: the tool and the id are known, and everything before the arguments is as the grammar writes
    /// it. Otherwise the text can be none of those from which on the grammar applies.
    pub(crate) fn has_begun(&self) -> bool {
        self.part >= self.arguments_part && !self.has_other_space && self.has_id && self.tool.is_some()
    }

    /// Reads a piece of `text`.
    pub(crate) fn step(&mut self, calls: &Calls, tools: &[Tool], text: &str, is_final: bool) -> Progress {
        let Some(part) = calls.call.get(self.part) else { return Progress::Done };
        let next = calls.call.get(self.part + 1);
        let progress = match part {
            // The name is read; space before it belongs to the text around.
            CallPart::Text(expected) if self.tool.is_some() && expected.trim().is_empty() => {
                let is_same = text.starts_with(expected.as_str());
                let progress = match expected.starts_with(text) && !is_same {
                    true => Progress::More,
                    false => compare(expected, text).into(),
                };
                self.has_other_space |= matches!(progress, Progress::Read(_)) && !is_same;
                self.whole(progress)
            }
            CallPart::Text(expected) => self.whole(compare(expected, text).into()),
            CallPart::AnyText(texts) => {
                let progress = one_of(texts, text, is_final);
                self.whole(progress)
            }
            CallPart::Name => {
                let progress = self.name(tools, text, is_final);
                self.whole(progress)
            }
            CallPart::NumberedName { prefix, separator } => {
                let progress = self.numbered_name(prefix, separator, tools, text, is_final);
                self.whole(progress)
            }
            CallPart::Id => {
                let progress = self.bare_id(text, is_final);
                self.whole(progress)
            }
            CallPart::Number => {
                let progress = number(text, is_final);
                self.whole(progress)
            }
            CallPart::Object(object) => self.object(object, tools, text, is_final),
            CallPart::Arguments(CallArguments::Json) => self.value(ValueNotation::Json, text, is_final),
            CallPart::Arguments(CallArguments::Gemma) => self.value(ValueNotation::Gemma, text, is_final),
            CallPart::Arguments(CallArguments::Tags(tags)) => {
                let tail = match next {
                    Some(CallPart::Text(text)) => text.as_str(),
                    _ => "",
                };
                self.tags(tags, tail, tools, text, is_final)
            }
        };
        if is_final && progress == Progress::More { Progress::Bad } else { progress }
    }

    /// A part that is read in one piece.
    fn whole(&mut self, progress: Progress) -> Progress {
        if matches!(progress, Progress::Read(_)) {
            self.next_part();
        }
        progress
    }

    fn next_part(&mut self) {
        self.part += 1;
        self.state = PartState::New;
    }

    /// The name of a tool. A second time it must be the same.
    fn name(&mut self, tools: &[Tool], text: &str, is_final: bool) -> Progress {
        let trimmed = text.trim_start();
        let space = text.len() - trimmed.len();
        let named = |tool: &&(usize, &Tool)| trimmed.starts_with(tool.1.name.as_str());
        let candidates: Vec<(usize, &Tool)> = tools.iter().enumerate().collect();
        let best = candidates.iter().filter(named).max_by_key(|(_, tool)| tool.name.len());
        let may_grow = |tool: &(usize, &Tool)| tool.1.name.len() > trimmed.len() && tool.1.name.starts_with(trimmed);
        if !is_final && candidates.iter().any(may_grow) {
            return Progress::More;
        }
        let Some((index, tool)) = best else { return Progress::Bad };
        match trimmed.get(tool.name.len()..).and_then(|rest| rest.chars().next()) {
            None if !is_final => return Progress::More,
            Some(char) if char.is_alphanumeric() || "_-".contains(char) => return Progress::Bad,
            _ => {}
        }
        if self.tool.is_some_and(|known| known != *index) {
            return Progress::Bad;
        }
        self.tool = Some(*index);
        Progress::Read(space + tool.name.len())
    }

    fn bare_id(&mut self, text: &str, is_final: bool) -> Progress {
        let trimmed = text.trim_start();
        let space = text.len() - trimmed.len();
        let end = trimmed.find(|char: char| !(char.is_alphanumeric() || "_-.:".contains(char)));
        match end.or(is_final.then_some(trimmed.len())) {
            Some(end) => {
                self.id = trimmed.get(..end).unwrap_or_default().to_owned();
                self.has_id = true;
                Progress::Read(space + end)
            }
            None if trimmed.len() > MAX_NAME => Progress::Bad,
            None => Progress::More,
        }
    }

    fn numbered_name(&mut self, prefix: &str, separator: &str, tools: &[Tool], text: &str, is_final: bool) -> Progress {
        let rest = |at: usize| text.get(at..).unwrap_or_default();
        let at = match compare(prefix, text) {
            TextMatch::Full(at) => at,
            other => return other.into(),
        };
        let name_end = match self.name(tools, rest(at), is_final) {
            Progress::Read(n) => at + n,
            other => return other,
        };
        let digits = match compare(separator, rest(name_end)) {
            TextMatch::Full(n) => name_end + n,
            other => return other.into(),
        };
        let n_digits = match number(rest(digits), is_final) {
            Progress::Read(n) => n,
            other => return other,
        };
        let name = self.tool.and_then(|index| tools.get(index)).map_or("", |tool| tool.name.as_str());
        self.id = format!("{prefix}{name}{separator}{}", rest(digits).get(..n_digits).unwrap_or_default());
        self.has_id = true;
        Progress::Read(digits + n_digits)
    }

    /// Arguments as one value, which must be an object.
    fn value(&mut self, notation: ValueNotation, text: &str, is_final: bool) -> Progress {
        let mut scanner = match std::mem::take(&mut self.state) {
            PartState::Value(scanner) => scanner,
            _ => match text.trim_start().chars().next() {
                None => return Progress::More,
                Some('{') => ValueScanner::new(notation),
                Some(_) => return Progress::Bad,
            },
        };
        match scanner.scan(text, is_final, &mut self.arguments) {
            (n, Scan::Done) => {
                self.next_part();
                Progress::Read(n)
            }
            (0, Scan::Bad) => Progress::Bad,
            // Bad text is found again after the text that was read, so that the result does not depend on how the text was cut.
            (n, Scan::More | Scan::Bad) => {
                self.state = PartState::Value(scanner);
                if n > 0 { Progress::Read(n) } else { Progress::More }
            }
        }
    }

    fn object(&mut self, object: &CallObject, tools: &[Tool], text: &str, is_final: bool) -> Progress {
        let mut state = match std::mem::take(&mut self.state) {
            PartState::Object(state) => state,
            _ => ObjectState { expect: ObjectExpect::Open, depth: 0, has_arguments: false },
        };
        let progress = self.object_step(&mut state, object, tools, text, is_final);
        if state.depth > 0 || matches!(state.expect, ObjectExpect::Open) {
            self.state = PartState::Object(state);
            return progress;
        }
        if self.tool.is_none() {
            return Progress::Bad;
        }
        if !state.has_arguments {
            self.arguments.push_str("{}");
        }
        self.has_id = true;
        self.whole(progress)
    }

    fn object_step(
        &mut self,
        state: &mut ObjectState,
        object: &CallObject,
        tools: &[Tool],
        text: &str,
        is_final: bool,
    ) -> Progress {
        if let ObjectExpect::Scanning(field, scanner, collected) = &mut state.expect {
            let (field, mut other) = (*field, String::new());
            let out = match field {
                ObjectField::Arguments => &mut self.arguments,
                ObjectField::Name | ObjectField::Id => collected,
                _ => &mut other,
            };
            return match scanner.scan(text, is_final, out) {
                (0, Scan::Bad) => Progress::Bad,
                (0, Scan::More) => Progress::More,
                (n, Scan::More | Scan::Bad) => Progress::Read(n),
                (n, Scan::Done) => {
                    let collected = std::mem::take(collected);
                    state.expect = ObjectExpect::CommaOrEnd;
                    match field {
                        ObjectField::Name => {
                            let name: String = serde_json::from_str(&collected).unwrap_or_default();
                            self.tool = tools.iter().position(|tool| tool.name == name);
                            if self.tool.is_none() {
                                return Progress::Bad;
                            }
                        }
                        ObjectField::Id => {
                            let id: Option<String> = serde_json::from_str(&collected).ok();
                            self.id = id.unwrap_or(collected);
                            self.has_id = true;
                        }
                        _ => {}
                    }
                    Progress::Read(n)
                }
            };
        }
        let trimmed = text.trim_start();
        let space = text.len() - trimmed.len();
        let Some(first) = trimmed.chars().next() else { return Progress::More };
        let one = Progress::Read(space + first.len_utf8());
        match (&state.expect, first) {
            (ObjectExpect::Open, '{') => {
                state.depth += 1;
                state.expect = ObjectExpect::KeyOrEnd;
                one
            }
            (ObjectExpect::KeyOrEnd | ObjectExpect::CommaOrEnd, '}') => {
                state.depth -= 1;
                state.expect = ObjectExpect::CommaOrEnd;
                one
            }
            (ObjectExpect::CommaOrEnd, ',') => {
                state.expect = ObjectExpect::KeyOrEnd;
                one
            }
            (ObjectExpect::KeyOrEnd, '"') => {
                let Some(end) = trimmed.get(1..).and_then(|rest| rest.find('"')) else {
                    return if trimmed.len() > MAX_NAME { Progress::Bad } else { Progress::More };
                };
                let key = trimmed.get(1..=end).unwrap_or_default();
                let is = |name: &Option<String>| name.as_deref() == Some(key);
                let field = if is(&object.name) {
                    ObjectField::Name
                } else if object.name.is_none() {
                    self.tool = tools.iter().position(|tool| tool.name == key);
                    if self.tool.is_none() {
                        return Progress::Bad;
                    }
                    ObjectField::Arguments
                } else if key == object.arguments {
                    ObjectField::Arguments
                } else if object.id.as_ref().is_some_and(|(id, _)| id == key) {
                    ObjectField::Id
                } else if is(&object.wrapper) && state.depth == 1 {
                    ObjectField::Wrapper
                } else {
                    ObjectField::Other
                };
                if field == ObjectField::Arguments && std::mem::replace(&mut state.has_arguments, true) {
                    return Progress::Bad;
                }
                state.expect = ObjectExpect::Colon(field);
                Progress::Read(space + end + 2)
            }
            (ObjectExpect::Colon(field), ':') => {
                state.expect = ObjectExpect::Value(*field);
                one
            }
            (ObjectExpect::Value(ObjectField::Wrapper), '{') => {
                state.depth += 1;
                state.expect = ObjectExpect::KeyOrEnd;
                one
            }
            (ObjectExpect::Value(field), _) if *field != ObjectField::Arguments || first == '{' => {
                state.expect = ObjectExpect::Scanning(*field, ValueScanner::new(ValueNotation::Json), String::new());
                Progress::Read(space)
            }
            _ => Progress::Bad,
        }
    }

    fn tags(&mut self, tags: &Tags, tail: &str, tools: &[Tool], text: &str, is_final: bool) -> Progress {
        let mut state = match std::mem::take(&mut self.state) {
            PartState::Tags(state) => state,
            _ => TagsState::default(),
        };
        let Some(tool) = self.tool.and_then(|index| tools.get(index)) else { return Progress::Bad };
        let expect = std::mem::take(&mut state.expect);
        let (expect, progress) = match expect {
            TagsExpect::Argument => match self.next_argument(tags, tail, state.seen.is_empty(), text) {
                (true, progress) => (TagsExpect::Key, progress),
                (false, Progress::Done) => {
                    self.arguments.push_str(if state.seen.is_empty() { "{}" } else { "}" });
                    self.next_part();
                    return Progress::Read(0);
                }
                (false, progress) => (TagsExpect::Argument, progress),
            },
            TagsExpect::Key => self.tagged_key(tags, tool, &mut state.seen, text),
            TagsExpect::Text { close, is_first } => self.tagged_text(close, is_first, text),
            TagsExpect::Either { close, key, text: mut whole } => {
                let core = close.trim();
                match text.find(core).filter(|_| !core.is_empty()) {
                    Some(end) => {
                        whole.push_str(text.get(..end).unwrap_or_default());
                        let value = without_space(&whole, &close);
                        let raw = tool.raw.pointer("/properties").and_then(|properties| properties.get(&key));
                        let parameter = tool.parameter(&key);
                        let python = || python_container(value).filter(|_| tags.prints_python);
                        let read = match tags.has_elements {
                            true => elements::read(value, tags.before_key.trim(), raw.unwrap_or(&Value::Null)),
                            false => parameter.and_then(|it| {
                                let container = python().filter(|container| it.schema.is_valid(container));
                                container.or_else(|| it.schema.read_argument(it.kind, value))
                            }),
                        };
                        let Some(read) = read else { return Progress::Bad };
                        self.arguments.push_str(&read.to_string());
                        (TagsExpect::Argument, Progress::Read(end + core.len()))
                    }
                    None if whole.len() > MAX_EITHER => (TagsExpect::Argument, Progress::Bad),
                    None => {
                        let n = text.len() - overlap(text, core);
                        whole.push_str(text.get(..n).unwrap_or_default());
                        let progress = if n > 0 { Progress::Read(n) } else { Progress::More };
                        (TagsExpect::Either { close, key, text: whole }, progress)
                    }
                }
            }
            TagsExpect::Json { close, mut scanner } => match scanner.scan(text, is_final, &mut self.arguments) {
                (n, Scan::Done) => (TagsExpect::Close(close), Progress::Read(n)),
                (0, Scan::Bad) => (TagsExpect::Argument, Progress::Bad),
                (0, Scan::More) => (TagsExpect::Json { close, scanner }, Progress::More),
                (n, Scan::More | Scan::Bad) => (TagsExpect::Json { close, scanner }, Progress::Read(n)),
            },
            TagsExpect::Close(close) => match compare(&close, text) {
                TextMatch::Full(n) => (TagsExpect::Argument, Progress::Read(n)),
                other => (TagsExpect::Close(close), other.into()),
            },
        };
        state.expect = expect;
        self.state = PartState::Tags(state);
        progress
    }

    /// Whether another argument begins, and what was read. `Done`: the arguments end.
    fn next_argument(&self, tags: &Tags, tail: &str, is_first: bool, text: &str) -> (bool, Progress) {
        let begin = match is_first {
            true => tags.before_key.clone(),
            false => format!("{}{}", tags.separator, tags.before_key),
        };
        // The end comes first: before an argument there may be no text, or one with which the end begins.
        let has_tail = !tail.trim().is_empty();
        match compare(tail, text) {
            TextMatch::Full(_) if has_tail => return (false, Progress::Done),
            TextMatch::Partial => return (false, Progress::More),
            _ => {}
        }
        match compare(&begin, text) {
            TextMatch::Full(n) if has_tail || !begin.trim().is_empty() => (true, Progress::Read(n)),
            TextMatch::Partial => (false, Progress::More),
            TextMatch::No if has_tail => (false, Progress::Bad),
            TextMatch::Full(_) | TextMatch::No => (false, Progress::Done),
        }
    }

    /// The name of an argument, and the text between it and the value.
    fn tagged_key(
        &mut self,
        tags: &Tags,
        tool: &Tool,
        seen: &mut HashSet<String>,
        text: &str,
    ) -> (TagsExpect, Progress) {
        let bad = (TagsExpect::Argument, Progress::Bad);
        let mut opened: Option<(usize, usize, &TaggedValue)> = None;
        for (at, _) in text.char_indices() {
            let rest = text.get(at..).unwrap_or_default();
            for value in &tags.values {
                match compare(&value.open, rest) {
                    TextMatch::Full(n) if opened.is_none_or(|(_, best, _)| n > best) => opened = Some((at, n, value)),
                    TextMatch::Partial if !rest.trim().is_empty() => return (TagsExpect::Key, Progress::More),
                    _ => {}
                }
            }
            if opened.is_some() {
                break;
            }
        }
        let Some((end, n_open, value)) = opened else {
            return if text.len() > MAX_NAME { bad } else { (TagsExpect::Key, Progress::More) };
        };
        // The space after the opening text belongs to it, as far as the template prints it.
        let space = value.open.get(value.open.trim_end().len()..).unwrap_or_default();
        let rest = text.get(end + n_open..).unwrap_or_default();
        if !space.is_empty() && rest.is_empty() {
            return (TagsExpect::Key, Progress::More);
        }
        let key = text.get(..end).unwrap_or_default().trim();
        let Some(parameter) = tool.parameter(key) else { return bad };
        if !seen.insert(key.to_owned()) {
            return bad;
        }
        self.arguments.push_str(if seen.len() == 1 { "{\"" } else { ", \"" });
        escape(key, &mut self.arguments);
        self.arguments.push_str("\": ");
        let close: String = value.close.replace(KEY, key);
        let expect = match (value.kind, parameter.kind) {
            _ if tags.is_python => TagsExpect::Json { close, scanner: ValueScanner::new(ValueNotation::Python) },
            (TagKind::BySchema, ArgumentKind::Json) if tags.has_elements => {
                TagsExpect::Either { close, key: key.to_owned(), text: String::new() }
            }
            (TagKind::Text, _) | (TagKind::BySchema, ArgumentKind::Text) => TagsExpect::Text { close, is_first: true },
            (TagKind::Json(_), _) | (TagKind::BySchema, ArgumentKind::Json) => {
                TagsExpect::Json { close, scanner: ValueScanner::new(ValueNotation::Python) }
            }
            (TagKind::BySchema, ArgumentKind::Either) => {
                TagsExpect::Either { close, key: key.to_owned(), text: String::new() }
            }
        };
        let n_space = if rest.starts_with(space) { space.len() } else { 0 };
        (expect, Progress::Read(end + n_open + n_space))
    }

    /// A string without quotes.
    fn tagged_text(&mut self, close: String, is_first: bool, text: &str) -> (TagsExpect, Progress) {
        if is_first {
            self.arguments.push('"');
        }
        let core = close.trim();
        let space = close.get(..close.len() - close.trim_start().len()).unwrap_or_default();
        if let Some(end) = text.find(core).filter(|_| !core.is_empty()) {
            let value = text.get(..end).unwrap_or_default();
            escape(value.strip_suffix(space).unwrap_or(value), &mut self.arguments);
            self.arguments.push('"');
            return (TagsExpect::Argument, Progress::Read(end + core.len()));
        }
        let safe = text.get(..text.len() - overlap(text, core)).unwrap_or_default();
        // The space before the closing text does not belong to the value.
        let kept = if safe.ends_with(space) { space.len() } else { overlap(safe, space) };
        let safe = safe.get(..safe.len() - kept).unwrap_or_default();
        escape(safe, &mut self.arguments);
        let progress = if safe.is_empty() && !is_first { Progress::More } else { Progress::Read(safe.len()) };
        (TagsExpect::Text { close, is_first: false }, progress)
    }
}

/// The longest of these texts with which a text begins, once it is known.
fn one_of(texts: &[String], text: &str, is_final: bool) -> Progress {
    let mut best = Progress::Bad;
    for expected in texts {
        match (compare(expected, text), best) {
            (TextMatch::Partial, _) if !is_final => return Progress::More,
            (TextMatch::Full(n), Progress::Read(known)) if n <= known => {}
            (TextMatch::Full(n), _) => best = Progress::Read(n),
            _ => {}
        }
    }
    best
}

/// Digits, once their end is known.
fn number(text: &str, is_final: bool) -> Progress {
    let n_digits = text.bytes().take_while(u8::is_ascii_digit).count();
    match n_digits == text.len() && !is_final {
        true if n_digits > MAX_NAME => Progress::Bad,
        true => Progress::More,
        false => Progress::Read(n_digits),
    }
}

/// An object or array that is a literal of Python or JSON.
fn python_container(text: &str) -> Option<Value> {
    let mut json = String::new();
    match ValueScanner::new(ValueNotation::Python).scan(text, true, &mut json) {
        (end, Scan::Done) if end == text.len() && text.starts_with(['{', '[']) => serde_json::from_str(&json).ok(),
        _ => None,
    }
}

/// A value without the space that the template prints before the closing text.
fn without_space<'a>(value: &'a str, close: &str) -> &'a str {
    let space = close.get(..close.len() - close.trim_start().len()).unwrap_or_default();
    value.strip_suffix(space).unwrap_or(value)
}
