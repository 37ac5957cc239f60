//! Measures what decodes cost before the first request, so that the first request already drafts as much as pays.
//!
//! A load measures for a moment only, because its host may wait for it. The engine's thread measures the rest while nothing runs or waits
//! ([`IdleMeasuring`]). Commands interrupt that, and the first one that uses the slots ends it: from then on, steps tell what they cost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pacing;
use super::slots::SlotPool;
use foredraft_llama::log::{self, Level};
use foredraft_llama::{Batch, Context, DecodeError, Model, Token, working_time};
use foredraft_speculation::Costs;

/// How long a load measures all its contexts, and how long the engine's thread measures afterwards. A size that was begun is measured.
pub(super) const AT_LOAD: Duration = Duration::from_millis(50);
pub(super) const WHILE_IDLE: Duration = Duration::from_millis(1600);
/// The fastest of this many decodes counts, and of two that take at least `LONG`.
const TIMES: u32 = 3;
const LONG: Duration = Duration::from_millis(20);

/// Measures decodes of these sizes for as long as `left`, from which it takes the time. The first size is measured in any case. Passes each
/// size and its time to `record`, and returns the number of sizes. Stops when a decode fails.
pub(super) fn measure(
    context: &mut Context,
    sizes: &[usize],
    left: &mut Duration,
    mut record: impl FnMut(usize, Duration),
) -> usize {
    let (begin, most) = (Instant::now(), *left);
    let has_time = || begin.elapsed() < most;
    let mut n_measured = 0;
    for n in sizes.iter().copied() {
        if n_measured > 0 && !has_time() {
            break;
        }
        let Ok(time) = measure_size(context, n, working_time, has_time) else { break };
        record(n, time);
        n_measured += 1;
    }
    *left = most.saturating_sub(begin.elapsed());
    n_measured
}

/// The time of a decode of `n` tokens with an empty context, which is empty afterwards. The decode is repeated while `has_time`.
fn measure_size(
    context: &mut Context,
    n: usize,
    now: impl Fn() -> Instant,
    has_time: impl Fn() -> bool,
) -> Result<Duration, DecodeError> {
    let n_tokens = context.model().vocab().n_tokens();
    let mut batch = Batch::new();
    let mut best = Duration::MAX;
    for times in 1..=TIMES {
        batch.clear();
        for position in 0..n {
            let token = Token::try_from((position * 31 + 7) % n_tokens.max(1)).unwrap_or(0);
            batch.push(token, position, 0, true);
        }
        context.pad_hidden(&mut batch);
        let start = now();
        let result = context.decode(&batch);
        let time = now().saturating_duration_since(start);
        context.truncate(0, 0);
        result?;
        best = best.min(time);
        if (times > 1 && time > LONG) || !has_time() {
            break;
        }
    }
    log::write(Level::Debug, &format!("cost of a decode of {n} tokens: {:.3} ms", best.as_secs_f64() * 1e3));
    Ok(best)
}

/// Measures sizes of the target's batches while the engine is idle: all of them, also those that the load has measured, because the machine
/// may have been busier then, or the weights in another layout.
#[derive(Debug)]
pub(super) struct IdleMeasuring {
    sizes: VecDeque<usize>,
    /// Measurements that are not recorded yet, and the number of sizes that the load has measured: fewer do not replace them.
    measured: Vec<(usize, Duration)>,
    n_at_load: usize,
    has_replaced: bool,
    left: Duration,
    /// The engine's models. Decodes beside the threads that change the layout of their weights do not show their cost.
    models: Vec<Arc<Model>>,
}

impl IdleMeasuring {
    /// Measures `sizes` as soon as the weights of `models` have their final layout. The load has measured the first `n_at_load` sizes.
    pub(super) fn new(sizes: &[usize], n_at_load: usize, models: Vec<Arc<Model>>) -> IdleMeasuring {
        let sizes = sizes.iter().copied().collect();
        IdleMeasuring { sizes, measured: Vec::new(), n_at_load, has_replaced: false, left: WHILE_IDLE, models }
    }

    /// Nothing to measure.
    pub(super) fn none() -> IdleMeasuring {
        IdleMeasuring::new(&[], 0, Vec::new())
    }

    /// Whether nothing is left to measure.
    pub(super) fn is_done(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Whether the weights do not have their final layout yet.
    pub(super) fn must_wait(&self) -> bool {
        self.models.iter().any(|model| model.is_making_panels())
    }

    /// Measures the next size, of slots that are empty, and leaves them empty. If a decode was interrupted, the size is measured by the next
    /// call.
    pub(super) fn step(&mut self, pool: &mut SlotPool) {
        let Some(n) = self.sizes.front().copied() else { return };
        // As the engine's steps do, stays within the frame budget.
        if n > pacing::most_tokens(&pool.context, &pool.drafters.controller.costs) {
            self.sizes.pop_front();
            return;
        }
        let now = pool.drafters.clock;
        let begin = now();
        // An interrupted decode can leave recurrent states of other sequences in the wrong place. All of them are empty.
        match measure_size(&mut pool.context, n, now, || true) {
            Ok(time) => {
                self.measured.push((n, time));
                self.record(&mut pool.drafters.controller.costs);
                self.sizes.pop_front();
            }
            Err(DecodeError::Aborted) => {}
            Err(_) => self.sizes.clear(),
        }
        self.left = self.left.saturating_sub(now().saturating_duration_since(begin));
        if self.left.is_zero() {
            self.sizes.clear();
        }
    }

    fn record(&mut self, costs: &mut Costs) {
        if !self.has_replaced {
            if self.measured.len() < self.n_at_load {
                return;
            }
            costs.forget_target();
            self.has_replaced = true;
        }
        self.measured.drain(..).for_each(|(n, time)| costs.record_target(n, time));
    }
}

/// Decodes one token, so that the first request does not pay for initialization.
pub(super) fn warm_up(context: &mut Context) {
    let vocab = context.model().vocab();
    let token = vocab.bos().or(vocab.eos()).unwrap_or(0);
    let mut batch = Batch::new();
    batch.push(token, 0, 0, true);
    context.pad_hidden(&mut batch);
    if let Err(error) = context.decode(&batch) {
        log::write(Level::Warn, &format!("warm-up: {error:?}"));
    }
    context.truncate(0, 0);
}
