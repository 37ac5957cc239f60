//! When the next decode may begin, for a host that wants a part of each interval for itself (`init`'s `frame_budget`).
//!
//! A pacer divides time into intervals of `per`. A decode begins at once if its expected cost fits into what is left of `busy` in the
//! interval, and else at the interval's end. A decode that takes longer than `busy` alone prolongs its interval, so that the engine
//! is busy for at most `busy / per` of the time in the long run. The cost of a decode is the average of those of its kind. What the engine's
//! thread computes between decodes (sampling, drafts without a model) counts as busy, too.
//!
//! [`Pacer`] is plain data whose clock is an argument. Its owner sleeps, see `ThreadPool::pace`.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::governor::DecodeKind;

/// For how long the engine may be busy in each interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameBudget {
    /// The time that the engine may use.
    pub busy: Duration,
    /// The length of the interval.
    pub per: Duration,
}

/// The part of the latest decode in the average of its kind.
const LATEST: f64 = 0.3;
/// Kinds of decodes that are known at a time.
const MOST_KINDS: usize = 256;

/// Divides time into intervals.
#[derive(Debug)]
pub(super) struct Pacer {
    budget: FrameBudget,
    /// When the interval began; `None`: no decode has begun yet.
    start: Option<Instant>,
    /// Of the interval, used until now.
    used: Duration,
    /// Seconds of a decode of each kind.
    costs: HashMap<DecodeKind, f64>,
    /// The CPU time of the decoding thread when its last decode ended.
    ran: Option<Duration>,
}

impl Pacer {
    pub(super) fn new(budget: FrameBudget) -> Pacer {
        Pacer { budget, start: None, used: Duration::ZERO, costs: HashMap::new(), ran: None }
    }

    /// The host's share.
    pub(super) fn budget(&self) -> FrameBudget {
        self.budget
    }

    /// How long a decode of that kind must wait at `now`. The thread that is to decode has run for `ran` in all. The decode then belongs to
    /// the interval that it begins in.
    pub(super) fn wait(&mut self, kind: DecodeKind, now: Instant, ran: Option<Duration>) -> Duration {
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
            return Duration::ZERO;
        }
        self.begin(end);
        end.saturating_duration_since(now)
    }

    /// A decode of that kind was busy for so long, and its thread has now run for `ran` in all.
    pub(super) fn decoded(&mut self, kind: DecodeKind, busy: Duration, ran: Option<Duration>) {
        self.used += busy;
        self.ran = ran;
        if self.costs.len() >= MOST_KINDS && !self.costs.contains_key(&kind) {
            self.costs.clear();
        }
        let seconds = busy.as_secs_f64();
        let cost = self.costs.entry(kind).or_insert(seconds);
        *cost += LATEST * (seconds - *cost);
    }

    fn begin(&mut self, start: Instant) {
        self.start = Some(start);
        self.used = Duration::ZERO;
    }

    /// The length of this interval, with what was used of it.
    fn length(&self) -> Duration {
        let FrameBudget { busy, per } = self.budget;
        let part = self.used.as_secs_f64() / busy.as_secs_f64().max(f64::MIN_POSITIVE);
        per.mul_f64(part.clamp(1.0, 1e6))
    }
}

thread_local! {
    /// For how long decodes of this thread have waited in all.
    static PAUSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A decode of the calling thread has waited for so long.
pub(super) fn paused(time: Duration) {
    PAUSED.set(PAUSED.get() + time);
}

/// A clock that stands still while decodes of the calling thread wait for their interval: measures what work costs.
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

    /// Decodes at once whenever the pacer lets it.
    struct Host {
        pacer: Pacer,
        begin: Instant,
        now: Instant,
        /// Begin and end of each decode.
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

        /// The most time that decodes take in any interval of that length that begins with one of them.
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
        // The first decode's cost is not known before it.
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
            // Costs of a kind vary, so expectations are wrong.
            let cost = [0.2, 1.0, 3.0, 5.0, 9.0, 40.0][kind] * (0.5 + (random >> 40 & 255) as f64 / 255.0);
            host.decode(kind, cost);
        }
        let busy: Duration = host.decodes.iter().map(|(begin, end)| *end - *begin).sum();
        let share = busy.as_secs_f64() / host.decodes.last().map_or(1.0, |last| last.1.as_secs_f64());
        assert!(share <= 0.25 + 1e-3, "{share}");
        assert!(share > 0.15, "and no more is left unused than decodes that do not fit: {share}");
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
