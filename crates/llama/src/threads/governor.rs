//! Adapts the number of threads to the load of other programs.
//!
//! The threads of a decode wait for each other hundreds of times per token. If another program uses one of their cores, all threads
//! run at the speed of the slowest one, and fewer threads are faster. The best number can only be found by trying. The governor tries
//! fewer threads when the engine's thread gets too little CPU time, and occasionally more threads when it uses fewer than the load set.
//! It keeps the faster number. It is plain data: the time is an argument.
//!
//! Only decodes of the same kind can be compared. A load and the first steps of a request bring ever new kinds, so a trial may end before it
//! could be judged. Then it did not fail: its measurements are kept, and the next trial begins with them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The measurement of a decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodeTime {
    /// The context and the size of the batch.
    pub(crate) kind: DecodeKind,
    /// The elapsed time.
    pub(crate) wall: Duration,
    /// The CPU time of the engine's thread. It equals `wall` if each thread has a core.
    pub(crate) ran: Duration,
}

/// A window ends after this number of decodes and this time.
const WINDOW_DECODES: u32 = 6;
const WINDOW: Duration = Duration::from_millis(60);
/// A window of two slow decodes ends after this time.
const SLOW_WINDOW: Duration = Duration::from_millis(250);
/// A trial ends early if two decodes or more, which took this time, were slower than usual by this factor.
const ABANDON: f64 = 1.5;
const ABANDON_AFTER: Duration = Duration::from_millis(4);
/// If the engine's thread gets less than this share of a core, fewer threads are tried.
const MIN_SHARE: f64 = 0.85;
/// The number of consecutive windows with too small a share before a trial, because short loads occur on every machine.
const STARVED_WINDOWS: u32 = 2;
/// A trial succeeds if decodes take less than this fraction of their usual time.
const BETTER: f64 = 0.95;
/// The time between trials. Each failed trial doubles it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// A trial ends without a judgement after this number of decodes of kinds that are not known, or this time of them.
const MAX_UNKNOWN: u32 = 60;
const MAX_UNKNOWN_TIME: Duration = Duration::from_millis(60);
/// The pause after such a trial, in multiples of its time.
const UNJUDGED_PAUSE: f64 = 4.0;
/// The weight of the latest decode in the moving average of its kind.
const LATEST: f64 = 0.25;
/// The maximum number of kinds of decodes that are remembered.
const MAX_KINDS: usize = 256;

/// The context and the size of the batch. Decodes of the same kind take the same time on an idle machine.
pub(crate) type DecodeKind = (usize, usize);

/// Chooses the number of threads.
#[derive(Debug)]
pub(crate) struct Governor {
    max: i32,
    now: i32,
    /// The usual time of a decode of each kind with the current number of threads, in seconds: a moving average.
    usual: HashMap<DecodeKind, f64>,
    window: Window,
    /// The number of consecutive windows in which the engine's thread got too little CPU time.
    starved: u32,
    /// The running trial.
    trial: Option<ThreadTrial>,
    /// The last trial, if it could not be judged.
    unjudged: Option<ThreadTrial>,
    /// The earliest time of the next trial, and the current pause.
    next: Option<Instant>,
    pause: Duration,
}

/// A trial of another number of threads.
#[derive(Debug)]
struct ThreadTrial {
    /// The number of threads before the trial, and in it.
    before: i32,
    threads: i32,
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
    /// Adds `n` decodes of a kind that took `wall` seconds together, and of which each usually takes `usual`, if that is known.
    fn add(&mut self, n: u32, wall: f64, usual: Option<f64>) {
        self.n += n;
        self.wall += wall;
        if let Some(usual) = usual {
            self.compared += n;
            self.compared_wall += wall;
            self.usual += f64::from(n) * usual;
        }
    }

    fn is_full(n: u32, wall: f64) -> bool {
        let takes = |enough: u32, time: Duration| n >= enough && wall >= time.as_secs_f64();
        takes(WINDOW_DECODES, WINDOW) || takes(2, SLOW_WINDOW)
    }
}

impl Governor {
    /// A governor for at most `max` threads.
    pub(crate) fn new(max: i32) -> Governor {
        let max = max.max(1);
        Governor {
            max,
            now: max,
            usual: HashMap::new(),
            window: Window::default(),
            starved: 0,
            trial: None,
            unjudged: None,
            next: None,
            pause: SHORTEST_PAUSE,
        }
    }

    /// The number of threads for the next decode.
    pub(crate) fn n_threads(&self) -> i32 {
        self.now
    }

    /// Records a decode that ended at `time`.
    pub(crate) fn record(&mut self, decode: DecodeTime, time: Instant) {
        if self.max == 1 {
            return;
        }
        if self.usual.len() >= MAX_KINDS && !self.usual.contains_key(&decode.kind) {
            self.usual.clear();
        }
        let wall = decode.wall.as_secs_f64();
        self.window.add(1, wall, self.usual.get(&decode.kind).copied());
        self.window.ran += decode.ran.as_secs_f64().min(wall);
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

    /// Ends the trial if it has enough decodes of known kinds, or too many of others.
    fn evaluate_trial(&mut self, time: Instant) {
        let Window { n, wall, compared, compared_wall, usual, .. } = self.window;
        let ratio = compared_wall / usual.max(f64::MIN_POSITIVE);
        let is_slower = compared >= 2 && compared_wall >= ABANDON_AFTER.as_secs_f64() && ratio > ABANDON;
        let is_judged = Window::is_full(compared, compared_wall) || is_slower;
        let is_over =
            is_judged || n - compared >= MAX_UNKNOWN || wall - compared_wall >= MAX_UNKNOWN_TIME.as_secs_f64();
        let Some(trial) = self.trial.take_if(|_| is_over) else { return };
        self.window = Window::default();
        if !is_judged {
            self.now = trial.before;
            self.next = time.checked_add(Duration::from_secs_f64(UNJUDGED_PAUSE * wall));
            self.unjudged = Some(trial);
            return;
        }
        self.starved = 0;
        if ratio < BETTER {
            let average = |(kind, (n, sum)): (DecodeKind, (u32, f64))| (kind, sum / f64::from(n));
            self.usual = trial.seen.into_iter().map(average).collect();
            self.pause = SHORTEST_PAUSE;
        } else {
            self.now = trial.before;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
        self.next = time.checked_add(self.pause);
    }

    /// Begins a trial if the window shows a reason for one.
    fn consider_trial(&mut self, window: &Window, time: Instant) {
        self.starved = if window.ran < MIN_SHARE * window.wall { self.starved + 1 } else { 0 };
        if self.starved == 0 && self.now == self.max {
            // These times are those of a machine with nothing beside, so they say nothing about a trial beside other programs.
            self.usual.clear();
            (self.next, self.pause, self.unjudged) = (None, SHORTEST_PAUSE, None);
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
            self.begin_trial(other);
        }
    }

    /// Begins a trial with the measurements of the last one, if that could not be judged.
    fn begin_trial(&mut self, threads: i32) {
        let before = std::mem::replace(&mut self.now, threads);
        let is_same =
            |last: &ThreadTrial| (last.before, last.threads) == (before, threads) && last.seen.len() < MAX_KINDS;
        let last = self.unjudged.take().filter(is_same);
        let trial = last.unwrap_or_else(|| ThreadTrial { before, threads, seen: HashMap::new() });
        for (kind, (n, sum)) in &trial.seen {
            if let Some(usual) = self.usual.get(kind) {
                self.window.add(*n, *sum, Some(*usual));
            }
        }
        self.trial = Some(trial);
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

    /// A small pair of models. Alone, a drafted token takes .1 ms on one thread, and the target some tenths; two threads take three fifths of that.
    /// Beside two busy programs on two cores, two threads take 2 to 5 ms, because one of them waits for a core, and one thread sometimes waits, too.
    struct Pair {
        machine: Machine,
        round: usize,
        is_busy: fn(f64) -> bool,
        seconds: f64,
        /// The number of decodes with one thread and with two, and their seconds.
        decodes: [(usize, f64); 2],
    }

    impl Pair {
        fn new(is_busy: fn(f64) -> bool) -> Pair {
            Pair { machine: Machine::new(2), round: 0, is_busy, seconds: 0.0, decodes: [(0, 0.0); 2] }
        }

        fn decode(&mut self, size: usize, is_draft: bool) {
            self.round += 1;
            let alone = if is_draft { 0.1 } else { 0.15 + 0.05 * size as f64 };
            let threads = self.machine.governor.n_threads();
            let (ms, part) = match ((self.is_busy)(self.seconds), threads) {
                (false, 1) => (alone, 0.98),
                (false, _) => (0.6 * alone, 0.98),
                (true, 1) if self.round.is_multiple_of(23) => (alone + 3.0, alone / (alone + 3.0)),
                (true, 1) => (alone, 0.98),
                (true, _) => (2.0 + (self.round * 7 % 4) as f64, 0.4),
            };
            let wall = Duration::from_secs_f64(ms * 1e-3);
            self.machine.time += wall;
            self.seconds += wall.as_secs_f64();
            let (n, seconds) = &mut self.decodes[usize::from(threads > 1)];
            (*n, *seconds) = (*n + 1, *seconds + wall.as_secs_f64());
            let kind = (if is_draft { 2 } else { 1 }, size);
            self.machine.governor.record(DecodeTime { kind, wall, ran: wall.mul_f64(part) }, self.machine.time);
        }

        /// A load measures each size a few times.
        fn load(&mut self) {
            for size in [1, 2, 4, 8, 16, 3, 6, 12, 5, 9, 24, 13, 32, 48, 62] {
                (0..3).for_each(|_| self.decode(size, false));
            }
        }

        /// Requests until this time: a prompt, then drafts of changing lengths.
        fn generate(&mut self, until: f64) {
            self.decodes = [(0, 0.0); 2];
            for step in 0.. {
                if step % 100 == 0 {
                    self.decode(70 + step, false);
                    self.decode(70 + step, true);
                }
                let length = [7, 3, 10, 1, 5, 14, 2, 8][step * 7 / 3 % 8];
                self.decode(1 + step % 2, true);
                (1..length).for_each(|_| self.decode(1, true));
                self.decode(1 + length, false);
                if self.seconds >= until {
                    return;
                }
            }
        }
    }

    #[test]
    fn kinds_of_decodes_that_are_new_delay_no_decision() {
        let mut pair = Pair::new(|_| true);
        pair.load();
        pair.generate(pair.seconds + 1.25);
        let [_, (_, with_two)] = pair.decodes;
        assert!(with_two < 0.3, "{:?}", pair.decodes);
        pair.generate(pair.seconds + 10.0);
        let [(one, _), (two, with_two)] = pair.decodes;
        assert!(with_two < 0.1 && one > 1000 * two, "{:?}", pair.decodes);
    }

    #[test]
    fn programs_that_begin_later_are_noticed_within_half_a_second() {
        let mut pair = Pair::new(|seconds| seconds > 1.0);
        pair.load();
        pair.generate(1.0);
        assert_eq!(pair.decodes[0].0, 0, "nothing else runs: {:?}", pair.decodes);
        pair.generate(2.5);
        assert!(pair.decodes[1].1 < 0.3, "{:?}", pair.decodes);
    }

    /// Other programs run in ten of 20 seconds. One or two threads all the time would decode 46,000 or 47,000 times.
    #[test]
    fn programs_that_come_and_go_cost_no_more_than_a_fixed_number_of_threads() {
        let tenths: fn(f64) -> bool = |seconds| seconds % 0.2 > 0.1;
        let thirds: fn(f64) -> bool = |seconds| seconds % 0.6 > 0.3;
        let seconds: fn(f64) -> bool = |seconds| seconds % 4.0 > 2.0;
        for is_busy in [tenths, thirds, seconds] {
            let mut pair = Pair::new(is_busy);
            pair.load();
            pair.generate(20.0);
            assert!(pair.decodes[0].0 + pair.decodes[1].0 > 45_000, "{:?}", pair.decodes);
        }
    }

    #[test]
    fn slow_decodes_decide_after_a_few() {
        let mut machine = Machine::new(2);
        let counts = machine.run(60, |threads| if threads == 1 { (150.0, 1.0) } else { (300.0, 0.5) });
        assert!(counts[&1] > 5 * counts[&2], "{counts:?}");
    }

    #[test]
    fn a_single_thread_is_never_changed() {
        let counts = Machine::new(0).run(5, |_| (10.0, 0.2));
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&1]);
    }
}
