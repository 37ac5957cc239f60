//! Drafting with heads in files of their own: they change no completion, read the right states, and are refused if they belong to another target.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::changed_vocabulary::ChangedVocabulary;
use crate::common::tiny_models::heads::{
    HeadWriter, assistant, chance_target, dflash, eagle3, gemma4_target, gemma4_with, head_target, mtp_in_two_files,
};
use crate::common::{cancelled, complete, drain, model, n, start, submit, tiny_models, tokens, with};
use foredraft::api::JsonEngine;
use foredraft::engine::drafters::Head;
use foredraft::llama::{Batch, Context, ContextParams, Interrupt, Model, ModelParams, ThreadPool, Token};
use foredraft::sampling::{self, Sampler};
use foredraft::speculative::{DecodedTokens, Draft, DraftRequest, Drafter, DrafterKind, Settings, StopPolicy};
use foredraft_base::HiddenStates;
use serde_json::{Value, json};
use std::sync::Arc;

/// The least shares of accepted tokens of the shipped heads, in percent.
const EAGLE3_FLOOR: usize = 34;
const MTP_FLOOR: usize = 40;

fn unchanged(_: &mut HeadWriter) {}

/// A target, a head for it, and the head's kind.
fn pairs() -> Vec<(String, String, &'static str)> {
    let [main, layer] = mtp_in_two_files(0.4);
    let shared = |head: &mut HeadWriter| {
        head.without("token_embd");
        head.without("output.weight");
    };
    vec![
        (head_target(1.0), eagle3("own", unchanged), "eagle3"),
        (head_target(1.0), eagle3("shared", shared), "eagle3"),
        (head_target(1.0), dflash("own", false, unchanged), "dflash"),
        (chance_target(), dflash("shared", true, shared), "dflash"),
        (head_target(1.0), dflash("markov", false, HeadWriter::markov), "dspark"),
        (main, layer, "mtp"),
        (gemma4_target(1.0, 0), assistant("right", 2, 0.02, unchanged), "assistant"),
        (gemma4_target(1.0, 2), assistant("wrong", 1, 0.3, unchanged), "assistant"),
    ]
}

fn init(target: &str, head: &str) -> Value {
    json!({
        "model": target, "model_draft": head, "n_ctx": 1024, "n_batch": 32, "n_ubatch": 32,
        "speculative": {"type": "draft", "adaptive": false, "n_max": 3},
    })
}

fn load(target: &str, head: &str, more: Value) -> JsonEngine {
    start(with(&init(target, head), more))
}

fn request(prompt: &[usize], temperature: f64) -> Value {
    json!({
        "prompt": prompt, "n_predict": 50, "temperature": temperature, "top_k": 0, "top_p": 1, "seed": 8,
        "ignore_eos": true, "return_tokens": true, "repeat_penalty": 1,
    })
}

#[test]
fn heads_do_not_change_completions() {
    for (target, head, kind) in pairs() {
        let plain = start(json!({"model": target, "model_draft": null, "n_ctx": 1024, "n_batch": 32, "n_ubatch": 32}));
        let engine = load(&target, &head, json!({}));
        let status = engine.status();
        assert_eq!((&status["draft"]["kind"], &status["draft"]["compatible"]), (&json!(kind), &json!(true)), "{head}");
        // The second prompt spans several batches.
        for (temperature, length) in [(0.0, 20), (0.8, 300), (1.2, 60)] {
            let request = request(&tokens(1, length), temperature);
            let expected = complete(&plain, Plain, &request);
            assert_eq!(complete(&engine, Plain, &request)["tokens"], expected["tokens"], "{head}: no speculation");
            for more in [
                json!({"n_max": 1}),
                json!({"n_max": 3}),
                json!({"n_max": 32, "verify": "match"}),
                json!({"n_max": 8, "p_min": 0.3}),
                json!({"adaptive": true}),
                json!({"type": ["suffix", "draft"], "n_max": 16}),
                json!({"type": "mtp", "n_max": 2}),
                json!({"n_max": 4, "compare": true}),
            ] {
                let more = json!({"cache_prompt": false, "speculative": more});
                let answer = complete(&engine, Foredraft, &with(&request, more.clone()));
                let report = &answer["speculative"];
                assert_eq!(answer["tokens"], expected["tokens"], "{head} {temperature} {more}: {report}");
                if more["speculative"].as_object().is_some_and(|speculative| speculative.keys().eq(["n_max"])) {
                    assert!(n(&report["by_type"]["draft"]["n_drafted"]) > 15, "{head}: {report}");
                    assert!(report["disabled"].is_null(), "{head}: {report}");
                }
                if more["speculative"]["compare"] == true {
                    assert_eq!(
                        (report.get("first_difference"), report.get("compare_skipped")),
                        (Some(&Value::Null), None),
                        "{head}: {report}"
                    );
                }
                if ["mtp", "assistant"].contains(&kind) && more["speculative"]["type"] == "mtp" {
                    assert!(n(&report["n_drafted"]) > 15, "{head}: {report}");
                }
            }
        }
    }
}

/// The head predicts from the state of the token before the last, so its first token is right if and only if it gets that state.
#[test]
fn eagle3_reads_the_state_of_the_token_before() {
    let (target, head) = (head_target(0.1), eagle3("own", unchanged));
    for more in
        [json!({}), json!({"n_parallel": 3}), json!({"n_parallel": 3, "kv_unified": true}), json!({"n_ctx": 128})]
    {
        let engine = load(&target, &head, more.clone());
        let greedy = |prompt: &[usize]| with(&request(prompt, 0.0), json!({"speculative": {"n_max": 1}}));
        let check = |answer: &Value, what: &str| {
            let report = &answer["speculative"];
            let (drafted, accepted) = (n(&report["n_drafted"]), n(&report["n_accepted"]));
            assert!(drafted >= 20 && accepted * 10 >= drafted * 8, "{more} {what}: {report}");
        };
        let prompt = tokens(3, 100);
        let answer = complete(&engine, Foredraft, &greedy(&prompt));
        check(&answer, "first");
        check(&complete(&engine, Foredraft, &greedy(&prompt)), "the same again");
        check(&complete(&engine, Foredraft, &greedy(&[&prompt[..70], &tokens(5, 30)].concat())), "another end");
        complete(&engine, Plain, &greedy(&tokens(7, 90)));
        check(&complete(&engine, Foredraft, &greedy(&[tokens(7, 90), tokens(8, 3)].concat())), "behind a gap");
        check(&complete(&engine, Foredraft, &with(&greedy(&prompt), json!({"n_predict": 300}))), "full contexts");
        if more["n_parallel"] == 3 {
            let ids: Vec<u64> =
                (0..3).map(|index| submit(&engine, Foredraft, &greedy(&tokens(9 + index, 30 * (index + 1))))).collect();
            for id in ids {
                check(drain(&engine, Foredraft, id).last().expect("updates"), "together");
            }
        }
    }
}

/// The assistant predicts from the target's state of the token before the last, and then from its own, so its drafts are right if and only
/// if it gets that state.
#[test]
fn assistants_read_the_state_of_the_token_before() {
    let head = assistant("right", 2, 0.02, unchanged);
    for (target, more) in [
        (gemma4_target(0.1, 0), json!({})),
        (gemma4_target(0.1, 2), json!({"n_parallel": 3})),
        (gemma4_target(0.1, 0), json!({"n_parallel": 3, "kv_unified": true})),
        (gemma4_target(0.1, 2), json!({"flash_attn": "off"})),
        (gemma4_target(0.1, 0), json!({"n_parallel": 2, "swa_full": false})),
        (gemma4_target(0.1, 2), json!({"n_parallel": 2, "fit": true})),
        (gemma4_target(0.1, 0), json!({"grp_attn_n": 2, "grp_attn_w": 64})),
    ] {
        let engine = load(&target, &head, more.clone());
        let greedy = |prompt: &[usize]| with(&request(prompt, 0.0), json!({"cache_prompt": true}));
        let check = |answer: &Value, what: &str| {
            let report = &answer["speculative"];
            let (drafted, accepted) = (n(&report["n_drafted"]), n(&report["n_accepted"]));
            assert!(drafted >= 20 && accepted * 10 >= drafted * 8, "{more} {what}: {report}");
        };
        let prompt = tokens(3, 100);
        check(&complete(&engine, Foredraft, &greedy(&prompt)), "first");
        check(&complete(&engine, Foredraft, &greedy(&prompt)), "the same again");
        check(&complete(&engine, Foredraft, &greedy(&[&prompt[..70], &tokens(5, 30)].concat())), "another end");
        let updates = cancelled(&engine, Foredraft, &with(&greedy(&prompt), json!({"n_predict": 800})));
        assert!(!updates.is_empty());
        let ids: Vec<u64> =
            (0..3).map(|index| submit(&engine, Foredraft, &greedy(&tokens(9 + index, 30 * (index + 1))))).collect();
        for id in ids {
            check(drain(&engine, Foredraft, id).last().expect("updates"), "together");
        }
    }
}

/// The same state and token, behind two texts that the target has decoded in two sequences.
#[test]
fn assistants_read_the_cells_of_their_sequence() {
    let params = |unified| ContextParams {
        n_ctx: Some(256),
        n_batch: 64,
        n_ubatch: 64,
        n_threads: 1,
        n_threads_batch: 1,
        n_seq_max: 2,
        kv_unified: unified,
        ..ContextParams::default()
    };
    let (threads, interrupt) = (Arc::new(ThreadPool::new(1).expect("threads")), Arc::new(Interrupt::default()));
    let [target, head] = [gemma4_target(1.0, 0), assistant("reads", 2, 2.0, unchanged)].map(ModelParams::new);
    let target = Arc::new(Model::load(&target, |_| true).expect("it loads"));
    let head = Arc::new(Model::load_draft(&head, |_| true).expect("it loads"));
    for unified in [false, true] {
        let mut target = Context::new(&target, &params(unified), &threads, &interrupt).expect("it fits");
        let mut context = Context::head(&head, &mut target, &params(unified), &threads, &interrupt).expect("its head");
        // The texts differ in the first half only.
        let mut logits = |texts: [Token; 2]| {
            let mut batch = Batch::new();
            for (sequence, first) in (0..).zip(texts) {
                for (position, step) in (0..20).enumerate() {
                    let token = if position < 10 { first + 7 * step } else { 400 + step };
                    batch.push(token, position, sequence, false);
                }
            }
            target.decode(&batch).expect("the texts");
            let mut batch = Batch::new();
            let rows = [0, 1].map(|sequence| {
                batch.push_hidden(&vec![0.5; context.n_hidden()]);
                batch.push(500, 20, sequence, true)
            });
            context.decode(&batch).expect("a pass");
            let rows = rows.map(|row| context.logits(row).expect("logits").to_vec());
            assert_eq!([0, 1].map(|sequence| (target.len(sequence), context.len(sequence))), [(20, 20); 2]);
            assert_eq!([0, 1].map(|sequence| target.truncate(sequence, 0)), [true; 2]);
            rows
        };
        let [first, second] = logits([310, 330]);
        let [second_again, first_again] = logits([330, 310]);
        assert!(first != second && first.iter().all(|logit| logit.is_finite()), "{unified}");
        assert!(first == first_again && second == second_again, "{unified}");
        context.reset();
    }
}

/// The encoder runs when a draft needs its states, so steps without a draft cost no pass of the head.
#[test]
fn decoded_tokens_are_encoded_when_a_draft_needs_them() {
    struct Target(usize);
    impl HiddenStates for Target {
        fn hidden(&mut self, _: usize) -> Option<&[f32]> {
            None
        }
        fn layer_states(&mut self, index: usize, to: &mut Vec<f32>) -> bool {
            to.resize(to.len() + self.0, index as f32);
            true
        }
    }
    const N: usize = 200;
    let params = ContextParams {
        n_ctx: Some(1024),
        n_batch: 512,
        n_ubatch: 512,
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    };
    let (threads, interrupt) = (Arc::new(ThreadPool::new(1).expect("threads")), Arc::new(Interrupt::default()));
    let [target, head] = [head_target(1.0), eagle3("own", unchanged)].map(ModelParams::new);
    let target = Arc::new(Model::load(&target, |_| true).expect("it loads"));
    let head = Arc::new(Model::load_draft(&head, |_| true).expect("it loads"));
    let mut target = Context::new(&target, &params, &threads, &interrupt).expect("it fits");
    let context = Context::head(&head, &mut target, &params, &threads, &interrupt).expect("its head");
    let n_features = context.n_features();
    let mut drafter = Head::new(context, 1, DrafterKind::Draft, false);
    let sampler = Sampler::new(&sampling::SamplingSettings::default(), &**target.model(), None).expect("a sampler");
    drafter.begin(0, &sampler, &Settings::default());
    let tokens: Vec<Token> = (300..).take(N + 1).collect();
    let products = || foredraft::llama::kernel_calls().products;
    let before = products();
    for from in 0..N {
        let (tokens, target) = (&tokens[..=from], &mut Target(n_features));
        drafter.decoded(0, &mut DecodedTokens { target, first: 0, tokens, from, draft: &[] });
    }
    assert_eq!(products(), before);
    let mut draft = Draft::default();
    drafter.draft(&mut [DraftRequest {
        slot: 0,
        tokens: &tokens,
        sampler: &sampler,
        generated: 0,
        position: 0,
        n_max: 3,
        p_min: 0.0,
        branches: (1, 0.0),
        stop_policy: StopPolicy::All,
        draft: &mut draft,
        drawing: None,
    }]);
    assert_eq!((draft.tokens.len(), drafter.disabled(0)), (3, None));
    // Elsewhere the products are ggml's, which counts none.
    assert!(products() > before || !cfg!(target_os = "linux"));
}

/// Chance alone decides between the tokens of this target, so a draft of several is right only if each row was chosen by the target's noise.
#[test]
fn each_row_of_a_block_is_chosen_by_the_noise_of_its_position() {
    let (target, head) = (chance_target(), dflash("chance", true, unchanged));
    for more in [json!({}), json!({"n_parallel": 3}), json!({"n_parallel": 2, "kv_unified": true, "n_ctx": 2048})] {
        let engine = load(&target, &head, more.clone());
        let check = |answer: &Value| {
            let report = &answer["speculative"];
            // A block of six begins with the context's last token. Without the same noise, an eighth would be right.
            let positions = report["accepted_per_position"].as_array().expect("an array").iter().map(n);
            let positions: Vec<usize> = positions.collect();
            assert!(positions.len() == 5 && positions[4] > 0, "{more}: {report}");
            let steps = std::iter::once(n(&report["n_steps"])).chain(positions.clone());
            for (before, accepted) in steps.zip(&positions) {
                assert!(before < 8 || accepted * 5 > before * 2, "{more}: {report}");
            }
        };
        let request =
            |seed| with(&request(&tokens(seed, 40), 1.0), json!({"n_predict": 100, "speculative": {"n_max": 20}}));
        check(&complete(&engine, Foredraft, &request(1)));
        let ids: Vec<u64> = (0..3).map(|seed| submit(&engine, Foredraft, &request(seed))).collect();
        for id in ids {
            check(drain(&engine, Foredraft, id).last().expect("updates"));
        }
    }
}

#[test]
fn shifts_sessions_and_concurrent_requests_do_not_change_completions() {
    for (target, head, kind) in pairs() {
        let small = json!({"n_ctx": 96});
        let plain =
            start(with(&json!({"model": target, "model_draft": null, "n_batch": 32, "n_ubatch": 32}), small.clone()));
        let engine = load(&target, &head, with(&small, json!({"n_parallel": 3})));
        for n_keep in [0, 10, 80] {
            let long = json!({"n_predict": 200, "cache_prompt": false, "n_keep": n_keep});
            let requests: Vec<Value> =
                (0..4).map(|seed| with(&request(&tokens(seed, 40 + 5 * seed), 0.6), long.clone())).collect();
            let ids: Vec<u64> = requests.iter().map(|request| submit(&engine, Foredraft, request)).collect();
            for (id, request) in ids.into_iter().zip(&requests) {
                let updates = drain(&engine, Foredraft, id);
                let expected = complete(&plain, Plain, request);
                assert_eq!(
                    crate::common::text(&updates),
                    expected["content"].as_str().expect("content"),
                    "{head} {n_keep}"
                );
                let report = &updates.last().expect("updates")["speculative"];
                assert!(n(&report["n_drafted"]) > 100, "{kind} {n_keep}: {report}");
            }
        }
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("head-{kind}.session"));
        let prompt = tokens(9, 40);
        let whole = complete(&plain, Plain, &with(&request(&prompt, 0.0), json!({"cache_prompt": false})));
        let generated: Vec<usize> = whole["tokens"].as_array().expect("tokens").iter().map(n).collect();
        complete(&engine, Foredraft, &with(&request(&prompt, 0.0), json!({"n_predict": 25, "session_save": path})));
        let rest = [&prompt, &generated[..25]].concat();
        let rest = with(&request(&rest, 0.0), json!({"n_predict": 25, "session_load": path}));
        let answer = complete(&load(&target, &head, with(&small, json!({"n_parallel": 3}))), Foredraft, &rest);
        assert_eq!(answer["tokens"], json!(generated[25..]), "{head}: {answer}");
        assert!(n(&answer["speculative"]["n_drafted"]) > 10, "{head}: {}", answer["speculative"]);
    }
}

/// Completions of the shipped target in the kinds of text that it was trained for.
const PROMPTS: [&str; 6] = [
    "Once upon a time there was a child named Mia.",
    "One morning it was sunny, and Tom went outside.",
    "Near the river lived a small fox.",
    "<|im_start|>user\nTell me a story about an owl.<|im_end|>\n<|im_start|>assistant\n",
    "{\"name\": \"Ben\", \"age\": 7,",
    "def add(a, b):\n",
];

/// Drafts with a fixed length for each prompt, and returns the tokens drafted and accepted, and the target's steps. Each completion is that
/// of the engine `plain`.
fn acceptance(engine: &JsonEngine, plain: &JsonEngine, kind: &str, temperature: f64) -> [usize; 3] {
    let mut counts = [0; 3];
    for (seed, prompt) in PROMPTS.iter().enumerate() {
        let request = json!({
            "prompt": prompt, "n_predict": 100, "temperature": temperature, "seed": seed, "ignore_eos": true, "cache_prompt": false,
            "return_tokens": true,
        });
        let plain = complete(plain, Plain, &request);
        let speculative = json!({"speculative": {"type": kind, "adaptive": false, "n_max": 3}});
        let fast = complete(engine, Foredraft, &with(&request, speculative));
        assert_eq!(fast["tokens"], plain["tokens"], "{kind} {temperature} {prompt}");
        let report = &fast["speculative"];
        for (count, key) in counts.iter_mut().zip(["n_drafted", "n_accepted", "n_steps"]) {
            *count += n(&report[key]);
        }
    }
    counts
}

#[test]
fn drafts_of_the_shipped_heads_are_accepted() {
    let engine = start(json!({"model_draft": model("eagle3"), "n_ctx": 512}));
    let plain = start(json!({"model_draft": null, "n_ctx": 512}));
    assert_eq!(engine.status()["draft"]["kind"], "eagle3");
    let mtp = shipped_mtp();
    for temperature in [0.0, 0.8] {
        for (name, [drafted, accepted, _], floor) in [
            ("EAGLE-3", acceptance(&engine, &plain, "draft", temperature), EAGLE3_FLOOR),
            ("MTP", acceptance(&mtp, &mtp, "mtp", temperature), MTP_FLOOR),
        ] {
            assert!(drafted > 400 && accepted * 100 > drafted * floor, "{name} {temperature}: {accepted} of {drafted}");
        }
    }
}

/// The target with layers for multi-token prediction. It rounds otherwise than the target.
fn shipped_mtp() -> JsonEngine {
    start(json!({"model": model("mtp"), "model_draft": null, "n_ctx": 512, "speculative": {"type": "mtp"}}))
}

/// The table of docs/speculative-decoding.md.
#[test]
#[ignore = "prints figures"]
fn acceptance_of_each_drafter() {
    let with_draft = |draft: &str| start(json!({"model_draft": model(draft), "n_ctx": 512}));
    let plain = start(json!({"model_draft": null, "n_ctx": 512}));
    for (name, kind, engine) in [
        ("draft model", "draft", with_draft("draft")),
        ("EAGLE-3", "draft", with_draft("eagle3")),
        ("suffix", "suffix", with_draft("draft")),
        ("MTP", "mtp", shipped_mtp()),
    ] {
        for temperature in [0.0, 0.8] {
            let plain = if kind == "mtp" { &engine } else { &plain };
            let [drafted, accepted, steps] = acceptance(&engine, plain, kind, temperature);
            let n_tokens = 100 * PROMPTS.len();
            eprintln!("{name} at {temperature}: {accepted} of {drafted} accepted, {steps} steps for {n_tokens} tokens");
        }
    }
}

#[test]
fn heads_of_another_target_are_errors_that_say_why() {
    let check = |target: &str, head: &str, expected: &[&str]| {
        for fit in [false, true] {
            let init = with(&init(target, head), json!({"n_threads": 1, "log_level": "none", "fit": fit}));
            let error = JsonEngine::new().load(init.to_string().as_bytes()).expect_err(head);
            for part in expected {
                assert!(error.message().contains(part), "{head}: {}", error.message());
            }
        }
    };
    let target = head_target(1.0);
    let foreign = "is a head for another model: ";
    let fewer_tokens = ChangedVocabulary::new("target").without_every(40).write("head-target");
    check(&fewer_tokens, &model("eagle3"), &[foreign, "its vocabulary has 1536 tokens, the target's "]);
    for head in [eagle3("own", unchanged), dflash("own", false, unchanged)] {
        check(
            &model("target"),
            &head,
            &["model_draft: ", &head, foreign, "it reads states of 32 numbers, and the target's have "],
        );
        check(&tiny_models::recurrent(), &head, &["which llama.cpp does not give for the architecture mamba"]);
    }
    let [main, layer] = mtp_in_two_files(0.4);
    check(&target, &layer, &[foreign, "its architecture is glm4moe, the target's llama"]);
    check(&layer, &layer, &["model: ", "is a head for multi-token prediction (MTP)", "model_draft"]);
    check(&eagle3("own", unchanged), &layer, &["is an EAGLE-3 head", "model_draft"]);
    check(&dflash("markov", false, HeadWriter::markov), &layer, &["is a DSpark head"]);
    let eagle3_with = |name, change: fn(&mut HeadWriter)| eagle3(name, change);
    check(
        &target,
        &eagle3_with("layer", |head| head.layers(&[0, 2, 9])),
        &[foreign, "it reads layer 9, and the target has 4"],
    );
    check(&target, &eagle3_with("no-layers", HeadWriter::without_layers), &["eagle3.target_layers", "is absent"]);
    check(&target, &eagle3_with("negative", |head| head.layers(&[0, -2, 1])), &["has a number that is no layer"]);
    check(&target, &eagle3_with("wide", |head| head.number("target_hidden_size", 64)), &["cannot be loaded"]);
    check(&target, &eagle3_with("no-fc", |head| head.without("fc")), &["cannot be loaded"]);
    let dflash_with = |name, change: fn(&mut HeadWriter)| dflash(name, false, change);
    check(&target, &dflash_with("no-mask", HeadWriter::without_mask), &["has no mask token"]);
    check(&target, &dflash_with("block", |head| head.number("block_size", 1)), &["block_size"]);
    check(&target, &dflash_with("selector", HeadWriter::selector), &["is a DFlash 2 head"]);
    check(&main, &dflash_with("own", unchanged), &["does not give for the architecture glm4moe"]);
    let helper = assistant("right", 2, 0.02, unchanged);
    check(&helper, &layer, &["is an assistant of Gemma 4", "model_draft"]);
    check(&target, &helper, &[foreign, "the target's architecture is llama, not gemma4"]);
    let gemma = gemma4_target(1.0, 0);
    let few = assistant("few-heads", 2, 0.02, |head| head.number("attention.head_count_kv", 1));
    check(
        &gemma,
        &few,
        &[foreign, "its layer 0 reads a KV cache of 1 heads of 16 numbers, and the target's layer 2 has 2 of 16"],
    );
    let turned = gemma4_with("turned", 1.0, 0, |target| target.windows(&[0, 1, 0, 1]));
    check(&turned, &helper, &[foreign, "its layer 0 has a sliding window, which is not so for the target's layer 2"]);
    let trunk = assistant("trunk", 2, 0.02, |head| head.number("nextn_predict_layers", 1));
    check(&gemma, &trunk, &["cannot"]);
}
