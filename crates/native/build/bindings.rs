//! Rust's declarations of our C and C++ functions, made of their headers by bindgen.

use std::env;
use std::path::{Path, PathBuf};

/// Makes `native.rs` of the headers.
pub fn make_bindings(llama_sources: &Path) {
    // The types of llama.cpp and ggml are those of llama-cpp-sys-2.
    let includes = ["include", "ggml/include"].map(|folder| format!("-I{}", llama_sources.join(folder).display()));
    let bindings = bindgen::Builder::default()
        .headers(["native.h", "kernels/native.h", "call.h"])
        .clang_args(includes)
        .raw_line("use llama_cpp_sys_2::*;")
        .rust_edition(bindgen::RustEdition::Edition2024)
        .allowlist_item("(foredraft|FOREDRAFT)_.*")
        .allowlist_recursively(false)
        .prepend_enum_name(false)
        .generate();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let bindings = bindings.expect("clang's messages say why");
    bindings.write_to_file(out.join("native.rs")).expect("OUT_DIR can be written to");
}
