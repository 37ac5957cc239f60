//! How far a load is: by the bytes of the model files that were read, then by the steps of the warm-up.

use std::sync::Arc;

use foredraft_base::error::{Code, Error, Result};
use foredraft_llama::PauseGate;

/// The part of a load that reads the files, with a warm-up after it and without.
const FILES_BEFORE_WARM_UP: f32 = 0.6;
const FILES_ALONE: f32 = 0.95;

/// Reports to the host how far a load is, 0 to 1, and notes whether the host still wants it. The load sleeps here during pauses.
pub(super) struct LoadMeter<'a> {
    report: &'a mut dyn FnMut(f32) -> bool,
    pauses: Arc<PauseGate>,
    /// The part of the load that reads the files.
    files: f32,
    /// Steps of the warm-up: those that are done, and all.
    n_done: usize,
    n_steps: usize,
    is_wanted: bool,
    last: f32,
}

impl<'a> LoadMeter<'a> {
    /// A meter for `n_steps` steps after the files are read. `report` is called with 0..=1 and aborts the load by returning false. It is
    /// called again after each event of a pause.
    pub(super) fn new(
        report: &'a mut dyn FnMut(f32) -> bool,
        pauses: Arc<PauseGate>,
        warms_up: bool,
        n_steps: usize,
    ) -> LoadMeter<'a> {
        let files = if warms_up { FILES_BEFORE_WARM_UP } else { FILES_ALONE };
        LoadMeter { report, pauses, files, n_done: 0, n_steps: n_steps.max(1), is_wanted: true, last: 0.0 }
    }

    /// Reports the part of the files that is read, 0..=1. Returns false if the load is to be aborted.
    pub(super) fn read(&mut self, part: f32) -> bool {
        let files = self.files;
        self.notify(part.clamp(0.0, 1.0) * files)
    }

    /// Reports a step after the files.
    pub(super) fn step(&mut self) {
        self.n_done = (self.n_done + 1).min(self.n_steps);
        let part = self.n_done as f32 / self.n_steps as f32;
        // The host observes the end only when the load has ended.
        self.notify((self.files + (1.0 - self.files) * part).min(0.99));
    }

    /// Reports the end.
    ///
    /// # Errors
    /// The host wants the load no more.
    pub(super) fn finish(mut self) -> Result<()> {
        self.notify(1.0);
        self.check()
    }

    /// Whether the load goes on.
    ///
    /// # Errors
    /// [`Code::Cancelled`]: the host wants the load no more.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_wanted { Ok(()) } else { Err(Error::new(Code::Cancelled, "the load was aborted")) }
    }

    fn notify(&mut self, done: f32) -> bool {
        // A file that is read once more does not reduce the progress.
        self.last = self.last.max(done);
        self.is_wanted = self.is_wanted && (self.report)(self.last);
        while self.is_wanted {
            let events = self.pauses.events();
            if !self.pauses.is_closed() {
                break;
            }
            self.is_wanted = (self.report)(self.last);
            if self.is_wanted {
                self.pauses.wait(events, None);
            }
        }
        self.is_wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_grows_by_bytes_and_by_steps_and_ends_with_the_load() {
        let mut observed = Vec::new();
        let mut report = |done: f32| {
            observed.push(done);
            true
        };
        let mut progress = LoadMeter::new(&mut report, Arc::default(), true, 4);
        for part in [0.0, 0.5, 1.0] {
            assert!(progress.read(part));
        }
        (0..6).for_each(|_| progress.step());
        assert!(progress.finish().is_ok());
        assert!(observed.is_sorted(), "{observed:?}");
        assert_eq!((observed.first(), observed.last(), observed.len()), (Some(&0.0), Some(&1.0), 10));
        assert!(observed.iter().filter(|done| **done < 1.0).all(|done| *done <= 0.99), "{observed:?}");
    }

    #[test]
    fn refusal_is_remembered() {
        let mut report = |done: f32| done < 0.3;
        let mut progress = LoadMeter::new(&mut report, Arc::default(), true, 4);
        assert!(progress.read(0.1) && progress.check().is_ok());
        assert!(!progress.read(0.9));
        assert!(!progress.read(0.1));
        assert_eq!(progress.check().map_err(|error| error.code()), Err(Code::Cancelled));
    }
}
