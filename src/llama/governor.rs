//! How many threads decode, on a machine that has other things to do.
//!
//! Threads that decode together wait for each other hundreds of times a token. Where another program takes one of their cores, all of them
//! get on at the pace of the slowest, and fewer threads are faster. Nothing tells which number is best but trying: the governor tries
//! fewer threads when the engine's thread gets less of a core than it asks for, and more threads from time to time when there are fewer than
//! `init` asked for. It keeps what was faster. Plain data: the clock is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A decode, for the governor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decode {
    /// The context and the size of its batch.
    pub(super) kind: DecodeKind,
    /// How long it took.
    pub(super) wall: Duration,
    /// For how long the engine's thread ran meanwhile. It runs all the time where each thread has a core.
    pub(super) ran: Duration,
}

/// Decodes, and time, after which a window ends.
const WINDOW_DECODES: u32 = 6;
const WINDOW: Duration = Duration::from_millis(60);
/// Where decodes are slow, two of them are enough, after this time.
const SLOW_WINDOW: Duration = Duration::from_millis(250);
/// A trial ends as soon as two decodes take so many times their usual time.
const HOPELESS: f64 = 1.5;
/// Below this part of a core for the engine's thread, fewer threads are tried.
const ENOUGH: f64 = 0.85;
/// In so many windows, one after the other: something else runs on every machine now and then.
const LACKING: u32 = 2;
/// What was tried is kept where it takes less than this part of the time before.
const BETTER: f64 = 0.95;
/// From one trial to the next: doubled by each that did not pay.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// A trial that has met so few decodes of a known kind among so many is given up.
const MOST_TRIAL_DECODES: u32 = 60;
/// The part of the latest decode in the average of its kind.
const LATEST: f64 = 0.25;
/// Kinds of decodes that are known at a time.
const MOST_KINDS: usize = 256;

/// A context and the size of its batch: decodes of the same kind take equally long on an idle machine.
pub(super) type DecodeKind = (usize, usize);

/// Chooses the number of threads.
#[derive(Debug)]
pub(super) struct Governor {
    most: i32,
    now: i32,
    /// Seconds that a decode of each kind takes with the number of threads that was chosen: an average of the latest ones.
    usual: HashMap<DecodeKind, f64>,
    window: Window,
    /// Consecutive windows in which the engine's thread lacked a core.
    lacking: u32,
    /// The number of threads before the trial that runs, and how long that has been so.
    trial: Option<Trial>,
    /// When the next trial may begin, after which pause.
    next: Option<Instant>,
    pause: Duration,
}

/// Another number of threads is tried.
#[derive(Debug)]
struct Trial {
    /// The number of threads before it.
    before: i32,
    /// Decodes of any kind that it has seen.
    n: u32,
    /// What decodes of each kind took in it: their number and the sum of their seconds.
    seen: HashMap<DecodeKind, (u32, f64)>,
}

/// Decodes with the same number of threads.
#[derive(Debug, Default)]
struct Window {
    n: u32,
    wall: f64,
    ran: f64,
    /// What the decodes whose usual time is known took, and what they usually take.
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
    /// At most `most` threads.
    pub(super) fn new(most: i32) -> Governor {
        let most = most.max(1);
        Governor {
            most,
            now: most,
            usual: HashMap::new(),
            window: Window::default(),
            lacking: 0,
            trial: None,
            next: None,
            pause: SHORTEST_PAUSE,
        }
    }

    /// The number of threads for the next decode.
    pub(super) fn n_threads(&self) -> i32 {
        self.now
    }

    /// A decode has ended at `time`.
    pub(super) fn saw(&mut self, decode: Decode, time: Instant) {
        if self.most == 1 {
            return;
        }
        if self.usual.len() >= MOST_KINDS && !self.usual.contains_key(&decode.kind) {
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
            trial.n += 1;
            let (n, sum) = trial.seen.entry(decode.kind).or_insert((0, 0.0));
            *n += 1;
            *sum += wall;
            self.judge_trial(time);
            return;
        }
        self.usual.entry(decode.kind).and_modify(|usual| *usual += (wall - *usual) * LATEST).or_insert(wall);
        if Window::is_full(self.window.n, self.window.wall) {
            let window = std::mem::take(&mut self.window);
            self.consider_trial(&window, time);
        }
    }

    /// Ends a trial that has seen enough decodes of known kinds, or that finds none of them.
    fn judge_trial(&mut self, time: Instant) {
        let Window { compared, compared_wall, usual, .. } = self.window;
        let ratio = compared_wall / usual.max(f64::MIN_POSITIVE);
        let is_over = Window::is_full(compared, compared_wall) || compared >= 2 && ratio > HOPELESS;
        let Some(trial) = self.trial.take_if(|trial| is_over || trial.n >= MOST_TRIAL_DECODES) else { return };
        self.window = Window::default();
        if is_over && ratio < BETTER {
            let average = |(kind, (n, sum)): (DecodeKind, (u32, f64))| (kind, sum / f64::from(n));
            self.usual = trial.seen.into_iter().map(average).collect();
            self.pause = SHORTEST_PAUSE;
        } else {
            self.now = trial.before;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
        self.lacking = 0;
        self.next = time.checked_add(self.pause);
    }

    fn consider_trial(&mut self, window: &Window, time: Instant) {
        self.lacking = if window.ran < ENOUGH * window.wall { self.lacking + 1 } else { 0 };
        if self.lacking == 0 && self.now == self.most {
            (self.next, self.pause) = (None, SHORTEST_PAUSE);
            return;
        }
        let lacks_cores = self.lacking >= LACKING;
        if self.next.is_some_and(|next| time < next) {
            return;
        }
        let other = match lacks_cores && self.now > 1 {
            true => self.now / 2,
            false => (2 * self.now).min(self.most),
        };
        if other != self.now {
            self.trial = Some(Trial { before: self.now, n: 0, seen: HashMap::new() });
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
        fn new(most: i32) -> Machine {
            Machine { governor: Governor::new(most), time: Instant::now() }
        }

        /// Decodes for some seconds; how many of the decodes had each number of threads.
        fn run(&mut self, seconds: u64, cost: impl Fn(i32) -> (u64, f64)) -> HashMap<i32, usize> {
            let mut counts = HashMap::new();
            let end = self.time + Duration::from_secs(seconds);
            for size in [1, 4].into_iter().cycle() {
                let threads = self.governor.n_threads();
                *counts.entry(threads).or_default() += 1;
                let (ms, part) = cost(threads);
                let wall = Duration::from_millis(ms * (1 + size as u64 / 4));
                self.time += wall;
                self.governor.saw(Decode { kind: (1, size), wall, ran: wall.mul_f64(part) }, self.time);
                if self.time >= end {
                    return counts;
                }
            }
            unreachable!()
        }
    }

    #[test]
    fn threads_with_a_core_each_stay() {
        let mut machine = Machine::new(8);
        let counts = machine.run(60, |threads| (80 / threads as u64, 0.98));
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&8]);
    }

    #[test]
    fn on_one_core_one_thread_is_left_and_more_come_back_later() {
        let mut machine = Machine::new(8);
        let one_core = |threads: i32| if threads == 1 { (10, 1.0) } else { (200 * threads as u64, 0.5) };
        machine.run(30, one_core);
        let counts = machine.run(60, one_core);
        assert!(counts[&1] > 30 * counts.values().filter(|n| **n != counts[&1]).sum::<usize>(), "{counts:?}");
        machine.run(30, |threads| (80 / threads as u64, 0.98));
        assert_eq!(machine.governor.n_threads(), 8, "the cores are free again");
    }

    #[test]
    fn what_is_no_faster_is_not_kept() {
        let mut machine = Machine::new(2);
        // Another program takes a part of both cores.
        let shared = |threads| if threads == 1 { (20, 0.7) } else { (14, 0.7) };
        let counts = machine.run(60, shared);
        assert!(counts[&2] > 10 * counts[&1] && counts[&1] > 0, "{counts:?}");
    }

    #[test]
    fn a_single_slow_decode_changes_nothing() {
        let mut machine = Machine::new(4);
        machine.run(5, |_| (10, 0.99));
        let wall = Duration::from_millis(50);
        machine.governor.saw(Decode { kind: (1, 1), wall, ran: wall / 2 }, machine.time);
        let counts = machine.run(5, |_| (10, 0.99));
        assert_eq!(counts.len(), 1, "{counts:?}");
    }

    #[test]
    fn a_trial_is_judged_by_decodes_of_known_kinds() {
        let mut machine = Machine::new(2);
        let mut size = 100;
        // Small decodes are slower with one thread. Prompts, each of another size, are seen once and tell nothing.
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
            machine.governor.saw(Decode { kind, wall, ran: wall.mul_f64(0.7) }, machine.time);
        }
        let counts = machine.run(60, |threads| if threads == 1 { (20, 0.7) } else { (14, 0.7) });
        assert!(counts[&2] > 10 * counts[&1], "{counts:?}");
    }

    #[test]
    fn one_thread_is_always_one() {
        let counts = Machine::new(0).run(5, |_| (10, 0.2));
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&1]);
    }
}
