//! Counts what a rendering uses: steps, and the memory of all values that exist.
//!
//! Everything that makes a value or looks at one asks the meter *before* it does the work: a step for each evaluated node and each
//! visited item, a step for each 32 bytes of text, and the bytes of each text and list as long as it exists. So no operation can
//! be large without being counted, whatever a template combines.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foredraft_base::work::StopSignal;

use crate::error::{Fault, FaultKind, TemplateResult};

/// The maximum nesting of evaluation, whatever [`RenderLimits::depth`] says. Templates of models need less than 30 levels.
pub const MAX_DEPTH: usize = 2000;

/// A signal that stops renderings after about so many steps of all that ask it.
#[must_use]
pub fn stop_after(steps: u64) -> StopSignal {
    let n_asked = AtomicU64::new(0);
    Arc::new(move || n_asked.fetch_add(1, Ordering::Relaxed) >= steps / INTERRUPT_STEPS)
}

/// The limits of one rendering.
#[derive(Clone)]
pub struct RenderLimits {
    /// The maximum number of steps. A step takes between 5 and 100 ns.
    pub steps: u64,
    /// The maximum memory of all values that exist at the same time, output included, in bytes.
    pub memory: usize,
    /// The maximum length of the output in bytes. All that is done with the output takes time with its length.
    pub output: usize,
    /// The maximum nesting of evaluation: expressions, blocks and macro calls. At most [`MAX_DEPTH`] has an effect.
    pub depth: usize,
    /// Whether to stop.
    pub interrupt: Option<StopSignal>,
    /// A character that searches in texts pass over: the caller marks parts of texts with it.
    pub mark: Option<char>,
}

/// Steps between two questions to the interrupt.
const INTERRUPT_STEPS: u64 = 4096;
/// Bytes of text that count as one step.
const STEP_BYTES: usize = 32;

pub(crate) struct Meter {
    steps: Cell<u64>,
    next_question: Cell<u64>,
    memory: Cell<usize>,
    limits: RenderLimits,
}

impl Meter {
    pub(crate) fn new(limits: RenderLimits) -> Rc<Meter> {
        Rc::new(Meter { steps: Cell::new(0), next_question: Cell::new(INTERRUPT_STEPS), memory: Cell::new(0), limits })
    }

    /// The maximum nesting of evaluation.
    pub(crate) fn depth(&self) -> usize {
        self.limits.depth.min(MAX_DEPTH)
    }

    /// Refuses an output of more bytes than allowed.
    pub(crate) fn check_output(&self, bytes: usize) -> TemplateResult<()> {
        if bytes > self.limits.output {
            return Err(Fault::new(FaultKind::Limit, format!("prints more than {} bytes", self.limits.output)));
        }
        Ok(())
    }

    pub(crate) fn mark(&self) -> Option<char> {
        self.limits.mark
    }

    /// The steps until now.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// The memory of all values that exist.
    pub(crate) fn memory(&self) -> usize {
        self.memory.get()
    }

    /// Counts steps.
    pub(crate) fn step(&self, n: usize) -> TemplateResult<()> {
        let steps = self.steps.get().saturating_add(n as u64);
        self.steps.set(steps);
        if steps < self.next_question.get() { Ok(()) } else { self.question(steps) }
    }

    #[cold]
    fn question(&self, steps: u64) -> TemplateResult<()> {
        if steps > self.limits.steps {
            return Err(Fault::new(FaultKind::Limit, format!("takes more than {} steps", self.limits.steps)));
        }
        if self.limits.interrupt.as_ref().is_some_and(|interrupt| interrupt()) {
            return Err(Fault::new(FaultKind::Interrupted, "was interrupted"));
        }
        self.next_question.set((steps + INTERRUPT_STEPS).min(self.limits.steps + 1));
        Ok(())
    }

    /// Counts the steps for reading `bytes` of text.
    pub(crate) fn read(&self, bytes: usize) -> TemplateResult<()> {
        self.step(1 + bytes / STEP_BYTES)
    }

    /// Counts memory that is about to be used.
    pub(crate) fn hold(&self, bytes: usize) -> TemplateResult<()> {
        let memory = self.memory.get().saturating_add(bytes);
        if memory > self.limits.memory {
            let message = format!("needs more than {} bytes of memory", self.limits.memory);
            return Err(Fault::new(FaultKind::Limit, message));
        }
        self.memory.set(memory);
        Ok(())
    }

    /// Counts memory that is no longer used.
    pub(crate) fn release(&self, bytes: usize) {
        self.memory.set(self.memory.get().saturating_sub(bytes));
    }
}

/// Memory that is counted until this is dropped.
pub(crate) struct Held {
    meter: Rc<Meter>,
    bytes: Cell<usize>,
}

impl Held {
    pub(crate) fn new(meter: &Rc<Meter>, bytes: usize) -> TemplateResult<Held> {
        meter.hold(bytes)?;
        Ok(Held { meter: Rc::clone(meter), bytes: Cell::new(bytes) })
    }

    pub(crate) fn grow(&self, bytes: usize) -> TemplateResult<()> {
        self.meter.hold(bytes)?;
        self.bytes.set(self.bytes.get() + bytes);
        Ok(())
    }

    pub(crate) fn shrink(&self, bytes: usize) {
        let bytes = bytes.min(self.bytes.get());
        self.meter.release(bytes);
        self.bytes.set(self.bytes.get() - bytes);
    }

    pub(crate) fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.meter.release(self.bytes.get());
    }
}
