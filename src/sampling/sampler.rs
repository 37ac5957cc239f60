//! The sampler of one request: its chain, its state, and the memory it works in.

use std::sync::Arc;

use super::blocks::{BlockScratch, Blocks, max_of};
use super::candidates::Candidates;
use super::chain::{Chain, Place, Work};
use super::noise::Noise;
use super::outside::{Constraint, Words};
use super::probs::TokenProbs;
use super::row::Row;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::grammar::Grammar;
use crate::llama::{Token, TokenData, Vocab};

/// Chooses tokens for one text, and owns all memory for that: after the first few tokens nothing is allocated
/// (except by a grammar).
///
/// Of what it does, only grammar, mirostat and adaptive-p have a state, and they change only in [`Sampler::accept`]. Everything
/// else is a pure function of the logits, the history, the position and the seed. So a token may be picked and
/// then not used, a text may be taken back, and the same question gets the same answer.
///
/// Not shared between threads; may be moved to another.
#[derive(Debug)]
pub struct Sampler<G = Grammar> {
    chain: Arc<Chain>,
    seed: u32,
    grammar: Option<G>,
    /// Mirostat's or adaptive-p's state; unused without them.
    state: f32,
    /// What the last pick drew from, unless that was the whole row.
    list: Candidates,
    blocks: BlockScratch,
    undo: Vec<(usize, f32)>,
    work: Work,
}

impl Sampler<Grammar> {
    /// A sampler for the beginning of a text. `settings` are taken as valid. Looks through the whole vocabulary when
    /// DRY is on.
    ///
    /// # Errors
    /// A sequence breaker cannot be tokenized.
    pub fn new(settings: &Settings, vocab: &Vocab, grammar: Option<Grammar>) -> Result<Self> {
        Self::build(settings, vocab, grammar)
    }
}

impl<G: Constraint> Sampler<G> {
    /// As [`Sampler::new`], for any vocabulary and grammar.
    pub(super) fn build(settings: &Settings, words: &impl Words, grammar: Option<G>) -> Result<Self> {
        let chain = Chain::new(settings, words)?;
        let state = chain.initial_state();
        Ok(Self::with(Arc::new(chain), settings.seed, grammar, state))
    }

    fn with(chain: Arc<Chain>, seed: u32, grammar: Option<G>, state: f32) -> Self {
        let n_vocab = chain.n_vocab();
        Sampler {
            seed,
            grammar,
            state,
            list: Candidates::new(n_vocab),
            blocks: BlockScratch::new(n_vocab),
            undo: Vec::with_capacity(chain.reach()),
            work: chain.work(),
            chain,
        }
    }

    /// The token for the `position`-th generated token (from 0).
    ///
    /// `logits`: one row as the model gave it, a logit for each token of the vocabulary; some are changed meanwhile
    /// and put back, also when this fails. NaN counts as -inf. `history`: every token of the context so far, prompt
    /// included, oldest first.
    ///
    /// With a grammar, as llama-server: the token is picked without it, and only when the grammar forbids that
    /// token, picked again from what the grammar allows.
    ///
    /// # Errors
    /// The model gave no token a logit above -inf (`model_error`); the biases ban every token, or the grammar lets none
    /// follow (`invalid_request`).
    pub fn pick(&mut self, logits: &mut [f32], history: &[Token], position: usize) -> Result<Token> {
        self.choose(logits, history, position, false)
    }

    /// The distribution that [`Sampler::pick`] draws this token from: the candidates that are left, most probable
    /// first, each with a probability above 0; their sum is 1. One candidate when there is no choice.
    ///
    /// With a grammar it is the distribution of the draw that decides: the first one when its token is allowed,
    /// otherwise the one among what the grammar allows. XTC's chance is decided by the position.
    ///
    /// Arguments as for `pick`. Lists the whole vocabulary when nothing cuts it off, so it is slower.
    ///
    /// # Errors
    /// As [`Sampler::pick`].
    pub fn distribution(&mut self, logits: &mut [f32], history: &[Token], position: usize) -> Result<&[TokenData]> {
        self.choose(logits, history, position, true)?;
        self.list.softmax();
        self.list.retain(|item| item.p > 0.0);
        self.list.sort();
        Ok(self.list.items())
    }

    /// The token of [`Sampler::pick`] with the probabilities that it was drawn by: its own, and the `n` largest (fewer
    /// when fewer tokens could be drawn). llama-server's `post_sampling_probs`. Takes about twice as long as
    /// [`Sampler::distribution`]. Arguments as for `pick`.
    ///
    /// # Errors
    /// As [`Sampler::pick`].
    pub fn pick_with_probs(
        &mut self,
        logits: &mut [f32],
        history: &[Token],
        position: usize,
        n: usize,
    ) -> Result<(Token, TokenProbs)> {
        let distribution = self.distribution(logits, history, position)?.to_vec();
        // Once more, for what `accept` learns from.
        let token = self.pick(logits, history, position)?;
        Ok((token, TokenProbs::in_distribution(&distribution, token, n)))
    }

    /// The distribution for rules that compare probabilities (`speculative::verify`): as [`Sampler::distribution`], but
    /// in any order, and with a grammar always the one among what the grammar allows (llama.cpp's `grammar_first`).
    ///
    /// What `pick` does with a grammar has no distribution that could be compared: which of two draws decides depends on
    /// the first one's token, and both use the same noise. Where nothing is cut off, the two ways are the same, since
    /// what is left of a softmax is a softmax; with truncation they differ in what is cut off.
    ///
    /// Uses no noise except for XTC's chance. Asks the grammar about candidates at each call, so it costs more than `pick`
    /// there. [`Sampler::accept`] learns from it as from a `pick`. Arguments as for `pick`.
    ///
    /// # Errors
    /// As [`Sampler::pick`].
    pub fn row(&mut self, logits: &mut [f32], history: &[Token], position: usize) -> Result<&[TokenData]> {
        self.with_row(logits, history, position, |sampler, logits, place| {
            sampler.list_allowed(logits, place, position)
        })?;
        self.list.softmax();
        self.list.retain(|item| item.p > 0.0);
        Ok(self.list.items())
    }

    /// `token` with its probability in [`Sampler::row`], and the `n` largest there. Arguments as for `pick`.
    ///
    /// # Errors
    /// As [`Sampler::pick`].
    pub fn row_probs(
        &mut self,
        logits: &mut [f32],
        history: &[Token],
        position: usize,
        token: Token,
        n: usize,
    ) -> Result<TokenProbs> {
        self.row(logits, history, position)?;
        self.list.sort();
        Ok(TokenProbs::in_distribution(self.list.items(), token, n))
    }

    /// The request's seed.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Whether it takes the most probable token, without chance.
    pub fn is_greedy(&self) -> bool {
        self.chain.is_greedy()
    }

    /// Tells grammar, mirostat and adaptive-p that `token` was emitted: once for each, after its `pick`. They learn from the
    /// probability that the last `pick` gave it, and nothing from a token that was no candidate there.
    ///
    /// # Errors
    /// The grammar does not allow the token.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        self.advance(token, self.chain.learns_from(token, &self.list, &self.work))
    }

    /// As [`Sampler::accept`], for a token that another sampler of this text found, and gave the probability `p`: one
    /// that ran ahead, of which not everything is kept. With adaptive-p, `p` is the probability before its transformation,
    /// which the lists here do not show.
    ///
    /// # Errors
    /// As [`Sampler::accept`].
    pub fn accept_with(&mut self, token: Token, p: f32) -> Result<()> {
        self.advance(token, Some(p))
    }

    /// Whether it learns from probabilities that its lists do not show: with adaptive-p, see [`Sampler::accept_with`].
    pub fn learns_from_before(&self) -> bool {
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

    /// A sampler for a draft model that follows this one from its present state, with the same noise and a grammar of
    /// its own. `greedy`: it takes the most probable token instead, after the same biases and penalties.
    pub fn for_draft(&self, greedy: bool) -> Self {
        let chain = if greedy { Arc::new(self.chain.to_greedy()) } else { Arc::clone(&self.chain) };
        Self::with(chain, self.seed, self.grammar.clone(), self.state)
    }

    /// Brings the sampler of a draft to the state of its target, the one that it was made from. Allocates only for a
    /// grammar.
    pub fn sync_from(&mut self, target: &Self) {
        self.state = target.state;
        self.list.clear();
        self.work.forget();
        if let (Some(own), Some(other)) = (&mut self.grammar, &target.grammar) {
            own.clone_from(other);
        }
    }

    /// Picks a token. `listed`: leaves the candidates it was drawn from in the list.
    fn choose(&mut self, logits: &mut [f32], history: &[Token], position: usize, listed: bool) -> Result<Token> {
        self.with_row(logits, history, position, |sampler, logits, place| {
            sampler.choose_from(logits, place, position, listed)
        })
    }

    /// Edits a row, lets `look` look at it, and puts it back. `None`: it has no candidate, which becomes the error.
    fn with_row<R>(
        &mut self,
        logits: &mut [f32],
        history: &[Token],
        position: usize,
        look: impl FnOnce(&mut Self, &[f32], Place<'_>) -> Result<Option<R>>,
    ) -> Result<R> {
        let place = Place { history, noise: Noise::new(self.seed, position), state: self.state };
        let mut row = Row::new(logits, std::mem::take(&mut self.undo));
        self.chain.edit(&mut row, history, &mut self.work);
        let found = look(self, row.logits(), place);
        self.undo = row.restore();
        found?.ok_or_else(|| {
            if max_of(logits) > f32::NEG_INFINITY {
                Error::invalid("logit_bias: every token is banned")
            } else {
                Error::model(format!("the model gave none of its {} tokens a logit above -inf", logits.len()))
            }
        })
    }

    /// Leaves what the chain makes of an edited row in the list, of what the grammar allows.
    fn list_allowed(&mut self, logits: &[f32], place: Place<'_>, position: usize) -> Result<Option<()>> {
        self.list.clear();
        self.work.forget();
        let blocks = Blocks::survey(logits, &mut self.blocks);
        if blocks.is_empty() {
            return Ok(None);
        }
        let row = match &mut self.grammar {
            Some(grammar) => {
                narrow_allowed(&self.chain, blocks, &mut self.list, grammar, place, position, &mut self.work)?;
                None
            }
            None => self.chain.narrow_row(blocks, &mut self.list, place, &mut self.work),
        };
        self.chain.list(row, &mut self.list);
        Ok(Some(()))
    }

    /// Picks a token from an edited row; `None` when the row has no candidate.
    fn choose_from(
        &mut self,
        logits: &[f32],
        place: Place<'_>,
        position: usize,
        listed: bool,
    ) -> Result<Option<Token>> {
        self.list.clear();
        self.work.forget();
        let blocks = Blocks::survey(logits, &mut self.blocks);
        if blocks.is_empty() {
            return Ok(None);
        }
        let row = self.chain.narrow_row(blocks, &mut self.list, place, &mut self.work);
        let Some(first) = self.chain.draw(row, &mut self.list, &place.noise, listed) else { return Ok(None) };
        let Some(grammar) = &mut self.grammar else { return Ok(Some(first)) };
        if grammar.allows(first)? {
            return Ok(Some(first));
        }
        let blocks = Blocks::survey(logits, &mut self.blocks);
        narrow_allowed(&self.chain, blocks, &mut self.list, grammar, place, position, &mut self.work)?;
        Ok(self.chain.draw(None, &mut self.list, &place.noise, listed))
    }
}

/// Leaves in `list` what the chain makes of the tokens that `grammar` allows.
fn narrow_allowed<G: Constraint>(
    chain: &Chain,
    blocks: Blocks<'_>,
    list: &mut Candidates,
    grammar: &mut G,
    place: Place<'_>,
    position: usize,
    work: &mut Work,
) -> Result<()> {
    chain.admit(blocks, list, grammar)?;
    if list.is_empty() {
        return Err(Error::invalid(format!("grammar: no token can follow the {position} tokens generated so far")));
    }
    chain.narrow(list, place, work);
    Ok(())
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
