//! Backends of GPUs as modules: shared libraries that are used where they are present, so that one library serves machines with and without a GPU.
//!
//! A module is `libforedraft-NAME.so` (on Windows `foredraft-NAME.dll`) beside this library, or named by the variable `FOREDRAFT_BACKENDS` (paths as
//! in `PATH`; an empty value: none). It has one of ggml's backends with ggml's base library, and exports `ggml_backend_init`, `ggml_log_set` and
//! `foredraft_backend_version`, which must be the version of llama-cpp-sys-2 that this library is linked with, because both share ggml's structures
//! (`scripts/gpu.sh`).

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::error::Error as _;
use std::ffi::{CStr, OsString, c_char, c_void};
use std::path::{Path, PathBuf};

use foredraft_native::LLAMA_CPP_SYS_VERSION;
use libloading::{Library, Symbol};
use llama_cpp_sys_2 as sys;
use once_cell::sync::OnceCell;

use super::module::BackendModule;
use crate::{log, platform};

/// The modules that are looked for beside the library.
const NAMES: [&str; 5] = ["vulkan", "cuda", "hip", "sycl", "opencl"];

static MODULES: OnceCell<Vec<BackendModule>> = OnceCell::new();

/// The modules that were named or looked for. Known once llama.cpp is started.
pub fn modules() -> &'static [BackendModule] {
    MODULES.get().map(Vec::as_slice).unwrap_or_default()
}

/// Loads all modules. Called once, before devices are listed.
pub(super) fn load_all() {
    let (paths, named) = paths(std::env::var_os("FOREDRAFT_BACKENDS"), own_folder());
    let of = |path: PathBuf| {
        let is_found = path.is_file();
        BackendModule { use_or_error: (named || is_found).then(|| load(&path)), path }
    };
    MODULES.set(paths.into_iter().map(of).collect()).ok();
}

/// The modules to load, and whether the host has named them.
fn paths(variable: Option<OsString>, folder: Option<PathBuf>) -> (Vec<PathBuf>, bool) {
    match (variable, folder) {
        (Some(list), _) => (std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect(), true),
        (None, Some(folder)) => (NAMES.map(|name| folder.join(file_name(name))).into(), false),
        (None, None) => (Vec::new(), false),
    }
}

/// The file of a module.
fn file_name(module: &str) -> String {
    format!("{DLL_PREFIX}foredraft-{module}{DLL_SUFFIX}")
}

/// The folder of the file with this code.
fn own_folder() -> Option<PathBuf> {
    // A program's name is its first argument.
    let file = platform::own_file().filter(|name| name.is_absolute()).or_else(|| std::env::current_exe().ok());
    file?.parent().map(Path::to_path_buf)
}

/// Loads a module and registers its backend.
fn load(path: &Path) -> Result<(), String> {
    register(path).map_err(|why| format!("{}: not used: {why}", path.display()))
}

fn register(path: &Path) -> Result<(), String> {
    // SAFETY: a module is ours (its version is compared before anything else of it is called), and stays loaded. The functions have the types that
    // `scripts/gpu.sh` gives them, and strings are NUL-terminated.
    unsafe {
        let library = Library::new(path).map_err(|error| match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })?;
        // Other threads may use what even another library has begun.
        let library: &'static Library = Box::leak(Box::new(library));
        let version: Symbol<unsafe extern "C" fn() -> *const c_char> =
            library.get(b"foredraft_backend_version\0").map_err(|_| "it has no foredraft_backend_version")?;
        let version = CStr::from_ptr(version()).to_string_lossy();
        if version != LLAMA_CPP_SYS_VERSION {
            let ours = LLAMA_CPP_SYS_VERSION;
            return Err(format!("it was built for llama-cpp-sys-2 {version}, and this library for {ours}"));
        }
        let set_log: Result<Symbol<unsafe extern "C" fn(sys::ggml_log_callback, *mut c_void)>, _> =
            library.get(b"ggml_log_set\0");
        if let Ok(set_log) = set_log {
            set_log(Some(log::from_llama), std::ptr::null_mut());
        }
        let begin: Symbol<unsafe extern "C" fn() -> sys::ggml_backend_reg_t> =
            library.get(b"ggml_backend_init\0").map_err(|_| "it has no ggml_backend_init")?;
        let (backend, errors) = log::collecting(|| begin());
        if backend.is_null() {
            return Err(if errors.is_empty() { "its backend does not start".into() } else { errors.join("; ") });
        }
        sys::ggml_backend_register(backend);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{file_name, load, own_folder, paths};

    #[test]
    fn modules_are_named_or_beside_the_library() {
        let beside = |name: &str| PathBuf::from("/lib").join(file_name(name));
        let (found, named) = paths(None, Some("/lib".into()));
        assert_eq!((&found[..2], named), (&[beside("vulkan"), beside("cuda")][..], false));
        let expected = if cfg!(windows) { "foredraft-vulkan.dll" } else { "libforedraft-vulkan.so" };
        assert_eq!(file_name("vulkan"), expected);
        let list = std::env::join_paths(["/a.so", "/b/c.so"]).expect("a list");
        let (found, named) = paths(Some(list), Some("/lib".into()));
        assert_eq!((found, named), (vec!["/a.so".into(), "/b/c.so".into()], true));
        assert_eq!(paths(Some("".into()), Some("/lib".into())), (vec![], true));
        assert!(own_folder().is_some_and(|folder| folder.is_absolute() && folder.is_dir()));
    }

    #[test]
    fn a_module_that_cannot_be_used_says_why() {
        let of = |path: &str| load(path.as_ref()).expect_err("it is no module");
        let missing = of("/missing/libforedraft-vulkan.so");
        let why = missing.strip_prefix("/missing/libforedraft-vulkan.so: not used: ").expect("the module and why");
        assert!(why.contains("No such file") || why.contains("os error 126"), "{why}");
        assert!(of("/a\0b").contains("not used: "));
        // A library, but no module.
        let other = if cfg!(windows) { "ntdll.dll" } else { "libc.so.6" };
        assert_eq!(of(other), format!("{other}: not used: it has no foredraft_backend_version"));
    }
}
