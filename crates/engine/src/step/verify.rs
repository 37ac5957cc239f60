//! Verification of a decoded step: which drafted tokens of a slot are accepted, and the target's own token after them.

use super::decode::Rows;
use super::plan::SlotPlan;
use super::target_rows::TargetRows;
use crate::completion::{Completion, CompletionEnd};
use crate::edited_rows::EditedRows;
use crate::event::{Generated, Stop};
use crate::request_handle::CompletionSink;
use crate::slots::{RequestSpeculation, StochasticScratch};
use foredraft_base::error::{Code, Error, Result};
use foredraft_llama::{Token, Vocab};
use foredraft_sampling as sampling;
use foredraft_sampling::{Sampler, TokenProbs};
use foredraft_speculation::verify::{self, NextToken, StepRandom, TargetDistributions, TokenDistribution, Verdict};
use foredraft_speculation::{DraftOutcome, DrafterKind, SlotDrafts};

/// The result of a step for a slot: the only source of every statistic about it.
#[derive(Debug, Default)]
pub(crate) struct SlotOutcome {
    /// The probabilities of the prompt's tokens that follow the decoded ones.
    pub(crate) prompt_probs: Vec<TokenProbs>,
    /// The verified tokens, with their origins and probabilities: accepted ones, then the target's own.
    pub(crate) tokens: Vec<Generated>,
    /// The bytes that they add to the text.
    pub(crate) added: Vec<u8>,
    /// The outcome of the draft.
    pub(crate) draft: DraftOutcome,
    /// Accepted tokens that are in the slot's own sequence; those of another branch are decoded again.
    pub(crate) n_kept: usize,
    /// See [`Compare::logit_gap`](crate::compare::Compare::logit_gap).
    pub(crate) logit_gap: Option<f32>,
    /// Why the completion ends, if it does.
    pub(crate) end: Option<CompletionEnd>,
}

impl SlotOutcome {
    pub(super) fn clear(&mut self) {
        self.prompt_probs.clear();
        self.tokens.clear();
        self.added.clear();
        (self.draft, self.n_kept, self.logit_gap, self.end) = (DraftOutcome::default(), 0, None, None);
    }
}

/// The parts of a request that verification uses. Only the sampler advances.
pub(crate) struct VerifiedRequest<'a> {
    pub(crate) sink: &'a CompletionSink,
    pub(crate) sampler: &'a mut Sampler,
    /// The rows that its logits callback changes, if it has one.
    pub(crate) edited_rows: Option<&'a mut EditedRows>,
    /// The context; it is extended by verified tokens meanwhile.
    pub(crate) tokens: &'a mut Vec<Token>,
    pub(crate) completion: &'a Completion,
    pub(crate) speculation: Option<&'a mut RequestSpeculation>,
    /// The drafts of the slot.
    pub(crate) drafts: &'a mut SlotDrafts,
    pub(crate) vocab: &'a Vocab,
}

/// Verifies the draft of a slot by its rule, into an empty outcome. Without a draft it samples one token.
///
/// Greedy, `match` and `coupled`: the target samples every token, and drafted ones are accepted while they are equal. `rejection` and
/// `block` compare probabilities, also where nothing was drafted, so that all tokens of a completion have the same distribution.
pub(crate) fn verify(plan: &SlotPlan, request: VerifiedRequest<'_>, rows: &mut Rows<'_>, outcome: &mut SlotOutcome) {
    let Some(row) = plan.row else { return };
    let VerifiedRequest { sink, sampler, edited_rows, tokens, completion, speculation, drafts, vocab } = request;
    if completion.is_empty_by_request() {
        outcome.end = Some(Stop::Limit.into());
        return;
    }
    let n_context = tokens.len();
    let mut rows = TargetRows::new(rows, plan, row, sink, edited_rows);
    let mut walk = Walk { plan, rows: &mut rows, sampler, tokens, completion, vocab, outcome };
    match speculation.filter(|speculation| speculation.rule.draws()) {
        None => verify::accept_matching(|node| walk.sample(node)),
        Some(speculation) => walk.verify_sampled(speculation, drafts),
    }
    tokens.truncate(n_context);
    outcome.draft.kind = plan.draft.kind;
    outcome.draft.n_drafted = plan.draft.tokens.len();
    outcome.draft.n_longest = plan.draft.n_longest;
}

/// Reads the probabilities of the prompt's tokens that follow the decoded ones, each with `n_top` alternatives. `prompt` is the prompt from
/// the first decoded token on.
pub(crate) fn score_prompt(
    plan: &SlotPlan,
    prompt: &[Token],
    n_top: usize,
    rows: &mut Rows<'_>,
    outcome: &mut SlotOutcome,
) {
    for (row, token) in (plan.first..plan.first + plan.n_context).zip(prompt.iter().skip(1)) {
        let Some(logits) = rows.logits(row) else { return };
        outcome.prompt_probs.push(sampling::token_probs(logits, *token, n_top));
    }
}

/// The way along the accepted nodes of a draft.
struct Walk<'a, 'b> {
    plan: &'a SlotPlan,
    rows: &'a mut TargetRows<'a, 'b>,
    sampler: &'a mut Sampler,
    tokens: &'a mut Vec<Token>,
    completion: &'a Completion,
    vocab: &'a Vocab,
    outcome: &'a mut SlotOutcome,
}

impl Walk<'_, '_> {
    /// Samples the target's token after `node`, and returns its node of the draft; `None`: it was not drafted, the completion ends with
    /// it, or there is none.
    fn sample(&mut self, node: usize) -> Option<usize> {
        match self.pick(node) {
            Ok((token, probs)) => {
                let child = self.plan.child(node, token);
                let ends = self.push(child, token, probs);
                child.filter(|_| !ends)
            }
            Err(error) => {
                self.outcome.end = Some(Stop::from(error).into());
                None
            }
        }
    }

    /// Samples the target's token after `node`, with its probabilities if requested, and advances the sampler.
    fn pick(&mut self, node: usize) -> Result<(Token, Option<TokenProbs>)> {
        let Walk { rows, sampler, tokens, completion, outcome, .. } = self;
        let logits = rows.logits(node, tokens)?;
        let (n_probs, rng_counter) = (completion.n_probs, completion.rng_counter(outcome.tokens.len()));
        let (token, probs) = if completion.post_sampling_probs {
            let (token, probs) = sampler.sample_with_probs(logits, tokens, rng_counter, n_probs)?;
            (token, Some(probs))
        } else {
            let token = sampler.sample(logits, tokens, rng_counter)?;
            (token, (n_probs > 0).then(|| sampling::token_probs(logits, token, n_probs)))
        };
        sampler.accept(token)?;
        outcome.logit_gap = completion.compare.as_ref().and_then(|compare| compare.logit_gap(token, logits));
        Ok((token, probs))
    }

    /// Appends a token to the outcome: that of the draft's node `child`, or the target's own. Returns whether the completion ends.
    fn push(&mut self, child: Option<usize>, token: Token, probs: Option<TokenProbs>) -> bool {
        let Walk { plan, tokens, completion, outcome, .. } = self;
        if let Some(child) = child {
            outcome.draft.n_accepted += 1;
            outcome.n_kept += usize::from(plan.tree.is_own(child));
        }
        let source = plan.draft.kind.filter(|_| child.is_some()).unwrap_or(DrafterKind::Target);
        let start = completion.len() + outcome.added.len();
        outcome.end = completion.end_after(outcome.tokens.len(), &mut outcome.added, token, self.vocab);
        tokens.push(token);
        outcome.tokens.push(Generated { token, source, start, probs });
        outcome.end.is_some()
    }

    /// Verifies the draft by a rule that compares probabilities.
    fn verify_sampled(&mut self, speculation: &mut RequestSpeculation, drafts: &mut SlotDrafts) {
        let Some(scratch) = &mut speculation.scratch else {
            let error = Error::new(Code::Internal, "stochastic verification has no buffers");
            self.outcome.end = Some(Stop::from(error).into());
            return;
        };
        let StochasticScratch { ahead, residual, listed } = scratch;
        ahead.sync_from(self.sampler);
        listed.clear();
        listed.resize(self.plan.draft.tokens.len() + 1, 0.0);
        let rng_counter = self.completion.rng_counter(0);
        let mut random = StepRandom::new(self.completion.seed, rng_counter);
        let n_context = self.tokens.len();
        let mut target = TargetLookahead {
            vocab: self.vocab,
            rows: self.rows,
            plan: self.plan,
            completion: self.completion,
            sampler: ahead,
            rng_counter,
            n_context,
            tokens: self.tokens,
            added: Vec::new(),
            listed,
            error: None,
        };
        let drawn = drafts.sampled(self.plan.draft.tokens.len());
        let rule = if drawn.is_block() { verify::block::verify } else { verify::rejection::verify };
        let verdict = rule(drawn, &mut target, &mut random, residual);
        let error = target.error;
        self.tokens.truncate(n_context);
        if let Err(error) = self.follow(verdict, listed, error) {
            self.outcome.end = Some(Stop::from(error).into());
        }
    }

    /// Takes the tokens of a verdict. `listed`: the weight of each node's token in the row before it. `error`: why the target has no
    /// row there, if the verdict has no next token.
    fn follow(&mut self, Verdict { node, next }: Verdict, listed: &[f32], error: Option<Error>) -> Result<()> {
        let mut before = 0;
        loop {
            let child = self.plan.tree.towards(before, node);
            let drafted = child.and_then(|child| {
                Some(NextToken { token: self.plan.drafted(child)?, p: listed.get(child).copied().unwrap_or(0.0) })
            });
            let Some(NextToken { token, p }) = drafted.or(next) else {
                return Err(error.unwrap_or_else(|| Error::new(Code::Internal, "the target had no distribution")));
            };
            let probs = self.probs_of(before, token)?;
            self.accept(before, token, p)?;
            match (self.push(child, token, probs), child) {
                (false, Some(child)) => before = child,
                _ => return Ok(()),
            }
        }
    }

    /// The probabilities of a token that follows `node`, if requested.
    fn probs_of(&mut self, node: usize, token: Token) -> Result<Option<TokenProbs>> {
        let Walk { rows, sampler, tokens, completion, outcome, .. } = self;
        if completion.n_probs == 0 {
            return Ok(None);
        }
        let logits = rows.logits(node, tokens)?;
        if !completion.post_sampling_probs {
            return Ok(Some(sampling::token_probs(logits, token, completion.n_probs)));
        }
        let rng_counter = completion.rng_counter(outcome.tokens.len());
        sampler.constrained_probs(logits, tokens, rng_counter, token, completion.n_probs).map(Some)
    }

    /// Advances the sampler by a token that follows `node`, where it has the probability `p`.
    fn accept(&mut self, node: usize, token: Token, p: f32) -> Result<()> {
        let Walk { rows, sampler, tokens, completion, outcome, .. } = self;
        if !sampler.learns_from_untransformed() {
            return sampler.accept_with(token, p);
        }
        // Adaptive-p learns from a probability that the list does not have.
        let rng_counter = completion.rng_counter(outcome.tokens.len());
        sampler.constrained_distribution(rows.logits(node, tokens)?, tokens, rng_counter)?;
        sampler.accept(token)
    }
}

/// The target along a draft: a copy of the sampler advances with the nodes.
struct TargetLookahead<'a, 'r, 'b> {
    rows: &'a mut TargetRows<'r, 'b>,
    vocab: &'a Vocab,
    plan: &'a SlotPlan,
    completion: &'a Completion,
    sampler: &'a mut Sampler,
    /// The RNG counter of the first token after the committed prefix.
    rng_counter: usize,
    /// The length of the committed prefix, and the prefix with the drafted tokens up to the current node.
    n_context: usize,
    tokens: &'a mut Vec<Token>,
    /// The bytes that the drafted tokens add to the text.
    added: Vec<u8>,
    /// The weight of each node's token in the row before it.
    listed: &'a mut Vec<f32>,
    /// Why there is no row.
    error: Option<Error>,
}

impl TargetLookahead<'_, '_, '_> {
    /// Advances to a node. Returns false if no token follows it.
    fn advance(&mut self, node: usize) -> Option<bool> {
        let token = self.plan.drafted(node)?;
        let n_before = self.tokens.len() - self.n_context;
        self.tokens.push(token);
        if self.completion.end_after(n_before, &mut self.added, token, self.vocab).is_some() {
            return Some(false);
        }
        // The last row that was read is the one before this node.
        self.error = self.sampler.accept(token).err();
        Some(self.error.is_none())
    }
}

impl TargetDistributions for TargetLookahead<'_, '_, '_> {
    fn distribution(&mut self, node: usize) -> Option<TokenDistribution<'_>> {
        if node > 0 && !self.advance(node)? {
            return None;
        }
        let n_before = self.tokens.len() - self.n_context;
        let rng_counter = self.rng_counter.saturating_add(n_before);
        let logits = self.rows.logits(node, self.tokens);
        let items = match logits.and_then(|row| self.sampler.constrained_distribution(row, self.tokens, rng_counter)) {
            Ok(items) => items,
            Err(error) => {
                self.error = Some(error);
                return None;
            }
        };
        let row = TokenDistribution::new(items)?;
        for child in self.plan.tree.children(node) {
            if let (Some(listed), Some(token)) = (self.listed.get_mut(child), self.plan.drafted(child)) {
                *listed = row.listed_weight(token);
            }
        }
        Some(row)
    }
}
