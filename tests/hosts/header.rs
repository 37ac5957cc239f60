//! The C headers match the code, and compile alone as C and as C++ with warnings as errors.

use std::path::Path;
use std::process::Command;

use crate::examples::printed;
use crate::host::shipped_pair;
use crate::toolchain::{STRICT, compiler, folder, have, library_folder, root, run};

const HEADERS: [&str; 2] = ["foredraft.h", "rpcserver.h"];

/// The standards of C and C++, each with its final and its earlier name for the compiler.
const STANDARDS: [(&str, [&str; 2]); 10] = [
    ("c", ["c90", "c90"]),
    ("c", ["c99", "c99"]),
    ("c", ["c11", "c11"]),
    ("c", ["c17", "c18"]),
    ("c", ["c23", "c2x"]),
    ("c++", ["c++11", "c++11"]),
    ("c++", ["c++14", "c++14"]),
    ("c++", ["c++17", "c++17"]),
    ("c++", ["c++20", "c++2a"]),
    ("c++", ["c++23", "c++2b"]),
];

/// `make header` sets UPDATE_HEADER to copy the headers instead of comparing them.
#[test]
fn headers_match_cbindgen_output() {
    for header in HEADERS {
        let made = Path::new(env!("OUT_DIR")).join(header); // by build.rs
        let made = std::fs::read_to_string(&made).unwrap_or_else(|error| panic!("{}: {error}", made.display()));
        let shipped = root().join("include").join(header);
        if std::env::var_os("UPDATE_HEADER").is_some() {
            std::fs::write(&shipped, &made).expect("include/ is writable");
        }
        let shipped = std::fs::read_to_string(&shipped).unwrap_or_default();
        assert!(shipped == made, "include/{header} is out of date: run `make header`");
    }
}

/// Asserts that a source text compiles; produces no output file.
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

/// The first name of a standard that the compiler knows. `None`, reported on stderr, if it knows none.
fn known(language: &str, names: [&'static str; 2]) -> Option<&'static str> {
    let program = compiler(language);
    let empty = folder("header").join(format!("empty.{language}"));
    std::fs::write(&empty, "int unused_translation_unit;\n").expect("target/ is writable");
    let empty = empty.to_str().expect("UTF-8 path").to_owned();
    let knows = |name: &str, what: &str| {
        let standard = format!("-std={name}");
        let probe = ["-x", language, &standard, "-fsyntax-only", &empty];
        if what.is_empty() {
            let output = Command::new(&program).args(probe).output();
            output.is_ok_and(|output| output.status.success())
        } else {
            have(&program, &probe, what)
        }
    };
    let [own, earlier] = names;
    if knows(own, "") {
        return Some(own);
    }
    knows(earlier, &format!("the headers as {own}")).then_some(earlier)
}

#[test]
fn headers_compile_alone_without_warnings_in_every_standard() {
    for (language, names) in STANDARDS {
        let Some(standard) = known(language, names) else { continue };
        for header in HEADERS {
            // Included twice, to test the include guard.
            let source = format!("#include \"{header}\"\n#include \"{header}\"\nint unused_translation_unit;\n");
            compiles(&header.replace('.', "_"), language, standard, &source, &STRICT);
            let all = [&STRICT[..], &["-DFOREDRAFT_RPCSERVER_ALL"]].concat();
            compiles(&format!("all_{}", header.replace('.', "_")), language, standard, &source, &all);
        }
    }
}

#[test]
fn wrapper_gives_one_error_before_cpp17() {
    let Some(standard) = known("c++", ["c++14", "c++14"]) else { return };
    let file = folder("header").join("wrapper.cpp");
    std::fs::write(&file, "#include \"foredraft.hpp\"\n").expect("target/ is writable");
    let standard = format!("-std={standard}");
    let mut command = Command::new(compiler("c++"));
    let output = command
        .args([&standard, "-fsyntax-only", "-Iinclude"])
        .arg(file)
        .current_dir(root())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("error:")).collect();
    assert!(matches!(errors[..], [only] if only.contains("foredraft.hpp needs C++17 or newer")), "{said}");
}

/// The new header declares no name that a host is likely to use itself.
#[test]
fn foredraft_header_does_not_clash_with_host_names() {
    let source = "#include \"foredraft.h\"\n\
        static const char *version = \"mine\";\nstatic int init(double x) { return version[0] + (int)x; }\n\
        int main(void) { return init(1.5) + FOREDRAFT_VERSION_MAJOR + FOREDRAFT_VERSION_MINOR + FOREDRAFT_VERSION_PATCH\n\
        + (int)FOREDRAFT_ABI_VERSION + FOREDRAFT_OK + FOREDRAFT_INVALID_ENGINE + FOREDRAFT_LOG_ERROR + FOREDRAFT_INIT_FAILED + FOREDRAFT_LOAD_READY; }\n";
    for (language, names) in STANDARDS {
        if let Some(standard) = known(language, names) {
            compiles("own_names", language, standard, source, &STRICT);
        }
    }
}

/// The old server's header. The new one must declare the same functions with the same types, which the compiler checks when it
/// sees both.
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
fn declarations_match_the_old_server() {
    let calls =
        "int call(void) { deinit(); return init(poll_system_status()) + (async_completion_poll(NULL) != NULL); }\n";
    for (language, standard) in [("c", "c99"), ("c++", "c++17")] {
        compiles("old", language, standard, &format!("#include \"rpcserver.h\"\n{OLD_HEADER}{calls}"), &[]);
    }
}

/// The sum that tests/hosts/old_names.c prints if its own functions are called.
pub const OWN_NAMES: &str = "393 17\n";

/// A host of the old server that has its own `version`, `free_string` and so on compiles unchanged, links, and calls its own.
#[test]
fn old_host_keeps_its_own_functions_of_the_added_names() {
    for (language, standard) in [("c", "c99"), ("c++", "c++11")] {
        let compiler = compiler(language);
        if !have(&compiler, &["--version"], "old_names.c") {
            continue;
        }
        let (libraries, program) = (library_folder(), folder("old_names").join(language));
        let mut command = Command::new(compiler);
        command.arg(format!("-std={standard}")).args(STRICT).args([
            "-Iinclude",
            "-x",
            language,
            "tests/hosts/old_names.c",
            "-x",
            "none",
            "-o",
        ]);
        command.arg(&program).arg("-L").arg(&libraries).arg("-lforedraft");
        run(command.arg(format!("-Wl,-rpath,{}", libraries.display())), "");
        assert_eq!(printed(Command::new(program).arg(shipped_pair().draft), ""), OWN_NAMES, "{language}");
    }
}
