//! The MTP drafter makes the same drafts as llama.cpp's own `draft-mtp`, which `peer.cpp` runs as llama-server does.

use std::process::Command;

use crate::common::Endpoint::Foredraft;
use crate::common::tiny_models::MtpInput;
use crate::common::{complete, start, tiny_models};
use crate::toolchain::{compiler, folder, have, llama_common, run};
use serde_json::{Value, json};

const N_MAX: usize = 3;
const N_PREDICT: usize = 100;

#[test]
fn drafts_match_llama_cpp() {
    let compiler = compiler("c++");
    if !have(&compiler, &["--version"], "llama.cpp's MTP") {
        return;
    }
    let program = folder("mtp_peer").join("peer");
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-w", "tests/speculation/mtp/peer.cpp", "-o"]).arg(&program);
    run(command.args(llama_common()), "");
    let prompts: Vec<Vec<i32>> = (0..5)
        .map(|seed| (0..20 + 8 * seed).map(|index| 300 + (seed * 7919 + index * index * 31) % 1000).collect())
        .collect();
    let words = |tokens: &Vec<i32>| tokens.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    let lines = prompts.iter().map(words).collect::<Vec<_>>().join("\n");
    for model in [
        tiny_models::mtp(MtpInput::Token, 0.4),
        tiny_models::mtp(MtpInput::Hidden, 0.2),
        tiny_models::mtp(MtpInput::Random, 0.4),
        tiny_models::mtp_layers(),
    ] {
        let speculative = json!({"type": "mtp", "adaptive": false, "n_max": N_MAX});
        let engine = start(json!({"model": model, "model_draft": null, "n_ctx": 1024, "speculative": speculative}));
        let theirs = run(Command::new(&program).arg(&model).args([N_MAX, N_PREDICT].map(|n| n.to_string())), &lines);
        assert_eq!(theirs.lines().count(), prompts.len(), "{theirs}");
        for (prompt, line) in prompts.iter().zip(theirs.lines()) {
            let (tokens, counts) = line.split_once('|').expect("a bar");
            let numbers =
                |text: &str| text.split_whitespace().map(|n| n.parse().expect("a number")).collect::<Vec<u64>>();
            let request = json!({
                "prompt": prompt, "n_predict": N_PREDICT, "temperature": 0, "repeat_penalty": 1, "ignore_eos": true, "return_tokens": true, "cache_prompt": false,
            });
            let answer: Value = complete(&engine, Foredraft, &request);
            assert_eq!(answer["tokens"], json!(numbers(tokens)), "{model}");
            let report = &answer["speculative"];
            assert_eq!(json!([report["n_drafted"], report["n_accepted"]]), json!(numbers(counts)), "{model}: {report}");
        }
    }
}
