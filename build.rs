//! Compiles the C and C++ files, and generates the C headers. With the feature `peer`, also compiles llama.cpp's side of the benchmarks.
//! The parts are in `build/`: `checks` of the environment, the `kernels`, what the linker gets (`link`), and the `headers`.
#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a build script may panic")]

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
use std::path::PathBuf;

fn main() {
    for source in [
        "src/llama/guard.cpp",
        "src/llama/sources/head.cpp",
        "src/llama/guard.h",
        "src/llama/allocation.cpp",
        "src/llama/placement.cpp",
        "src/llama/kernels",
        "src/ffi",
        "cbindgen.toml",
        "benches/peer",
    ] {
        println!("cargo:rerun-if-changed={source}");
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
    if is("OS", "linux") && is("ENV", "gnu") {
        link::keep_globals("__cxa_atexit");
        link::wrap_allocation();
    }
    if is_mingw {
        link::keep_globals("atexit");
        link::link_on_mingw(installed);
    }
    // Calls the host's callbacks.
    cc::Build::new().file("src/ffi/call.c").compile("foredraft_call");
    kernels::compile_guard(installed);
    println!("cargo:rustc-check-cfg=cfg(own_barrier, own_kernels)");
    if is("OS", "linux") || is_mingw {
        kernels::replace_barrier(installed, is_mingw, is("ARCH", "x86_64") || is("ARCH", "aarch64"));
        if is("ARCH", "x86_64") {
            kernels::replace_kernels(installed, &kernels::X86_64_LEVELS);
        } else if is("ARCH", "aarch64") {
            kernels::replace_kernels(installed, &kernels::AARCH64_LEVELS);
            kernels::match_rounding(installed);
        }
    }
    if env::var_os("CARGO_FEATURE_PEER").is_some() {
        kernels::compile_peer(installed);
    }
    headers::make_headers();
}
