//! Fills in what a template needs in tools, and OpenAI's API lets hosts leave out.

use serde_json::{Map, Value as Json, json};

/// The needs of a template in the schemas of tools' parameters. Templates fail without them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ToolShape {
    /// `properties`, also if there are none.
    pub(super) properties: bool,
    /// The description of each parameter.
    pub(super) descriptions: bool,
    /// `null` is in no list of types.
    pub(super) no_null: bool,
    /// Schemas are objects, not `true`.
    pub(super) objects: bool,
}

impl ToolShape {
    /// Finds the needs of a template. `renders`: whether it renders these tools.
    pub(super) fn find(renders: impl Fn(&Json) -> bool) -> ToolShape {
        let parameter = |schema: Json| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
        type Need = (fn(&mut ToolShape), Json);
        let needs: [Need; 4] = [
            (|shape| shape.properties = true, json!({})),
            (|shape| shape.descriptions = true, parameter(json!({"type": "string"}))),
            (|shape| shape.no_null = true, parameter(json!({"type": ["string", "null"], "description": "d"}))),
            (|shape| shape.objects = true, parameter(true.into())),
        ];
        let mut shape = ToolShape::default();
        for (need, parameters) in needs {
            let tools =
                json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}]);
            let mut filled = shape;
            need(&mut filled);
            if !renders(&shape.completed(&tools)) && renders(&filled.completed(&tools)) {
                shape = filled;
            }
        }
        shape
    }

    /// The tools with a description and parameters, filled as llama-server does, and with what the template needs.
    pub(super) fn completed(self, tools: &Json) -> Json {
        let mut tools = tools.clone();
        for tool in tools.as_array_mut().into_iter().flatten() {
            let Some(Json::Object(function)) = tool.get_mut("function") else { continue };
            let is_missing = |name: &str| function.get(name).is_none_or(Json::is_null);
            if is_missing("description") || is_missing("parameters") {
                *function = with_defaults(std::mem::take(function));
            }
            if self != ToolShape::default()
                && let Some(parameters) = function.get_mut("parameters")
            {
                self.fill(parameters, true);
            }
        }
        tools
    }

    /// Fills a schema and those of its properties and items. `is_root`: it is the one of all parameters.
    fn fill(self, schema: &mut Json, is_root: bool) {
        if self.objects && schema.is_boolean() {
            *schema = json!({});
        }
        let Json::Object(map) = schema else { return };
        if self.properties && is_root {
            map.entry("properties").or_insert_with(|| json!({}));
        }
        if self.descriptions && !is_root {
            map.entry("description").or_insert_with(|| "".into());
        }
        if let Some(Json::Array(types)) = map.get_mut("type").filter(|_| self.no_null) {
            types.retain(|name| name != "null");
        }
        let properties = map.get_mut("properties").and_then(Json::as_object_mut);
        properties.into_iter().flatten().for_each(|(_, property)| self.fill(property, false));
        if let Some(items) = map.get_mut("items") {
            self.fill(items, false);
        }
    }
}

/// A function with a description and parameters, behind its name.
fn with_defaults(mut given: Map<String, Json>) -> Map<String, Json> {
    let mut filled = Map::new();
    for (name, default) in [("name", Json::Null), ("description", "".into()), ("parameters", json!({}))] {
        let value = given.get_mut(name).map(Json::take).filter(|value| !value.is_null());
        filled.insert(name.to_owned(), value.unwrap_or(default));
    }
    for (name, value) in given {
        filled.entry(name).or_insert(value);
    }
    filled
}
