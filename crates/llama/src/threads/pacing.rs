//! Delays decodes, for a host that needs a part of each interval for itself (a load's `frame_budget`).
//!
//! A pacer divides time into intervals of `per`. A decode starts at once if its expected cost fits into the remaining part of `busy` in the
//! interval, otherwise at the interval's end. A decode that is longer than `busy` extends its interval, so on average the engine is busy for
//! at most `busy / per` of the time. The expected cost of a decode is the moving average of its kind. The CPU time of the engine's thread
//! between decodes (sampling, drafts without a model) counts as busy, too.
//!
//! [`Pacer`] is plain data whose clock is an argument. Its owner sleeps, see `ThreadPool::pace`.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::threads::governor::DecodeKind;

/// The time that the engine can use in each interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameBudget {
    /// The engine's time.
    pub busy: Duration,
    /// The length of the interval.
    pub per: Duration,
}

/// The weight of the latest decode in the moving average of its kind.
const LATEST: f64 = 0.3;
/// The maximum number of kinds of decodes that are remembered.
const MAX_KINDS: usize = 256;

/// Divides time into intervals.
#[derive(Debug)]
pub(crate) struct Pacer {
    budget: FrameBudget,
    /// The start of the interval. `None`: there was no decode yet.
    start: Option<Instant>,
    /// The time used in the interval so far.
    used: Duration,
    /// The average cost of each kind of decode, in seconds.
    costs: HashMap<DecodeKind, f64>,
    /// The CPU time of the decoding thread at the end of its last decode.
    ran: Option<Duration>,
}

impl Pacer {
    pub(crate) fn new(budget: FrameBudget) -> Pacer {
        Pacer { budget, start: None, used: Duration::ZERO, costs: HashMap::new(), ran: None }
    }

    /// The budget.
    pub(crate) fn budget(&self) -> FrameBudget {
        self.budget
    }

    /// The time for which a decode of this kind must wait at `now`. `ran`: the CPU time of the decoding thread so far. The decode belongs to
    /// the interval in which it starts.
    pub(crate) fn wait(&mut self, kind: DecodeKind, now: Instant, ran: Option<Duration>) -> Duration {
        if let (Some(before), Some(ran)) = (self.ran.take(), ran) {
            self.used += ran.saturating_sub(before);
        }
        let end = self.start.and_then(|start| start.checked_add(self.length()));
        let Some(end) = end.filter(|end| now < *end) else {
            self.begin(now);
            return Duration::ZERO;
        };
        let cost = self.costs.get(&kind).map_or(Duration::ZERO, |seconds| Duration::from_secs_f64(*seconds));
        if self.used + cost <= self.budget.busy {
            return self.until_start(now);
        }
        self.begin(end);
        end.saturating_duration_since(now)
    }

    /// Records the time of a decode of this kind. `ran`: the CPU time of the decoding thread so far.
    pub(crate) fn decoded(&mut self, kind: DecodeKind, busy: Duration, ran: Option<Duration>) {
        self.used += busy;
        self.ran = ran;
        if self.costs.len() >= MAX_KINDS && !self.costs.contains_key(&kind) {
            self.costs.clear();
        }
        let seconds = busy.as_secs_f64();
        let cost = self.costs.entry(kind).or_insert(seconds);
        *cost += LATEST * (seconds - *cost);
    }

    /// Charges for work that is no decode and has used `busy` until `now`, also beside decodes. Returns the time for which it must wait.
    pub(crate) fn charge(&mut self, busy: Duration, now: Instant) -> Duration {
        let end = |this: &Pacer| this.start.and_then(|start| start.checked_add(this.length()));
        if end(self).is_none_or(|end| now >= end) {
            self.begin(now);
        }
        self.used += busy;
        if let Some(end) = end(self).filter(|_| self.used >= self.budget.busy) {
            self.begin(end);
        }
        self.until_start(now)
    }

    /// The time until the interval begins, if other work has used up the one before it.
    fn until_start(&self, now: Instant) -> Duration {
        self.start.map_or(Duration::ZERO, |start| start.saturating_duration_since(now))
    }

    fn begin(&mut self, start: Instant) {
        self.start = Some(start);
        self.used = Duration::ZERO;
    }

    /// The length of this interval, extended if more than `busy` was used.
    fn length(&self) -> Duration {
        let FrameBudget { busy, per } = self.budget;
        let part = self.used.as_secs_f64() / busy.as_secs_f64().max(f64::MIN_POSITIVE);
        per.mul_f64(part.clamp(1.0, 1e6))
    }
}

thread_local! {
    /// The total time for which decodes of this thread have waited.
    static PAUSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Records a wait of a decode of the calling thread.
pub(crate) fn paused(time: Duration) {
    PAUSED.set(PAUSED.get() + time);
}

/// The current time minus the time for which decodes of the calling thread have waited. For measuring costs.
#[must_use]
pub fn working_time() -> Instant {
    let now = Instant::now();
    now.checked_sub(PAUSED.get()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: f64) -> Duration {
        Duration::from_secs_f64(ms / 1e3)
    }

    #[test]
    fn other_work_and_decodes_share_an_interval() {
        let begin = Instant::now();
        let mut pacer = Pacer::new(FrameBudget { busy: ms(6.0), per: ms(16.0) });
        let at = |time: f64| begin + ms(time);
        assert_eq!(pacer.charge(ms(2.0), at(0.0)), Duration::ZERO);
        assert_eq!(pacer.wait((0, 1), at(2.0), None), Duration::ZERO);
        pacer.decoded((0, 1), ms(2.0), None);
        assert_eq!(pacer.charge(ms(3.0), at(4.0)), ms(16.0 * 7.0 / 6.0 - 4.0), "7 ms are used");
        assert_eq!(pacer.wait((0, 1), at(5.0), None), ms(16.0 * 7.0 / 6.0 - 5.0), "a decode waits, too");
        assert_eq!(pacer.charge(ms(1.0), at(20.0)), Duration::ZERO, "the next interval");
    }

    /// Decodes whenever the pacer allows it.
    struct Host {
        pacer: Pacer,
        begin: Instant,
        now: Instant,
        /// Start and end of each decode.
        decodes: Vec<(Duration, Duration)>,
    }

    impl Host {
        fn new(busy: f64, per: f64) -> Host {
            let now = Instant::now();
            let budget = FrameBudget { busy: ms(busy), per: ms(per) };
            Host { pacer: Pacer::new(budget), begin: now, now, decodes: Vec::new() }
        }

        fn decode(&mut self, kind: usize, cost: f64) {
            self.now += self.pacer.wait((0, kind), self.now, None);
            let begin = self.now - self.begin;
            self.now += ms(cost);
            self.pacer.decoded((0, kind), ms(cost), None);
            self.decodes.push((begin, self.now - self.begin));
        }

        /// The maximum time of decodes in an interval of this length that starts with a decode.
        fn busiest(&self, length: Duration) -> Duration {
            let busy_in = |from: Duration| {
                let part =
                    |(begin, end): &(Duration, Duration)| (*end).min(from + length).saturating_sub((*begin).max(from));
                self.decodes.iter().map(part).sum()
            };
            self.decodes.iter().map(|(begin, _)| busy_in(*begin)).max().unwrap_or_default()
        }
    }

    fn close(a: Duration, b: Duration) -> bool {
        a.abs_diff(b) < Duration::from_micros(5)
    }

    #[test]
    fn short_decodes_fill_the_busy_part_of_each_interval() {
        let mut host = Host::new(6.0, 16.0);
        for _ in 0..300 {
            host.decode(1, 2.0);
        }
        // The cost of the first decode is unknown in advance.
        let starts: Vec<Duration> = host.decodes.iter().skip(30).take(4).map(|(begin, _)| *begin).collect();
        assert!(close(starts[1] - starts[0], ms(2.0)) && close(starts[2] - starts[1], ms(2.0)), "{starts:?}");
        assert!(close(starts[3] - starts[0], ms(16.0)), "{starts:?}");
        assert!(close(host.busiest(ms(16.0)), ms(6.0)), "{:?}", host.busiest(ms(16.0)));
    }

    #[test]
    fn decode_longer_than_the_budget_is_followed_by_a_pause_in_proportion() {
        let mut host = Host::new(6.0, 16.0);
        for _ in 0..10 {
            host.decode(1, 30.0);
        }
        for pair in host.decodes.windows(2) {
            assert!(close(pair[1].0 - pair[0].0, ms(80.0)), "{pair:?}");
        }
    }

    #[test]
    fn share_holds_for_decodes_of_any_cost() {
        let mut host = Host::new(5.0, 20.0);
        let mut random = 1_u64;
        for _ in 0..5000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let kind = (random >> 33) as usize % 6;
            // Costs of a kind vary, so expected costs are inexact.
            let cost = [0.2, 1.0, 3.0, 5.0, 9.0, 40.0][kind] * (0.5 + (random >> 40 & 255) as f64 / 255.0);
            host.decode(kind, cost);
        }
        let busy: Duration = host.decodes.iter().map(|(begin, end)| *end - *begin).sum();
        let share = busy.as_secs_f64() / host.decodes.last().map_or(1.0, |last| last.1.as_secs_f64());
        assert!(share <= 0.25 + 1e-3, "{share}");
        assert!(share > 0.15, "only time that is too short for a decode is unused: {share}");
    }

    #[test]
    fn decode_after_an_idle_time_begins_at_once() {
        let mut host = Host::new(6.0, 16.0);
        (0..5).for_each(|_| host.decode(1, 6.0));
        host.now += ms(1000.0);
        let now = host.now - host.begin;
        host.decode(1, 6.0);
        assert_eq!(host.decodes.last().map(|last| last.0), Some(now));
    }

    #[test]
    fn work_between_decodes_counts_as_busy() {
        let (mut pacer, now) = (Host::new(6.0, 16.0).pacer, Instant::now());
        assert_eq!(pacer.wait((0, 1), now, Some(ms(100.0))), Duration::ZERO);
        pacer.decoded((0, 1), ms(2.0), Some(ms(102.0)));
        // The thread ran for 3 ms, so that another decode of 2 ms does not fit.
        let wait = pacer.wait((0, 1), now + ms(5.0), Some(ms(105.0)));
        assert!(close(wait, ms(11.0)), "{wait:?}");
    }

    #[test]
    fn clock_leaves_out_pauses() {
        let before = working_time();
        paused(Duration::from_secs(10));
        let later = working_time() + Duration::from_secs(10);
        assert!(later >= before && later - before < Duration::from_secs(9), "{:?}", later - before);
    }
}
