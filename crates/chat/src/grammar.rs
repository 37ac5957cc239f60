//! The grammar of a turn: which calls, or which document, a model may write.

use std::sync::Arc;

use foredraft_base::error::Result;
use foredraft_grammar::tree::{Each, NodeId, Tree};
use foredraft_schema::{ArgumentKind, CompileOptions, Notation, Schema, Unenforced, Values};
use serde_json::Value;

use crate::elements::ITEM;
use crate::format::{CallArguments, CallObject, CallPart, ChatFormat, KEY, TagKind, TaggedValue, Tags, TurnStart};
use crate::tool::Tool;
use crate::turn::{self, TurnGrammar, TurnRequest, TurnTrigger};
use crate::value::overlap;

/// Arguments come in any order, and what a grammar cannot enforce is reported.
const ANY_ORDER: CompileOptions =
    CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: false };

impl ChatFormat {
    /// The grammar of a turn after a prompt that ends with `start`. `None`: anything may be written.
    ///
    /// # Errors
    /// `invalid_request`: a schema has no valid values, or the grammar would be too large.
    pub fn grammar(&self, request: &TurnRequest, start: &TurnStart) -> Result<Option<TurnGrammar>> {
        if turn::is_described(self) {
            return turn::strict(self, request, start);
        }
        let mut writer = GrammarWriter::default();
        let has_calls = !request.tools.is_empty() && !self.calls.is_empty();
        if !has_calls && request.document.is_none() {
            return Ok(None);
        }
        let calls = match has_calls {
            true => Some(self.all_calls(request, start, &mut writer)?),
            false => None,
        };
        if let (Some(calls), false, None) = (&calls, request.is_required, request.document) {
            let triggers = self.triggers(request.tools, start);
            return Ok(Some(writer.grammar(*calls, triggers, false)));
        }
        let document = match request.document.filter(|_| !(request.is_required && has_calls)) {
            Some(schema) => Some(self.document(schema, start, &mut writer)?),
            None => None,
        };
        let is_behind_reasoning = self.opens_reasoning(start);
        let triggers = if is_behind_reasoning && has_calls { self.triggers(request.tools, start) } else { Vec::new() };
        let root = self.root(calls, document, start, &mut writer.tree);
        Ok(Some(writer.grammar(root, triggers, is_behind_reasoning)))
    }

    /// A turn with calls or a document, with reasoning before it.
    fn root(&self, calls: Option<NodeId>, document: Option<NodeId>, start: &TurnStart, tree: &mut Tree) -> NodeId {
        // Calls that nothing surrounds begin at once, or a model could write space for ever.
        let is_bare = self.calls.iter().all(|calls| calls.is_anchored && calls.begin.is_empty());
        let has_gap = self.reasoning.is_some() || !is_bare;
        let mut after = Vec::new();
        for (node, before) in [(calls, &self.before_calls), (document, &self.before_content)] {
            let Some(node) = node else { continue };
            let gap = if has_gap { gap(before, tree) } else { tree.empty() };
            after.push(tree.seq(&[gap, node]));
        }
        let after = tree.alt(&after);
        let Some(block) = self.reasoning.as_ref().filter(|_| !self.opens_reasoning(start)) else { return after };
        let ends = self.reasoning_ends();
        let thought = tree.until(&ends.iter().map(String::as_str).collect::<Vec<_>>());
        let end = tree.text(block.end().trim());
        if self.is_reasoning(start) {
            return tree.seq(&[thought, end, after]);
        }
        let is_over = block.ends.iter().any(|end| start.opened.contains(end.trim()));
        if is_over {
            return after;
        }
        // Some templates print the end alone where there is no reasoning.
        let (space, begin) = (space(tree), tree.text(block.begin().trim()));
        let thought = tree.seq(&[begin, thought]);
        let thought = tree.opt(thought);
        let reasoning = tree.seq(&[thought, end]);
        let reasoning = tree.opt(reasoning);
        tree.seq(&[space, reasoning, after])
    }

    /// The content's block with a document.
    fn document(&self, schema: &Schema, start: &TurnStart, writer: &mut GrammarWriter) -> Result<NodeId> {
        let tree = &mut writer.tree;
        let compiled = schema.compile(&CompileOptions::default(), tree)?;
        writer.unenforced.extend(compiled.unenforced.into_iter().map(|it| (None, it)));
        let block = self.content.clone().unwrap_or_default();
        // The prompt can have the beginning already, or a part of it.
        let begin = block.begin();
        let opened = start.opened.as_str();
        let n_open = if opened.ends_with(begin) { begin.len() } else { overlap(opened, begin) };
        let begin = begin.get(n_open..).filter(|rest| !rest.trim().is_empty()).unwrap_or_default();
        let (begin, end) = (tree.text(begin), optional(block.end(), tree));
        Ok(tree.seq(&[begin, compiled.node, end]))
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
    fn all_calls(&self, request: &TurnRequest, start: &TurnStart, writer: &mut GrammarWriter) -> Result<NodeId> {
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
            let tree = &mut writer.tree;
            let (one, separator, head) = (tree.alt(&alternatives), tree.text(&calls.separator), tree.text(head));
            let another = tree.seq(&[separator, head, one]);
            // The prompt can have the beginning already.
            let is_open = calls.triggers().iter().any(|trigger| is_open(trigger, start));
            let first = if is_open && calls.begin.is_empty() { tree.opt(head) } else { head };
            let begin = if is_open { optional(&calls.begin, tree) } else { tree.text(&calls.begin) };
            let several = request.parallel && !calls.is_single;
            let more = if several { tree.repeat(another, 0, None) } else { tree.empty() };
            let end = if calls.end_is_optional { optional(&calls.end, tree) } else { tree.text(&calls.end) };
            ways.push(tree.seq(&[begin, first, one, more, end]));
        }
        let (calls, end) = (writer.tree.alt(&ways), optional(&self.turn_end, &mut writer.tree));
        Ok(writer.tree.seq(&[calls, end]))
    }
}

/// Whether the prompt ends with this text.
fn is_open(trigger: &str, start: &TurnStart) -> bool {
    !trigger.is_empty() && start.opened.ends_with(trigger)
}

/// Space between parts of a turn.
fn space(tree: &mut Tree) -> NodeId {
    let space = tree.one_of(" \n");
    tree.repeat(space, 0, Some(4))
}

/// A text between parts: exactly it, or white space that is like it.
fn gap(text: &str, tree: &mut Tree) -> NodeId {
    if text.trim().is_empty() { space(tree) } else { optional(text, tree) }
}

fn optional(text: &str, tree: &mut Tree) -> NodeId {
    let node = tree.text(text);
    if text.is_empty() { node } else { tree.opt(node) }
}

/// Items in any order, each at most once.
fn each_once(items: Vec<(NodeId, bool)>, separator: NodeId, tree: &mut Tree) -> NodeId {
    tree.each(Each { items, separator, further: None, least: 0, most: None, any_order: true })
}

/// The letters, digits and signs of an id, in which the first one is a letter or a digit.
fn id(tree: &mut Tree) -> NodeId {
    let ranges = [(0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)];
    let signs = ['_', '.', ':', '-'].map(|char| (u32::from(char), u32::from(char)));
    let (first, next) = (tree.class(&ranges), tree.class(&[&ranges[..], &signs].concat()));
    let next = tree.repeat(next, 0, Some(63));
    tree.seq(&[first, next])
}

/// The number of a call.
fn call_number(tree: &mut Tree) -> NodeId {
    let digit = tree.class(&[(0x30, 0x39)]);
    tree.repeat(digit, 1, Some(4))
}

/// Writes the rules of calls.
#[derive(Default)]
struct GrammarWriter {
    tree: Tree,
    unenforced: Vec<(Option<String>, Unenforced)>,
}

impl GrammarWriter {
    fn grammar(self, root: NodeId, triggers: Vec<TurnTrigger>, is_behind_reasoning: bool) -> TurnGrammar {
        let GrammarWriter { tree, unenforced } = self;
        let (tree, prefix) = (Arc::new(tree), String::new());
        TurnGrammar { tree, root, has_marks: false, prefix, triggers, is_behind_reasoning, unenforced }
    }

    fn note(&mut self, tool: &Tool, unenforced: impl IntoIterator<Item = Unenforced>) {
        for keyword in unenforced {
            let noted = (Some(tool.name.clone()), keyword);
            if !self.unenforced.contains(&noted) {
                self.unenforced.push(noted);
            }
        }
    }

    fn call<'a>(&mut self, parts: impl Iterator<Item = &'a CallPart>, tool: &Tool) -> Result<NodeId> {
        let parts: Vec<&CallPart> = parts.collect();
        let mut out = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            out.push(match part {
                CallPart::Text(text) => self.tree.text(text),
                CallPart::AnyText(texts) => self.tree.texts(texts),
                CallPart::Name => self.tree.text(&tool.name),
                CallPart::Id => id(&mut self.tree),
                CallPart::Number => call_number(&mut self.tree),
                CallPart::NumberedName { prefix, separator } => {
                    let name = self.tree.text(format!("{prefix}{}{separator}", tool.name));
                    let number = call_number(&mut self.tree);
                    self.tree.seq(&[name, number])
                }
                CallPart::Object(object) => self.object(object, tool)?,
                CallPart::Arguments(CallArguments::Json) => self.arguments(Notation::Json, tool)?,
                CallPart::Arguments(CallArguments::Gemma) => self.arguments(Notation::Gemma, tool)?,
                CallPart::Arguments(CallArguments::Tags(tags)) => {
                    let tail = match parts.get(index + 1) {
                        Some(CallPart::Text(text)) => text.as_str(),
                        _ => "",
                    };
                    self.tags(tags, tail, tool)?
                }
            });
        }
        Ok(self.tree.seq(&out))
    }

    fn arguments(&mut self, notation: Notation, tool: &Tool) -> Result<NodeId> {
        let mut values = Values::new(&mut self.tree, notation, ANY_ORDER);
        let node = values.object(&tool.schema)?;
        let unenforced = values.into_unenforced();
        self.note(tool, unenforced);
        Ok(node)
    }

    fn object(&mut self, object: &CallObject, tool: &Tool) -> Result<NodeId> {
        let arguments = self.arguments(Notation::Json, tool)?;
        let tree = &mut self.tree;
        let space = foredraft_schema::space(tree);
        let key = |key: &str, value: NodeId, tree: &mut Tree| {
            let (key, colon) = (tree.text(Value::from(key).to_string()), tree.text(":"));
            tree.seq(&[key, space, colon, space, value])
        };
        let wrapped = |fields: &[NodeId], tree: &mut Tree| {
            let (open, close, comma) = (tree.text("{"), tree.text("}"), tree.text(","));
            let comma = tree.seq(&[space, comma, space]);
            let fields: Vec<NodeId> = fields
                .iter()
                .enumerate()
                .flat_map(|(index, field)| (index > 0).then_some(comma).into_iter().chain([*field]))
                .collect();
            let fields = tree.seq(&fields);
            tree.seq(&[open, space, fields, space, close])
        };
        let Some(name) = &object.name else {
            let field = key(&tool.name, arguments, tree);
            return Ok(wrapped(&[field], tree));
        };
        let tool_name = tree.text(Value::from(tool.name.as_str()).to_string());
        let mut fields = vec![key(name, tool_name, tree), key(&object.arguments, arguments, tree)];
        if object.arguments_first {
            fields.reverse();
        }
        if let Some(wrapper) = &object.wrapper {
            let inner = wrapped(&fields, tree);
            fields = vec![key(wrapper, inner, tree)];
        }
        if let Some((id_key, is_first)) = &object.id {
            let (quote, id) = (tree.text("\""), id(tree));
            let id = tree.seq(&[quote, id, quote]);
            fields.insert(if *is_first { 0 } else { fields.len() }, key(id_key, id, tree));
        }
        let plain = wrapped(&fields, tree);
        if !object.may_have_type {
            return Ok(plain);
        }
        let function = tree.text("\"function\"");
        fields.insert(0, key("type", function, tree));
        let typed = wrapped(&fields, tree);
        Ok(tree.alt(&[plain, typed]))
    }

    /// Arguments one by one, each once.
    fn tags(&mut self, tags: &Tags, tail: &str, tool: &Tool) -> Result<NodeId> {
        let mut items = Vec::new();
        for property in &tool.parameters.properties {
            let name = property.name.as_str();
            let key = self.tree.text(name);
            items.push((self.tagged(tags, tail, tool, name, key, &property.schema)?, property.is_required));
        }
        self.note(tool, tool.parameters.unenforced.clone());
        let separator = self.tree.text(&tags.separator);
        if let (true, Some(additional)) = (items.is_empty(), &tool.parameters.additional) {
            // Any names. That each comes once is not enforced.
            let char = self.tree.class(&[(0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0x5F, 0x5F), (0x2D, 0x2D)]);
            let key = self.tree.repeat(char, 1, Some(64));
            let item = self.tagged(tags, tail, tool, "", key, additional)?;
            let each = Each { items, separator, further: Some(item), least: 0, most: None, any_order: true };
            return Ok(self.tree.each(each));
        }
        Ok(each_once(items, separator, &mut self.tree))
    }

    fn tagged(
        &mut self,
        tags: &Tags,
        tail: &str,
        tool: &Tool,
        name: &str,
        key: NodeId,
        schema: &Schema,
    ) -> Result<NodeId> {
        let before = self.tree.text(&tags.before_key);
        let mut forms = Vec::new();
        if tags.is_python {
            let Some(TaggedValue { open, close, .. }) = tags.values.first() else { return Ok(self.tree.empty()) };
            let value = self.python(schema, tool)?;
            let (open, close) = (self.tree.text(open), self.tree.text(close));
            return Ok(self.tree.seq(&[before, key, open, value, close]));
        }
        let notation = if tags.prints_python { Notation::Python } else { Notation::Json };
        for value in &tags.values {
            let close = value.close.replace(KEY, name);
            let core = if close.trim().is_empty() { tail.trim() } else { close.trim() };
            let mut argument = schema.compile_argument(&[core], Notation::Json, &ANY_ORDER, &mut self.tree)?;
            if notation == Notation::Python && argument.kind != ArgumentKind::Text {
                let python = schema.compile_argument(&[core], notation, &ANY_ORDER, &mut self.tree)?;
                argument.node = self.tree.alt(&[argument.node, python.node]);
            }
            let node = match (value.kind, argument.kind) {
                (TagKind::BySchema, ArgumentKind::Json) if tags.has_elements => {
                    self.elements(tags, &close, schema, raw_of(tool, name).unwrap_or(&Value::Null), tool)?
                }
                (TagKind::BySchema, _) => self.with_python_flags(argument.node, raw_of(tool, name)),
                (TagKind::Text, ArgumentKind::Text) => argument.node,
                (TagKind::Text, ArgumentKind::Json) | (TagKind::Json(_), ArgumentKind::Text) => continue,
                (TagKind::Text, ArgumentKind::Either) => self.tree.until(&[core]),
                (TagKind::Json(kind), _) if !kind.is_empty() && !may_be(kind, raw_of(tool, name)) => {
                    continue;
                }
                (TagKind::Json(_), ArgumentKind::Json | ArgumentKind::Either) => {
                    schema.compile(&ANY_ORDER, &mut self.tree)?.node
                }
            };
            self.note(tool, argument.unenforced);
            let (open, close) = (self.tree.text(&value.open), self.tree.text(&close));
            forms.push(self.tree.seq(&[open, node, close]));
        }
        let forms = self.tree.alt(&forms);
        Ok(self.tree.seq(&[before, key, forms]))
    }

    /// A literal of Python or JSON. The text of a string in single quotes has no escapes, except inside of objects and arrays.
    fn python(&mut self, schema: &Schema, tool: &Tool) -> Result<NodeId> {
        let json = schema.compile(&ANY_ORDER, &mut self.tree)?;
        let values = schema.compile_values(Notation::Python, &ANY_ORDER, &mut self.tree)?;
        let argument = schema.compile_argument(&["'"], Notation::Json, &ANY_ORDER, &mut self.tree)?;
        let text = match argument.kind {
            ArgumentKind::Text => Some(argument.node),
            ArgumentKind::Either => Some(self.tree.until(&["'"])),
            ArgumentKind::Json => None,
        };
        self.note(tool, json.unenforced);
        let text = text.map(|text| {
            let quote = self.tree.text("'");
            self.tree.seq(&[quote, text, quote])
        });
        let forms: Vec<NodeId> =
            [Some(json.node), values.map(|values| values.node), text].into_iter().flatten().collect();
        Ok(self.tree.alt(&forms))
    }

    /// An object or array as elements, or another value as JSON. `close`: the end of the element around it. Without a schema for its parts,
    /// an object or array is any text.
    fn elements(&mut self, tags: &Tags, close: &str, schema: &Schema, raw: &Value, tool: &Tool) -> Result<NodeId> {
        let close_of = |name: &str| format!("{}/{name}>", tags.before_key);
        let element = |name: &str, value: NodeId, tree: &mut Tree| {
            let (open, close) = (tree.text(format!("{}{name}>", tags.before_key)), tree.text(close_of(name)));
            tree.seq(&[open, value, close])
        };
        match (declared_type(raw), raw.get("properties"), raw.get("items")) {
            (Some("object"), Some(properties), _) => {
                let parameters = schema.parameters()?;
                let mut items = Vec::new();
                for property in &parameters.properties {
                    let raw = properties.get(&property.name).unwrap_or(&Value::Null);
                    let value = self.elements(tags, &close_of(&property.name), &property.schema, raw, tool)?;
                    items.push((element(&property.name, value, &mut self.tree), property.is_required));
                }
                self.note(tool, parameters.unenforced);
                let nothing = self.tree.empty();
                Ok(each_once(items, nothing, &mut self.tree))
            }
            (Some("array"), _, Some(items)) if declared_type(items).is_some() => {
                let value = self.elements(tags, &close_of(ITEM), &schema.own_part(items)?, items, tool)?;
                let item = element(ITEM, value, &mut self.tree);
                Ok(self.tree.repeat(item, 0, None))
            }
            (Some("object" | "array"), _, _) => Ok(self.tree.until(&[close.trim()])),
            _ => {
                let argument = schema.compile_argument(&[close.trim()], Notation::Json, &ANY_ORDER, &mut self.tree)?;
                self.note(tool, argument.unenforced);
                Ok(argument.node)
            }
        }
    }

    /// A value between tags. Many templates print Python's constants there.
    fn with_python_flags(&mut self, node: NodeId, raw: Option<&Value>) -> NodeId {
        match raw.and_then(declared_type) {
            Some("boolean") => {
                let (yes, no) = (self.tree.as_text("True", "true"), self.tree.as_text("False", "false"));
                self.tree.alt(&[node, yes, no])
            }
            _ => node,
        }
    }
}

/// The schema of a parameter as it was given.
fn raw_of<'a>(tool: &'a Tool, parameter: &str) -> Option<&'a Value> {
    tool.raw.get("properties").and_then(|properties| properties.get(parameter))
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
