//! `make install`: the installed tree, and programs outside the repository that use it. `make test` installs into
//! target/installed before the tests run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::c_functions::{ENGINE_FUNCTIONS, ENGINE_OTHERS, FUNCTIONS, OTHERS};
use crate::examples::{plain, printed};
use crate::host::shipped_pair;
use crate::toolchain::{STRICT, compiler, folder, have, root, run, run_failing};

const QUESTION: &str = "Tell me a story about Karl and a badger.";

/// Where it is installed; `None`, with a line on stderr, where nothing is. A tree of another version is a failure.
fn installed() -> Option<PathBuf> {
    let prefix = root().join("target/installed");
    let header = prefix.join("include/foredraft.h");
    if !have("test", &["-f", header.to_str().expect("UTF-8 path")], "what `make install` installs") {
        return None;
    }
    for name in ["foredraft.h", "foredraft.hpp", "rpcserver.h"] {
        let [ours, theirs] = [root().join("include").join(name), prefix.join("include").join(name)]
            .map(|path| std::fs::read_to_string(path).expect("the header is there"));
        assert!(ours == theirs, "target/installed is old: PREFIX={} scripts/install.sh", prefix.display());
    }
    Some(prefix)
}

fn pkg_config(prefix: &Path, args: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(args).arg("foredraft");
    run(&mut command, "").split_whitespace().map(str::to_owned).collect()
}

fn models() -> [String; 2] {
    let shipped = shipped_pair();
    [shipped.target, shipped.draft].map(|path| path.to_str().expect("UTF-8 path").to_owned())
}

#[test]
fn the_shared_library_has_a_soname_and_versioned_symbols() {
    let Some(prefix) = installed() else { return };
    if !have("readelf", &["--version"], "the SONAME") || !have("nm", &["--version"], "the symbols' versions") {
        return;
    }
    let version = env!("CARGO_PKG_VERSION");
    let lib = prefix.join("lib");
    let link = |name: &str| std::fs::read_link(lib.join(name)).expect("a link");
    assert_eq!(link("libforedraft.so"), Path::new("libforedraft.so.1"));
    assert_eq!(link("libforedraft.so.1"), Path::new(&format!("libforedraft.so.{version}")));

    let library = lib.join("libforedraft.so");
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library), "");
    assert!(dynamic.contains("Library soname: [libforedraft.so.1]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library), "");
    let exported: BTreeSet<String> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| *name != "FOREDRAFT_1") // the version itself
        .map(|name| name.strip_suffix("@@FOREDRAFT_1").unwrap_or_else(|| panic!("{name} has no version")).to_owned())
        .collect();
    let functions = [&FUNCTIONS[..], &OTHERS, &ENGINE_FUNCTIONS, &ENGINE_OTHERS].concat();
    assert_eq!(exported, functions.into_iter().map(str::to_owned).collect());
}

#[test]
fn a_cmake_project_uses_both_libraries() {
    let Some(prefix) = installed() else { return };
    if !have("cmake", &["--version"], "the CMake consumer") {
        return;
    }
    // Outside the repository's folders that a wrong include path could find.
    let source = folder("consumer");
    for name in ["CMakeLists.txt", "ask.cpp"] {
        std::fs::copy(root().join("examples/cmake").join(name), source.join(name)).expect("target/ is writable");
    }
    let build = folder("consumer/build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build).arg("-DCMAKE_BUILD_TYPE=Release");
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    run(&mut configure, "");
    run(Command::new("cmake").arg("--build").arg(&build), "");
    // The answer of the library that cargo built.
    let expected = plain(&json!({
        "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "n_predict": 64, "speculative": false,
    }));
    let [target, draft] = models();
    for program in ["ask", "ask_static"] {
        let program = build.join(program);
        let answer = printed(Command::new(&program).args([&target, QUESTION, &draft]), "");
        assert_eq!(answer, format!("{expected}\n"), "{}", program.display());
        let errors = run_failing(Command::new(&program).args(["missing.gguf", QUESTION]));
        assert!(errors.contains("missing.gguf") && errors.contains("(model_error)"), "{errors}");
    }
    if have("readelf", &["--version"], "what the programs link") {
        let needed = |program: &str| run(Command::new("readelf").arg("-d").arg(build.join(program)), "");
        assert!(needed("ask").contains("[libforedraft.so.1]"));
        assert!(!needed("ask_static").contains("libforedraft"));
    }

    // Another version is not taken.
    let newer = folder("consumer_newer");
    let lists = std::fs::read_to_string(source.join("CMakeLists.txt")).expect("copied above");
    let asks_for_more = lists.replace("find_package(foredraft 0.2 REQUIRED)", "find_package(foredraft 9.0 REQUIRED)");
    assert_ne!(asks_for_more, lists);
    std::fs::write(newer.join("CMakeLists.txt"), asks_for_more).expect("target/ is writable");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&newer).arg("-B").arg(newer.join("build"));
    let errors = run_failing(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    assert!(errors.contains("9.0"), "{errors}");
}

#[test]
fn pkg_config_names_what_c_programs_need() {
    let Some(prefix) = installed() else { return };
    if !have("pkg-config", &["--version"], "the pkg-config file") || !have(&compiler("c"), &["--version"], "C") {
        return;
    }
    assert_eq!(pkg_config(&prefix, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let source = folder("pkg_config").join("version.c");
    let code = "#include <foredraft.h>\n#include <stdio.h>\n\
                int main(void) { return puts(foredraft_version()) < 0 || foredraft_abi_version() != FOREDRAFT_ABI_VERSION; }\n";
    std::fs::write(&source, code).expect("target/ is writable");
    let rpath = format!("-Wl,-rpath,{}", prefix.join("lib").display());
    // The linker prefers a shared library unless it is given the archive by name.
    let archive = |flag: String| if flag == "-lforedraft" { "-l:libforedraft.a".to_owned() } else { flag };
    let shared = pkg_config(&prefix, &["--cflags", "--libs"]);
    let whole: Vec<String> =
        pkg_config(&prefix, &["--cflags", "--libs", "--static"]).into_iter().map(archive).collect();
    for (name, flags) in [("shared", shared), ("static", whole)] {
        let program = source.with_file_name(name);
        let mut build = Command::new(compiler("c"));
        build.args(STRICT).args(["-std=c99", "-o"]).arg(&program).arg(&source).args(flags).arg(&rpath);
        run(&mut build, "");
        assert_eq!(run(&mut Command::new(&program), "").trim(), env!("CARGO_PKG_VERSION"), "{name}");
    }
}

#[test]
fn the_cpp_wrapper_keeps_its_promises() {
    let Some(prefix) = installed() else { return };
    if !have(&compiler("c++"), &["--version"], "foredraft.hpp") {
        return;
    }
    let program = folder("wrapper").join("wrapper");
    let mut build = Command::new(compiler("c++"));
    build.args(STRICT).args([
        "-Wshadow",
        "-Wconversion",
        "-std=c++17",
        "-O1",
        "-pthread",
        "tests/hosts/wrapper.cpp",
        "-o",
    ]);
    build.arg(&program).arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib")).arg("-lforedraft");
    run(build.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())), "");
    assert_eq!(printed(Command::new(&program).args(models()), ""), "ok\n");
}

/// Every file and link under a folder.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if entry.file_type().expect("a type").is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path);
        }
    }
    found
}

#[test]
fn destdir_is_put_before_everything_and_uninstall_removes_everything() {
    let Some(prefix) = installed() else { return };
    let stage = folder("stage");
    let _ = std::fs::remove_dir_all(&stage);
    let other = stage.join("opt/foredraft/share/other.txt");
    std::fs::create_dir_all(other.parent().expect("a folder")).expect("target/ is writable");
    std::fs::write(&other, "of another package").expect("target/ is writable");
    let script = |argument: &str| {
        let mut command = Command::new("scripts/install.sh");
        command
            .arg(argument)
            .env("DESTDIR", &stage)
            .env("PREFIX", "/opt/foredraft")
            .env("LIBDIR", "/opt/foredraft/lib64");
        run(command.env("CARGO_TARGET_DIR", root().join("target")), "");
    };
    script("--no-build");
    let staged = files(&stage);
    assert_eq!(staged.len(), files(&prefix).len() + 1, "{staged:?}");
    let description = stage.join("opt/foredraft/lib64/pkgconfig/foredraft.pc");
    let text = std::fs::read_to_string(description).expect("the pkg-config file");
    assert!(text.contains("libdir=/opt/foredraft/lib64\n") && !text.contains("stage"), "{text}");
    script("uninstall");
    assert_eq!(files(&stage), BTreeSet::from([other]));
    assert!(!stage.join("opt/foredraft/lib64").exists() && !stage.join("opt/foredraft/include").exists());
}

/// In the archive the names that foredraft added are weak, so a program that has functions of these names keeps its own.
#[test]
fn an_old_host_with_its_own_names_links_the_archive() {
    let Some(prefix) = installed() else { return };
    if !have("pkg-config", &["--version"], "the pkg-config file") || !have(&compiler("c"), &["--version"], "C") {
        return;
    }
    let program = folder("pkg_config").join("old_names");
    let archive = |flag: String| if flag == "-lforedraft" { "-l:libforedraft.a".to_owned() } else { flag };
    let mut build = Command::new(compiler("c"));
    build.args(STRICT).args(["-std=c99", "tests/hosts/old_names.c", "-o"]).arg(&program);
    build.args(pkg_config(&prefix, &["--cflags", "--libs", "--static"]).into_iter().map(archive));
    run(&mut build, "");
    let [_, draft] = models();
    assert_eq!(printed(Command::new(&program).arg(draft), ""), crate::header::OWN_NAMES);
}
