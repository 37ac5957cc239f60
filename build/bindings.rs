//! Rust's declarations of our C and C++ functions, made of their headers by bindgen.

use std::env;
use std::path::{Path, PathBuf};

/// Makes `native.rs` of the headers of `src/llama`, and `call.rs` of that of `src/ffi`.
pub fn make_bindings(llama_sources: &Path) {
    // The types of llama.cpp and ggml are those of llama-cpp-sys-2.
    let includes = ["include", "ggml/include"].map(|folder| format!("-I{}", llama_sources.join(folder).display()));
    let native = ["src/llama/native.h", "src/llama/kernels/native.h"];
    generate("native.rs", builder(&native).clang_args(includes).raw_line("use llama_cpp_sys_2::*;"));
    generate("call.rs", builder(&["src/ffi/call.h"]));
}

fn builder(headers: &[&str]) -> bindgen::Builder {
    bindgen::Builder::default()
        .headers(headers.iter().copied())
        .rust_edition(bindgen::RustEdition::Edition2024)
        .allowlist_item("(foredraft|FOREDRAFT)_.*")
        .allowlist_recursively(false)
        .prepend_enum_name(false)
}

fn generate(name: &str, builder: bindgen::Builder) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let bindings = builder.generate().expect("clang's messages say why");
    bindings.write_to_file(out.join(name)).expect("OUT_DIR can be written to");
}
