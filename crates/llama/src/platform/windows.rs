//! Windows 10 and later. CPUs are those of the process's processor group, which has at most 64.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::windows::ffi::OsStringExt as _;
use std::os::windows::io::AsRawHandle as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::HMODULE;
use windows_sys::Win32::Storage::FileSystem::{BY_HANDLE_FILE_INFORMATION, GetFileInformationByHandle};
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleFileNameW, GetModuleHandleExW,
};
use windows_sys::Win32::System::SystemInformation::{
    GROUP_AFFINITY, GetLogicalProcessorInformationEx, RelationProcessorCore, SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX,
};
use windows_sys::Win32::System::Threading::{
    ALL_PROCESSOR_GROUPS, GetActiveProcessorCount, GetCurrentProcess, GetCurrentThread, GetCurrentThreadStackLimits,
    GetProcessAffinityMask, GetThreadGroupAffinity, GetThreadPriority, INFINITE, SetThreadAffinityMask,
    SetThreadPriority, THREAD_PRIORITY, THREAD_PRIORITY_ABOVE_NORMAL, THREAD_PRIORITY_BELOW_NORMAL,
    THREAD_PRIORITY_HIGHEST, THREAD_PRIORITY_IDLE, THREAD_PRIORITY_TIME_CRITICAL, WaitOnAddress, WakeByAddressAll,
    WakeByAddressSingle,
};
use windows_sys::Win32::System::WindowsProgramming::QueryThreadCycleTime;

use super::identity::FileIdentity;
use crate::platform::cpus::{CpuSet, ThreadPriority};

pub(crate) use self::PriorityAndMask as Scheduling;
pub(crate) use super::nothing_ahead::NothingAhead as ReadAhead;

/// Whether a thread inherits an idle priority from the one that starts it.
pub(crate) const INHERITS_IDLE: bool = false;

/// Priority and affinity of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PriorityAndMask {
    priority: THREAD_PRIORITY,
    /// CPU n is bit n.
    mask: usize,
}

/// The result of `GetThreadPriority` when it fails.
const NO_PRIORITY: i32 = i32::MAX;

impl PriorityAndMask {
    /// `None`: unknown.
    pub(crate) fn of_this_thread() -> Option<Self> {
        // SAFETY: zeros are a valid structure, which is writable; the handle stands for the calling thread.
        unsafe {
            let mut affinity: GROUP_AFFINITY = std::mem::zeroed();
            let priority = GetThreadPriority(GetCurrentThread());
            let known = GetThreadGroupAffinity(GetCurrentThread(), &raw mut affinity) != 0 && priority != NO_PRIORITY;
            known.then_some(PriorityAndMask { priority, mask: affinity.Mask })
        }
    }

    /// These settings with another priority, and with these CPUs unless there are none.
    pub(crate) fn with(self, priority: ThreadPriority, cpus: &CpuSet) -> Self {
        // As `ggml_thread_apply_priority`.
        let priority = match priority {
            ThreadPriority::Idle => THREAD_PRIORITY_IDLE,
            ThreadPriority::Low => THREAD_PRIORITY_BELOW_NORMAL,
            ThreadPriority::Normal => self.priority,
            ThreadPriority::Medium => THREAD_PRIORITY_ABOVE_NORMAL,
            ThreadPriority::High => THREAD_PRIORITY_HIGHEST,
            ThreadPriority::Realtime => THREAD_PRIORITY_TIME_CRITICAL,
        };
        let bits = cpus.iter().filter_map(|cpu| 1_usize.checked_shl(u32::try_from(cpu).ok()?));
        let mask = if cpus.is_empty() { self.mask } else { bits.fold(0, |mask, bit| mask | bit) };
        PriorityAndMask { priority, mask }
    }

    /// Applies these settings to the calling thread. Returns false if the system refuses one of them. CPUs that the process may not use are
    /// ignored, unless all of them are, as on Linux.
    pub(crate) fn apply(&self) -> bool {
        let mask = self.mask & process_mask().unwrap_or(usize::MAX);
        // SAFETY: takes numbers; the handle stands for the calling thread. An empty mask is refused.
        unsafe {
            let prioritized = SetThreadPriority(GetCurrentThread(), self.priority) != 0;
            let placed = SetThreadAffinityMask(GetCurrentThread(), mask) != 0;
            prioritized && placed
        }
    }
}

/// A clock in nanoseconds.
pub(crate) fn clock_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps while the word has this value, until a wake-up or for `timeout`. It may also return for no reason.
pub(crate) fn sleep_on(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    // Rounded up, so that a short timeout is not waited for without a pause.
    let ms = timeout.map_or(INFINITE, |timeout| u32::try_from(timeout.as_millis() + 1).unwrap_or(INFINITE));
    // SAFETY: the word is aligned, both values live during the call and have 4 bytes.
    unsafe { WaitOnAddress(word.as_ptr().cast(), (&raw const value).cast(), size_of::<u32>(), ms) };
}

/// Wakes one thread that sleeps on the word.
pub(crate) fn wake_one(word: &AtomicU32) {
    // SAFETY: the address is only compared.
    unsafe { WakeByAddressSingle(word.as_ptr().cast()) };
}

/// Wakes all threads that sleep on the word.
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: the address is only compared.
    unsafe { WakeByAddressAll(word.as_ptr().cast()) };
}

/// The CPUs of this process. `None`: unknown, or it has threads in several processor groups.
fn process_mask() -> Option<usize> {
    let (mut process, mut system) = (0, 0);
    // SAFETY: both numbers are writable.
    let known = unsafe { GetProcessAffinityMask(GetCurrentProcess(), &raw mut process, &raw mut system) != 0 };
    (known && process != 0).then_some(process)
}

/// The CPU time of the calling thread, from its cycles: Windows counts times only in steps of 15 ms. `None`: unknown.
pub(crate) fn thread_cpu_time() -> Option<Duration> {
    let per_second = cycles_per_second()?;
    let mut cycles = 0;
    // SAFETY: the number is writable; the handle stands for the calling thread.
    let known = unsafe { QueryThreadCycleTime(GetCurrentThread(), &raw mut cycles) != 0 };
    (known && cycles > 0).then(|| Duration::from_secs_f64(cycles as f64 / per_second))
}

/// The frequency of the counter of cycles, measured once. `None`: not yet, or the processor has no such counter.
#[cfg(target_arch = "x86_64")]
fn cycles_per_second() -> Option<f64> {
    /// For this long it is measured.
    const MEASURED: Duration = Duration::from_millis(50);
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    static FREQUENCY: OnceLock<f64> = OnceLock::new();
    // SAFETY: every x86-64 processor has the instruction.
    let now = || (Instant::now(), unsafe { std::arch::x86_64::_rdtsc() });
    if let Some(known) = FREQUENCY.get() {
        return Some(*known);
    }
    let (begun, first) = *START.get_or_init(now);
    let (at, count) = now();
    let elapsed = at.saturating_duration_since(begun);
    if elapsed < MEASURED {
        return None;
    }
    let counted = count.checked_sub(first).filter(|counted| *counted > 0)?;
    Some(*FREQUENCY.get_or_init(|| counted as f64 / elapsed.as_secs_f64()))
}

#[cfg(not(target_arch = "x86_64"))]
fn cycles_per_second() -> Option<f64> {
    None
}

/// `std::thread::hardware_concurrency`. 0: unknown.
pub(crate) fn n_cores_online() -> usize {
    // SAFETY: takes a number.
    usize::try_from(unsafe { GetActiveProcessorCount(ALL_PROCESSOR_GROUPS) }).unwrap_or(0)
}

/// The CPUs in this process's affinity mask. Empty if unknown.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let mask = process_mask().unwrap_or(0);
    (0..64).filter(|cpu| mask >> cpu & 1 == 1).collect()
}

/// The number of physical cores of these CPUs; on processors with several kinds of cores, of the fastest ones. `None`: unknown.
pub(crate) fn physical_cores(cpus: &[usize]) -> Option<usize> {
    let wanted = cpus.iter().filter(|cpu| **cpu < 64).fold(0_usize, |mask, cpu| mask | 1 << cpu);
    let mut cores: BTreeMap<u8, usize> = BTreeMap::new();
    for core in processor_cores()? {
        if core.mask & wanted != 0 {
            *cores.entry(core.efficiency_class).or_default() += 1;
        }
    }
    // A greater class is a faster core.
    cores.pop_last().map(|(_, n)| n)
}

/// A physical core of the process's group.
struct PhysicalCore {
    efficiency_class: u8,
    mask: usize,
}

fn processor_cores() -> Option<Vec<PhysicalCore>> {
    // The entries are read where they are, so the buffer is aligned for them.
    let mut size = 0;
    // SAFETY: without a buffer it only writes the size.
    unsafe { GetLogicalProcessorInformationEx(RelationProcessorCore, std::ptr::null_mut(), &raw mut size) };
    let mut buffer = vec![0_u64; usize::try_from(size).ok()?.div_ceil(8)];
    let entries = buffer.as_mut_ptr().cast::<SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX>();
    // SAFETY: the buffer has at least `size` bytes.
    if unsafe { GetLogicalProcessorInformationEx(RelationProcessorCore, entries, &raw mut size) } == 0 {
        return None;
    }
    let (mut cores, mut at, end) = (Vec::new(), 0_usize, usize::try_from(size).ok()?);
    while at + size_of::<SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX>() <= end {
        // SAFETY: the system has written whole entries up to `end`; each says its size, which keeps the alignment. The relation says that the
        // entry is about a processor core, which has at least one mask.
        let (entry_size, core) = unsafe {
            let entry = &*entries.byte_add(at);
            let processor = &entry.Anonymous.Processor;
            (
                entry.Size,
                PhysicalCore { efficiency_class: processor.EfficiencyClass, mask: group_mask(&processor.GroupMask) },
            )
        };
        cores.push(core);
        at += usize::try_from(entry_size).ok().filter(|size| *size > 0)?;
    }
    Some(cores)
}

/// The mask of a core. A core is in one group; those of other groups than the first are not counted.
fn group_mask(masks: &[GROUP_AFFINITY; 1]) -> usize {
    let [first] = masks;
    if first.Group == 0 { first.Mask } else { 0 }
}

/// The identity of a file: the volume's serial number and the file's index. `None`: unknown.
pub(crate) fn file_identity(path: &Path) -> Option<FileIdentity> {
    let file = File::open(path).ok()?;
    // SAFETY: zeros are a valid structure, which is writable, and the file is open.
    let about = unsafe {
        let mut about: BY_HANDLE_FILE_INFORMATION = std::mem::zeroed();
        (GetFileInformationByHandle(file.as_raw_handle(), &raw mut about) != 0).then_some(about)?
    };
    let index = u64::from(about.nFileIndexHigh) << 32 | u64::from(about.nFileIndexLow);
    Some((u64::from(about.dwVolumeSerialNumber), index))
}

/// `None`: models are not loaded from descriptors here.
pub(crate) fn identity_of_descriptor(_: i32) -> Option<(Metadata, FileIdentity)> {
    None
}

/// `None`: unknown.
pub(crate) fn available_memory() -> Option<u64> {
    None
}

/// Pages are left to the system.
pub(crate) fn give_back_pages(_: &[PathBuf], _: impl Fn(usize) -> bool) {}

/// Keeps the DLL from being unloaded: `FreeLibrary` would remove the code of running threads.
pub fn keep_loaded() {
    static PINNED: Once = Once::new();
    PINNED.call_once(|| {
        own_module(GET_MODULE_HANDLE_EX_FLAG_PIN);
    });
}

/// The file with this code. `None`: unknown.
pub(crate) fn own_file() -> Option<PathBuf> {
    let mut name = [0; 32768];
    // SAFETY: the buffer has this size.
    let written = unsafe { GetModuleFileNameW(own_module(0), name.as_mut_ptr(), 32768) };
    let name = name.get(..usize::try_from(written).ok()?).filter(|name| !name.is_empty());
    Some(OsString::from_wide(name?).into())
}

/// The module with this code, which a call with the flag `GET_MODULE_HANDLE_EX_FLAG_PIN` keeps loaded. Without it the module's count is one more.
fn own_module(flag: u32) -> HMODULE {
    let mut module = std::ptr::null_mut();
    let inside = own_module as fn(u32) -> HMODULE as *const u16;
    // SAFETY: with these flags the name is an address in the library, and `module` is writable.
    unsafe { GetModuleHandleExW(flag | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, inside, &raw mut module) };
    module
}

/// The lowest address of the calling thread's stack, and the one after its highest.
pub(crate) fn stack_bounds() -> Option<(usize, usize)> {
    let (mut low, mut high) = (0, 0);
    // SAFETY: both numbers are writable.
    unsafe { GetCurrentThreadStackLimits(&raw mut low, &raw mut high) };
    Some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_thread_are_applied_and_restored() {
        std::thread::spawn(|| {
            let own = PriorityAndMask::of_this_thread().expect("known");
            let first = *allowed_cpus().first().expect("a CPU");
            let cpus = CpuSet::from_range(&format!("{first}-{first}")).expect("a range");
            assert!(own.with(ThreadPriority::Low, &cpus).apply());
            let placed = PriorityAndMask { priority: THREAD_PRIORITY_BELOW_NORMAL, mask: 1 << first };
            assert_eq!(PriorityAndMask::of_this_thread(), Some(placed));
            assert!(own.with(ThreadPriority::Normal, &CpuSet::default()).apply());
            assert_eq!(PriorityAndMask::of_this_thread(), Some(own));
            let none = CpuSet::from_range("63-63").expect("a range");
            assert_eq!(own.with(ThreadPriority::Normal, &none).apply(), allowed_cpus().contains(&63));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn cores_are_counted() {
        let all = allowed_cpus();
        assert!(!all.is_empty() && all.len() <= n_cores_online());
        let cores = physical_cores(&all).expect("known");
        assert!((1..=all.len()).contains(&cores), "{cores} of {}", all.len());
        assert_eq!(physical_cores(&[]), None);
    }

    #[test]
    fn identities_tell_files_apart() {
        let path = |name: &str| std::env::temp_dir().join(format!("foredraft-{name}-{}", std::process::id()));
        let [one, other] = ["one", "other"].map(path);
        std::fs::write(&one, "same").expect("written");
        std::fs::write(&other, "same").expect("written");
        assert!(file_identity(&one).is_some());
        assert_eq!(file_identity(&one), file_identity(&one));
        assert_ne!(file_identity(&one), file_identity(&other));
        assert_eq!(file_identity(&path("none")), None);
        [one, other].iter().for_each(|path| std::fs::remove_file(path).expect("removed"));
    }
}

/// Not known.
pub(crate) fn memory_limit() -> Option<u64> {
    None
}
