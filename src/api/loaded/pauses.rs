//! The host's pauses of an engine, counted.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::llama::PauseGate;

/// Counts pauses, and closes the engine's gates while there are any. The lock is held for a few stores only, so a call never waits for the
/// engine.
pub struct HostPauses {
    state: Mutex<PauseState>,
    gate: Arc<PauseGate>,
}

struct PauseState {
    n_pauses: u32,
    /// The unloads and aborted loads that have not ended. Meanwhile the gates are open.
    n_openings: u32,
    /// The gates that follow the count.
    gates: Vec<Arc<PauseGate>>,
}

impl Default for HostPauses {
    fn default() -> Self {
        let gate = Arc::<PauseGate>::default();
        HostPauses::with(Arc::clone(&gate), vec![gate])
    }
}

impl HostPauses {
    /// The pauses of an engine whose gate another process opens and closes.
    pub fn of_other_process(gate: Arc<PauseGate>) -> HostPauses {
        HostPauses::with(gate, Vec::new())
    }

    fn with(gate: Arc<PauseGate>, gates: Vec<Arc<PauseGate>>) -> HostPauses {
        HostPauses { state: Mutex::new(PauseState { n_pauses: 0, n_openings: 0, gates }), gate }
    }

    /// The gate at which the engine's threads in this process sleep.
    pub fn gate(&self) -> &Arc<PauseGate> {
        &self.gate
    }

    /// Begins a pause.
    ///
    /// # Errors
    /// There are 2^32 - 1 already.
    pub fn pause(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.n_pauses = state.n_pauses.checked_add(1).ok_or_else(|| Error::invalid("pause: too many pauses"))?;
        state.apply();
        Ok(())
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// There is none.
    pub fn resume(&self) -> Result<()> {
        let mut state = self.state.lock();
        let left = state.n_pauses.checked_sub(1);
        state.n_pauses = left.ok_or_else(|| Error::invalid("resume: the engine is not paused"))?;
        state.apply();
        Ok(())
    }

    /// Whether there is a pause.
    pub fn is_paused(&self) -> bool {
        self.state.lock().n_pauses > 0
    }

    /// Opens the gates in spite of all pauses, so that the engine can end, until the result is dropped.
    pub fn open(&self) -> Opening<'_> {
        let mut state = self.state.lock();
        state.n_openings += 1;
        state.apply();
        Opening(self)
    }

    /// Lets another gate follow, until the result is dropped.
    pub fn follow(self: &Arc<Self>, gate: Arc<PauseGate>) -> Following {
        let mut state = self.state.lock();
        state.gates.push(Arc::clone(&gate));
        state.apply();
        Following { pauses: Arc::clone(self), gate }
    }
}

impl PauseState {
    fn apply(&self) {
        let n_pauses = if self.n_openings > 0 { 0 } else { self.n_pauses };
        self.gates.iter().for_each(|gate| gate.set(n_pauses));
    }
}

/// The gates are open.
pub struct Opening<'a>(&'a HostPauses);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.n_openings = state.n_openings.saturating_sub(1);
        state.apply();
    }
}

/// A gate follows the host's pauses.
pub struct Following {
    pauses: Arc<HostPauses>,
    gate: Arc<PauseGate>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.pauses.state.lock().gates.retain(|gate| !Arc::ptr_eq(gate, &self.gate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn as_many_resumes_as_pauses_open_the_gate() {
        let pauses = HostPauses::default();
        let refused = |result: Result<()>| result.expect_err("no pause").code() == Code::InvalidRequest;
        assert!(refused(pauses.resume()) && !pauses.gate().is_closed());
        for _ in 0..3 {
            pauses.pause().expect("it pauses");
        }
        for _ in 0..3 {
            assert!(pauses.is_paused() && pauses.gate().is_closed());
            pauses.resume().expect("it is paused");
        }
        assert!(refused(pauses.resume()) && !pauses.is_paused() && !pauses.gate().is_closed());
    }

    #[test]
    fn an_engine_that_ends_is_not_held_up() {
        let pauses = HostPauses::default();
        pauses.pause().expect("it pauses");
        let (first, second) = (pauses.open(), pauses.open());
        assert!(pauses.is_paused() && !pauses.gate().is_closed());
        pauses.pause().expect("it pauses");
        drop(first);
        assert!(!pauses.gate().is_closed(), "another unload runs");
        drop(second);
        assert!(pauses.gate().is_closed(), "the next load waits for the host");
    }

    #[test]
    fn a_gate_follows_from_the_moment_it_is_added() {
        let pauses = Arc::new(HostPauses::default());
        pauses.pause().expect("it pauses");
        let gate = Arc::<PauseGate>::default();
        let following = pauses.follow(Arc::clone(&gate));
        assert!(gate.is_closed());
        pauses.resume().expect("it is paused");
        assert!(!gate.is_closed());
        drop(following);
        pauses.pause().expect("it pauses");
        assert!(!gate.is_closed() && pauses.gate().is_closed());
    }
}
