//! The programs in examples/, built as their first lines say, print the same output as the library without speculation.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::host::Host;
use crate::toolchain::{STRICT, compiler, folder, have, library_folder, root, run, run_failing};
use serde_json::{Value, json};

/// Quotation marks, a line feed, and characters of two, three and four bytes, which every language must escape correctly.
const MESSAGE: &str = "Repeat after me: Zoë said \"two\n€ 🦀\" and ran.";

/// A conversation, one message per line.
const LINES: &str = "Tell me a story about Zoë and a crow.\nCount from 3 to 9.\n";

/// The library in this process, one engine for all tests. Its lock also serializes the programs, because processes that decode
/// at the same time wait for each other's spinning threads and take many times as long.
static HOST: LazyLock<Mutex<Host>> = LazyLock::new(|| {
    let host = Host::open().expect("the library loads");
    let models = root().join("models");
    host.load(&models.join("stories-target.gguf"), &models.join("stories-draft.gguf")).expect("the models load");
    Mutex::new(host)
});

pub fn host() -> MutexGuard<'static, Host> {
    HOST.lock().unwrap_or_else(PoisonError::into_inner) // poisoned if another test failed, which does not matter here
}

/// A program's output.
pub fn printed(command: &mut Command, input: &str) -> String {
    let _guard = host();
    run(command, input)
}

/// A request's output without speculation.
pub fn plain(request: &Value) -> String {
    let response = host().call("get_completion", request).expect("an answer");
    let text = response["content"].as_str().expect("content").to_owned();
    assert!(!text.is_empty(), "{response}");
    text
}

/// The output of a chat program for these messages: each answer with a line feed.
fn expected(user_texts: &[&str]) -> String {
    let mut messages = Vec::new();
    let mut text = String::new();
    for message in user_texts {
        messages.push(json!({ "role": "user", "content": message }));
        let answer = plain(&json!({ "messages": messages, "temperature": 0, "n_predict": 200 }));
        text += &format!("{answer}\n");
        messages.push(json!({ "role": "assistant", "content": answer }));
    }
    text
}

/// Runs a chat program with a message, with a conversation on stdin, and with a missing model.
fn check_chat(command: impl Fn() -> Command) {
    assert_eq!(printed(command().arg(MESSAGE), ""), expected(&[MESSAGE]));
    assert_eq!(printed(&mut command(), LINES), expected(&LINES.lines().collect::<Vec<_>>()));
    let errors = run_failing(command().args(["Hello", "models/missing.gguf"]));
    // The program's message follows the library's log line.
    let reported = errors.lines().any(|line| line.starts_with("chat: ") && line.contains("missing.gguf"));
    assert!(reported, "{errors}");
}

/// Compiles an example with warnings as errors. `None` if there is no compiler for it.
pub fn built(source: &str, standard: &str, flags: &[&str]) -> Option<PathBuf> {
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
fn c_chat_example_prints_the_plain_output() {
    if let Some(program) = built("chat.c", "c99", &[]) {
        check_chat(|| Command::new(&program));
    }
}

#[test]
fn cpp_chat_example_prints_the_plain_output() {
    if let Some(program) = built("chat.cpp", "c++17", &[]) {
        check_chat(|| Command::new(&program));
    }
}

#[test]
fn python_chat_example_prints_the_plain_output() {
    if have("python3", &["-c", "import ctypes"], "chat.py") {
        check_chat(|| {
            let mut command = Command::new("python3");
            command.arg("examples/chat.py");
            command
        });
    }
}

#[test]
fn node_chat_example_prints_the_plain_output() {
    if have("node", &["-e", "import('koffi').catch(() => process.exit(1))"], "chat.mjs") {
        check_chat(|| {
            let mut command = Command::new("node");
            command.arg("examples/chat.mjs");
            command
        });
    }
}

#[test]
fn rust_chat_example_prints_the_plain_output() {
    let program = library_folder().with_file_name("examples").join("chat");
    if have("test", &["-x", program.to_str().expect("UTF-8 path")], "chat.rs, which a full `cargo test` builds") {
        check_chat(|| Command::new(&program));
    }
}

/// Runs an event loop with a prompt, and with a model that is not there.
fn check_event_loop(command: impl Fn() -> Command) {
    let prompt = "Once upon a time, Zoë said \"";
    let request = json!({ "prompt": prompt, "temperature": 0, "n_predict": 64 });
    assert_eq!(printed(command().arg(prompt), ""), format!("{}\n", plain(&request)));
    run_failing(command().args(["Hello", "models/missing.gguf"]));
}

#[test]
#[cfg(target_os = "linux")]
fn event_loop_example_in_c() {
    if let Some(program) = built("event_loop.c", "c99", &[]) {
        check_event_loop(|| Command::new(&program));
    }
}

#[test]
fn event_loop_example_in_python() {
    if have("python3", &["-c", "import asyncio, ctypes"], "event_loop.py") {
        check_event_loop(|| {
            let mut command = Command::new("python3");
            command.arg("examples/event_loop.py");
            command
        });
    }
}

#[test]
fn event_loop_example_in_node() {
    if have("node", &["-e", "import('koffi').catch(() => process.exit(1))"], "event_loop.mjs") {
        check_event_loop(|| {
            let mut command = Command::new("node");
            command.arg("examples/event_loop.mjs");
            command
        });
    }
}

/// AddressSanitizer reports every string that is not freed, and every use after free.
#[test]
fn village_example_talks_thinks_and_feels() {
    let Some(program) = built("village.c", "c99", &[]) else { return };
    let output = printed(&mut Command::new(&program), "\nTell me a story.\n\n");
    let lines: Vec<&str> = output.lines().collect();
    let begins = ["Mia (calm): ", "You: Tell me a story.", "Mia (", "Tom ("];
    let found: Vec<&str> =
        begins.into_iter().filter(|begin| lines.iter().any(|line| line.starts_with(begin))).collect();
    assert_eq!(found, begins, "{output}");
    let meter = lines.last().expect("a meter");
    // Nine villagers at least have not been spoken to.
    let number = |before: &str| -> usize {
        let text = meter.split(before).next().and_then(|text| text.rsplit([' ', '[']).next()).expect("a number");
        text.parse().expect("a number")
    };
    assert!(number(" tokens") > 50 && number(" thoughts") >= 9 && number(" moods") >= 9, "{meter}");
    assert!(meter.contains(" 0 requests wait; "), "{meter}");
}

#[test]
fn c_chat_example_has_no_leaks_under_address_sanitizer() {
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

/// The transcript of an old host, with the texts that its lines quote replaced by `(text)`, and these texts.
fn transcript(printed: &str) -> (Vec<String>, Vec<String>) {
    let (mut lines, mut texts) = (Vec::new(), Vec::new());
    for line in printed.lines() {
        match line.split_once('"').filter(|_| line.ends_with('"')) {
            Some((before, _)) => {
                let text =
                    serde_json::from_str(&line[before.len()..]).unwrap_or_else(|error| panic!("{line}: {error}"));
                texts.push(text);
                lines.push(format!("{before}(text)"));
            }
            None => lines.push(line.to_owned()),
        }
    }
    (lines, texts)
}

/// The expected lines follow from the old server's source: docs/migration.md has the two side by side.
#[test]
fn old_host_in_c_works_unchanged() {
    let Some(program) = built("old_host.c", "c99", &[]) else { return };
    let (lines, texts) = transcript(&printed(Command::new(program).arg("Once upon a time"), ""));
    let expected = [
        r#"before init: init_success 0, text "", finished 0"#,
        "cancel before init: success 1",
        r#"after a failed init: init_success -1, text "", finished 0"#,
        r#"when loaded: init_success 1, text "", finished 0"#,
        "cancel with nothing running: success 1",
        "tokenize: success 1",
        "completion: (text)",
        "completion: last updates 1, probabilities none",
        "tolerated: (text)",
        "tolerated: last updates 1, probabilities of all tokens",
        "cancel while it generates: success 1",
        "cancelled: some text 1",
        "cancelled: last updates 1, probabilities none",
        r#"after that: init_success 1, text "", finished 1"#,
        "waited for: (text)",
        "cancel after deinit: success 1",
        "after deinit: text (text)",
    ];
    assert_eq!(lines, expected);
    let text = |n: usize| plain(&json!({ "prompt": "Once upon a time", "n_predict": n, "temperature": 0 }));
    assert_eq!(texts, [text(64), text(16), text(16), String::new()]);
}

#[test]
fn old_host_in_cpp_works_unchanged() {
    let Some(program) = built("old_host.cpp", "c++11", &[]) else { return };
    let (lines, texts) = transcript(&printed(Command::new(program).arg("Once upon a time"), ""));
    assert_eq!(lines, ["loaded: 1, the title is the path: 1", "(text)", "cancel: 1", "still here"]);
    assert_eq!(texts, [plain(&json!({ "prompt": "Once upon a time", "n_predict": 64, "temperature": 0 }))]);
}

#[test]
fn demo_explains_its_arguments_and_takes_no_option_for_a_model() {
    let demo = library_folder().with_file_name("examples").join("demo");
    if have("test", &["-x", demo.to_str().expect("UTF-8 path")], "the demo, which a full `cargo test` builds") {
        for help in ["--help", "-h"] {
            let text = run(Command::new(&demo).arg(help), "");
            assert!(text.starts_with("usage: make demo") && text.contains("target.gguf [draft.gguf]"), "{text}");
        }
        for wrong in [&["--fast"][..], &["models/stories-target.gguf", "-v"], &["a.gguf", "b.gguf", "c.gguf"]] {
            let errors = run_failing(Command::new(&demo).args(wrong));
            assert!(errors.starts_with("demo: ") && errors.contains("usage:"), "{errors}");
            assert!(!errors.contains("No such file"), "{errors}");
        }
    }
}

/// The demo itself fails if its tokens do not spell the content. How much it drafts depends on what pays on this machine.
#[test]
fn demo_runs_on_the_shipped_models() {
    let demo = library_folder().with_file_name("examples").join("demo");
    if have("test", &["-x", demo.to_str().expect("UTF-8 path")], "the demo, which a full `cargo test` builds") {
        let text = printed(Command::new(demo).args(["models/stories-target.gguf", "models/stories-draft.gguf"]), "");
        // Once for the target alone, compared with itself, and once with the draft.
        assert_eq!(text.matches("3 of 3").count(), 2, "speculation changed an answer:\n{text}");
        let seen = "A blue square is at the bottom right.";
        assert!(text.contains(seen) || cfg!(not(all(target_os = "linux", target_env = "gnu"))), "{text}");
    }
}
