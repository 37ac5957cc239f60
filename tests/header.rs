//! The C headers: made of the code, and compiled alone, as C and as C++, with every warning an error.

mod toolbox;

use std::path::Path;
use std::process::Command;

use toolbox::{STRICT, compiler, folder, have, root, run};

/// `make header` sets UPDATE_HEADER, which copies instead of comparing.
#[test]
fn the_header_is_what_cbindgen_makes_of_the_code() {
    let made = Path::new(env!("OUT_DIR")).join("foredraft.h"); // by build.rs
    let made = std::fs::read_to_string(&made).unwrap_or_else(|error| panic!("{}: {error}", made.display()));
    let shipped = root().join("include/foredraft.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&shipped, &made).expect("include/ is writable");
    }
    let shipped = std::fs::read_to_string(&shipped).unwrap_or_default();
    assert!(shipped == made, "include/foredraft.h is out of date: run `make header`");
}

/// Compiles a source text, without making anything of it.
fn compiles(name: &str, language: &str, standard: &str, source: &str, flags: &[&str]) {
    let compiler = compiler(language);
    if !have(&compiler, &["--version"], &format!("{name} as {standard}")) {
        return;
    }
    let file = folder("header").join(format!("{name}.{standard}.{language}"));
    std::fs::write(&file, source).expect("target/ is writable");
    let standard = format!("-std={standard}");
    let mut command = Command::new(compiler);
    run(command.args(["-x", language, &standard, "-fsyntax-only", "-Iinclude"]).args(flags).arg(file), "");
}

#[test]
fn every_header_compiles_alone_without_a_warning() {
    for header in ["foredraft.h", "rpcserver.h"] {
        // Twice, for the include guard.
        let source = format!("#include \"{header}\"\n#include \"{header}\"\nint unused_translation_unit;\n");
        for (language, standard) in [("c", "c99"), ("c", "c11"), ("c++", "c++11"), ("c++", "c++17")] {
            compiles(&header.replace('.', "_"), language, standard, &source, &STRICT);
        }
    }
}

/// The old server's header, as it was: the new one must declare the same functions with the same types, which a compiler
/// checks when it sees both.
const OLD_HEADER: &str = r#"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
int init(const char *cmd);
void init_async(const char* cmd);
const char* tokenize(const char* req_json);
const char *poll_system_status();
const char* get_completion(const char* req_json);
const char* async_completion_init(const char* req_json);
const char* async_completion_poll(const char* cmd_json);
const char* async_completion_cancel(const char* req_json);
void deinit();
#ifdef __cplusplus
}
#endif
"#;

#[test]
fn the_old_servers_declarations_agree() {
    let calls =
        "int call(void) { deinit(); return init(poll_system_status()) + (async_completion_poll(NULL) != NULL); }\n";
    for (language, standard) in [("c", "c99"), ("c++", "c++17")] {
        compiles("old", language, standard, &format!("#include \"rpcserver.h\"\n{OLD_HEADER}{calls}"), &[]);
    }
}
