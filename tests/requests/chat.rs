//! Answers to requests with messages: messages, tool calls, reasoning, and what limits them.

use foredraft::api::JsonEngine;
use serde_json::{Value, json};

use crate::common::chat::{PLAIN, TOOLS, sum_of_deltas};
use crate::common::tiny_models::without_template;
use crate::common::{Endpoint, Requests as _, complete, drain, n, poll, prompts, results, start, submit, text, with};

fn engine() -> JsonEngine {
    start(json!({"n_ctx": 2048, "n_parallel": 2}))
}

fn user(content: &str) -> Value {
    json!([{"role": "user", "content": content}])
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object",
            "properties": {"place": {"enum": ["river", "hill"]}, "far": {"type": "boolean"}}, "required": ["place"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "wait", "parameters": {"type": "object",
            "properties": {"hours": {"type": "integer", "minimum": 1, "maximum": 12}}, "required": ["hours"], "additionalProperties": false}}},
    ])
}

/// Whether a call is valid under the schemas of [`tools`].
fn is_valid(call: &Value) -> bool {
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    let map = arguments.as_object().unwrap();
    match call["function"]["name"].as_str().unwrap() {
        "look" => {
            ["river", "hill"].map(Value::from).contains(&map["place"])
                && map.get("far").is_none_or(Value::is_boolean)
                && map.keys().all(|key| ["place", "far"].contains(&key.as_str()))
        }
        "wait" => map.len() == 1 && (1..=12).contains(&map["hours"].as_u64().unwrap()),
        _ => false,
    }
}

#[test]
fn answer_has_message_finish_reason_and_usage() {
    let engine = engine();
    let request =
        json!({"messages": user("Count from 3 to 9."), "n_predict": 20, "temperature": 0, "speculative": true});
    let answer = complete(&engine, Endpoint::Foredraft, &request);
    assert_eq!(answer["message"], json!({"role": "assistant", "content": answer["content"]}));
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], answer["tokens_predicted"]);
    assert_eq!(usage["prompt_tokens"], answer["prompt_stats"]["total_prompt_tokens"]);
    assert_eq!(n(&usage["total_tokens"]), n(&usage["prompt_tokens"]) + n(&usage["completion_tokens"]));
    let details = &usage["completion_tokens_details"];
    assert_eq!(details["accepted_prediction_tokens"], answer["speculative"]["n_accepted"]);
    let rejected = n(&answer["speculative"]["n_drafted"]) - n(&answer["speculative"]["n_accepted"]);
    assert_eq!(n(&details["rejected_prediction_tokens"]), rejected);
    let reason = if answer["stop_type"] == "limit" { "length" } else { "stop" };
    assert_eq!((&answer["finish_reason"], &answer["reasoning_format"]), (&json!(reason), &json!("auto")));
    let answer = complete(&engine, Endpoint::Foredraft, &json!({"prompt": "a", "n_predict": 1}));
    assert!(answer.get("message").is_none() && answer["usage"].is_object(), "{answer}");
    for alias in ["max_tokens", "max_completion_tokens"] {
        let answer =
            complete(&engine, Endpoint::Foredraft, &json!({"messages": user("Hi"), alias: 3, "ignore_eos": true}));
        assert_eq!((n(&answer["tokens_predicted"]), &answer["finish_reason"]), (3, &json!("length")));
    }
}

#[test]
fn model_without_chat_template_gets_chatml_with_a_warning() {
    let engine = start(json!({"model": without_template(), "model_draft": null, "n_ctx": 1024}));
    let warning = "messages: the model has no chat template, so ChatML is used; set chat_template";
    let chatml = "<|im_start|>user\nCount from 3 to 9.<|im_end|>\n<|im_start|>assistant\n";
    let request = json!({"messages": user("Count from 3 to 9."), "n_predict": 8, "temperature": 0, "return_tokens": true,
        "response_fields": ["prompt", "tokens", "warnings", "message"]});
    let answer = complete(&engine, Endpoint::Foredraft, &request);
    assert_eq!((&answer["prompt"], &answer["warnings"]), (&json!(chatml), &json!([warning])));
    let updates = drain(&engine, Endpoint::Foredraft, submit(&engine, Endpoint::Foredraft, &request));
    assert_eq!(updates.last().unwrap()["warnings"], json!([warning]));
    let named = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"chat_template": "chatml"})));
    assert_eq!((&named["prompt"], &named["tokens"]), (&answer["prompt"], &answer["tokens"]));
    assert!(named.get("warnings").is_none(), "{named}");

    let apply = |request: Value| {
        engine.with_loaded(|loaded| loaded.apply_template(request.to_string().as_bytes())).expect("a prompt")
    };
    let applied = apply(json!({"messages": request["messages"]}));
    assert_eq!((&applied["prompt"], &applied["warnings"]), (&json!(chatml), &json!([warning])));
    assert!(apply(json!({"messages": request["messages"], "chat_template": PLAIN})).get("warnings").is_none());

    // A required call has the generic format of templates without a place for tools.
    let called = complete(
        &engine,
        Endpoint::Foredraft,
        &with(
            &request,
            json!({"tools": tools(), "tool_choice": "look", "n_predict": 200, "seed": 3, "temperature": 0.8}),
        ),
    );
    assert_eq!(called["message"]["tool_calls"][0]["function"]["name"], "look", "{called}");
    assert!(is_valid(&called["message"]["tool_calls"][0]), "{called}");
    assert_eq!(called["warnings"][0], warning);
}

#[test]
fn required_calls_are_valid_with_and_without_speculation() {
    let engine = engine();
    for (index, temperature) in [0.0, 0.0, 1.5, 1.5, 1.5, 1.5].into_iter().enumerate() {
        let parallel = index % 2 == 1;
        let request = json!({"messages": user(&prompts()[index * 7]), "chat_template": PLAIN, "tools": tools(), "tool_choice": "required",
            "parallel_tool_calls": parallel, "temperature": temperature, "seed": index, "n_predict": 400});
        let plain = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"speculative": false})));
        let drafted = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"speculative": true})));
        assert_eq!(plain["content"], drafted["content"]);
        if plain["finish_reason"] == "length" {
            // An array of calls has no end by itself.
            assert!(parallel, "{plain}");
            continue;
        }
        assert_eq!(plain["finish_reason"], "tool_calls", "{plain}");
        let calls = plain["message"]["tool_calls"].as_array().unwrap();
        assert!(!calls.is_empty() && calls.iter().all(is_valid), "{calls:?}");
        assert!(parallel || calls.len() == 1);
        let warning = "tools: the chat template has no place for them, so they are in the system message";
        assert!(plain["warnings"].as_array().unwrap().contains(&json!(warning)), "{plain}");
    }
}

#[test]
fn one_function_can_be_forced() {
    let engine = engine();
    for (choice, old) in [
        (json!({"tool_choice": {"type": "function", "function": {"name": "wait"}}, "tools": tools()}), false),
        (json!({"function_call": {"name": "wait"}, "functions": [tools()[1]["function"]]}), true),
    ] {
        let request = json!({"messages": user("Hello"), "chat_template": PLAIN, "n_predict": 200, "temperature": 0});
        let answer = complete(&engine, Endpoint::Foredraft, &with(&request, choice));
        let call = &answer["message"]["tool_calls"][0];
        assert!(call["function"]["name"] == "wait" && is_valid(call), "{answer}");
        assert_eq!(answer["finish_reason"], if old { "function_call" } else { "tool_calls" });
        assert_eq!(answer["message"].get("function_call").is_some(), old);
    }
}

/// The engine treats it as a template without a place for tools.
#[test]
fn template_that_fails_with_tools_does_not_get_them() {
    let engine = engine();
    let template = format!("{{% if tools %}}{{{{ raise_exception('no tools here') }}}}{{% endif %}}{PLAIN}");
    let request = json!({"messages": user("Hello"), "chat_template": template, "tools": tools(), "n_predict": 200, "temperature": 0,
        "response_fields": ["content", "message", "prompt", "warnings", "finish_reason"]});
    let warned = |answer: &Value, so: &str| {
        let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
        let is_it = |text: &str| {
            text.starts_with("tools: the chat template fails with them (")
                && text.contains("no tools here")
                && text.ends_with(so)
        };
        assert!(warnings.iter().any(|warning| warning.as_str().is_some_and(is_it)), "{answer}");
    };
    let auto = complete(&engine, Endpoint::Foredraft, &request);
    warned(&auto, "so the model does not see them");
    assert!(
        !auto["prompt"].as_str().unwrap().contains("river") && auto["message"].get("tool_calls").is_none(),
        "{auto}"
    );
    let forced = complete(
        &engine,
        Endpoint::Foredraft,
        &with(&request, json!({"tool_choice": "required", "parallel_tool_calls": false})),
    );
    warned(&forced, "so they are in the system message");
    assert!(forced["prompt"].as_str().unwrap().contains("river"), "{forced}");
    assert!(is_valid(&forced["message"]["tool_calls"][0]), "{forced}");
    assert_eq!(forced["finish_reason"], "tool_calls");
}

/// A completion that ends anywhere in a call: the parts of the message are a beginning of the whole one.
#[test]
fn calls_that_break_off_are_a_beginning() {
    let engine = engine();
    let request = json!({"messages": user("Hello"), "chat_template": PLAIN, "tools": tools(), "temperature": 0, "seed": 1,
        "tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": false});
    let whole = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"n_predict": 300})));
    let whole_call = &whole["message"]["tool_calls"][0]["function"];
    assert!(is_valid(&whole["message"]["tool_calls"][0]), "{whole}");
    for n in 1..n(&whole["tokens_predicted"]) {
        let request = with(&request, json!({"n_predict": n}));
        let updates = drain(&engine, Endpoint::Foredraft, submit(&engine, Endpoint::Foredraft, &request));
        let last = updates.last().unwrap();
        assert_eq!(last["message"], sum_of_deltas(&updates.iter().collect::<Vec<_>>()), "{n}");
        assert_eq!(last["message"]["content"], "", "{last}");
        let call = &last["message"]["tool_calls"][0]["function"];
        let begins = |key: &str| whole_call[key].as_str().unwrap().starts_with(call[key].as_str().unwrap_or_default());
        assert!(begins("name") && begins("arguments"), "{last}");
    }
}

#[test]
fn lazy_grammar_holds_from_its_trigger_on() {
    let engine = engine();
    let request = json!({"prompt": "Once upon a time", "grammar": "root ::= \" the\" \" red\" \" fox\" (\" ran\" | \" sat\") \".\"",
        "grammar_lazy": true, "grammar_triggers": [{"type": "word", "value": " the"}], "n_predict": 300});
    let mut n_triggered = 0;
    for (seed, temperature) in [(1, 0.0), (2, 1.0), (3, 1.0), (4, 1.5)] {
        let request = with(&request, json!({"seed": seed, "temperature": temperature}));
        let mut answers = ["coupled", "match"].map(|verify| {
            complete(&engine, Endpoint::Foredraft, &with(&request, json!({"speculative": {"verify": verify}})))
        });
        let plain = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"speculative": false})));
        answers.iter_mut().for_each(|answer| assert_eq!(answer["content"], plain["content"]));
        for verify in ["rejection", "block"] {
            answers[0] =
                complete(&engine, Endpoint::Foredraft, &with(&request, json!({"speculative": {"verify": verify}})));
            let content = answers[0]["content"].as_str().unwrap();
            if let Some((_, end)) = content.split_once(" the") {
                assert!([" red fox ran.", " red fox sat."].contains(&end), "{content}");
            }
        }
        if let Some((_, end)) = plain["content"].as_str().unwrap().split_once(" the") {
            assert!([" red fox ran.", " red fox sat."].contains(&end), "{plain}");
            assert_eq!(plain["stop_type"], "eos");
            n_triggered += 1;
        }
    }
    assert!(n_triggered > 0);
}

#[test]
fn reasoning_is_ended_by_its_budget_with_and_without_speculation() {
    let engine = engine();
    let request = json!({"prompt": "Once upon a time <think>", "generation_prompt": "<think>", "reasoning_budget_start_tag": "<think>",
        "reasoning_budget_end_tags": ["</think>"], "reasoning_budget_message": " That is enough.", "n_predict": 60, "ignore_eos": true,
        "return_tokens": true});
    for (seed, temperature) in [(1, 0.0), (2, 1.0), (3, 1.5)] {
        for budget in [0, 1, 7] {
            let request =
                with(&request, json!({"seed": seed, "temperature": temperature, "reasoning_budget_tokens": budget}));
            let plain = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"speculative": false})));
            let drafted = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"speculative": true})));
            assert_eq!(plain["tokens"], drafted["tokens"]);
            let content = plain["content"].as_str().unwrap();
            let (thoughts, _) = content.split_once(" That is enough.</think>").unwrap_or_else(|| panic!("{content}"));
            assert!(budget > 0 || thoughts.is_empty(), "{content}");
        }
    }
}

#[test]
fn poll_command_ends_reasoning() {
    let engine = engine();
    let request = json!({"prompt": "Once upon a time <think>", "generation_prompt": "<think>", "reasoning_budget_start_tag": "<think>",
        "reasoning_budget_end_tags": ["</think>"], "n_predict": 1500, "ignore_eos": true, "temperature": 0});
    let id = submit(&engine, Endpoint::Foredraft, &request);
    let mut updates = Vec::new();
    while text(&updates).is_empty() {
        let answer = poll(&engine, Endpoint::Foredraft, id, 60_000);
        updates.extend(answer["completion_updates"].as_array().unwrap().iter().cloned());
    }
    let command = json!({"id": id, "end_reasoning": true}).to_string();
    let answer = engine.poll_as(Endpoint::Foredraft, Some(command.as_bytes())).unwrap();
    updates.extend(answer["completion_updates"].as_array().unwrap().iter().cloned());
    updates.extend(drain(&engine, Endpoint::Foredraft, id));
    assert!(text(&updates).contains("</think>"));
}

#[test]
fn deltas_add_up_to_the_message() {
    let engine = engine();
    let calls = json!({"tools": tools(), "chat_template": PLAIN, "tool_choice": "required"});
    for more in [json!({}), json!({"chat_template": TOOLS}), calls] {
        let request = with(&json!({"messages": user("Tell me a story."), "n_predict": 60, "seed": 3}), more);
        let updates = drain(&engine, Endpoint::Foredraft, submit(&engine, Endpoint::Foredraft, &request));
        let last = updates.last().unwrap();
        let mut sum = sum_of_deltas(&updates.iter().collect::<Vec<_>>());
        let awaited = complete(&engine, Endpoint::Foredraft, &request);
        assert_eq!((&last["message"], &last["message"]["content"]), (&sum, &awaited["message"]["content"]));
        // Ids are drawn.
        let calls = |message: &mut Value| {
            let calls = message["tool_calls"].as_array_mut().map(std::mem::take).unwrap_or_default();
            calls.into_iter().map(|call| call["function"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(calls(&mut sum), calls(&mut awaited["message"].clone()));
        assert!(updates.iter().filter(|update| update["stop"] == false).all(|update| update["delta"].is_object()));
    }
}

#[test]
fn content_follows_the_response_format() {
    let engine = engine();
    let schema = json!({"type": "object", "properties": {"kind": {"enum": ["kite", "drum"]}}, "required": ["kind"], "additionalProperties": false});
    for format in [
        json!({"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}),
        json!({"type": "json_object", "schema": schema}),
    ] {
        for template in [PLAIN, TOOLS] {
            let request = json!({"messages": user("Hello"), "response_format": format, "chat_template": template, "n_predict": 300});
            let answer = complete(
                &engine,
                Endpoint::Foredraft,
                &with(&request, json!({"reasoning_budget_tokens": 0, "temperature": 0})),
            );
            if answer["finish_reason"] == "length" {
                // The model thinks for as long as it may.
                assert_eq!(template, TOOLS, "{answer}");
                continue;
            }
            let content: Value = serde_json::from_str(answer["message"]["content"].as_str().unwrap()).unwrap();
            assert!(content == json!({"kind": "kite"}) || content == json!({"kind": "drum"}), "{answer}");
        }
    }
    let answer = complete(
        &engine,
        Endpoint::Foredraft,
        &json!({"messages": user("Hi"), "response_format": {"type": "text"}, "n_predict": 2}),
    );
    assert!(answer.get("warnings").is_none(), "{answer}");
}

/// The prompt of a chat, which `apply_template` and a completion must have alike, and the completion's answer.
fn prompt_of(engine: &JsonEngine, request: &Value) -> (String, Value) {
    let request = with(request, json!({"n_predict": 1, "response_fields": ["prompt", "tokens_evaluated", "warnings"]}));
    let answer = complete(engine, Endpoint::Foredraft, &request);
    let shown = engine.with_loaded(|loaded| loaded.apply_template(request.to_string().as_bytes())).expect("a prompt");
    assert_eq!(answer["prompt"], shown["prompt"], "{request}");
    (answer["prompt"].as_str().unwrap().to_owned(), answer)
}

#[test]
fn the_model_sees_the_schema_of_a_response_format() {
    let engine = engine();
    let schema = json!({"type": "object", "properties": {"kind": {"enum": ["kite", "drum"], "description": "a toy"}}, "required": ["kind"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}});
    let described = format!("Write your answer as JSON that follows this schema:\n{schema}");
    let with_system = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    let with_developer = json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    let plain = json!({"messages": user("Hello"), "chat_template": PLAIN});
    let prompt = |more: Value| prompt_of(&engine, &with(&plain, more)).0;
    let of_messages = |messages: &Value, more: Value| prompt(with(&json!({"messages": messages}), more));
    let described_in = |messages: Value| of_messages(&messages, json!({}));
    let alone = described_in(json!([{"role": "system", "content": described}, {"role": "user", "content": "Hello"}]));
    let added = described_in(
        json!([{"role": "system", "content": format!("Be brief.\n\n{described}")}, {"role": "user", "content": "Hello"}]),
    );
    // By default those of `response_format`, and others if the request says so.
    assert_eq!(prompt(json!({"response_format": format})), alone);
    assert_eq!(prompt(json!({"response_format": format, "schema_in_prompt": false})), prompt(json!({})));
    assert_eq!(prompt(json!({"json_schema": schema})), prompt(json!({})));
    assert_eq!(prompt(json!({"json_schema": schema, "schema_in_prompt": true})), alone);
    // Behind the text of the system message.
    for messages in [&with_system, &with_developer] {
        assert_eq!(of_messages(messages, json!({"response_format": format})), added);
    }
    // The host's own text.
    let own =
        described_in(json!([{"role": "system", "content": "Say kite or drum."}, {"role": "user", "content": "Hello"}]));
    for key in ["json_schema", "response_format"] {
        let constrained =
            json!({key: if key == "json_schema" { &schema } else { &format }, "schema_in_prompt": "Say kite or drum."});
        assert_eq!(prompt(constrained), own);
    }
    // A template that has a place for it.
    let place = "{% if response_format %}[{{ response_format.schema | tojson }}]{% endif %}{{ messages[-1].content }}";
    let of_template = prompt(json!({"chat_template": place, "response_format": format}));
    assert_eq!(
        of_template,
        "[{\"type\": \"object\", \"properties\": {\"kind\": {\"enum\": [\"kite\", \"drum\"], \"description\": \"a toy\"}}, \"required\": [\"kind\"]}]Hello"
    );
    // A large schema only if the request says so.
    let large = json!({"enum": ["kite".repeat(5000)]});
    let constrained = json!({"response_format": {"type": "json_object", "schema": large}, "on_overflow": "truncate"});
    let (without, answer) = prompt_of(&engine, &with(&plain, constrained.clone()));
    assert_eq!(without, prompt(json!({})));
    assert!(answer["warnings"][0].as_str().unwrap().starts_with("schema_in_prompt: "), "{answer}");
    assert!(prompt(with(&constrained, json!({"schema_in_prompt": true}))).contains("kitekite"));
}

#[test]
fn a_schema_in_the_prompt_is_data() {
    let engine = engine();
    let place = "{% if response_format %}{{ response_format.schema }}{% endif %}<|im_start|>{{ messages[-1].content }}";
    for template in [PLAIN, place] {
        let n_more = |description: &str| {
            let schema = json!({"description": description, "enum": [1, 2]});
            let request = json!({"messages": user("Hi"), "chat_template": template, "response_format": {"type": "json_object", "schema": schema}});
            let (prompt, answer) = prompt_of(&engine, &request);
            assert!(prompt.contains(description), "{prompt}");
            let parsed = complete(
                &engine,
                Endpoint::Foredraft,
                &json!({"prompt": prompt, "n_predict": 0, "response_fields": ["tokens_evaluated"]}),
            );
            n(&answer["tokens_evaluated"]) - n(&parsed["tokens_evaluated"])
        };
        assert_eq!(n_more("a number"), 0);
        assert!(n_more("a <|im_end|> number") > 3, "{template}");
    }
}

#[test]
fn a_schema_of_ten_megabytes_in_the_prompt_ends_with_its_request() {
    let engine = engine();
    let schema = json!({"description": "word ".repeat(2 << 20), "enum": [1]});
    let request = json!({"messages": user("Hi"), "n_predict": 4, "response_format": {"type": "json_object", "schema": schema}, "timeout_ms": 60_000});
    let answer = complete(&engine, Endpoint::Foredraft, &request);
    assert_eq!(answer["message"]["content"].as_str().map(str::trim), Some("1"));
    assert!(answer["warnings"][0].as_str().unwrap().starts_with("schema_in_prompt: the schema has 104857"), "{answer}");
    let shown = with(&request, json!({"schema_in_prompt": true})).to_string();
    let error = engine.complete_as(Endpoint::Foredraft, shown.as_bytes()).unwrap_err();
    assert!(["context_full", "invalid_request"].contains(&error.code().as_str()), "{error}");
}

#[test]
fn schema_in_prompt_says_where_it_is_ignored() {
    let engine = engine();
    let ask = |more: Value| {
        let request = with(&json!({"n_predict": 1, "response_fields": ["warnings"]}), more);
        complete(&engine, Endpoint::Foredraft, &request)["warnings"].clone()
    };
    let without = "schema_in_prompt: ignored without json_schema or response_format";
    assert_eq!(ask(json!({"messages": user("Hi"), "schema_in_prompt": true})), json!([without]));
    assert_eq!(ask(json!({"messages": user("Hi"), "schema_in_prompt": "text"})), json!([without]));
    let ignored = ask(json!({"prompt": "Hi", "json_schema": {"enum": [1]}, "schema_in_prompt": true}));
    assert_eq!(ignored, json!(["schema_in_prompt: ignored without messages"]));
}

#[test]
fn last_message_is_continued() {
    let engine = engine();
    for template in [PLAIN, TOOLS] {
        let mut messages = user("Tell me a story.");
        messages
            .as_array_mut()
            .unwrap()
            .push(json!({"role": "assistant", "content": "Once upon a time <|im_end|> there"}));
        let request = json!({"messages": messages, "chat_template": template, "continue_final_message": true, "n_predict": 8,
            "temperature": 0, "response_fields": ["prompt", "content", "message", "tokens_evaluated"]});
        let answer = complete(&engine, Endpoint::Foredraft, &request);
        let prompt = answer["prompt"].as_str().unwrap();
        // Where the model can reason, it has done so, as in llama-server.
        let thoughts = if template == TOOLS { "<think>\n\n</think>\n\n" } else { "" };
        let end = format!("<|im_start|>assistant\n{thoughts}Once upon a time <|im_end|> there");
        assert!(prompt.ends_with(&end), "{prompt}");
        assert_eq!(answer["message"]["content"], answer["content"]);
        // The message's text is data: as many tokens as with a text that spells no control token.
        messages[1]["content"] = "Once upon a time there".into();
        let shorter = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"messages": messages})));
        assert!(n(&answer["tokens_evaluated"]) > n(&shorter["tokens_evaluated"]) + 2, "{answer}");
    }
}

#[test]
fn several_answers_and_their_log_probabilities() {
    let engine = engine();
    let request = json!({"messages": user("Tell me a story."), "n": 2, "logprobs": true, "top_logprobs": 3, "n_predict": 5, "seed": 1});
    let answer = complete(&engine, Endpoint::Foredraft, &request);
    for result in results(&answer, 2) {
        let content = result["logprobs"]["content"].as_array().unwrap();
        assert_eq!(content.len(), n(&result["usage"]["completion_tokens"]));
        for token in content {
            assert!(
                token["logprob"].as_f64().unwrap() <= 0.0 && token["token"].is_string() && token["bytes"].is_array()
            );
            assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        }
        assert!(result["message"]["content"].is_string());
    }
    let request = with(&request, json!({"n": 1, "top_logprobs": 0}));
    let answer = complete(&engine, Endpoint::Foredraft, &request);
    for token in answer["logprobs"]["content"].as_array().unwrap() {
        assert!(token["logprob"].is_f64() && token["top_logprobs"] == json!([]), "{token}");
    }
    let updates = drain(&engine, Endpoint::Foredraft, submit(&engine, Endpoint::Foredraft, &request));
    let streamed: usize = updates
        .iter()
        .filter(|update| update["stop"] == false)
        .map(|update| update["logprobs"]["content"].as_array().unwrap().len())
        .sum();
    assert_eq!(streamed, n(&updates.last().unwrap()["usage"]["completion_tokens"]));
}

/// The template drops reasoning of earlier turns, so the cached answer is not what the next prompt has.
#[test]
fn next_turn_decodes_only_what_is_new() {
    let engine = engine();
    let mut messages =
        json!([{"role": "system", "content": prompts().concat()}, {"role": "user", "content": "Hello."}]);
    let request = json!({"n_predict": 12, "temperature": 0, "chat_template": TOOLS});
    for turn in 0..3 {
        let answer = complete(&engine, Endpoint::Foredraft, &with(&request, json!({"messages": messages})));
        let usage = &answer["usage"];
        let (prompt, cached) = (n(&usage["prompt_tokens"]), n(&usage["prompt_tokens_details"]["cached_tokens"]));
        if turn > 0 {
            // The question, the beginning of the answer, and what the tokenizer joins differently.
            assert!(prompt - cached < 60, "turn {turn}: {usage}");
        }
        let list = messages.as_array_mut().unwrap();
        list.push(answer["message"].clone());
        list.push(json!({"role": "user", "content": format!("And then, number {turn}?")}));
    }
}

#[test]
fn settings_of_a_chat_repeat_it_beside_its_messages_and_tools() {
    let engine = engine();
    let chat = json!({"messages": user("Hello"), "chat_template": PLAIN, "tools": tools(), "tool_choice": "required"});
    let request = with(
        &chat,
        json!({"n_predict": 100, "temperature": 1.2, "response_fields": ["content", "generation_settings"]}),
    );
    let answer = complete(&engine, Endpoint::Foredraft, &request);
    let again = with(&with(&answer["generation_settings"], chat), json!({"response_fields": []}));
    assert_eq!(complete(&engine, Endpoint::Foredraft, &again)["content"], answer["content"]);
}

/// Tools are in the prompt, and otherwise change nothing: the answer is one of the choices.
#[test]
fn choices_are_decided_among_with_tools_in_the_prompt() {
    let engine = engine();
    let request = json!({"messages": user("Is it warm?"), "chat_template": TOOLS, "tools": tools(), "choices": ["yes", "no", "perhaps"],
        "response_fields": ["choice", "choices", "prompt", "message", "finish_reason", "warnings"]});
    let auto = complete(&engine, Endpoint::Foredraft, &request);
    assert!(auto["prompt"].as_str().unwrap().contains("river"), "{auto}");
    let total: f64 = auto["choices"].as_array().unwrap().iter().map(|choice| choice["prob"].as_f64().unwrap()).sum();
    assert!((total - 1.0).abs() < 1e-6, "{auto}");
    assert!(auto["message"].get("tool_calls").is_none() && auto["finish_reason"] != "tool_calls", "{auto}");
    // As for the same prompt without tools.
    let plain = json!({"prompt": auto["prompt"], "choices": request["choices"]});
    let plain = complete(&engine, Endpoint::Foredraft, &plain);
    assert_eq!((&plain["choice"], &plain["choices"]), (&auto["choice"], &auto["choices"]));
}

#[test]
fn impossible_combinations_are_refused() {
    let engine = engine();
    let error = |more: Value| {
        let request =
            with(&json!({"messages": user("Hi"), "n_predict": 1, "tools": tools(), "chat_template": PLAIN}), more)
                .to_string();
        let answer = engine.complete_as(Endpoint::Foredraft, request.as_bytes());
        answer.unwrap_err().message().to_owned()
    };
    for (more, expected) in [
        (
            json!({"tool_choice": "required", "grammar": "root ::= \"a\""}),
            "tool_choice: a required call cannot be combined with grammar",
        ),
        (
            json!({"tool_choice": "required", "json_schema": {}}),
            "tool_choice: a required call cannot be combined with a JSON schema",
        ),
        (
            json!({"tool_choice": "required", "n_beams": 2}),
            "n_beams: a beam search cannot be combined with a required call",
        ),
        (
            json!({"tool_choice": "required", "choices": ["yes", "no"]}),
            "tool_choice: a required call cannot be combined with choices",
        ),
        (json!({"tool_choice": "sometimes"}), "tool_choice: there is no tool"),
        (json!({"tool_choice": {"function": {"name": "no"}}}), "tool_choice: there is no tool \"no\""),
        (json!({"response_format": {"type": "xml"}}), "response_format: expected"),
        (json!({"response_format": {"type": "json_object"}, "json_schema": {}}), "response_format: expected either"),
        (json!({"reasoning_format": "secret"}), "reasoning_format: expected one of"),
        (json!({"continue_final_message": 3}), "continue_final_message: expected"),
        (json!({"grammar_triggers": [{"type": "word"}]}), "grammar_triggers[0].value: expected a string"),
    ] {
        assert!(error(more.clone()).starts_with(expected), "{more}: {}", error(more.clone()));
    }
    let ignored = complete(
        &engine,
        Endpoint::Foredraft,
        &json!({"prompt": "a", "n_predict": 1, "tool_choice": "auto", "response_format": {"type": "text"}}),
    );
    assert_eq!(
        ignored["warnings"],
        json!(["tool_choice: ignored without messages", "response_format: ignored without messages"])
    );
}
