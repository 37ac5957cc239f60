//! Process-wide state: starting llama.cpp, loading ggml's backends, listing devices.

pub(super) mod devices;
pub(super) mod levels;
pub(super) mod module;
pub(super) mod modules;
pub(super) mod rpc;

use std::sync::Once;

use crate::guard;
use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use crate::log;

static START: Once = Once::new();
static NUMA: Once = Once::new();

/// Starts llama.cpp. Later calls do nothing. Every constructor in this module calls it first. On a processor without a level, llama.cpp is
/// not started: [`choose_default_level`](super::choose_default_level) says why, and every load calls it first.
pub fn start() {
    START.call_once(|| {
        // SAFETY: `from_llama` is a function of this library, which is never unloaded.
        unsafe {
            sys::llama_log_set(Some(log::from_llama), std::ptr::null_mut());
            sys::mtmd_helper_log_set(Some(log::from_llama), std::ptr::null_mut());
        }
        if levels::choose_default_level().is_ok() {
            // SAFETY: the processor has the instructions that ggml is compiled for. `Once` keeps other threads out of llama.cpp until this
            // is done.
            unsafe { sys::llama_backend_init() };
            modules::load_all();
        }
    });
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
    unsafe { guard::text(sys::llama_print_system_info()) }
}

/// The version of the llama.cpp that is linked.
pub fn llama_version() -> String {
    // SAFETY: a static, NUL-terminated string.
    unsafe { guard::text(sys::llama_version()) }
}

/// The maximum number of sequences of a context.
pub fn max_sequences() -> usize {
    // SAFETY: returns a constant.
    unsafe { sys::llama_max_parallel_sequences() }
}
