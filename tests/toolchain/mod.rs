//! Helpers for tests that build and run programs in other languages.
#![allow(dead_code)] // each test binary uses only some of these

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The repository's root folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the shared library that cargo built with the tests.
pub fn library_folder() -> PathBuf {
    let program = std::env::current_exe().expect("the test binary has a path");
    let folder = program.parent().expect("a file lies in a folder").to_owned();
    assert!(folder.join("libforedraft.so").is_file(), "no libforedraft.so in {}", folder.display());
    folder
}

/// The C or C++ compiler: `CC` or `CXX` if set, else `cc` or `c++`.
pub fn compiler(language: &str) -> String {
    let (variable, usual) = if language == "c" { ("CC", "cc") } else { ("CXX", "c++") };
    std::env::var(variable).ok().filter(|name| !name.is_empty()).unwrap_or_else(|| usual.to_owned())
}

/// Whether a program runs with these arguments. If not, it reports on stderr, past the test runner's capture, what is skipped.
/// In CI (`CI` is set) a missing program fails the test.
pub fn have(program: &str, args: &[&str], what: &str) -> bool {
    let output = Command::new(program).args(args).current_dir(root().join("examples")).stdin(Stdio::null()).output();
    let found = output.is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{what}: CI needs `{program} {}`", args.join(" "));
        let line = format!("skipped: {what}: `{program} {}` does not work here\n", args.join(" "));
        std::io::stderr().write_all(line.as_bytes()).expect("stderr is open");
    }
    found
}

/// Runs a command in the repository and returns its stdout. Panics with its stderr if it fails.
pub fn run(command: &mut Command, input: &str) -> String {
    let (output, errors) = finished(command, input);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8 on stdout")
}

/// Runs a command that must exit with a nonzero status, and returns its stderr.
pub fn run_failing(command: &mut Command) -> String {
    let (output, errors) = finished(command, "");
    assert!(output.status.code().is_some_and(|code| code != 0), "{command:?}: {}\n{errors}", output.status);
    errors
}

fn finished(command: &mut Command, input: &str) -> (Output, String) {
    command.current_dir(root()).env("FOREDRAFT_LIB", library_folder().join("libforedraft.so"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // A program may exit without reading its input; only its exit status counts.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("a child can be waited for");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, errors)
}

/// Creates a folder under target/ for a test's build products.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("target/ is writable");
    folder
}

/// The compiler's arguments for a program with llama.cpp's folder `common`, which is compiled first.
pub fn llama_common() -> Vec<String> {
    let mut command = Command::new("scripts/llama-common.sh");
    run(command.args([env!("LLAMA_CPP_SOURCES"), env!("LLAMA_CPP_LIBRARIES")]), "").lines().map(str::to_owned).collect()
}

/// Compiler flags that turn every warning into an error.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
