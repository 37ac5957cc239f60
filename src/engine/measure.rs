//! Measures what decodes cost before the first request, so that the first request already drafts as much as pays.

use std::time::{Duration, Instant};

use crate::llama::log::{self, Level};
use crate::llama::{Batch, Context, Token, working_time};

/// How long measuring may take; a size that was begun is measured to its end.
pub(super) const MEASURING: Duration = Duration::from_millis(1600);
/// The fastest of this many decodes counts, and of two that take at least `LONG`.
const TIMES: u32 = 3;
const LONG: Duration = Duration::from_millis(20);

/// Measures decodes of these sizes, and passes each size and its time to `record`. Stops after `most`, when a decode fails, or when
/// `record` returns false.
pub(super) fn measure(
    context: &mut Context,
    sizes: &[usize],
    most: Duration,
    mut record: impl FnMut(usize, Duration) -> bool,
) {
    let (n_tokens, n_batch) = (context.model().vocab().n_tokens(), context.n_batch());
    let begin = Instant::now();
    let mut batch = Batch::new();
    for n in sizes.iter().copied().filter(|n| *n <= n_batch) {
        let mut best: Option<Duration> = None;
        for times in 1..=TIMES {
            batch.clear();
            for position in 0..n {
                let token = Token::try_from((position * 31 + 7) % n_tokens.max(1)).unwrap_or(0);
                batch.push(token, position, 0, true);
            }
            context.pad_hidden(&mut batch);
            let start = working_time();
            let result = context.decode(&batch);
            let time = working_time().saturating_duration_since(start);
            context.truncate(0, 0);
            if result.is_err() {
                return;
            }
            best = Some(best.map_or(time, |best| best.min(time)));
            if times > 1 && time > LONG {
                break;
            }
        }
        if best.is_some_and(|best| !record(n, best)) {
            return;
        }
        if begin.elapsed() > most {
            return;
        }
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
