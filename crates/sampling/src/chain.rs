//! The sampler chain: a request's stages in its order. They run on the row of logits until a stage makes a list of
//! candidates, and on that list from then on.

use super::blocks::BlockMaxima;
use super::candidates::Candidates;
use super::dry::Dry;
use super::interfaces::Constraint;
use super::noise::GumbelNoise;
use super::penalties::EditedLogits;
use super::penalties::Penalties;
use super::penalties::TokenCounts;
use super::settings::{SamplingSettings, Stage};
use super::stateful::{AdaptiveP, Mirostat};
use super::temperature::Temperature;
use super::truncation;
use foredraft_base::error::Result;
use foredraft_base::{Token, Vocabulary};

/// A stage with its parameters. Stages that the settings turn off are not constructed.
#[derive(Debug, Clone)]
enum ChainStage {
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
    AdaptiveP(AdaptiveP),
}

impl ChainStage {
    /// Compiles a stage; `None` if its settings turn it off.
    fn new(stage: Stage, settings: &SamplingSettings, vocab: &dyn Vocabulary) -> Result<Option<ChainStage>> {
        let compiled = match stage {
            Stage::Penalties => Penalties::new(settings, vocab.newline()).map(ChainStage::Penalties),
            Stage::Dry => Dry::new(settings, vocab)?.map(ChainStage::Dry),
            Stage::TopNSigma => (settings.top_n_sigma > 0.0).then_some(ChainStage::TopNSigma(settings.top_n_sigma)),
            Stage::TopK => usize::try_from(settings.top_k).ok().filter(|k| *k > 0).map(ChainStage::TopK),
            Stage::TfsZ => (settings.tfs_z < 1.0).then_some(ChainStage::TailFree(settings.tfs_z)),
            Stage::TypicalP => (settings.typical_p < 1.0).then_some(ChainStage::TypicalP(settings.typical_p)),
            Stage::TopP => (settings.top_p < 1.0).then_some(ChainStage::TopP(settings.top_p)),
            Stage::MinP => (settings.min_p > 0.0).then_some(ChainStage::MinP(settings.min_p)),
            Stage::Xtc => {
                let (probability, threshold) = (settings.xtc_probability, settings.xtc_threshold);
                (probability > 0.0 && threshold <= 0.5).then_some(ChainStage::Xtc { probability, threshold })
            }
            Stage::Temperature => Temperature::new(settings).map(ChainStage::Temperature),
            Stage::AdaptiveP => AdaptiveP::new(settings).map(ChainStage::AdaptiveP),
        };
        Ok(compiled)
    }

    /// Returns whether the stage changes logits without truncating, so that it can edit the row in place.
    fn is_penalty(&self) -> bool {
        matches!(self, ChainStage::Penalties(_) | ChainStage::Dry(_))
    }

    /// The largest number of logits it edits; `None`: unlimited.
    fn max_edits(&self) -> Option<usize> {
        match self {
            ChainStage::Penalties(penalties) => penalties.max_edits(),
            ChainStage::Dry(dry) => dry.max_edits(),
            _ => Some(0),
        }
    }
}

/// The inputs of a stage other than the logits.
#[derive(Debug, Clone, Copy)]
pub(super) struct StageContext<'a> {
    /// All tokens so far, prompt included.
    pub(super) history: &'a [Token],
    /// The position's noise.
    pub(super) noise: GumbelNoise,
    /// Mirostat's or adaptive-p's state.
    pub(super) state: f32,
}

/// Scratch buffers of the stages.
#[derive(Debug, Default)]
pub(super) struct StageScratch {
    tally: TokenCounts,
    matches: Vec<u32>,
    /// The probabilities before adaptive-p's transformation.
    untransformed: Vec<(Token, f32)>,
}

impl StageScratch {
    /// Clears the probabilities of the last draw.
    pub(super) fn clear(&mut self) {
        self.untransformed.clear();
    }
}

/// The compiled settings. Immutable; shared by a target's sampler and those of its drafts.
#[derive(Debug, Clone)]
pub(super) struct SamplerChain {
    n_vocab: usize,
    bias: Vec<(Token, f32)>,
    /// Penalties before all other stages: they edit the row.
    edits: Vec<ChainStage>,
    stages: Vec<ChainStage>,
    min_keep: usize,
    greedy: bool,
}

/// Larger top-k lists are left unsorted: later stages rarely need their order.
const MAX_SORTED_K: usize = 1024;

impl SamplerChain {
    /// Compiles the settings for a vocabulary.
    pub(super) fn new(settings: &SamplingSettings, vocab: &dyn Vocabulary) -> Result<SamplerChain> {
        let mut stages = Vec::new();
        for stage in &settings.stages {
            stages.extend(ChainStage::new(*stage, settings, vocab)?);
        }
        let mirostat = Mirostat::new(settings, vocab.n_tokens());
        if let Some(mirostat) = mirostat {
            stages.retain(ChainStage::is_penalty);
            stages.extend(Temperature::fixed(settings.temperature).map(ChainStage::Temperature));
            stages.push(ChainStage::Mirostat(mirostat));
        }
        // Adaptive-p runs last, as in llama.cpp, where it replaces the draw.
        if let Some(at) = stages.iter().position(|stage| matches!(stage, ChainStage::AdaptiveP(_))) {
            let adaptive = stages.remove(at);
            stages.retain(|stage| !matches!(stage, ChainStage::AdaptiveP(_)));
            stages.push(adaptive);
        }
        let truncating = stages.split_off(stages.iter().take_while(|stage| stage.is_penalty()).count());
        let chain = SamplerChain {
            n_vocab: vocab.n_tokens(),
            bias: settings.logit_bias.clone(),
            edits: stages,
            stages: truncating,
            min_keep: settings.min_keep,
            greedy: false,
        };
        Ok(if settings.temperature <= 0.0 { chain.to_greedy() } else { chain })
    }

    /// Whether the chain always takes the most probable token.
    pub(super) fn is_greedy(&self) -> bool {
        self.greedy
    }

    /// The greedy chain with the same biases and penalties.
    pub(super) fn to_greedy(&self) -> SamplerChain {
        let late = self.stages.iter().filter(|stage| stage.is_penalty());
        SamplerChain {
            edits: self.edits.iter().chain(late).cloned().collect(),
            stages: Vec::new(),
            greedy: true,
            ..self.clone()
        }
    }

    /// Size of the vocabulary that the chain was compiled for.
    pub(super) fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Whether the chain ends with mirostat.
    fn has_mirostat(&self) -> bool {
        matches!(self.stages.last(), Some(ChainStage::Mirostat(_)))
    }

    /// The state of mirostat or adaptive-p before the first token.
    pub(super) fn initial_state(&self) -> f32 {
        match self.stages.last() {
            Some(ChainStage::Mirostat(mirostat)) => mirostat.initial(),
            Some(ChainStage::AdaptiveP(adaptive)) => adaptive.initial(),
            _ => 0.0,
        }
    }

    /// Whether the chain ends with adaptive-p.
    pub(super) fn is_adaptive(&self) -> bool {
        matches!(self.stages.last(), Some(ChainStage::AdaptiveP(_)))
    }

    /// The probability of `token` that updates the state of mirostat or adaptive-p; `None` if `token` was not a candidate
    /// in `list`.
    pub(super) fn state_input(&self, token: Token, list: &Candidates, scratch: &StageScratch) -> Option<f32> {
        match self.stages.last() {
            Some(ChainStage::AdaptiveP(_)) => {
                scratch.untransformed.iter().find(|(id, _)| *id == token).map(|(_, p)| *p)
            }
            _ => list.items().iter().find(|item| item.id == token).map(|item| item.p),
        }
    }

    /// The state after a token with that probability.
    pub(super) fn next_state(&self, state: f32, p: f32) -> f32 {
        match self.stages.last() {
            Some(ChainStage::Mirostat(mirostat)) => mirostat.next(state, p),
            Some(ChainStage::AdaptiveP(adaptive)) => adaptive.next(state, p),
            _ => state,
        }
    }

    /// The largest number of logits that [`SamplerChain::edit`] changes.
    pub(super) fn max_edits(&self) -> usize {
        let stages = self.edits.iter().map(|stage| stage.max_edits().unwrap_or(self.n_vocab).min(self.n_vocab));
        self.bias.len() + stages.sum::<usize>()
    }

    /// Scratch buffers for this chain.
    pub(super) fn scratch(&self) -> StageScratch {
        let counts = self.edits.iter().chain(&self.stages).any(ChainStage::is_penalty);
        let adaptive = matches!(self.stages.last(), Some(ChainStage::AdaptiveP(_)));
        StageScratch {
            tally: if counts { TokenCounts::new(self.n_vocab) } else { TokenCounts::default() },
            matches: Vec::new(),
            untransformed: Vec::with_capacity(if adaptive { self.n_vocab } else { 0 }),
        }
    }

    /// Applies the biases and the leading penalties in place.
    pub(super) fn edit(&self, row: &mut EditedLogits<'_>, history: &[Token], scratch: &mut StageScratch) {
        for &(token, bias) in &self.bias {
            // Adding -inf to +inf would give NaN instead of a ban.
            row.edit(token, |logit| if bias == f32::NEG_INFINITY { bias } else { logit + bias });
        }
        for stage in &self.edits {
            match stage {
                ChainStage::Penalties(penalties) => penalties.edit(row, history, &mut scratch.tally),
                ChainStage::Dry(dry) => dry.edit(row, history, &mut scratch.tally, &mut scratch.matches),
                _ => {}
            }
        }
    }

    /// Runs the stages on an edited row. Returns the row if no stage listed candidates; otherwise returns `None`, and the
    /// candidates are in `list`.
    pub(super) fn apply_to_row<'a>(
        &self,
        blocks: BlockMaxima<'a>,
        list: &mut Candidates,
        context: StageContext<'_>,
        scratch: &mut StageScratch,
    ) -> Option<BlockMaxima<'a>> {
        let mut row = Some(blocks);
        for stage in &self.stages {
            row = match row {
                Some(blocks) => self.apply_stage_to_row(stage, blocks, list, context, scratch),
                None => {
                    self.apply_stage_to_list(stage, list, context, scratch);
                    None
                }
            };
        }
        row
    }

    /// Runs the stages on a non-empty list. Leaves at least one candidate.
    pub(super) fn apply_to_list(&self, list: &mut Candidates, context: StageContext<'_>, scratch: &mut StageScratch) {
        for stage in &self.stages {
            self.apply_stage_to_list(stage, list, context, scratch);
        }
    }

    fn apply_stage_to_row<'a>(
        &self,
        stage: &ChainStage,
        mut blocks: BlockMaxima<'a>,
        list: &mut Candidates,
        context: StageContext<'_>,
        scratch: &mut StageScratch,
    ) -> Option<BlockMaxima<'a>> {
        match stage {
            ChainStage::TopK(k) if *k >= blocks.len() => return Some(blocks),
            ChainStage::TopK(k) if *k > MAX_SORTED_K => blocks.top_k_unsorted(*k, list),
            ChainStage::TopK(k) => blocks.top_k(*k, list),
            ChainStage::TopNSigma(n) => truncation::top_n_sigma_row(&blocks, list, *n),
            ChainStage::TopP(p) => truncation::top_p_row(&mut blocks, list, *p, self.min_keep),
            ChainStage::TypicalP(p) => truncation::typical_p_row(&mut blocks, list, *p, self.min_keep),
            ChainStage::TailFree(z) if blocks.len() > 2 => {
                truncation::tail_free_row(&mut blocks, list, *z, self.min_keep)
            }
            ChainStage::MinP(p) => truncation::min_p_row(&mut blocks, list, *p, self.min_keep),
            ChainStage::Xtc { probability, .. } if !truncation::xtc_applies(*probability, &context.noise) => {
                return Some(blocks);
            }
            ChainStage::Temperature(temperature) if blocks.temperature() == 1.0 => {
                if temperature.apply_to_row(&mut blocks, list) {
                    return Some(blocks);
                }
            }
            ChainStage::Mirostat(mirostat) => mirostat.truncate_row(context.state, &mut blocks, list),
            _ => {
                blocks.list_all(list);
                self.apply_stage_to_list(stage, list, context, scratch);
            }
        }
        None
    }

    fn apply_stage_to_list(
        &self,
        stage: &ChainStage,
        list: &mut Candidates,
        context: StageContext<'_>,
        scratch: &mut StageScratch,
    ) {
        match stage {
            ChainStage::Penalties(penalties) => penalties.apply(list, context.history, &mut scratch.tally),
            ChainStage::Dry(dry) => dry.apply(list, context.history, &mut scratch.tally, &mut scratch.matches),
            ChainStage::TopNSigma(n) => truncation::top_n_sigma(list, *n),
            ChainStage::TopK(k) => list.keep_best(*k),
            ChainStage::TailFree(z) => truncation::tail_free(list, *z, self.min_keep),
            ChainStage::TypicalP(p) => truncation::typical_p(list, *p, self.min_keep),
            ChainStage::TopP(p) => truncation::top_p(list, *p, self.min_keep),
            ChainStage::MinP(p) => truncation::min_p(list, *p, self.min_keep),
            ChainStage::Xtc { probability, threshold } => {
                if truncation::xtc_applies(*probability, &context.noise) {
                    truncation::xtc(list, *threshold, self.min_keep);
                }
            }
            ChainStage::Temperature(temperature) => temperature.apply(list),
            ChainStage::Mirostat(mirostat) => mirostat.truncate(context.state, list),
            ChainStage::AdaptiveP(adaptive) => adaptive.apply(context.state, list, &mut scratch.untransformed),
        }
    }

    /// Samples a token from the candidates in `row`, or in `list` if there is no row. `listed`: also lists the row's
    /// candidates.
    pub(super) fn choose(
        &self,
        row: Option<BlockMaxima<'_>>,
        list: &mut Candidates,
        noise: &GumbelNoise,
        listed: bool,
    ) -> Option<Token> {
        match row {
            Some(blocks) => {
                let chosen = if self.greedy { blocks.argmax() } else { blocks.draw(noise) };
                if listed {
                    self.list_choices(Some(blocks), list);
                }
                chosen
            }
            None if self.greedy => {
                list.keep_argmax();
                list.items().first().map(|item| item.id)
            }
            None => {
                // `accept` updates mirostat with these probabilities.
                if self.has_mirostat() {
                    list.softmax();
                }
                list.draw(noise)
            }
        }
    }

    /// Lists the candidates that [`SamplerChain::choose`] samples from, in `row` or, without a row, in `list`.
    pub(super) fn list_choices(&self, row: Option<BlockMaxima<'_>>, list: &mut Candidates) {
        match row {
            Some(mut blocks) if self.greedy => blocks.top_k(1, list),
            Some(blocks) => blocks.list_all(list),
            None if self.greedy => list.keep_argmax(),
            None => {}
        }
    }

    /// Lists the candidates of an edited row that `grammar` allows, or the best of them if the stages need no more. The
    /// list is empty if the grammar allows none.
    ///
    /// Filtering by a grammar costs far more than all stages. If the first stage keeps the k best (or the chain is
    /// greedy), the k best allowed tokens are nearly always among the first few hundred of the row, so the grammar
    /// filters those first.
    pub(super) fn list_allowed<G: Constraint>(
        &self,
        mut blocks: BlockMaxima<'_>,
        list: &mut Candidates,
        grammar: &mut G,
    ) -> Result<()> {
        let wanted = match self.stages.first() {
            _ if self.greedy => Some(1),
            Some(ChainStage::TopK(k)) => Some(*k),
            _ => None,
        };
        let n = blocks.len();
        let mut asked = wanted.map_or(n, |k| k.saturating_mul(4).max(64));
        while asked < n / 2 {
            blocks.top_k(asked, list);
            let candidates = list.len();
            list.edit_logits(true, |items| grammar.filter(items))?;
            let enough = wanted.is_some_and(|k| list.len() >= k);
            if enough || candidates < asked {
                list.set_masked(n - list.len());
                return Ok(());
            }
            asked = asked.saturating_mul(16);
        }
        blocks.list_all(list);
        list.edit_logits(true, |items| grammar.filter(items))
    }
}

#[cfg(test)]
mod tests;
