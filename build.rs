//! Compiles the exception guard around llama.cpp and writes the C header's text for the test that compares it.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=src/llama/guard.cpp");
    println!("cargo:rerun-if-changed=src/ffi");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    guard();
}

/// llama-cpp-sys-2 installs llama.cpp's headers beside the CMake package whose folder it tells its dependents.
fn guard() {
    let package = PathBuf::from(env::var_os("DEP_LLAMA_GGML_CMAKE_DIR").expect("llama-cpp-sys-2 says where its ggml is"));
    let include = package.ancestors().nth(2).expect("<out>/lib/cmake").join("include");
    cc::Build::new().cpp(true).std("c++17").include(include).file("src/llama/guard.cpp").compile("foredraft_guard");
}
