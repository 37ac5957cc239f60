//! A C++ host that compares `lookup_cache`'s `update` and `draft` with llama.cpp's own functions.

use std::path::Path;
use std::process::Command;

use crate::examples::printed;
use crate::host::shipped_pair;
use crate::toolchain::{compiler, folder, have, library_folder, run};

#[test]
fn caches_given_by_a_host_draft_as_llama_cpp_does() {
    let compiler = compiler("c++");
    if !have(&compiler, &["--version"], "ngram_peer.cpp") {
        return;
    }
    let sources = Path::new(env!("LLAMA_CPP_SOURCES"));
    let (libraries, folder) = (library_folder(), folder("ngram_peer"));
    let program = folder.join("program");
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-Iinclude", "-Iexamples"]);
    for include in ["common", "include", "ggml/include", "vendor"] {
        command.arg("-I").arg(sources.join(include));
    }
    command.arg("tests/hosts/ngram_peer.cpp").arg("-o").arg(&program);
    command.arg("-L").arg(&libraries).arg("-lforedraft").arg(format!("-Wl,-rpath,{}", libraries.display()));
    run(&mut command, "");
    let line = printed(Command::new(program).arg(shipped_pair().draft).arg(&folder), "");
    assert!(line.contains(" drafts of "), "{line}");
    eprint!("{line}");
}
