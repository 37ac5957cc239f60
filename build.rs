//! Compiles the C and C++ files, declares their functions for Rust, and generates the C headers. With the feature `peer`, also compiles llama.cpp's
//! side of the benchmarks. The parts are in `build/`: `checks` of the environment, the `bindings` of C and C++ functions, the `kernels`, the linker's
//! options (`link`), and the `headers`.
#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a build script may panic")]

#[path = "build/bindings.rs"]
mod bindings;
#[path = "build/checks.rs"]
mod checks;
#[path = "build/headers.rs"]
mod headers;
#[path = "build/kernels.rs"]
mod kernels;
#[path = "build/link.rs"]
mod link;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use link::LinkerOptions;

fn main() {
    for file in ["build.rs", "cbindgen.toml"] {
        println!("cargo:rerun-if-changed={file}");
    }
    // Not the folders: an edit of a Rust file beside them compiles nothing here. (`headers` names the Rust files that it reads.)
    for (folder, endings) in [
        ("build", ["rs"].as_slice()),
        ("src/llama", &["c", "cpp", "h"]),
        ("src/ffi", &["c", "h", "toml"]),
        ("benches/peer", &["cpp", "h"]),
    ] {
        watch_files(Path::new(folder), endings);
    }
    // llama-cpp-sys-2 passes the folder of ggml's CMake package to its dependents; llama.cpp's headers are installed next to it.
    let package =
        PathBuf::from(env::var_os("DEP_LLAMA_GGML_CMAKE_DIR").expect("llama-cpp-sys-2 sets the folder of ggml"));
    let installed = package.ancestors().nth(2).expect("<out>/lib/cmake");
    checks::check_environment();
    // Modules of backends must be built for the same version.
    let manifest = fs::read_to_string("Cargo.toml").expect("cargo runs it in the package's folder");
    let version = manifest.split_once("llama-cpp-sys-2 = \"=").and_then(|(_, rest)| rest.split_once('"'));
    println!("cargo:rustc-env=LLAMA_CPP_SYS_VERSION={}", version.expect("the version is pinned").0);
    // For tests that compile programs with llama.cpp's code.
    println!("cargo:rustc-env=LLAMA_CPP_SOURCES={}", kernels::llama_sources(installed).display());
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
        linker.wrap_allocation();
    }
    if is_mingw {
        linker.keep_globals("atexit");
        link::link_on_mingw(installed);
    }
    // Calls the host's callbacks.
    kernels::compile_archive(cc::Build::new().file("src/ffi/call.c"), "foredraft_call");
    bindings::make_bindings(&kernels::llama_sources(installed));
    kernels::compile_guard(installed);
    println!("cargo:rustc-check-cfg=cfg(own_barrier, own_kernels)");
    if is("OS", "linux") || is_mingw {
        kernels::replace_barrier(installed, &mut linker, is_mingw, is("ARCH", "x86_64") || is("ARCH", "aarch64"));
        if is("ARCH", "x86_64") {
            kernels::replace_kernels(installed, &mut linker, &kernels::X86_64_LEVELS);
        } else if is("ARCH", "aarch64") {
            kernels::replace_kernels(installed, &mut linker, &kernels::AARCH64_LEVELS);
            kernels::match_rounding(installed, &mut linker);
        }
    }
    if env::var_os("CARGO_FEATURE_PEER").is_some() {
        kernels::compile_peer(installed);
    }
    linker.write();
    headers::make_headers();
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
