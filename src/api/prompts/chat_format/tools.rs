//! Tools as formats need them, and a description of all tools for templates that cannot show them.

use foredraft_base::work::Work;
use foredraft_chat::Tool;
use serde_json::{Value, json};

use crate::api::wire::request::{ChatInput, ChatOptions, tool_name};
use crate::error::{Error, Result};

/// The tools that a request allows to call.
///
/// # Errors
/// A schema is not one, nothing satisfies it, or `work` ended.
pub(super) fn callable_tools(chat: &ChatInput, options: &ChatOptions, work: &Work) -> Result<Vec<Tool>> {
    let mut tools = Vec::new();
    for (index, tool) in chat.tools.iter().enumerate() {
        let name = tool_name(tool).unwrap_or_default();
        if !options.tool_choice.allows(name) {
            continue;
        }
        let parameters = tool.get("function").and_then(|function| function.get("parameters"));
        let parameters = parameters.filter(|schema| !schema.is_null() && **schema != json!({}));
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let read = Tool::new(name, parameters.unwrap_or(&none), work);
        tools.push(read.map_err(|error| {
            let why = error.message().trim_start_matches("json_schema: ");
            Error::new(error.code(), format!("tools[{index}].function.parameters: {why}"))
        })?);
    }
    Ok(tools)
}

/// A description of the tools, for the system message.
pub(super) fn described(tools: &[Value], parallel: bool) -> String {
    let mut text = String::from("You can call these tools:\n");
    for tool in tools {
        text += &format!("{}\n", tool.get("function").unwrap_or(tool));
    }
    text += match parallel {
        true => r#"Answer with an array of calls: [{"name": "...", "arguments": {...}}]"#,
        false => r#"Answer with a call: {"name": "...", "arguments": {...}}"#,
    };
    text
}
