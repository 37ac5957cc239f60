//! Differences between operating systems: scheduling, CPU times and sleeps of threads, the processor's cores, identities of files, reading
//! ahead, and whether the library can be unloaded.
//!
//! `linux`, `windows` and `portable` have the same items. `portable` is for macOS and other systems; `unix` has what it shares with `linux`.

pub(crate) mod cpus;
mod identity;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod nothing_ahead;
#[cfg(not(any(target_os = "linux", windows)))]
mod portable;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
use self::linux as system;
#[cfg(not(any(target_os = "linux", windows)))]
use self::portable as system;
#[cfg(windows)]
use self::windows as system;

pub(crate) use self::identity::FileIdentity;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use self::system::cpus_of_this_thread;
pub use self::system::keep_loaded;
pub(crate) use self::system::{
    INHERITS_IDLE, ReadAhead, Scheduling, allowed_cpus, available_memory, clock_ns, file_identity, give_back_pages,
    identity_of_descriptor, memory_limit, n_cores_online, own_file, physical_cores, sleep_on, stack_bounds,
    thread_cpu_time, wake_all, wake_one,
};
