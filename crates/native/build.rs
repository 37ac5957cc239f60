//! Compiles the C and C++ files and declares their functions for Rust. The build script of the library links what replaces functions: it reads
//! `DEP_FOREDRAFT_NATIVE_*`.
#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a build script may panic")]

#[path = "build/bindings.rs"]
mod bindings;
#[path = "build/kernels.rs"]
mod kernels;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    // Not the folders: an edit of another file in them compiles nothing here.
    watch_files(Path::new("."), &["c", "cpp", "h"]);
    watch_files(Path::new("build"), &["rs"]);
    println!("cargo:rerun-if-changed=build.rs");
    // llama-cpp-sys-2 passes the folder of ggml's CMake package to its dependents; llama.cpp's headers are installed next to it.
    let package =
        PathBuf::from(env::var_os("DEP_LLAMA_GGML_CMAKE_DIR").expect("llama-cpp-sys-2 sets the folder of ggml"));
    let installed = package.ancestors().nth(2).expect("<out>/lib/cmake");
    let sources = &kernels::llama_sources(installed);
    println!("cargo:installed={}", installed.display());
    println!("cargo:sources={}", sources.display());
    // Modules of backends must be built for the same version.
    let manifest = sources.parent().map(|folder| folder.join("Cargo.toml")).expect("the crate's folder");
    let manifest = fs::read_to_string(manifest).expect("llama.cpp's sources are in the folder of llama-cpp-sys-2");
    let version = manifest.split_once("\nversion = \"").and_then(|(_, rest)| rest.split_once('"'));
    println!("cargo:rustc-env=LLAMA_CPP_SYS_VERSION={}", version.expect("a package has a version").0);
    // Compiled by the library's build script, for the shared library and the programs.
    println!("cargo:allocation={}", env::current_dir().expect("the package's folder").join("allocation.cpp").display());
    bindings::make_bindings(sources);
    // Calls the host's callbacks.
    kernels::compile_archive(cc::Build::new().file("call.c"), "foredraft_call");
    kernels::compile_guard(sources);
    let is = |what: &str, value: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).is_ok_and(|target| target == value);
    let is_mingw = is("OS", "windows") && is("ENV", "gnu");
    if is("OS", "linux") || is_mingw {
        kernels::compile_barrier(sources, is_mingw, is("ARCH", "x86_64") || is("ARCH", "aarch64"));
        let mut wraps = vec![kernels::SET_MASK];
        if is("ARCH", "x86_64") {
            kernels::compile_kernels(sources, &kernels::X86_64_LEVELS);
        } else if is("ARCH", "aarch64") {
            kernels::compile_kernels(sources, &kernels::AARCH64_LEVELS);
            kernels::compile_rounding(sources);
            wraps.extend(kernels::ROUNDING);
        } else {
            return;
        }
        println!("cargo:wraps={}", wraps.join(" "));
        println!("cargo:renames={}", kernels::ELEMENTARY.join(" "));
    }
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
