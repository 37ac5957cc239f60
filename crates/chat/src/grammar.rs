//! The grammar of a turn: which calls, or which document, a model may write.

use foredraft_base::error::Result;
use foredraft_schema::{ArgumentKind, CompileOptions, Rules, Schema, Unenforced, each_once, text_until};
use serde_json::Value;

use crate::elements::ITEM;
use crate::format::{CallArguments, CallObject, CallPart, ChatFormat, KEY, TagKind, TaggedValue, Tags, TurnStart};
use crate::tool::Tool;
use crate::value::{GEMMA_QUOTE, overlap};

/// Space in JSON.
const SPACE: &str = "(\" \" | \"\\n\"{1,2} [ \\t]{0,20})?";
/// Arguments come in any order, and what a grammar cannot enforce is reported.
const ANY_ORDER: CompileOptions = CompileOptions { drop_unenforceable: true, any_order: true, python: false };
/// Any value in Gemma's notation.
const GEMMA_NUMBER: &str = "\"-\"? (\"0\" | [1-9] [0-9]{0,15}) (\".\" [0-9]{1,15})? ([eE] [+-]? [0-9]{1,3})?";

/// The parts that a turn must or may have.
#[derive(Debug, Clone, Copy, Default)]
pub struct TurnRequest<'a> {
    /// The tools that can be called.
    pub tools: &'a [Tool],
    /// A tool must be called.
    pub is_required: bool,
    /// There can be several calls.
    pub parallel: bool,
    /// The content is a document of this schema.
    pub document: Option<&'a Schema>,
}

/// The grammar of a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnGrammar {
    /// GBNF.
    pub text: String,
    /// The texts from which on the grammar applies. None: it applies from the beginning of the completion.
    pub triggers: Vec<TurnTrigger>,
    /// The turn begins inside of reasoning, and the grammar applies when that ends, or from a trigger inside of it on. A turn does not end before.
    pub is_behind_reasoning: bool,
    /// The keywords of schemas that the grammar does not enforce, each with the name of the tool; no name: of the document.
    pub unenforced: Vec<(Option<String>, Unenforced)>,
}

/// A text from which on a grammar applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnTrigger {
    /// A text that occurs anywhere outside of reasoning.
    Word(String),
    /// A text at the beginning of the completion, after reasoning and white space.
    Beginning(String),
}

impl ChatFormat {
    /// The grammar of a turn after a prompt that ends with `start`. `None`: anything may be written.
    ///
    /// # Errors
    /// `invalid_request`: a schema has no valid values, or the grammar would be too large.
    pub fn grammar(&self, request: &TurnRequest, start: &TurnStart) -> Result<Option<TurnGrammar>> {
        let mut writer = GrammarWriter::default();
        let has_calls = !request.tools.is_empty() && !self.calls.is_empty();
        if !has_calls && request.document.is_none() {
            return Ok(None);
        }
        let calls = match has_calls {
            true => Some(self.calls_rule(request, start, &mut writer)?),
            false => None,
        };
        if let (Some(calls), false, None) = (&calls, request.is_required, request.document) {
            let triggers = self.triggers(request.tools, start);
            let text = writer.rules.to_gbnf(calls);
            let unenforced = writer.unenforced;
            return Ok(Some(TurnGrammar { text, triggers, is_behind_reasoning: false, unenforced }));
        }
        let document = match request.document.filter(|_| !(request.is_required && has_calls)) {
            Some(schema) => Some(self.document_rule(schema, start, &mut writer)?),
            None => None,
        };
        let is_behind_reasoning = self.opens_reasoning(start);
        let triggers = if is_behind_reasoning && has_calls { self.triggers(request.tools, start) } else { Vec::new() };
        let root = self.root(calls, document, start, &mut writer);
        let text = writer.rules.to_gbnf(&root);
        Ok(Some(TurnGrammar { text, triggers, is_behind_reasoning, unenforced: writer.unenforced }))
    }

    /// A turn with calls or a document, with reasoning before it.
    fn root(
        &self,
        calls: Option<String>,
        document: Option<String>,
        start: &TurnStart,
        writer: &mut GrammarWriter,
    ) -> String {
        // Calls that nothing surrounds begin at once, or a model could write space for ever.
        let is_bare = self.calls.iter().all(|calls| calls.is_anchored && calls.begin.is_empty());
        let has_gap = self.reasoning.is_some() || !is_bare;
        let rest = |rule: Option<String>, before: &str| {
            let gap = if has_gap { gap(before) } else { String::new() };
            rule.map(|rule| format!("{gap} {rule}"))
        };
        let after: Vec<String> =
            [rest(calls.clone(), &self.before_calls), rest(document.clone(), &self.before_content)]
                .into_iter()
                .flatten()
                .collect();
        let after = writer.rules.add("answer", after.join(" | "));
        let Some(block) = self.reasoning.as_ref().filter(|_| !self.opens_reasoning(start)) else { return after };
        let ends = self.reasoning_ends();
        let thought = text_until(&ends.iter().map(String::as_str).collect::<Vec<_>>(), &mut writer.rules);
        let end = literal(block.end().trim());
        if self.is_reasoning(start) {
            return format!("{thought} {end} {after}");
        }
        let is_over = block.ends.iter().any(|end| start.opened.contains(end.trim()));
        if is_over {
            return after;
        }
        // Some templates print the end alone where there is no reasoning.
        format!("[ \\n]{{0,4}} (({} {thought})? {end})? {after}", literal(block.begin().trim()))
    }

    /// The content's block with a document.
    fn document_rule(&self, schema: &Schema, start: &TurnStart, writer: &mut GrammarWriter) -> Result<String> {
        let options = CompileOptions::default();
        let compiled = schema.compile(&options, &mut writer.rules)?;
        writer.unenforced.extend(compiled.unenforced.into_iter().map(|it| (None, it)));
        let block = self.content.clone().unwrap_or_default();
        // The prompt can have the beginning already, or a part of it.
        let begin = block.begin();
        let opened = start.opened.as_str();
        let n_open = if opened.ends_with(begin) { begin.len() } else { overlap(opened, begin) };
        let begin = begin.get(n_open..).filter(|rest| !rest.trim().is_empty()).unwrap_or_default();
        Ok(format!("{} {} {}", literal(begin), compiled.rule, optional(block.end())))
    }

    /// The texts from which on calls are written.
    fn triggers(&self, tools: &[Tool], start: &TurnStart) -> Vec<TurnTrigger> {
        let mut triggers = Vec::new();
        for (calls, trigger) in
            self.calls.iter().flat_map(|calls| calls.triggers().into_iter().map(move |it| (calls, it)))
        {
            // Content and reasoning can begin with the same text. Then the tool's name belongs to the trigger.
            let blocks = [&self.content, &self.reasoning].into_iter().flatten();
            let is_shared = blocks.flat_map(|block| &block.begins).any(|begin| begin.starts_with(trigger.as_str()));
            let words: Vec<String> = match (is_shared, calls.call.get(2)) {
                (true, Some(CallPart::Text(after))) => {
                    tools.iter().map(|tool| format!("{trigger}{}{after}", tool.name)).collect()
                }
                _ => vec![trigger.clone()],
            };
            for word in words {
                if let Some(rest) = word.strip_prefix(trigger.as_str()).filter(|_| is_open(&trigger, start)) {
                    triggers.push(TurnTrigger::Beginning(rest.to_owned()));
                }
                triggers.push(match calls.is_anchored {
                    true => TurnTrigger::Beginning(word),
                    false => TurnTrigger::Word(word),
                });
            }
        }
        triggers.retain(|trigger| !matches!(trigger, TurnTrigger::Beginning(text) if text.is_empty()));
        triggers
    }

    /// All ways to write calls.
    fn calls_rule(&self, request: &TurnRequest, start: &TurnStart, writer: &mut GrammarWriter) -> Result<String> {
        let mut ways = Vec::new();
        for calls in &self.calls {
            let head = match calls.call.first() {
                Some(CallPart::Text(text)) => text.as_str(),
                _ => "",
            };
            let mut alternatives = Vec::with_capacity(request.tools.len());
            for tool in request.tools {
                let skipped = usize::from(!head.is_empty());
                let parts = calls.call.iter().skip(skipped);
                alternatives.push(writer.call(parts, tool)?);
            }
            let one = writer.rules.add("tool", alternatives.join(" | "));
            let mut head_literal = literal(head);
            let several = request.parallel && !calls.is_single;
            let another = format!("{} {head_literal} {one}", literal(&calls.separator));
            let mut begin = literal(&calls.begin);
            // The prompt can have the beginning already.
            if calls.triggers().iter().any(|trigger| is_open(trigger, start)) {
                if calls.begin.is_empty() {
                    head_literal = format!("{head_literal}?");
                } else {
                    begin = format!("{begin}?");
                }
            }
            let more = match several {
                true => format!("({another})*"),
                false => String::new(),
            };
            let end = if calls.end_is_optional { optional(&calls.end) } else { literal(&calls.end) };
            ways.push(format!("{begin} {head_literal} {one} {more} {end}"));
        }
        let calls = writer.rules.add("calls", ways.join(" | "));
        Ok(format!("{calls} {}", optional(&self.turn_end)))
    }
}

/// Whether the prompt ends with this text.
fn is_open(trigger: &str, start: &TurnStart) -> bool {
    !trigger.is_empty() && start.opened.ends_with(trigger)
}

/// A text between parts: exactly it, or white space that is like it.
fn gap(text: &str) -> String {
    if text.trim().is_empty() { "[ \\n]{0,4}".to_owned() } else { format!("({})?", literal(text)) }
}

fn optional(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("({})?", literal(text)) }
}

/// A literal that matches exactly `text`; nothing for an empty one.
fn literal(text: &str) -> String {
    if text.is_empty() { String::new() } else { foredraft_schema::literal(text) }
}

/// Writes the rules of calls.
#[derive(Default)]
struct GrammarWriter {
    rules: Rules,
    /// The rule for any value in Gemma's notation.
    gemma_any: Option<String>,
    unenforced: Vec<(Option<String>, Unenforced)>,
}

impl GrammarWriter {
    fn note(&mut self, tool: &Tool, unenforced: impl IntoIterator<Item = Unenforced>) {
        for keyword in unenforced {
            let noted = (Some(tool.name.clone()), keyword);
            if !self.unenforced.contains(&noted) {
                self.unenforced.push(noted);
            }
        }
    }

    fn call<'a>(&mut self, parts: impl Iterator<Item = &'a CallPart>, tool: &Tool) -> Result<String> {
        let parts: Vec<&CallPart> = parts.collect();
        let mut out = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            out.push(match part {
                CallPart::Text(text) => literal(text),
                CallPart::AnyText(texts) => {
                    let forms: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                    format!("({})", forms.join(" | "))
                }
                CallPart::Name => literal(&tool.name),
                CallPart::Id => "[a-zA-Z0-9] [a-zA-Z0-9_.:-]{0,63}".to_owned(),
                CallPart::Number => "[0-9]{1,4}".to_owned(),
                CallPart::NumberedName { prefix, separator } => {
                    format!("{} [0-9]{{1,4}}", literal(&format!("{prefix}{}{separator}", tool.name)))
                }
                CallPart::Object(object) => self.object(object, tool)?,
                CallPart::Arguments(CallArguments::Json) => self.json(tool)?,
                CallPart::Arguments(CallArguments::Gemma) => self.gemma_object(&tool.schema, &tool.raw, tool)?,
                CallPart::Arguments(CallArguments::Tags(tags)) => {
                    let tail = match parts.get(index + 1) {
                        Some(CallPart::Text(text)) => text.as_str(),
                        _ => "",
                    };
                    self.tags(tags, tail, tool)?
                }
            });
        }
        Ok(out.join(" "))
    }

    fn json(&mut self, tool: &Tool) -> Result<String> {
        let compiled = tool.schema.compile(&ANY_ORDER, &mut self.rules)?;
        self.note(tool, compiled.unenforced);
        Ok(compiled.rule)
    }

    fn object(&mut self, object: &CallObject, tool: &Tool) -> Result<String> {
        let arguments = self.json(tool)?;
        let space = self.rules.add("space", SPACE);
        let key = |key: &str| format!("{} {space} \":\" {space}", literal(&Value::from(key).to_string()));
        let Some(name) = &object.name else {
            return Ok(format!("\"{{\" {space} {} {arguments} {space} \"}}\"", key(&tool.name)));
        };
        let mut fields = vec![format!("{} {}", key(name), literal(&Value::from(tool.name.as_str()).to_string()))];
        fields.push(format!("{} {arguments}", key(&object.arguments)));
        if object.arguments_first {
            fields.reverse();
        }
        let comma = format!(" {space} \",\" {space} ");
        let wrapped = |inner: String| format!("\"{{\" {space} {inner} {space} \"}}\"");
        let kind = format!("({} \"\\\"function\\\"\"{comma})?", key("type"));
        let mut outer = match &object.wrapper {
            Some(wrapper) => vec![format!("{} {}", key(wrapper), wrapped(fields.join(&comma)))],
            None => fields,
        };
        if let Some((id, is_first)) = &object.id {
            let id = format!("{} \"\\\"\" [a-zA-Z0-9] [a-zA-Z0-9_.:-]{{0,63}} \"\\\"\"", key(id));
            outer.insert(if *is_first { 0 } else { outer.len() }, id);
        }
        let fields = outer.join(&comma);
        Ok(wrapped(if object.may_have_type { format!("{kind} {fields}") } else { fields }))
    }

    /// Arguments one by one, each once.
    fn tags(&mut self, tags: &Tags, tail: &str, tool: &Tool) -> Result<String> {
        let mut items = Vec::new();
        for property in &tool.parameters.properties {
            let name = property.name.as_str();
            let argument = self.tagged(tags, tail, tool, name, &literal(name), &property.schema)?;
            items.push((self.rules.add(&format!("argument-{name}"), argument), property.is_required));
        }
        self.note(tool, tool.parameters.unenforced.clone());
        let separator = literal(&tags.separator);
        if let (true, Some(additional)) = (items.is_empty(), &tool.parameters.additional) {
            // Any names. That each comes once is not enforced.
            let item = self.tagged(tags, tail, tool, "", "[a-zA-Z0-9_-]{1,64}", additional)?;
            let item = self.rules.add("argument", item);
            return Ok(format!("({item} ({separator} {item})*)?"));
        }
        Ok(each_once(&items, &separator, &mut self.rules))
    }

    fn tagged(
        &mut self,
        tags: &Tags,
        tail: &str,
        tool: &Tool,
        name: &str,
        key: &str,
        schema: &Schema,
    ) -> Result<String> {
        let options = CompileOptions { python: tags.prints_python, ..ANY_ORDER };
        let before = literal(&tags.before_key);
        let mut forms = Vec::new();
        if tags.is_python {
            let Some(TaggedValue { open, close, .. }) = tags.values.first() else { return Ok(String::new()) };
            let value = self.python(schema, tool)?;
            return Ok(format!("{before} {key} {} {value} {}", literal(open), literal(close)));
        }
        for value in &tags.values {
            let close = value.close.replace(KEY, name);
            let core = if close.trim().is_empty() { tail.trim() } else { close.trim() };
            let argument = schema.compile_argument(&[core], &options, &mut self.rules)?;
            let rule = match (value.kind, argument.kind) {
                (TagKind::BySchema, ArgumentKind::Json) if tags.has_elements => {
                    self.elements(tags, &close, schema, raw_of(tool, name).unwrap_or(&Value::Null), tool)?
                }
                (TagKind::BySchema, _) => with_python_flags(argument.rule, raw_of(tool, name)),
                (TagKind::Text, ArgumentKind::Text) => argument.rule,
                (TagKind::Text, ArgumentKind::Json) | (TagKind::Json(_), ArgumentKind::Text) => continue,
                (TagKind::Text, ArgumentKind::Either) => text_until(&[core], &mut self.rules),
                (TagKind::Json(kind), _) if !kind.is_empty() && !may_be(kind, raw_of(tool, name)) => {
                    continue;
                }
                (TagKind::Json(_), ArgumentKind::Json | ArgumentKind::Either) => {
                    schema.compile(&ANY_ORDER, &mut self.rules)?.rule
                }
            };
            self.note(tool, argument.unenforced);
            forms.push(format!("{} {rule} {}", literal(&value.open), literal(&close)));
        }
        Ok(format!("{before} {key} ({})", forms.join(" | ")))
    }

    /// A literal of Python or JSON. The text of a string in single quotes has no escapes, except inside of objects and arrays.
    fn python(&mut self, schema: &Schema, tool: &Tool) -> Result<String> {
        let json = schema.compile(&ANY_ORDER, &mut self.rules)?;
        let values = schema.compile_values(&CompileOptions { python: true, ..ANY_ORDER }, &mut self.rules)?;
        let argument = schema.compile_argument(&["'"], &ANY_ORDER, &mut self.rules)?;
        let text = match argument.kind {
            ArgumentKind::Text => Some(argument.rule),
            ArgumentKind::Either => Some(text_until(&["'"], &mut self.rules)),
            ArgumentKind::Json => None,
        };
        self.note(tool, json.unenforced);
        let text = text.map(|text| format!("\"'\" {text} \"'\""));
        let forms: Vec<String> =
            [Some(json.rule), values.map(|values| values.rule), text].into_iter().flatten().collect();
        Ok(format!("({})", forms.join(" | ")))
    }

    /// An object or array as elements, or another value as JSON. `close`: the end of the element around it. Without a schema for its parts,
    /// an object or array is any text.
    fn elements(&mut self, tags: &Tags, close: &str, schema: &Schema, raw: &Value, tool: &Tool) -> Result<String> {
        let element = |name: &str, value: &str| {
            let open = literal(&format!("{}{name}>", tags.before_key));
            format!("{open} {value} {}", literal(&format!("{}/{name}>", tags.before_key)))
        };
        let close_of = |name: &str| format!("{}/{name}>", tags.before_key);
        match (declared_type(raw), raw.get("properties"), raw.get("items")) {
            (Some("object"), Some(properties), _) => {
                let parameters = schema.parameters()?;
                let mut items = Vec::new();
                for property in &parameters.properties {
                    let raw = properties.get(&property.name).unwrap_or(&Value::Null);
                    let value = self.elements(tags, &close_of(&property.name), &property.schema, raw, tool)?;
                    let item = element(&property.name, &value);
                    items.push((self.rules.add(&format!("element-{}", property.name), item), property.is_required));
                }
                self.note(tool, parameters.unenforced);
                Ok(each_once(&items, "", &mut self.rules))
            }
            (Some("array"), _, Some(items)) if declared_type(items).is_some() => {
                let value = self.elements(tags, &close_of(ITEM), &schema.own_part(items)?, items, tool)?;
                let item = self.rules.add("item", element(ITEM, &value));
                Ok(format!("{item}*"))
            }
            (Some("object" | "array"), _, _) => Ok(text_until(&[close.trim()], &mut self.rules)),
            _ => {
                let argument = schema.compile_argument(&[close.trim()], &ANY_ORDER, &mut self.rules)?;
                self.note(tool, argument.unenforced);
                Ok(argument.rule)
            }
        }
    }

    /// An object in Gemma's notation. `raw`: the schema as it was given, without references.
    fn gemma_object(&mut self, schema: &Schema, raw: &Value, tool: &Tool) -> Result<String> {
        let parameters = schema.parameters()?;
        let mut items = Vec::new();
        for property in &parameters.properties {
            let raw = raw.get("properties").and_then(|raw| raw.get(&property.name)).unwrap_or(&Value::Null);
            let value = self.gemma_value(&property.schema, raw, tool)?;
            let item = format!("{} {value}", literal(&format!("{}:", property.name)));
            items.push((self.rules.add(&format!("argument-{}", property.name), item), property.is_required));
        }
        self.note(tool, parameters.unenforced);
        Ok(format!("\"{{\" {} \"}}\"", each_once(&items, "\",\"", &mut self.rules)))
    }

    /// A value in Gemma's notation. Numbers, constants, texts, and objects and arrays of these obey the schema; others are any value.
    fn gemma_value(&mut self, schema: &Schema, raw: &Value, tool: &Tool) -> Result<String> {
        let argument = schema.compile_argument(&[GEMMA_QUOTE], &ANY_ORDER, &mut self.rules)?;
        let quote = literal(GEMMA_QUOTE);
        let value = match (argument.kind, declared_type(raw)) {
            (ArgumentKind::Text, _) => format!("{quote} {} {quote}", argument.rule),
            (_, Some("integer" | "number" | "boolean" | "null")) => argument.rule,
            (_, Some("object")) if raw.get("properties").is_some() => self.gemma_object(schema, raw, tool)?,
            (_, Some("array")) if raw.get("items").is_some_and(|items| declared_type(items).is_some()) => {
                let items = raw.get("items").unwrap_or(&Value::Null);
                let item = self.gemma_value(&schema.own_part(items)?, items, tool)?;
                let item = self.rules.add("item", item);
                format!("\"[\" ({item} (\",\" {item})*)? \"]\"")
            }
            _ => self.gemma_any(),
        };
        self.note(tool, argument.unenforced);
        Ok(value)
    }

    /// Any value in Gemma's notation.
    fn gemma_any(&mut self) -> String {
        if let Some(rule) = &self.gemma_any {
            return rule.clone();
        }
        let text = text_until(&[GEMMA_QUOTE], &mut self.rules);
        let quote = literal(GEMMA_QUOTE);
        let any = self.rules.declare("gemma-value");
        let body = format!(
            "{quote} {text} {quote} | {GEMMA_NUMBER} | \"true\" | \"false\" | \"null\" | \"[\" ({any} (\",\" {any})*)? \"]\" \
             | \"{{\" ([a-zA-Z0-9_-]+ \":\" {any} (\",\" [a-zA-Z0-9_-]+ \":\" {any})*)? \"}}\""
        );
        self.rules.define(&any, body);
        self.gemma_any = Some(any.clone());
        any
    }
}

/// The schema of a parameter as it was given.
fn raw_of<'a>(tool: &'a Tool, parameter: &str) -> Option<&'a Value> {
    tool.raw.get("properties").and_then(|properties| properties.get(parameter))
}

/// A value between tags. Many templates print Python's constants there.
fn with_python_flags(rule: String, raw: Option<&Value>) -> String {
    match raw.and_then(declared_type) {
        Some("boolean") => format!("({rule} | \"True\" | \"False\")"),
        _ => rule,
    }
}

/// Whether values of a schema may have this type, as far as its own keyword `type` says.
fn may_be(kind: &str, raw: Option<&Value>) -> bool {
    raw.and_then(declared_type).is_none_or(|declared| declared == kind || declared == "integer" && kind == "number")
}

/// The type of a schema that has no references and no alternatives.
fn declared_type(raw: &Value) -> Option<&str> {
    let is_plain = ["$ref", "anyOf", "oneOf", "allOf", "enum", "const"].iter().all(|key| raw.get(key).is_none());
    raw.get("type").and_then(Value::as_str).filter(|_| is_plain)
}
