//! The sampler of one completion: its chain, its state and its scratch buffers.

use std::sync::Arc;

use super::blocks::{BlockMaxima, BlockScratch, max_of};
use super::candidates::Candidates;
use super::chain::{SamplerChain, StageContext, StageScratch};
use super::interfaces::Constraint;
use super::noise::GumbelNoise;
use super::penalties::EditedLogits;
use super::probs::TokenProbs;
use super::settings::SamplingSettings;
use foredraft_base::error::{Error, Result};
use foredraft_base::{Token, TokenData, Vocabulary};
use foredraft_grammar::OutputConstraint;

/// Samples the tokens of one completion. Owns its scratch buffers: after the first few tokens only a grammar allocates.
///
/// Only the grammar, mirostat and adaptive-p have a state, and it changes only in [`Sampler::accept`]. Everything else is
/// a pure function of the logits, the history, the position and the seed. So the caller may discard a sampled token and
/// sample again, and the same arguments always give the same token.
///
/// It may move between threads, but not be used by several at once.
#[derive(Debug)]
pub struct Sampler<G = OutputConstraint> {
    chain: Arc<SamplerChain>,
    seed: u32,
    grammar: Option<G>,
    /// Mirostat's or adaptive-p's state; unused without them.
    state: f32,
    /// The candidates of the last draw, unless that was from the whole row.
    list: Candidates,
    blocks: BlockScratch,
    undo: Vec<(usize, f32)>,
    scratch: StageScratch,
}

impl Sampler<OutputConstraint> {
    /// A sampler for the beginning of a completion. `settings` must be valid. Searches the whole vocabulary for sequence
    /// breakers if DRY is on.
    ///
    /// # Errors
    /// A sequence breaker cannot be tokenized.
    pub fn new(settings: &SamplingSettings, vocab: &dyn Vocabulary, grammar: Option<OutputConstraint>) -> Result<Self> {
        Self::build(settings, vocab, grammar)
    }

    /// Ends the completion's reasoning from the next token on. Returns whether the completion reasons.
    pub fn end_reasoning(&mut self) -> bool {
        self.grammar.as_mut().is_some_and(OutputConstraint::end_reasoning)
    }
}

impl<G: Constraint> Sampler<G> {
    /// As [`Sampler::new`], for any implementation of the grammar.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn build(settings: &SamplingSettings, vocab: &dyn Vocabulary, grammar: Option<G>) -> Result<Self> {
        let chain = SamplerChain::new(settings, vocab)?;
        let state = chain.initial_state();
        Ok(Self::with(Arc::new(chain), settings.seed, grammar, state))
    }

    fn with(chain: Arc<SamplerChain>, seed: u32, grammar: Option<G>, state: f32) -> Self {
        let n_vocab = chain.n_vocab();
        Sampler {
            seed,
            grammar,
            state,
            list: Candidates::new(n_vocab),
            blocks: BlockScratch::new(n_vocab),
            undo: Vec::with_capacity(chain.max_edits()),
            scratch: chain.scratch(),
            chain,
        }
    }

    /// Samples the `position`-th generated token (from 0). `position` is the RNG counter.
    ///
    /// `logits`: one row of the model's output, one logit per token of the vocabulary. It is edited during the call and
    /// restored bit for bit, also on error. NaN counts as -inf. `history`: all tokens of the context so far, prompt
    /// included, oldest first.
    ///
    /// A grammar is applied as in llama-server: the token is first sampled without the grammar. If the grammar forbids
    /// it, a token is sampled from those that the grammar allows.
    ///
    /// # Errors
    /// No logit is above -inf (`model_error`). The biases ban every token, or the grammar allows none
    /// (`invalid_request`).
    pub fn sample(&mut self, logits: &mut [f32], history: &[Token], position: usize) -> Result<Token> {
        self.choose(logits, history, position, false)
    }

    /// The distribution that [`Sampler::sample`] draws this token from: the remaining candidates, most probable first,
    /// each with a probability above 0. The probabilities sum to 1. A greedy chain has one candidate.
    ///
    /// With a grammar it is the distribution of the draw that gives the token: the first draw if its token is allowed,
    /// otherwise the draw among the allowed tokens. Whether XTC applies depends on the position.
    ///
    /// Arguments as for `sample`. Slower than `sample`: lists the whole vocabulary if no stage truncates it.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &mut [f32], history: &[Token], position: usize) -> Result<&[TokenData]> {
        self.choose(logits, history, position, true)?;
        self.list.softmax();
        self.list.retain(|item| item.p > 0.0);
        self.list.sort();
        Ok(self.list.items())
    }

    /// The token of [`Sampler::sample`] with its probability and the `n` largest in the distribution that it was drawn
    /// from (fewer if fewer tokens have a probability above 0). llama-server's `post_sampling_probs`. Takes about twice as
    /// long as [`Sampler::distribution`]. Arguments as for `sample`.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_with_probs(
        &mut self,
        logits: &mut [f32],
        history: &[Token],
        position: usize,
        n: usize,
    ) -> Result<(Token, TokenProbs)> {
        let distribution = self.distribution(logits, history, position)?.to_vec();
        // Sample again to restore the candidates that `accept` uses.
        let token = self.sample(logits, history, position)?;
        Ok((token, TokenProbs::in_distribution(&distribution, token, n)))
    }

    /// The distribution for verification rules that compare probabilities (`speculative::verify`). As
    /// [`Sampler::distribution`], but unsorted, and the grammar is always applied before the stages (llama.cpp's
    /// `grammar_first`).
    ///
    /// The two draws of `sample` with a grammar have no single distribution to compare with: the first draw's token
    /// decides whether there is a second draw, and both use the same noise. Without truncation the two methods have the
    /// same distribution, because a softmax restricted to some tokens is a softmax. With truncation they may truncate
    /// different tokens.
    ///
    /// Uses randomness only to decide whether XTC applies. Filters candidates by the grammar at every call, so with a
    /// grammar it costs more than `sample`. [`Sampler::accept`] may follow it as it follows `sample`. Arguments as for
    /// `sample`.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn constrained_distribution(
        &mut self,
        logits: &mut [f32],
        history: &[Token],
        position: usize,
    ) -> Result<&[TokenData]> {
        self.with_row(logits, history, position, |sampler, logits, context| {
            sampler.list_allowed(logits, context, position)
        })?;
        self.list.softmax();
        self.list.retain(|item| item.p > 0.0);
        Ok(self.list.items())
    }

    /// `token` with its probability in [`Sampler::constrained_distribution`], and the `n` largest there. Arguments as for `sample`.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn constrained_probs(
        &mut self,
        logits: &mut [f32],
        history: &[Token],
        position: usize,
        token: Token,
        n: usize,
    ) -> Result<TokenProbs> {
        self.constrained_distribution(logits, history, position)?;
        self.list.sort();
        Ok(TokenProbs::in_distribution(self.list.items(), token, n))
    }

    /// The grammar, in the state after the accepted tokens.
    pub fn grammar(&self) -> Option<&G> {
        self.grammar.as_ref()
    }

    /// The request's seed.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Whether sampling is deterministic: always the most probable token.
    pub fn is_greedy(&self) -> bool {
        self.chain.is_greedy()
    }

    /// Commits `token`: advances the grammar, and updates mirostat or adaptive-p with the probability that the token had
    /// in the last `sample`. A token that was not a candidate there does not update them. Call it once per token, after
    /// its `sample`.
    ///
    /// # Errors
    /// The grammar does not allow the token.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        self.advance(token, self.chain.state_input(token, &self.list, &self.scratch))
    }

    /// As [`Sampler::accept`], for a token that another sampler of this completion sampled with the probability `p`. Used
    /// when that sampler looked ahead and only some of its tokens are committed. With adaptive-p, `p` is the probability
    /// before its transformation, which [`Sampler::constrained_distribution`] does not contain.
    ///
    /// # Errors
    /// As [`Sampler::accept`].
    pub fn accept_with(&mut self, token: Token, p: f32) -> Result<()> {
        self.advance(token, Some(p))
    }

    /// Whether [`Sampler::accept_with`] needs a probability that the distributions do not contain: true with adaptive-p.
    pub fn learns_from_untransformed(&self) -> bool {
        self.chain.is_adaptive()
    }

    fn advance(&mut self, token: Token, p: Option<f32>) -> Result<()> {
        if let Some(grammar) = &mut self.grammar {
            grammar.accept(token)?;
        }
        if let Some(p) = p {
            self.state = self.chain.next_state(self.state, p);
        }
        Ok(())
    }

    /// A sampler for a draft model, with this sampler's state and noise and its own copy of the grammar. `greedy`: it
    /// takes the most probable token after the same biases and penalties.
    pub fn for_draft(&self, greedy: bool) -> Self {
        let chain = if greedy { Arc::new(self.chain.to_greedy()) } else { Arc::clone(&self.chain) };
        Self::with(chain, self.seed, self.grammar.clone(), self.state)
    }

    /// Copies the state of `target` into this draft sampler, which [`Sampler::for_draft`] made from it. Only a grammar
    /// allocates.
    pub fn sync_from(&mut self, target: &Self) {
        self.state = target.state;
        self.list.clear();
        self.scratch.clear();
        if let (Some(own), Some(other)) = (&mut self.grammar, &target.grammar) {
            own.clone_from(other);
        }
    }

    /// Samples a token. `listed`: leaves the candidates it was drawn from in the list.
    fn choose(&mut self, logits: &mut [f32], history: &[Token], position: usize, listed: bool) -> Result<Token> {
        self.with_row(logits, history, position, |sampler, logits, context| {
            sampler.choose_from(logits, context, position, listed)
        })
    }

    /// Calls `look` with the edited row, and restores the row. `None` from `look` means that the row has no candidate; it
    /// becomes the error.
    fn with_row<R>(
        &mut self,
        logits: &mut [f32],
        history: &[Token],
        position: usize,
        look: impl FnOnce(&mut Self, &[f32], StageContext<'_>) -> Result<Option<R>>,
    ) -> Result<R> {
        let context = StageContext { history, noise: GumbelNoise::new(self.seed, position), state: self.state };
        let mut row = EditedLogits::new(logits, std::mem::take(&mut self.undo));
        self.chain.edit(&mut row, history, &mut self.scratch);
        let found = look(self, row.logits(), context);
        self.undo = row.restore();
        found?.ok_or_else(|| {
            if max_of(logits) > f32::NEG_INFINITY {
                Error::invalid("logit_bias: every token is banned")
            } else {
                Error::model(format!("the model gave none of its {} tokens a logit above -inf", logits.len()))
            }
        })
    }

    /// Applies the grammar and the chain to an edited row, and lists the candidates. `None` if the row has no candidate.
    fn list_allowed(&mut self, logits: &[f32], context: StageContext<'_>, position: usize) -> Result<Option<()>> {
        self.list.clear();
        self.scratch.clear();
        let blocks = BlockMaxima::scan(logits, &mut self.blocks);
        if blocks.is_empty() {
            return Ok(None);
        }
        let row = match &mut self.grammar {
            Some(grammar) if !grammar.is_idle() => {
                apply_to_allowed(&self.chain, blocks, &mut self.list, grammar, context, position, &mut self.scratch)?;
                None
            }
            _ => self.chain.apply_to_row(blocks, &mut self.list, context, &mut self.scratch),
        };
        self.chain.list_choices(row, &mut self.list);
        Ok(Some(()))
    }

    /// Samples a token from an edited row; `None` if the row has no candidate.
    fn choose_from(
        &mut self,
        logits: &[f32],
        context: StageContext<'_>,
        position: usize,
        listed: bool,
    ) -> Result<Option<Token>> {
        self.list.clear();
        self.scratch.clear();
        let blocks = BlockMaxima::scan(logits, &mut self.blocks);
        if blocks.is_empty() {
            return Ok(None);
        }
        let row = self.chain.apply_to_row(blocks, &mut self.list, context, &mut self.scratch);
        let Some(first) = self.chain.choose(row, &mut self.list, &context.noise, listed) else { return Ok(None) };
        let Some(grammar) = &mut self.grammar else { return Ok(Some(first)) };
        if grammar.is_idle() || grammar.allows(first)? {
            return Ok(Some(first));
        }
        let blocks = BlockMaxima::scan(logits, &mut self.blocks);
        apply_to_allowed(&self.chain, blocks, &mut self.list, grammar, context, position, &mut self.scratch)?;
        Ok(self.chain.choose(None, &mut self.list, &context.noise, listed))
    }
}

/// Applies the chain to the tokens that `grammar` allows, and leaves the candidates in `list`.
fn apply_to_allowed<G: Constraint>(
    chain: &SamplerChain,
    blocks: BlockMaxima<'_>,
    list: &mut Candidates,
    grammar: &mut G,
    context: StageContext<'_>,
    position: usize,
    scratch: &mut StageScratch,
) -> Result<()> {
    chain.list_allowed(blocks, list, grammar)?;
    if list.is_empty() {
        return Err(Error::invalid(format!("grammar: no token can follow the {position} tokens generated so far")));
    }
    chain.apply_to_list(list, context, scratch);
    Ok(())
}

#[cfg(test)]
mod tests;
