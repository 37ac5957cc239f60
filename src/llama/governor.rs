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
    /// What takes equally long on an idle machine: the context and the size of its batch.
    pub(super) kind: (usize, usize),
    /// How long it took.
    pub(super) wall: Duration,
    /// For how long the engine's thread ran meanwhile. It runs all the time where each thread has a core.
    pub(super) ran: Duration,
}

/// Decodes, and time, after which two numbers of threads are compared.
const WINDOW_DECODES: u32 = 6;
const WINDOW: Duration = Duration::from_millis(60);
/// Below this part of a core for the engine's thread, fewer threads are tried.
const ENOUGH: f64 = 0.85;
/// In so many windows, one after the other: something else runs on every machine now and then.
const LACKING: u32 = 2;
/// What was tried is kept where it takes less than this part of the time before.
const BETTER: f64 = 0.95;
/// From one trial to the next: doubled by each that did not pay.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// Kinds of decodes that are known at a time.
const MOST_KINDS: usize = 256;

/// Chooses the number of threads.
#[derive(Debug)]
pub(super) struct Governor {
    most: i32,
    now: i32,
    /// Seconds that a decode of each kind took when it was first seen: a unit, so that decodes of several kinds can be added.
    units: HashMap<(usize, usize), f64>,
    window: Window,
    /// Windows, one after the other, in which the engine's thread lacked a core.
    lacking: u32,
    /// The number and the pace before the trial that runs.
    trial: Option<(i32, f64)>,
    /// When the next trial may begin, after which pause.
    next: Option<Instant>,
    pause: Duration,
}

/// Decodes with the same number of threads.
#[derive(Debug, Default)]
struct Window {
    n: u32,
    wall: f64,
    ran: f64,
    units: f64,
}

impl Window {
    /// Time for each unit.
    fn pace(&self) -> f64 {
        self.wall / self.units.max(f64::MIN_POSITIVE)
    }

    fn is_full(&self) -> bool {
        self.n >= WINDOW_DECODES && self.wall >= WINDOW.as_secs_f64()
    }
}

impl Governor {
    /// At most `most` threads.
    pub(super) fn new(most: i32) -> Governor {
        let most = most.max(1);
        Governor {
            most,
            now: most,
            units: HashMap::new(),
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
        if self.units.len() >= MOST_KINDS && !self.units.contains_key(&decode.kind) {
            // A window holds decodes by one set of units.
            self.units.clear();
            self.window = Window::default();
        }
        let wall = decode.wall.as_secs_f64();
        let unit = *self.units.entry(decode.kind).or_insert(wall);
        self.window.n += 1;
        self.window.wall += wall;
        self.window.ran += decode.ran.as_secs_f64().min(wall);
        self.window.units += unit;
        if self.window.is_full() {
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
    fn one_thread_is_always_one() {
        let counts = Machine::new(0).run(5, |_| (10, 0.2));
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&1]);
    }
}
