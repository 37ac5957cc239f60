//! CPUs and priority of the threads of decodes: llama.cpp's `cpu_params`.
//!
//! ggml applies these settings to the threads that it starts, and to the thread that creates a pool. A decode also computes on the calling
//! thread, so [`place`] applies the settings to that thread before the decode. [`KeepPlacement`] restores the settings of other threads than
//! the engine's, which decode during a load.

use std::cell::RefCell;

/// `GGML_MAX_N_THREADS`: the maximum number of CPUs in a [`CpuSet`].
const MAX_CPUS: usize = 512;
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPUs, by the operating system's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// Parses a mask in hexadecimal digits, with or without `0x`. The last digit has the CPUs 0 to 3. `None`: another character, or a CPU
    /// above 511.
    #[must_use]
    pub fn from_mask(mask: &str) -> Option<CpuSet> {
        let digits = mask.strip_prefix("0x").unwrap_or(mask);
        let mut set = CpuSet::default();
        for (place, digit) in digits.chars().rev().enumerate() {
            let bits = digit.to_digit(16)?;
            for bit in (0..4).filter(|bit| bits & (1 << bit) != 0) {
                set.insert(4 * place + bit)?;
            }
        }
        Some(set)
    }

    /// Parses a range `first-last`. The defaults are 0 and 511. `None`: invalid.
    #[must_use]
    pub fn from_range(range: &str) -> Option<CpuSet> {
        let (first, last) = range.split_once('-')?;
        let number = |text: &str, otherwise: usize| match text.trim() {
            "" => Some(otherwise),
            text => text.parse::<usize>().ok(),
        };
        let (first, last) = (number(first, 0)?, number(last, MAX_CPUS - 1)?);
        let mut set = CpuSet::default();
        (first <= last && last < MAX_CPUS).then_some(())?;
        for cpu in first..=last {
            set.insert(cpu)?;
        }
        Some(set)
    }

    /// The union of both sets.
    #[must_use]
    pub fn union(mut self, other: CpuSet) -> CpuSet {
        self.words.iter_mut().zip(other.words).for_each(|(word, more)| *word |= more);
        self
    }

    /// Whether the set is empty. Threads then keep their affinity.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MAX_CPUS).filter(|cpu| self.contains(*cpu))
    }

    fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// `None`: the CPU's number is too large.
    fn insert(&mut self, cpu: usize) -> Option<()> {
        *self.words.get_mut(cpu / 64)? |= 1 << (cpu % 64);
        Some(())
    }
}

/// The CPUs as a list of ranges: `0-3,8`.
impl std::fmt::Display for CpuSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        for first in self.iter().filter(|cpu| *cpu == 0 || !self.contains(cpu - 1)) {
            let last = (first..MAX_CPUS).take_while(|cpu| self.contains(*cpu)).last().unwrap_or(first);
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// `ggml_sched_priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThreadPriority {
    /// For background work: `SCHED_BATCH` on Linux.
    Low,
    /// The priority of the thread that loaded the model.
    #[default]
    Normal,
    /// Above all normal threads of the machine: `SCHED_FIFO` 40 on Linux, which needs `CAP_SYS_NICE` or a limit for `rtprio`.
    Medium,
    /// `SCHED_FIFO` 80.
    High,
    /// `SCHED_FIFO` 90.
    Realtime,
}

/// The settings of the threads of decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSettings {
    /// The priority.
    pub priority: ThreadPriority,
    /// The allowed CPUs. Empty: those of the thread that loads the model.
    pub cpus: CpuSet,
    /// Each thread is bound to one of the CPUs.
    pub strict: bool,
    /// The time for which a thread polls for the next graph before it sleeps, from 0 to 100, in ggml's unit of 131,072 pauses (2 to 6 ms).
    pub poll: u32,
}

impl ThreadSettings {
    /// Threads stay awake between the decodes of a completion, and release the cores soon after it. ggml's default is 50.
    pub const DEFAULT_POLL: u32 = 1;

    /// Whether the settings do not change a thread's placement.
    pub(in crate::llama) fn is_plain(&self) -> bool {
        self.priority == ThreadPriority::Normal && self.cpus.is_empty()
    }

    /// The settings of the calling thread of a decode with `n_threads`. As in ggml, the calling thread gets the last CPU.
    pub(in crate::llama) fn of_caller(&self, n_threads: i32) -> ThreadPlacement {
        let cpus: Vec<usize> = if self.strict { self.cpus.iter().collect() } else { Vec::new() };
        let index = usize::try_from(n_threads - 1).unwrap_or(0).checked_rem(cpus.len());
        let own = index.and_then(|index| cpus.get(index)).map(|cpu| {
            let mut set = CpuSet::default();
            set.insert(*cpu);
            set
        });
        ThreadPlacement { priority: self.priority, cpus: own.unwrap_or(self.cpus) }
    }
}

impl Default for ThreadSettings {
    fn default() -> Self {
        ThreadSettings {
            priority: ThreadPriority::Normal,
            cpus: CpuSet::default(),
            strict: false,
            poll: ThreadSettings::DEFAULT_POLL,
        }
    }
}

/// The settings of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::llama) struct ThreadPlacement {
    priority: ThreadPriority,
    cpus: CpuSet,
}

/// A thread's original settings, and the current ones.
struct Placed {
    now: ThreadPlacement,
    before: system::Scheduling,
}

thread_local! {
    static PLACED: RefCell<Option<Placed>> = const { RefCell::new(None) };
}

/// Applies settings to the calling thread, unless it has them already.
pub(in crate::llama) fn place(placement: ThreadPlacement) {
    PLACED.with_borrow_mut(|placed| match placed {
        Some(placed) if placed.now == placement => {}
        Some(placed) => {
            placed.before.with(placement).apply();
            placed.now = placement;
        }
        None => {
            let Some(before) = system::Scheduling::of_this_thread() else { return };
            before.with(placement).apply();
            *placed = Some(Placed { now: placement, before });
        }
    });
}

/// Restores the original settings of the calling thread when dropped.
#[derive(Debug, Default)]
pub struct KeepPlacement(());

impl Drop for KeepPlacement {
    fn drop(&mut self) {
        if let Some(placed) = PLACED.with_borrow_mut(Option::take) {
            placed.before.apply();
        }
    }
}

/// Applies settings to the calling thread. Returns whether the system allows the priority, and any of the CPUs.
pub(in crate::llama) fn try_on_this_thread(settings: &ThreadSettings) -> (bool, bool) {
    let has = |priority, cpus| {
        let placement = ThreadPlacement { priority, cpus };
        system::Scheduling::of_this_thread().is_none_or(|own| own.with(placement).apply())
    };
    (has(settings.priority, CpuSet::default()), has(ThreadPriority::Normal, settings.cpus))
}

#[cfg(target_os = "linux")]
mod system {
    use crate::llama::threads::placement::{ThreadPlacement, ThreadPriority};

    /// Policy, priority and affinity of a thread.
    #[derive(Clone, Copy)]
    pub(in crate::llama) struct Scheduling {
        policy: libc::c_int,
        priority: libc::c_int,
        cpus: libc::cpu_set_t,
    }

    impl Scheduling {
        /// `None`: unknown.
        pub(in crate::llama) fn of_this_thread() -> Option<Scheduling> {
            // SAFETY: zeros are valid for these plain structures, both are writable, and 0 is the calling thread.
            unsafe {
                let (mut param, mut cpus) = (std::mem::zeroed::<libc::sched_param>(), std::mem::zeroed());
                let policy = libc::sched_getscheduler(0);
                let known = policy >= 0
                    && libc::sched_getparam(0, &raw mut param) == 0
                    && libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut cpus) == 0;
                known.then_some(Scheduling { policy, priority: param.sched_priority, cpus })
            }
        }

        /// These settings with the changes of a placement.
        pub(in crate::llama) fn with(mut self, placement: ThreadPlacement) -> Scheduling {
            // As `ggml_thread_apply_priority`.
            (self.policy, self.priority) = match placement.priority {
                ThreadPriority::Low => (libc::SCHED_BATCH, 0),
                ThreadPriority::Normal => (self.policy, self.priority),
                ThreadPriority::Medium => (libc::SCHED_FIFO, 40),
                ThreadPriority::High => (libc::SCHED_FIFO, 80),
                ThreadPriority::Realtime => (libc::SCHED_FIFO, 90),
            };
            if !placement.cpus.is_empty() {
                // SAFETY: zeros are an empty set. libc's sets have 1024 CPUs, a `CpuSet` at most 512.
                unsafe {
                    self.cpus = std::mem::zeroed();
                    placement.cpus.iter().for_each(|cpu| libc::CPU_SET(cpu, &mut self.cpus));
                }
            }
            self
        }

        /// Applies these settings to the calling thread. Returns false if the system refuses one of them.
        pub(in crate::llama) fn apply(&self) -> bool {
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
}

/// On other systems, ggml places the threads of its pools, and the calling thread does not change.
#[cfg(not(target_os = "linux"))]
mod system {
    use crate::llama::threads::placement::ThreadPlacement;

    #[derive(Clone, Copy)]
    pub(in crate::llama) struct Scheduling;

    impl Scheduling {
        pub(in crate::llama) fn of_this_thread() -> Option<Scheduling> {
            None
        }

        pub(in crate::llama) fn with(self, _: ThreadPlacement) -> Scheduling {
            self
        }

        pub(in crate::llama) fn apply(&self) -> bool {
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_ranges_are_llama_cpps() {
        let cpus = |set: Option<CpuSet>| set.map(|set| set.iter().collect::<Vec<_>>());
        for (mask, expected) in [
            ("0x5", Some(vec![0, 2])),
            ("F0", Some(vec![4, 5, 6, 7])),
            ("1ff", Some((0..9).collect())),
            ("10000000000000000", Some(vec![64])),
            ("0", Some(vec![])),
            ("", Some(vec![])),
            ("xyz", None),
            ("-1", None),
        ] {
            assert_eq!(cpus(CpuSet::from_mask(mask)), expected, "{mask}");
        }
        assert_eq!(cpus(CpuSet::from_mask(&format!("8{}", "0".repeat(127)))), Some(vec![511]));
        assert_eq!(cpus(CpuSet::from_mask(&format!("1{}", "0".repeat(128)))), None);
        for (range, expected) in [
            ("0-1", Some(vec![0, 1])),
            ("3-3", Some(vec![3])),
            ("-2", Some(vec![0, 1, 2])),
            ("510-", Some(vec![510, 511])),
            ("-", Some((0..512).collect())),
            ("2-1", None),
            ("0-512", None),
            ("1", None),
            ("", None),
            ("0-1-2", None),
        ] {
            assert_eq!(cpus(CpuSet::from_range(range)), expected, "{range}");
        }
    }

    #[test]
    fn sets_are_printed_as_ranges() {
        let set = CpuSet::from_range("0-2").and_then(|set| Some(set.union(CpuSet::from_mask("150")?)));
        assert_eq!(set.map(|set| set.to_string()).as_deref(), Some("0-2,4,6,8"));
    }

    #[test]
    fn strict_placement_puts_the_caller_behind_the_other_threads() {
        let cpus = CpuSet::from_mask("b").expect("a mask"); // 0, 1 and 3
        let settings = ThreadSettings { cpus, strict: true, ..ThreadSettings::default() };
        for (n_threads, cpu) in [(1, 0), (2, 1), (3, 3), (4, 0), (5, 1)] {
            assert_eq!(settings.of_caller(n_threads).cpus.iter().collect::<Vec<_>>(), [cpu], "{n_threads}");
        }
        let shared = ThreadSettings { strict: false, ..settings };
        assert_eq!(shared.of_caller(2).cpus, cpus);
        let none = ThreadSettings { cpus: CpuSet::default(), ..settings };
        assert!(none.of_caller(2).cpus.is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn placed_thread_gets_its_own_settings_back() {
        std::thread::spawn(|| {
            let scheduling = || {
                let own = system::Scheduling::of_this_thread().expect("known on Linux");
                // SAFETY: asks about the calling thread.
                (
                    unsafe { libc::sched_getscheduler(0) },
                    super::super::cores::cpus_of_this_thread(),
                    own.with(ThreadPlacement { priority: ThreadPriority::Normal, cpus: CpuSet::default() }).apply(),
                )
            };
            let own = scheduling();
            let first = own.1.first().copied().expect("a CPU");
            let cpus = CpuSet::from_range(&format!("{first}-{first}")).expect("a range");
            let keep = KeepPlacement::default();
            place(ThreadPlacement { priority: ThreadPriority::Low, cpus });
            assert_eq!(scheduling(), (libc::SCHED_BATCH, vec![first], true));
            place(ThreadPlacement { priority: ThreadPriority::Normal, cpus: CpuSet::default() });
            assert_eq!(scheduling(), own, "the settings of a decode without any are the thread's own");
            place(ThreadPlacement { priority: ThreadPriority::Low, cpus });
            drop(keep);
            assert_eq!(scheduling(), own);
        })
        .join()
        .expect("no panic");
    }
}
