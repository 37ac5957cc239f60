//! Priorities: the order in which requests get slots, and which running request makes way. Pure functions of plain data.
//!
//! Requests of a higher level come first, within a level those with an earlier deadline, then the earlier ones. A request's level is its
//! priority, and rises by one when its deadline has passed, and whenever [`OVERTAKEN_PER_LEVEL`] later requests have begun before it. So
//! each request is overtaken only a limited number of times. A request preempts those whose level is below its priority. So one that has
//! risen preempts none, but is preempted by fewer.

use std::cmp::Reverse;
use std::time::Instant;

use super::step::input::SlotState;

/// The priority of preparations: below those of all requests, however often others overtake it.
pub const PREPARATION: i32 = i32::MIN / 2;

/// The number of later requests that begin before a request until its level rises by one.
const OVERTAKEN_PER_LEVEL: i32 = 8;

/// The place of a completion among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rank {
    pub(super) priority: i32,
    /// The number of its request, and its own among the completions of that.
    arrival: (u64, usize),
    /// Its deadline, which does not end it.
    due: Option<Instant>,
    /// The number of later requests that have begun before it.
    n_overtaken: i32,
}

impl Rank {
    pub(super) fn new(priority: i32, arrival: (u64, usize), due: Option<Instant>) -> Rank {
        Rank { priority, arrival, due, n_overtaken: 0 }
    }

    /// Its level at the time `now`.
    pub(super) fn level(&self, now: Instant) -> i32 {
        let is_late = self.due.is_some_and(|due| due < now);
        self.priority + self.n_overtaken / OVERTAKEN_PER_LEVEL + i32::from(is_late)
    }

    /// Sorts requests in the order in which they get slots.
    pub(super) fn order(&self, now: Instant) -> impl Ord + use<> {
        (Reverse(self.level(now)), self.due.is_none(), self.due, self.arrival)
    }

    /// Sorts completions in the order in which they came.
    pub(super) fn arrival(&self) -> (u64, usize) {
        self.arrival
    }

    /// Another request has begun while this one waits.
    pub(super) fn other_has_begun(&mut self, other: Rank) {
        if self.arrival.0 < other.arrival.0 {
            self.n_overtaken = self.n_overtaken.saturating_add(1);
        }
    }
}

/// The slot whose request makes way for one of this priority, which asks for `slot` or takes any: of the requests with a lower level one of
/// the lowest, the youngest of them. `None`: there is none.
pub(super) fn to_preempt(states: &[SlotState], priority: i32, slot: Option<usize>) -> Option<usize> {
    let lower = (0..).zip(states).filter(|(index, state)| {
        let is_taken = slot.is_none_or(|slot| slot == *index);
        is_taken && state.has_request && state.may_be_preempted && state.level < priority
    });
    lower.min_by_key(|(_, state)| (state.level, Reverse(state.last_used))).map(|(index, _)| index)
}
