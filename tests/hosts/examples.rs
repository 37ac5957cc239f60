//! The programs in examples/, built as their first lines say: each prints what the library answers without speculation.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::host::Host;
use crate::toolbox::{STRICT, compiler, folder, have, library_folder, root, run, run_failing};
use serde_json::{Value, json};

/// A quotation, a line feed and characters of two, three and four bytes, to get right in every language.
const MESSAGE: &str = "Repeat after me: Zoë said \"two\n€ 🦀\" and ran.";

/// A conversation, one message a line.
const LINES: &str = "Tell me a story about Zoë and a crow.\nCount from 3 to 9.\n";

/// The library in this process, one engine for all tests. Whoever holds it is alone: programs that evaluate models at
/// the same time wait for each other's threads, and take many times as long.
static HOST: LazyLock<Mutex<Host>> = LazyLock::new(|| {
    let host = Host::open().expect("the library loads");
    let models = root().join("models");
    host.init(&models.join("stories-target.gguf"), &models.join("stories-draft.gguf")).expect("the models load");
    Mutex::new(host)
});

fn alone() -> MutexGuard<'static, Host> {
    HOST.lock().unwrap_or_else(PoisonError::into_inner) // another test failed, which is no reason to fail
}

/// What a program prints.
fn printed(command: &mut Command, input: &str) -> String {
    let _alone = alone();
    run(command, input)
}

/// A request's text without speculation.
fn plain(request: &Value) -> String {
    let response = alone().call("get_completion", request).expect("an answer");
    let text = response["content"].as_str().expect("content").to_owned();
    assert!(!text.is_empty(), "{response}");
    text
}

/// What a chat must print for these messages: each answer, with a line feed.
fn expected(said: &[&str]) -> String {
    let mut messages = Vec::new();
    let mut text = String::new();
    for message in said {
        messages.push(json!({ "role": "user", "content": message }));
        let answer = plain(&json!({ "messages": messages, "temperature": 0, "n_predict": 200 }));
        text += &format!("{answer}\n");
        messages.push(json!({ "role": "assistant", "content": answer }));
    }
    text
}

/// Runs a chat with a message, with a conversation on stdin, and with a model that is not there.
fn check_chat(command: impl Fn() -> Command) {
    assert_eq!(printed(command().arg(MESSAGE), ""), expected(&[MESSAGE]));
    assert_eq!(printed(&mut command(), LINES), expected(&LINES.lines().collect::<Vec<_>>()));
    let errors = run_failing(command().args(["Hello", "models/missing.gguf"]));
    // After the library's own log line.
    let said = errors.lines().any(|line| line.starts_with("chat: ") && line.contains("missing.gguf"));
    assert!(said, "{errors}");
}

/// Compiles an example, warnings being errors; `None` when there is no compiler for it.
fn built(source: &str, standard: &str, flags: &[&str]) -> Option<PathBuf> {
    let language = if source.ends_with(".c") { "c" } else { "c++" };
    let compiler = compiler(language);
    if !have(&compiler, &["--version"], source) {
        return None;
    }
    let (libraries, program) = (library_folder(), folder(&format!("{source}{}", flags.concat())).join("program"));
    let mut command = Command::new(compiler);
    command.arg(format!("-std={standard}")).args(STRICT).args(flags).arg("-Iinclude");
    command.arg(Path::new("examples").join(source)).arg("-o").arg(&program);
    command.arg("-L").arg(&libraries).arg("-lforedraft").arg(format!("-Wl,-rpath,{}", libraries.display()));
    run(&mut command, "");
    Some(program)
}

#[test]
fn chat_in_c() {
    if let Some(program) = built("chat.c", "c99", &[]) {
        check_chat(|| Command::new(&program));
    }
}

#[test]
fn chat_in_cpp() {
    if let Some(program) = built("chat.cpp", "c++17", &[]) {
        check_chat(|| Command::new(&program));
    }
}

#[test]
fn chat_in_python() {
    if have("python3", &["-c", "import ctypes"], "chat.py") {
        check_chat(|| {
            let mut command = Command::new("python3");
            command.arg("examples/chat.py");
            command
        });
    }
}

#[test]
fn chat_in_node() {
    if have("node", &["-e", "import('koffi').catch(() => process.exit(1))"], "chat.mjs") {
        check_chat(|| {
            let mut command = Command::new("node");
            command.arg("examples/chat.mjs");
            command
        });
    }
}

#[test]
fn chat_in_rust() {
    let program = library_folder().with_file_name("examples").join("chat");
    if have("test", &["-x", program.to_str().expect("UTF-8 path")], "chat.rs, which a full `cargo test` builds") {
        check_chat(|| Command::new(&program));
    }
}

/// AddressSanitizer reports every string that is not released, and every read of one that was.
#[test]
fn chat_in_c_leaks_nothing() {
    let sanitizer = ["-fsanitize=address", "-g"];
    let probe = folder("sanitizer");
    let (source, program) = (probe.join("probe.c"), probe.join("probe"));
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("target/ is writable");
    let [source, program] = [&source, &program].map(|path| path.to_str().expect("UTF-8 path"));
    let what = "leaks of chat.c";
    if have(&compiler("c"), &[&sanitizer[..], &[source, "-o", program]].concat(), what)
        && have(program, &[], what)
        && let Some(program) = built("chat.c", "c99", &sanitizer)
    {
        assert_eq!(printed(Command::new(program).arg(MESSAGE), ""), expected(&[MESSAGE]));
    }
}

#[test]
fn an_old_host_works_unchanged() {
    let Some(program) = built("old_host.c", "c99", &[]) else { return };
    let replies = printed(Command::new(program).arg("Once upon a time"), "");
    let updates: Vec<Value> = replies
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("one JSON object a line"))
        .flat_map(|reply| reply["completion_updates"].as_array().cloned().expect("updates"))
        .collect();
    let text: String = updates.iter().map(|update| update["content"].as_str().expect("content")).collect();
    let request = json!({ "prompt": "Once upon a time", "n_predict": 64, "temperature": 0 });
    assert_eq!(text, plain(&request));
    assert_eq!(updates.last().expect("updates")["stop"], true);
}

/// The demo fails by itself when the tokens' text is not the content. How much it drafts depends on what pays here.
#[test]
fn the_demo_shows_the_shipped_pair() {
    let demo = library_folder().with_file_name("examples").join("demo");
    if have("test", &["-x", demo.to_str().expect("UTF-8 path")], "the demo, which a full `cargo test` builds") {
        let text = printed(Command::new(demo).args(["models/stories-target.gguf", "models/stories-draft.gguf"]), "");
        assert!(text.contains("3 of 3"), "speculation changed a text:\n{text}");
    }
}
