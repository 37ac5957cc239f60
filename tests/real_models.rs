//! SmolLM2-135M-Instruct, a real chat model with a vocabulary of 49,152 tokens and heads of 64, with a draft that often
//! disagrees with it. `make test` downloads it. Where there is no network, these tests are skipped, which they say; with `CI` set they fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

mod common;
mod toolchain;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Endpoint, complete, n, output_fields, results, start, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};
use toolchain::{folder, root, run};

const FILE: &str = include_str!("data/inventory.py");

/// A file that scripts/models.sh makes. `None`, with a line on stderr past the test runner's capture, if there is none.
fn made(path: &str) -> Option<PathBuf> {
    let file = root().join("target").join(path);
    if !file.is_file() {
        assert!(std::env::var_os("CI").is_none(), "no target/{path}: scripts/models.sh needs a connection to PyPI");
        let line = format!("skipped: no target/{path}: scripts/models.sh needs a connection to PyPI\n");
        std::io::stderr().write_all(line.as_bytes()).expect("stderr is open");
    }
    file.is_file().then_some(file)
}

/// SmolLM2 with the draft that lacks a block.
fn smollm2(more: Value) -> Option<JsonEngine> {
    let target = made("models/smollm2-135m-q4_1.gguf")?;
    let draft = made("models/smollm2-far-q4_1.gguf")?;
    Some(start(with(&json!({"model": target, "model_draft": draft, "n_ctx": 2048}), more)))
}

/// One message for each of the five tasks that real models are measured with.
fn messages() -> [String; 5] {
    [
        "Why does the moon change its shape during a month?".into(),
        "Tell me a short story about a lighthouse keeper who finds a letter.".into(),
        "Write a Python function that returns the median of a list of numbers.".into(),
        "Correct the spelling of this: helo tom, i wil be late becaus the trane has stoped agian.".into(),
        format!("Rename the method `total` to `total_value` in this file.\n\n```python\n{FILE}```"),
    ]
}

fn request(message: &str, n_predict: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": message}], "temperature": 0, "repeat_penalty": 1, "n_predict": n_predict,
        "return_tokens": true, "cache_prompt": false, "speculative": false,
    })
}

#[test]
fn it_answers_through_its_own_template() {
    let Some(engine) = smollm2(json!({})) else { return };
    let [moon, _, median, ..] = messages();
    for (message, word) in [(moon, "moon"), (median, "def ")] {
        let request = with(&request(&message, 48), json!({"response_fields": ["content", "prompt"]}));
        let answer = complete(&engine, Endpoint::Plain, &request);
        let text = answer["content"].as_str().expect("text").to_lowercase();
        assert!(text.contains(word), "{answer}");
        // The template puts a system message before the conversation.
        let prompt = answer["prompt"].as_str().expect("the rendered prompt");
        assert!(prompt.contains("named SmolLM") && prompt.contains(&message), "{prompt}");
    }
}

#[test]
fn speculation_changes_no_answer() {
    let Some(engine) = smollm2(json!({})) else { return };
    let (mut drafted, mut accepted) = (0, 0);
    for message in messages() {
        for temperature in [0.0, 0.7] {
            let plain = with(&request(&message, 28), json!({"temperature": temperature, "seed": 7}));
            let expected = complete(&engine, Endpoint::Plain, &plain);
            for drafter in [json!({"type": "draft", "adaptive": false, "n_max": 4}), json!({"type": "auto"})] {
                let answer = complete(&engine, Endpoint::Foredraft, &with(&plain, json!({"speculative": drafter})));
                assert_eq!(
                    output_fields(&answer),
                    output_fields(&expected),
                    "{drafter}, temperature {temperature}: {message}"
                );
                if drafter["type"] == "draft" {
                    drafted += n(&answer["speculative"]["n_drafted"]);
                    accepted += n(&answer["speculative"]["n_accepted"]);
                }
            }
        }
    }
    // The draft knows most of what the target says, and not all of it.
    assert!(2 * accepted > drafted && accepted < drafted, "{accepted} of {drafted} tokens accepted");
}

#[test]
fn answers_in_four_slots_are_those_of_one() {
    let Some(engine) = smollm2(json!({"n_parallel": 4})) else { return };
    let [first, second, third, fourth, _] = messages();
    let messages = [first, second, third, fourth];
    let prompts: Vec<Value> = messages
        .iter()
        .map(|message| format!("<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n").into())
        .collect();
    let drafting = json!({"type": "draft", "adaptive": false, "n_max": 3});
    let common = json!({"temperature": 0, "repeat_penalty": 1, "n_predict": 32, "return_tokens": true});
    let together = complete(
        &engine,
        Endpoint::Foredraft,
        &with(&common, json!({"prompts": prompts, "speculative": drafting, "cache_prompt": false})),
    );
    for (prompt, answer) in prompts.iter().zip(results(&together, prompts.len())) {
        let alone = with(&common, json!({"prompt": prompt, "speculative": false, "cache_prompt": false}));
        assert_eq!(output_fields(answer), output_fields(&complete(&engine, Endpoint::Plain, &alone)), "{prompt}");
    }
}

/// A completion that copies a file is drafted from the prompt.
#[test]
fn an_edited_file_is_drafted_from_the_prompt() {
    let Some(engine) = smollm2(json!({})) else { return };
    let message = format!("Repeat this file word for word.\n\n```python\n{FILE}```");
    let plain = with(&request(&message, 96), json!({"ignore_eos": true}));
    let expected = complete(&engine, Endpoint::Plain, &plain);
    for drafter in ["suffix", "ngram-cache"] {
        let speculative = json!({"type": drafter, "adaptive": false, "n_max": 8});
        engine
            .with_loaded(|loaded| loaded.lookup_cache(br#"{"action": "clear", "cache": "dynamic"}"#))
            .expect("the cache is cleared");
        let answer = complete(&engine, Endpoint::Foredraft, &with(&plain, json!({"speculative": speculative})));
        assert_eq!(output_fields(&answer), output_fields(&expected), "{drafter}");
        assert!(n(&answer["speculative"]["n_accepted"]) > 10, "{drafter}: {}", answer["speculative"]);
    }
}

/// A decision about a conversation: as probable as each choice is when it is generated token by token.
#[test]
fn a_decision_agrees_with_each_choice_alone() {
    let Some(engine) = smollm2(json!({})) else { return };
    let messages = json!([{"role": "user", "content": "Is the sky blue on a clear day? Answer with yes or no."}]);
    let choices = ["Yes", "No", "I do not know.", "The sky is green"];
    let request = json!({"messages": messages, "choices": choices, "temperature": 1});
    let answer = complete(&engine, Endpoint::Foredraft, &request);
    let logprobs: Vec<f64> =
        (0..choices.len()).map(|index| answer["choices"][index]["logprob"].as_f64().expect("a number")).collect();
    let call = |request: Value| request.to_string().into_bytes();
    let rendered = engine.with_loaded(|loaded| loaded.apply_template(&call(json!({"messages": messages}))));
    let prompt = rendered.expect("a prompt")["prompt"].clone();
    for (choice, found) in choices.iter().zip(&logprobs) {
        let tokenized =
            engine.with_loaded(|loaded| loaded.tokenize(&call(json!({"text": choice, "add_special": false}))));
        let (mut context, mut alone) = (vec![prompt.clone()], 0.0);
        for token in tokenized.expect("tokens")["ids"].as_array().expect("ids") {
            let next =
                json!({"prompt": context, "n_predict": 1, "n_probs": 50_000, "temperature": 0, "repeat_penalty": 1});
            let next = complete(&engine, Endpoint::Plain, &next);
            let all = next["completion_probabilities"][0]["top_logprobs"].as_array().expect("all tokens").clone();
            let own = all.iter().find(|entry| entry["id"] == *token).expect("all tokens are listed");
            alone += own["logprob"].as_f64().expect("a number");
            context.push(token.clone());
        }
        assert!((alone - found).abs() < 2e-2, "{choice}: {found}, alone {alone}");
    }
    assert!(answer["choice"] == 0 || answer["choice"] == 1, "{answer}");
    assert_eq!(answer["message"]["content"], answer["choices"][n(&answer["choice"])]["text"], "{answer}");
}

/// Both are in F16, so that nothing but the shape differs.
#[test]
fn an_enlarged_model_predicts_the_same_tokens() {
    let Some(source) = made("models/smollm2-135m-q4_1.gguf") else { return };
    // The system's python, if that has what inflate.py imports.
    let imports = Command::new("python3").args(["-c", "import gguf, numpy"]).stderr(Stdio::null()).status();
    let python = if imports.is_ok_and(|status| status.success()) {
        PathBuf::from("python3")
    } else {
        let Some(python) = made("setup/gguf/bin/python") else { return };
        python
    };
    let enlarged = |embd: &str, layers: &str, ff: &str| {
        let result = folder("enlarged").join(format!("{embd}.gguf"));
        let mut command = Command::new(&python);
        command.arg("models/inflate.py").arg(&source).arg(&result);
        command.args(["--embd", embd, "--layers", layers, "--ff", ff, "--type", "F16"]);
        run(&mut command, "");
        let engine = start(json!({"model": result, "model_draft": "", "n_ctx": 512}));
        let answers = ["Why is the sky blue?", "Write a haiku about the sea."]
            .map(|message| complete(&engine, Endpoint::Plain, &request(message, 24))["tokens"].clone());
        drop(engine);
        std::fs::remove_file(result).expect("it was written above");
        answers
    };
    let [expected, answers] = [enlarged("576", "30", "1536"), enlarged("768", "32", "2048")];
    assert_eq!(answers, expected);
    assert!(expected.iter().all(|tokens| tokens.as_array().is_some_and(|tokens| tokens.len() > 8)), "{expected:?}");
}

/// all-MiniLM-L6-v2, which has the pooling `mean`.
fn minilm() -> Option<JsonEngine> {
    let model = made("models/minilm-l6-v2-f16.gguf")?;
    Some(start(json!({"model": model, "model_draft": null, "embedding": true})))
}

fn embed(engine: &JsonEngine, request: &Value) -> Value {
    engine.with_loaded(|loaded| loaded.embed(request.to_string().as_bytes())).expect("embeddings")
}

fn numbers(embedding: &Value) -> Vec<f64> {
    embedding.as_array().expect("numbers").iter().map(|x| x.as_f64().expect("a number")).collect()
}

#[test]
fn embeddings_are_those_that_its_model_card_shows() {
    let Some(engine) = minilm() else { return };
    let answer = embed(&engine, &json!({"input": ["This is an example sentence", "Each sentence is converted"]}));
    let expected = [[0.067657, 0.063496, 0.048713], [0.086439, 0.102763, 0.005395]];
    for (entry, expected) in answer["data"].as_array().expect("an array").iter().zip(expected) {
        let found = numbers(&entry["embedding"]);
        assert_eq!(found.len(), 384);
        assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-3), "{:?} {expected:?}", &found[..3]);
    }
}

#[test]
fn forty_texts_have_the_embeddings_that_each_has_alone() {
    let Some(engine) = minilm() else { return };
    let texts: Vec<String> = FILE.lines().filter(|line| !line.trim().is_empty()).take(38).map(str::to_owned).collect();
    let texts = [texts, vec![String::new(), "a ".repeat(400)]].concat();
    let all = embed(&engine, &json!({"input": texts}));
    for (text, entry) in texts.iter().zip(all["data"].as_array().expect("an array")) {
        assert_eq!(entry["embedding"], embed(&engine, &json!({"input": text}))["embedding"], "{text}");
    }
    // A text that is cut keeps its separator.
    let cut = embed(&engine, &json!({"input": "a ".repeat(600), "truncate": true}));
    let whole = embed(&engine, &json!({"input": "a ".repeat(510)}));
    assert_eq!((&cut["tokens_evaluated"], &cut["embedding"]), (&json!(512), &whole["embedding"]));
}

#[test]
fn the_text_of_the_same_meaning_is_the_nearest() {
    let Some(engine) = minilm() else { return };
    let texts = [
        "How do I reset my password?",
        "The cat sleeps on the sofa.",
        "I forgot the word to log in with.",
        "It rains.",
    ];
    let all = embed(&engine, &json!({"input": texts}));
    let vectors: Vec<Vec<f64>> = (0..4).map(|index| numbers(&all["data"][index]["embedding"])).collect();
    let likeness = |index: usize| vectors[0].iter().zip(&vectors[index]).map(|(x, y)| x * y).sum::<f64>();
    assert!(likeness(2) > likeness(1) + 0.2 && likeness(2) > likeness(3) + 0.2, "{:?}", [1, 2, 3].map(likeness));
}
