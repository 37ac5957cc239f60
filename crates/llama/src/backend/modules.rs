//! Backends of GPUs as modules: shared libraries that are used where they are present, so that one library serves machines with and without a GPU.
//!
//! A module is `libforedraft-NAME.so` beside this library, or named by the variable `FOREDRAFT_BACKENDS` (paths separated by `:`; an empty value:
//! none). It has one of ggml's backends with ggml's base library, and exports `ggml_backend_init`, `ggml_log_set` and `foredraft_backend_version`,
//! which must be the version of llama-cpp-sys-2 that this library is linked with, because both share ggml's structures (`scripts/gpu.sh`).

use std::ffi::{CStr, CString, OsString, c_char, c_void};
use std::path::{Path, PathBuf};

use foredraft_native::LLAMA_CPP_SYS_VERSION;
use llama_cpp_sys_2 as sys;
use once_cell::sync::OnceCell;

use super::module::BackendModule;
use crate::log;

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
        (None, Some(folder)) => (NAMES.map(|name| folder.join(format!("libforedraft-{name}.so"))).into(), false),
        (None, None) => (Vec::new(), false),
    }
}

/// The folder of the file with this code.
fn own_folder() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `info` is writable, and the address is one of this file. The name is NUL-terminated.
    let name = unsafe {
        if libc::dladdr(own_folder as *const c_void, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    let name = PathBuf::from(name.to_string_lossy().into_owned());
    // A program's name is its first argument.
    let file = if name.is_absolute() { Some(name) } else { std::env::current_exe().ok() };
    file?.parent().map(Path::to_path_buf)
}

/// Loads a module and registers its backend.
fn load(path: &Path) -> Result<(), String> {
    let failed = |why: &str| format!("{}: not used: {why}", path.display());
    let c_path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| failed("its path contains NUL"))?;
    // SAFETY: a module is ours (its version is compared before anything else of it is called), and stays loaded. The strings are NUL-terminated,
    // and the functions have the types that `scripts/gpu.sh` gives them.
    unsafe {
        let handle = libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            return Err(failed(&CStr::from_ptr(libc::dlerror()).to_string_lossy()));
        }
        let version = libc::dlsym(handle, c"foredraft_backend_version".as_ptr());
        if version.is_null() {
            return Err(failed("it has no foredraft_backend_version"));
        }
        let version = std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(version);
        let version = CStr::from_ptr(version()).to_string_lossy();
        if version != LLAMA_CPP_SYS_VERSION {
            let ours = LLAMA_CPP_SYS_VERSION;
            return Err(failed(&format!("it was built for llama-cpp-sys-2 {version}, and this library for {ours}")));
        }
        let set_log = libc::dlsym(handle, c"ggml_log_set".as_ptr());
        if !set_log.is_null() {
            let set_log =
                std::mem::transmute::<*mut c_void, extern "C" fn(sys::ggml_log_callback, *mut c_void)>(set_log);
            set_log(Some(log::from_llama), std::ptr::null_mut());
        }
        let (registered, errors) = log::collecting(|| sys::ggml_backend_load(c_path.as_ptr()));
        if registered.is_null() {
            return Err(failed(&errors.join("; ")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{load, own_folder, paths};

    #[test]
    fn modules_are_named_or_beside_the_library() {
        let beside = |name: &str| PathBuf::from(format!("/lib/libforedraft-{name}.so"));
        let (found, named) = paths(None, Some("/lib".into()));
        assert_eq!((&found[..2], named), (&[beside("vulkan"), beside("cuda")][..], false));
        let (found, named) = paths(Some("/a.so:/b/c.so".into()), Some("/lib".into()));
        assert_eq!((found, named), (vec!["/a.so".into(), "/b/c.so".into()], true));
        assert_eq!(paths(Some("".into()), Some("/lib".into())), (vec![], true));
        assert!(own_folder().is_some_and(|folder| folder.is_absolute() && folder.is_dir()));
    }

    #[test]
    fn a_module_that_cannot_be_used_says_why() {
        let of = |path: &str| load(path.as_ref()).expect_err("it is no module");
        assert!(of("/missing/libforedraft-vulkan.so").contains("/missing/libforedraft-vulkan.so: not used: "));
        assert!(of("/a\0b").contains("NUL"));
        // A library, but no module.
        let libc = of("libc.so.6");
        assert_eq!(libc, "libc.so.6: not used: it has no foredraft_backend_version");
    }
}
