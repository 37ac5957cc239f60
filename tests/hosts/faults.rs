//! Checks that a C host survives threads cancelled inside calls and a system without threads or memory, and may set process state.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use crate::toolchain::{compiler, folder, library_folder, root, run};

/// Compiles a C program, a folder of C files or a shared library against the shared library of this build: once, because a program that runs
/// cannot be written.
fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let program = folder("faults").join(format!("{}{}", name.trim_end_matches(".c"), flags.concat()));
    let mut known = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if known.contains(&program) {
        return program;
    }
    let library = library_folder();
    let mut command = Command::new(compiler("c"));
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-pthread"]);
    let source = root().join("tests/hosts").join(name);
    if source.is_dir() {
        let files = std::fs::read_dir(source).expect("a folder").flatten().map(|file| file.path());
        command.args(files.filter(|path| path.extension().is_some_and(|extension| extension == "c")));
    } else {
        command.arg(source);
    }
    command.arg("-o").arg(&program).args(flags);
    if !flags.contains(&"-shared") {
        command.arg(format!("-L{}", library.display())).arg("-lforedraft");
        command.arg(format!("-Wl,-rpath,{}", library.display()));
    }
    run(&mut command, "");
    known.insert(program.clone());
    program
}

fn model() -> PathBuf {
    root().join("models/stories-draft.gguf")
}

#[test]
fn threads_of_the_host_can_be_cancelled_inside_calls() {
    let program = compiled("cancelled_threads.c", &[]);
    let output = Command::new(program).arg(model()).output().expect("it starts");
    let shown = (output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && output.stdout == b"0\n", "{shown:?}");
}

/// Starting a thread takes up to a second on a busy machine.
#[test]
fn submits_polls_and_cancels_start_no_thread() {
    let program = compiled("thread_starts.c", &["-ldl", "-pthread"]);
    let output = Command::new(program).arg(model()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{:?} {text} {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, "0 from the first thread, 0 from a small one, 0 from eight at once\n");
}

/// A thread that begins without memory ends the process, so a host must know when it may take the memory.
#[test]
fn threads_of_a_load_have_begun_when_it_returns() {
    let program = compiled("begun_threads.c", &["-ldl"]);
    let output = Command::new(program).arg(model()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{:?} {text} {}", output.status, String::from_utf8_lossy(&output.stderr));
    let expected = ["false", "true"].map(|kind| format!("isolated {kind}: some before the load returned, 0 after\n"));
    assert_eq!(text, expected.concat());
}

/// The most that a call may take of its thread's stack, its variables of threads included: docs/threads.md says it, and that 128 KiB are enough.
const MOST_STACK: usize = 112 << 10;

#[test]
fn calls_need_no_more_stack_than_documented() {
    let program = compiled("stack_use.c", &[]);
    let measured = run(Command::new(&program).arg(model()).arg("measure"), "");
    let used = |line: &str| -> Option<usize> { line.split_once(' ')?.0.parse().ok() };
    let used: Vec<usize> = measured.lines().filter_map(used).collect();
    assert!(used.len() > 20 && used.iter().all(|used| (4 << 10..=MOST_STACK).contains(used)), "{measured}");
    let text = run(Command::new(&program).arg(model()).args(["signals", "2"]), "");
    let counts: Vec<u32> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(counts.len() == 2 && counts.iter().all(|count| *count > 20), "{text}");
}

/// The output of `host_state.c` in a mode.
fn host_state(mode: &[&str]) -> String {
    let output = Command::new(compiled("host_state.c", &["-lm"])).arg(model()).args(mode).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?} {text} {}", output.status, String::from_utf8_lossy(&output.stderr));
    // Each request has another id.
    let without_id = |line: &str| match line.rsplit_once(",\"id\":") {
        Some((before, after)) if after.ends_with(",\"stop\":true}") => format!("{before}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(without_id).collect()
}

/// Rounding, flushed denormals and trapped exceptions of the host change no token and no probability, and stay as they are.
#[test]
fn floating_point_state_of_the_host_changes_no_completion() {
    let text = host_state(&["floats"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 14 && lines[0].starts_with("kept {\"content\":"), "{text}");
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, lines[0], "line {number}");
    }
}

#[test]
fn signals_of_the_host_are_not_delivered_to_the_librarys_threads() {
    assert_eq!(host_state(&["signals"]), "pending\n");
}

/// Mono stops the threads that it knows by real-time signals, and it knows a thread since its first callback.
#[test]
fn real_time_signals_stop_threads_that_called_back() {
    let text = host_state(&["stops"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 21 && lines[0].starts_with("complete {\"content\":"), "{text}");
    assert!(lines[..20].iter().all(|line| *line == lines[0]), "{text}");
    assert_eq!(lines[20], "several threads called back", "{text}");
}

/// A thread's first call needs memory for what belongs to the thread, where a failure would end the process.
#[test]
fn first_calls_of_a_thread_without_memory_are_errors() {
    let text = host_state(&["memory"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "load 14", "{text}");
    for (line, name) in lines[1..].iter().zip(["status", "poll", "complete"]) {
        assert!(line.starts_with(name) && line.ends_with("\"code\":\"resource_exhausted\"}"), "{text}");
    }
    assert!(lines[4] == "later 0" && lines[5].starts_with("complete {\"content\":"), "{text}");
}

/// An isolated engine finds the host's files where an engine in its process does, also after the host went to another folder.
#[test]
fn isolated_engine_follows_its_host_to_another_folder() {
    let folder = emptied("another");
    let text = host_state(&["folder", folder.to_str().expect("UTF-8 path")]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 5 && lines[0].starts_with("complete {\"content\":"), "{text}");
    assert!(lines[1].starts_with("save {\"success\":true") && lines[2] == "saved here", "{text}");
    // Started again, where the models are not. The ids differ.
    let [first, second] = [0, 3].map(|line| lines[line].split(",\"success\"").next());
    assert_eq!(first, second, "{text}");
    assert!(lines[4].starts_with("restore {\"success\":true"), "{text}");
}

/// Loads, completes and unloads in a process where `what` fails from its `number`-th time on.
fn with_fault(program: &Path, shim: &Path, what: &str, number: u32) -> Output {
    let mut command = Command::new(program);
    command.arg(model()).env("LD_PRELOAD", shim).env("FAULT", what).env("FAULT_AT", number.to_string());
    command.output().expect("it starts")
}

/// The codes with which the load may fail: model_error, resource_exhausted, cancelled.
const REFUSED: [&str; 3] = ["load 1", "load 14", "load 4"];

/// The objects of a thread's first wait and first exception are made while there is memory. Rust itself ends the process where it has
/// none for its own tables, as glibc does where it has none for a new thread's list of destructors; both say so.
#[test]
#[cfg(target_os = "linux")]
fn limits_of_memory_are_errors_or_said() {
    let (program, shim) = (compiled("one_completion.c", &[]), compiled("fault_shim.c", &["-shared", "-fPIC", "-ldl"]));
    let (mut n_refused, mut n_loaded) = (0, 0);
    for mebibytes in 8..=72 {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -c 0; ulimit -d {}; exec \"$@\"", mebibytes << 10);
        command.args(["-c", &limited, "sh"]).arg(&program).arg(model()).env("LD_PRELOAD", &shim);
        let output = command.output().expect("it starts");
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let shown = format!("{mebibytes} MiB: {:?} {text} {errors}", output.status);
        let reasons = ["memory allocation of", "cannot create", "Fatal glibc error: failed to register TLS destructor"];
        let said = reasons.iter().any(|reason| errors.contains(reason));
        assert!(output.status.success() || said, "{shown}");
        n_refused += u32::from(text.starts_with("load 14") || text.starts_with("load 1\n"));
        n_loaded += u32::from(text.starts_with("load 0"));
    }
    assert!(n_refused > 5 && n_loaded > 5, "{n_refused} refused, {n_loaded} loaded");
}

/// An exception inside a decode leaves a context unusable. It is made anew, and all requests go on. The process of an isolated engine goes on, too,
/// unless the decode has lost threads or the memory was Rust's.
#[test]
#[cfg(target_os = "linux")]
fn requests_go_on_after_an_exception_in_a_decode() {
    let (program, shim) =
        (compiled("failed_decode.c", &["-ldl"]), compiled("fault_shim.c", &["-shared", "-fPIC", "-ldl"]));
    for (mode, n_threads) in [("here", "1"), ("here", "2"), ("isolated", "1"), ("isolated", "2")] {
        let mut n_survived = 0;
        for at in 1..=10 {
            let mut command = Command::new(&program);
            command.arg(model()).args([mode, n_threads]).env("LD_PRELOAD", &shim);
            let output =
                command.env("FAULT", "large-memory").env("FAULT_AT", at.to_string()).output().expect("it starts");
            let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            // Rust's own allocations are counted, too.
            if errors.contains("memory allocation of") {
                continue;
            }
            let shown = format!("{mode}, {n_threads} threads, allocation {at}: {:?} {text} {errors}", output.status);
            assert!(text.starts_with("first same\nsecond same\nlater same\nrestarts "), "{shown}");
            n_survived += u32::from(text.ends_with("restarts 0\n"));
        }
        // In a decode of several threads an exception loses those that wait for the one that threw.
        let may_restart = (mode, n_threads) == ("isolated", "2");
        assert!(n_survived > 3 || may_restart, "{mode}, {n_threads} threads: {n_survived}");
    }
}

#[test]
fn load_without_threads_is_refused_as_lack_of_resources() {
    let (program, shim) = (compiled("one_completion.c", &[]), compiled("fault_shim.c", &["-shared", "-fPIC", "-ldl"]));
    let mut refused = 0;
    // A load starts six threads, a completion none: later numbers are runs without a fault.
    for number in 1..=10 {
        let output = with_fault(&program, &shim, "pthread_create", number);
        let text = String::from_utf8_lossy(&output.stdout);
        let shown = (number, output.status, &text, String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{shown:?}");
        let first = text.lines().next().unwrap_or_default();
        assert!(first == "load 0" || first == "load 14", "{shown:?}");
        refused += u32::from(first == "load 14");
        // Once there are threads again, everything works.
        assert!(text.ends_with("again 0 1\n"), "{shown:?}");
    }
    assert!(refused > 3, "{refused} of 10 loads lacked threads");
}

/// llama.cpp allocates by C functions whose result it does not check, and by C++'s `new`.
#[test]
fn lack_of_memory_inside_llama_is_an_error() {
    let (program, shim) = (compiled("one_completion.c", &[]), compiled("fault_shim.c", &["-shared", "-fPIC", "-ldl"]));
    let (mut refused, mut n_ours, mut n_loads) = (0, 0, 0);
    // Allocations that follow each other are of the same kind: every third is enough, except for a long run.
    let step = if number("FOREDRAFT_FAULTS", 3) > 3 { 1 } else { 3 };
    for number in (1..=120).step_by(step) {
        n_loads += 1;
        let output = with_fault(&program, &shim, "memory", number);
        let text = String::from_utf8_lossy(&output.stdout);
        let shown = (number, output.status, &text, String::from_utf8_lossy(&output.stderr));
        // Rust ends the process if there is no memory for its own tables.
        if output.status.signal() == Some(libc::SIGABRT) && shown.3.contains("memory allocation of") {
            n_ours += 1;
            continue;
        }
        assert_eq!(output.status.signal(), None, "{shown:?}");
        let first = text.lines().next().unwrap_or_default();
        assert!(first == "load 0" || REFUSED.contains(&first), "{shown:?}");
        refused += u32::from(first != "load 0");
        assert!(text.ends_with("later 1\nagain 0 1\n"), "{shown:?}");
    }
    assert!(refused > 3 && 2 * n_ours < n_loads, "{refused} of {n_loads} loads were refused, {n_ours} ended");
}

/// Without descriptors, space on the disk, or permission to write, each save is an error, no file is lost, and later all works.
#[test]
fn saves_without_descriptors_or_space_are_errors_and_lose_nothing() {
    let program = compiled("life", &[]);
    for what in ["descriptors", "file-size", "disk", "read-only"] {
        let folder = emptied("scarce");
        let output = life(&program, &folder, &["scarce", what]).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let shown = (what, output.status, &text, String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{shown:?}");
        if let Some(reason) = text.lines().find(|line| line.starts_with("skipped")) {
            // Only root mounts file systems.
            eprintln!("{reason}");
            continue;
        }
        assert!(text.ends_with("nothing lost, all works again\n"), "{shown:?}");
        let names = std::fs::read_dir(&folder).expect("a folder").flatten().map(|file| file.file_name());
        let parts: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".part")).collect();
        assert!(parts.is_empty(), "{parts:?} {shown:?}");
        println!("| no {what} | 5 kinds of saves | an error each; no file changed; all works afterwards |");
    }
}

/// Memory errors and leaks of a whole life, llama.cpp included. `scripts/check.sh valgrind` has longer runs, and requires Valgrind in CI.
#[cfg(target_arch = "x86_64")]
#[test]
fn valgrind_reports_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: life under Valgrind, which is not installed");
        return;
    }
    let program = compiled("life", &["-g"]);
    let under_valgrind = |mode: &str| {
        let life = life(&program, &emptied("valgrind"), &[mode]);
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite"]);
        command.args(["--errors-for-leak-kinds=definite", "--suppressions=scripts/valgrind.supp"]).current_dir(root());
        // It knows no AVX-512.
        command.arg(life.get_program()).args(life.get_args()).env("FOREDRAFT_CPU_LEVEL", "avx2");
        let output = command.output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, report) = under_valgrind("bug");
    assert!(code == Some(99) && report.contains("Invalid read"), "Valgrind sees nothing: {report}");
    let (code, report) = under_valgrind("once");
    assert!(code == Some(0) && report.ends_with("again 0\n"), "{code:?} {report}");
}

/// A limit of the address space during a load: an error, and the next load works; or Rust ends the process (docs/limits.md).
#[test]
fn load_without_address_space_is_an_error() {
    let program = compiled("life", &[]);
    let (mut refused, mut loaded, mut ended) = (0, 0, 0);
    let most = number("FOREDRAFT_FAULTS", 3).max(12);
    for at in 0..most {
        let mb = (at * 160 / most).to_string();
        let output = life(&program, &emptied("address"), &["address", &mb]).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let shown = (&mb, output.status, &text, String::from_utf8_lossy(&output.stderr));
        if output.status.signal() == Some(libc::SIGABRT) && shown.3.contains("memory allocation of") {
            ended += 1;
            continue;
        }
        assert!(output.status.success() && text.ends_with("again 1\n"), "{shown:?}");
        match text.lines().next() {
            Some("load 0") => loaded += 1,
            Some("load 1" | "load 14") => refused += 1,
            _ => panic!("{shown:?}"),
        }
    }
    println!(
        "| a load with 0 to 160 MB of address space | {most} | {refused} refused, {loaded} loaded, {ended} ended for Rust's own tables |"
    );
    assert!(refused > 0 && loaded > 0, "{refused} refused, {loaded} loaded, {ended} ended");
}

/// The files that `large_input.c` reads: a session of 64 GB that is a hole, an n-gram file that claims two billion tokens after one n-gram, one
/// that has two million of them, and one of a million n-grams.
fn write_large_files(folder: &Path) {
    const SIZE: u64 = 64 << 30;
    let mut session = b"foredraft state\n".to_vec();
    session.extend([3_u32, 4].map(u32::to_le_bytes).as_flattened());
    session.extend([SIZE, 0].map(u64::to_le_bytes).as_flattened());
    session.extend(xxhash_rust::xxh3::xxh3_64(&session).to_le_bytes());
    session.extend([SIZE - 64, 0].map(u64::to_le_bytes).as_flattened());
    std::fs::write(folder.join("session"), session).expect("writable");
    let file = std::fs::File::options().write(true).open(folder.join("session")).expect("it was written");
    file.set_len(SIZE).expect("a file can have a hole");
    let write = |name: &str, numbers: Vec<i32>| {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(i32::to_le_bytes).collect();
        std::fs::write(folder.join(name), bytes).expect("writable");
    };
    write("claimed", vec![1, -1, -1, -1, i32::MAX, 1, 1]);
    write("counts", [1, -1, -1, -1, 2_000_000].into_iter().chain((0..2_000_000).flat_map(|i| [i % 300, 1])).collect());
    write("n-grams", (0..1_000_000).flat_map(|i| [i % 300, i / 300, -1, -1, 1, 2, 1]).collect());
    std::fs::copy(model(), folder.join("model.gguf")).expect("writable");
}

/// A large input, with 0 to 128 MB more of address space: each time an error or an answer, and the next call works.
#[test]
fn large_inputs_without_memory_are_errors() {
    let program = compiled("large_input.c", &[]);
    let kinds = run(&mut Command::new(&program), "");
    let kinds: Vec<&str> = kinds.lines().collect();
    assert!(kinds.len() > 20, "{kinds:?}");
    let (mut n_runs, mut refused, mut failed) = (0, 0, Vec::new());
    let folder = emptied("large");
    write_large_files(&folder);
    for kind in &kinds {
        // The thread that loads needs some memory of its own.
        let sizes: &[u32] = if *kind == "context" { &[128, 512] } else { &[0, 2, 8, 32, 128] };
        for mb in sizes {
            n_runs += 1;
            let output = Command::new(&program).arg(model()).arg(&folder).arg(kind).arg(mb.to_string()).output();
            let output = output.expect("it starts");
            let text = String::from_utf8_lossy(&output.stdout);
            let lines: Vec<&str> = text.lines().collect();
            // Some inputs are wrong also with memory.
            let codes = [
                "success",
                "invalid_request",
                "invalid_json",
                "context_full",
                "not_found",
                "timeout",
                "resource_exhausted",
            ];
            let is_known = |line: &str| {
                line.strip_prefix("large ").is_some_and(|code| match *kind {
                    // llama.cpp's error, which names the size.
                    "context" => code == "model_error",
                    // No part of it may be read: it is larger than the limit.
                    "session" => code == "resource_exhausted",
                    "claimed counts" => ["invalid_request", "resource_exhausted"].contains(&code),
                    "counts" | "n-grams" => ["success", "resource_exhausted"].contains(&code),
                    _ => codes.contains(&code),
                })
            };
            let errors = String::from_utf8_lossy(&output.stderr);
            match lines[..] {
                ["first success", large, "again success"] if output.status.success() && is_known(large) => {
                    refused += u32::from(large.ends_with("resource_exhausted"));
                }
                _ => failed.push((kind, mb, output.status, lines.join(", "), errors.into_owned())),
            }
        }
    }
    println!(
        "| a large input with 0 to 128 MB of address space | {n_runs} | {refused} refused for lack of memory, {} ended the process |",
        failed.len()
    );
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(refused > 20, "{refused}");
}

/// Children that are forked at random moments answer every call, whatever lock another thread held. `FOREDRAFT_FORKS` of them.
#[test]
fn forked_children_never_wait_for_threads_they_do_not_have() {
    let program = compiled("life", &[]);
    let n_forks = number("FOREDRAFT_FORKS", 200).to_string();
    let output = life(&program, &emptied("forks"), &["forks", &n_forks]).output().expect("it starts");
    let shown = (output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{shown:?}");
    print!("{}", shown.1);
}

/// A folder, emptied.
fn emptied(name: &str) -> PathBuf {
    let path = folder("faults").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}

/// A number from the environment, for long runs by hand: `scripts/check.sh faults`.
fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The host of `life/` with these arguments after the models.
fn life(program: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg(folder).args(["target", "draft"].map(|name| root().join(format!("models/stories-{name}.gguf"))));
    command.args(arguments);
    command
}

/// Loads, completions, sessions and n-gram files while the `at`-th call of a kind fails. Returns how many such calls there were.
fn life_with_fault(program: &Path, shim: &Path, kind: &str, at: u32) -> u32 {
    let folder = emptied("files");
    let mut command = life(program, &folder, &["once"]);
    let output = command.env("LD_PRELOAD", shim).env("FAULT", kind).env("FAULT_AT", at.to_string()).output();
    let output = output.expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let shown = (kind, at, output.status, &text, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{shown:?}");
    assert!(!text.contains("without an error"), "{shown:?}");
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse::<u32>().ok());
    // Without the fault all works, with the same files.
    assert_eq!(number("again "), Some(0), "{shown:?}");
    let parts = std::fs::read_dir(&folder).expect("a folder").flatten();
    let parts: Vec<_> =
        parts.map(|file| file.file_name()).filter(|name| name.to_string_lossy().contains("part")).collect();
    assert!(parts.is_empty(), "{parts:?} {shown:?}");
    number("calls ").unwrap_or_else(|| panic!("{shown:?}"))
}

/// Each kind of call fails once, in turn: a sample of all calls, or with `FOREDRAFT_FAULTS` that many of each kind.
#[test]
fn each_failing_call_is_an_error_and_loses_nothing() {
    let (program, shim) = (compiled("life", &[]), compiled("fault_shim.c", &["-shared", "-fPIC", "-ldl"]));
    let most = number("FOREDRAFT_FAULTS", 3);
    for kind in ["read", "write", "rename", "fsync", "open", "fread", "mmap"] {
        let total = life_with_fault(&program, &shim, kind, u32::MAX / 2);
        let step = (total / most).max(1);
        let mut n_runs = 0;
        for at in (1..=total).step_by(step as usize) {
            life_with_fault(&program, &shim, kind, at);
            n_runs += 1;
        }
        println!(
            "| {kind} fails | {n_runs} of {total} calls, one per run | an error or no effect; all works afterwards |"
        );
    }
}

/// A process is killed while it saves, again and again: the file is the old or the new one, whole. `FOREDRAFT_KILLS` of each kind.
#[test]
fn killed_saves_leave_the_old_or_the_new_file() {
    use std::io::BufRead as _;
    let program = compiled("life", &[]);
    let n_kills = number("FOREDRAFT_KILLS", 4);
    for kind in ["session", "cache", "create", "merge"] {
        let folder = emptied("kills");
        let mut random = 11_u64;
        for round in 0..n_kills {
            let mut host = life(&program, &folder, &["save", kind]);
            let mut host = host.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
            let mut line = String::new();
            let stdout = host.stdout.take().expect("piped");
            std::io::BufReader::new(stdout).read_line(&mut line).expect("a line");
            assert_eq!(line, "ready\n", "{kind}");
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            std::thread::sleep(std::time::Duration::from_micros((random >> 33) % 20_000));
            host.kill().expect("it runs");
            host.wait().expect("it ends");
            let read = |name: &str| std::fs::read(folder.join(name)).expect(name);
            let found = read("file");
            assert!(found == read("0") || found == read("1"), "{kind}, kill {round}: {} bytes", found.len());
        }
        // Later saves remove the temporary files of killed ones.
        let n_files = std::fs::read_dir(&folder).expect("a folder").count();
        assert!(n_files <= 7, "{kind}: {n_files} files");
        println!(
            "| kill -9 while a file is saved ({kind}) | {n_kills} kills | each time the old or the new file, whole |"
        );
    }
}
