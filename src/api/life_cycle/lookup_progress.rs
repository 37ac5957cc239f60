//! The progress of running lookup functions, for `poll_system_status`, and their cancellation.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::api::wire::answer::with_fields;
use crate::error::{Code, Error, Result};

/// The running lookup functions, in the order in which they began.
#[derive(Default)]
pub struct RunningLookups(Mutex<BTreeMap<u64, LookupProgress>>);

struct LookupProgress {
    function: &'static str,
    step: &'static str,
    progress: f32,
}

/// A running lookup function. Dropping it ends it.
pub struct RunningLookup<'a> {
    all: &'a RunningLookups,
    id: u64,
    is_wanted: Box<dyn Fn() -> bool + 'a>,
}

impl RunningLookups {
    /// Begins a function. It is cancelled when `is_wanted` returns false.
    pub fn begin<'a>(&'a self, function: &'static str, is_wanted: impl Fn() -> bool + 'a) -> RunningLookup<'a> {
        let mut all = self.0.lock();
        let id = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(id, LookupProgress { function, step: "reading", progress: 0.0 });
        RunningLookup { all: self, id, is_wanted: Box::new(is_wanted) }
    }

    /// Adds the field `lookups` to the status.
    pub fn add_to_status(&self, status: Value) -> Value {
        let show = |lookup: &LookupProgress| {
            let LookupProgress { function, step, progress } = lookup;
            json!({"function": function, "step": step, "progress": f64::from(*progress)})
        };
        let shown: Vec<Value> = self.0.lock().values().map(show).collect();
        with_fields(status, [("lookups", shown.into())])
    }
}

impl RunningLookup<'_> {
    /// Begins the next step.
    ///
    /// # Errors
    /// [`Code::Cancelled`].
    pub fn step(&self, step: &'static str) -> Result<()> {
        self.update(|lookup| {
            lookup.step = step;
            lookup.progress = 0.0;
        });
        if (self.is_wanted)() { Ok(()) } else { Err(self.cancelled()) }
    }

    /// The progress callback of a step.
    pub fn progress(&self) -> impl FnMut(f32) -> ControlFlow<()> {
        |progress| {
            self.update(|lookup| lookup.progress = progress.clamp(0.0, 1.0));
            if (self.is_wanted)() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
    }

    /// Adds the reason to the error of a cancelled step.
    pub fn explain(&self, error: Error) -> Error {
        if error.code() == Code::Cancelled { self.cancelled() } else { error }
    }

    fn cancelled(&self) -> Error {
        let mut function = "";
        self.update(|lookup| function = lookup.function);
        Error::new(Code::Cancelled, format!("{function}: cancelled by a later load or unload"))
    }

    fn update(&self, change: impl FnOnce(&mut LookupProgress)) {
        if let Some(lookup) = self.all.0.lock().get_mut(&self.id) {
            change(lookup);
        }
    }
}

impl Drop for RunningLookup<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}
