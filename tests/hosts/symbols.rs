//! The shared library exports only the documented functions, so that it can be loaded beside any other library, including
//! another llama.cpp.

use std::collections::BTreeSet;
use std::process::Command;

use crate::c_functions::{ENGINE_FUNCTIONS, ENGINE_OTHERS, FUNCTIONS, OTHERS};
use crate::toolchain::{compiler, have, library_folder, root, run};

fn new_names() -> BTreeSet<String> {
    ENGINE_FUNCTIONS.into_iter().chain(ENGINE_OTHERS).map(str::to_owned).collect()
}

fn old_names() -> BTreeSet<String> {
    FUNCTIONS.into_iter().chain(OTHERS).map(str::to_owned).collect()
}

#[test]
fn library_exports_only_the_documented_functions() {
    if !have("nm", &["--version"], "the library's symbols") {
        return;
    }
    let library = library_folder().join("libforedraft.so");
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library), "");
    let exported: BTreeSet<String> =
        listed.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect();
    let old = if cfg!(feature = "rpcserver") { old_names() } else { BTreeSet::new() };
    assert_eq!(exported, new_names().into_iter().chain(old).collect());
}

/// They give other bits in other C libraries.
#[cfg(target_os = "linux")]
#[test]
fn library_calls_no_function_of_floats_of_the_c_library() {
    if !have("nm", &["--version"], "the library's symbols") {
        return;
    }
    let listed =
        run(Command::new("nm").args(["-D", "--undefined-only"]).arg(library_folder().join("libforedraft.so")), "");
    let called = |function: &str| {
        listed.lines().any(|line| line.trim_start_matches([' ', 'U', 'w']).split('@').next() == Some(function))
    };
    let functions = [
        "sinf", "cosf", "sincosf", "tanhf", "erff", "expf", "exp2f", "expm1f", "logf", "log1pf", "log2f", "log10f",
        "powf", "cexpf",
    ];
    assert_eq!(functions.iter().filter(|function| called(function)).collect::<Vec<_>>(), Vec::<&&str>::new());
    assert!(called("memcpy"), "{listed}");
}

/// The functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let header = std::fs::read_to_string(root().join("include").join(header)).expect("the header is there");
    let declarations = header.lines().filter_map(|line| line.strip_prefix("FOREDRAFT_API ")?.split_once('('));
    declarations.filter_map(|(before, _)| before.rsplit([' ', '*']).next()).map(str::to_owned).collect()
}

/// A host may have functions of the other names.
#[test]
fn old_header_declares_the_new_names_only_behind_a_macro() {
    const OLD: [&str; 9] = [
        "init",
        "init_async",
        "tokenize",
        "poll_system_status",
        "get_completion",
        "async_completion_init",
        "async_completion_poll",
        "async_completion_cancel",
        "deinit",
    ];
    let compiler = compiler("c");
    if !have(&compiler, &["--version"], "rpcserver.h") {
        return;
    }
    let names = |flags: &[&str]| -> BTreeSet<String> {
        let mut command = Command::new(&compiler);
        let text = run(
            command.args(["-E", "-P", "-x", "c", "-DFOREDRAFT_API=EXPORTED"]).args(flags).arg("include/rpcserver.h"),
            "",
        );
        let text = text.replace('\n', " ");
        let declarations = text.split("EXPORTED ").skip(1).filter_map(|rest| rest.split_once('('));
        declarations.filter_map(|(before, _)| before.rsplit([' ', '*']).next()).map(str::to_owned).collect()
    };
    assert_eq!(names(&[]), OLD.map(str::to_owned).into());
    let all: BTreeSet<String> = new_names().into_iter().chain(old_names()).collect();
    assert_eq!(names(&["-DFOREDRAFT_RPCSERVER_ALL"]), all);
}

#[test]
fn each_header_declares_only_its_documented_functions() {
    assert_eq!(declared("foredraft.h"), new_names());
    assert_eq!(declared("rpcserver.h"), old_names());
    assert!(new_names().iter().all(|name| name.starts_with("foredraft_")), "new functions must have the prefix");
}
