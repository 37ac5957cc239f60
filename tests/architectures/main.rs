//! Which architectures of llama.cpp work, with small models of random weights: they load, and prompt reuse, drafts, several slots and sessions
//! do not change their completions. Each runs in a process of its own, because some metadata fails an assertion of llama.cpp.
//!
//! `scripts/check.sh architectures` runs all of them, and writes the table of docs/architectures.md.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

#[path = "../common/mod.rs"]
mod common;
mod numbers;
mod random_model;

use std::ffi::CString;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Endpoint::{Foredraft, Plain};
use common::{Requests as _, complete, drain, model, n, submit, tokens, with};
use foredraft::api::JsonEngine;
use foredraft::llama;
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

/// The architecture that a process is to test, and whether its model has experts.
const NAME: &str = "FOREDRAFT_ARCHITECTURE";
const EXPERTS: &str = "FOREDRAFT_EXPERTS";
/// The text before the result in a process's output, and the line after the model was made.
const RESULT: &str = "result of the architecture: ";
const MADE: &str = "the model was made";
const LONGEST: Duration = Duration::from_secs(90);

/// The results of an architecture.
#[derive(Debug)]
struct Row {
    name: String,
    /// Why there is no completion to compare.
    failure: Option<String>,
    /// As in the status.
    n_rollback: Value,
    self_check: Value,
    n_drafted: usize,
    n_accepted: usize,
    /// The causes of a changed completion.
    differs: Vec<String>,
}

impl Row {
    /// Tests an architecture in another process: without experts, and if there is no such model, with.
    fn of(name: &str) -> Row {
        let found = run(name, false);
        let has_model = |found: &Result<Value, String>| match found {
            Ok(found) => !found["failure"].as_str().is_some_and(|why| why.starts_with(NO_MODEL)),
            Err(why) => !why.starts_with(NO_MODEL),
        };
        let found = if has_model(&found) { found } else { Some(run(name, true)).filter(has_model).unwrap_or(found) };
        let found = found.unwrap_or_else(failure);
        Row {
            name: name.to_owned(),
            failure: found["failure"].as_str().map(str::to_owned),
            n_rollback: found["n_rollback"].clone(),
            self_check: found["self_check"].clone(),
            n_drafted: n(&found["n_drafted"]),
            n_accepted: n(&found["n_accepted"]),
            differs: serde_json::from_value(found["differs"].clone()).unwrap(),
        }
    }

    /// The cells of the table that architectures share: completions, what is off, and the rollback.
    fn result(&self) -> String {
        let Row { n_rollback, .. } = self;
        let off = |key: &'static str| (self.self_check[key] == false).then_some(key);
        let off = [off("cache_prompt"), off("speculative")].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let works = match (&self.failure, self.differs.as_slice()) {
            (Some(why), _) => return format!("{} | | ", short(why)),
            (None, []) => "yes".to_owned(),
            (None, differs) => format!("changed by {}", differs.join(", ")),
        };
        let rollback = n_rollback.as_u64().map_or("any".to_owned(), |n| n.to_string());
        format!("{works} | {off} | {rollback}")
    }
}

/// The lines of the table: architectures with the same result share one, which is where the first of them was found.
fn table(rows: &[Row]) -> String {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for row in rows {
        let (name, result) = (format!("`{}`", row.name), row.result());
        match lines.iter_mut().find(|(found, _)| *found == result) {
            Some((_, names)) => names.push(name),
            None => lines.push((result, vec![name])),
        }
    }
    lines.iter().map(|(result, names)| format!("| {result} | {} |\n", names.join(", "))).collect()
}

const NO_MODEL: &str = "no model";

/// The message of a failure for the table, without the text that all have.
fn short(why: &str) -> String {
    if why.contains("it generates no text") {
        return "generates no text".to_owned();
    }
    let last = why.rsplit(": ").next().unwrap_or_default().trim().replace('|', "/");
    if why.starts_with(NO_MODEL) { format!("{NO_MODEL}: {last}") } else { last }
}

/// The result without a completion.
fn failure(why: String) -> Value {
    json!({"failure": why, "n_drafted": 0, "n_accepted": 0, "differs": []})
}

/// The result of an architecture's process, or how it ended without one.
fn run(name: &str, experts: bool) -> Result<Value, String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_architecture", "--ignored", "--nocapture", "--test-threads", "1"])
        .env(NAME, name)
        .envs(experts.then_some((EXPERTS, "1")))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > LONGEST {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    let result = output.lines().find_map(|line| line.split_once(RESULT)).map(|(_, result)| result);
    match (result, ended) {
        (Some(result), _) => Ok(serde_json::from_str(result).unwrap()),
        (None, None) => Err("takes too long".to_owned()),
        (None, Some(_)) if !output.contains(MADE) => Err(format!("{NO_MODEL}: llama.cpp ends the process")),
        (None, Some(_)) => Err("llama.cpp ends the process".to_owned()),
    }
}

fn request(seed: usize) -> Value {
    json!({
        "prompt": tokens(seed, 40), "n_predict": 32, "temperature": if seed.is_multiple_of(2) { 0.0 } else { 0.8 }, "seed": seed, "top_k": 0, "top_p": 1,
        "ignore_eos": true, "return_tokens": true, "cache_prompt": false,
    })
}

/// Compares completions of a model in all ways in which they can be made.
fn compare(path: &str) -> Result<Value, String> {
    let init = json!({
        "model": path, "model_draft": model("draft"), "n_ctx": 256, "n_batch": 64, "n_ubatch": 32, "n_threads": 1, "n_threads_batch": 1,
        "warmup": false, "log_level": "error",
    });
    let load = |more: Value| {
        let engine = JsonEngine::new();
        let init = with(&init, more).to_string();
        engine.load(init.as_bytes()).map(|()| engine).map_err(|error| error.message().to_owned())
    };
    let engine = load(json!({}))?;
    let ask = |request: &Value| {
        let bytes = request.to_string();
        let answer = engine.complete_as(Plain, bytes.as_bytes());
        answer.map_err(|error| error.message().to_owned())
    };
    let seeds = [2, 3];
    let plain: Vec<Value> = seeds.iter().map(|seed| ask(&request(*seed))).collect::<Result<_, String>>()?;
    let generated = |index: usize| plain[index]["tokens"].as_array().unwrap().iter().map(n).collect::<Vec<usize>>();
    let (mut differs, mut n_drafted, mut n_accepted) = (Vec::new(), 0, 0);
    let mut check = |what: &str, same: bool| {
        if !same && !differs.iter().any(|known| known == what) {
            differs.push(what.to_owned());
        }
    };
    for (index, seed) in seeds.into_iter().enumerate() {
        check("running again", ask(&request(seed))?["tokens"] == plain[index]["tokens"]);
        // Part of the completion becomes the prompt, which is in the cache.
        let prompt = [tokens(seed, 40), generated(index)[..16].to_vec()].concat();
        let continued = with(&request(seed), json!({"prompt": prompt, "n_predict": 16}));
        let whole = ask(&continued)?;
        ask(&with(&request(seed), json!({"cache_prompt": true})))?;
        let reused = ask(&with(&continued, json!({"cache_prompt": true})))?;
        check("prompt reuse", reused["tokens"] == whole["tokens"]);
        let divided = with(&request(seed), json!({"prompt": prompt[..48]}));
        ask(&with(&divided, json!({"cache_prompt": true, "n_predict": 1})))?;
        let divided = ask(&with(&continued, json!({"cache_prompt": true})))?;
        check("prompt reuse", divided["tokens"] == whole["tokens"]);
        // `suffix` drafts are mostly right, because the completion was made before.
        for (what, kind) in [("wrong drafts", "draft"), ("right drafts", "suffix")] {
            for n_max in [2, 6] {
                let speculative = json!({"speculative": {"type": kind, "adaptive": false, "n_max": n_max}});
                let fast = complete(&engine, Foredraft, &with(&request(seed), speculative));
                check(what, fast["tokens"] == plain[index]["tokens"]);
                n_drafted += n(&fast["speculative"]["n_drafted"]);
                n_accepted += n(&fast["speculative"]["n_accepted"]);
            }
        }
        let file = format!("{path}.session");
        let half = json!({"n_predict": 16, "session_save": file});
        ask(&with(&request(seed), half))?;
        let rest = json!({"session_load": file, "cache_prompt": true});
        // The session's seed goes on where it was.
        check("sessions", ask(&with(&continued, rest))?["tokens"] == json!(generated(index)[16..]));
    }
    let status = engine.status();
    drop(engine);
    let engine = load(json!({"n_parallel": 4}))?;
    let speculative = json!({"speculative": {"type": ["suffix", "draft"], "adaptive": false, "n_max": 3}});
    let ids = [2, 3, 2, 3].map(|seed| submit(&engine, Foredraft, &with(&request(seed), speculative.clone())));
    for (id, index) in ids.into_iter().zip([0, 1, 0, 1]) {
        let text = common::text(&drain(&engine, Foredraft, id));
        check("several slots", plain[index]["content"] == text.as_str());
    }
    let Value::Object(status) = status else { panic!("a status") };
    Ok(
        json!({"n_rollback": status["n_rollback"], "self_check": status["self_check"], "n_drafted": n_drafted, "n_accepted": n_accepted, "differs": differs}),
    )
}

/// Runs in the process of an architecture.
#[test]
#[ignore = "run by the others"]
fn one_architecture() {
    let Ok(name) = std::env::var(NAME) else { return };
    let path = format!("{}/architecture-{name}.gguf", env!("CARGO_TARGET_TMPDIR"));
    let made = random_model::make(&name, std::env::var_os(EXPERTS).is_some(), &path);
    println!("\n{MADE}");
    let result = made.map_err(|why| format!("{NO_MODEL}: {why}")).and_then(|()| compare(&path));
    if std::env::var_os("FOREDRAFT_KEEP").is_none() {
        let _ = std::fs::remove_file(&path);
    }
    let _ = std::fs::remove_file(format!("{path}.session"));
    println!("\n{RESULT}{}", result.unwrap_or_else(failure));
}

/// The architectures whose memory has recurrent states, in each of their kinds.
#[test]
fn drafts_do_not_change_completions_of_recurrent_architectures() {
    for (name, rolls_back) in [
        ("mamba", false),
        ("mamba2", false),
        ("falcon-h1", false),
        ("granitehybrid", false),
        ("jamba", false),
        ("plamo2", false),
        ("rwkv6", false),
        ("rwkv6qwen2", false),
        ("rwkv7", false),
        ("arwkv7", false),
        ("kimi-linear", false),
        ("kimi-k3", true),
        ("qwen35", true),
        ("lfm2", true),
        ("nemotron_h", true),
    ] {
        let row = Row::of(name);
        assert!(row.failure.is_none() && row.differs.is_empty(), "{row:?}");
        assert_eq!(n(&row.n_rollback) > 0, rolls_back, "{row:?}");
        assert!(row.n_accepted > 20 && row.n_drafted > row.n_accepted, "{row:?}");
    }
}

/// llama.cpp's CogVLM gives other logits for a prompt in two parts than for the whole one.
#[test]
fn what_the_check_at_load_finds_wrong_is_switched_off_and_said() {
    let path = format!("{}/checked-cogvlm.gguf", env!("CARGO_TARGET_TMPDIR"));
    random_model::make("cogvlm", false, &path).expect("a model");
    let engine =
        common::start(json!({"model": path, "model_draft": null, "n_ctx": 256, "n_batch": 64, "n_ubatch": 32}));
    let status = engine.status();
    assert_eq!(status["self_check"], json!({"known": false, "cache_prompt": false, "speculative": false}), "{status}");
    assert!(status["warnings"].to_string().contains("cache_prompt: not used"), "{}", status["warnings"]);
    let prompt = tokens(3, 40);
    let whole = complete(&engine, Plain, &with(&request(3), json!({"prompt": prompt, "n_predict": 1})));
    complete(&engine, Plain, &with(&request(3), json!({"prompt": prompt[..24], "cache_prompt": true})));
    let more = json!({"prompt": prompt, "cache_prompt": true, "n_predict": 1, "speculative": {"type": "suffix"}});
    let again = complete(&engine, Foredraft, &with(&request(3), more));
    assert_eq!((&again["tokens"], n(&again["timings"]["cache_n"])), (&whole["tokens"], 0));
    let warnings = again["warnings"].to_string();
    assert!(warnings.contains("cache_prompt: not used") && warnings.contains("speculative: not used"), "{warnings}");
    assert!(again["speculative"]["disabled"].as_str().is_some_and(|why| why.contains("rejected draft")), "{again}");
    // The shipped model's architecture is known, so nothing was tested, and nothing is off.
    let known = common::start(json!({"model_draft": null, "n_ctx": 256}));
    assert_eq!(known.status()["self_check"], json!({"known": true, "cache_prompt": true, "speculative": true}));
}

/// LFM2 with windows in all of its attention layers: llama.cpp's cache for layers without a window has none, and fails an assertion when it is
/// shifted.
#[test]
fn a_cache_without_layers_is_not_shifted() {
    let path = format!("{}/windowed-lfm2.gguf", env!("CARGO_TARGET_TMPDIR"));
    random_model::make("lfm2", false, &path).expect("a model");
    let windows = json!({"lfm2.attention.sliding_window": 16});
    let engine = common::start(json!({"model": path, "model_draft": null, "n_ctx": 96, "override_kv": windows}));
    let long = with(&request(2), json!({"n_predict": 200}));
    for _ in 0..2 {
        let answer = complete(&engine, Plain, &long);
        assert_eq!((n(&answer["tokens_predicted"]), &answer["truncated"]), (200, &json!(true)), "{answer}");
    }
}

/// llama.cpp multiplies BitNet's token embeddings themselves, and no second tensor of them, so this tensor is in panels, from which rows are read.
#[test]
fn output_weights_of_bitnet_are_in_panels_and_change_no_bit() {
    let [floats, path] = ["f32", "q8_0"].map(|name| format!("{}/bitnet-{name}.gguf", env!("CARGO_TARGET_TMPDIR")));
    random_model::make("bitnet", false, &floats).expect("a model");
    let [from, to] = [&floats, &path].map(|path| CString::new(path.as_str()).expect("no NUL"));
    // SAFETY: the paths and the parameters live during the call.
    let status = unsafe {
        let mut params = sys::llama_model_quantize_default_params();
        params.ftype = sys::LLAMA_FTYPE_MOSTLY_Q8_0;
        sys::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const params)
    };
    assert_eq!(status, 0);
    let threads = Arc::new(llama::ThreadPool::new(1).expect("threads"));
    let [in_file, in_panels, later] = [Some(false), Some(true), None].map(|repack| {
        let params = llama::ModelParams { repack, ..llama::ModelParams::new(&path) };
        let model = Arc::new(llama::Model::load(&params, |_| true).expect("it loads"));
        let params = llama::ContextParams { n_ctx: Some(64), ..llama::ContextParams::default() };
        let mut context = llama::Context::new(&model, &params, &threads, &Arc::default()).expect("it fits");
        model.make_panels(None);
        while model.pending_panel_bytes() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut batch = llama::Batch::new();
        [300, 301, 302, 303, 304].into_iter().enumerate().for_each(|(at, token)| _ = batch.push(token, at, 0, true));
        let before = llama::kernel_calls().panel_products;
        context.decode(&batch).expect("decoded");
        let logits = (0..5).flat_map(|row| context.logits(row).expect("logits").to_vec()).collect::<Vec<f32>>();
        (llama::kernel_calls().panel_products - before, logits)
    });
    assert!(in_file.1 == in_panels.1 && in_file.1 == later.1, "the same bits");
    // In each of 4 layers seven; and the outputs.
    let all = if llama::kernels_are_used() { 4 * 7 + 1 } else { 0 };
    assert_eq!((in_file.0, in_panels.0, later.0), (0, all, all));
}

/// Runs all architectures, and compares the table with the guide's, which it writes if `FOREDRAFT_TABLE` is set.
#[test]
#[ignore = "takes minutes: scripts/check.sh architectures"]
fn all_architectures() {
    let page = common::root().join("docs/architectures.md");
    let rows: Vec<Row> = random_model::names()
        .iter()
        .map(|name| {
            let row = Row::of(name);
            println!("{}: {}; accepted {} of {}", row.name, row.result(), row.n_accepted, row.n_drafted);
            row
        })
        .collect();
    for row in &rows {
        let is_off = |key: &str| row.self_check[key] == false;
        let works =
            row.failure.is_none() && row.differs.is_empty() && !is_off("cache_prompt") && !is_off("speculative");
        let known = row.self_check["known"] == true;
        assert_eq!(works, known, "crates/engine/src/self_check.rs lists the architectures that work: {row:?}");
    }
    let text = std::fs::read_to_string(&page).unwrap();
    let head = "| --- | --- | --- | --- |\n";
    let (before, _) = text.split_once(head).expect("a table");
    let made = format!("{before}{head}{}", table(&rows));
    if std::env::var_os("FOREDRAFT_TABLE").is_some() {
        std::fs::write(&page, made).unwrap();
    } else {
        assert_eq!(text, made, "scripts/check.sh architectures writes the table");
    }
}
