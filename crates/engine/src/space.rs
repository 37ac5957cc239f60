//! Makes space in the KV cache before a step is planned: shifts full contexts, evicts free caches, preempts requests.

use std::cmp::Reverse;

use super::conversations::put_away;
use super::ending;
use super::event::Stop;
use super::report::StepReport;
use super::slots::SlotPool;
use super::step::input::{SlotState, StepLimits};
use foredraft_base::prompt_fit;

/// A change in which slots have cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellChange {
    /// A preempted request goes on.
    Resume(usize),
    /// The cache of a free slot is evicted.
    Evict(usize),
    /// A request is preempted: it waits for cells, and its slot's cache is emptied.
    Preempt(usize),
}

/// Shifts the contexts that are full, or ends their requests, and groups positions that are due.
pub(super) fn make_space(pool: &mut SlotPool, report: &mut StepReport) {
    let n_ctx = pool.context.n_ctx();
    for index in 0..pool.slots.len() {
        let SlotPool { context, slots, drafters, ctx_shift, .. } = pool;
        let Some(slot) = slots.get_mut(index) else { continue };
        let Some(task) = slot.task.as_mut().filter(|task| !task.is_preempted || task.tokens.len() >= n_ctx) else {
            continue;
        };
        if task.tokens.len() >= n_ctx {
            // All but the newest token count, also tokens that are not in the cache: those of an accepted branch, or where the
            // cache was emptied. Otherwise the output would depend on that.
            let may_shift = *ctx_shift && !task.options.ends_when_full;
            let range = prompt_fit::shift(task.tokens.len().saturating_sub(1), task.n_keep)
                .filter(|_| may_shift)
                .filter(|range| slot.cache.shift(context, range.clone()));
            let Some(range) = range else {
                ending::end(pool, index, Stop::Limit, true, report);
                continue;
            };
            task.shift(range.clone());
            drafters.shift(index, range.start, range.len());
        }
        slot.cache.group(context);
    }
}

/// Makes room for what runs in the cells that all slots share. `apply` carries out each change, which `states` then has.
///
/// Preempted requests go on, those of the highest level first and of these the oldest, as soon as they fit again.
pub(super) fn balance(states: &mut [SlotState], limits: &StepLimits, mut apply: impl FnMut(CellChange)) {
    let Some(cells) = limits.shared_cells else { return };
    while let Some(index) = next_to_resume(states, cells) {
        make(CellChange::Resume(index), states, &mut apply);
    }
    while !fits(states, limits, cells) {
        let Some(change) = next_to_evict(states) else { return };
        make(change, states, &mut apply);
    }
}

fn make(change: CellChange, states: &mut [SlotState], apply: &mut impl FnMut(CellChange)) {
    let (CellChange::Resume(index) | CellChange::Evict(index) | CellChange::Preempt(index)) = change;
    if let Some(state) = states.get_mut(index) {
        state.is_preempted = matches!(change, CellChange::Preempt(_));
        if !matches!(change, CellChange::Resume(_)) {
            state.n_cached = 0;
        }
    }
    apply(change);
}

/// Whether the cells suffice for what the next step decodes.
fn fits(states: &[SlotState], limits: &StepLimits, cells: usize) -> bool {
    let used: usize = states.iter().map(|state| state.n_cached).sum();
    let running = states.iter().filter(|state| state.is_running());
    let need: usize = running.map(|state| state.n_pending().min(limits.n_ubatch) + state.n_max_draft).sum();
    used + need <= cells
}

/// The slot whose cells are freed for others: the free slot unused for longest, else that of the youngest request of the lowest level, which
/// is preempted.
/// `None`: a single request is left, which always fits.
pub(super) fn next_to_evict(states: &[SlotState]) -> Option<CellChange> {
    let idle = (0..).zip(states).filter(|(_, state)| !state.has_request && state.n_cached > 0);
    if let Some((index, _)) = idle.min_by_key(|(_, state)| state.last_used) {
        return Some(CellChange::Evict(index));
    }
    let running = (0..).zip(states).filter(|(_, state)| state.is_running());
    let (youngest, _) = running.clone().max_by_key(|(_, state)| (Reverse(state.level), state.last_used))?;
    (running.count() > 1).then_some(CellChange::Preempt(youngest))
}

fn next_to_resume(states: &[SlotState], cells: usize) -> Option<usize> {
    let preempted = (0..).zip(states).filter(|(_, state)| state.has_request && state.is_preempted);
    let (oldest, state) = preempted.min_by_key(|(_, state)| (Reverse(state.level), state.last_used))?;
    // Those of a lower level make way.
    let running = states.iter().filter(|other| other.is_running() && other.level >= state.level);
    let running: usize = running.map(|state| state.n_tokens).sum();
    // An eighth of the cells to grow into, or else it would soon be preempted again.
    let fits = running == 0 || running + state.n_tokens + cells / 8 <= cells;
    fits.then_some(oldest)
}

/// Carries out a change.
pub(super) fn apply(pool: &mut SlotPool, change: CellChange) {
    let (CellChange::Resume(index) | CellChange::Evict(index) | CellChange::Preempt(index)) = change;
    if matches!(change, CellChange::Evict(_)) {
        put_away(pool, index, None);
    }
    if !matches!(change, CellChange::Resume(_)) {
        pool.clear_cache(index);
    }
    if let Some(task) = pool.slots.get_mut(index).and_then(|slot| slot.task.as_mut()) {
        task.is_preempted = matches!(change, CellChange::Preempt(_));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::STEP_LIMITS;

    const LIMITS: StepLimits = StepLimits { shared_cells: Some(100), ..STEP_LIMITS };

    fn running(n_tokens: usize, last_used: u64) -> SlotState {
        SlotState { has_request: true, n_tokens, n_cached: n_tokens - 1, last_used, ..SlotState::default() }
    }

    fn preempted(n_tokens: usize, last_used: u64) -> SlotState {
        SlotState { is_preempted: true, n_cached: 0, ..running(n_tokens, last_used) }
    }

    fn changes(states: &[SlotState], limits: &StepLimits) -> Vec<CellChange> {
        let (mut states, mut changes) = (states.to_vec(), Vec::new());
        balance(&mut states, limits, |change| changes.push(change));
        changes
    }

    #[test]
    fn nothing_changes_while_cells_suffice() {
        assert_eq!(changes(&[running(40, 1), running(50, 2)], &LIMITS), []);
        let own = StepLimits { shared_cells: None, ..LIMITS };
        assert_eq!(changes(&[running(90, 1), running(90, 2)], &own), [], "each slot has its own cells");
    }

    #[test]
    fn unused_caches_are_evicted_before_the_youngest_request_is_preempted() {
        let idle = |n_cached, last_used| SlotState { n_cached, last_used, ..SlotState::default() };
        let states = [running(50, 3), idle(20, 2), idle(20, 1), running(45, 4)];
        assert_eq!(changes(&states, &LIMITS), [CellChange::Evict(2), CellChange::Evict(1)]);
        let states = [running(60, 3), running(30, 5), running(30, 4)];
        assert_eq!(changes(&states, &LIMITS), [CellChange::Preempt(1)]);
        assert_eq!(changes(&[running(150, 3)], &LIMITS), [], "a single request is left alone");
        let drafts = SlotState { n_max_draft: 16, ..running(45, 1) };
        assert_eq!(changes(&[drafts, running(45, 2)], &LIMITS), [CellChange::Preempt(1)], "drafts need cells as well");
    }

    #[test]
    fn the_lowest_level_is_preempted_first_and_goes_on_last() {
        let at = |level, state: SlotState| SlotState { level, ..state };
        let states = [at(0, running(60, 5)), at(-2, running(30, 3)), at(-2, running(30, 4))];
        assert_eq!(changes(&states, &LIMITS), [CellChange::Preempt(2)]);
        let states = [at(0, running(30, 1)), at(1, preempted(30, 3)), at(0, preempted(30, 2))];
        assert_eq!(changes(&states, &LIMITS), [CellChange::Resume(1)]);
        let states = [at(0, running(70, 1)), at(1, preempted(60, 3))];
        assert_eq!(changes(&states, &LIMITS), [CellChange::Resume(1), CellChange::Preempt(0)]);
    }

    #[test]
    fn preempted_requests_go_on_oldest_first_with_cells_to_grow_into() {
        let states = [running(50, 1), preempted(30, 3), preempted(30, 2)];
        assert_eq!(changes(&states, &LIMITS), [CellChange::Resume(2)]);
        assert_eq!(changes(&[running(60, 1), preempted(30, 3)], &LIMITS), [], "it would soon be preempted again");
        assert_eq!(changes(&[preempted(95, 3)], &LIMITS), [CellChange::Resume(0)], "alone it always fits");
    }
}
