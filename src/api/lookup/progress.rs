//! The lookup functions that run: how far they are, for `poll_system_status`, and whether they are to stop.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::error::{Code, Error, Result};

/// What runs, by the order of its beginning.
#[derive(Default)]
pub(in crate::api) struct Lookups(Mutex<BTreeMap<u64, State>>);

struct State {
    function: &'static str,
    step: &'static str,
    progress: f32,
}

/// One of them. It is over when this is dropped.
pub(in crate::api) struct Lookup<'a> {
    all: &'a Lookups,
    id: u64,
    goes_on: Box<dyn Fn() -> bool + 'a>,
}

impl Lookups {
    /// Begins one, which runs as long as `goes_on` says so.
    pub fn begin<'a>(&'a self, function: &'static str, goes_on: impl Fn() -> bool + 'a) -> Lookup<'a> {
        let mut all = self.0.lock();
        let id = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(id, State { function, step: "reading", progress: 0.0 });
        Lookup { all: self, id, goes_on: Box::new(goes_on) }
    }

    /// The status with what runs in it.
    pub fn shown_in(&self, mut status: Value) -> Value {
        let show = |state: &State| {
            let State { function, step, progress } = state;
            json!({"function": function, "step": step, "progress": f64::from(*progress)})
        };
        let shown: Vec<Value> = self.0.lock().values().map(show).collect();
        if let Value::Object(status) = &mut status {
            status.insert("lookups".into(), shown.into());
        }
        status
    }
}

impl Lookup<'_> {
    /// Begins the next step.
    ///
    /// # Errors
    /// [`Code::Cancelled`]: it is to stop.
    pub fn step(&self, step: &'static str) -> Result<()> {
        self.set(|state| {
            state.step = step;
            state.progress = 0.0;
        });
        if (self.goes_on)() { Ok(()) } else { Err(self.cancelled()) }
    }

    /// What a step calls to say how far it is.
    pub fn progress(&self) -> impl FnMut(f32) -> ControlFlow<()> {
        |progress| {
            self.set(|state| state.progress = progress.clamp(0.0, 1.0));
            if (self.goes_on)() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
    }

    /// The error of a step, which says by whom it was stopped if it was.
    pub fn named(&self, error: Error) -> Error {
        if error.code() == Code::Cancelled { self.cancelled() } else { error }
    }

    fn cancelled(&self) -> Error {
        let mut function = "";
        self.set(|state| function = state.function);
        Error::new(Code::Cancelled, format!("{function}: a later init or deinit stopped it"))
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        if let Some(state) = self.all.0.lock().get_mut(&self.id) {
            change(state);
        }
    }
}

impl Drop for Lookup<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}
