//! CPUs and priority of the threads of decodes: llama.cpp's `cpu_params`.
//!
//! ggml applies these settings to the threads that it starts, and to the thread that creates a pool. A decode also computes on the calling
//! thread, so [`place`] applies the settings to that thread before the decode. [`KeepPlacement`] restores the settings of other threads than
//! the engine's, which decode during a load.

use std::cell::{Cell, RefCell};

use crate::platform::Scheduling;
use crate::platform::cpus::{CpuSet, ThreadPriority};

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
    pub(crate) fn is_plain(&self) -> bool {
        self.priority == ThreadPriority::Normal && self.cpus.is_empty()
    }

    /// The settings of the calling thread of a decode with `n_threads`. As in ggml, the calling thread gets the last CPU.
    pub(crate) fn of_caller(&self, n_threads: i32) -> ThreadPlacement {
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
pub(crate) struct ThreadPlacement {
    priority: ThreadPriority,
    cpus: CpuSet,
}

impl ThreadPlacement {
    /// A thread's own settings, changed by these.
    fn on(&self, own: Scheduling) -> Scheduling {
        own.with(self.priority, &self.cpus)
    }
}

/// A thread's original settings, and the current ones.
struct Placed {
    now: ThreadPlacement,
    before: Scheduling,
}

thread_local! {
    static PLACED: RefCell<Option<Placed>> = const { RefCell::new(None) };
    /// The thread belongs to the host, and gets its settings back.
    static IS_KEPT: Cell<bool> = const { Cell::new(false) };
}

/// Applies settings to the calling thread, unless it has them already.
pub(crate) fn place(mut placement: ThreadPlacement) {
    // Without a privilege no thread leaves Linux's SCHED_IDLE, so the host's thread would stay idle.
    if placement.priority == ThreadPriority::Idle && IS_KEPT.get() {
        placement.priority = ThreadPriority::Low;
    }
    PLACED.with_borrow_mut(|placed| match placed {
        Some(placed) if placed.now == placement => {}
        Some(placed) => {
            placement.on(placed.before).apply();
            placed.now = placement;
        }
        None => {
            let Some(before) = Scheduling::of_this_thread() else { return };
            placement.on(before).apply();
            *placed = Some(Placed { now: placement, before });
        }
    });
}

/// Gives the calling thread the idle priority, if the system allows it.
pub fn run_when_idle() {
    place(ThreadPlacement { priority: ThreadPriority::Idle, cpus: CpuSet::default() });
}

/// Restores the original settings of the calling thread when dropped.
#[derive(Debug)]
pub struct KeepPlacement(());

impl Default for KeepPlacement {
    fn default() -> Self {
        IS_KEPT.set(true);
        KeepPlacement(())
    }
}

impl Drop for KeepPlacement {
    fn drop(&mut self) {
        IS_KEPT.set(false);
        if let Some(placed) = PLACED.with_borrow_mut(Option::take) {
            placed.before.apply();
        }
    }
}

/// Applies settings to the calling thread. Returns whether the system allows the priority, and any of the CPUs.
pub(crate) fn try_on_this_thread(settings: &ThreadSettings) -> (bool, bool) {
    let has = |priority, cpus| {
        let placement = ThreadPlacement { priority, cpus };
        Scheduling::of_this_thread().is_none_or(|own| placement.on(own).apply())
    };
    (has(settings.priority, CpuSet::default()), has(ThreadPriority::Normal, settings.cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let own = Scheduling::of_this_thread().expect("known on Linux");
                // SAFETY: asks about the calling thread.
                (
                    unsafe { libc::sched_getscheduler(0) },
                    crate::platform::cpus_of_this_thread(),
                    own.with(ThreadPriority::Normal, &CpuSet::default()).apply(),
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
            place(ThreadPlacement { priority: ThreadPriority::Idle, cpus });
            assert_eq!(scheduling().0, libc::SCHED_BATCH, "the host's thread must be able to come back");
            drop(keep);
            assert_eq!(scheduling(), own);
            place(ThreadPlacement { priority: ThreadPriority::Idle, cpus });
            assert_eq!(scheduling().0, libc::SCHED_IDLE, "the engine's own thread");
        })
        .join()
        .expect("no panic");
    }
}
