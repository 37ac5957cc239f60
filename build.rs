//! Compiles the exception guard around llama.cpp, and makes the C header's text, which a test compares with `include/`.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    for source in ["src/llama/guard.cpp", "src/ffi", "cbindgen.toml"] {
        println!("cargo:rerun-if-changed={source}");
    }
    compile_guard();
    make_header();
}

/// llama-cpp-sys-2 installs llama.cpp's headers beside the CMake package whose folder it tells its dependents.
fn compile_guard() {
    let package =
        PathBuf::from(env::var_os("DEP_LLAMA_GGML_CMAKE_DIR").expect("llama-cpp-sys-2 says where its ggml is"));
    let include = package.ancestors().nth(2).expect("<out>/lib/cmake").join("include");
    cc::Build::new().cpp(true).std("c++17").include(include).file("src/llama/guard.cpp").compile("foredraft_guard");
}

fn make_header() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let rooms = ["lifecycle", "callbacks", "text", "completion", "lookup", "lookup_cache", "session"];
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = rooms.iter().fold(builder, |builder, room| builder.with_src(root.join(format!("src/ffi/{room}.rs"))));
    let header = builder.generate().expect("src/ffi has a C interface");
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    header.write_to_file(Path::new(&out).join("foredraft.h"));
}
