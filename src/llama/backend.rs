//! What a process does once: start llama.cpp, load ggml's backends, list devices.

use std::ffi::{CStr, CString, c_char};
use std::sync::Once;

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use super::guard::{Why, foredraft_device_memory};
use super::{log, rpc};

static START: Once = Once::new();

/// Starts llama.cpp; harmless any number of times. Every owner in this room calls it first.
pub fn start() {
    START.call_once(|| {
        // SAFETY: `from_llama` is a function of this library, which is never unloaded while llama.cpp,
        // linked into it, may log; `Once` keeps other threads out of llama.cpp until this is done.
        unsafe {
            sys::llama_log_set(Some(log::from_llama), std::ptr::null_mut());
            #[cfg(feature = "portable")]
            load_backends();
            sys::llama_backend_init();
        }
    });
}

/// Loads every CPU variant's module and keeps the best: from `FOREDRAFT_BACKENDS`, from the folder of this
/// library, or from where the build left them.
#[cfg(feature = "portable")]
fn load_backends() {
    let mut folders: Vec<std::path::PathBuf> = Vec::new();
    folders.extend(std::env::var_os("FOREDRAFT_BACKENDS").map(Into::into));
    folders.extend(own_folder());
    folders.extend(sys::BACKENDS_DIR.map(Into::into));
    for folder in folders {
        let Ok(path) = CString::new(folder.to_string_lossy().as_bytes()) else { continue };
        // SAFETY: a NUL-terminated path; a folder without modules loads nothing.
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
    // SAFETY: `dladdr` only looks the address of a function of this library up and fills `info`, whose
    // strings live as long as the library is loaded.
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

/// Sets the NUMA strategy of the process; llama.cpp takes the first call only.
pub fn set_numa(strategy: Numa) {
    start();
    let strategy = match strategy {
        Numa::Distribute => sys::GGML_NUMA_STRATEGY_DISTRIBUTE,
        Numa::Isolate => sys::GGML_NUMA_STRATEGY_ISOLATE,
        Numa::Numactl => sys::GGML_NUMA_STRATEGY_NUMACTL,
    };
    static SET: Once = Once::new();
    // SAFETY: llama.cpp is started, and `Once` makes this the only call.
    SET.call_once(|| unsafe { sys::llama_numa_init(strategy) });
}

/// Memory placement on machines with several NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// Spread threads and memory over all nodes.
    Distribute,
    /// Stay on the node the process started on.
    Isolate,
    /// As `numactl` set it up.
    Numactl,
}

/// A device that ggml can compute on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, as `devices` in `init` takes it.
    pub name: String,
    /// What it is.
    pub description: String,
    /// `cpu`, `gpu`, `igpu`, `accel` or `meta`.
    pub kind: &'static str,
    /// Free memory in bytes; 0: not known, as of an RPC server's that does not answer.
    pub memory_free: usize,
    /// Total memory in bytes.
    pub memory_total: usize,
}

/// All devices.
pub fn devices() -> Vec<Device> {
    start();
    let (mut found, silent) = (Vec::new(), rpc::silent());
    // SAFETY: indices are below the count, and devices live as long as the process; their strings are
    // static and NUL-terminated (`text` takes NULL too), and the numbers are writable.
    unsafe {
        for index in 0..sys::ggml_backend_dev_count() {
            let device = sys::ggml_backend_dev_get(index);
            let (mut memory_free, mut memory_total) = (0, 0);
            if !silent.contains(&device) {
                let mut why = Why::new();
                foredraft_device_memory(device, &mut memory_free, &mut memory_total, why.ptr(), why.size());
            }
            found.push(Device {
                name: text(sys::ggml_backend_dev_name(device)),
                description: text(sys::ggml_backend_dev_description(device)),
                kind: match sys::ggml_backend_dev_type(device) {
                    sys::GGML_BACKEND_DEVICE_TYPE_CPU => "cpu",
                    sys::GGML_BACKEND_DEVICE_TYPE_GPU => "gpu",
                    sys::GGML_BACKEND_DEVICE_TYPE_IGPU => "igpu",
                    sys::GGML_BACKEND_DEVICE_TYPE_ACCEL => "accel",
                    _ => "meta",
                },
                memory_free,
                memory_total,
            });
        }
    }
    found
}

/// All devices but those of servers that do not answer.
fn there() -> Vec<sys::ggml_backend_dev_t> {
    let silent = rpc::silent();
    // SAFETY: indices are below the count, and devices live as long as the process.
    let all = unsafe { (0..sys::ggml_backend_dev_count()).map(|index| sys::ggml_backend_dev_get(index)) };
    all.filter(|device| !silent.contains(device)).collect()
}

/// The devices for a model that names none, where not all are to be had; `None`: as llama.cpp chooses.
///
/// It chooses RPC servers', then GPUs, and integrated GPUs where there is no other.
pub(super) fn default_devices() -> Option<Vec<sys::ggml_backend_dev_t>> {
    if rpc::silent().is_empty() {
        return None;
    }
    let there = there();
    let of = |kind| {
        // SAFETY: devices live as long as the process.
        there.iter().copied().filter(move |device| unsafe { sys::ggml_backend_dev_type(*device) } == kind)
    };
    let (mut chosen, gpus): (Vec<_>, Vec<_>) = of(sys::GGML_BACKEND_DEVICE_TYPE_GPU).partition(|device| {
        // SAFETY: a device's registry has a static, NUL-terminated name.
        unsafe { text(sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(*device))) }.starts_with("RPC")
    });
    let integrated = of(sys::GGML_BACKEND_DEVICE_TYPE_IGPU).filter(|_| gpus.is_empty());
    chosen.extend(integrated.chain(gpus.iter().copied()));
    Some(chosen)
}

/// The handle of the device of that name, unless its server does not answer.
pub(super) fn device_by_name(name: &str) -> Option<sys::ggml_backend_dev_t> {
    let c_name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated name; NULL means that there is none.
    let device = unsafe { sys::ggml_backend_dev_by_name(c_name.as_ptr()) };
    (!device.is_null() && !rpc::silent().contains(&device)).then_some(device)
}

/// Whether there is a device other than CPUs: a GPU, or an RPC server's. (`llama_supports_gpu_offload` says so wherever RPC was
/// compiled in.)
pub(super) fn supports_offload() -> bool {
    start();
    let kinds = [sys::GGML_BACKEND_DEVICE_TYPE_GPU, sys::GGML_BACKEND_DEVICE_TYPE_IGPU];
    // SAFETY: devices live as long as the process.
    there().into_iter().any(|device| kinds.contains(&unsafe { sys::ggml_backend_dev_type(device) }))
}

/// One line on the instruction sets and backends in use.
pub fn system_info() -> String {
    start();
    static LOCK: Mutex<()> = Mutex::new(());
    let _alone = LOCK.lock();
    // SAFETY: llama.cpp returns a static, NUL-terminated string. It builds the string again in each call, so calls must not
    // overlap: the lock.
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
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The most sequences that a context may have.
pub fn max_sequences() -> usize {
    // SAFETY: returns a constant.
    unsafe { sys::llama_max_parallel_sequences() }
}
