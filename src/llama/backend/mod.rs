//! Process-wide state: starting llama.cpp, loading ggml's backends, listing devices.

pub(super) mod devices;
pub(super) mod rpc;

#[cfg(feature = "portable")]
use std::ffi::CString;
use std::ffi::{CStr, c_char};
use std::sync::Once;

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use crate::llama::log;

static START: Once = Once::new();
static NUMA: Once = Once::new();

/// Starts llama.cpp. Later calls do nothing. Every constructor in this module calls it first.
pub fn start() {
    START.call_once(|| {
        // SAFETY: `from_llama` is a function of this library, which is never unloaded. `Once` keeps other threads out of llama.cpp
        // until this is done.
        unsafe {
            sys::llama_log_set(Some(log::from_llama), std::ptr::null_mut());
            #[cfg(feature = "portable")]
            load_backends();
            sys::llama_backend_init();
        }
    });
}

/// Loads the modules of ggml's CPU variants and keeps the best one: from `FOREDRAFT_BACKENDS`, from the folder of this library, or
/// from the build folder.
#[cfg(feature = "portable")]
fn load_backends() {
    let mut folders: Vec<std::path::PathBuf> = Vec::new();
    folders.extend(std::env::var_os("FOREDRAFT_BACKENDS").map(Into::into));
    folders.extend(own_folder());
    folders.extend(sys::BACKENDS_DIR.map(Into::into));
    for folder in folders {
        let Ok(path) = CString::new(folder.to_string_lossy().as_bytes()) else { continue };
        // SAFETY: a NUL-terminated path. A folder without modules loads nothing.
        unsafe {
            sys::ggml_backend_load_all_from_path(path.as_ptr());
            if sys::ggml_backend_dev_count() > 0 {
                return;
            }
        }
    }
}

/// The folder that this library was loaded from.
#[cfg(feature = "portable")]
fn own_folder() -> Option<std::path::PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` looks up the address of a function of this library and fills `info`. Its strings live as long as the library
    // is loaded.
    unsafe {
        if libc::dladdr(start as *const std::ffi::c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        let name = info.assume_init().dli_fname;
        if name.is_null() {
            return None;
        }
        let path = std::path::PathBuf::from(CStr::from_ptr(name).to_string_lossy().into_owned());
        path.parent().map(Into::into)
    }
}

/// Sets the NUMA strategy of the process. Only the first call has an effect.
pub fn set_numa(strategy: Numa) {
    start();
    let strategy = match strategy {
        Numa::Distribute => sys::GGML_NUMA_STRATEGY_DISTRIBUTE,
        Numa::Isolate => sys::GGML_NUMA_STRATEGY_ISOLATE,
        Numa::Numactl => sys::GGML_NUMA_STRATEGY_NUMACTL,
    };
    // SAFETY: llama.cpp is started, and `Once` makes this the only call.
    NUMA.call_once(|| unsafe { sys::llama_numa_init(strategy) });
}

/// Whether a NUMA strategy was set. The pages of a file then belong to the node of the thread that reads them first.
pub(super) fn uses_numa() -> bool {
    NUMA.is_completed()
}

/// Memory placement on machines with several NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// Spread threads and memory over all nodes.
    Distribute,
    /// Stay on the node the process started on.
    Isolate,
    /// Use `numactl`'s settings.
    Numactl,
}

/// One line about the instruction sets and backends in use.
pub fn system_info() -> String {
    start();
    static LOCK: Mutex<()> = Mutex::new(());
    let _alone = LOCK.lock();
    // SAFETY: llama.cpp returns a static, NUL-terminated string. Each call builds the string again, so the lock prevents overlapping
    // calls.
    unsafe { text(sys::llama_print_system_info()) }
}

/// The version of the llama.cpp that is linked.
pub fn llama_version() -> String {
    // SAFETY: a static, NUL-terminated string.
    unsafe { text(sys::llama_version()) }
}

/// A C string's text; empty for NULL.
///
/// # Safety
/// `pointer` is NULL or NUL-terminated and readable during the call.
pub(super) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The maximum number of sequences of a context.
pub fn max_sequences() -> usize {
    // SAFETY: returns a constant.
    unsafe { sys::llama_max_parallel_sequences() }
}
