//! The programs that the guide's pages include (`examples/guide`), built and run in each language.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::sounds::{sound_part, wav_of};
use crate::common::tiny_models::projectors;
use crate::common::{Endpoint, complete, model, start};
use crate::examples::{built, plain, printed};
use crate::host::shipped_pair;
use crate::readme::node_modules;
use crate::toolchain::{folder, have, library_folder, root, run};

/// A program of the guide, ready to run; `None`, with a line on stderr, where its language is missing.
fn program(name: &str) -> Option<Command> {
    let source = root().join("examples/guide").join(name);
    match Path::new(name).extension().and_then(|it| it.to_str()) {
        Some("c") => built(&format!("guide/{name}"), "c99", &[]).map(Command::new),
        Some("cpp") => built(&format!("guide/{name}"), "c++17", &[]).map(Command::new),
        Some("cs") => csharp(name, &source),
        Some("py") => have("python3", &["-c", "import ctypes"], name).then(|| {
            let mut command = Command::new("python3");
            command.env("PYTHONPATH", root().join("python/src")).arg(source);
            command
        }),
        _ => have("node", &["-e", "import('koffi').catch(() => process.exit(1))"], name).then(|| {
            // Node looks for packages beside the program.
            let folder = folder("guide");
            node_modules(&folder);
            let copy = folder.join(name);
            std::fs::copy(source, &copy).expect("target/ is writable");
            let mut command = Command::new("node");
            command.arg("--preserve-symlinks").arg(copy);
            command
        }),
    }
}

/// A program in C#, compiled with the bindings by Mono's compiler.
pub fn csharp(name: &str, source: &Path) -> Option<Command> {
    if !have("mcs", &["--version"], name) || !have("mono", &["--version"], name) {
        return None;
    }
    let program = folder("guide").join(name).with_extension("exe");
    let bindings = std::fs::read_dir(root().join("csharp/src")).expect("the bindings");
    let mut compile = Command::new("mcs");
    compile.args(["-langversion:7", "-warnaserror"]).arg(format!("-out:{}", program.display())).arg(source);
    compile.args(bindings.map(|entry| entry.expect("an entry").path()));
    run(&mut compile, "");
    let mut command = Command::new("mono");
    command.env("LD_LIBRARY_PATH", library_folder()).arg(program);
    Some(command)
}

/// The output of a program, if it can run here.
fn prints(name: &str, arguments: &[&str]) -> Option<String> {
    // Mono prints in the encoding of the locale.
    program(name).map(|mut command| printed(command.args(arguments).env("LC_ALL", "C.UTF-8"), ""))
}

#[test]
fn each_program_of_the_guide_is_run_by_a_test() {
    let listed = std::fs::read_dir(root().join("examples/guide")).expect("the folder is there");
    let listed: BTreeSet<String> =
        listed.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    let source = std::fs::read_to_string(root().join("tests/hosts/guide.rs")).expect("this file");
    let forgotten: Vec<&String> = listed.iter().filter(|name| !source.contains(&format!("\"{name}\""))).collect();
    assert!(forgotten.is_empty() && listed.len() > 10, "{forgotten:?}");
}

#[test]
fn the_first_chat_is_the_same_in_each_language() {
    let messages = json!([{"role": "user", "content": "Tell me a story about a fox."}]);
    let expected = plain(&json!({"messages": messages, "n_predict": 60, "seed": 7}));
    for name in ["hello.c", "hello.cpp", "hello.py", "hello.mjs", "hello.cs"] {
        if let Some(text) = prints(name, &[]) {
            assert_eq!(text, expected, "{name}");
        }
    }
}

#[test]
fn pixels_of_a_program_are_seen_in_each_language() {
    let [target, mmproj] = ["target", "vision"].map(|name| format!("{}/models/stories-{name}.gguf", root().display()));
    for name in ["picture.c", "picture.py", "picture.mjs", "picture.cs"] {
        // An address is read on Linux only.
        if (cfg!(target_os = "linux") || name != "picture.c")
            && let Some(text) = prints(name, &[&target, &mmproj])
        {
            assert_eq!(text, "A red square is in the middle.\n", "{name}");
        }
    }
}

#[test]
fn samples_of_a_program_are_heard_in_each_language() {
    const RATE: u32 = 16_000;
    // The shipped models have no projector for sounds.
    let (target, mmproj) = (model("target"), projectors::ultravox_of(256));
    let tone = |at| (0.5 * (2.0 * std::f64::consts::PI * 440.0 * f64::from(at) / f64::from(RATE)).sin()) as f32;
    let samples: Vec<u8> = (0..RATE).flat_map(|at| tone(at).to_le_bytes()).collect();
    let question = |sound: &Value| {
        let content = json!([sound, {"type": "text", "text": "What do you hear?"}]);
        json!({"messages": [{"role": "user", "content": content}], "n_predict": 30, "temperature": 0})
    };
    let engine = start(json!({"model": target, "model_draft": null, "mmproj": mmproj}));
    let ask = |sound: &Value| complete(&engine, Endpoint::Foredraft, &question(sound))["content"].clone();
    let expected = ask(&sound_part(&wav_of(3, 1, RATE, 32, &samples)));
    assert_ne!(ask(&sound_part(&wav_of(3, 1, RATE, 32, &vec![0; samples.len()]))), expected, "it hears");
    for name in ["sound.py", "sound.cpp"] {
        if let Some(text) = prints(name, &[&target, &mmproj]) {
            assert_eq!(text.strip_suffix('\n'), expected.as_str(), "{name}");
        }
    }
}

#[test]
fn frames_show_the_whole_completion() {
    if let Some(text) = prints("frame.c", &[]) {
        assert_eq!(text, plain(&json!({"prompt": "Once upon a time", "n_predict": 60, "seed": 7})));
    }
}

#[test]
fn a_penalty_by_the_logits_callback_is_that_of_the_samplers() {
    if let Some(text) = prints("logits.c", &[]) {
        let expected = json!({"prompt": "Once upon a time", "n_predict": 60, "seed": 7, "repeat_penalty": 1,
            "frequency_penalty": 2, "repeat_last_n": 20});
        assert_eq!(text, format!("{}\n", plain(&expected)));
    }
}

#[test]
fn an_old_host_that_speculates_shows_the_whole_completion() {
    if let Some(text) = prints("speculative_host.c", &[]) {
        assert_eq!(text, plain(&json!({"prompt": "Once upon a time", "n_predict": 24, "temperature": 0})));
    }
}

#[test]
fn tasks_wait_cancel_and_fail() {
    if let Some(text) = prints("tasks.cs", &[]) {
        let expected = plain(&json!({"prompt": "Once upon a time", "n_predict": 60, "seed": 7}));
        let error = "invalid_request: top_p: expected a number from 0 to 1, got 1.5";
        assert_eq!(text, format!("{expected}\nlimit\ncancelled\n{error}\n"));
    }
}

#[test]
fn conversations_go_on() {
    if let Some(text) = prints("conversation.py", &[]) {
        let mut messages: Vec<Value> = Vec::new();
        let mut expected = String::new();
        for question in ["Tell me a story about a fox.", "Count from 3 to 9."] {
            messages.push(json!({"role": "user", "content": question}));
            let answer = plain(&json!({"messages": messages, "n_predict": 60, "temperature": 0}));
            assert!(text.contains(&answer), "{text}\n{answer}");
            expected += &answer;
            messages.push(json!({"role": "assistant", "content": answer}));
        }
        assert!(text.matches(" tokens, ").count() == 2 && text.len() > expected.len(), "{text}");
    }
}

#[test]
fn a_prepared_turn_decodes_only_the_rest() {
    if let Some(text) = prints("prepare.py", &[]) {
        let numbers: Vec<usize> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [prepared, decoded] = numbers[..] else { panic!("two numbers: {text}") };
        assert!(prepared > 30 && decoded < prepared, "{text}");
    }
}

#[test]
fn answers_follow_a_schema() {
    let answers = ["schema.py", "schema.mjs"].map(|name| prints(name, &[]));
    for text in answers.iter().flatten() {
        let (_, age) = text.trim_end().rsplit_once(' ').expect("a name and an age");
        assert!(age.parse::<u8>().is_ok_and(|age| age < 100), "{text:?}");
    }
    if let [Some(python), Some(node)] = &answers {
        assert_eq!(python, node);
    }
}

/// Two calls with arguments that the schema allows, and an answer.
fn check_tools(name: &str, text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    for (line, beginning) in
        lines.iter().zip(["called weather: 12 degrees and rain in ", "called time: ten o'clock in "])
    {
        let city = line.strip_prefix(beginning).unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(["Lima", "Oslo"].contains(&city), "{name}: {text}");
    }
    assert!(lines.len() > 2 && lines[2..].iter().any(|line| !line.trim().is_empty()), "{name}: {text}");
}

#[test]
fn a_decision_names_the_most_probable_choice() {
    if let Some(text) = prints("decision.py", &[]) {
        let lines: Vec<&str> = text.lines().collect();
        let probable = |line: &&str| {
            let (choice, percent) = line.split_once(": ").expect("a choice and its probability");
            (percent.trim_end_matches('%').parse::<u32>().expect("a number"), choice.to_owned())
        };
        let (choices, last) = lines.split_at(3);
        let all: Vec<(u32, String)> = choices.iter().map(probable).collect();
        assert!((99..=101).contains(&all.iter().map(|(percent, _)| percent).sum::<u32>()), "{text}");
        let (most, _) = all.iter().max().expect("three");
        assert!(all.iter().any(|(percent, choice)| percent == most && last[0] == format!("It is{choice}")), "{text}");
    }
}

#[test]
fn tools_are_called_in_each_language() {
    for name in ["tools.py", "tools.mjs", "tools.c", "tools.cpp"] {
        if let Some(text) = prints(name, &[]) {
            check_tools(name, &text);
        }
    }
    let example = library_folder().with_file_name("examples").join("tools");
    if example.is_file() {
        check_tools("tools.rs", &printed(Command::new(example).current_dir(root()), ""));
    }
}

#[test]
fn statistics_are_printed() {
    if let Some(text) = prints("statistics.py", &[]) {
        for part in ["tokens a step", "accepted by position: [", "switched off:", "first difference: None"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn another_thread_cancels() {
    if let Some(text) = prints("threads.cpp", &[]) {
        assert_eq!(text, "ended by: cancelled\n");
    }
}

#[test]
fn errors_name_the_field() {
    if let Some(text) = prints("errors.py", &[]) {
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("model_error - model: ") && lines[0].contains("missing.gguf"), "{text}");
        assert_eq!(lines[1], "invalid_request - top_p: expected a number from 0 to 1, got 1.5");
        assert!(lines[2].contains("did you mean \"temperature\"?"), "{text}");
    }
}

/// An archive with the shipped target in it, and where that is.
fn archive() -> (PathBuf, [String; 2]) {
    let model = std::fs::read(shipped_pair().target).expect("a shipped model");
    let path = folder("guide").join("game.pak");
    let bytes = [&b"a level, 21 bytes long"[..21], &model, b"music"].concat();
    std::fs::write(&path, bytes).expect("target/ is writable");
    (path, ["21".into(), model.len().to_string()])
}

#[test]
fn models_come_from_an_archive_and_from_memory() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 20, "temperature": 0});
    let expected = plain(&request);
    let (path, [offset, length]) = archive();
    let arguments = [path.to_str().expect("UTF-8 path"), &offset, &length];
    if let Some(text) = prints("pak.py", &arguments) {
        assert_eq!(text, format!("{expected}\n"));
    }
    if let Some(text) = prints("pak.c", &arguments) {
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(answer["content"], expected, "{answer}");
    }
    let model = shipped_pair().target;
    if let Some(text) = prints("memory.cpp", &[model.to_str().expect("UTF-8 path")]) {
        assert_eq!(text, format!("{expected}\n"));
    }
}
