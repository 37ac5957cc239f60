//! Adapts the number of threads to the load of other programs.
//!
//! The threads of a decode wait for each other hundreds of times per token. If another program uses one of their cores, all threads
//! run at the speed of the slowest one, and fewer threads are faster. The best number can only be found by trying. The governor tries
//! fewer threads when the engine's thread gets too little CPU time, and occasionally more threads when it uses fewer than the load set.
//! It keeps the faster number. It is plain data: the time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The measurement of a decode.
#[derive(Debug, Clone, Copy)]
pub(in crate::llama) struct DecodeTime {
    /// The context and the size of the batch.
    pub(in crate::llama) kind: DecodeKind,
    /// The elapsed time.
    pub(in crate::llama) wall: Duration,
    /// The CPU time of the engine's thread. It equals `wall` if each thread has a core.
    pub(in crate::llama) ran: Duration,
}

/// A window ends after this number of decodes and this time.
const WINDOW_DECODES: u32 = 6;
const WINDOW: Duration = Duration::from_millis(60);
/// A window of two slow decodes ends after this time.
const SLOW_WINDOW: Duration = Duration::from_millis(250);
/// A trial ends early if two decodes are slower than usual by this factor.
const ABANDON: f64 = 1.5;
/// If the engine's thread gets less than this share of a core, fewer threads are tried.
const MIN_SHARE: f64 = 0.85;
/// The number of consecutive windows with too small a share before a trial, because short loads occur on every machine.
const STARVED_WINDOWS: u32 = 2;
/// A trial succeeds if decodes take less than this fraction of their usual time.
const BETTER: f64 = 0.95;
/// The time between trials. Each failed trial doubles it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// A trial is abandoned after this number of decodes of kinds that are not known, because too few can be compared.
const MAX_UNKNOWN: u32 = 60;
/// The weight of the latest decode in the moving average of its kind.
const LATEST: f64 = 0.25;
/// The maximum number of kinds of decodes that are remembered.
const MAX_KINDS: usize = 256;

/// The context and the size of the batch. Decodes of the same kind take the same time on an idle machine.
pub(in crate::llama) type DecodeKind = (usize, usize);

/// Chooses the number of threads.
#[derive(Debug)]
pub(in crate::llama) struct Governor {
    max: i32,
    now: i32,
    /// The usual time of a decode of each kind with the current number of threads, in seconds: a moving average.
    usual: HashMap<DecodeKind, f64>,
    window: Window,
    /// The number of consecutive windows in which the engine's thread got too little CPU time.
    starved: u32,
    /// The running trial.
    trial: Option<ThreadTrial>,
    /// The earliest time of the next trial, and the current pause.
    next: Option<Instant>,
    pause: Duration,
}

/// A trial of another number of threads.
#[derive(Debug)]
struct ThreadTrial {
    /// The number of threads before the trial.
    before: i32,
    /// For each kind, the number of decodes and the sum of their times in seconds.
    seen: HashMap<DecodeKind, (u32, f64)>,
}

/// Consecutive decodes with the same number of threads.
#[derive(Debug, Default)]
struct Window {
    n: u32,
    wall: f64,
    ran: f64,
    /// For decodes of a known kind: their number, their time, and their usual time.
    compared: u32,
    compared_wall: f64,
    usual: f64,
}

impl Window {
    fn is_full(n: u32, wall: f64) -> bool {
        let takes = |enough: u32, time: Duration| n >= enough && wall >= time.as_secs_f64();
        takes(WINDOW_DECODES, WINDOW) || takes(2, SLOW_WINDOW)
    }
}

impl Governor {
    /// A governor for at most `max` threads.
    pub(in crate::llama) fn new(max: i32) -> Governor {
        let max = max.max(1);
        Governor {
            max,
            now: max,
            usual: HashMap::new(),
            window: Window::default(),
            starved: 0,
            trial: None,
            next: None,
            pause: SHORTEST_PAUSE,
        }
    }

    /// The number of threads for the next decode.
    pub(in crate::llama) fn n_threads(&self) -> i32 {
        self.now
    }

    /// Records a decode that ended at `time`.
    pub(in crate::llama) fn record(&mut self, decode: DecodeTime, time: Instant) {
        if self.max == 1 {
            return;
        }
        if self.usual.len() >= MAX_KINDS && !self.usual.contains_key(&decode.kind) {
            self.usual.clear();
        }
        let wall = decode.wall.as_secs_f64();
        self.window.n += 1;
        self.window.wall += wall;
        self.window.ran += decode.ran.as_secs_f64().min(wall);
        if let Some(usual) = self.usual.get(&decode.kind) {
            self.window.compared += 1;
            self.window.compared_wall += wall;
            self.window.usual += usual;
        }
        if let Some(trial) = &mut self.trial {
            let (n, sum) = trial.seen.entry(decode.kind).or_insert((0, 0.0));
            *n += 1;
            *sum += wall;
            self.evaluate_trial(time);
            return;
        }
        self.usual.entry(decode.kind).and_modify(|usual| *usual += (wall - *usual) * LATEST).or_insert(wall);
        if Window::is_full(self.window.n, self.window.wall) {
            let window = std::mem::take(&mut self.window);
            self.consider_trial(&window, time);
        }
    }

    /// Ends the trial if it has enough decodes of known kinds, or too few among many.
    fn evaluate_trial(&mut self, time: Instant) {
        let Window { n, compared, compared_wall, usual, .. } = self.window;
        let ratio = compared_wall / usual.max(f64::MIN_POSITIVE);
        let is_over = Window::is_full(compared, compared_wall) || compared >= 2 && ratio > ABANDON;
        let Some(trial) = self.trial.take_if(|_| is_over || n - compared >= MAX_UNKNOWN) else { return };
        self.window = Window::default();
        if is_over && ratio < BETTER {
            let average = |(kind, (n, sum)): (DecodeKind, (u32, f64))| (kind, sum / f64::from(n));
            self.usual = trial.seen.into_iter().map(average).collect();
            self.pause = SHORTEST_PAUSE;
        } else {
            self.now = trial.before;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
        self.starved = 0;
        self.next = time.checked_add(self.pause);
    }

    /// Begins a trial if the window shows a reason for one.
    fn consider_trial(&mut self, window: &Window, time: Instant) {
        self.starved = if window.ran < MIN_SHARE * window.wall { self.starved + 1 } else { 0 };
        if self.starved == 0 && self.now == self.max {
            (self.next, self.pause) = (None, SHORTEST_PAUSE);
            return;
        }
        if self.next.is_some_and(|next| time < next) {
            return;
        }
        let is_starved = self.starved >= STARVED_WINDOWS;
        let other = match is_starved && self.now > 1 {
            true => self.now / 2,
            false => (2 * self.now).min(self.max),
        };
        if other != self.now {
            self.trial = Some(ThreadTrial { before: self.now, seen: HashMap::new() });
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
        fn run(&mut self, seconds: u64, cost: impl Fn(i32) -> (f64, f64)) -> HashMap<i32, usize> {
            let mut counts = HashMap::new();
            let end = self.time + Duration::from_secs(seconds);
            for size in [1, 4].into_iter().cycle() {
                let threads = self.governor.n_threads();
                *counts.entry(threads).or_default() += 1;
                let (ms, part) = cost(threads);
                let wall = Duration::from_secs_f64(ms * 1e-3 * if size == 1 { 1.0 } else { 2.0 });
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
        let counts = machine.run(60, |threads| (80.0 / f64::from(threads), 0.98));
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&8]);
    }

    #[test]
    fn one_core_leaves_one_thread_until_more_cores_are_free() {
        let mut machine = Machine::new(8);
        let one_core = |threads: i32| if threads == 1 { (10.0, 1.0) } else { (200.0 * f64::from(threads), 0.5) };
        machine.run(30, one_core);
        let counts = machine.run(60, one_core);
        assert!(counts[&1] > 30 * counts.values().filter(|n| **n != counts[&1]).sum::<usize>(), "{counts:?}");
        machine.run(30, |threads| (80.0 / f64::from(threads), 0.98));
        assert_eq!(machine.governor.n_threads(), 8, "the cores are free again");
    }

    #[test]
    fn unsuccessful_trials_are_reverted() {
        let mut machine = Machine::new(2);
        // Another program uses a part of both cores.
        let shared = |threads| if threads == 1 { (20.0, 0.7) } else { (14.0, 0.7) };
        let counts = machine.run(60, shared);
        assert!(counts[&2] > 10 * counts[&1] && counts[&1] > 0, "{counts:?}");
    }

    #[test]
    fn a_single_slow_decode_changes_nothing() {
        let mut machine = Machine::new(4);
        machine.run(5, |_| (10.0, 0.99));
        let wall = Duration::from_millis(50);
        machine.governor.record(DecodeTime { kind: (1, 1), wall, ran: wall / 2 }, machine.time);
        let counts = machine.run(5, |_| (10.0, 0.99));
        assert_eq!(counts.len(), 1, "{counts:?}");
    }

    #[test]
    fn trials_compare_decodes_of_known_kinds() {
        let mut machine = Machine::new(2);
        let mut size = 100;
        // Small decodes are slower with one thread. Prompts all have different sizes, so they cannot be compared.
        for round in 0..4000 {
            let threads = machine.governor.n_threads();
            let (kind, ms) = if round % 3 == 0 {
                size += 1;
                ((1, size), 100)
            } else {
                ((1, 1), if threads == 1 { 20 } else { 14 })
            };
            let wall = Duration::from_millis(ms);
            machine.time += wall;
            machine.governor.record(DecodeTime { kind, wall, ran: wall.mul_f64(0.7) }, machine.time);
        }
        let counts = machine.run(60, |threads| if threads == 1 { (20.0, 0.7) } else { (14.0, 0.7) });
        assert!(counts[&2] > 10 * counts[&1], "{counts:?}");
    }

    /// Small models decode a token within a tenth of a millisecond. Threads that share a core take as long as the system lets one of them run.
    #[test]
    fn short_decodes_leave_a_core_to_one_thread_too() {
        for max in [2, 3, 8] {
            let mut machine = Machine::new(max);
            let one_core = |threads: i32| if threads == 1 { (0.11, 1.0) } else { (2.1 * f64::from(threads), 0.5) };
            machine.run(3, one_core);
            let counts = machine.run(20, one_core);
            assert!(counts[&1] > 100 * counts.values().filter(|n| **n != counts[&1]).sum::<usize>(), "{counts:?}");
            machine.run(30, |threads| (0.11 / f64::from(threads), 0.98));
            assert_eq!(machine.governor.n_threads(), max, "the cores are free again");
        }
    }

    #[test]
    fn more_threads_than_cores_become_as_many_as_there_are_for_short_decodes() {
        let mut machine = Machine::new(3);
        let two_cores = |threads: i32| if threads > 2 { (5.0, 0.6) } else { (0.2 / f64::from(threads), 0.98) };
        machine.run(3, two_cores);
        let counts = machine.run(20, two_cores);
        assert!(counts[&2] > 100 * (counts.values().sum::<usize>() - counts[&2]), "{counts:?}");
    }

    #[test]
    fn a_single_thread_is_never_changed() {
        let counts = Machine::new(0).run(5, |_| (10.0, 0.2));
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&1]);
    }
}
