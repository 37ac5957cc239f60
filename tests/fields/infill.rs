//! Fill in the middle (infill). The shipped models have no FIM tokens; `override_kv` declares other tokens as such.

use serde_json::{Value, json};

use crate::common::{Requests as _, start, with};
use crate::table::{CallMode, Response, Row, base, row, run, tokenized};

const PRE: i64 = 1501;
const SUF: i64 = 1502;
const MID: i64 = 1503;
const REP: i64 = 1504;
const SEP: i64 = 1505;
const BOS: i64 = 0;

fn fim(repository: bool) -> Value {
    let key = |name: &str| format!("tokenizer.ggml.fim_{name}_token_id");
    let mut tokens = json!({key("pre"): PRE, key("suf"): SUF, key("mid"): MID});
    if repository {
        crate::common::merge(&mut tokens, &json!({key("rep"): REP, key("sep"): SEP}));
    }
    json!({"n_ctx": 256, "n_batch": 64, "override_kv": tokens})
}

fn ids(response: &Response, text: &str) -> Vec<i64> {
    tokenized(response.engine, json!({"text": text, "add_special": false, "parse_special": false}))
}

/// Asserts that the response equals that of a prompt of these tokens.
fn continues(response: &Response, parts: &[&[i64]]) {
    let tokens = parts.concat();
    let mut request = response.request.clone();
    for field in ["input_prefix", "input_suffix", "input_extra"] {
        request.as_object_mut().expect("an object").remove(field);
    }
    let plain = Response::of(response.engine, response.mode, with(&request, json!({"prompt": tokens})));
    assert_eq!(response.answer["prompt_stats"], plain.answer["prompt_stats"]);
    assert_eq!(response.tokens(), plain.tokens());
}

fn around() -> Value {
    json!({"prompt": "    x", "input_prefix": "def add(a, b):\n", "input_suffix": ["\n", 300, "def <|im_end|>"]})
}

pub fn rows() -> Vec<Row> {
    vec![
        row(&["input_prefix", "input_suffix"], around(), |response| {
            let (prefix, prompt) = (ids(response, "def add(a, b):\n"), ids(response, "    x"));
            let suffix = [ids(response, "\n"), vec![300], ids(response, "def <|im_end|>")].concat();
            continues(response, &[&[BOS, PRE], &prefix, &prompt, &[SUF], &suffix, &[MID]]);
            continues(&response.ask(json!({"prompt": ""})), &[&[BOS, PRE], &prefix, &[SUF], &suffix, &[MID]]);
            let no_suffix = response.ask(json!({"prompt": "", "input_suffix": null}));
            continues(&no_suffix, &[&[BOS, PRE], &prefix, &[SUF, MID]]);
            // Three quarters of a batch of 64 for the prefix, the rest of it for the suffix.
            let long = "Tom had a hat. ".repeat(30);
            let all = ids(response, &long);
            let cut = response.ask(json!({"input_prefix": long, "input_suffix": long}));
            let behind = 16 - 2 - prompt.len();
            continues(&cut, &[&[BOS, PRE], &all[all.len() - 48..], &prompt, &[SUF], &all[..behind], &[MID]]);
            let several = response.ask(json!({"n_cmpl": 2}));
            assert_eq!(several.answer["results"][0]["content"], response.content());
            assert!(
                response
                    .refused(json!({"messages": [{"role": "user"}]}))
                    .starts_with("input_prefix, input_suffix, input_extra: ")
            );
        }),
        row(
            &["input_extra"],
            with(&around(), json!({"input_extra": [{"filename": "a.py", "text": "x = 1\n"}, {"text": "y"}]})),
            |response| {
                let (prefix, prompt) = (ids(response, "def add(a, b):\n"), ids(response, "    x"));
                let suffix = [ids(response, "\n"), vec![300], ids(response, "def <|im_end|>")].concat();
                let snippet = ids(response, "\n\n--- snippet ---\n\n");
                let files = [snippet.clone(), ids(response, "x = 1\n"), snippet, ids(response, "y")].concat();
                continues(response, &[&files, &[BOS, PRE], &prefix, &prompt, &[SUF], &suffix, &[MID]]);
                // 256 tokens of context, less a batch of 64, less twice `n_predict`: only the end of the files fits.
                let text = "Tom had a hat. ".repeat(60);
                let long = response.ask(json!({"input_extra": [{"text": text}], "n_predict": 16}));
                let all = ids(response, &text);
                continues(&long, &[&all[all.len() - 160..], &[BOS, PRE], &prefix, &prompt, &[SUF], &suffix, &[MID]]);
            },
        ),
    ]
}

#[test]
fn infill_prompt_has_prefix_suffix_and_middle() {
    run(&start(fim(false)), &rows());
}

#[test]
fn infill_prompt_uses_repository_tokens_when_present() {
    let engine = start(fim(true));
    for mode in [CallMode::Blocking, CallMode::Speculative] {
        let request = with(
            &base(mode),
            with(&around(), json!({"input_extra": [{"filename": "a.py", "text": "x = 1\n"}, {"text": "y"}]})),
        );
        let response = Response::of(&engine, mode, request);
        let of = |text: &str| ids(&response, text);
        let extra = [
            vec![REP],
            of("myproject\n"),
            vec![SEP],
            of("a.py\n"),
            of("x = 1\n"),
            vec![SEP],
            of("tmp\n"),
            of("y"),
            vec![SEP],
            of("filename\n"),
        ];
        let suffix = [of("\n"), vec![300], of("def <|im_end|>")].concat();
        continues(
            &response,
            &[&extra.concat(), &[BOS, PRE], &of("def add(a, b):\n"), &of("    x"), &[SUF], &suffix, &[MID]],
        );
    }
}

#[test]
fn infill_prompt_can_start_with_the_suffix() {
    let engine = start(with(&fim(false), json!({"spm_infill": true})));
    let response = Response::of(&engine, CallMode::Blocking, with(&base(CallMode::Blocking), around()));
    let suffix = [ids(&response, "\n"), vec![300], ids(&response, "def <|im_end|>")].concat();
    let (prefix, prompt) = (ids(&response, "def add(a, b):\n"), ids(&response, "    x"));
    continues(&response, &[&[BOS, SUF], &suffix, &[PRE], &prefix, &prompt, &[MID]]);
}

#[test]
fn infill_is_refused_without_fim_tokens() {
    let engine = start(json!({"n_ctx": 64}));
    for request in [json!({"input_prefix": "a"}), json!({"input_suffix": "a"}), json!({"input_extra": [{"text": "a"}]})]
    {
        let answer = engine.complete_as(CallMode::Blocking.endpoint(), request.to_string().as_bytes());
        let error = answer.expect_err("no infill");
        assert!(error.message().starts_with("input_prefix: the model has no fill-in-the-middle tokens"), "{error}");
    }
}
