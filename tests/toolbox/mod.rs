//! What the tests need that build and run programs in other languages.
#![allow(dead_code)] // each test file uses a part

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder with the shared library that cargo built together with the tests.
pub fn library_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a test has a path");
    let folder = program.parent().expect("a file lies in a folder").to_owned();
    assert!(folder.join("libforedraft.so").is_file(), "no libforedraft.so in {}", folder.display());
    folder
}

/// The C or C++ compiler: the environment's choice, or the usual one.
pub fn compiler(language: &str) -> String {
    let (variable, usual) = if language == "c" { ("CC", "cc") } else { ("CXX", "c++") };
    std::env::var(variable).ok().filter(|name| !name.is_empty()).unwrap_or_else(|| usual.to_owned())
}

/// Whether a program works with these arguments. If not, prints what is skipped to stderr, past the test runner's capture.
/// Where CI runs (`CI` is set) a missing program is a failure.
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

/// Runs a command in the repository and returns what it wrote to stdout; panics with its stderr when it fails.
pub fn run(command: &mut Command, input: &str) -> String {
    let (output, errors) = finished(command, input);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8 on stdout")
}

/// Runs a command that must end with an exit status other than 0, and returns what it wrote to stderr.
pub fn run_failing(command: &mut Command) -> String {
    let (output, errors) = finished(command, "");
    assert!(output.status.code().is_some_and(|code| code != 0), "{command:?}: {}\n{errors}", output.status);
    errors
}

fn finished(command: &mut Command, input: &str) -> (Output, String) {
    command.current_dir(root()).env("FOREDRAFT_LIB", library_folder().join("libforedraft.so"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // A program that ends without reading its input is judged by its exit status.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("a child can be waited for");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, errors)
}

/// A folder under target/ for what a test builds.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("target/ is writable");
    folder
}

/// Warnings are errors.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
