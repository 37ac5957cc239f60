//! Chats of an isolated engine: the deltas of an answer put together are its message, whatever died when.

use std::time::Duration;

use foredraft::api::{Function, JsonEngine};
use serde_json::{Map, Value, json};

use crate::common::chat::{PLAIN, TOOLS, sum_of_deltas};
use crate::common::{Endpoint, complete, start as start_local, tiny_models, with};
use crate::deaths::{SIGNALS, Updates, survived_deaths};
use crate::process::{call, drain, kill, pid, start, submit};

/// An answer with all parts that a message can have, each of them long.
const ALL_PARTS: &str = r#"root ::= "<think>\n" word{20} "\n</think>\n\n" word{20} call call
word ::= [a-z] [a-z] [a-z] " "
call ::= "<tool_call>\n{\"name\": \"say\", \"arguments\": {\"text\": \"" word{20} "\"}}\n</tool_call>""#;

fn say() -> Value {
    json!({"name": "say", "parameters": {"type": "object", "properties": {"text": {"type": "string", "minLength": 100, "maxLength": 140}},
        "required": ["text"], "additionalProperties": false}})
}

/// One request of each kind, by its name.
pub fn chats() -> Vec<(&'static str, Value)> {
    let chat = json!({"messages": [{"role": "user", "content": "Tell me a story."}], "seed": 3, "n_predict": 150, "return_tokens": true});
    let tools = json!([{"type": "function", "function": say()}]);
    let all = json!({"chat_template": TOOLS, "tools": tools, "grammar": ALL_PARTS, "n_predict": 900});
    let required =
        json!({"chat_template": PLAIN, "tools": tools, "tool_choice": "required", "parallel_tool_calls": false});
    let function = json!({"chat_template": PLAIN, "functions": [say()], "function_call": {"name": "say"}});
    [
        ("a chat", json!({"ignore_eos": true})),
        ("reasoning, content and two calls", all),
        ("a required call", required),
        ("a required function_call", function),
        ("a chat with logprobs", json!({"ignore_eos": true, "logprobs": true, "top_logprobs": 2})),
        ("two answers", json!({"ignore_eos": true, "n": 2, "tag": {"a": 1}})),
        ("two answers with logprobs", json!({"ignore_eos": true, "n": 2, "logprobs": true})),
    ]
    .map(|(name, more)| (name, with(&chat, more)))
    .into()
}

#[test]
fn prepared_turns_survive_the_death_of_the_process() {
    let config = json!({"n_ctx": 1024, "n_parallel": 1});
    let prompt = "Once upon a time, there was a small cat. ".repeat(12);
    let asked = json!({"prompt": prompt, "n_predict": 20, "temperature": 0.9, "seed": 3, "ignore_eos": true, "conversation": "cat"});
    let alone = complete(&start_local(config.clone()), Endpoint::Foredraft, &asked)["content"].clone();
    let engine = start(config);
    let begun = with(&asked, json!({"begin": true}));
    let prepare = || call(&engine, Function::Prepare, &begun)["id"].as_u64().expect("an id");
    let has_ended = |id: u64| {
        let answer =
            engine.poll(Some(json!({"id": id, "timeout_ms": 1000}).to_string().as_bytes())).expect("an answer");
        assert_eq!(answer["completion_updates"], json!([]), "{answer}");
        answer["finished"] == true
    };
    for kills in [false, true] {
        // A stopped process has not ended the turn when it dies.
        let process = pid(&engine);
        if kills {
            kill(process, "STOP");
        }
        let id = prepare();
        if kills {
            kill(process, "KILL");
        }
        while !has_ended(id) {}
        let answer = call(&engine, Function::Complete, &asked);
        assert_eq!((&answer["content"], &answer["timings"]["begun_n"]), (&alone, &json!(19)), "{answer}");
    }
    // The process dies with an answer that it has begun.
    let id = prepare();
    while !has_ended(id) {}
    kill(pid(&engine), "KILL");
    assert_eq!(call(&engine, Function::Complete, &asked)["content"], alone);
    let refused = engine.call(Function::Prepare, Ok(br#"{"prompt": "a"}"#)).expect_err("no conversation");
    assert!(refused.message().starts_with("conversation: "), "{refused}");
}

#[test]
fn decisions_have_the_answers_of_an_engine_in_this_process() {
    let config = json!({"n_ctx": 1024});
    let question = |number: usize| json!({"type": "noul", "instructions": format!("Number {number} is in the story.")});
    let questions: Map<String, Value> = (0..20).map(|number| (number.to_string(), question(number))).collect();
    let request = json!({"state": "Tom had a red kite.", "questions": questions});
    let decide = |engine: &JsonEngine| call(engine, Function::Decide, &request);
    let (local, isolated) = (decide(&start_local(config.clone())), start(config));
    let answer = decide(&isolated);
    assert_eq!((&local["answers"], &local["usage"]), (&answer["answers"], &answer["usage"]));
    assert!(answer.get("content").is_none(), "{answer}");
    // The process dies, and its successor answers.
    let id = submit(&isolated, &request);
    kill(pid(&isolated), "KILL");
    let updates = drain(&isolated, id);
    assert_eq!(updates.last().expect("an end")["answers"], local["answers"]);
    let refused = isolated.call(Function::Decide, Ok(br#"{"state": "a", "questions": {"": {}}}"#)).expect_err("no id");
    assert!(refused.message().contains("questions: expected an id"), "{refused}");
}

/// The host's process makes the answers of the scores that arrive, in the form of the model that it does not have.
#[test]
fn native_decision_models_have_the_answers_of_an_engine_in_this_process() {
    const TEMPLATE: &str =
        "{{ state }} {{ instructions }}{% for o in options %} {{ o.label }}: {{ o.key }}{% endfor %}";
    let question = |kind: &str, criteria: Value| json!({"type": kind, "instructions": "Which?", "criteria": criteria});
    let questions = json!({"pick": question("choice", json!({"kite": null, "hat": null, "dog": null})),
        "level": question("score", json!(["no", "yes"])), "lost": question("noul", Value::Null)});
    let request = json!({"state": "Tom had a red kite.", "questions": questions});
    for kind in ["openjev", "lev", "nimble", "kev"] {
        let texts = [("tokenizer.chat_template.systemone", TEMPLATE), ("gemma3.decision.type", kind)];
        let model = tiny_models::with_seed(9, || tiny_models::with_texts("native-isolated", &texts));
        let config = json!({"model": model, "model_draft": null, "n_ctx": 512});
        let (local, isolated) = (start_local(config.clone()), start(config));
        let decide = |engine: &JsonEngine| engine.call(Function::Decide, Ok(request.to_string().as_bytes()));
        if kind == "kev" {
            let error = decide(&isolated).expect_err("it is refused");
            assert_eq!(error.message(), decide(&local).expect_err("it is refused").message());
            continue;
        }
        let answer = decide(&isolated).expect("an answer");
        assert_eq!(answer["answers"], decide(&local).expect("an answer")["answers"], "{kind}");
    }
}

/// An encoder of decisions answers a call, for which the process of the engine has the model.
#[test]
fn encoders_of_decisions_answer_in_another_process() {
    const TEMPLATE: &str = "<|endoftext|>{{ instructions }}<|im_end|>{% for o in options %}<|im_start|>{{ o.key }}{% endfor %}<|im_end|>{{ state }}<|im_end|>";
    let config = json!({"model": tiny_models::decision_encoder(TEMPLATE, "64"), "model_draft": null, "n_ctx": 512});
    let (local, isolated) = (start_local(config.clone()), start(config));
    let request =
        json!({"state": "Tom had a red kite.", "questions": {"lost": {"type": "noul", "instructions": "It is lost."}}});
    let decide =
        |engine: &JsonEngine| engine.call(Function::Decide, Ok(request.to_string().as_bytes())).expect("an answer");
    assert_eq!(decide(&isolated), decide(&local));
    let refused = isolated.call(Function::Submit, Ok(request.to_string().as_bytes())).expect_err("nothing to poll");
    assert!(refused.message().contains("which answers foredraft_decide alone"), "{refused}");
}

/// A message without the ids of its calls, which are drawn.
fn without_ids(message: &Value) -> Value {
    let mut message = message.clone();
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        call.as_object_mut().expect("a call").remove("id");
    }
    message.as_object_mut().expect("a message").retain(|_, part| !part.is_null());
    message
}

/// The tokens of a list of log-probabilities.
fn logprobs(answer: &Value) -> Vec<Value> {
    let content = answer["logprobs"]["content"].as_array().cloned().unwrap_or_default();
    content.into_iter().map(|entry| entry["token"].clone()).collect()
}

/// Checks the updates of a request against the answer of an engine in this process.
pub fn assert_whole(name: &str, updates: &[Value], expected: &Value) {
    let completions = expected["results"].as_array().cloned().unwrap_or_else(|| vec![expected.clone()]);
    for (index, expected) in completions.iter().enumerate() {
        let of_it = |update: &&Value| expected.get("index").is_none_or(|_| update["index"] == index);
        let own: Vec<&Value> = updates.iter().filter(of_it).collect();
        let (last, rest) = own.split_last().unwrap_or_else(|| panic!("{name}: {updates:?}"));
        assert!(rest.iter().all(|update| update["stop"] == false) && last["stop"] == true, "{name}: {last}");
        assert!(own.iter().all(|update| update.get("tag") == expected.get("tag")), "{name}: {own:?}");
        assert_eq!(sum_of_deltas(&own), last["message"], "{name} {index}");
        assert_eq!(without_ids(&last["message"]), without_ids(&expected["message"]), "{name} {index}");
        assert_eq!(last["finish_reason"], expected["finish_reason"], "{name} {index}");
        let content: String = own.iter().map(|update| update["content"].as_str().expect("content")).collect();
        assert_eq!(expected["content"], content.as_str(), "{name} {index}");
        let streamed: Vec<Value> = rest.iter().flat_map(|update| logprobs(update)).collect();
        assert_eq!((&streamed, &logprobs(last)), (&logprobs(expected), &logprobs(expected)), "{name} {index}");
        let tokens: Vec<Value> =
            own.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect();
        assert_eq!(expected["tokens"], json!(tokens), "{name} {index}");
    }
}

/// Lets a chat run in an engine whose process is killed meanwhile, again and again. Returns the deaths that updates report, and the seconds
/// that each of them cost.
pub fn chats_survive(name: &str, request: &Value, signal: &str, rounds: usize) -> (usize, f64) {
    let init = json!({"n_ctx": 1024, "n_parallel": 2});
    let expected = complete(&start_local(init.clone()), Endpoint::Foredraft, request);
    let check = |_, found: &[Updates]| assert_whole(name, &found[0].updates, &expected);
    survived_deaths(&start(init), std::slice::from_ref(request), &[signal], rounds, check)
}

#[test]
fn chats_survive_deaths() {
    for (name, request) in chats() {
        chats_survive(name, &request, SIGNALS[0], 2);
    }
}

/// Prints the chats of the table of the reliability page: `scripts/check.sh deaths`.
#[test]
#[ignore = "run by scripts/check.sh deaths"]
fn chat_deaths_at_twenty_random_moments() {
    for (name, request) in chats() {
        let (n_deaths, lost) = chats_survive(name, &request, SIGNALS[0], 20);
        println!("| {name} | SIGKILL | {n_deaths} in 20 runs | every message and its deltas the same | {lost:.2} s |");
    }
}

#[test]
fn deltas_of_an_isolated_chat_add_up_to_its_message() {
    let init = json!({"n_ctx": 1024, "n_parallel": 2});
    let (local, engine) = (start_local(init.clone()), start(init));
    for (name, request) in chats() {
        let expected = complete(&local, Endpoint::Foredraft, &request);
        assert_whole(name, &drain(&engine, submit(&engine, &request)), &expected);
    }
}

/// The answer of a call that waits has the ids that the first process would have given.
#[test]
fn waiting_chat_survives_a_death() {
    let (_, request) = chats().remove(1);
    let expected = complete(&start_local(json!({"n_ctx": 1024})), Endpoint::Foredraft, &request);
    let engine = start(json!({"n_ctx": 1024}));
    let answer = during_a_death(&engine, || call(&engine, Function::Complete, &request));
    assert_eq!(without_ids(&answer["message"]), without_ids(&expected["message"]));
}

/// Runs a call, and kills the process meanwhile.
fn during_a_death<R: Send>(engine: &JsonEngine, run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(run);
        let process = pid(engine);
        std::thread::sleep(Duration::from_millis(60));
        kill(process, "KILL");
        waiting.join().expect("an answer")
    })
}
