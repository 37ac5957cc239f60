//! What a C host survives: its own threads cancelled inside a call, and a system without threads or memory.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use crate::toolchain::{compiler, folder, library_folder, root, run};

/// Compiles a C program, or a shared library of it, against the shared library of this build.
fn compiled(name: &str, flags: &[&str]) -> std::path::PathBuf {
    let program = folder("faults").join(name.trim_end_matches(".c"));
    let library = library_folder();
    let mut command = Command::new(compiler("c"));
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-pthread"]);
    command.arg(format!("tests/hosts/{name}")).arg("-o").arg(&program).args(flags);
    if !flags.contains(&"-shared") {
        command.arg(format!("-L{}", library.display())).arg("-lforedraft");
        command.arg(format!("-Wl,-rpath,{}", library.display()));
    }
    run(&mut command, "");
    program
}

fn model() -> std::path::PathBuf {
    root().join("models/stories-draft.gguf")
}

#[test]
fn threads_of_the_host_can_be_cancelled_inside_calls() {
    let program = compiled("cancelled_threads.c", &[]);
    let output = Command::new(program).arg(model()).output().expect("it starts");
    let shown = (output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && output.stdout == b"0\n", "{shown:?}");
}

/// Loads, completes and unloads in a process where `what` fails from its `number`-th time on.
fn with_fault(program: &std::path::Path, shim: &std::path::Path, what: &str, number: u32) -> Output {
    let mut command = Command::new(program);
    command.arg(model()).env("LD_PRELOAD", shim).env("FAULT", what).env("FAULT_AT", number.to_string());
    command.output().expect("it starts")
}

/// The codes with which the load may fail: model_error, resource_exhausted, cancelled.
const REFUSED: [&str; 3] = ["load 1", "load 14", "load 4"];

#[test]
fn load_without_threads_is_refused_as_lack_of_resources() {
    let (program, shim) = (compiled("one_completion.c", &[]), compiled("fault_shim.c", &["-shared", "-fPIC", "-ldl"]));
    let mut refused = 0;
    for number in 1..=40 {
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
    assert!(refused > 3, "{refused} of 40 loads lacked threads");
}

/// llama.cpp allocates by C functions whose result it does not check, and by C++'s `new`.
#[test]
fn lack_of_memory_inside_llama_is_an_error() {
    let (program, shim) = (compiled("one_completion.c", &[]), compiled("fault_shim.c", &["-shared", "-fPIC", "-ldl"]));
    let (mut refused, mut n_ours) = (0, 0);
    for number in 1..=120 {
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
        assert!(text.ends_with("again 0 1\n"), "{shown:?}");
    }
    assert!(refused > 3 && n_ours < 60, "{refused} of 120 loads were refused, {n_ours} ended");
}
