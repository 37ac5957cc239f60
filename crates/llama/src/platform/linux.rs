//! Linux: `sched_*`, `/proc`, `/sys`.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::identity::FileIdentity;
use crate::platform::cpus::{CpuSet, ThreadPriority};

pub(crate) use self::MappedAhead as ReadAhead;
pub(crate) use self::PolicyAndCpus as Scheduling;
pub(crate) use super::unix::{clock_ns, file_identity, n_cores_online, own_file, stack_bounds, thread_cpu_time};

/// Whether a thread inherits an idle priority from the one that starts it.
pub(crate) const INHERITS_IDLE: bool = true;

/// Policy, priority and affinity of a thread.
#[derive(Clone, Copy)]
pub(crate) struct PolicyAndCpus {
    policy: libc::c_int,
    priority: libc::c_int,
    cpus: libc::cpu_set_t,
}

impl PolicyAndCpus {
    /// `None`: unknown.
    pub(crate) fn of_this_thread() -> Option<Self> {
        // SAFETY: zeros are valid for these plain structures, both are writable, and 0 is the calling thread.
        unsafe {
            let (mut param, mut cpus) = (std::mem::zeroed::<libc::sched_param>(), std::mem::zeroed());
            let policy = libc::sched_getscheduler(0);
            let known = policy >= 0
                && libc::sched_getparam(0, &raw mut param) == 0
                && libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut cpus) == 0;
            known.then_some(PolicyAndCpus { policy, priority: param.sched_priority, cpus })
        }
    }

    /// These settings with another priority, and with these CPUs unless there are none.
    pub(crate) fn with(mut self, priority: ThreadPriority, cpus: &CpuSet) -> Self {
        // As `ggml_thread_apply_priority`.
        (self.policy, self.priority) = match priority {
            ThreadPriority::Idle => (libc::SCHED_IDLE, 0),
            ThreadPriority::Low => (libc::SCHED_BATCH, 0),
            ThreadPriority::Normal => (self.policy, self.priority),
            ThreadPriority::Medium => (libc::SCHED_FIFO, 40),
            ThreadPriority::High => (libc::SCHED_FIFO, 80),
            ThreadPriority::Realtime => (libc::SCHED_FIFO, 90),
        };
        if !cpus.is_empty() {
            // SAFETY: zeros are an empty set. libc's sets have 1024 CPUs, a `CpuSet` at most 512.
            unsafe {
                self.cpus = std::mem::zeroed();
                cpus.iter().for_each(|cpu| libc::CPU_SET(cpu, &mut self.cpus));
            }
        }
        self
    }

    /// Applies these settings to the calling thread. Returns false if the system refuses one of them.
    pub(crate) fn apply(&self) -> bool {
        // SAFETY: zeros are valid for this plain structure, the structures are only read, and 0 is the calling thread.
        unsafe {
            let mut param: libc::sched_param = std::mem::zeroed();
            param.sched_priority = self.priority;
            let scheduled = libc::sched_setscheduler(0, self.policy, &raw const param) == 0;
            let placed = libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.cpus) == 0;
            scheduled && placed
        }
    }
}

/// Sleeps while the word has this value, until a wake-up or for `timeout`. It may also return for no reason. The futex is not private,
/// because the word may be in memory that two processes share.
pub(crate) fn sleep_on(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is aligned and lives during the call, as does the time, which is only read. NULL: no timeout.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, timeout) };
}

/// Wakes one thread that sleeps on the word.
pub(crate) fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all threads that sleep on the word.
pub(crate) fn wake_all(word: &AtomicU32) {
    wake(word, libc::c_int::MAX);
}

fn wake(word: &AtomicU32, n: libc::c_int) {
    // SAFETY: the word is aligned and lives during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, n) };
}

/// The CPUs in this process's affinity mask. Empty if unknown.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    cpus_allowed("/proc/self/status")
}

/// The CPUs in the calling thread's affinity mask.
#[cfg(test)]
pub(crate) fn cpus_of_this_thread() -> Vec<usize> {
    cpus_allowed("/proc/thread-self/status")
}

fn cpus_allowed(status: &str) -> Vec<usize> {
    // Read as a list, because `sched_getaffinity` has a fixed size.
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(|list| cpu_list(list.trim())).unwrap_or_default()
}

/// The number of physical cores of these CPUs; on processors with two kinds of cores, of the faster ones, unless there are none of them.
/// `None`: unknown.
pub(crate) fn physical_cores(cpus: &[usize]) -> Option<usize> {
    cores_in(Path::new("/sys/devices"), cpus)
}

fn cores_in(devices: &Path, cpus: &[usize]) -> Option<usize> {
    let fast = std::fs::read_to_string(devices.join("cpu_core/cpus")).map(|list| cpu_list(list.trim())).ok();
    let is_fast = |cpu: &&usize| fast.as_ref().is_none_or(|fast| fast.contains(cpu));
    let fast: Vec<usize> = cpus.iter().filter(is_fast).copied().collect();
    let cpus = if fast.is_empty() { cpus } else { &fast };
    let siblings = |cpu: &usize| {
        let file = devices.join(format!("system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        std::fs::read_to_string(file).ok()
    };
    let cores: Option<BTreeSet<String>> = cpus.iter().map(siblings).collect();
    cores.map(|cores| cores.len()).filter(|n| *n > 0)
}

/// Parses a list of CPUs such as `0-3,8`.
fn cpu_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Metadata and identity of an open file. `None` for a file without a name, because writing to a mapping of a memfd does not change its
/// modification time.
pub(crate) fn identity_of_descriptor(fd: i32) -> Option<(Metadata, FileIdentity)> {
    // `metadata` follows the link to the open file, even if it is unlinked.
    let metadata = std::fs::metadata(format!("/proc/self/fd/{fd}")).ok().filter(|file| file.nlink() > 0)?;
    let identity = (metadata.dev(), metadata.ino());
    Some((metadata, identity))
}

/// A file that is read into the page cache piece by piece. Into a mapping that asks for large pages the system reads 2 MiB at once, and goes on
/// reading behind what was asked for. That is more than twice as fast as small reads one after another, and large pages are soon mapped again.
pub(crate) struct MappedAhead<'a> {
    file: &'a File,
    start: *mut libc::c_void,
    len: usize,
}

impl<'a> MappedAhead<'a> {
    /// Distances of the bytes that tell whether a piece is in the page cache: what the system reads at once, if nothing asks for more.
    const PROBE: u64 = 128 << 10;

    /// `None`: the file is empty or cannot be mapped.
    pub(crate) fn of(file: &'a File, len: u64) -> Option<Self> {
        let len = usize::try_from(len).ok()?;
        // SAFETY: maps a part of an open file at an address that the system chooses. Nothing reads the mapping.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: advises the system about this mapping.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        Some(MappedAhead { file, start, len })
    }

    /// Reads a piece, and waits until it is there. `start` is at a page. Returns false if it cannot be read.
    pub(crate) fn read(&self, start: u64, end: u64) -> bool {
        if self.is_cached(start, end) {
            return true;
        }
        let (Ok(at), Ok(size)) = (usize::try_from(start), usize::try_from(end - start)) else { return false };
        // SAFETY: the piece is in the mapping. Pages that the file no longer has are an error, not a signal.
        let read = at + size <= self.len
            && unsafe { libc::madvise(self.start.byte_add(at), size, libc::MADV_POPULATE_READ) } == 0;
        // Before Linux 5.14 the system cannot be asked for pages.
        read || (start..end).step_by(4096).all(|at| self.file.read_at(&mut [0], at).is_ok_and(|n| n > 0))
    }

    fn is_cached(&self, start: u64, end: u64) -> bool {
        let is_cached = |at: u64| {
            let mut byte = 0_u8;
            let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            let Ok(at) = libc::off_t::try_from(at) else { return false };
            // SAFETY: the descriptor is open, and `to` describes one writable byte.
            unsafe { libc::preadv2(self.file.as_raw_fd(), &raw const to, 1, at, libc::RWF_NOWAIT) == 1 }
        };
        (start..end).step_by(Self::PROBE as usize).all(is_cached)
    }
}

impl Drop for MappedAhead<'_> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's alone.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// The bytes of memory that this process can still get without swapping: what the system has, or less where a control group has a limit. Pages of
/// files count as free, because the system drops them. `None`: unknown.
pub(crate) fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of_system = field_of(&meminfo, "MemAvailable:").map(|kib| kib * 1024);
    let of_groups =
        least_of_groups(|read| left_in_group(&read("memory.max"), &read("memory.current"), &read("memory.stat")));
    of_system.into_iter().chain(of_groups).chain(left_of_limits()).min()
}

/// The least number that `of` finds in the files of a control group of this process. A group's limit holds for the groups below it, too.
fn least_of_groups(of: impl Fn(&dyn Fn(&str) -> String) -> Option<u64>) -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let folders = Path::new(control_group(&groups).unwrap_or("/")).ancestors();
    let of_folder = |folder: &Path| {
        let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup{}/{name}", folder.display()));
        of(&|name| read(name).unwrap_or_default())
    };
    folders.filter_map(of_folder).min()
}

/// The bytes of addresses, and of memory that is not a file's, that the process may still use. `None`: it has no limit.
fn left_of_limits() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let left = |(resource, used)| {
        // SAFETY: zeros are valid, and the call writes the struct.
        let limit = unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            (libc::getrlimit(resource, &raw mut limit) == 0).then_some(limit.rlim_cur)?
        };
        let used = field_of(&status, used)? * 1024;
        (limit != libc::RLIM_INFINITY).then_some(limit.saturating_sub(used))
    };
    [(libc::RLIMIT_AS, "VmSize:"), (libc::RLIMIT_DATA, "VmData:")].into_iter().filter_map(left).min()
}

/// The number behind a name at the start of a line.
fn field_of(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// The control group of a process, in a line of `/proc/self/cgroup` for version 2.
fn control_group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The bytes that a control group may still use, with its pages of files. `None`: it has no limit.
fn left_in_group(max: &str, current: &str, stat: &str) -> Option<u64> {
    let (max, current) = (max.trim().parse::<u64>().ok()?, current.trim().parse::<u64>().ok()?);
    let files = field_of(stat, "inactive_file ").unwrap_or(0) + field_of(stat, "active_file ").unwrap_or(0);
    Some(max.saturating_sub(current.saturating_sub(files)))
}

/// The bytes that a control group may have, with what it may swap of the system's `swap` bytes. `None`: it has no limit.
fn limit_of_group(max: &str, swap_max: &str, swap: u64) -> Option<u64> {
    Some(max.trim().parse::<u64>().ok()?.saturating_add(swap_max.trim().parse().unwrap_or(swap).min(swap)))
}

/// Gives back the pages of files that are mapped and have been copied, except where `is_used` says so of a mapping's first address. They are read
/// again if anything needs them.
pub(crate) fn give_back_pages(files: &[PathBuf], is_used: impl Fn(usize) -> bool) {
    let inodes: Vec<u64> = files.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.ino())).collect();
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end, inode) in maps.lines().filter_map(shared_mapping) {
        if inodes.contains(&inode) && !is_used(start) {
            // SAFETY: the system reads pages of a shared mapping from its file again, also for other threads that use them.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
        }
    }
}

/// The addresses and the inode of a shared mapping that is only read, in a line of `/proc/self/maps`.
fn shared_mapping(line: &str) -> Option<(usize, usize, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_shared = fields.next()? == "r--s";
    let inode = fields.nth(2)?.parse().ok()?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    is_shared.then_some((address(start)?, address(end)?, inode))
}

/// The library is linked with `-z nodelete` (`build.rs`).
pub fn keep_loaded() {}

/// The bytes of memory that this process can ever get: all of the machine's, with its swap space, or less where the process has a limit.
pub(crate) fn memory_limit() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let of_system = |name| field_of(&meminfo, name).map(|kib| kib * 1024);
    let (all, swap) = (of_system("MemTotal:")?, of_system("SwapTotal:").unwrap_or(0));
    let of_groups = least_of_groups(|read| limit_of_group(&read("memory.max"), &read("memory.swap.max"), swap));
    [all + swap].into_iter().chain(of_groups).chain(left_of_limits()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mappings_are_found() {
        let line = "7f5b1000-7f5b3000 r--s 00001000 08:01 4711   /tmp/a model.gguf";
        assert_eq!(shared_mapping(line), Some((0x7f5b_1000, 0x7f5b_3000, 4711)));
        for other in
            ["7f5b1000-7f5b3000 rw-s 0 08:01 4711 /tmp/a", "7f5b1000-7f5b3000 r--p 0 08:01 4711 /tmp/a", "", "x"]
        {
            assert_eq!(shared_mapping(other), None, "{other}");
        }
    }

    #[test]
    fn pieces_are_read_and_those_that_a_file_no_longer_has_are_not() {
        let path = std::env::temp_dir().join(format!("foredraft-ahead-{}", std::process::id()));
        std::fs::write(&path, vec![7; (1 << 20) + 5]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advises the system about an open file.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let ahead = MappedAhead::of(&file, (1 << 20) + 5).expect("can be mapped");
        assert!(ahead.read(0, 1 << 20) && ahead.is_cached(0, 1 << 20));
        assert!(ahead.read(1 << 20, (1 << 20) + 5));
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert!(ahead.read(0, 4096));
        assert!(!ahead.read(0, 1 << 20), "the file is shorter now");
        assert!(MappedAhead::of(&file, 0).is_none());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn memory_is_what_the_system_and_the_control_group_leave() {
        let meminfo = "MemTotal:       24684172 kB\nMemFree:   5 kB\nMemAvailable:   22024192 kB\n";
        assert_eq!(field_of(meminfo, "MemAvailable:"), Some(22_024_192));
        assert_eq!(field_of(meminfo, "MemOther:"), None);
        assert_eq!(control_group("12:cpu:/x\n0::/user.slice/a b\n"), Some("/user.slice/a b"));
        assert_eq!(left_in_group("max\n", "5\n", ""), None);
        assert_eq!(left_in_group("1000\n", "900\n", "anon 600\ninactive_file 200\nactive_file 100\n"), Some(400));
        assert_eq!(left_in_group("1000\n", "1200\n", ""), Some(0));
        assert_eq!(limit_of_group("max\n", "0\n", 70), None);
        assert_eq!(limit_of_group("1000\n", "50\n", 70), Some(1050));
        assert_eq!(limit_of_group("1000\n", "max\n", 70), Some(1070));
        let (available, limit) = (available_memory().expect("known"), memory_limit().expect("known"));
        assert!((1 << 20..=limit).contains(&available), "{available} of {limit}");
    }

    #[test]
    fn lists_of_cpus_are_read() {
        for (list, cpus) in [("0", vec![0]), ("0-3", vec![0, 1, 2, 3]), ("1,4-5,9", vec![1, 4, 5, 9]), ("", vec![])] {
            assert_eq!(cpu_list(list), cpus, "{list}");
        }
    }

    /// Two fast cores with two threads each, and four slow ones.
    fn hybrid() -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!(
            "foredraft-cores-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        for (cpu, siblings) in ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"].iter().enumerate() {
            let folder = root.join(format!("system/cpu/cpu{cpu}/topology"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("thread_siblings_list"), format!("{siblings}\n")).unwrap();
        }
        root
    }

    #[test]
    fn threads_of_a_core_count_once_and_slow_cores_only_where_there_are_no_others() {
        let root = hybrid();
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(cores_in(&root, &all), Some(6));
        assert_eq!(cores_in(&root, &[0, 1]), Some(1));
        assert_eq!(cores_in(&root, &[1, 2, 5]), Some(3));
        assert_eq!(cores_in(&root, &[]), None);
        assert_eq!(cores_in(&root, &[0, 99]), None, "not known");
        std::fs::create_dir_all(root.join("cpu_core")).unwrap();
        std::fs::write(root.join("cpu_core/cpus"), "0-3\n").unwrap();
        assert_eq!(cores_in(&root, &all), Some(2));
        assert_eq!(cores_in(&root, &[4, 5]), Some(2));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn settings_of_a_thread_are_applied_and_restored() {
        std::thread::spawn(|| {
            let scheduling = || {
                // SAFETY: asks about the calling thread.
                (unsafe { libc::sched_getscheduler(0) }, cpus_of_this_thread())
            };
            let (before, own) = (scheduling(), PolicyAndCpus::of_this_thread().expect("known on Linux"));
            let first = before.1.first().copied().expect("a CPU");
            let cpus = CpuSet::from_range(&format!("{first}-{first}")).expect("a range");
            assert!(own.with(ThreadPriority::Low, &cpus).apply());
            assert_eq!(scheduling(), (libc::SCHED_BATCH, vec![first]));
            assert!(own.with(ThreadPriority::Normal, &CpuSet::default()).apply());
            assert_eq!(scheduling(), before);
        })
        .join()
        .expect("no panic");
    }
}
