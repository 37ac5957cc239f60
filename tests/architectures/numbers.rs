//! Models of every architecture, with one number of their metadata changed: each load is an error, or the model completes and can be
//! unloaded. No such number ends the process or holds it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use foredraft::api::JsonEngine;
use serde_json::{Value, json};

use crate::common::gguf::Gguf;
use crate::common::tiny_models::heads;
use crate::common::{self, Endpoint::Plain, Requests as _};
use crate::{EXPERTS, NAME, random_model};

/// The case at which a process begins.
const FIRST_CASE: &str = "FOREDRAFT_FIRST_CASE";
/// The lines of a process before a case, and after one that loads although the number is absurd.
const CASE: &str = "case of a number: ";
const LOADS: &str = "loads: ";
const END: &str = "all cases are done";
/// A case takes a fraction of a second; one without an answer after this time is taken for endless.
const LONGEST: Duration = Duration::from_secs(120);
/// Numbers from here on are no size of anything.
const ABSURD: u32 = 0x7fff_ffff;
const NUMBERS: [u32; 9] = [0, 1, 3, 1 << 20, 1 << 29, ABSURD, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];

/// A number of a file's metadata: its key and its position in the file.
struct Number {
    key: String,
    at: usize,
}

/// The integers of 32 bits that describe the model, and the first of each list of them.
fn numbers(file: &Gguf, architecture: &str) -> Vec<Number> {
    let word = |at: usize| u32::from_le_bytes(file.bytes[at..at + 4].try_into().unwrap());
    let is_integer = |kind: u32| kind == 4 || kind == 5;
    let of_model = file.entries.iter().filter(|entry| entry.key.starts_with(&format!("{architecture}.")));
    let number = of_model.filter_map(|entry| {
        let start = entry.value.start;
        let at = match word(start - 4) {
            9 if is_integer(word(start)) => start + 12,
            kind if is_integer(kind) => start,
            _ => return None,
        };
        Some(Number { key: entry.key.clone(), at })
    });
    number.collect()
}

/// Says the load of a model file.
type LoadOf = fn(&str) -> Value;

/// The path of a model of the architecture, and what a load with a file in its place says. `None`: there is no such model.
fn model(architecture: &str, experts: bool) -> Option<(String, LoadOf)> {
    fn drafting(path: &str) -> Value {
        json!({"model": heads::head_target(0.0), "model_draft": path})
    }
    match architecture {
        "eagle3" => Some((heads::eagle3("numbers", |_| ()), drafting)),
        "dflash" => Some((heads::dflash("numbers", false, |_| ()), drafting)),
        _ => {
            let path = format!("{}/numbers-{architecture}.gguf", env!("CARGO_TARGET_TMPDIR"));
            random_model::make(architecture, experts, &path).ok()?;
            Some((path, |path| json!({"model": path})))
        }
    }
}

/// Loads the model, completes a few tokens if it can, and unloads it. Returns whether it loads.
fn try_load(init: &Value) -> bool {
    let engine = JsonEngine::new();
    let more = json!({"n_ctx": 64, "n_batch": 32, "n_threads": 1, "n_threads_batch": 1, "warmup": false, "log_level": "error"});
    let loads = engine.load(common::with(init, more).to_string().as_bytes()).is_ok();
    if loads {
        let request = json!({"prompt": common::tokens(1, 20), "n_predict": 4, "ignore_eos": true});
        let _ = engine.complete_as(Plain, request.to_string().as_bytes());
    }
    drop(engine);
    loads
}

/// Runs in the process of an architecture.
#[test]
#[ignore = "run by the others"]
fn changed_numbers_of_one_architecture() {
    let Ok(architecture) = std::env::var(NAME) else { return };
    let Some((path, init)) = model(&architecture, std::env::var_os(EXPERTS).is_some()) else {
        println!("\n{END}: no model");
        return;
    };
    let first: usize = std::env::var(FIRST_CASE).unwrap().parse().unwrap();
    let file = Gguf::read(&path);
    let cases = numbers(&file, &architecture).into_iter().flat_map(|number| {
        let Number { key, at } = number;
        NUMBERS.map(|value| (key.clone(), at, value))
    });
    let changed = format!("{path}.changed");
    for (index, (key, at, value)) in cases.enumerate().skip(first) {
        println!("\n{CASE}{index} {key} {value}");
        std::fs::write(&changed, file.with(at, &value.to_le_bytes())).unwrap();
        if try_load(&init(&changed)) && value >= ABSURD {
            println!("\n{LOADS}{key} {value}");
        }
    }
    let _ = std::fs::remove_file(&changed);
    println!("\n{END}");
}

/// The faults of changed numbers of an architecture, and the number of cases.
fn faults(architecture: &str, experts: bool) -> (Vec<String>, usize) {
    let (mut faults, mut first) = (Vec::new(), 0);
    loop {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "numbers::changed_numbers_of_one_architecture", "--ignored", "--nocapture"])
            .args(["--test-threads", "1"])
            .env(NAME, architecture)
            .env(FIRST_CASE, first.to_string())
            .envs(experts.then_some((EXPERTS, "1")))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut last = String::new();
        let (mut is_done, mut is_endless) = (false, false);
        loop {
            match lines.recv_timeout(LONGEST) {
                Ok(line) => {
                    if let Some((_, case)) = line.split_once(CASE) {
                        case.clone_into(&mut last);
                    } else if let Some((_, case)) = line.split_once(LOADS) {
                        faults.push(format!("{case} loads"));
                    }
                    is_done |= line.contains(END);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    is_endless = true;
                    child.kill().unwrap();
                    break;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = child.wait().unwrap();
        // llama.cpp ends the process where it is asked for some architectures without experts.
        let Some((case, rest)) = last.split_once(' ') else { return (faults, 0) };
        let n_done: usize = case.parse().unwrap();
        if is_done {
            return (faults, n_done + 1);
        }
        let ending = if is_endless { "does not end".to_owned() } else { format!("ends the process: {status}") };
        faults.push(format!("{rest} {ending}"));
        first = n_done + 1;
    }
}

#[test]
fn changed_numbers_of_some_architectures_neither_end_the_process_nor_hold_it() {
    for architecture in ["eagle3", "lfm2", "modern-bert", "qwen35"] {
        let (faults, n_cases) = faults(architecture, false);
        assert!(n_cases > 50, "{architecture}: {n_cases}");
        assert_eq!(faults, [""; 0], "{architecture}");
    }
}

#[test]
#[ignore = "takes an hour: scripts/check.sh architectures"]
fn changed_numbers_of_all_architectures_neither_end_the_process_nor_hold_it() {
    let names = random_model::names().into_iter().chain(["eagle3", "dflash"].map(str::to_owned));
    let (mut all, mut n_all) = (Vec::new(), 0);
    for (name, experts) in names.flat_map(|name| [(name.clone(), false), (name, true)]) {
        let (faults, n_cases) = faults(&name, experts);
        n_all += n_cases;
        println!("{name} {experts}: {n_cases} cases, {faults:?}");
        all.extend(faults.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(n_all > 10_000, "{n_all}");
    assert!(all.is_empty(), "{}", all.join("\n"));
}
