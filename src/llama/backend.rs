//! Process-wide state: starting llama.cpp, loading ggml's backends, listing devices.

use std::ffi::{CStr, CString, c_char};
use std::sync::Once;

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use super::guard::{ErrorBuffer, foredraft_device_memory};
use super::{log, rpc};

static START: Once = Once::new();

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
    /// Use `numactl`'s settings.
    Numactl,
}

/// A device of ggml.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The name, as used in `devices` of `init`.
    pub name: String,
    /// A description.
    pub description: String,
    /// `cpu`, `gpu`, `igpu`, `accel` or `meta`.
    pub kind: &'static str,
    /// Free memory in bytes. 0: unknown, for example if an RPC server does not respond.
    pub memory_free: usize,
    /// Total memory in bytes.
    pub memory_total: usize,
}

/// All devices.
pub fn devices() -> Vec<Device> {
    start();
    let (mut found, unresponsive) = (Vec::new(), rpc::unresponsive_devices());
    // SAFETY: the indices are below the count, and devices live as long as the process. Their strings are static and NUL-terminated
    // (`text` accepts NULL), and the numbers are writable.
    unsafe {
        for index in 0..sys::ggml_backend_dev_count() {
            let device = sys::ggml_backend_dev_get(index);
            let (mut memory_free, mut memory_total) = (0, 0);
            if !unresponsive.contains(&device) {
                let mut why = ErrorBuffer::new();
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

/// All devices except those of RPC servers that do not respond.
fn available_devices() -> Vec<sys::ggml_backend_dev_t> {
    let unresponsive = rpc::unresponsive_devices();
    // SAFETY: indices are below the count, and devices live as long as the process.
    let all = unsafe { (0..sys::ggml_backend_dev_count()).map(|index| sys::ggml_backend_dev_get(index)) };
    all.filter(|device| !unresponsive.contains(device)).collect()
}

/// The default devices of a model if some RPC servers do not respond. `None`: all respond, so llama.cpp can choose.
///
/// The order is llama.cpp's: RPC servers, then GPUs, and integrated GPUs only if there is no other GPU.
pub(super) fn default_devices() -> Option<Vec<sys::ggml_backend_dev_t>> {
    if rpc::unresponsive_devices().is_empty() {
        return None;
    }
    let available = available_devices();
    let of = |kind| {
        // SAFETY: devices live as long as the process.
        available.iter().copied().filter(move |device| unsafe { sys::ggml_backend_dev_type(*device) } == kind)
    };
    let (mut chosen, gpus): (Vec<_>, Vec<_>) = of(sys::GGML_BACKEND_DEVICE_TYPE_GPU).partition(|device| {
        // SAFETY: a device's registry has a static, NUL-terminated name.
        unsafe { text(sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(*device))) }.starts_with("RPC")
    });
    let integrated = of(sys::GGML_BACKEND_DEVICE_TYPE_IGPU).filter(|_| gpus.is_empty());
    chosen.extend(integrated.chain(gpus.iter().copied()));
    Some(chosen)
}

/// The device with this name, unless its RPC server does not respond.
pub(super) fn device_by_name(name: &str) -> Option<sys::ggml_backend_dev_t> {
    let c_name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated name. NULL is returned if there is no such device.
    let device = unsafe { sys::ggml_backend_dev_by_name(c_name.as_ptr()) };
    (!device.is_null() && !rpc::unresponsive_devices().contains(&device)).then_some(device)
}

/// Whether there is a device other than CPUs: a GPU, or a device of an RPC server. (`llama_supports_gpu_offload` is always true if
/// RPC is compiled in.)
pub(super) fn supports_offload() -> bool {
    start();
    let kinds = [sys::GGML_BACKEND_DEVICE_TYPE_GPU, sys::GGML_BACKEND_DEVICE_TYPE_IGPU];
    // SAFETY: devices live as long as the process.
    available_devices().into_iter().any(|device| kinds.contains(&unsafe { sys::ggml_backend_dev_type(device) }))
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
