//! README.md and docs/reference.md say what is so: the table of samplers is the code's, and the first calls run.

use std::path::Path;
use std::process::Command;

use crate::toolbox::{STRICT, compiler, folder, have, library_folder, root, run};
use foredraft::api::CompletionRequest;

const BEGIN: &str = "<!-- samplers: made by `CompletionRequest::sampler_table`, compared by tests/readme.rs -->\n";
const END: &str = "<!-- /samplers -->";

/// UPDATE_README writes the table instead of comparing it.
#[test]
fn the_table_of_samplers_is_the_codes() {
    let path = root().join("docs/reference.md");
    let reference = std::fs::read_to_string(&path).expect("docs/reference.md");
    let (before, rest) = reference.split_once(BEGIN).expect("the table's begin");
    let (_, after) = rest.split_once(END).expect("the table's end");
    let made = format!("{before}{BEGIN}\n{}\n{END}{after}", CompletionRequest::sampler_table().trim());
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(&path, &made).expect("docs/reference.md is writable");
        return;
    }
    assert!(reference == made, "docs/reference.md is out of date: UPDATE_README=1 cargo test --release --test hosts");
}

/// The README's first block of code in that language.
fn block(language: &str) -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let (_, code) = readme.split_once(&format!("```{language}\n")).expect("a block");
    code.split_once("```").expect("its end").0.to_owned()
}

/// The block, written to a file, with the library's place put in.
fn written(language: &str, name: &str) -> std::path::PathBuf {
    let library = crate::host::library_path().expect("the library");
    let code = block(language).replace("target/release/libforedraft.so", &library.to_string_lossy());
    let file = folder("readme").join(name);
    std::fs::write(&file, code).expect("target/ is writable");
    file
}

/// Runs a first call, which must print what follows its prompt: text, or in C the whole answer.
fn prints(command: &mut Command) {
    let printed = run(command, "");
    let text = match serde_json::from_str::<serde_json::Value>(&printed) {
        Ok(answer) => answer["content"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned(),
        Err(_) => printed,
    };
    assert!(text.trim().len() > 20, "{text:?}");
}

#[test]
fn the_first_call_in_c() {
    if have(&compiler("c"), &["--version"], "the README's C") {
        let (source, program) = (written("c", "hello.c"), folder("readme").join("hello"));
        let mut build = Command::new(compiler("c"));
        build.args(STRICT).arg("-std=c99").arg("-Iinclude").arg(&source).arg("-o").arg(&program);
        let libraries = library_folder();
        build.arg("-L").arg(&libraries).arg("-lforedraft").arg(format!("-Wl,-rpath,{}", libraries.display()));
        run(&mut build, "");
        prints(&mut Command::new(&program));
    }
}

#[test]
fn the_first_call_in_python() {
    if have("python3", &["-c", "import ctypes"], "the README's Python") {
        prints(Command::new("python3").arg(written("python", "hello.py")));
    }
}

#[test]
fn the_first_call_in_node() {
    if have("node", &["-e", "import('koffi').catch(() => process.exit(1))"], "the README's JavaScript") {
        let file = written("js", "hello.mjs");
        // Beside examples/node_modules, where koffi is found.
        let beside = Path::new("examples").join("readme_hello.mjs");
        std::fs::copy(file, root().join(&beside)).expect("examples/ is writable");
        prints(Command::new("node").arg(&beside));
        std::fs::remove_file(root().join(beside)).expect("it was written above");
    }
}
