//! What becomes of an evaluated draft: which of its tokens the target says, and the one that it says itself behind them.

use std::sync::Arc;

use super::event::Stop;
use super::slots::Slot;
use super::task::{Task, Weighing};
use crate::error::{Code, Error, Result};
use crate::llama::{Context, Token, Vocab};
use crate::sampling::{self, Sampler, TokenProbs};
use crate::speculative::verify::{self, Next, Proposal, Row, StepChance, Target, Verdict};
use crate::speculative::{Source, Verify};

/// The draft of a slot, as far as it is in the batch.
pub(super) struct Drafted<'a> {
    pub(super) tokens: &'a [Token],
    /// Whose it is.
    pub(super) source: Option<Source>,
    /// With what it was drawn from, for a rule that compares probabilities.
    pub(super) drawn: Option<&'a Proposal>,
}

/// Why the request ends, if it does, and how many drafted tokens were right.
type Checked = (Option<Stop>, usize);

/// Samples from the rows of a slot: `row` follows its context, the next ones follow the tokens of its draft.
pub(super) fn check(context: &mut Context, slot: &mut Slot, row: usize, draft: &Drafted<'_>) -> Checked {
    let Some(task) = &slot.task else { return (None, 0) };
    if task.n_predict == Some(0) {
        return (Some(Stop::Limit), 0);
    }
    match task.speculation.as_ref().map(|speculation| speculation.settings.verify) {
        Some(rule) if rule.draws() => weigh(context, slot, row, draft, rule),
        _ => compare(context, slot, row, draft),
    }
}

/// `coupled` and `match`: goes on as long as the target chooses what was drafted.
fn compare(context: &mut Context, slot: &mut Slot, row: usize, draft: &Drafted<'_>) -> Checked {
    let Some(task) = &mut slot.task else { return (None, 0) };
    let model = Arc::clone(context.model());
    let mut accepted = 0;
    loop {
        let Some(logits) = context.logits(row + accepted) else { return (Some(no_logits()), accepted) };
        let (token, probs) = match pick(task, logits) {
            Ok(picked) => picked,
            Err(error) => return (Some(Stop::Error(error)), accepted),
        };
        if let Err(error) = task.sampler.accept(token) {
            return (Some(Stop::Error(error)), accepted);
        }
        let agreed = draft.source.filter(|_| draft.tokens.get(accepted) == Some(&token));
        if agreed.is_some() {
            accepted += 1;
            slot.cache.push(&[token]);
        }
        let stop = task.generated(token, agreed.unwrap_or(Source::Target), probs, model.vocab());
        if stop.is_some() || agreed.is_none() {
            return (stop, accepted);
        }
    }
}

/// The token that the target chooses, with its probabilities if they were asked for.
fn pick(task: &mut Task, logits: &mut [f32]) -> Result<(Token, Option<TokenProbs>)> {
    let position = task.position();
    if task.post_sampling_probs {
        let (token, probs) = task.sampler.pick_with_probs(logits, &task.tokens, position, task.n_probs)?;
        return Ok((token, Some(probs)));
    }
    let token = task.sampler.pick(logits, &task.tokens, position)?;
    Ok((token, (task.n_probs > 0).then(|| sampling::token_probs(logits, token, task.n_probs))))
}

/// `rejection` and `block`: chance decides, by the probabilities that target and draft give. Also where nothing was
/// drafted, so that a text is all of one kind.
fn weigh(context: &mut Context, slot: &mut Slot, row: usize, draft: &Drafted<'_>, rule: Verify) -> Checked {
    let Some(task) = &mut slot.task else { return (None, 0) };
    let Some(mut weighing) = task.speculation.as_mut().and_then(|speculation| speculation.weighing.take()) else {
        return (Some(Stop::Error(Error::new(Code::Internal, "nothing to weigh with"))), 0);
    };
    let verdict = decide(context, task, row, draft, rule, &mut weighing);
    let said = draft.tokens.iter().zip(&weighing.listed).map(|(token, p)| Next { token: *token, p: *p });
    let checked = match verdict {
        Ok((Verdict { node, next }, why)) => {
            let stop = say(context, slot, row, said.take(node).chain(next), draft.source.map(|source| (source, node)));
            let (stop, said) = stop;
            (stop.or_else(|| next.is_none().then(|| why.map_or_else(no_logits, Stop::Error))), said.min(node))
        }
        Err(error) => (Some(Stop::Error(error)), 0),
    };
    if let Some(speculation) = slot.task.as_mut().and_then(|task| task.speculation.as_mut()) {
        speculation.weighing = Some(weighing);
    }
    checked
}

/// The rule's verdict, and why nothing follows if it says so.
fn decide(
    context: &mut Context,
    task: &mut Task,
    row: usize,
    draft: &Drafted<'_>,
    rule: Verify,
    weighing: &mut Weighing,
) -> Result<(Verdict, Option<Error>)> {
    let Weighing { ahead, residual, listed } = weighing;
    ahead.sync_from(&task.sampler)?;
    listed.clear();
    let position = task.position();
    let mut chance = StepChance::new(task.seed, position);
    let model = Arc::clone(context.model());
    let before = task.tokens.len();
    let tokens = &mut task.tokens;
    let mut target =
        Ahead { vocab: model.vocab(), context, row, sampler: ahead, position, tokens, draft, listed, error: None };
    let nothing = Proposal::default();
    let proposal = draft.drawn.unwrap_or(&nothing);
    let verdict = match rule {
        Verify::Block => verify::block::verify(proposal, &mut target, &mut chance, residual),
        _ => verify::rejection::verify(proposal, &mut target, &mut chance, residual),
    };
    let error = target.error;
    tokens.truncate(before);
    Ok((verdict, error))
}

/// Takes tokens into the text, of which the first are `drafted`: whose, and how many. Returns why the request ends, if it
/// does, and how many it took.
fn say(
    context: &mut Context,
    slot: &mut Slot,
    row: usize,
    said: impl Iterator<Item = Next>,
    drafted: Option<(Source, usize)>,
) -> (Option<Stop>, usize) {
    let Some(task) = &mut slot.task else { return (None, 0) };
    let model = Arc::clone(context.model());
    for (index, Next { token, p }) in said.enumerate() {
        let source = drafted.filter(|(_, n)| index < *n).map(|(source, _)| source);
        let probs = match probs_of(task, context.logits(row + index), token) {
            Ok(probs) => probs,
            Err(error) => return (Some(Stop::Error(error)), index),
        };
        if let Err(error) = task.sampler.accept_with(token, p) {
            return (Some(Stop::Error(error)), index);
        }
        if source.is_some() {
            slot.cache.push(&[token]);
        }
        let stop = task.generated(token, source.unwrap_or(Source::Target), probs, model.vocab());
        if stop.is_some() {
            return (stop, index + 1);
        }
    }
    (None, usize::MAX)
}

/// The probabilities of a token that was chosen from this row, if they were asked for.
fn probs_of(task: &mut Task, logits: Option<&mut [f32]>, token: Token) -> Result<Option<TokenProbs>> {
    let position = task.position();
    match logits {
        Some(logits) if task.post_sampling_probs => {
            task.sampler.row_probs(logits, &task.tokens, position, token, task.n_probs).map(Some)
        }
        Some(logits) if task.n_probs > 0 => Ok(Some(sampling::token_probs(logits, token, task.n_probs))),
        _ => Ok(None),
    }
}

fn no_logits() -> Stop {
    Stop::Error(Error::new(Code::Internal, "the evaluation gave no logits"))
}

/// The target along a draft: its sampler runs ahead of the text.
struct Ahead<'a> {
    context: &'a mut Context,
    vocab: &'a Vocab,
    /// The row that follows the text.
    row: usize,
    sampler: &'a mut Sampler,
    /// The position of the text's next token.
    position: usize,
    /// The text and, behind it, the drafted tokens up to the node asked for.
    tokens: &'a mut Vec<Token>,
    draft: &'a Drafted<'a>,
    /// What each drafted token's row gave it.
    listed: &'a mut Vec<f32>,
    /// Why there is no row.
    error: Option<Error>,
}

impl Ahead<'_> {
    /// Goes on to the node behind a drafted token; false: nothing follows it.
    fn advance(&mut self, token: Token) -> bool {
        let p = self.listed.last().copied().unwrap_or(0.0);
        self.tokens.push(token);
        if self.vocab.is_eog(token) {
            return false;
        }
        let accepted = self.sampler.accept_with(token, p);
        self.error = accepted.err();
        self.error.is_none()
    }
}

impl Target for Ahead<'_> {
    fn row(&mut self, node: usize) -> Option<Row<'_>> {
        if let Some(before) = node.checked_sub(1) {
            let token = *self.draft.tokens.get(before)?;
            if !self.advance(token) {
                return None;
            }
        }
        let logits = self.context.logits(self.row + node)?;
        let items = match self.sampler.row(logits, self.tokens, self.position.saturating_add(node)) {
            Ok(items) => items,
            Err(error) => {
                self.error = Some(error);
                return None;
            }
        };
        let row = Row::new(items)?;
        self.listed.extend(self.draft.tokens.get(node).map(|token| row.listed(*token)));
        Some(row)
    }
}
