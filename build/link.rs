//! The linker's options. Cargo hands those of a package to no dependent one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The options of the programs and libraries that cargo links, and of those that `scripts/install.sh` links: it reads them in `linker.txt`.
///
/// Each line of `linker.txt` is a kind and an option: `program` for a program that links the archive, `shared` for the installed shared library,
/// `rename` for a function of the C library whose calls the archive renames, because its program keeps the C library's.
#[derive(Default)]
pub struct LinkerOptions(String);

impl LinkerOptions {
    /// Writes `linker.txt`.
    pub fn write(self) {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        fs::write(out.join("linker.txt"), self.0).expect("OUT_DIR can be written to");
    }

    fn add(&mut self, kind: &str, option: &str) {
        self.0 += &format!("{kind} {option}\n");
    }

    /// An option of the shared library alone.
    fn add_shared(&mut self, option: &str) {
        println!("cargo:rustc-cdylib-link-arg={option}");
        self.add("shared", option);
    }

    /// Keeps the C++ globals of the shared library from being destroyed when the process ends: see `src/ffi/globals.c`. `function` registers
    /// their destructors.
    pub fn keep_globals(&mut self, function: &str) {
        for object in cc::Build::new().file("src/ffi/globals.c").compile_intermediates() {
            self.add_shared(&object.display().to_string());
        }
        self.add_shared(&format!("-Wl,--wrap={function}"));
    }

    /// Links the shared library's calls of malloc, calloc and realloc to `file`. The linker gets an object file, because it
    /// needs these functions only after it has read Rust's archives.
    pub fn wrap_allocation(&mut self, file: &str) {
        let objects = cc::Build::new().cpp(true).std("c++17").file(file).compile_intermediates();
        let objects = objects.iter().map(|object| object.display().to_string());
        let wraps = ["malloc", "calloc", "realloc"].map(|function| format!("-Wl,--wrap={function}"));
        for option in objects.chain(wraps) {
            println!("cargo:rustc-link-arg-bins={option}");
            self.add_shared(&option);
        }
    }

    /// Replaces ggml's barrier: see `compile_barrier` in `crates/native/build/kernels.rs`.
    pub fn replace_barrier(&mut self) {
        link_except_in_benchmarks("--defsym=ggml_barrier=DEFINED(foredraft_barrier)?foredraft_barrier:0");
        self.add("program", "-Wl,-u,foredraft_barrier");
        self.add("program", "-Wl,--defsym=ggml_barrier=foredraft_barrier");
    }

    /// Replaces functions of llama.cpp and ggml, named with spaces between them.
    pub fn replace_functions(&mut self, functions: &str) {
        for function in functions.split_whitespace() {
            wrap(function);
            self.add("program", &format!("-Wl,--wrap={function}"));
        }
    }

    /// Replaces functions of the C library.
    pub fn replace_elementary(&mut self, functions: &str) {
        for function in functions.split_whitespace() {
            wrap(function);
            self.add("rename", function);
        }
    }
}

/// Replaces a function by `__wrap_` and its name. GNU's linker reads our archives before llama.cpp's, which call the function, so it is told to
/// look for ours.
fn wrap(function: &str) {
    link_except_in_benchmarks(&format!("--wrap={function}"));
    link_except_in_benchmarks(&format!("--undefined=__wrap_{function}"));
}

/// Links the shared library, the tests, the examples and the programs with an option, but not benchmarks, which measure llama.cpp next to the
/// shared library.
fn link_except_in_benchmarks(option: &str) {
    for targets in ["cdylib", "tests", "examples", "bins"] {
        println!("cargo:rustc-link-arg-{targets}=-Wl,{option}");
    }
}

/// Links ggml, whose archives have names on Windows that llama-cpp-sys-2 does not look for, and C++'s libraries into the DLL and the
/// programs of this package, so that a host needs no DLL of the compiler. (CXXSTDLIB in `.cargo/config.toml` keeps others from linking
/// them as DLLs: two copies of one crash.) They come after all other libraries, because llama.cpp calls them.
pub fn link_on_mingw(installed: &Path) {
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
