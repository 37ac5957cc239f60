use foredraft_chat::{ChatMessage, MessageParser};

use super::*;
use foredraft_jinja::StopSignal;

use crate::api::prompts::chat::{ChatTemplate, RenderInput};
use crate::api::prompts::chat_format::KnownTemplate;
use crate::api::prompts::chat_format::tests::templates::{OPEN_THINKING_TAGS, PLAIN, THINKING_JSON};
use crate::api::wire::fields::Fields;
use crate::api::wire::request::validate_tools;

/// Two tools.
pub(in crate::api::prompts::chat_format) fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}},
        {"type": "function", "function": {"name": "get_time"}},
    ])
}

/// The text that `add_generation_prompt` adds after these messages.
fn generation_prompt(template: &ChatTemplate, messages: &[Value], kwargs: &Map<String, Value>) -> Option<String> {
    let render = |add_generation_prompt| {
        let input = RenderInput {
            messages,
            add_generation_prompt,
            bos_token: "",
            eos_token: "",
            tools: Some(&tools()),
            kwargs,
            now: std::time::UNIX_EPOCH,
            interrupt: None,
        };
        template.render(&input).ok()
    };
    render(true)?.strip_prefix(&render(false)?).map(str::to_owned)
}

/// The format of the answer to a request with a template, tools, and more fields, or the error.
pub(in crate::api::prompts::chat_format) fn try_format(
    source: &str,
    tools: Value,
    more: Value,
) -> Result<AnswerFormat> {
    let never: StopSignal = Arc::new(|| false);
    let KnownTemplate { template, format } = KnownTemplate::find(source, &Default::default(), &never)?;
    let mut request = json!({"messages": [{"role": "user", "content": "Hello?"}], "tools": tools});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut fields = Fields::new(request.as_object().unwrap());
    let chat = ChatInput::read(&mut fields, None)?.unwrap();
    validate_tools(&chat.tools)?;
    let options = ChatOptions::read(&mut fields, true)?.unwrap();
    let before = chat.messages.len() - usize::from(options.continuation.is_some());
    let prompt = generation_prompt(&template, &chat.messages[..before], &chat.chat_template_kwargs);
    AnswerFormat::new(&FormatRequest {
        template: &format,
        fails_with_tools: None,
        generation_prompt: &prompt.unwrap_or_default(),
        chat: &chat,
        options: &options,
        json_schema: options.response_schema.as_ref(),
        schema_options: foredraft_schema::CompileOptions::default(),
        is_unconstrained: false,
        work: &Work::new(1 << 23, None),
    })
}

/// The automaton of a grammar.
fn compiled(grammar: &FormatGrammar) -> crate::grammar::Grammar {
    crate::grammar::Grammar::from_tree(
        Arc::new(Letters),
        Arc::clone(&grammar.tree),
        grammar.root,
        &foredraft_base::work::Work::unlimited(),
    )
    .unwrap()
}

fn allows(grammar: &FormatGrammar, text: &str) -> bool {
    compiled(grammar).allows_text(text.as_bytes()).unwrap()
}

/// Whether a grammar allows the beginning of a call of this tool, and no text before it.
fn begins(grammar: &FormatGrammar, tool: &str) -> bool {
    allows(grammar, &format!("<tool_call>\n{{\"name\": \"{tool}\"")) && !allows(grammar, "Hello")
}

/// The message that a reader makes of a text.
fn message(reader: &Arc<MessageReader>, text: &str) -> ChatMessage {
    let mut parser = MessageParser::new(Arc::clone(reader));
    parser.push(text);
    parser.finish();
    parser.message()
}

/// The format of the answer to a request with a template, tools, and more fields.
pub(in crate::api::prompts::chat_format) fn format(template: &str, tools: Value, more: Value) -> AnswerFormat {
    try_format(template, tools, more).unwrap()
}

/// The reader of answers to a request with two tools.
pub(in crate::api::prompts::chat_format) fn reader(template: &str) -> Arc<MessageReader> {
    format(template, tools(), json!({})).reader
}

/// The reader of answers that no grammar constrains, with two tools.
pub(in crate::api::prompts::chat_format) fn lenient_reader(source: &str) -> Arc<MessageReader> {
    let never: StopSignal = Arc::new(|| false);
    let known = KnownTemplate::find(source, &Default::default(), &never).unwrap();
    let request = json!({"messages": [{"role": "user", "content": "Hello?"}], "tools": tools()});
    let mut fields = Fields::new(request.as_object().unwrap());
    let (chat, options) =
        (ChatInput::read(&mut fields, None).unwrap().unwrap(), ChatOptions::read(&mut fields, true).unwrap().unwrap());
    let tools = callable_tools(&chat, &options, &Work::unlimited()).unwrap();
    Arc::new(
        MessageReader::new(
            known.format.clone(),
            tools,
            ReaderOptions::default(),
            &foredraft_base::work::Work::unlimited(),
        )
        .unwrap(),
    )
}

#[test]
fn formats_are_found() {
    let format = format(THINKING_JSON, tools(), json!({}));
    let grammar = format.grammar.unwrap();
    assert!(allows(&grammar, "Hello <tool_call>\n{\"name\": \"get_time\"") && !allows(&grammar, "<tool_call>x"));
    assert_eq!(format.thinking, Some(ThinkingTags { start: "<think>".to_owned(), ends: vec!["</think>".to_owned()] }));
    assert_eq!(format.generation_prompt, "<|im_start|>assistant\n");
    assert_eq!(format.preserved, ["</think>", "</tool_call>", "<think>", "<tool_call>"]);
    assert_eq!((format.messages, format.warnings), (None, Vec::new()));
}

#[test]
fn tool_choice_decides_on_the_grammar() {
    let grammar = |choice: Value| format(THINKING_JSON, tools(), json!({"tool_choice": choice})).grammar;
    assert!(grammar(json!("none")).is_none());
    let required = grammar(json!("required")).unwrap();
    assert!(begins(&required, "get_weather"));
    let one = grammar(json!({"type": "function", "function": {"name": "get_time"}})).unwrap();
    assert!(begins(&one, "get_time") && !begins(&one, "get_weather"));
    let allowed = |mode: &str, names: &[&str]| {
        let tools: Vec<_> = names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    };
    let one = grammar(allowed("required", &["get_time"])).unwrap();
    assert!(begins(&one, "get_time") && !begins(&one, "get_weather") && !allows(&one, "Hello"));
    let maybe = grammar(allowed("auto", &["get_time"])).unwrap();
    let call = |name: &str| format!("<tool_call>\n{{\"name\": \"{name}\"");
    assert!(allows(&maybe, "Hello") && allows(&maybe, &call("get_time")) && !allows(&maybe, &call("get_weather")));
    let both = grammar(allowed("required", &["get_time", "get_weather"])).unwrap();
    assert!(begins(&both, "get_time") && begins(&both, "get_weather"));
    let error = |choice: Value| try_format(PLAIN, json!(null), json!({"tool_choice": choice})).unwrap_err();
    for wrong in [
        allowed("always", &["get_time"]),
        allowed("auto", &[]),
        json!({"allowed_tools": {"mode": "auto", "tools": [1]}}),
    ] {
        assert!(error(wrong).message().starts_with("tool_choice: expected \"auto\""));
    }
    assert_eq!(error(allowed("auto", &["get_time", "x"])).message(), "tool_choice: there is no tool \"get_time\"");
    assert_eq!(error(json!("required")).message(), "tool_choice: \"required\" needs tools, and there are none");
    assert_eq!(error(json!({"function": {"name": "x"}})).message(), "tool_choice: there is no tool \"x\"");
}

#[test]
fn template_without_a_place_for_tools_warns() {
    let auto = format(PLAIN, tools(), json!({}));
    let warning = "tools: the chat template has no place for them, so the model does not see them";
    assert_eq!(auto.warnings.as_slice(), &[warning.to_owned()]);
    assert!(auto.grammar.is_none());
    assert_eq!(format(PLAIN, tools(), json!({"tool_choice": "none"})).warnings, Vec::<String>::new());
}

/// Hosts describe tools in the system message, as DeepSeek V3.1 wants it.
#[test]
fn calls_are_read_where_the_template_prints_calls_but_no_tools() {
    let template = THINKING_JSON.replace("{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}", "");
    let format = format(&template, tools(), json!({}));
    let warning = "tools: the chat template has no place for them, so the model does not see them";
    assert_eq!(format.warnings, [warning]);
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let calls = [call, call].join("\n");
    let message = message(&format.reader, &calls);
    assert_eq!((message.content.as_str(), message.calls.len()), ("", 2));
    assert!(compiled(&format.grammar.unwrap()).allows_text(calls.as_bytes()).unwrap());
}

#[test]
fn generic_format_calls_where_the_template_cannot() {
    for parallel in [false, true] {
        let format = format(PLAIN, tools(), json!({"tool_choice": "required", "parallel_tool_calls": parallel}));
        let grammar = format.grammar.unwrap();
        let messages = format.messages.unwrap();
        let system = messages.first().unwrap();
        assert_eq!(system["role"], "system");
        assert!(system["content"].as_str().unwrap().contains("\"description\":\"Weather\""), "{system}");
        assert_eq!(
            format.warnings,
            ["tools: the chat template has no place for them, so they are in the system message"]
        );
        let call = r#"{"name": "get_time", "arguments": {}}"#;
        let text = if parallel { format!("[{call}, {call}]") } else { call.to_owned() };
        let mut compiled = compiled(&grammar);
        assert!(compiled.allows_text(text.as_bytes()).unwrap(), "{text}");
        assert_eq!(message(&format.reader, &text).calls.len(), 1 + usize::from(parallel));
    }
}

#[test]
fn reasoning_stays_in_the_content_on_request() {
    let read = |more: Value| {
        let format = format(THINKING_JSON, tools(), more);
        message(&format.reader, "<think>\na\n</think>\n\nb")
    };
    let split = read(json!({"reasoning_format": "deepseek"}));
    assert_eq!((split.reasoning.as_str(), split.content.as_str()), ("a", "b"));
    let inline = read(json!({"reasoning_format": "none"}));
    assert_eq!((inline.reasoning.as_str(), inline.content.as_str()), ("", "<think>\na\n</think>\n\nb"));
}

#[test]
fn schema_of_the_content_follows_reasoning() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let more = json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let format = format(OPEN_THINKING_TAGS, json!(null), more);
    let grammar = format.grammar.unwrap();
    let prompted = |text: &str| allows(&grammar, &format!("{}{text}", grammar.prefix));
    assert!(
        grammar.prefix.contains("<think>") && prompted("so</think>\n{\"a\": 1}") && !prompted("so</think>\n{\"b\"")
    );
    let message = message(&format.reader, "so\n</think>\n\n{\"a\": 1}");
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("so", "{\"a\": 1}"));
}

#[test]
fn hostile_tools_are_refused_or_harmless() {
    let named = |name: &str| json!([{"type": "function", "function": {"name": name}}]);
    for name in ["a\"b", "a\nb", "", "a b", "<tool_call>", "a\\", "\u{0}", &"x".repeat(1000)] {
        let error = try_format(THINKING_JSON, named(name), json!({})).unwrap_err();
        assert!(error.message().starts_with("tools[0].function.name: expected"), "{name:?}: {}", error.message());
    }
    for name in ["a", "get_x-y.z/1:2", "größe"] {
        assert!(try_format(THINKING_JSON, named(name), json!({})).is_ok(), "{name}");
    }
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    for (tools, expected) in [
        (json!([1]), "tools[0]: expected {\"type\": \"function\""),
        (json!([{"type": "browser"}]), "tools[0]: expected"),
        (json!([{"type": "function"}]), "tools[0]: expected"),
        (tool(json!({})), "tools[0].function.name: expected a string, got null"),
        (tool(json!({"name": "a", "description": 1})), "tools[0].function.description: expected a string, got 1"),
        (
            tool(json!({"name": "a", "parameters": [1]})),
            "tools[0].function.parameters: expected a JSON schema, got [1]",
        ),
        (tool(json!({"name": "a", "parameters": {"type": "nothing"}})), "tools[0].function.parameters: "),
        (tool(json!({"name": "a", "parameters": {"$ref": "#/nowhere"}})), "tools[0].function.parameters: "),
        (json!([{"function": {"name": "a_b"}}, {"function": {"name": "a-b"}}]), "tools[1].function.name: "),
        (json!([{"function": {"name": "a"}}, {"function": {"name": "a"}}]), "tools[1].function.name: "),
    ] {
        let error = try_format(THINKING_JSON, tools.clone(), json!({})).unwrap_err();
        assert!(error.message().starts_with(expected), "{tools}: {}", error.message());
    }
    // A grammar cannot enforce this.
    let loose = try_format(
        THINKING_JSON,
        tool(json!({"name": "a", "parameters": {"type": "object", "not": {"propertyNames": {"pattern": "a"}}}})),
        json!({}),
    )
    .unwrap();
    assert!(
        loose.warnings.iter().any(|warning| warning.starts_with("tools[0].function.parameters: ")),
        "{:?}",
        loose.warnings
    );
}

#[test]
fn tools_with_references_keep_their_own_definitions() {
    let tool = |name: &str, kind: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object",
            "properties": {"x": {"$ref": "#/$defs/it"}}, "required": ["x"], "$defs": {"it": {"type": kind}}}}})
    };
    let format = format(THINKING_JSON, json!([tool("one", "integer"), tool("two", "boolean")]), json!({}));
    let text = |name: &str, value: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"x\": {value}}}}}\n</tool_call>")
    };
    for (name, value, allowed) in
        [("one", "1", true), ("one", "true", false), ("two", "true", true), ("two", "1", false)]
    {
        let mut grammar = compiled(format.grammar.as_ref().unwrap());
        assert_eq!(grammar.allows_text(text(name, value).as_bytes()).unwrap(), allowed, "{name} {value}");
    }
}

#[test]
fn thousand_tools_have_a_format() {
    let tool = |index: usize| {
        json!({"type": "function", "function": {"name": format!("tool{index}"), "parameters": {"type": "object",
            "properties": {"x": {"type": "string", "description": "What it is"}, "y": {"enum": ["a", "b"]}}, "required": ["x"]}}})
    };
    let format = format(THINKING_JSON, (0..1000).map(tool).collect(), json!({}));
    let text = "<tool_call>\n{\"name\": \"tool999\", \"arguments\": {\"x\": \"\", \"y\": \"b\"}}\n</tool_call>";
    assert_eq!(message(&format.reader, text).calls.first().unwrap().name, "tool999");
    assert!(compiled(&format.grammar.unwrap()).allows_text(text.as_bytes()).unwrap());
}

/// A template that refuses tools is found without them.
#[test]
fn template_that_refuses_tools_has_a_format() {
    let fails = format!("{{% if tools %}}{{{{ raise_exception('no tools') }}}}{{% endif %}}{PLAIN}");
    let found = format(&fails, tools(), json!({}));
    assert!(found.grammar.is_none() && found.warnings.len() == 1, "{:?}", found.warnings);
    assert!(format(&fails, tools(), json!({"tool_choice": "required"})).grammar.is_some());
}

/// The answer is a call or a document.
#[test]
fn tools_and_a_schema_of_the_content_are_both_enforced() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let more = json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let format = format(THINKING_JSON, tools(), more);
    let grammar = format.grammar.unwrap();
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    for (text, allowed) in
        [(call, true), ("{\"a\": 1}", true), ("<think>x</think>{\"a\": 1}", true), ("{\"b\"", false), ("Hello", false)]
    {
        let mut compiled = compiled(&grammar);
        assert_eq!(compiled.allows_text(text.as_bytes()).unwrap(), allowed, "{text}");
    }
}

#[test]
fn long_conversation_is_seen_in_part() {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let long = "\u{e9}".repeat(20 << 10);
    let mut messages = vec![message("system", "Be brief.")];
    messages.extend((0..100).flat_map(|_| [message("user", "Hi"), message("assistant", &long)]));
    let parts = json!({"role": "user", "content": [{"type": "text", "text": long}]});
    messages.extend([parts, json!({"role": "assistant", "content": null}), message("tool", "ok")]);
    let seen = shortened(&messages, false);
    let roles: Vec<&str> = seen.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    assert_eq!(seen[1]["content"][0]["text"].as_str().unwrap().len(), MAX_SEEN_TEXT);
    assert_eq!(shortened(&messages, true).len(), messages.len());
    assert_eq!(shortened(&messages[..2], false), messages[..2]);
}

#[test]
fn of_many_messages_the_last_are_seen() {
    let message = |role: &str| json!({"role": role, "content": "a"});
    let roles = |messages: &[Value]| {
        let seen = shortened(messages, false);
        seen.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let turns = |n: usize| (0..n).flat_map(|_| [message("user"), message("assistant")]);
    let many: Vec<Value> = turns(3500).chain([message("user")]).collect();
    assert_eq!(roles(&many), ["user"]);
    assert_eq!(roles(&many[..65]), ["user"]);
    assert_eq!(roles(&many[..64]).len(), 64);
    // A turn of many calls: its question, and the last calls with their results.
    let calls = (0..500).flat_map(|_| [message("assistant"), message("tool")]);
    let long_turn: Vec<Value> =
        [message("system")].into_iter().chain(turns(40)).chain([message("user")]).chain(calls).collect();
    let seen = roles(&long_turn);
    assert_eq!(&seen[..4], ["system", "user", "assistant", "tool"]);
    assert_eq!((seen.len(), seen[2..].chunks(2).all(|pair| pair == ["assistant", "tool"])), (32, true));
    assert!(roles(&vec![message("system"); 1000]).len() <= 64);
}

/// A vocabulary without tokens.
#[derive(Debug)]
pub(in crate::api::prompts::chat_format) struct Letters;

impl crate::llama::Vocabulary for Letters {
    fn n_tokens(&self) -> usize {
        0
    }

    fn piece(&self, _: crate::llama::Token) -> &[u8] {
        &[]
    }

    fn is_eog(&self, _: crate::llama::Token) -> bool {
        false
    }

    fn newline(&self) -> Option<crate::llama::Token> {
        None
    }

    fn tokenize(&self, _: &[u8], _: bool) -> Result<Vec<crate::llama::Token>> {
        Ok(Vec::new())
    }
}
