//! Decisions with `questions` through the whole engine.

use std::fmt::Write as _;

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{cancel, complete, drain, start, submit, text, tiny_models, with};
use foredraft::api::{Function, JsonEngine};
use foredraft::error::{Code, Error};
use serde_json::{Map, Value, json};

fn try_decide(engine: &JsonEngine, request: &str) -> Result<Value, Error> {
    engine.call(Function::Decide, Ok(request.as_bytes()))
}

fn decide(engine: &JsonEngine, request: &Value) -> Value {
    let answer = try_decide(engine, &request.to_string()).expect("an answer");
    assert_eq!(answer["success"], true, "{answer}");
    answer
}

/// One question of each type in turn, all different.
fn question(number: usize) -> Value {
    let instructions = format!("Which of these is number {number} in the story?");
    match number % 3 {
        0 => {
            json!({"type": "choice", "instructions": instructions, "criteria": {"kite": null, "hat": "on a head", "dog": null}})
        }
        1 => {
            json!({"type": "score", "instructions": [instructions, number], "criteria": ["low", "some", {"much": number}]})
        }
        _ => json!({"type": "noul", "instructions": instructions, "criteria": {"true": "it is there"}}),
    }
}

fn questions(n: usize) -> Map<String, Value> {
    (0..n).map(|number| (format!("q{number}"), question(number))).collect()
}

fn bits(answer: &Value) -> String {
    let mut text = String::new();
    write!(text, "{}", answer["answers"]).expect("a text");
    text
}

const STORY: &str = "Tom had a red kite. One day the wind took it away, and Mia brought it back to him in the evening.";

/// Asks in one call, in the reverse order, and a few alone.
fn assert_equal_alone_together_and_reversed(engine: &JsonEngine, n: usize, alone: impl Iterator<Item = usize>) {
    let together = decide(engine, &json!({"state": STORY, "questions": questions(n)}));
    assert_eq!(together["answers"].as_object().map(Map::len), Some(n));
    let reversed: Map<String, Value> = questions(n).into_iter().rev().collect();
    let reversed = decide(engine, &json!({"state": STORY, "questions": reversed}));
    for number in 0..n {
        let id = format!("q{number}");
        assert_eq!(together["answers"][&id].to_string(), reversed["answers"][&id].to_string(), "{id} of {n}");
    }
    for number in alone {
        let id = format!("q{number}");
        let answer =
            decide(engine, &json!({"state": STORY, "questions": {&id: question(number)}, "cache_prompt": false}));
        assert_eq!(together["answers"][&id].to_string(), answer["answers"][&id].to_string(), "{id} of {n}");
    }
}

#[test]
fn questions_have_the_same_bits_alone_together_and_in_any_order() {
    for config in [
        json!({"n_ctx": 2048}),
        json!({"n_ctx": 2048, "n_parallel": 2}),
        json!({"n_ctx": 4096, "n_parallel": 2, "kv_unified": true}),
    ] {
        let engine = start(config);
        assert_equal_alone_together_and_reversed(&engine, 1, 0..1);
        assert_equal_alone_together_and_reversed(&engine, 20, 0..20);
    }
    let engine = start(json!({"n_ctx": 2048}));
    assert_equal_alone_together_and_reversed(&engine, 100, (0..100).step_by(9));
    // The context holds one question at a time.
    let small = start(json!({"n_ctx": 256, "n_batch": 64, "n_ubatch": 32}));
    assert_equal_alone_together_and_reversed(&small, 20, 0..20);
}

#[test]
#[ignore = "takes minutes"]
fn eight_hundred_questions_have_the_same_bits_alone_together_and_in_any_order() {
    assert_equal_alone_together_and_reversed(&start(json!({"n_ctx": 4096})), 800, (0..800).step_by(37));
}

#[test]
fn models_without_rollback_answer_alike_too() {
    for model in [tiny_models::recurrent(), tiny_models::hybrid(), tiny_models::sliding_window()] {
        let engine = start(json!({"model": model, "n_ctx": 1024}));
        assert_equal_alone_together_and_reversed(&engine, 5, 0..5);
    }
}

/// A question is what a request with the same tokens and `choices` decides.
#[test]
fn a_question_gives_the_probabilities_of_choices_after_its_text() {
    let engine = start(json!({"n_ctx": 1024}));
    let asked =
        json!({"type": "choice", "instructions": "What did Tom have?", "criteria": {"a kite": null, "a hat": "red"}});
    let answer =
        decide(&engine, &json!({"prompt": STORY, "questions": {"thing": asked}, "temperatures": {"choice": 0.7}}));
    let tokens = |text: &str, add_special: bool| {
        let request = json!({"text": text, "add_special": add_special}).to_string();
        let answer = engine.with_loaded(|loaded| loaded.tokenize(request.as_bytes())).expect("tokens");
        answer["ids"].as_array().expect("ids").clone()
    };
    let text = "\n\nWhat did Tom have?\n\nA: a kite\nB: a hat (red)";
    let prompt = [tokens(STORY, true), tokens(text, false), tokens("\n", false)].concat();
    let plain = complete(&engine, Plain, &json!({"prompt": prompt, "choices": ["A", "B"], "temperature": 0.7}));
    let probability = |option: &str| answer["answers"]["thing"]["probabilities"][option].as_f64().expect("a number");
    assert_eq!(Some(probability("a kite")), plain["choices"][0]["prob"].as_f64(), "{answer} {plain}");
    assert_eq!(Some(probability("a hat")), plain["choices"][1]["prob"].as_f64());
    assert_eq!(answer["usage"]["input_tokens"], prompt.len());
    assert_eq!(answer["usage"]["output_tokens"], 0);
}

#[test]
fn answers_have_the_wire_form_of_system_one() {
    let engine = start(json!({"n_ctx": 2048}));
    let request = json!({
        "state": {"mail": STORY, "open": [1, true, null]},
        "questions": {
            "route": {"type": "choice", "instructions": "Which team?", "criteria": {"zoo": null, "billing": "money", "it": null}},
            "urgency": {"type": "score", "instructions": {"ask": "How urgent?"}, "criteria": ["can wait", "today", "now"]},
            "angry": {"type": "noul", "instructions": "The customer is angry."},
        },
    });
    let answer = decide(&engine, &request);
    let answers = &answer["answers"];
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(answers), ["route", "urgency", "angry"]);
    assert_eq!(keys(&answers["route"]), ["type", "choice", "probabilities", "confidence"]);
    assert_eq!(keys(&answers["route"]["probabilities"]), ["zoo", "billing", "it"]);
    assert_eq!(keys(&answers["urgency"]), ["type", "score", "legend", "probabilities", "confidence"]);
    assert_eq!(answers["urgency"]["legend"], json!({"0": "can wait", "1": "today", "2": "now"}));
    assert_eq!(keys(&answers["angry"]), ["type", "noul"]);
    let number = |value: &Value| value.as_f64().expect("a number");
    let probs: Vec<f64> =
        answers["urgency"]["probabilities"].as_object().expect("an object").values().map(number).collect();
    assert!((probs.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert!((number(&answers["urgency"]["score"]) - probs[1] - 2.0 * probs[2]).abs() < 1e-12);
    let best = answers["route"]["choice"].as_str().expect("a name");
    let probs: Vec<f64> =
        answers["route"]["probabilities"].as_object().expect("an object").values().map(number).collect();
    let most = probs.iter().copied().fold(0.0, f64::max);
    assert_eq!(number(&answers["route"]["probabilities"][best]), most);
    assert!((number(&answers["route"]["confidence"]) - (most - 1.0 / 3.0) * 1.5).abs() < 1e-12);
    assert!(number(&answers["angry"]["noul"]) > 0.0);
    // No generated text, and the same by messages, and by a submit and polls.
    assert!(answer.get("content").is_none() && answer.get("generation_settings").is_none(), "{answer}");
    let updates = drain(&engine, Foredraft, submit(&engine, Foredraft, &request));
    assert_eq!(text(&updates), "");
    let last = updates.last().expect("an end");
    assert_eq!((bits(last), &last["usage"]["input_tokens"]), (bits(&answer), &answer["usage"]["input_tokens"]));
    let questions = &request["questions"];
    let of_state = decide(&engine, &json!({"state": STORY, "questions": questions}));
    let of_messages =
        decide(&engine, &json!({"messages": [{"role": "user", "content": STORY}], "questions": questions}));
    assert_eq!(bits(&of_state), bits(&of_messages));
    let dialogue = json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": STORY}]);
    assert_ne!(bits(&decide(&engine, &json!({"messages": dialogue, "questions": questions}))), bits(&of_state));
}

#[test]
fn temperatures_count_by_type() {
    let engine = start(json!({"n_ctx": 2048}));
    let request = json!({"state": STORY, "questions": questions(3)});
    let plain = decide(&engine, &request)["answers"].clone();
    let hot = decide(&engine, &with(&request, json!({"temperatures": {"choice": 50, "noul": 1}})))["answers"].clone();
    assert_eq!((&plain["q1"], &plain["q2"]), (&hot["q1"], &hot["q2"]));
    let confidence = |answers: &Value| answers["q0"]["confidence"].as_f64().expect("a number");
    assert!(confidence(&hot) < confidence(&plain).min(0.1), "{hot} {plain}");
}

#[test]
fn temperatures_in_a_file_count_and_models_with_heads_are_refused() {
    let with_key = |key: &str, text: &str| {
        let model = tiny_models::with_seed(9, || tiny_models::with_template(key, text));
        start(json!({"model": model, "n_ctx": 512}))
    };
    let request = json!({"state": STORY, "questions": questions(3)});
    let plain = decide(&with_key("gemma3.unused", "0"), &request)["answers"].clone();
    let hot = with_key("gemma3.decision.temperature.choice.3_5", "4");
    let answers = decide(&hot, &request)["answers"].clone();
    assert_eq!((&plain["q1"], &plain["q2"]), (&answers["q1"], &answers["q2"]));
    let same = decide(&with_key("gemma3.unused", "0"), &with(&request, json!({"temperatures": {"choice": 4}})));
    assert_eq!(bits(&same), answers.to_string(), "as given by the host");
    assert_ne!(plain["q0"], answers["q0"]);
    assert_eq!(
        decide(&hot, &with(&request, json!({"temperatures": {"choice": 1}})))["answers"],
        plain,
        "the host's count"
    );
    let native = with_key("gemma3.decision.type", "kev");
    let error = try_decide(&native, &request.to_string()).expect_err("it is refused");
    assert!(error.code() == Code::InvalidRequest && error.message().contains("type kev"), "{error}");
    complete(&native, Plain, &json!({"prompt": STORY, "n_predict": 1}));
    let encoder = json!({"model": tiny_models::encoder_with_text("bert.decision.type", "newer"), "n_threads": 1});
    let error = JsonEngine::new().load(encoder.to_string().as_bytes()).expect_err("it generates no text");
    assert!(error.message().contains("a decision model of type newer"), "{error}");
    let encoder = start(with(&encoder, json!({"model_draft": null, "embedding": true})));
    let error = try_decide(&encoder, &request.to_string()).expect_err("it is refused");
    assert!(error.code() == Code::InvalidRequest && error.message().contains("type newer"), "{error}");
}

/// The template of an encoder of decisions.
const MARKED: &str = "<|endoftext|>{{ type }} {{ instructions }}<|im_end|>{% for o in options %}<|im_start|>{{ o.key }}\
    {% if o.description %}: {{ o.description }}{% endif %}{% endfor %}<|im_end|>{{ state if state is string else state | tojson }}<|im_end|>";

fn decision_encoder(template: &str, max_head_tokens: &str) -> JsonEngine {
    let model = tiny_models::decision_encoder(template, max_head_tokens);
    start(json!({"model": model, "model_draft": null, "n_ctx": 512, "n_threads": 1}))
}

/// The scores of each token of a text, as `foredraft_embed` has them, and its tokens.
fn token_scores(engine: &JsonEngine, text: &str) -> (Vec<Value>, Vec<[f64; 3]>) {
    let tokenized = json!({"text": text, "add_special": false, "parse_special": true});
    let tokenized = engine.call(Function::Tokenize, Ok(tokenized.to_string().as_bytes())).expect("tokens");
    let ids = tokenized["ids"].as_array().expect("a list").clone();
    let request = json!({"content": ids, "of_tokens": true, "embd_normalize": -1});
    let answer = engine.call(Function::Embed, Ok(request.to_string().as_bytes())).expect("embeddings");
    (ids, serde_json::from_value(answer["embedding"].clone()).expect("three scores for each token"))
}

/// The probabilities of the marks of a prompt by one column of its scores.
fn marked_probabilities(engine: &JsonEngine, prompt: &str, column: usize) -> Vec<f64> {
    let (ids, scores) = token_scores(engine, prompt);
    let marked = ids.iter().zip(scores).filter(|(id, _)| **id == 1).map(|(_, scores)| scores[column].exp());
    let weights: Vec<f64> = marked.collect();
    weights.iter().map(|weight| weight / weights.iter().sum::<f64>()).collect()
}

#[test]
fn encoders_of_decisions_score_the_marks_of_options() {
    let engine = decision_encoder(MARKED, "128");
    let criteria = json!({"kite": "red", "hat": null, "dog": null});
    let questions = json!({
        "pick": {"type": "choice", "instructions": "Which?", "criteria": criteria},
        "level": {"type": "score", "instructions": "How sad?", "criteria": ["no", "a bit", "yes"]},
        "lost": {"type": "noul", "instructions": "It is lost.", "criteria": {"true": "gone"}},
    });
    let request = json!({"state": {"z": "Tom had a kite."}, "questions": questions, "tag": 7});
    let answer = decide(&engine, &request);
    let answers = &answer["answers"];
    let state = r#"{"z": "Tom had a kite."}"#;
    let prompt = |kind: &str, text: &str, options: &[&str]| {
        let options = options.iter().map(|option| format!("<|im_start|>{option}")).collect::<String>();
        format!("<|endoftext|>{kind} {text}<|im_end|>{options}<|im_end|>{state}<|im_end|>")
    };
    let prompts = [
        prompt("choice", "Which?", &["kite: red", "hat", "dog"]),
        prompt("score", "How sad?", &["0: no", "1: a bit", "2: yes"]),
        prompt("noul", "It is lost.", &["false", "true: gone"]),
    ];
    let close = |found: &Value, expected: f64| {
        assert!((found.as_f64().expect("a number") - expected).abs() < 1e-6, "{found}, expected {expected}: {answers}");
    };
    let expected = marked_probabilities(&engine, &prompts[0], 0);
    for (key, expected) in ["kite", "hat", "dog"].into_iter().zip(&expected) {
        close(&answers["pick"]["probabilities"][key], *expected);
    }
    let expected = marked_probabilities(&engine, &prompts[1], 1);
    close(&answers["level"]["score"], expected[1] + 2.0 * expected[2]);
    close(&answers["lost"]["noul"], marked_probabilities(&engine, &prompts[2], 2)[1]);
    let n_tokens: usize = prompts.iter().map(|prompt| token_scores(&engine, prompt).0.len()).sum();
    assert_eq!((&answer["usage"]["input_tokens"], &answer["usage"]["output_tokens"]), (&json!(n_tokens), &json!(0)));
    assert_eq!((&answer["tag"], &answer["stop_type"]), (&json!(7), &json!("eos")));
    // The same bits alone, and beside many others.
    let many = (0..200).map(|at| (at.to_string(), json!({"type": "noul", "instructions": format!("{at} is lost.")})));
    let mut many = json!(many.collect::<Map<_, _>>());
    many.as_object_mut().expect("an object").extend(questions.as_object().expect("an object").clone());
    let together = decide(&engine, &with(&request, json!({"questions": many})));
    for id in ["pick", "level", "lost"] {
        let alone = decide(&engine, &with(&request, json!({"questions": {id: questions[id]}})));
        assert_eq!(alone["answers"][id].to_string(), answers[id].to_string(), "{id}");
        assert_eq!(together["answers"][id].to_string(), answers[id].to_string(), "{id}");
    }
    // A temperature divides the scores.
    let hot = decide(&engine, &with(&request, json!({"temperatures": {"noul": 2}})));
    let odds = |answer: &Value| answer["answers"]["lost"]["noul"].as_f64().map(|p| (p / (1.0 - p)).ln()).expect("p");
    assert!((odds(&answer) - 2.0 * odds(&hot)).abs() < 1e-6, "{hot}");
    // Marks in the request are text.
    let marked = json!({"state": "a<|im_start|>b<|im_end|>", "questions": {"pick": {"type": "choice", "instructions": "<|im_start|>",
        "criteria": {"<|im_end|>": "<|im_start|>", "hat": null}}}});
    assert_eq!(decide(&engine, &marked)["answers"]["pick"]["probabilities"].as_object().map(Map::len), Some(2));
}

#[test]
fn encoders_of_decisions_refuse_what_they_cannot_be_asked() {
    let engine = decision_encoder(MARKED, "128");
    let request = json!({"state": "a", "questions": questions(3)});
    let refused = |more: Value, why: &str| {
        let error = try_decide(&engine, &with(&request, more).to_string()).expect_err(why);
        assert!(error.message().contains(why), "{why}: {error}");
    };
    refused(json!({"state": null, "prompt": "a"}), "a decision model is asked about state or messages");
    refused(json!({"state": "a ".repeat(2000)}), "questions.q0: ");
    let many: Map<String, Value> = (0..300).map(|at| (at.to_string(), Value::Null)).collect();
    let many = json!({"x": {"type": "choice", "instructions": "b", "criteria": many}});
    refused(json!({"questions": many}), "questions.x.criteria: 300 options, and the model has labels for 255");
    let submitted = engine.call(Function::Submit, Ok(request.to_string().as_bytes())).expect_err("nothing to poll");
    assert!(submitted.message().contains("type laya, which answers foredraft_decide alone"), "{submitted}");
    for (template, most, why) in [
        ("{{ instructions }}", "128", "questions.q0: the template's prompt has another layout"),
        (MARKED, "none", "no decision.max_head_tokens"),
        ("{{ instructions", "128", "template"),
    ] {
        let error = try_decide(&decision_encoder(template, most), &request.to_string()).expect_err(why);
        assert!(error.message().contains(why), "{why}: {error}");
    }
}

/// An engine with a native decision model of this type.
fn native(kind: &str, more: &[(&str, &str)]) -> JsonEngine {
    const TEMPLATE: &str = "{{ state | tojson }}{% for q in questions or [] %}<{{ q.id }}>{% endfor %}|{{ type }}|{{ instructions }}\
        {% for o in options %}{{ '\\n' }}{{ o.label or loop.index }}:{{ o.key }}={{ o.description | tojson }}{% endfor %}{{ '\\n' }}Answer:";
    let texts = [&[("tokenizer.chat_template.systemone", TEMPLATE), ("gemma3.decision.type", kind)], more].concat();
    let model = tiny_models::with_seed(9, || tiny_models::with_texts("native-decisions", &texts));
    start(json!({"model": model, "n_ctx": 512}))
}

/// The probabilities of labels after a text, by `choices`. Each is the token that its text is alone, which may begin with a space.
fn label_probabilities(engine: &JsonEngine, prompt: &str, labels: &[&str]) -> Vec<f64> {
    let tokenized = |text: &str| {
        let request = json!({"text": text, "add_special": false});
        engine.call(Function::Tokenize, Ok(request.to_string().as_bytes())).expect("tokens")
    };
    let label = |label: &&str| {
        let tokens = tokenized(label);
        assert_eq!(tokens["length"], 1, "{tokens}");
        tokens["tokens"][0].clone()
    };
    let labels: Vec<Value> = labels.iter().map(label).collect();
    let request = json!({"prompt": tokenized(prompt)["ids"], "choices": labels, "temperature": 1});
    let choices = complete(engine, Plain, &request)["choices"].clone();
    choices.as_array().expect("a list").iter().map(|choice| choice["prob"].as_f64().expect("a number")).collect()
}

#[test]
fn native_decision_models_are_asked_by_their_own_template() {
    let letters = |n: usize| ["A", "B", "C", "D", "E", "F", "G", "H", "I"][..n].to_vec();
    let state = json!({"z": "Tom had a kite.", "a": 1});
    let questions = json!({
        "pick": {"type": "choice", "instructions": "Which?", "criteria": {"kite": "red", "hat": null, "dog": null}},
        "level": {"type": "score", "instructions": "How sad?", "criteria": ["no", "yes"]},
        "lost": {"type": "noul", "instructions": "It is lost.", "criteria": {"true": "gone"}},
    });
    let request = json!({"state": state, "questions": questions});
    let close = |found: &Value, expected: f64| (found.as_f64().expect("a number") - expected).abs() < 1e-12;
    for kind in ["openjev", "lev", "nimble"] {
        let engine = native(kind, &[]);
        let answer = decide(&engine, &request);
        let answers = &answer["answers"];
        let state =
            if kind == "lev" { r#"{"a": 1, "z": "Tom had a kite."}"# } else { r#"{"z": "Tom had a kite.", "a": 1}"# };
        let all = if kind == "nimble" { "<pick><level><lost>" } else { "" };
        let shown = |kind_of: &str, text: &str, options: &[&str]| {
            let label = |at: usize| if kind == "openjev" { (at + 1).to_string() } else { letters(9)[at].to_owned() };
            let options = options.iter().enumerate().map(|(at, option)| format!("\n{}:{option}", label(at)));
            format!("{state}{all}|{kind_of}|{text}{}\nAnswer:", options.collect::<String>())
        };
        let options = [r#"kite="red""#, "hat=null", "dog=null"];
        let mut expected = label_probabilities(&engine, &shown("choice", "Which?", &options), &letters(3));
        if kind == "lev" {
            let reverse = [options[2], options[1], options[0]];
            let other = label_probabilities(&engine, &shown("choice", "Which?", &reverse), &letters(3));
            expected = (0..3).map(|at| (expected[at] + other[2 - at]) / 2.0).collect();
        }
        for (key, expected) in ["kite", "hat", "dog"].into_iter().zip(&expected) {
            let found = &answers["pick"]["probabilities"][key];
            assert!(close(found, *expected), "{kind}, {key}: {found}, expected {expected}");
        }
        let expected =
            label_probabilities(&engine, &shown("score", "How sad?", &[r#"0="no""#, r#"1="yes""#]), &letters(2));
        assert!(close(&answers["level"]["score"], expected[1]), "{kind}: {answers}");
        let (yes, no) = (r#"true="gone""#, "false=null");
        let order = if kind == "openjev" { [yes, no] } else { [no, yes] };
        let labels = letters(if kind == "lev" { 9 } else { 2 });
        let probs = label_probabilities(&engine, &shown("noul", "It is lost.", &order), &labels);
        let rating = |probs: &[f64]| probs.iter().enumerate().map(|(at, prob)| prob * at as f64 / 8.0).sum();
        let expected = match kind {
            "openjev" => probs[0],
            "lev" => rating(&probs),
            _ => probs[1],
        };
        assert!(close(&answers["lost"]["noul"], expected), "{kind}: {answers}");
        // The same bits alone and in another order, unless the prompt names all questions; by a submit and polls; and by messages.
        if kind != "nimble" {
            for id in ["lost", "pick"] {
                let alone = decide(&engine, &json!({"state": request["state"], "questions": {id: questions[id]}}));
                assert_eq!(alone["answers"][id].to_string(), answers[id].to_string(), "{kind}");
            }
        }
        let updates = drain(&engine, Foredraft, submit(&engine, Foredraft, &request));
        assert_eq!(bits(updates.last().expect("an end")), bits(&answer));
        let messages = json!([{"role": "user", "content": "Tom had a kite."}]);
        let of_messages = decide(&engine, &json!({"messages": messages, "questions": questions}));
        assert_eq!(bits(&of_messages), bits(&decide(&engine, &json!({"state": messages, "questions": questions}))));
        // A label in the state is text, and what cannot be asked is an error that names the field.
        let refused = |more: Value, why: &str| {
            let error = try_decide(&engine, &with(&request, more).to_string()).expect_err(why);
            assert!(error.message().contains(why), "{why}: {error}");
        };
        refused(json!({"state": null, "prompt": "a"}), "a decision model is asked about state or messages");
        refused(json!({"state": "a ".repeat(2000)}), "questions.pick: ");
        let many: Map<String, Value> = (0..300).map(|at| (at.to_string(), Value::Null)).collect();
        let many = json!({"x": {"type": "choice", "instructions": "b", "criteria": many}});
        refused(json!({"questions": many}), "questions.x.criteria: 300 options, and the model has labels for ");
    }
}

#[test]
fn native_decision_models_have_temperatures_and_need_a_template() {
    let request = json!({"state": "a", "questions": questions(3)});
    let plain = decide(&native("lev", &[]), &request)["answers"].clone();
    let answers =
        decide(&native("lev", &[("gemma3.decision.temperature.choice.small", "4")]), &request)["answers"].clone();
    let same = decide(&native("lev", &[]), &with(&request, json!({"temperatures": {"choice": 4}})));
    assert_eq!(same["answers"], answers, "as given by the host");
    assert!(plain["q0"] != answers["q0"] && plain["q1"] == answers["q1"] && plain["q2"] == answers["q2"]);
    let model = tiny_models::with_template("gemma3.decision.type", "nimble");
    let error =
        try_decide(&start(json!({"model": model, "n_ctx": 512})), &request.to_string()).expect_err("no template");
    assert!(error.message().contains("no chat template named systemone"), "{error}");
}

#[test]
fn cancelled_and_late_decisions_have_no_answers_and_disturb_none() {
    let engine = start(json!({"n_ctx": 4096, "n_parallel": 2}));
    let story = json!({"prompt": "Once upon a time there was a child named", "n_predict": 60, "temperature": 0});
    let expected = complete(&engine, Plain, &story)["content"].clone();
    let request = json!({"state": STORY, "questions": questions(60)});
    let whole = bits(&decide(&engine, &request));
    let (beside, kept) = (submit(&engine, Foredraft, &story), submit(&engine, Foredraft, &request));
    // So that this one has not ended when the cancel comes.
    engine.pause().expect("it pauses");
    let ended = submit(&engine, Foredraft, &request);
    assert!(cancel(&engine, Foredraft, ended));
    engine.resume().expect("it is paused");
    let updates = drain(&engine, Foredraft, ended);
    let last = updates.last().expect("an end");
    assert_eq!((&last["stop_type"], &last["answers"]), (&json!("cancelled"), &json!({})));
    assert_eq!(text(&drain(&engine, Foredraft, beside)), expected.as_str().expect("text"));
    assert_eq!(bits(drain(&engine, Foredraft, kept).last().expect("an end")), whole);
    // So many that they are tokenized after the submit has returned.
    let late = json!({"state": STORY, "questions": questions(120), "timeout_ms": 1, "cache_prompt": false});
    let updates = drain(&engine, Foredraft, submit(&engine, Foredraft, &late));
    assert_eq!(updates.last().expect("an end")["stop_type"], "timeout");
}

#[test]
fn bad_questions_are_refused_with_the_name_of_the_field() {
    let engine = start(json!({"n_ctx": 256}));
    let refused = |request: &str, why: &str| match try_decide(&engine, request) {
        Err(error) => assert!(error.message().contains(why), "{why}: {error}"),
        Ok(answer) => panic!("{why}: {answer}"),
    };
    let of = |id: &str, question: Value| json!({"state": "a", "questions": {id: question}}).to_string();
    let choice = |criteria: Value| of("x", json!({"type": "choice", "instructions": "b", "criteria": criteria}));
    let score = |criteria: Value| of("x", json!({"type": "score", "instructions": "b", "criteria": criteria}));
    let noul = || json!({"type": "noul", "instructions": "b"});
    refused(r#"{"state": "a"}"#, "questions: expected an object of questions, got nothing");
    refused(r#"{"state": "a", "questions": {}}"#, "questions: expected 1 to 800 questions, got 0");
    refused(r#"{"state": "a", "questions": []}"#, "questions: expected an object of questions by id, got []");
    refused(
        &json!({"state": "a", "questions": questions(801)}).to_string(),
        "questions: expected 1 to 800 questions, got 801",
    );
    let twice = r#"{"state": "a", "questions": {"x": {"type": "noul", "instructions": "b"}, "x": {"type": "noul", "instructions": "c"}}}"#;
    refused(twice, r#"questions: expected different names, got "x" twice"#);
    let twice = r#"{"state": "a", "questions": {"x": {"type": "choice", "instructions": "b", "criteria": {"y": null, "y": null}}}}"#;
    refused(twice, r#"questions: expected different names, got "y" twice"#);
    refused(
        &json!({"questions": {"x": noul()}}).to_string(),
        "questions: expected state, messages or prompt with them",
    );
    refused(&json!({"state": "a", "prompt": "b", "questions": {"x": noul()}}).to_string(), "got both");
    refused(
        &json!({"state": "a", "messages": [{"role": "user", "content": "b"}], "questions": {"x": noul()}}).to_string(),
        "got both",
    );
    refused(
        &json!({"state": "a", "choices": ["b"], "questions": {"x": noul()}}).to_string(),
        "expected either questions or choices",
    );
    refused(
        &json!({"state": "a", "grammar": "root ::= \"a\"", "questions": {"x": noul()}}).to_string(),
        "expected either questions or grammar",
    );
    refused(&of("", noul()), "questions: expected an id of 1 to 1024 bytes without control characters");
    refused(&of("a\nb", noul()), "without control characters");
    refused(&of(&"n".repeat(1 << 20), noul()), "questions: expected an id of 1 to 1024 bytes");
    refused(&of("x", json!(5)), "questions.x: expected an object");
    refused(&of("x", json!({"instructions": "b"})), "questions.x.type: expected choice, score or noul");
    refused(&of("x", json!({"type": "bool", "instructions": "b"})), "questions.x.type");
    refused(&of("x", json!({"type": "noul"})), "questions.x.instructions: expected a question");
    refused(&of("x", json!({"type": "noul", "instructions": " "})), "questions.x.instructions: expected a question");
    refused(&of("x", json!({"type": "noul", "instructions": "b", "criteria": {"maybe": "c"}})), "questions.x.criteria");
    refused(&choice(json!({})), "questions.x.criteria: expected an object of 1 to 676 options");
    refused(&choice(json!(["b"])), "questions.x.criteria: expected an object");
    refused(&choice(json!({"": null})), "questions.x.criteria: expected an option of 1 to 1024 bytes");
    refused(&choice(json!({"a\u{7}": null})), "questions.x.criteria: expected an option");
    refused(&choice((0..677).map(|n| (n.to_string(), Value::Null)).collect::<Map<_, _>>().into()), "1 to 676 options");
    refused(&score(json!(["low"])), "questions.x.criteria: expected an array of 2 to 10 levels");
    refused(&score(json!({"from": 5, "to": 1})), "questions.x.criteria: expected an array of 2 to 10 levels");
    refused(
        &score(json!(["low", "high", "low"])),
        "questions.x.criteria[2]: the same level as questions.x.criteria[0]",
    );
    refused(&score(json!(["low", ""])), "questions.x.criteria[1]: expected the description of a level");
    for (temperatures, why) in [
        (json!({"choice": 0}), "temperatures.choice"),
        (json!({"noul": "hot"}), "temperatures.noul"),
        (json!(1), "temperatures: expected an object of numbers by type, got 1"),
    ] {
        refused(&json!({"state": "a", "questions": {"x": noul()}, "temperatures": temperatures}).to_string(), why);
    }
    let too_long = json!({"type": "noul", "instructions": "word ".repeat(300)});
    let answer = try_decide(&engine, &of("mood", too_long)).expect("it is queued");
    assert_eq!((&answer["success"], &answer["code"]), (&json!(false), &json!("context_full")), "{answer}");
    assert!(answer["error"].as_str().expect("why").starts_with("questions.mood: its "), "{answer}");
    let error = try_decide(&engine, &json!({"state": STORY.repeat(20), "questions": {"x": noul()}}).to_string());
    let error = error.map_or_else(
        |error| (error.code(), error.message().to_owned()),
        |answer| {
            assert_eq!(answer["code"], "context_full", "{answer}");
            (Code::ContextFull, answer["error"].as_str().unwrap_or_default().to_owned())
        },
    );
    assert!(error.0 == Code::ContextFull && error.1.starts_with("prompt: "), "{error:?}");
    // A warning for what means nothing.
    let answer = decide(&engine, &json!({"state": "a", "questions": {"x": noul()}, "temperature": 0.5, "image": 1}));
    let warnings = answer["warnings"].to_string();
    assert!(warnings.contains("temperature: ignored with questions") && warnings.contains("image"), "{warnings}");
}
