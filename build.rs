//! Compiles the C and C++ files, and generates the C headers, which a test compares with `include/`. With the feature `peer`, also
//! compiles llama.cpp's side of the benchmarks.
#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a build script may panic")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

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
    check_environment();
    // Modules of backends must be built for the same version.
    let manifest = fs::read_to_string("Cargo.toml").expect("cargo runs it in the package's folder");
    let version = manifest.split_once("llama-cpp-sys-2 = \"=").and_then(|(_, rest)| rest.split_once('"'));
    println!("cargo:rustc-env=LLAMA_CPP_SYS_VERSION={}", version.expect("the version is pinned").0);
    // For tests that compile programs with llama.cpp's code.
    println!("cargo:rustc-env=LLAMA_CPP_SOURCES={}", llama_sources(installed).display());
    println!("cargo:rustc-env=LLAMA_CPP_LIBRARIES={}", installed.join("lib").display());
    // The library is never unloaded: `dlclose` would remove the code of running threads and of thread-exit handlers.
    let is = |what: &str, value: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).is_ok_and(|target| target == value);
    if !["macos", "ios", "windows"].iter().any(|os| is("OS", os)) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    let is_mingw = is("OS", "windows") && is("ENV", "gnu");
    if is("OS", "linux") && is("ENV", "gnu") {
        keep_globals("__cxa_atexit");
        wrap_allocation();
    }
    if is_mingw {
        keep_globals("atexit");
        link_on_mingw(installed);
    }
    // Calls the host's callbacks.
    cc::Build::new().file("src/ffi/call.c").compile("foredraft_call");
    compile_guard(installed);
    println!("cargo:rustc-check-cfg=cfg(own_barrier, own_kernels)");
    if is("OS", "linux") || is_mingw {
        replace_barrier(installed, is_mingw, is("ARCH", "x86_64") || is("ARCH", "aarch64"));
        if is("ARCH", "x86_64") {
            replace_kernels(installed, &X86_64_LEVELS);
        } else if is("ARCH", "aarch64") {
            replace_kernels(installed, &AARCH64_LEVELS);
            match_rounding(installed);
        }
    }
    if env::var_os("CARGO_FEATURE_PEER").is_some() {
        compile_peer(installed);
    }
    make_headers();
}

/// Warns about missing flags: RUSTFLAGS and CPATH in the environment replace those in `.cargo/config.toml`.
fn check_environment() {
    println!("cargo:rerun-if-env-changed=CPATH");
    let paths = env::var_os("CPATH").unwrap_or_default();
    let has = |header: &str| env::split_paths(&paths).any(|path| path.join(header).is_file());
    if env::var("TARGET").is_ok_and(|target| target.ends_with("-windows-gnu")) {
        assert!(has("winbase.h"), "CPATH has no scripts/gcc: see docs/building.md");
    } else if !has("amxtileintrin.h") {
        println!(
            "cargo:warning=CPATH has no scripts/gcc: built by GCC 12, it may end the process on processors with AMX"
        );
    }
}

/// Keeps the C++ globals of the shared library from being destroyed when the process ends: see `src/ffi/globals.c`. `function` registers their
/// destructors.
fn keep_globals(function: &str) {
    for object in cc::Build::new().file("src/ffi/globals.c").compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
}

/// Links ggml, whose archives have names on Windows that llama-cpp-sys-2 does not look for, and C++'s libraries into the DLL and the programs
/// of this package, so that a host needs no DLL of the compiler. (CXXSTDLIB in `.cargo/config.toml` keeps others from linking them as DLLs:
/// two copies of one crash.) After all other libraries, because llama.cpp calls them.
fn link_on_mingw(installed: &Path) {
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

/// Links the shared library's calls of malloc, calloc and realloc to `src/llama/allocation.cpp`. An object file and no archive, because the
/// linker needs its functions only after it has read Rust's archives.
fn wrap_allocation() {
    for object in cc::Build::new().cpp(true).std("c++17").file("src/llama/allocation.cpp").compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
        println!("cargo:rustc-link-arg-bins={}", object.display());
    }
    for function in ["malloc", "calloc", "realloc"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap={function}");
    }
}

/// Uses llama.cpp's private headers.
fn compile_guard(installed: &Path) {
    let source = llama_sources(installed);
    let mut build = kernel_compiler(&source);
    for folder in ["include", "src"] {
        build.flag("-isystem").flag(source.join(folder));
    }
    let files =
        ["guard", "placement", "sources/head", "kernels/attention_cost"].map(|part| format!("src/llama/{part}.cpp"));
    build.cpp(true).std("c++17").files(files).compile("foredraft_guard");
}

/// The folder of llama.cpp's sources, because not all headers are installed. CMake's cache has it.
fn llama_sources(installed: &Path) -> PathBuf {
    let cache = fs::read_to_string(installed.join("build/CMakeCache.txt")).expect("llama-cpp-sys-2 builds with CMake");
    let source = cache.lines().find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="));
    PathBuf::from(source.expect("CMake's cache has the source folder"))
}

/// A compiler with ggml's private headers, for any processor of the target.
fn kernel_compiler(source: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build.opt_level(3).extra_warnings(true).warnings(true);
    for folder in ["ggml/include", "ggml/src", "ggml/src/ggml-cpu"] {
        // Not `includes`: ggml's headers have warnings of their own.
        build.flag("-isystem").flag(source.join(folder));
    }
    if env::var_os("CI").is_some() {
        build.warnings_into_errors(true);
    }
    build
}

/// Replaces ggml's barrier: see `src/llama/kernels/barrier.c`. ggml calls its barrier in the file that defines it, where `--wrap` has no effect,
/// so the linker defines ggml's symbol as ours. A test that does not link the library has neither. On Windows, `scripts/gcc/winbase.h` makes
/// ggml's weak instead, so ours replaces it in every program.
fn replace_barrier(installed: &Path, is_mingw: bool, is_supported: bool) {
    let source = llama_sources(installed);
    let text = fs::read_to_string(source.join("ggml/src/ggml-cpu/ggml-cpu.c")).unwrap_or_default();
    let line_with = |start: &str| text.lines().find(|line| line.starts_with(start)).map(|line| format!("{line}\n"));
    let pool = || {
        let (begin, end) = ("struct ggml_threadpool {", "\n};");
        let fields = text.split_once(begin)?.1.split_once(end)?.0;
        let lines = [
            "#define GGML_CACHE_LINE ",
            "#define GGML_CACHE_ALIGN __attribute__",
            "#define GGML_THREADPOOL_N_THREADS_MASK ",
        ];
        let types = if is_mingw {
            ["typedef CONDITION_VARIABLE ", "typedef SRWLOCK "]
        } else {
            ["typedef pthread_cond_t ", "typedef pthread_mutex_t "]
        };
        let lines = lines.into_iter().chain(types).map(line_with).collect::<Option<String>>()?;
        Some(format!("{lines}{begin}{fields}{end}\n"))
    };
    let Some(pool) = pool().filter(|_| is_supported) else {
        println!("cargo:warning=ggml's barrier is not replaced: its thread pool is unknown for this target");
        return;
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("ggml_threadpool.h"), pool).expect("OUT_DIR can be written to");
    kernel_compiler(&source).include(&out).file("src/llama/kernels/barrier.c").compile("foredraft_barrier");
    if !is_mingw {
        replace_except_in_benchmarks("--defsym=ggml_barrier=DEFINED(foredraft_barrier)?foredraft_barrier:0");
    }
    println!("cargo:rustc-cfg=own_barrier");
}

/// Replaces a function in the shared library, the tests and the examples, but not in benchmarks, which measure llama.cpp next to the shared
/// library.
fn replace_except_in_benchmarks(option: &str) {
    for targets in ["cdylib", "tests", "examples", "bins"] {
        println!("cargo:rustc-link-arg-{targets}=-Wl,{option}");
    }
}

/// The instructions of each level of kernels.
type Level = (&'static str, &'static [&'static str]);
const X86_64_LEVELS: [Level; 3] = [
    ("avx2", &["-mavx2", "-mfma", "-mf16c", "-mbmi2"]),
    ("avx_vnni", &["-mavx2", "-mfma", "-mf16c", "-mbmi2", "-mavxvnni", "-DFOREDRAFT_AVX_VNNI"]),
    (
        "avx512_vnni",
        &[
            "-mavx2",
            "-mfma",
            "-mf16c",
            "-mbmi2",
            "-mavx512f",
            "-mavx512bw",
            "-mavx512vl",
            "-mavx512dq",
            "-mavx512vnni",
            "-DFOREDRAFT_AVX512_VNNI",
        ],
    ),
];
const AARCH64_LEVELS: [Level; 3] = [
    ("neon", &["-march=armv8-a", "-DFOREDRAFT_NEON"]),
    ("neon_dotprod", &["-march=armv8.2-a+dotprod", "-DFOREDRAFT_NEON", "-DFOREDRAFT_DOTPROD"]),
    ("neon_i8mm", &["-march=armv8.2-a+dotprod+i8mm", "-DFOREDRAFT_NEON", "-DFOREDRAFT_DOTPROD", "-DFOREDRAFT_I8MM"]),
];

/// `llama_kv_cache_context::set_input_kq_mask`.
const SET_MASK: &str = "_ZNK22llama_kv_cache_context17set_input_kq_maskEP11ggml_tensorPK12llama_ubatchb";

/// The functions of the C library that `src/llama/kernels/elementary.cpp` replaces.
const ELEMENTARY: [&str; 11] =
    ["sinf", "cosf", "sincosf", "tanhf", "erff", "expf", "exp2f", "expm1f", "logf", "log2f", "powf"];

/// Replaces ggml's products and attention, and the C library's functions of floats: see `src/llama/kernels/mod.rs`.
fn replace_kernels(installed: &Path, levels: &[Level]) {
    let source = llama_sources(installed);
    // The seam precedes the levels, because GNU's linker takes from an archive only what an earlier one calls.
    kernel_compiler(&source)
        .cpp(true)
        .std("c++17")
        .files(["seam", "panels", "making", "layout_cost"].map(|part| format!("src/llama/kernels/{part}.cpp")))
        .compile("foredraft_seam");
    for (level, instructions) in levels {
        let mut build = kernel_compiler(&source);
        for flag in *instructions {
            build.flag(flag);
        }
        // Each sum has the same operations at all levels. GCC 12 takes its own intrinsics for uninitialized (bug 105593).
        build.cpp(true).std("c++17").flag_if_supported("-ffp-contract=off");
        build.flag("-Wno-uninitialized").flag_if_supported("-Wno-maybe-uninitialized");
        build.define("FOREDRAFT_LEVEL", *level).file("src/llama/kernels/level.cpp");
        build.compile(&format!("foredraft_{level}"));
    }
    let mut order = kernel_compiler(&source);
    for folder in ["include", "src"] {
        order.flag("-isystem").flag(source.join(folder));
    }
    order.cpp(true).std("c++17").file("src/llama/kernels/order.cpp").compile("foredraft_order");
    kernel_compiler(&source)
        .cpp(true)
        .std("c++17")
        .flag_if_supported("-ffp-contract=off")
        .file("src/llama/kernels/elementary.cpp")
        .compile("foredraft_elementary");
    // This archive follows the seam's, because the linker takes its functions only where `--wrap` is missing.
    kernel_compiler(&source)
        .cpp(true)
        .std("c++17")
        .file("src/llama/kernels/unwrapped.cpp")
        .compile("foredraft_unwrapped");
    for function in [SET_MASK, "ggml_compute_forward_mul_mat_tiled", "ggml_compute_forward_mul_mat_id_tiled"]
        .into_iter()
        .chain(ELEMENTARY)
    {
        replace_except_in_benchmarks(&format!("--wrap={function}"));
    }
    println!("cargo:rustc-cfg=own_kernels");
}

/// Makes functions of ggml round as they do on x86-64: see `src/llama/kernels/rounding.cpp`.
fn match_rounding(installed: &Path) {
    let source = llama_sources(installed);
    let mut build = kernel_compiler(&source);
    build.cpp(true).std("c++17").flag_if_supported("-ffp-contract=off");
    build.files(["rounding", "rope"].map(|part| format!("src/llama/kernels/{part}.cpp")));
    build.compile("foredraft_rounding");
    for function in
        ["ggml_vec_soft_max_f32", "ggml_vec_cvar_f32", "ggml_vec_silu_f32", "ggml_vec_swiglu_f32", "quantize_row_q8_0"]
    {
        replace_except_in_benchmarks(&format!("--wrap={function}"));
    }
}

/// The archive is only put on the linker's path. Only `benches/peer/mod.rs` links it.
fn compile_peer(installed: &Path) {
    let source = llama_sources(installed);
    let includes = ["common", "include", "ggml/include", "vendor"].map(|folder| source.join(folder));
    // Optimised like llama.cpp, because the linker keeps only one copy of the templates that both instantiate.
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(3).includes(includes);
    build.files(["process", "ngram", "generation"].map(|part| format!("benches/peer/{part}.cpp")));
    build.cargo_metadata(false).compile("foredraft_peer");
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR").expect("cargo sets it"));
}

/// The files of `src/ffi` that each header declares.
const HEADERS: [(&str, &[&str]); 2] =
    [("foredraft", &["types", "engine", "requests", "callbacks"]), ("rpcserver", &["legacy"])];

fn make_headers() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for (name, parts) in HEADERS {
        let settings = |file: PathBuf| cbindgen::Config::from_file(file).expect("cbindgen's settings are valid");
        let mut config = settings(root.join("cbindgen.toml"));
        let own = settings(root.join(format!("src/ffi/{name}.toml")));
        (config.header, config.include_guard, config.export) = (own.header, own.include_guard, own.export);
        (config.includes, config.sys_includes) = (own.includes, own.sys_includes);
        config.after_includes = own.after_includes;
        if name == "foredraft" {
            let version = |part: &str| env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
            let versions = ["MAJOR", "MINOR", "PATCH"]
                .map(|part| format!("#define FOREDRAFT_VERSION_{part} {}\n", version(part)))
                .concat();
            let after = config.after_includes.take().unwrap_or_default();
            config.after_includes = Some(format!("{versions}{after}"));
        }
        let generated = |config: cbindgen::Config, parts: &[&str]| {
            let builder = cbindgen::Builder::new().with_config(config);
            let builder =
                parts.iter().fold(builder, |builder, part| builder.with_src(root.join(format!("src/ffi/{part}.rs"))));
            let mut header = Vec::new();
            builder.generate().expect("src/ffi has a C interface").write(&mut header);
            String::from_utf8(header).expect("cbindgen writes UTF-8")
        };
        let mut header = generated(config.clone(), parts);
        if name == "rpcserver" {
            let inner = cbindgen::Config {
                header: None,
                include_guard: None,
                sys_includes: Vec::new(),
                after_includes: None,
                cpp_compat: false,
                ..config
            };
            let (declarations, end) = header.rsplit_once("#ifdef __cplusplus").expect("the end of extern \"C\"");
            let (others, all) = (generated(inner, &["legacy_added"]), "FOREDRAFT_RPCSERVER_ALL");
            header = format!(
                "{declarations}#ifdef {all}\n\n{}\n\n#endif // {all}\n\n#ifdef __cplusplus{end}",
                others.trim()
            );
        }
        fs::write(out.join(format!("{name}.h")), c90(&header)).expect("OUT_DIR is writable");
    }
}

/// Converts cbindgen's output to C90: no `//` comments, and no comma after the last enumerator.
fn c90(header: &str) -> String {
    let lines: Vec<&str> = header.lines().collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let ends_enum = lines.get(index + 1).is_some_and(|next| next.starts_with('}'));
        let line = if ends_enum { line.strip_suffix(',').unwrap_or(line) } else { line };
        match line.split_once("// ") {
            Some((code, comment)) if code.is_empty() || code.starts_with(['#', '}']) => {
                text += &format!("{code}/* {comment} */");
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}
