//! One library for every x86-64 processor: on an emulated one with AVX2 and nothing more it gives the same completion as here, and one without
//! AVX2 gets an error from `foredraft_load`, not a signal.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::process::Command;

use crate::toolchain::{compiler, folder, have, library_folder, root, run};

const PROGRAM: &str = r#"
#include <stdio.h>
#include "foredraft.h"

int main(int argc, char ** argv) {
    foredraft_engine * engine = foredraft_engine_new();
    const int32_t loaded = argc == 2 ? foredraft_load(engine, argv[1]) : -1;
    char * answer = loaded == 0
        ? foredraft_complete(engine, "{\"prompt\": \"One day, Mia found a kite\", \"n_predict\": 16, \"temperature\": 1, \"seed\": 3, \"n_probs\": 2,"
                                     " \"response_fields\": [\"content\", \"completion_probabilities\"]}")
        : foredraft_status(engine);
    puts(answer);
    foredraft_string_free(answer);
    foredraft_engine_free(engine);
    return 0;
}
"#;

#[test]
fn an_older_processor_computes_the_same_and_one_without_avx2_gets_an_error() {
    if !have("qemu-x86_64", &["--version"], "emulated processors") {
        return;
    }
    let folder = folder("processors");
    let (source, program) = (folder.join("processors.c"), folder.join("processors"));
    std::fs::write(&source, PROGRAM).expect("target/ is writable");
    let library = library_folder();
    let mut compile = Command::new(compiler("c"));
    compile.arg(&source).arg("-o").arg(&program).arg(format!("-I{}", root().join("include").display()));
    compile.arg(library.join("libforedraft.so")).arg(format!("-Wl,-rpath,{}", library.display()));
    run(&mut compile, "");
    let model = |name: &str| root().join(format!("models/stories-{name}.gguf")).display().to_string();
    let init =
        format!(r#"{{"model": "{}", "model_draft": "{}", "log_level": "error"}}"#, model("target"), model("draft"));
    let here = run(Command::new(&program).arg(&init), "");
    assert!(here.contains("completion_probabilities"), "{here}");
    let emulated =
        |processor: &str| run(Command::new("qemu-x86_64").args(["-cpu", processor]).arg(&program).arg(&init), "");
    assert_eq!(emulated("Haswell"), here);
    let refused = emulated("Nehalem");
    assert!(refused.contains("this processor is not supported: it lacks AVX2"), "{refused}");
}
