//! Links the library and generates the C headers. With the feature `peer`, also compiles
//! llama.cpp's side of the benchmarks (`peer`). The parts are in `build/`: `checks` of the environment, the linker's options (`link`), and the
//! `headers`.
#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a build script may panic")]

#[path = "build/checks.rs"]
mod checks;
#[path = "build/headers.rs"]
mod headers;
#[path = "build/link.rs"]
mod link;
#[path = "build/peer.rs"]
mod peer;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use link::LinkerOptions;

fn main() {
    for file in ["build.rs", "cbindgen.toml"] {
        println!("cargo:rerun-if-changed={file}");
    }
    for (folder, endings) in
        [("build", ["rs"].as_slice()), ("src/ffi", &["c", "h", "toml"]), ("benches/peer", &["cpp"])]
    {
        watch_files(Path::new(folder), endings);
    }
    checks::check_environment();
    let installed = native("INSTALLED").map(PathBuf::from).expect("foredraft-native sets it");
    let sources = native("SOURCES").map(PathBuf::from).expect("foredraft-native sets it");
    // For tests that compile programs with llama.cpp's code.
    println!("cargo:rustc-env=LLAMA_CPP_SOURCES={}", sources.display());
    println!("cargo:rustc-env=LLAMA_CPP_LIBRARIES={}", installed.join("lib").display());
    // The library is never unloaded: `dlclose` would remove the code of running threads and of thread-exit handlers.
    let is = |what: &str, value: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).is_ok_and(|target| target == value);
    if !["macos", "ios", "windows"].iter().any(|os| is("OS", os)) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    let is_mingw = is("OS", "windows") && is("ENV", "gnu");
    let mut linker = LinkerOptions::default();
    if is("OS", "linux") && is("ENV", "gnu") {
        linker.keep_globals("__cxa_atexit");
        // Replaces functions of the C library in the shared library and the programs alone.
        let allocation = native("ALLOCATION").expect("foredraft-native sets it");
        println!("cargo:rerun-if-changed={allocation}");
        linker.wrap_allocation(&allocation);
    }
    if is_mingw {
        linker.keep_globals("atexit");
        link::link_on_mingw(&installed);
    }
    if native("BARRIER").is_some() && !is_mingw {
        linker.replace_barrier();
    }
    let wraps = native("WRAPS").unwrap_or_default();
    linker.replace_functions(&wraps);
    let renames = native("RENAMES").unwrap_or_default();
    linker.replace_elementary(&renames);
    if env::var_os("CARGO_FEATURE_PEER").is_some() {
        peer::compile_peer(&sources);
    }
    linker.write();
    headers::make_headers();
}

/// A fact that the build script of `foredraft-native` has passed on.
fn native(fact: &str) -> Option<String> {
    env::var(format!("DEP_FOREDRAFT_NATIVE_{fact}")).ok()
}

/// Runs this script again when a file of these endings changes, in a folder or in those below it.
fn watch_files(folder: &Path, endings: &[&str]) {
    for entry in fs::read_dir(folder).expect("cargo runs it in the package's folder") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            watch_files(&path, endings);
        } else if path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known)) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
}
