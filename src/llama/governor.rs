//! Adapts the number of threads to the load of other programs.
//!
//! The threads of a decode wait for each other hundreds of times per token. If another program uses one of their cores, all threads
//! run at the speed of the slowest one, and fewer threads are faster. The best number can only be found by trying. The governor tries
//! fewer threads when the engine's thread gets too little CPU time, and occasionally more threads when it uses fewer than `init` set.
//! It keeps the faster number. It is plain data: the time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The measurement of a decode.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeTime {
    /// The context and the size of the batch. Decodes of the same kind take the same time on an idle machine.
    pub(super) kind: (usize, usize),
    /// The elapsed time.
    pub(super) wall: Duration,
    /// The CPU time of the engine's thread. It equals `wall` if each thread has a core.
    pub(super) ran: Duration,
}

/// The number of decodes and the time that are measured before two numbers of threads are compared.
const WINDOW_DECODES: u32 = 6;
const WINDOW: Duration = Duration::from_millis(60);
/// Two slow decodes are enough after this time.
const SLOW_WINDOW: Duration = Duration::from_millis(250);
/// A trial ends early if two decodes are slower by this factor.
const ABANDON: f64 = 1.5;
/// If the engine's thread gets less than this share of a core, fewer threads are tried.
const MIN_SHARE: f64 = 0.85;
/// The number of consecutive windows with too small a share before a trial, because short loads occur on every machine.
const STARVED_WINDOWS: u32 = 2;
/// A trial succeeds if it takes less than this fraction of the time before.
const BETTER: f64 = 0.95;
/// The time between trials. Each failed trial doubles it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The maximum number of kinds of decodes that are remembered.
const MAX_KINDS: usize = 256;

/// Chooses the number of threads.
#[derive(Debug)]
pub(super) struct Governor {
    max: i32,
    now: i32,
    /// The time of the first decode of each kind in seconds. It is the unit for that kind, so that decodes of different kinds can be added.
    units: HashMap<(usize, usize), f64>,
    window: Window,
    /// The number of consecutive windows in which the engine's thread got too little CPU time.
    starved: u32,
    /// During a trial: the number of threads and the pace before it.
    trial: Option<(i32, f64)>,
    /// The earliest time of the next trial, and the current pause.
    next: Option<Instant>,
    pause: Duration,
}

/// Consecutive decodes with the same number of threads.
#[derive(Debug, Default)]
struct Window {
    n: u32,
    wall: f64,
    ran: f64,
    units: f64,
}

impl Window {
    /// The time per unit.
    fn pace(&self) -> f64 {
        self.wall / self.units.max(f64::MIN_POSITIVE)
    }

    fn is_full(&self) -> bool {
        let takes = |n: u32, time: Duration| self.n >= n && self.wall >= time.as_secs_f64();
        takes(WINDOW_DECODES, WINDOW) || takes(2, SLOW_WINDOW)
    }
}

impl Governor {
    /// A governor for at most `max` threads.
    pub(super) fn new(max: i32) -> Governor {
        let max = max.max(1);
        Governor {
            max,
            now: max,
            units: HashMap::new(),
            window: Window::default(),
            starved: 0,
            trial: None,
            next: None,
            pause: SHORTEST_PAUSE,
        }
    }

    /// The number of threads for the next decode.
    pub(super) fn n_threads(&self) -> i32 {
        self.now
    }

    /// Records a decode that ended at `time`.
    pub(super) fn record(&mut self, decode: DecodeTime, time: Instant) {
        if self.max == 1 {
            return;
        }
        if self.units.len() >= MAX_KINDS && !self.units.contains_key(&decode.kind) {
            // The window's sums depend on the units.
            self.units.clear();
            self.window = Window::default();
        }
        let wall = decode.wall.as_secs_f64();
        let unit = *self.units.entry(decode.kind).or_insert(wall);
        self.window.n += 1;
        self.window.wall += wall;
        self.window.ran += decode.ran.as_secs_f64().min(wall);
        self.window.units += unit;
        let is_abandoned =
            self.trial.is_some_and(|(_, pace)| self.window.n >= 2 && self.window.pace() > ABANDON * pace);
        if self.window.is_full() || is_abandoned {
            let window = std::mem::take(&mut self.window);
            self.compare(&window, time);
        }
    }

    fn compare(&mut self, window: &Window, time: Instant) {
        if let Some((before, pace)) = self.trial.take() {
            if window.pace() < BETTER * pace {
                self.pause = SHORTEST_PAUSE;
            } else {
                self.now = before;
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            }
            self.next = time.checked_add(self.pause);
            return;
        }
        self.starved = if window.ran < MIN_SHARE * window.wall { self.starved + 1 } else { 0 };
        if self.starved == 0 && self.now == self.max {
            (self.next, self.pause) = (None, SHORTEST_PAUSE);
            return;
        }
        let is_starved = self.starved >= STARVED_WINDOWS;
        if self.next.is_some_and(|next| time < next) {
            return;
        }
        let other = match is_starved && self.now > 1 {
            true => self.now / 2,
            false => (2 * self.now).min(self.max),
        };
        if other != self.now {
            self.trial = Some((self.now, window.pace()));
            self.now = other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which decodes of one kind take `ms(threads)` milliseconds, of which the engine's thread runs a part.
    struct Machine {
        governor: Governor,
        time: Instant,
    }

    impl Machine {
        fn new(max: i32) -> Machine {
            Machine { governor: Governor::new(max), time: Instant::now() }
        }

        /// Decodes for some seconds. Returns the number of decodes with each number of threads.
        fn run(&mut self, seconds: u64, cost: impl Fn(i32) -> (u64, f64)) -> HashMap<i32, usize> {
            let mut counts = HashMap::new();
            let end = self.time + Duration::from_secs(seconds);
            for size in [1, 4].into_iter().cycle() {
                let threads = self.governor.n_threads();
                *counts.entry(threads).or_default() += 1;
                let (ms, part) = cost(threads);
                let wall = Duration::from_millis(ms * (1 + size as u64 / 4));
                self.time += wall;
                self.governor.record(DecodeTime { kind: (1, size), wall, ran: wall.mul_f64(part) }, self.time);
                if self.time >= end {
                    return counts;
                }
            }
            unreachable!()
        }
    }

    #[test]
    fn threads_are_kept_while_each_has_a_core() {
        let mut machine = Machine::new(8);
        let counts = machine.run(60, |threads| (80 / threads as u64, 0.98));
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&8]);
    }

    #[test]
    fn one_core_leaves_one_thread_until_more_cores_are_free() {
        let mut machine = Machine::new(8);
        let one_core = |threads: i32| if threads == 1 { (10, 1.0) } else { (200 * threads as u64, 0.5) };
        machine.run(30, one_core);
        let counts = machine.run(60, one_core);
        assert!(counts[&1] > 30 * counts.values().filter(|n| **n != counts[&1]).sum::<usize>(), "{counts:?}");
        machine.run(30, |threads| (80 / threads as u64, 0.98));
        assert_eq!(machine.governor.n_threads(), 8, "the cores are free again");
    }

    #[test]
    fn unsuccessful_trials_are_reverted() {
        let mut machine = Machine::new(2);
        // Another program uses a part of both cores.
        let shared = |threads| if threads == 1 { (20, 0.7) } else { (14, 0.7) };
        let counts = machine.run(60, shared);
        assert!(counts[&2] > 10 * counts[&1] && counts[&1] > 0, "{counts:?}");
    }

    #[test]
    fn a_single_slow_decode_changes_nothing() {
        let mut machine = Machine::new(4);
        machine.run(5, |_| (10, 0.99));
        let wall = Duration::from_millis(50);
        machine.governor.record(DecodeTime { kind: (1, 1), wall, ran: wall / 2 }, machine.time);
        let counts = machine.run(5, |_| (10, 0.99));
        assert_eq!(counts.len(), 1, "{counts:?}");
    }

    #[test]
    fn a_single_thread_is_never_changed() {
        let counts = Machine::new(0).run(5, |_| (10, 0.2));
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&1]);
    }
}
