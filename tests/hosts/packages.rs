//! The packages for Python, Node and C#, built, installed and tested as their users do: `scripts/test-python.sh`, `scripts/test-node.sh` and
//! `scripts/test-csharp.sh`, which say aloud what they skip, and fail where CI runs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::examples::host;
use crate::toolchain::{folder, have, library_folder, root};

/// A folder with the library and the program of isolated engines, as `cargo build` leaves them beside each other.
fn built() -> PathBuf {
    let folder = root().join("target/test-packages-built");
    std::fs::create_dir_all(&folder).expect("target is writable");
    let library = library_folder().join("libforedraft.so");
    for (from, name) in
        [(library, "libforedraft.so"), (env!("CARGO_BIN_EXE_foredraft-engine").into(), "foredraft-engine")]
    {
        std::fs::copy(&from, folder.join(name)).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
    folder
}

/// The output of a script that must succeed.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.env("FOREDRAFT_LIB", built().join("libforedraft.so")).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if output.status.success() {
        return Ok(out);
    }
    let all = format!("its output:\n{out}\nits errors:\n{err}");
    Err(format!("{command:?}: {}\n{}\n{all}", output.status, what_failed(&out, &err)))
}

/// The lines of failures and the last lines of both streams. They begin a message, because of a long message only the beginning may be shown.
fn what_failed(out: &str, err: &str) -> String {
    let is_failure = |line: &&str| {
        let line = line.trim_start();
        ["FAILED", "not ok", "E   ", "Traceback", "panicked"].iter().any(|begin| line.starts_with(begin))
            || ["AssertionError", "error:", "error[", "Error:", "Exception:"].iter().any(|part| line.contains(part))
    };
    let failures: Vec<_> = out.lines().chain(err.lines()).filter(is_failure).take(20).collect();
    let last = |text: &str| {
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    };
    [&failures.join("\n"), "its last lines:", &last(err), &last(out)].join("\n")
}

/// CI shows the first lines of a message alone.
#[test]
fn messages_of_failed_scripts_begin_with_the_failures() {
    let script = "for i in $(seq 99); do echo ok $i; done; echo 'FAILED one: 3'; echo 'not ok 7 - two'; echo last; echo why >&2; exit 3";
    let error = output(Command::new("bash").args(["-c", script])).expect_err("it fails");
    let lines: Vec<_> = error.lines().skip(1).take(9).collect();
    assert_eq!(lines[..6], ["FAILED one: 3", "not ok 7 - two", "its last lines:", "why", "ok 98", "ok 99"], "{error}");
    assert!(error.contains("\nok 1\n"), "{error}");
}

/// The packages of a release, made and checked once: the tests of each language install these. (The C archive is the tree that the tests of the
/// installation use.)
static RELEASE: LazyLock<Result<String, String>> = LazyLock::new(|| {
    output(Command::new(root().join("scripts/release.sh")).arg("--without-c").env("FOREDRAFT_PACKAGES", packages()))
});

fn packages() -> PathBuf {
    root().join("target/test-packages")
}

/// Shows what a script printed.
fn passed(output: &Result<String, String>) {
    let out = output.as_ref().unwrap_or_else(|error| panic!("{error}"));
    if let Some(skipped) = out.lines().find(|line| line.starts_with("skipped: ")) {
        // Past the test runner's capture.
        std::io::stderr().write_all(format!("{skipped}\n").as_bytes()).expect("stderr is open");
    }
    println!("{out}");
}

/// Tests the packages of a language.
fn check(script: &str) {
    // Their programs need the cores that other programs' models would spin on.
    let _host = host();
    passed(&RELEASE);
    let mut command = Command::new(root().join("scripts").join(script));
    passed(&output(command.env("FOREDRAFT_PACKAGES", packages())));
}

/// `scripts/release.sh` checks the packages that it makes: what files need and where they search, tags, checksums, and a completion of each
/// package in an empty environment.
#[test]
fn the_packages_of_a_release() {
    let _host = host();
    passed(&RELEASE);
}

/// A module of GPUs is a package of its own, which the library of the other package finds.
#[test]
fn the_packages_of_a_module_for_gpus() {
    check("test-gpu-packages.sh");
}

/// The scripts for other platforms run for half an hour: one that ends early says in which step.
#[test]
fn scripts_for_platforms_say_which_step_failed() {
    let run = |commands: &str| {
        let script = format!("set -euo pipefail; platform=P; . scripts/cross.sh; begin first; {commands}; echo done");
        let output = Command::new("bash").args(["-c", &script]).current_dir(root()).output().expect("bash");
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        (output.status.code(), last)
    };
    // A command without a message, a part of a pipe, and one inside a function or another shell.
    for (commands, command) in [
        ("begin second; false", "false"),
        ("begin second; found=$(false | cat)", "found=$(false | cat)"),
        ("work() { false; }; begin second; work", "false"),
        ("begin second; (false)", "( false )"),
    ] {
        let (code, last) = run(commands);
        assert_eq!(code, Some(1), "{commands}");
        assert!(last.starts_with("P: ended with 1 in the step \"second\": "), "{commands}: {last}");
        assert!(last.ends_with(command), "{commands}: {last}");
    }
    assert_eq!(run("die why"), (Some(1), "P: ended with 1 in the step \"first\"".to_owned()));
    assert_eq!(run("kill $$"), (Some(143), "P: ended with 143 in the step \"first\"".to_owned()));
    assert_eq!(run("false || true"), (Some(0), "P: first".to_owned()));
}

/// A repository whose library is older than its sources: `make build` would write another one. (`scripts/test-python.sh` has the same test.)
#[test]
fn the_node_package_is_not_made_of_an_old_library() {
    let repository = folder("old-library");
    let write = |name: &str, text: &str| {
        let path = repository.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("target/ is writable");
        std::fs::write(path, text).expect("target/ is writable");
    };
    write("Makefile", "build:\n\t@echo new > target/release/libforedraft.so\n");
    for file in ["Cargo.toml", "node/package.json", "node/lib/platform.cjs", "node/scripts/platform.cjs"] {
        write(file, &std::fs::read_to_string(root().join(file)).expect("UTF-8"));
    }
    for file in ["libforedraft.so", "foredraft-engine"] {
        write(&format!("target/release/{file}"), "old\n");
    }
    if have("node", &["--version"], "the library of the Node package") {
        let mut command = Command::new("node");
        command.arg("node/scripts/platform.cjs").current_dir(&repository).env_remove("FOREDRAFT_LIB");
        let output = command.output().expect("it starts");
        let [made, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(said.contains("foredraft: the package carries ") && said.contains("release/libforedraft.so"), "{said}");
        let carried = std::fs::read_to_string(Path::new(made.trim()).join("libforedraft.so")).expect("the library");
        assert_eq!(carried, "new\n");
    }
}

#[test]
fn the_python_package() {
    check("test-python.sh");
}

#[test]
fn the_csharp_bindings() {
    check("test-csharp.sh");
}

#[test]
fn the_node_package() {
    check("test-node.sh");
}
