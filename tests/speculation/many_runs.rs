//! Many runs of every kind of memory and of every head, with models of ever other random weights: drafts change no completion.
//!
//! `cargo test --release --test speculation many_runs -- --ignored --nocapture`; `FOREDRAFT_RUNS` is the number of runs of each kind, and
//! `FOREDRAFT_KIND` a part of the names of the kinds that run. A run differs if its text does, or the probability of a token, to the bit.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::tiny_models::heads::{HeadWriter, chance_target, dflash, eagle3, head_target, mtp_in_two_files};
use crate::common::tiny_models::{MtpInput, delta_net, delta_net_mtp, hybrid, mtp, recurrent, with_seed};
use crate::common::{complete, drain, model, n, start, submit, tokens};
use serde_json::{Value, json};

/// The runs with one model.
const RUNS: usize = 24;

/// A kind: its name, its drafters, and how to make its models, the target and what drafts for it.
type Kind = (&'static str, &'static [&'static str], fn() -> (String, Option<String>));

const KINDS: [Kind; 9] = [
    ("rollback, short convolutions", &["draft", "suffix"], || (hybrid(), Some(model("draft")))),
    ("rollback, delta net", &["draft", "suffix"], || (delta_net(), Some(model("draft")))),
    ("copied state", &["draft", "suffix"], || (recurrent(), Some(model("draft")))),
    ("MTP in the target's file", &["mtp"], || (mtp(MtpInput::Token, 0.3), None)),
    ("MTP of a hybrid", &["mtp"], || (delta_net_mtp(), None)),
    ("MTP in its own file", &["draft"], || {
        let [main, layer] = mtp_in_two_files(0.4);
        (main, Some(layer))
    }),
    ("EAGLE-3", &["draft"], || (head_target(1.0), Some(eagle3("own", |_| {})))),
    ("DFlash", &["draft"], || (chance_target(), Some(dflash("chance", true, |_| {})))),
    ("DSpark", &["draft"], || (head_target(1.0), Some(dflash("markov", false, HeadWriter::markov)))),
];

/// The same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }
}

#[derive(Default)]
struct Counts {
    runs: usize,
    differ: usize,
    drafted: usize,
    accepted: usize,
}

/// Runs a model with random requests, one after the other and several at once.
fn run(targets: &(String, Option<String>), sources: &[&str], random: &mut Random, counts: &mut Counts) {
    let (target, draft) = targets;
    let n_parallel = [1, 3][random.below(2)];
    let engine = start(json!({
        "model": target, "model_draft": draft, "n_ctx": 512, "n_batch": 64, "n_ubatch": 32, "n_parallel": n_parallel,
        "kv_unified": random.below(2) == 0, "warmup": false, "speculative": {"type": sources},
    }));
    let mut requests: Vec<(Value, Value)> = Vec::new();
    for _ in 0..RUNS {
        let temperature = [0.0, 0.8, 1.2][random.below(3)];
        let plain = json!({
            "prompt": tokens(random.below(1000), 4 + random.below(60)), "n_predict": 24 + random.below(30),
            "temperature": temperature, "top_k": 0, "top_p": 1, "seed": random.below(1 << 30), "ignore_eos": true,
            "cache_prompt": random.below(2) == 0, "n_probs": 1,
        });
        let speculative = match random.below(4) {
            0 => json!({"type": sources}),
            1 => json!({"type": sources, "adaptive": false, "n_max": 16, "verify": "match"}),
            _ => json!({"type": sources, "adaptive": false, "n_max": 1 + random.below(6)}),
        };
        let mut fast = plain.clone();
        fast["speculative"] = speculative;
        requests.push((plain, fast));
    }
    for group in requests.chunks(n_parallel) {
        let expected: Vec<Value> = group.iter().map(|(plain, _)| complete(&engine, Plain, plain)).collect();
        let ids: Vec<u64> = group.iter().map(|(_, fast)| submit(&engine, Foredraft, fast)).collect();
        for ((id, expected), (_, request)) in ids.into_iter().zip(expected).zip(group) {
            let updates = drain(&engine, Foredraft, id);
            let report = &updates.last().expect("updates")["speculative"];
            counts.runs += 1;
            let last = updates.last().expect("updates");
            let has_same_text = expected["content"] == crate::common::text(&updates).as_str();
            if !has_same_text || expected["completion_probabilities"] != last["completion_probabilities"] {
                counts.differ += 1;
                eprintln!("{target} {draft:?} {n_parallel}, the same text: {has_same_text}: {request}");
            }
            counts.drafted += n(&report["n_drafted"]);
            counts.accepted += n(&report["n_accepted"]);
        }
    }
}

fn check(n_runs: usize) {
    let mut any_differs = false;
    let only = std::env::var("FOREDRAFT_KIND").unwrap_or_default();
    for (number, (name, sources, make)) in (1..).zip(KINDS).filter(|(_, (name, ..))| name.contains(&only)) {
        let (mut counts, mut random) = (Counts::default(), Random(number));
        for seed in 2.. {
            let targets = with_seed(seed, make);
            run(&targets, sources, &mut random, &mut counts);
            for path in std::iter::once(&targets.0).chain(&targets.1).filter(|path| path.contains("-seed-")) {
                std::fs::remove_file(path).expect("a file of this test");
            }
            if counts.runs >= n_runs {
                break;
            }
        }
        let Counts { runs, differ, drafted, accepted } = counts;
        eprintln!("{name}: {differ} of {runs} runs differ; {accepted} of {drafted} drafted tokens accepted");
        assert!(drafted > runs && accepted > 0, "{name}: nothing was drafted");
        any_differs |= differ > 0;
    }
    assert!(!any_differs);
}

#[test]
#[ignore = "minutes: a thousand runs of each kind"]
fn no_run_of_any_kind_differs() {
    check(std::env::var("FOREDRAFT_RUNS").map_or(1000, |runs| runs.parse().expect("a number")));
}
