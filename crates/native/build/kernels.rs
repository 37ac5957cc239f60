//! Compiles the C and C++ files, which use ggml's and llama.cpp's headers.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

/// `llama_kv_cache_context::set_input_kq_mask`.
pub const SET_MASK: &str = "_ZNK22llama_kv_cache_context17set_input_kq_maskEP11ggml_tensorPK12llama_ubatchb";

/// The functions of the C library that `kernels/elementary.cpp` replaces.
pub const ELEMENTARY: [&str; 11] =
    ["sinf", "cosf", "sincosf", "tanhf", "erff", "expf", "exp2f", "expm1f", "logf", "log2f", "powf"];

/// The functions of ggml that `kernels/rounding.cpp` replaces.
pub const ROUNDING: [&str; 5] =
    ["ggml_vec_soft_max_f32", "ggml_vec_cvar_f32", "ggml_vec_silu_f32", "ggml_vec_swiglu_f32", "quantize_row_q8_0"];

/// The instructions of each level of kernels.
pub type Level = (&'static str, &'static [&'static str]);
pub const X86_64_LEVELS: [Level; 3] = [
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
pub const AARCH64_LEVELS: [Level; 3] = [
    ("neon", &["-march=armv8-a", "-DFOREDRAFT_NEON"]),
    ("neon_dotprod", &["-march=armv8.2-a+dotprod", "-DFOREDRAFT_NEON", "-DFOREDRAFT_DOTPROD"]),
    ("neon_i8mm", &["-march=armv8.2-a+dotprod+i8mm", "-DFOREDRAFT_NEON", "-DFOREDRAFT_DOTPROD", "-DFOREDRAFT_I8MM"]),
];

/// The folder of llama.cpp's sources, because not all headers are installed. CMake's cache has it.
pub fn llama_sources(installed: &Path) -> PathBuf {
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

/// Clippy links nothing, and has another folder than a build, so it needs no archives.
fn is_clippy() -> bool {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").map(PathBuf::from);
    wrapper.is_some_and(|wrapper| wrapper.file_stem().is_some_and(|name| name == "clippy-driver"))
}

/// Compiles an archive that the crate holds.
pub fn compile_archive(build: &mut cc::Build, name: &str) {
    if !is_clippy() {
        build.compile(name);
    }
}

/// Uses llama.cpp's private headers.
pub fn compile_guard(source: &Path) {
    let mut build = kernel_compiler(source);
    for folder in ["include", "src", "tools/mtmd"] {
        build.flag("-isystem").flag(source.join(folder));
    }
    let files = ["guard", "media", "placement", "sources/head", "sources/requantized", "kernels/attention_cost"]
        .map(|part| format!("{part}.cpp"));
    compile_archive(build.cpp(true).std("c++17").files(files), "foredraft_guard");
}

/// Compiles what replaces ggml's barrier: see `kernels/barrier.c`. ggml calls its barrier in the file that defines it, where `--wrap` has no effect,
/// so the linker defines ggml's symbol as ours (`build/link.rs` of the library). A test that does not link the library has neither. On Windows, `scripts/gcc/winbase.h` makes
/// ggml's weak instead, so ours replaces it in every program.
pub fn compile_barrier(source: &Path, is_mingw: bool, is_supported: bool) {
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
    compile_archive(kernel_compiler(source).include(&out).file("kernels/barrier.c"), "foredraft_barrier");
    println!("cargo:barrier=own");
}

/// Compiles the kernels of a level, which takes a minute or more, unless its objects are newer than what they are made of.
fn level_objects(source: &Path, (level, instructions): Level) -> Vec<PathBuf> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut build = kernel_compiler(source);
    for flag in instructions {
        build.flag(flag);
    }
    // Each sum has the same operations at all levels. GCC 12 takes its own intrinsics for uninitialized (bug 105593).
    build.cpp(true).std("c++17").flag_if_supported("-ffp-contract=off");
    build.flag("-Wno-uninitialized").flag_if_supported("-Wno-maybe-uninitialized");
    // All levels are made of the same file, so each needs a folder of its own.
    let folder = out.join(level);
    build.define("FOREDRAFT_LEVEL", level).file("kernels/level.cpp").out_dir(&folder);
    // The first line is the compiler with its options, the others are the objects.
    let (stamp, compiler) = (folder.join("compiled.txt"), build.get_compiler());
    let command = format!("{:?} {:?} {:?}", compiler.path(), compiler.args(), env::var_os("CPATH"));
    let compiled = fs::read_to_string(&stamp).unwrap_or_default();
    let mut lines = compiled.lines();
    if lines.next() == Some(&command) && modified(&stamp) > newest_source() {
        return lines.map(PathBuf::from).collect();
    }
    let start = SystemTime::now();
    let objects = build.compile_intermediates();
    let lines = objects.iter().map(|object| object.display().to_string());
    let lines = std::iter::once(command).chain(lines).collect::<Vec<_>>().join("\n");
    fs::write(&stamp, lines).expect("OUT_DIR can be written to");
    let file = File::options().write(true).open(&stamp).and_then(|file| file.set_modified(start));
    file.expect("OUT_DIR can be written to");
    objects
}

/// The last change of a file. `None`: there is no such file.
fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|about| about.modified()).ok()
}

/// The last change of the sources of a level: `level.cpp` and all headers beside it.
fn newest_source() -> Option<SystemTime> {
    let files = fs::read_dir("kernels").expect("cargo runs it in the package's folder");
    let files = files.map(|entry| entry.expect("the folder can be read").path());
    let is_source =
        |file: &PathBuf| file.ends_with("level.cpp") || file.extension().is_some_and(|ending| ending == "h");
    files.filter(is_source).map(|file| modified(&file)).max().flatten()
}

/// Compiles what replaces ggml's products and attention, and the C library's functions of floats: see `kernels/mod.rs` of the crate `llama`.
pub fn compile_kernels(source: &Path, levels: &[Level]) {
    // The seam precedes the levels, because GNU's linker takes from an archive only what an earlier one calls.
    let seam =
        ["seam", "states", "copies", "panels", "making", "layout_cost"].map(|part| format!("kernels/{part}.cpp"));
    compile_archive(kernel_compiler(source).cpp(true).std("c++17").files(seam), "foredraft_seam");
    let levels = if is_clippy() { &[] } else { levels };
    // Each level takes a minute or more, so they are compiled at the same time.
    let objects: Vec<Vec<PathBuf>> = thread::scope(|scope| {
        let compiling: Vec<_> = levels.iter().map(|level| scope.spawn(|| level_objects(source, *level))).collect();
        compiling.into_iter().map(|thread| thread.join().expect("the compiler's messages say why")).collect()
    });
    for ((level, _), objects) in levels.iter().zip(objects) {
        cc::Build::new().cpp(true).objects(objects).compile(&format!("foredraft_{level}"));
    }
    let mut order = kernel_compiler(source);
    for folder in ["include", "src"] {
        order.flag("-isystem").flag(source.join(folder));
    }
    order.cpp(true).std("c++17").define("FOREDRAFT_SET_MASK", SET_MASK);
    compile_archive(order.file("kernels/order.cpp"), "foredraft_order");
    let mut elementary = kernel_compiler(source);
    elementary.cpp(true).std("c++17").flag_if_supported("-ffp-contract=off");
    compile_archive(elementary.file("kernels/elementary.cpp"), "foredraft_elementary");
    println!("cargo:kernels=own");
}

/// Compiles functions of ggml that round as they do on x86-64: see `kernels/rounding.cpp`.
pub fn compile_rounding(source: &Path) {
    let mut build = kernel_compiler(source);
    build.cpp(true).std("c++17").flag_if_supported("-ffp-contract=off");
    build.files(["rounding", "rope"].map(|part| format!("kernels/{part}.cpp")));
    compile_archive(&mut build, "foredraft_rounding");
}
