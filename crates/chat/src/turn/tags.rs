//! Arguments that are written one by one, between tags or as literals of Python.

use foredraft_base::error::Result;
use foredraft_grammar::tree::{Each, Mark, NodeId};
use foredraft_schema::{ArgumentKind, CompileOptions, CompiledArgument, Notation, Schema, Unenforced, Values};
use serde_json::{Map, Value};

use super::builder::{TurnBuilder, core, words_of};
use crate::format::{KEY, TagKind, TaggedValue, Tags};
use crate::tool::Tool;

/// The characters of names that no schema lists.
const KEY_CHARS: [(u32, u32); 5] = [(0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0x5F, 0x5F), (0x2D, 0x2D)];
/// The longest of them.
const MAX_KEY: u32 = 64;
/// The ends of a string that a template prints in single quotes without escapes.
const QUOTE_ENDS: [&str; 2] = ["')", "', "];
/// The name of an item's element.
const ITEM: &str = "item";

/// The place of arguments: the tool, and the text behind all of them.
#[derive(Clone, Copy)]
pub(super) struct TaggedCall<'a> {
    pub(super) tags: &'a Tags,
    pub(super) tail: &'a str,
    pub(super) tool: &'a Tool,
}

impl TurnBuilder<'_> {
    /// All arguments, each once and in any order.
    pub(super) fn tagged_arguments(&self, call: TaggedCall<'_>) -> Result<NodeId> {
        let parameters = &call.tool.parameters;
        let mut items = Vec::new();
        for property in &parameters.properties {
            let name = property.name.as_str();
            let key = self.tree.as_text(name, &format!("{}: ", Value::from(name)));
            items.push((self.tagged(call, name, key, &property.schema)?, property.is_required && !self.is_lenient));
        }
        self.note(call.tool, parameters.unenforced.clone());
        let mut further = None;
        if let (Some(additional), true) = (&parameters.additional, items.is_empty() || self.is_lenient) {
            // Any names. That each comes once is not enforced.
            let key = self.tree.repeat(self.tree.class(&KEY_CHARS), 1, Some(MAX_KEY));
            let key = self.tree.mark(Mark::Text, key);
            let key = self.tree.seq(&[self.tree.emit("\""), key, self.tree.emit("\": ")]);
            further = Some(self.tagged(call, "", key, additional)?);
        }
        let separator = self.tree.seq(&[self.gap(), self.words(&call.tags.separator), self.tree.emit(", ")]);
        let each = self.tree.each(Each { items, separator, further, least: 0, most: None, any_order: true });
        Ok(self.bracketed("{", each, "}"))
    }

    /// Nodes between brackets that the completion does not have.
    fn bracketed(&self, open: &str, node: NodeId, close: &str) -> NodeId {
        self.tree.seq(&[self.tree.emit(open), node, self.tree.emit(close)])
    }

    /// One argument. `key` reads its name.
    fn tagged(&self, call: TaggedCall<'_>, name: &str, key: NodeId, schema: &Schema) -> Result<NodeId> {
        let TaggedCall { tags, tail, tool } = call;
        let gap = self.gap();
        let before = self.tree.seq(&[gap, self.words(core(&tags.before_key))]);
        let raw = tool.raw.get("properties").and_then(|properties| properties.get(name)).unwrap_or(&Value::Null);
        let mut forms = Vec::new();
        // A longer text comes first, because it can begin with a shorter one.
        let mut values: Vec<&TaggedValue> = tags.values.iter().collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.open.len()));
        for value in values {
            let close = value.close.replace(KEY, name);
            if tags.is_python {
                forms.push(self.tree.seq(&[gap, self.words(&value.open), gap, self.literal(schema, tool)?]));
                continue;
            }
            let end = if core(&close).is_empty() { core(tail) } else { core(&close) };
            let node = match value.kind {
                TagKind::BySchema if tags.has_elements => {
                    self.argument(&[end], schema, tool)?;
                    Some(self.element_value(call, end, schema, raw)?)
                }
                TagKind::BySchema => Some(self.by_schema(tags, end.trim(), schema, raw, tool)?),
                TagKind::Text => self.only_text(end.trim(), schema, tool)?,
                TagKind::Json(kind) => self.only_json(kind, schema, raw, tool)?,
            };
            if let Some(node) = node {
                forms.push(self.enclosed(value, &close, node));
            }
        }
        Ok(self.tree.seq(&[before, key, self.tree.alt(&forms)]))
    }

    /// A value with the texts around it. The white space that the template prints beside them is not a part of it.
    fn enclosed(&self, value: &TaggedValue, close: &str, node: NodeId) -> NodeId {
        let gap = self.gap();
        let mut parts = Vec::new();
        for word in words_of(&value.open) {
            parts.extend([gap, self.tree.text(word)]);
        }
        let behind = self.tree.text(value.open.get(value.open.trim_end().len()..).unwrap_or_default());
        parts.push(self.tree.opt(behind));
        let before = close.get(..close.len() - close.trim_start().len()).unwrap_or_default();
        let close = self.tree.text(close.trim());
        let end = match before.is_empty() {
            true => self.tree.seq(&[node, close]),
            false => {
                // The value is the shorter one of two.
                let before = self.tree.text(before);
                self.tree.alt(&[self.tree.seq(&[node, before, close]), self.tree.seq(&[node, close])])
            }
        };
        parts.push(end);
        self.tree.seq(&parts)
    }

    /// The node of an argument that ends before one of the texts. What it does not enforce is noted.
    fn argument(&self, ends: &[&str], schema: &Schema, tool: &Tool) -> Result<CompiledArgument> {
        let mut argument = schema.compile_argument(ends, Notation::Json, &self.options(), &self.tree)?;
        self.note(tool, std::mem::take(&mut argument.unenforced));
        Ok(argument)
    }

    /// A value whose schema says whether it is text or JSON.
    fn by_schema(&self, tags: &Tags, end: &str, schema: &Schema, raw: &Value, tool: &Tool) -> Result<NodeId> {
        let (options, argument) = (self.options(), self.argument(&[end], schema, tool)?);
        let mut forms = Vec::new();
        if argument.kind != ArgumentKind::Text {
            if tags.prints_python
                && let Some(values) = schema.compile_values(Notation::Python, &options, &self.tree)?
            {
                forms.push(values.node);
            }
            // Many templates print Python's constants.
            if declared_type(raw) == Some("boolean") {
                forms.extend([self.tree.as_text("True", "true"), self.tree.as_text("False", "false")]);
            }
            if schema.is_valid(&Value::Null) {
                forms.push(self.tree.as_text("None", "null"));
            }
        }
        let node = argument.node;
        if argument.kind != ArgumentKind::Json {
            return Ok(self.first_of(&forms, node));
        }
        forms.insert(0, node);
        if self.is_lenient {
            let any = Values::new(&self.tree, Notation::Json, options).any();
            forms.extend([self.tree.mark(Mark::Verbatim, any), self.text_until(&[end])]);
        }
        // Nothing says that space belongs to the value.
        let gap = self.gap();
        Ok(self.tree.seq(&[gap, self.tree.alt(&forms), gap]))
    }

    /// A string as it stands. `None`: no string is valid.
    fn only_text(&self, end: &str, schema: &Schema, tool: &Tool) -> Result<Option<NodeId>> {
        let argument = self.argument(&[end], schema, tool)?;
        Ok(match argument.kind {
            ArgumentKind::Text => Some(argument.node),
            ArgumentKind::Json if !self.is_lenient => None,
            ArgumentKind::Json | ArgumentKind::Either => Some(self.text_until(&[end])),
        })
    }

    /// A value as JSON. `None`: none of this type is valid. An empty name stands for values that are no strings.
    fn only_json(&self, kind: &str, schema: &Schema, raw: &Value, tool: &Tool) -> Result<Option<NodeId>> {
        let options = self.options();
        if self.is_lenient {
            let any = Values::new(&self.tree, Notation::Json, options).any();
            return Ok(Some(self.tree.mark(Mark::Verbatim, any)));
        }
        let is_possible =
            kind.is_empty() || declared_type(raw).is_none_or(|it| it == kind || it == "integer" && kind == "number");
        if !is_possible || schema.argument_kind()? == ArgumentKind::Text {
            return Ok(None);
        }
        let compiled = schema.compile(&options, &self.tree)?;
        self.note(tool, compiled.unenforced);
        Ok(Some(self.tree.mark(Mark::Verbatim, compiled.node)))
    }

    /// A literal of Python. Templates print strings in single quotes without escapes, so what cannot be read with them is as it stands.
    fn literal(&self, schema: &Schema, tool: &Tool) -> Result<NodeId> {
        let mut values = Values::new(&self.tree, Notation::Python, self.options());
        let literal = values.value(schema)?;
        self.note(tool, values.into_unenforced());
        if schema.argument_kind()? == ArgumentKind::Json && !self.is_lenient {
            return Ok(literal);
        }
        let argument = self.argument(&QUOTE_ENDS, schema, tool)?;
        let text = if argument.kind == ArgumentKind::Text { argument.node } else { self.text_until(&QUOTE_ENDS) };
        let quote = self.tree.text("'");
        Ok(self.tree.alt(&[literal, self.tree.seq(&[quote, text, quote])]))
    }

    /// An object or array as elements, or another value as it stands. `end`: the end of the element around it.
    fn element_value(&self, call: TaggedCall<'_>, end: &str, schema: &Schema, raw: &Value) -> Result<NodeId> {
        let begin = core(&call.tags.before_key);
        let gap = self.gap();
        match (declared_type(raw), raw.get("properties"), raw.get("items")) {
            (Some("object"), Some(properties), _) => {
                let parameters = schema.parameters()?;
                let mut items = Vec::new();
                for property in &parameters.properties {
                    let name = property.name.as_str();
                    let raw = properties.get(name).unwrap_or(&Value::Null);
                    let value = self.element_value(call, &format!("{begin}/{name}>"), &property.schema, raw)?;
                    let key = self.tree.emit(&format!("{}: ", Value::from(name)));
                    let is_required = property.is_required && !self.is_lenient;
                    items.push((self.element(begin, name, key, value), is_required));
                }
                self.note(call.tool, parameters.unenforced);
                let separator = self.tree.emit(", ");
                let each = Each { items, separator, further: None, least: 0, most: None, any_order: true };
                Ok(self.tree.seq(&[gap, self.bracketed("{", self.tree.each(each), "}"), gap]))
            }
            (Some("array"), _, Some(items)) if declared_type(items).is_some() => {
                let value = self.element_value(call, &format!("{begin}/{ITEM}>"), &schema.own_part(items)?, items)?;
                Ok(self.tree.seq(&[gap, self.array(begin, value, 0), gap]))
            }
            (Some("object"), ..) => {
                let some = self.any_object_element(begin, self.any_element(begin));
                let none = self.bracketed("{", self.tree.empty(), "}");
                Ok(self.tree.seq(&[gap, self.tree.alt(&[some, none]), gap]))
            }
            (Some("array"), ..) => Ok(self.tree.seq(&[gap, self.array(begin, self.any_element(begin), 0), gap])),
            (kind, ..) => {
                let value = self.by_schema(call.tags, end, schema, raw, call.tool)?;
                let mut forms = Vec::new();
                // Objects and arrays among several types. A reference leads out of its part.
                let parts = ["anyOf", "oneOf"].into_iter().filter_map(|key| raw.get(key)?.as_array()).flatten();
                for part in parts.filter(|part| matches!(declared_type(part), Some("object" | "array"))) {
                    if !part.to_string().contains("\"$ref\"") {
                        forms.push(self.element_value(call, end, &schema.own_part(part)?, part)?);
                    }
                }
                if forms.is_empty() && kind.is_none() && schema.is_valid(&Value::Object(Map::new())) {
                    forms.push(self.any_parts(begin, self.any_element(begin)));
                }
                forms.push(value);
                Ok(self.tree.alt(&forms))
            }
        }
    }

    /// Items, or elements with names.
    fn any_parts(&self, begin: &str, any: NodeId) -> NodeId {
        let gap = self.gap();
        let parts = self.tree.alt(&[self.array(begin, any, 1), self.any_object_element(begin, any)]);
        self.tree.seq(&[gap, parts, gap])
    }

    /// An element of this name. `key`: what arguments have before the value.
    fn element(&self, begin: &str, name: &str, key: NodeId, value: NodeId) -> NodeId {
        let gap = self.gap();
        let (open, close) = (self.tree.text(format!("{begin}{name}>")), self.tree.text(format!("{begin}/{name}>")));
        self.tree.seq(&[gap, open, key, value, close, gap])
    }

    /// Elements of items with these values.
    fn array(&self, begin: &str, value: NodeId, least: u32) -> NodeId {
        let items = self.listed(self.element(begin, ITEM, self.tree.empty(), value));
        self.bracketed("[", if least == 0 { self.tree.opt(items) } else { items }, "]")
    }

    /// A node once or more, with commas between in the arguments.
    fn listed(&self, node: NodeId) -> NodeId {
        let more = self.tree.seq(&[self.tree.emit(", "), node]);
        self.tree.seq(&[node, self.tree.repeat(more, 0, None)])
    }

    /// The content of any element: items, or elements with names, or text.
    fn any_element(&self, begin: &str) -> NodeId {
        let (rule, is_new) = self.tree.rule("any element");
        if is_new {
            let parts = self.any_parts(begin, rule);
            let options = CompileOptions { is_lenient: true, ..CompileOptions::default() };
            let json = Values::new(&self.tree, Notation::Json, options).any();
            let json = self.tree.mark(Mark::Verbatim, json);
            self.tree.define(rule, self.tree.alt(&[parts, json, self.text_until(&[begin])]));
        }
        rule
    }

    /// Elements with any names. Their ends are not compared with their beginnings.
    fn any_object_element(&self, begin: &str, value: NodeId) -> NodeId {
        let gap = self.gap();
        let name = self.tree.repeat(self.tree.class(&KEY_CHARS), 1, Some(MAX_KEY));
        let key = self.tree.mark(Mark::Text, name);
        let (open, close, end) = (self.tree.text(begin), self.tree.text(format!("{begin}/")), self.tree.text(">"));
        let (quote, colon) = (self.tree.emit("\""), self.tree.emit("\": "));
        let element = self.tree.seq(&[gap, open, quote, key, colon, end, value, close, name, end, gap]);
        self.bracketed("{", self.listed(element), "}")
    }

    /// Any text before one of these, as a string.
    fn text_until(&self, ends: &[&str]) -> NodeId {
        let quote = self.tree.emit("\"");
        self.tree.seq(&[quote, self.tree.mark(Mark::Text, self.tree.until(ends)), quote])
    }

    pub(super) fn options(&self) -> CompileOptions {
        CompileOptions { drop_unenforceable: true, is_open: false, any_order: true, is_lenient: self.is_lenient }
    }

    /// Keywords that the grammar does not enforce.
    pub(super) fn note(&self, tool: &Tool, keywords: Vec<Unenforced>) {
        let mut unenforced = self.unenforced.borrow_mut();
        for keyword in keywords {
            let noted = (Some(tool.name.clone()), keyword);
            if !unenforced.contains(&noted) {
                unenforced.push(noted);
            }
        }
    }
}

/// The type of a schema that has no references and no alternatives.
fn declared_type(raw: &Value) -> Option<&str> {
    let is_plain = ["$ref", "anyOf", "oneOf", "allOf", "enum", "const"].iter().all(|key| raw.get(key).is_none());
    raw.get("type").and_then(Value::as_str).filter(|_| is_plain)
}
