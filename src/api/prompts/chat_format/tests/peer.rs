//! llama-server's messages for raw completions, and ours: `tests/hosts/chat_peer.cpp` calls llama.cpp's functions as llama-server does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use foredraft_chat::MessageParser;

use super::super::detect::tests::{tools, try_format};
use super::super::message::message_json;
use super::super::stream::tests::message_of;
use super::real_templates::real_templates;
use super::templates::{CHANNELS, OPEN_THINKING_TAGS, PLAIN, THINKING_JSON};
use super::{answers, completion};
use crate::api::prompts::chat::ChatTemplate;

/// A message without the ids that this library makes.
fn comparable(mut message: Value) -> Value {
    let fields = message.as_object_mut().unwrap();
    // llama.cpp keeps the space at the end of reasoning, and of content before a call.
    for key in ["content", "reasoning_content"] {
        if let Some(text) = fields.get(key).and_then(Value::as_str) {
            let text = text.trim().to_owned();
            fields.insert(key.to_owned(), text.into());
        }
    }
    fields.retain(|key, value| key != "role" && value != "" && value != &json!([]));
    for call in fields.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let arguments = call["function"]["arguments"].as_str().unwrap().to_owned();
        // As llama.cpp's own tests compare them.
        let arguments = serde_json::from_str(&arguments).unwrap_or_else(|_| Value::from(arguments));
        *call = json!([call["function"]["name"], arguments]);
    }
    message
}

/// llama.cpp's message of a line that `tests/hosts/chat_peer.cpp` writes, in the form of `comparable`.
fn peer_message(line: &Value) -> Value {
    let calls = line["tool_calls"].as_array().unwrap().iter().map(|call| json!({"function": call}));
    comparable(
        json!({"content": line["content"], "reasoning_content": line["reasoning_content"], "tool_calls": calls.collect::<Vec<_>>()}),
    )
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{}: {error}; run scripts/check.sh templates", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/templates").join(name)
}

/// Why llama.cpp's message is another one, if the difference is of a known kind.
fn argued(line: &Value, ours: &Value, theirs: &Value) -> Option<&'static str> {
    let text = |message: &Value, key: &str| message[key].as_str().unwrap_or_default().to_owned();
    let [our_content, their_content] = [ours, theirs].map(|message| text(message, "content"));
    let [our_reasoning, their_reasoning] = [ours, theirs].map(|message| text(message, "reasoning_content"));
    let same_calls = ours["tool_calls"] == theirs["tool_calls"];
    let prompt_text = "Here are my reasoning steps:\n";
    if their_reasoning.strip_prefix(prompt_text).is_some_and(|rest| rest == our_reasoning) && same_calls {
        return Some("the text with which the prompt begins reasoning is part of it for llama.cpp (Apriel)");
    }
    let is_required = line["request"]["tool_choice"] == "required";
    if is_required && ours["tool_calls"].is_null() && our_content.starts_with(&their_content) {
        return Some("a required call cannot be said behind text: the grammar here allows none");
    }
    let ends_with_call = ["</tool_call>", "<|END_ACTION|>"].iter().any(|end| our_reasoning.trim_end().ends_with(end));
    if is_required && ours["tool_calls"].is_null() && ends_with_call {
        return Some("a required call cannot be said before reasoning ends: the grammar here allows none");
    }
    if ours["tool_calls"].is_array()
        && theirs["tool_calls"].is_null()
        && their_reasoning.trim_start_matches(prompt_text).starts_with(&our_reasoning)
    {
        return Some("a call in reasoning that has not ended stays reasoning for llama.cpp with many templates");
    }
    let called_before_text =
        || our_reasoning.contains("</tool_call>") && !our_reasoning.trim_end().ends_with("</tool_call>");
    if ours["tool_calls"].is_null() && theirs["tool_calls"].is_array() && called_before_text() {
        return Some("a call in reasoning that has not ended is one here only at the end of the turn (GLM)");
    }
    if same_calls && ours["tool_calls"].is_array() && their_content.is_empty() && our_reasoning == their_reasoning {
        return Some("llama.cpp drops text behind calls (Gemma 4)");
    }
    let our_text = our_reasoning.strip_prefix("<|START_TEXT|>").unwrap_or(&our_reasoning);
    if our_text == their_content && our_content.is_empty() && same_calls {
        return Some(
            "llama.cpp takes a text for content where the prompt has begun reasoning (Nemotron Nano 2, Command R7B)",
        );
    }
    if their_content.contains(">>>") && ours["tool_calls"].is_array() {
        return Some("a call behind text is text for llama.cpp (functionary)");
    }
    if line["request"]["reasoning_format"] == "none" && our_content.ends_with(&their_content) && same_calls {
        return Some("with reasoning_format none, content here has the tags of reasoning that the prompt has");
    }
    let fence = our_content.strip_prefix("```json\n").and_then(|rest| rest.strip_suffix("\n```"));
    if fence == Some(&their_content) && our_reasoning == their_reasoning {
        return Some("the grammar of a document here allows no fence, so none is removed");
    }
    let ends = ["<|role_end|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"];
    if ends.iter().fold(our_content.clone(), |text, end| text.replace(end, "")) == their_content && same_calls {
        return Some("tokens around a turn are no text of a completion, so they are not removed");
    }
    let broken_off = |message: &Value| {
        let arguments = message["tool_calls"][0][1].as_str().map(|text| text.replace(' ', ""));
        arguments.map(|text| text.trim_start_matches('{').to_owned())
    };
    if line["is_partial"] == true && broken_off(ours).is_some() && broken_off(ours) == broken_off(theirs) {
        return Some("arguments that break off have other space, or no brace yet");
    }
    if their_content.is_empty() && their_reasoning == our_reasoning && ours["tool_calls"].is_null() {
        return Some("llama.cpp drops messages to other recipients (gpt-oss)");
    }
    if our_content.starts_with("<|tool_call_begin|>") || our_reasoning.contains("<|tool_call_begin|>") {
        return Some("calls without their ends are no calls here (Kimi K2)");
    }
    if our_reasoning.is_empty() && their_reasoning == "I'm thinking" && ours["tool_calls"].is_null() {
        return Some("llama.cpp knows tags of reasoning that the template does not have (Kimi K2 Instruct)");
    }
    if ours["tool_calls"].to_string().contains("{\"label\":{\"text\":\"hi\"}}") {
        return Some("llama.cpp reads elements in an argument with several types as text (MiniMax M3)");
    }
    let begin = "<|content|>";
    (their_content.strip_prefix(begin) == Some(&our_content))
        .then_some("llama.cpp keeps the beginning of content (Solar)")
}

/// The differences between llama.cpp's messages and ours.
fn differences(lines: &[Value]) -> Vec<String> {
    let (mut wrong, mut known) = (Vec::new(), BTreeMap::new());
    for line in lines {
        let completion = line["completion"].as_str().unwrap();
        let what = format!("{completion:?} {}", line["request"]);
        let mut more = line["request"].clone();
        let tools = more.as_object_mut().unwrap().remove("tools").unwrap_or_default();
        let format = match try_format(line["template"].as_str().unwrap(), tools, more) {
            Ok(format) => format,
            Err(error) => {
                wrong.push(format!("{error}: {what}"));
                continue;
            }
        };
        // llama-server repeats the part of a continued message that the request gave.
        let mut ours = message_of(&format.reader, completion);
        let given = message_json(MessageParser::new(std::sync::Arc::clone(&format.reader)).given(), false);
        for key in ["content", "reasoning_content"] {
            let [before, more] = [&given, &ours].map(|message| message[key].as_str().unwrap_or_default().to_owned());
            ours[key] = (before + &more).into();
        }
        let ours = comparable(ours);
        let theirs = peer_message(line);
        // Where llama-server answers with an error, or its message has nothing of a text that does not have the format, this library keeps
        // the text.
        let is_lost = line["is_partial"] == true && theirs == json!({});
        if line.get("fails").is_some() || is_lost || ours == theirs {
            continue;
        }
        if let Some(why) = argued(line, &ours, &theirs) {
            *known.entry(why).or_insert(0) += 1;
        } else {
            wrong.push(format!("ours {ours}, llama.cpp's {theirs}: {what}"));
        }
    }
    println!("{} of {} differ: {known:#?}", known.values().sum::<usize>(), lines.len());
    wrong
}

/// For every completion in llama.cpp's tests of chat formats: llama-server's message is ours, however the completion is cut.
#[test]
#[ignore = "downloads and compiles llama.cpp's tests (scripts/check.sh templates)"]
fn messages_of_real_templates_are_those_of_llama_cpp() {
    let lines = lines(&file("chat-messages.jsonl"));
    assert!(lines.len() > 400);
    let wrong = differences(&lines);
    std::fs::write(file("chat-messages-differences.txt"), wrong.join("\n")).unwrap();
    assert!(wrong.is_empty(), "{} of {} differ", wrong.len(), lines.len());
}

/// The program, without llama.cpp's tests. None: there is no C++ compiler.
fn program() -> Option<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if !Command::new(&compiler).arg("--version").output().is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "CI needs {compiler}");
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut common = Command::new(root.join("scripts/llama-common.sh"));
    let common = common.args([env!("LLAMA_CPP_SOURCES"), env!("LLAMA_CPP_LIBRARIES")]).output().unwrap();
    assert!(common.status.success(), "{}", String::from_utf8_lossy(&common.stderr));
    // Tests run at the same time.
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let program = std::env::temp_dir().join(format!("foredraft-chat-peer-{}-{run}", std::process::id()));
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O0", "-w", "-DCOMPLETIONS_ONLY"]);
    command.arg(root.join("tests/hosts/chat_peer.cpp")).arg("-o").arg(&program);
    command.args(String::from_utf8_lossy(&common.stdout).lines());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Completions of a template, each a line for the program: what the template itself prints for an answer after the prompt.
fn completions(source: &str) -> Vec<Value> {
    let Ok(renderer) = ChatTemplate::parse(source, None) else { return Vec::new() };
    let mut lines = Vec::new();
    for (tools, choice) in [(tools(), "auto"), (tools(), "required"), (json!([]), "auto")] {
        let mut request = json!({"messages": [{"role": "user", "content": "Hello?"}], "tool_choice": choice, "parallel_tool_calls": true,
            "reasoning_format": "auto"});
        let Ok(format) = try_format(source, tools.clone(), request.clone()) else { continue };
        // The generic format is not the template's.
        if format.messages.is_some() {
            continue;
        }
        if tools != json!([]) {
            request["tools"] = tools;
        }
        for answer in answers() {
            if choice == "required" && answer["tool_calls"].is_null()
                || request["tools"].is_null() && answer["tool_calls"].is_array()
            {
                continue;
            }
            let Some(text) = completion(&renderer, &answer, &format.generation_prompt) else { continue };
            lines.push(json!({"template": source, "request": request, "completion": text}));
        }
    }
    lines
}

/// The differences between llama-server's messages and ours for these completions, and the numbers of completions, of them with calls and
/// with reasoning. None: there is no C++ compiler.
fn compared(given: &[Value]) -> Option<(Vec<String>, [usize; 3])> {
    let program = program()?;
    let [input, output] = ["in", "out"].map(|name| program.with_extension(name));
    std::fs::write(&input, given.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let finished = Command::new(&program).arg(&input).arg(&output).output().unwrap();
    assert!(finished.status.success(), "{}", String::from_utf8_lossy(&finished.stderr));
    let lines = lines(&output);
    for path in [&program, &input, &output] {
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(lines.len(), given.len());
    let with = |is: fn(&Value) -> bool| lines.iter().filter(|line| is(line)).count();
    let n_calls = with(|line| line["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty()));
    let counts = [lines.len(), n_calls, with(|line| line["reasoning_content"] != "")];
    Some((differences(&lines), counts))
}

/// The sample that needs no download.
#[test]
fn messages_of_small_templates_are_those_of_llama_cpp() {
    let given: Vec<Value> =
        [PLAIN, THINKING_JSON, CHANNELS, OPEN_THINKING_TAGS].into_iter().flat_map(completions).collect();
    let Some((wrong, [n, n_calls, n_reasoning])) = compared(&given) else { return };
    assert!(wrong.is_empty(), "{} of {n} differ: {}", wrong.len(), wrong.join("\n"));
    assert!(n >= 20 && n_calls >= 5 && n_reasoning >= 3, "{n} {n_calls} {n_reasoning}");
}

/// For what each real template prints for answers with text, reasoning and calls.
#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn messages_of_every_template_are_those_of_llama_cpp() {
    let (mut given, mut without) = (Vec::new(), Vec::new());
    for (name, source) in real_templates() {
        let lines = completions(&source);
        if lines.is_empty() {
            without.push(name);
        }
        given.extend(lines);
    }
    let (wrong, [n, n_calls, n_reasoning]) = compared(&given).expect("a C++ compiler");
    println!("{n} completions, {n_calls} with calls, {n_reasoning} with reasoning; none of {without:?}");
    std::fs::write(file("template-differences.txt"), wrong.join("\n")).unwrap();
    assert!(wrong.is_empty(), "{} of {n} differ", wrong.len());
    assert!(n > 500 && n_calls > 130 && n_reasoning > 60);
}
