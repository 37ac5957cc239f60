//! The packages for Python and Node, built, installed and tested as their users do: `scripts/test-python.sh` and
//! `scripts/test-node.sh`, which say aloud what they skip, and fail where CI runs.

use std::io::Write as _;
use std::process::Command;

use crate::examples::alone;
use crate::toolchain::{library_folder, root};

fn check(script: &str) {
    // Their programs need the cores that other programs' models would spin on.
    let _alone = alone();
    let mut command = Command::new(root().join("scripts").join(script));
    command.env("FOREDRAFT_LIB", library_folder().join("libforedraft.so"));
    let output = command.output().unwrap_or_else(|error| panic!("{script}: {error}"));
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{script}: {}\n{out}\n{err}", output.status);
    if let Some(skipped) = out.lines().find(|line| line.starts_with("skipped: ")) {
        // Past the test runner's capture.
        std::io::stderr().write_all(format!("{skipped}\n").as_bytes()).expect("stderr is open");
    }
    println!("{out}");
}

#[test]
fn the_python_package() {
    check("test-python.sh");
}

#[test]
fn the_node_package() {
    check("test-node.sh");
}
