//! Renders templates for tests, in the form of messages that each template expects.

use foredraft_jinja::{RenderLimits, Run, StopSignal, Template, Value as JinjaValue, stop_after};
use serde_json::{Value, json};

use crate::{ChatFormat, Conversation, detect};

/// The steps of a rendering that finds a format, and of all these renderings of a template, as in the library.
const STEPS: u64 = 400_000;
const ALL_STEPS: u64 = 1_000_000;

/// A template with the form of messages that it expects.
pub(crate) struct TestTemplate {
    template: Template,
    arguments_as_text: bool,
    null_content: bool,
}

impl TestTemplate {
    pub(crate) fn new(source: &str) -> TestTemplate {
        TestTemplate::parse(source).unwrap()
    }

    /// `None`: it is no template.
    pub(crate) fn parse(source: &str) -> Option<TestTemplate> {
        let template = Template::parse(source).ok()?;
        let mut template = TestTemplate { template, arguments_as_text: false, null_content: false };
        for null_content in [false, true] {
            for arguments_as_text in [false, true] {
                template.null_content = null_content;
                template.arguments_as_text = arguments_as_text;
                let call = json!({"type": "function", "id": "call00001", "function": {"name": "a_tool_name", "arguments": {"a_key": "v1"}}});
                let messages = [
                    json!({"role": "user", "content": "hi"}),
                    json!({"role": "assistant", "content": "", "tool_calls": [call]}),
                ];
                let prompt = template.render(&Conversation {
                    messages: &messages,
                    tools: Some(&tools()),
                    add_generation_prompt: false,
                });
                let shows = |prompt: &String| {
                    prompt.contains("a_tool_name")
                        && prompt.contains("a_key")
                        && !prompt.contains("'a_key'")
                        && !prompt.contains("\\\"a_key")
                };
                if prompt.as_ref().is_some_and(shows) {
                    return Some(template);
                }
            }
        }
        (template.null_content, template.arguments_as_text) = (false, false);
        Some(template)
    }

    pub(crate) fn render(&self, conversation: &Conversation) -> Option<String> {
        self.render_until(conversation, None)
    }

    fn render_until(&self, conversation: &Conversation, interrupt: Option<&StopSignal>) -> Option<String> {
        let messages: Vec<Value> = conversation.messages.iter().map(|message| self.adapted(message)).collect();
        let parts: Vec<Value> = messages
            .iter()
            .map(|message| {
                let mut message = message.clone();
                if let Some(text) = message["content"].as_str().filter(|text| !text.is_empty()) {
                    message["content"] = json!([{"type": "text", "text": text}]);
                }
                message
            })
            .collect();
        let shows_all = |prompt: &String| prompt.contains(messages[0]["content"].as_str().unwrap());
        let render = |messages: &[Value]| self.run(messages, conversation, interrupt);
        render(&messages).filter(shows_all).or_else(|| render(&parts).filter(|prompt| !prompt.contains("'text'")))
    }

    fn run(&self, messages: &[Value], conversation: &Conversation, interrupt: Option<&StopSignal>) -> Option<String> {
        // A test's thread has 2 MiB.
        let depth = foredraft_jinja::depth(1 << 20);
        let run = Run::new(RenderLimits {
            steps: STEPS,
            memory: 64 << 20,
            output: 64 << 10,
            depth,
            interrupt: interrupt.cloned(),
            mark: None,
        });
        let mut variables = vec![
            ("messages", value(&run, &json!(messages))),
            ("add_generation_prompt", JinjaValue::Bool(conversation.add_generation_prompt)),
            ("enable_thinking", JinjaValue::Bool(true)),
            ("bos_token", value(&run, &json!("<s>"))),
            ("eos_token", value(&run, &json!("</s>"))),
            ("date_string", value(&run, &json!("26 Jul 2024"))),
            ("datetime", value(&run, &json!("Jul 26 2024"))),
        ];
        if let Some(tools) = conversation.tools {
            variables.push(("tools", value(&run, tools)));
            variables.push(("functions", value(&run, &json!(tools.to_string()))));
        }
        let rendered = self.template.render(&run, variables, 0);
        if std::env::var_os("SHOW_FAULTS").is_some()
            && let Err(fault) = &rendered
        {
            println!("{fault}");
        }
        rendered.ok()
    }

    fn adapted(&self, message: &Value) -> Value {
        let mut message = message.clone();
        if message.get("tool_calls").is_some() && self.null_content && message["content"] == "" {
            message["content"] = Value::Null;
        }
        if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            for call in calls.iter_mut().filter(|_| self.arguments_as_text) {
                let arguments = call["function"]["arguments"].to_string();
                call["function"]["arguments"] = arguments.into();
            }
        }
        message
    }

    pub(crate) fn detect(&self) -> ChatFormat {
        let interrupt = stop_after(ALL_STEPS);
        let texts: Vec<&str> = self.template.texts().collect();
        detect(&texts, &|conversation| self.render_until(conversation, Some(&interrupt)))
    }
}

fn value(run: &Run, json: &Value) -> JinjaValue {
    match json {
        Value::Null => JinjaValue::None,
        Value::Bool(flag) => JinjaValue::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(number) => JinjaValue::Int(number.into()),
            None => JinjaValue::Float(number.as_f64().unwrap()),
        },
        Value::String(text) => run.text(text).unwrap(),
        Value::Array(items) => run.list(items.iter().map(|item| value(run, item)).collect()).unwrap(),
        Value::Object(map) => {
            run.dict(map.iter().map(|(name, item)| (run.text(name).unwrap(), value(run, item)))).unwrap()
        }
    }
}

pub(crate) fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "a_tool_name", "description": "d", "parameters": {"type": "object",
        "properties": {"a_key": {"type": "string", "description": "d"}}, "required": []}}}])
}
