//! What becomes of an evaluated draft: which of its tokens the target says, and the one that it says itself behind them.

use std::sync::Arc;

use super::branches::Branches;
use super::event::Stop;
use super::slots::Slot;
use super::task::{StochasticScratch, Task};
use crate::error::{Code, Error, Result};
use crate::llama::{Context, Token, Vocab};
use crate::sampling::{self, Sampler, TokenProbs};
use crate::session::Sequence;
use crate::speculative::DrafterKind;
use crate::speculative::verify::{
    self, ChainProposal, NextToken, SampledDraft, StepRandom, TargetDistributions, TokenDistribution, Verdict,
};

/// The draft of a slot, as far as it is in the batch.
pub(super) struct Drafted<'a> {
    pub(super) tokens: &'a [Token],
    /// Whose it is.
    pub(super) source: Option<DrafterKind>,
    /// With what it was drawn from, for a rule that compares probabilities.
    pub(super) drawn: Option<&'a SampledDraft>,
}

/// Why the request ends, if it does, and how many drafted tokens were right.
type Verified = (Option<Stop>, usize);

/// Samples from the rows of a slot: `row` follows its context, the next ones follow the tokens of its draft.
pub(super) fn verify(context: &mut Context, slot: &mut Slot, row: usize, draft: &Drafted<'_>) -> Verified {
    let Some(task) = &slot.task else { return (None, 0) };
    if task.options.n_predict == Some(0) {
        return (Some(Stop::Limit), 0);
    }
    match task.speculation.as_ref().map(|speculation| speculation.settings.verify) {
        Some(rule) if rule.draws() => verify_stochastic(context, slot, row, draft),
        _ => verify_exact(context, slot, row, draft),
    }
}

/// `coupled` and `match`: goes on as long as the target chooses what was drafted, in any branch.
fn verify_exact(context: &mut Context, slot: &mut Slot, row: usize, draft: &Drafted<'_>) -> Verified {
    let model = Arc::clone(context.model());
    let Slot { task: Some(task), branches, cache, .. } = slot else { return (None, 0) };
    let branches = &*branches;
    let child = |node: usize, token: Token| {
        branches.children(node).find(|child: &usize| draft.tokens.get(*child - 1) == Some(&token))
    };
    let (mut stop, mut accepted) = (None, 0);
    let choose = |node: usize| {
        let Some(logits) = context.logits(row + branches.row(node)) else {
            stop = Some(no_logits());
            return None;
        };
        let chosen = pick(task, logits).and_then(|chosen| task.sampler.accept(chosen.0).map(|()| chosen));
        let (token, probs) = match chosen {
            Ok(chosen) => chosen,
            Err(error) => {
                stop = Some(Stop::Error(error));
                return None;
            }
        };
        if let Some(compare) = &mut task.compare {
            compare.sampled(token, logits);
        }
        let child = child(node, token);
        accepted += usize::from(child.is_some());
        stop = take(task, cache, branches, draft, child, (token, probs), model.vocab());
        stop.is_none().then_some(NextToken { token, p: 1.0 })
    };
    verify::matching::verify(child, choose);
    (stop, accepted)
}

/// Takes a token into the text: that of the draft's node `child`, or the target's own.
fn take(
    task: &mut Task,
    cache: &mut Sequence,
    branches: &Branches,
    draft: &Drafted<'_>,
    child: Option<usize>,
    (token, probs): (Token, Option<TokenProbs>),
    vocab: &Vocab,
) -> Option<Stop> {
    if child.is_some_and(|child| branches.is_own(child)) {
        cache.push(&[token]);
    }
    let source = draft.source.filter(|_| child.is_some()).unwrap_or(DrafterKind::Target);
    task.generated(token, source, probs, vocab)
}

/// The token that the target chooses, with its probabilities if they were asked for.
fn pick(task: &mut Task, logits: &mut [f32]) -> Result<(Token, Option<TokenProbs>)> {
    let position = task.position();
    if task.options.post_sampling_probs {
        let (token, probs) = task.sampler.sample_with_probs(logits, &task.tokens, position, task.n_probs)?;
        return Ok((token, Some(probs)));
    }
    let token = task.sampler.sample(logits, &task.tokens, position)?;
    Ok((token, (task.n_probs > 0).then(|| sampling::token_probs(logits, token, task.n_probs))))
}

/// `rejection` and `block`: chance decides, by the probabilities that target and draft give. Also where nothing was
/// drafted, so that a text is all of one kind.
fn verify_stochastic(context: &mut Context, slot: &mut Slot, row: usize, draft: &Drafted<'_>) -> Verified {
    let Some(task) = &mut slot.task else { return (None, 0) };
    let Some(mut scratch) = task.speculation.as_mut().and_then(|speculation| speculation.scratch.take()) else {
        return (Some(Stop::Error(Error::new(Code::Internal, "nothing to weigh with"))), 0);
    };
    let checked = match decide(context, task, &slot.branches, row, draft, &mut scratch) {
        Ok((Verdict { node, next }, why)) => {
            let (stop, accepted) = commit_tokens(context, slot, row, draft, &scratch.listed, node, next);
            (stop.or_else(|| next.is_none().then(|| why.map_or_else(no_logits, Stop::Error))), accepted)
        }
        Err(error) => (Some(Stop::Error(error)), 0),
    };
    if let Some(speculation) = slot.task.as_mut().and_then(|task| task.speculation.as_mut()) {
        speculation.scratch = Some(scratch);
    }
    checked
}

/// The rule's verdict, and why nothing follows if it says so.
fn decide(
    context: &mut Context,
    task: &mut Task,
    branches: &Branches,
    row: usize,
    draft: &Drafted<'_>,
    scratch: &mut StochasticScratch,
) -> Result<(Verdict, Option<Error>)> {
    let StochasticScratch { ahead, residual, listed } = scratch;
    ahead.sync_from(&task.sampler);
    listed.clear();
    listed.resize(draft.tokens.len() + 1, 0.0);
    let position = task.position();
    let mut chance = StepRandom::new(task.seed, position);
    let model = Arc::clone(context.model());
    let (vocab, before) = (model.vocab(), task.tokens.len());
    let tokens = &mut task.tokens;
    let mut target = TargetLookahead {
        vocab,
        context,
        branches,
        row,
        sampler: ahead,
        position,
        before,
        tokens,
        draft,
        listed,
        error: None,
    };
    let verdict = match draft.drawn {
        Some(drawn) => drawn.verify(&mut target, &mut chance, residual),
        None => verify::rejection::verify(&ChainProposal::default(), &mut target, &mut chance, residual),
    };
    let error = target.error;
    tokens.truncate(before);
    Ok((verdict, error))
}

/// Takes the tokens up to `node` of the draft into the text, and `next`. Returns why the request ends, if it does, and how many
/// drafted ones it took. `listed`: what the row before each node gave it.
fn commit_tokens(
    context: &mut Context,
    slot: &mut Slot,
    row: usize,
    draft: &Drafted<'_>,
    listed: &[f32],
    node: usize,
    next: Option<NextToken>,
) -> (Option<Stop>, usize) {
    let model = Arc::clone(context.model());
    let Slot { task: Some(task), branches, cache, .. } = slot else { return (None, 0) };
    let (mut before, mut accepted) = (0, 0);
    loop {
        let child = branches.towards(before, node);
        let drafted = child.and_then(|child| {
            Some(NextToken { token: *draft.tokens.get(child - 1)?, p: listed.get(child).copied().unwrap_or(0.0) })
        });
        let Some(NextToken { token, p }) = drafted.or(next) else { return (None, accepted) };
        let probs = match probs_of(task, context.logits(row + branches.row(before)), token) {
            Ok(probs) => probs,
            Err(error) => return (Some(Stop::Error(error)), accepted),
        };
        if let Err(error) = accept(task, context.logits(row + branches.row(before)), token, p) {
            return (Some(Stop::Error(error)), accepted);
        }
        accepted += usize::from(child.is_some());
        match (take(task, cache, branches, draft, child, (token, probs), model.vocab()), child) {
            (None, Some(child)) => before = child,
            (stop, _) => return (stop, accepted),
        }
    }
}

/// Tells the sampler of a token that was chosen from this row, in which it had the probability `p`.
fn accept(task: &mut Task, logits: Option<&mut [f32]>, token: Token, p: f32) -> Result<()> {
    match logits {
        // What it learns from is no part of the list.
        Some(logits) if task.sampler.learns_from_untransformed() => {
            let position = task.position();
            task.sampler.constrained_distribution(logits, &task.tokens, position)?;
            task.sampler.accept(token)
        }
        _ => task.sampler.accept_with(token, p),
    }
}

/// The probabilities of a token that was chosen from this row, if they were asked for.
fn probs_of(task: &mut Task, logits: Option<&mut [f32]>, token: Token) -> Result<Option<TokenProbs>> {
    let position = task.position();
    match logits {
        Some(logits) if task.options.post_sampling_probs => {
            task.sampler.constrained_probs(logits, &task.tokens, position, token, task.n_probs).map(Some)
        }
        Some(logits) if task.n_probs > 0 => Ok(Some(sampling::token_probs(logits, token, task.n_probs))),
        _ => Ok(None),
    }
}

fn no_logits() -> Stop {
    Stop::Error(Error::new(Code::Internal, "the evaluation gave no logits"))
}

/// The target along a draft: its sampler runs ahead of the text.
struct TargetLookahead<'a> {
    context: &'a mut Context,
    vocab: &'a Vocab,
    branches: &'a Branches,
    /// The row that follows the text.
    row: usize,
    sampler: &'a mut Sampler,
    /// The position of the text's next token.
    position: usize,
    /// The text's length, and the text with the drafted tokens up to the node asked for.
    before: usize,
    tokens: &'a mut Vec<Token>,
    draft: &'a Drafted<'a>,
    /// What the row before each node gave it.
    listed: &'a mut Vec<f32>,
    /// Why there is no row.
    error: Option<Error>,
}

impl TargetLookahead<'_> {
    /// Goes on to a node; false: nothing follows it.
    fn advance(&mut self, node: usize) -> Option<bool> {
        let token = *self.draft.tokens.get(node.checked_sub(1)?)?;
        self.tokens.push(token);
        if self.vocab.is_eog(token) {
            return Some(false);
        }
        // The last row asked for was the one before this node.
        self.error = self.sampler.accept(token).err();
        Some(self.error.is_none())
    }
}

impl TargetDistributions for TargetLookahead<'_> {
    fn distribution(&mut self, node: usize) -> Option<TokenDistribution<'_>> {
        if node > 0 && !self.advance(node)? {
            return None;
        }
        let logits = self.context.logits(self.row + self.branches.row(node))?;
        let depth = self.tokens.len() - self.before;
        let items =
            match self.sampler.constrained_distribution(logits, self.tokens, self.position.saturating_add(depth)) {
                Ok(items) => items,
                Err(error) => {
                    self.error = Some(error);
                    return None;
                }
            };
        let row = TokenDistribution::new(items)?;
        for child in self.branches.children(node) {
            let token = self.draft.tokens.get(child - 1);
            if let (Some(listed), Some(token)) = (self.listed.get_mut(child), token) {
                *listed = row.listed_weight(*token);
            }
        }
        Some(row)
    }
}
