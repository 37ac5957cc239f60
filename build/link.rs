//! The linker's arguments. Cargo hands those of a package to no dependent one.

use std::path::Path;

/// `llama_kv_cache_context::set_input_kq_mask`.
pub const SET_MASK: &str = "_ZNK22llama_kv_cache_context17set_input_kq_maskEP11ggml_tensorPK12llama_ubatchb";

/// Keeps the C++ globals of the shared library from being destroyed when the process ends: see `src/ffi/globals.c`. `function` registers their
/// destructors.
pub fn keep_globals(function: &str) {
    for object in cc::Build::new().file("src/ffi/globals.c").compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
}

/// Links the shared library's calls of malloc, calloc and realloc to `src/llama/allocation.cpp`. The linker gets an object file, because it
/// needs these functions only after it has read Rust's archives.
pub fn wrap_allocation() {
    for object in cc::Build::new().cpp(true).std("c++17").file("src/llama/allocation.cpp").compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
        println!("cargo:rustc-link-arg-bins={}", object.display());
    }
    for function in ["malloc", "calloc", "realloc"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap={function}");
    }
}

/// Links ggml, whose archives have names on Windows that llama-cpp-sys-2 does not look for, and C++'s libraries into the DLL and the
/// programs of this package, so that a host needs no DLL of the compiler. (CXXSTDLIB in `.cargo/config.toml` keeps others from linking
/// them as DLLs: two copies of one crash.) They come after all other libraries, because llama.cpp calls them.
pub fn link_on_mingw(installed: &Path) {
    // Only llama.cpp calls it, and GNU's linker reads ours first.
    println!("cargo:rustc-link-arg=-Wl,-u,__wrap_{SET_MASK}");
    println!("cargo:rustc-link-arg=-Wl,--start-group");
    for archive in ["ggml.a", "ggml-base.a", "ggml-cpu.a", "ggml-rpc.a", "ggml-vulkan.a"] {
        let archive = installed.join("lib").join(archive);
        if archive.is_file() {
            println!("cargo:rustc-link-arg={}", archive.display());
        }
    }
    println!("cargo:rustc-link-arg=-Wl,-Bstatic");
    for library in ["stdc++", "gcc_eh", "gcc", "winpthread", "mingwex", "mingw32", "moldname", "msvcrt"] {
        println!("cargo:rustc-link-arg=-l{library}");
    }
    println!("cargo:rustc-link-arg=-Wl,-Bdynamic");
    for library in ["ws2_32", "synchronization", "advapi32", "user32", "kernel32"] {
        println!("cargo:rustc-link-arg=-l{library}");
    }
    println!("cargo:rustc-link-arg=-Wl,--end-group");
}

/// Replaces a function in the shared library, the tests and the examples, but not in benchmarks, which measure llama.cpp next to the shared
/// library.
pub fn replace_except_in_benchmarks(option: &str) {
    for targets in ["cdylib", "tests", "examples", "bins"] {
        println!("cargo:rustc-link-arg-{targets}=-Wl,{option}");
    }
}
