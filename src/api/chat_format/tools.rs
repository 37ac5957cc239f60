//! Tools as llama.cpp's formats need them: each schema in the form that its converter handles correctly, and a description of all tools
//! for templates that cannot show them.

use serde_json::{Value, json};

use crate::api::request::tool_name;
use crate::api::schema;
use crate::error::{Error, Result};

/// The tools with simplified parameters. Where a grammar cannot enforce a schema, the arguments are any object, and `warnings` says so.
///
/// # Errors
/// A schema is not one, or nothing satisfies it.
pub(super) fn with_simple_schemas<'a>(
    tools: impl Iterator<Item = (usize, &'a Value)>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Value>> {
    let mut simple = Vec::new();
    for (index, tool) in tools {
        let parameters = tool.get("function").and_then(|function| function.get("parameters"));
        let parameters = parameters.filter(|schema| !schema.is_null() && **schema != json!({}));
        let name = format!("tools[{index}].function.parameters");
        let parameters = match parameters.map(|schema| schema::simplified(schema, &format!("t{index}"))) {
            None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
            Some(Ok(schema)) => schema,
            Some(Err(error)) => {
                let why = error.message().trim_start_matches("json_schema: ").to_owned();
                if !["enforce", "oneOf forbids"].iter().any(|words| why.contains(words)) {
                    return Err(Error::invalid(format!("{name}: {why}")));
                }
                warnings.push(format!("{name}: {why}, so the arguments can be any object"));
                json!({"type": "object"})
            }
        };
        let function = json!({"name": tool_name(tool), "parameters": parameters});
        simple.push(json!({"type": "function", "function": function}));
    }
    Ok(simple)
}

/// Adds a description of the tools to the system message, or a system message.
pub(super) fn describe_in_system(tools: &[Value], parallel: bool, messages: &mut Vec<Value>) {
    let mut text = String::from("You can call these tools:\n");
    for tool in tools {
        text += &format!("{}\n", tool.get("function").unwrap_or(tool));
    }
    text += match parallel {
        true => r#"Answer with an array of calls: [{"name": "...", "arguments": {...}}]"#,
        false => r#"Answer with a call: {"name": "...", "arguments": {...}}"#,
    };
    let system = messages.first_mut().filter(|message| message.get("role").is_some_and(|role| role == "system"));
    match system.and_then(|message| message.get_mut("content")) {
        Some(Value::String(content)) => *content = format!("{content}\n\n{text}"),
        Some(Value::Array(parts)) => parts.push(json!({"type": "text", "text": text})),
        _ => messages.insert(0, json!({"role": "system", "content": text})),
    }
}
