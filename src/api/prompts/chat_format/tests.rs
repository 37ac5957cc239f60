//! The formats of real templates (`scripts/check.sh templates` downloads them).

#[cfg(target_os = "linux")]
mod peer;
#[path = "../../../../tests/real_templates/mod.rs"]
mod real_templates;
pub(in crate::api) mod templates;

use std::sync::Arc;

use serde_json::{Value, json};

use self::real_templates::real_templates;
use super::detect::tests::{Letters, tools, try_format};
use super::stream::tests::message_of;
use crate::api::prompts::chat::{ChatTemplate, RenderInput};
use crate::grammar::Grammar;

/// Assistants' messages.
fn answers() -> Vec<Value> {
    let call = |name: &str, arguments: Value| json!({"type": "function", "id": "call00001", "function": {"name": name, "arguments": arguments}});
    let weather = call("get_weather", json!({"city": "Par\"\u{e9}s\\ <x>", "days": 3}));
    vec![
        json!({"role": "assistant", "content": "Hello, you <b>there</b>!\n\n- [x] a\n"}),
        json!({"role": "assistant", "content": "It is 4.", "reasoning_content": "I think 2 + 2\nis 4."}),
        json!({"role": "assistant", "content": "", "tool_calls": [weather]}),
        json!({"role": "assistant", "content": "", "reasoning_content": "Let me look.",
            "tool_calls": [weather, call("get_time", json!({}))]}),
        json!({"role": "assistant", "content": "Let me see.", "tool_calls": [call("get_time", json!({}))]}),
    ]
}

/// An answer as a model would write it: what the template prints for it after the prompt, up to the end of the turn. `None`: the template
/// prints no such turn.
fn completion(template: &ChatTemplate, answer: &Value, generation_prompt: &str) -> Option<String> {
    let user = json!({"role": "user", "content": "Hello?"});
    let render = |messages: &[Value], add_generation_prompt: bool| {
        let input = RenderInput {
            messages,
            add_generation_prompt,
            bos_token: "<s>",
            eos_token: "</s>",
            tools: Some(&tools()),
            kwargs: &serde_json::Map::new(),
            now: std::time::UNIX_EPOCH,
            interrupt: None,
        };
        template.render(&input).ok()
    };
    let prompt = render(std::slice::from_ref(&user), true)?;
    let before = prompt.strip_suffix(generation_prompt)?;
    let mark = json!({"role": "assistant", "content": "a-mark"});
    let marked = render(&[user.clone(), mark], false)?;
    let end = marked.rsplit_once("a-mark").map_or("", |(_, end)| end);
    let whole = render(&[user, answer.clone()], false)?;
    let turn = whole.strip_prefix(before)?;
    // The history may lack a part of what the prompt already begins.
    let n_common = turn.bytes().zip(generation_prompt.bytes()).take_while(|(one, other)| one == other).count();
    let open_tag = turn.get(..n_common)?.rfind('<').filter(|open| !turn[*open..n_common].contains('>'));
    let turn = turn.get(open_tag.unwrap_or(n_common)..)?;
    // After calls there may be the last token only.
    let last = end.trim_end().rfind('<').map_or(end, |at| &end[at..]);
    Some(turn.strip_suffix(end).or_else(|| turn.strip_suffix(last)).unwrap_or(turn).to_owned())
}

/// Tools without the parts that OpenAI's API lets hosts leave out reach the model with every template that shows tools.
#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn templates_take_tools_without_optional_parts() {
    let with = |schema: Value| json!({"name": "get_it", "parameters": {"type": "object", "properties": {"a": schema}}});
    let functions = [
        json!({"name": "get_it"}),
        json!({"name": "get_it", "description": null, "parameters": null}),
        json!({"name": "get_it", "parameters": {}}),
        json!({"name": "get_it", "parameters": {"type": "object"}}),
        json!({"name": "get_it", "parameters": {"type": "object", "additionalProperties": {"type": "string"}}}),
        with(json!({})),
        with(true.into()),
        with(json!({"type": "string"})),
        with(json!({"type": ["string", "null"]})),
        with(json!({"enum": ["x", 1, null]})),
        with(json!({"anyOf": [{"type": "string"}, {"type": "null"}]})),
        with(json!({"type": "array", "items": {"type": "string"}})),
        with(json!({"type": "object", "properties": {"b": {"type": "integer"}}})),
    ];
    let (mut n, mut wrong) = (0, Vec::new());
    for (name, source) in real_templates() {
        let Ok(template) = ChatTemplate::parse(&source, None) else { continue };
        let prompt = |tools: &Value| {
            template.render(&RenderInput {
                messages: &[json!({"role": "user", "content": "Hello?"})],
                add_generation_prompt: true,
                bos_token: "<s>",
                eos_token: "</s>",
                tools: Some(tools),
                kwargs: &serde_json::Map::new(),
                now: std::time::UNIX_EPOCH,
                interrupt: None,
            })
        };
        if !prompt(&tools()).is_ok_and(|prompt| prompt.contains("get_weather")) {
            continue;
        }
        for function in &functions {
            n += 1;
            match prompt(&json!([{"type": "function", "function": function}])) {
                Ok(prompt) if prompt.contains("get_it") => {}
                other => wrong.push(format!("{name}: {other:?} with {function}")),
            }
        }
    }
    println!("{n} prompts");
    assert!(n > 600 && wrong.is_empty(), "{wrong:#?}");
}

/// Deltas add up to the message at every cut, and no cut fails, whatever the format. Grammars compile, and accept the end of the prompt.
#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn formats_of_real_templates_are_read_at_every_cut() {
    let (mut n_read, mut n_calls, mut n_grammars) = (0, 0, 0);
    for (name, source) in real_templates() {
        for choice in ["auto", "required", "none"] {
            let Ok(format) = try_format(&source, tools(), json!({"tool_choice": choice})) else { continue };
            if let Some(grammar) = &format.grammar {
                let mut compiled = Grammar::from_tree(
                    Arc::new(Letters),
                    Arc::clone(&grammar.tree),
                    grammar.root,
                    &foredraft_base::work::Work::unlimited(),
                )
                .unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(compiled.allows_text(b"").unwrap(), "{name}");
                n_grammars += 1;
            }
            let Ok(template) = ChatTemplate::parse(&source, None) else { continue };
            if choice != "auto" {
                continue;
            }
            for answer in answers() {
                let Some(text) = completion(&template, &answer, &format.generation_prompt) else { continue };
                let message = message_of(&format.reader, &text);
                n_read += 1;
                n_calls += usize::from(message.get("tool_calls").is_some());
            }
        }
    }
    println!("{n_read} completions, {n_calls} with calls, {n_grammars} grammars");
    assert!(n_read > 200 && n_calls > 80 && n_grammars > 90);
}
