//! llama.cpp's side of the benchmarks.

use std::env;
use std::path::Path;

/// The archive is only put on the linker's path. Only `benches/peer/mod.rs` links it.
pub fn compile_peer(source: &Path) {
    let includes = ["common", "include", "ggml/include", "vendor"].map(|folder| source.join(folder));
    // Optimised like llama.cpp, because the linker keeps only one copy of the templates that both instantiate.
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(3).includes(includes);
    build.file("benches/peer/ngram.cpp");
    build.cargo_metadata(false).compile("foredraft_peer");
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR").expect("cargo sets it"));
}
