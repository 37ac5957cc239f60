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
    pub(super) fn object(&self, object: &CallObject, is_anchored: bool, tool: &Tool) -> Result<Vec<NodeId>> {
        let arguments = self.arguments(Notation::Json, tool)?;
        let (space, quote, name) = (self.json_space(), self.tree.text("\""), self.name(tool));
        let (open, close, comma) = (self.tree.text("{"), self.tree.text("}"), self.comma());
        let mut parts = vec![open, space];
        let id_key = object.id.as_ref().map_or(ID_KEY, |(key, _)| key.as_str());
        let id = self.tree.seq(&self.field(id_key, &[self.id_value()]));
        if object.name.is_none() {
            return Ok([parts, vec![quote, name, quote, space], self.colon(), vec![arguments, space, close]].concat());
        }
        let id_first = self.tree.opt(self.tree.seq(&[id, comma]));
        let id_last = self.tree.opt(self.tree.seq(&[comma, id]));
        let kind = self.field("type", &[self.tree.text("\"function\""), comma]);
        let kind = self.tree.opt(self.tree.seq(&kind));
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
    pub(super) fn any_object_call(&self, object: &CallObject) -> NodeId {
        let options = CompileOptions { is_lenient: true, ..CompileOptions::default() };
        let arguments = Values::new(&self.tree, Notation::Json, options).any_object();
        let arguments = self.tree.mark(Mark::Verbatim, arguments);
        let (name, quote, kind) = (self.any_name(), self.tree.text("\""), self.tree.text("\"function\""));
        let Some(name_key) = &object.name else {
            let fields = [vec![quote, name, quote, self.space()], self.colon(), vec![arguments]].concat();
            return self.braced(self.tree.seq(&fields));
        };
        let (id, id_key) = (self.id_value(), object.id.as_ref().map_or(ID_KEY, |(key, _)| key.as_str()));
        let mut own = vec![
            (self.field(name_key, &[quote, name, quote]), true),
            (self.field(&object.arguments, &[arguments]), false),
        ];
        let mut around = vec![(self.field(id_key, &[id]), false), (self.field("type", &[kind]), false)];
        match &object.wrapper {
            Some(wrapper) => around.push((self.field(wrapper, &[self.braced(self.fields(own))]), true)),
            None => around.append(&mut own),
        }
        self.braced(self.fields(around))
    }

    fn fields(&self, fields: Vec<(Vec<NodeId>, bool)>) -> NodeId {
        let items = fields.into_iter().map(|(field, is_required)| (self.tree.seq(&field), is_required)).collect();
        self.tree.each(Each { items, separator: self.comma(), further: None, least: 0, most: None, any_order: true })
    }

    fn braced(&self, fields: NodeId) -> NodeId {
        let space = self.space();
        self.tree.seq(&[self.tree.text("{"), space, fields, space, self.tree.text("}")])
    }

    /// A key and the parts of its value.
    fn field(&self, key: &str, value: &[NodeId]) -> Vec<NodeId> {
        let (key, space) = (self.tree.text(Value::from(key).to_string()), self.json_space());
        [vec![key, space], self.colon(), value.to_vec()].concat()
    }

    fn colon(&self) -> Vec<NodeId> {
        vec![self.tree.text(":"), self.json_space()]
    }

    fn comma(&self) -> NodeId {
        let space = self.json_space();
        self.tree.seq(&[space, self.tree.text(","), space])
    }

    fn json_space(&self) -> NodeId {
        if self.is_lenient { self.space() } else { foredraft_schema::space(&self.tree) }
    }

    /// An id in quotes, or a number.
    fn id_value(&self) -> NodeId {
        let (quote, digit) = (self.tree.text("\""), self.tree.class(&[(0x30, 0x39)]));
        let number = self.tree.mark(Mark::CallId, self.tree.repeat(digit, 1, Some(9)));
        self.tree.alt(&[self.tree.seq(&[quote, self.id(), quote]), number])
    }
}
