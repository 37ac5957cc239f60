//! The packages for Python and Node, built, installed and tested as their users do: `scripts/test-python.sh` and
//! `scripts/test-node.sh`, which say aloud what they skip, and fail where CI runs.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::examples::host;
use crate::toolchain::{library_folder, root};

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

fn check(script: &str) {
    // Their programs need the cores that other programs' models would spin on.
    let _host = host();
    let mut command = Command::new(root().join("scripts").join(script));
    command.env("FOREDRAFT_LIB", built().join("libforedraft.so"));
    if script == "release.sh" {
        command.arg("--without-c").env("FOREDRAFT_PACKAGES", root().join("target/test-packages"));
    }
    let output = command.output().unwrap_or_else(|error| panic!("{script}: {error}"));
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{script}: {}\n{out}\n{err}", output.status);
    if let Some(skipped) = out.lines().find(|line| line.starts_with("skipped: ")) {
        // Past the test runner's capture.
        std::io::stderr().write_all(format!("{skipped}\n").as_bytes()).expect("stderr is open");
    }
    println!("{out}");
}

/// What `scripts/release.sh` makes is checked by itself: what files need and where they search, tags, checksums, and a completion of each
/// package in an empty environment. (The C archive is the tree that the tests of the installation use.)
#[test]
fn the_packages_of_a_release() {
    check("release.sh");
}

#[test]
fn the_python_package() {
    check("test-python.sh");
}

#[test]
fn the_node_package() {
    check("test-node.sh");
}
