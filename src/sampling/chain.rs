//! The stages that a request asked for, in its order, and how they run: over the row of logits while that is
//! cheaper, over a list of candidates once a stage has made one.

use super::adaptive::Adaptive;
use super::blocks::Blocks;
use super::candidates::Candidates;
use super::dry::Dry;
use super::mirostat::Mirostat;
use super::noise::Noise;
use super::outside::{Constraint, Words};
use super::penalties::Penalties;
use super::row::Row;
use super::settings::{Settings, Stage};
use super::tally::Tally;
use super::temperature::Temperature;
use super::truncation;
use crate::error::Result;
use crate::llama::Token;

/// One stage with its parameters. Only stages that do something are made.
#[derive(Debug, Clone)]
enum Step {
    Penalties(Penalties),
    Dry(Dry),
    TopNSigma(f32),
    TopK(usize),
    TailFree(f32),
    TypicalP(f32),
    TopP(f32),
    MinP(f32),
    Xtc { probability: f32, threshold: f32 },
    Temperature(Temperature),
    Mirostat(Mirostat),
    Adaptive(Adaptive),
}

impl Step {
    /// The step for a stage; `None` when its settings turn it off.
    fn new(stage: Stage, settings: &Settings, words: &impl Words) -> Result<Option<Step>> {
        let step = match stage {
            Stage::Penalties => Penalties::new(settings, words.newline()).map(Step::Penalties),
            Stage::Dry => Dry::new(settings, words)?.map(Step::Dry),
            Stage::TopNSigma => (settings.top_n_sigma > 0.0).then_some(Step::TopNSigma(settings.top_n_sigma)),
            Stage::TopK => usize::try_from(settings.top_k).ok().filter(|k| *k > 0).map(Step::TopK),
            Stage::TfsZ => (settings.tfs_z < 1.0).then_some(Step::TailFree(settings.tfs_z)),
            Stage::TypicalP => (settings.typical_p < 1.0).then_some(Step::TypicalP(settings.typical_p)),
            Stage::TopP => (settings.top_p < 1.0).then_some(Step::TopP(settings.top_p)),
            Stage::MinP => (settings.min_p > 0.0).then_some(Step::MinP(settings.min_p)),
            Stage::Xtc => {
                let (probability, threshold) = (settings.xtc_probability, settings.xtc_threshold);
                (probability > 0.0 && threshold <= 0.5).then_some(Step::Xtc { probability, threshold })
            }
            Stage::Temperature => Temperature::new(settings).map(Step::Temperature),
            Stage::AdaptiveP => Adaptive::new(settings).map(Step::Adaptive),
        };
        Ok(step)
    }

    /// Whether it changes logits and cuts nothing off, so that it can edit the row in place.
    fn is_penalty(&self) -> bool {
        matches!(self, Step::Penalties(_) | Step::Dry(_))
    }

    /// How many logits it changes at most; `None`: any number.
    fn reach(&self) -> Option<usize> {
        match self {
            Step::Penalties(penalties) => penalties.reach(),
            Step::Dry(dry) => dry.reach(),
            _ => Some(0),
        }
    }
}

/// What the steps see of the place in the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Every token so far, prompt included.
    pub(super) history: &'a [Token],
    /// The position's noise.
    pub(super) noise: Noise,
    /// Mirostat's or adaptive-p's state.
    pub(super) state: f32,
}

/// Memory that the steps work in.
#[derive(Debug, Default)]
pub(super) struct Work {
    tally: Tally,
    matches: Vec<u32>,
    /// The probabilities before adaptive-p.
    before: Vec<(Token, f32)>,
}

impl Work {
    /// Forgets what the last tokens were drawn from.
    pub(super) fn forget(&mut self) {
        self.before.clear();
    }
}

/// The compiled settings. Immutable, shared by a target's sampler and those of its drafts.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    n_vocab: usize,
    bias: Vec<(Token, f32)>,
    /// Penalties in front of all other steps: they edit the row.
    edits: Vec<Step>,
    steps: Vec<Step>,
    min_keep: usize,
    greedy: bool,
}

/// Where a stage keeps more than these, they are not sorted: most uses of so many need no order.
const MANY: usize = 1024;

impl Chain {
    /// Compiles the settings for a vocabulary.
    pub(super) fn new(settings: &Settings, words: &impl Words) -> Result<Chain> {
        let mut steps = Vec::new();
        for stage in &settings.stages {
            steps.extend(Step::new(*stage, settings, words)?);
        }
        let mirostat = Mirostat::new(settings, words.n_tokens());
        if let Some(mirostat) = mirostat {
            steps.retain(Step::is_penalty);
            steps.extend(Temperature::fixed(settings.temperature).map(Step::Temperature));
            steps.push(Step::Mirostat(mirostat));
        }
        // As in llama.cpp, where it takes the place of the draw.
        if let Some(at) = steps.iter().position(|step| matches!(step, Step::Adaptive(_))) {
            let adaptive = steps.remove(at);
            steps.retain(|step| !matches!(step, Step::Adaptive(_)));
            steps.push(adaptive);
        }
        let others = steps.split_off(steps.iter().take_while(|step| step.is_penalty()).count());
        let chain = Chain {
            n_vocab: words.n_tokens(),
            bias: settings.logit_bias.clone(),
            edits: steps,
            steps: others,
            min_keep: settings.min_keep,
            greedy: false,
        };
        Ok(if settings.temperature <= 0.0 { chain.to_greedy() } else { chain })
    }

    /// Whether it takes the most probable token.
    pub(super) fn is_greedy(&self) -> bool {
        self.greedy
    }

    /// The same biases and penalties, and then the most probable token.
    pub(super) fn to_greedy(&self) -> Chain {
        let late = self.steps.iter().filter(|step| step.is_penalty());
        Chain {
            edits: self.edits.iter().chain(late).cloned().collect(),
            steps: Vec::new(),
            greedy: true,
            ..self.clone()
        }
    }

    /// The size of the vocabulary that it was compiled for.
    pub(super) fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Whether the chain ends in mirostat.
    fn has_mirostat(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Mirostat(_)))
    }

    /// The state of the stage that has one, before the first token.
    pub(super) fn initial_state(&self) -> f32 {
        match self.steps.last() {
            Some(Step::Mirostat(mirostat)) => mirostat.initial(),
            Some(Step::Adaptive(adaptive)) => adaptive.initial(),
            _ => 0.0,
        }
    }

    /// Whether it ends with adaptive-p.
    pub(super) fn is_adaptive(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Adaptive(_)))
    }

    /// The probability of `token` that the stage with a state learns from; `None` when it was no candidate in `list`.
    pub(super) fn learns_from(&self, token: Token, list: &Candidates, work: &Work) -> Option<f32> {
        match self.steps.last() {
            Some(Step::Adaptive(_)) => work.before.iter().find(|(id, _)| *id == token).map(|(_, p)| *p),
            _ => list.items().iter().find(|item| item.id == token).map(|item| item.p),
        }
    }

    /// The state after a token with that probability.
    pub(super) fn next_state(&self, state: f32, p: f32) -> f32 {
        match self.steps.last() {
            Some(Step::Mirostat(mirostat)) => mirostat.next(state, p),
            Some(Step::Adaptive(adaptive)) => adaptive.next(state, p),
            _ => state,
        }
    }

    /// How many logits of a row [`Chain::edit`] changes at most.
    pub(super) fn reach(&self) -> usize {
        let steps = self.edits.iter().map(|step| step.reach().unwrap_or(self.n_vocab).min(self.n_vocab));
        self.bias.len() + steps.sum::<usize>()
    }

    /// Memory for the steps of this chain.
    pub(super) fn work(&self) -> Work {
        let counts = self.edits.iter().chain(&self.steps).any(Step::is_penalty);
        let adaptive = matches!(self.steps.last(), Some(Step::Adaptive(_)));
        Work {
            tally: if counts { Tally::new(self.n_vocab) } else { Tally::default() },
            matches: Vec::new(),
            before: Vec::with_capacity(if adaptive { self.n_vocab } else { 0 }),
        }
    }

    /// What comes before all truncation: the biases and the leading penalties, in place.
    pub(super) fn edit(&self, row: &mut Row<'_>, history: &[Token], work: &mut Work) {
        for &(token, bias) in &self.bias {
            // A ban holds for +inf too, to which adding -inf gives NaN.
            row.edit(token, |logit| if bias == f32::NEG_INFINITY { bias } else { logit + bias });
        }
        for step in &self.edits {
            match step {
                Step::Penalties(penalties) => penalties.edit(row, history, &mut work.tally),
                Step::Dry(dry) => dry.edit(row, history, &mut work.tally, &mut work.matches),
                _ => {}
            }
        }
    }

    /// Runs the steps on an edited row. Returns the row when no step had to list candidates; `None`: they are in `list`.
    pub(super) fn narrow_row<'a>(
        &self,
        blocks: Blocks<'a>,
        list: &mut Candidates,
        place: Place<'_>,
        work: &mut Work,
    ) -> Option<Blocks<'a>> {
        let mut row = Some(blocks);
        for step in &self.steps {
            row = match row {
                Some(blocks) => self.step_row(step, blocks, list, place, work),
                None => {
                    self.step(step, list, place, work);
                    None
                }
            };
        }
        row
    }

    /// Runs the steps on a list that is not empty, and leaves at least one candidate.
    pub(super) fn narrow(&self, list: &mut Candidates, place: Place<'_>, work: &mut Work) {
        for step in &self.steps {
            self.step(step, list, place, work);
        }
    }

    fn step_row<'a>(
        &self,
        step: &Step,
        mut blocks: Blocks<'a>,
        list: &mut Candidates,
        place: Place<'_>,
        work: &mut Work,
    ) -> Option<Blocks<'a>> {
        match step {
            Step::TopK(k) if *k >= blocks.len() => return Some(blocks),
            Step::TopK(k) if *k > MANY => blocks.best(*k, list),
            Step::TopK(k) => blocks.top(*k, list),
            Step::TopNSigma(n) => truncation::top_n_sigma_row(&blocks, list, *n),
            Step::TopP(p) => truncation::top_p_row(&mut blocks, list, *p, self.min_keep),
            Step::TypicalP(p) => truncation::typical_p_row(&mut blocks, list, *p, self.min_keep),
            Step::TailFree(z) if blocks.len() > 2 => truncation::tail_free_row(&mut blocks, list, *z, self.min_keep),
            Step::MinP(p) => truncation::min_p_row(&mut blocks, list, *p, self.min_keep),
            Step::Xtc { probability, .. } if !truncation::xtc_applies(*probability, &place.noise) => {
                return Some(blocks);
            }
            Step::Temperature(temperature) if blocks.temperature() == 1.0 => {
                if temperature.set(&mut blocks, list) {
                    return Some(blocks);
                }
            }
            Step::Mirostat(mirostat) => mirostat.cut_row(place.state, &mut blocks, list),
            _ => {
                blocks.all(list);
                self.step(step, list, place, work);
            }
        }
        None
    }

    fn step(&self, step: &Step, list: &mut Candidates, place: Place<'_>, work: &mut Work) {
        match step {
            Step::Penalties(penalties) => penalties.apply(list, place.history, &mut work.tally),
            Step::Dry(dry) => dry.apply(list, place.history, &mut work.tally, &mut work.matches),
            Step::TopNSigma(n) => truncation::top_n_sigma(list, *n),
            Step::TopK(k) => list.keep_best(*k),
            Step::TailFree(z) => truncation::tail_free(list, *z, self.min_keep),
            Step::TypicalP(p) => truncation::typical_p(list, *p, self.min_keep),
            Step::TopP(p) => truncation::top_p(list, *p, self.min_keep),
            Step::MinP(p) => truncation::min_p(list, *p, self.min_keep),
            Step::Xtc { probability, threshold } => {
                if truncation::xtc_applies(*probability, &place.noise) {
                    truncation::xtc(list, *threshold, self.min_keep);
                }
            }
            Step::Temperature(temperature) => temperature.apply(list),
            Step::Mirostat(mirostat) => mirostat.cut(place.state, list),
            Step::Adaptive(adaptive) => adaptive.apply(place.state, list, &mut work.before),
        }
    }

    /// Chooses among the candidates that are left: in `row`, or in `list` when there is no row. `listed`: puts those of
    /// the row into the list.
    pub(super) fn draw(
        &self,
        row: Option<Blocks<'_>>,
        list: &mut Candidates,
        noise: &Noise,
        listed: bool,
    ) -> Option<Token> {
        match row {
            Some(blocks) => {
                let chosen = if self.greedy { blocks.argmax() } else { blocks.draw(noise) };
                if listed {
                    self.list(Some(blocks), list);
                }
                chosen
            }
            None if self.greedy => {
                list.keep_argmax();
                list.items().first().map(|item| item.id)
            }
            None => {
                // Mirostat learns from these probabilities when the token is accepted.
                if self.has_mirostat() {
                    list.softmax();
                }
                list.draw(noise)
            }
        }
    }

    /// Leaves in `list` what a draw from `row`, or without a row from `list`, chooses among.
    pub(super) fn list(&self, row: Option<Blocks<'_>>, list: &mut Candidates) {
        match row {
            Some(mut blocks) if self.greedy => blocks.top(1, list),
            Some(blocks) => blocks.all(list),
            None if self.greedy => list.keep_argmax(),
            None => {}
        }
    }

    /// Lists the candidates of an edited row that `grammar` allows; as many of the best as the steps will look at.
    /// The list is empty when there are none.
    ///
    /// Filtering by a grammar costs far more than anything else here. Where the first step keeps the k best (and
    /// where the best is taken), the k best that the grammar allows are among the first few hundred of the row nearly
    /// always, so those are asked first.
    pub(super) fn admit<G: Constraint>(
        &self,
        mut blocks: Blocks<'_>,
        list: &mut Candidates,
        grammar: &mut G,
    ) -> Result<()> {
        let wanted = match self.steps.first() {
            _ if self.greedy => Some(1),
            Some(Step::TopK(k)) => Some(*k),
            _ => None,
        };
        let n = blocks.len();
        let mut asked = wanted.map_or(n, |k| k.saturating_mul(4).max(64));
        while asked < n / 2 {
            blocks.top(asked, list);
            let candidates = list.len();
            list.change(true, |items| grammar.filter(items))?;
            let enough = wanted.is_some_and(|k| list.len() >= k);
            if enough || candidates < asked {
                list.set_masked(n - list.len());
                return Ok(());
            }
            asked = asked.saturating_mul(16);
        }
        blocks.all(list);
        list.change(true, |items| grammar.filter(items))
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
