//! A call as one JSON object.

use foredraft_base::error::Result;
use foredraft_grammar::tree::{Each, Mark, NodeId};
use foredraft_schema::{CompileOptions, Notation, Values};
use serde_json::Value;

use super::builder::TurnBuilder;
use crate::format::CallObject;
use crate::tool::Tool;

/// The key of ids in formats that print none.
const ID_KEY: &str = "id";

impl TurnBuilder<'_> {
    /// The parts of a call of one tool. Ids may come first or last, whether the template prints them or not. In front of anchored calls they
    /// may not, because what these begin with tells them from content.
    pub(super) fn object(&mut self, object: &CallObject, is_anchored: bool, tool: &Tool) -> Result<Vec<NodeId>> {
        let arguments = self.arguments(Notation::Json, tool)?;
        let (space, quote) = (self.json_space(), self.tree.text("\""));
        let name = self.name(tool);
        let (open, close, comma) = (self.tree.text("{"), self.tree.text("}"), self.comma());
        let mut parts = vec![open, space];
        let id_key = object.id.as_ref().map_or(ID_KEY, |(key, _)| key.as_str());
        let id = self.id_value();
        let id = self.field(id_key, &[id]);
        let id = self.tree.seq(&id);
        if object.name.is_none() {
            return Ok([parts, vec![quote, name, quote, space], self.colon(), vec![arguments, space, close]].concat());
        }
        let (id_first, id_last) = (self.tree.seq(&[id, comma]), self.tree.seq(&[comma, id]));
        let (id_first, id_last) = (self.tree.opt(id_first), self.tree.opt(id_last));
        let kind = self.tree.text("\"function\"");
        let kind = self.field("type", &[kind]);
        let kind = [kind, vec![comma]].concat();
        let kind = self.tree.seq(&kind);
        let kind = self.tree.opt(kind);
        parts.push(if is_anchored { kind } else { self.tree.seq(&[kind, id_first, kind]) });
        if let Some(wrapper) = &object.wrapper {
            parts.extend(self.field(wrapper, &[open, space]));
        }
        let name = self.field(object.name.as_deref().unwrap_or_default(), &[quote, name, quote]);
        let arguments = self.field(&object.arguments, &[arguments]);
        let (first, second) = if object.arguments_first { (arguments, name) } else { (name, arguments) };
        parts.extend(first);
        parts.push(comma);
        parts.extend(second);
        if object.wrapper.is_some() {
            parts.extend([space, close]);
        }
        parts.extend([id_last, space, close]);
        Ok(parts)
    }

    /// A call of any tool, whose fields come in any order. The arguments may be missing.
    pub(super) fn any_object_call(&mut self, object: &CallObject) -> NodeId {
        let options = CompileOptions { is_lenient: true, ..CompileOptions::default() };
        let arguments = Values::new(&mut self.tree, Notation::Json, options).any_object();
        let arguments = self.tree.mark(Mark::Verbatim, arguments);
        let (name, quote, kind) = (self.any_name(), self.tree.text("\""), self.tree.text("\"function\""));
        let Some(name_key) = &object.name else {
            let space = self.space();
            let fields = [vec![quote, name, quote, space], self.colon(), vec![arguments]].concat();
            let fields = self.tree.seq(&fields);
            return self.braced(fields);
        };
        let (id, id_key) = (self.id_value(), object.id.as_ref().map_or(ID_KEY, |(key, _)| key.as_str()));
        let mut own = vec![
            (self.field(name_key, &[quote, name, quote]), true),
            (self.field(&object.arguments, &[arguments]), false),
        ];
        let mut around = vec![(self.field(id_key, &[id]), false), (self.field("type", &[kind]), false)];
        match &object.wrapper {
            Some(wrapper) => {
                let inner = self.fields(own);
                let inner = self.braced(inner);
                around.push((self.field(wrapper, &[inner]), true));
            }
            None => around.append(&mut own),
        }
        let fields = self.fields(around);
        self.braced(fields)
    }

    fn fields(&mut self, fields: Vec<(Vec<NodeId>, bool)>) -> NodeId {
        let items = fields.into_iter().map(|(field, is_required)| (self.tree.seq(&field), is_required)).collect();
        let separator = self.comma();
        self.tree.each(Each { items, separator, further: None, least: 0, most: None, any_order: true })
    }

    fn braced(&mut self, fields: NodeId) -> NodeId {
        let (open, space, close) = (self.tree.text("{"), self.space(), self.tree.text("}"));
        self.tree.seq(&[open, space, fields, space, close])
    }

    /// A key and the parts of its value.
    fn field(&mut self, key: &str, value: &[NodeId]) -> Vec<NodeId> {
        let (key, space) = (self.tree.text(Value::from(key).to_string()), self.json_space());
        [vec![key, space], self.colon(), value.to_vec()].concat()
    }

    fn colon(&mut self) -> Vec<NodeId> {
        vec![self.tree.text(":"), self.json_space()]
    }

    fn comma(&mut self) -> NodeId {
        let (space, comma) = (self.json_space(), self.tree.text(","));
        self.tree.seq(&[space, comma, space])
    }

    fn json_space(&mut self) -> NodeId {
        if self.is_lenient { self.space() } else { foredraft_schema::space(&mut self.tree) }
    }

    /// An id in quotes, or a number.
    fn id_value(&mut self) -> NodeId {
        let (quote, id, digit) = (self.tree.text("\""), self.id(), self.tree.class(&[(0x30, 0x39)]));
        let quoted = self.tree.seq(&[quote, id, quote]);
        let number = self.tree.repeat(digit, 1, Some(9));
        let number = self.tree.mark(Mark::CallId, number);
        self.tree.alt(&[quoted, number])
    }
}
