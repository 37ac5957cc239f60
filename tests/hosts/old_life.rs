//! Hosts of the old server in C++, Python (ctypes) and Node, as its documents describe them. All print the same lines, about each thing that
//! such a host would notice.

use std::process::Command;

use serde_json::{Value, json};

use crate::examples::{host, plain};
use crate::host::shipped_pair;
use crate::toolchain::{STRICT, compiler, folder, have, library_folder, root, run};

fn check(command: &mut Command) {
    let text = plain(&json!({"prompt": "Once upon a time", "n_predict": 12, "temperature": 0}));
    let quoted = |text: &str| Value::from(text).to_string();
    let expected = format!(
        "loaded 1 True 2\nprompt True 0 True\nstreamed {} \"\"\nsettings True 508 True True\nwaited True False 12\nbegun {}\n\
         cancelled True cancelled\nspeculated True True\ndrafted [302, 300]\nunloaded True cancelled True\n",
        quoted(&text),
        quoted(&text[..text.len() - 3]),
    );
    let _guard = host();
    let pair = shipped_pair();
    command.args([pair.target, pair.draft]).current_dir(root());
    let output = command.env("FOREDRAFT_LIB", library_folder().join("libforedraft.so")).output().expect("it starts");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    for part in
        [": drafted: [ ", " - accepted\n", ": n_accept  = ", ": draft: eval time = ", ": target: prompt eval time = "]
    {
        assert!(log.contains(part), "no {part:?} in the log");
    }
}

#[test]
fn old_host_in_cpp_notices_nothing() {
    let compiler = compiler("c++");
    if !have(&compiler, &["--version"], "old_life.cpp") {
        return;
    }
    let (libraries, program) = (library_folder(), folder("old_life").join("program"));
    let mut build = Command::new(compiler);
    build.args(STRICT).args(["-std=c++11", "-Iinclude", "-Iexamples", "tests/hosts/old_life.cpp", "-o"]).arg(&program);
    build.arg("-L").arg(&libraries).arg("-lforedraft").arg(format!("-Wl,-rpath,{}", libraries.display()));
    run(build.arg("-pthread"), "");
    check(&mut Command::new(program));
}

#[test]
fn old_host_in_python_notices_nothing() {
    if have("python3", &["-c", "import ctypes"], "old_life.py") {
        check(Command::new("python3").arg("tests/hosts/old_life.py"));
    }
}

#[test]
fn old_host_in_node_notices_nothing() {
    if have("node", &["-e", "import('koffi').catch(() => process.exit(1))"], "old_life.mjs") {
        // Node finds packages beside the program, so it runs from the folder that has koffi.
        let program = root().join("examples/.old_life.mjs");
        std::fs::copy(root().join("tests/hosts/old_life.mjs"), &program).expect("examples/ is writable");
        check(Command::new("node").arg(&program));
        std::fs::remove_file(&program).expect("it was there");
    }
}
