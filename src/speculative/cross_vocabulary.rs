//! Drafting with a model of another vocabulary: it reads the text in its own tokens, and what it says is translated back.
//!
//! The idea of arXiv 2502.05202 (its algorithm for string-level matching), of Hugging Face's universal assisted generation
//! and of the `--spec-replace` that llama.cpp once had; but only what is new of a text is translated (see [`VocabularyMap`]),
//! and the draft's cache keeps whatever of it is still right. The target's noise is by its own tokens, so the draft cannot
//! share it: it proposes its most probable tokens, without the penalties and the grammar of the request.

use std::sync::Arc;

use super::draft_model::DraftModel;
use super::drafter::{Draft, DraftRequest, Drafter};
use super::vocabulary_map::{Dictionary, VocabularyMap};
use super::{DrafterKind, Settings};
use crate::error::Result;
use crate::llama::{Context, Model, Token};
use crate::sampling::{self, Sampler};
use crate::session::{SelfExtend, Snapshot};

/// A [`DraftModel`] that is asked, and answers, in its own tokens.
pub struct CrossVocabulary {
    model: DraftModel,
    dictionary: Dictionary,
    /// What the draft model samples with.
    sampler: Sampler,
    slots: Vec<TranslatedSlot>,
    n_ctx: usize,
}

struct TranslatedSlot {
    text: VocabularyMap,
    /// What the draft model said last.
    said: Draft,
}

impl CrossVocabulary {
    /// A drafter for `n_slots` slots of `target`, with the model of `context`. Looks through both vocabularies.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn new(
        context: Context,
        n_slots: usize,
        target: &Arc<Model>,
        extend: Option<SelfExtend>,
    ) -> Result<CrossVocabulary> {
        let own = Arc::clone(context.model());
        let settings = sampling::SamplingSettings {
            temperature: 0.0,
            stages: Vec::new(),
            ..sampling::SamplingSettings::default()
        };
        let sampler = Sampler::new(&settings, own.vocab(), None)?;
        let dictionary = Dictionary::new(target, &own);
        let slots = (0..n_slots)
            .map(|_| TranslatedSlot { text: VocabularyMap::new(&dictionary), said: Draft::default() })
            .collect();
        let n_ctx = context.n_ctx();
        let model = DraftModel::new(context, n_slots, own.vocab().n_tokens(), extend);
        Ok(CrossVocabulary { model, dictionary, sampler, slots, n_ctx })
    }
}

impl Drafter for CrossVocabulary {
    fn source(&self) -> DrafterKind {
        DrafterKind::Draft
    }

    fn begin(&mut self, slot: usize, _sampler: &Sampler, settings: &Settings) {
        self.model.begin(slot, &self.sampler, settings);
    }

    fn draft(&mut self, asks: &mut [DraftRequest<'_>]) {
        for ask in asks.iter() {
            let Some(TranslatedSlot { text, said }) = self.slots.get_mut(ask.slot) else { continue };
            text.follow(&self.dictionary, ask.tokens);
            said.clear();
            // Its own tokens may be more than the target's: rather the end of the text than none.
            if text.tokens().len() + text.about(ask.n_max) + 1 >= self.n_ctx {
                remove(&mut self.model, ask.slot, text.shorten(self.n_ctx / 2));
            }
        }
        let mut own = Vec::with_capacity(asks.len());
        for (index, TranslatedSlot { text, said }) in self.slots.iter_mut().enumerate() {
            let Some(ask) = asks.iter().find(|ask| ask.slot == index) else { continue };
            let n_max = if ask.n_max == 0 { 0 } else { text.about(ask.n_max) };
            let DraftRequest { slot, generated, position, p_min, pace, .. } = *ask;
            let (tokens, sampler, draft) = (text.tokens(), &self.sampler, said);
            // What is drawn in one vocabulary is not drawn in the other: no rule can weigh it, so nothing is drawn.
            let branches = (1, 1.0);
            own.push(DraftRequest {
                slot,
                tokens,
                sampler,
                generated,
                position,
                n_max,
                p_min,
                branches,
                pace,
                draft,
                drawing: None,
            });
        }
        self.model.draft(&mut own);
        for ask in asks {
            let Some(TranslatedSlot { text, said }) = self.slots.get(ask.slot) else { continue };
            let (tokens, confidence) = self.dictionary.to_target(text, &said.tokens, &said.confidence);
            for (token, confidence) in tokens.into_iter().zip(confidence).take(ask.n_max) {
                if confidence < ask.p_min {
                    break;
                }
                ask.draft.push(token, confidence);
            }
        }
    }

    fn checked(&mut self, slot: usize, drafted: usize, accepted: usize) {
        self.model.checked(slot, drafted, accepted);
    }

    fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        let Some(TranslatedSlot { text, .. }) = self.slots.get_mut(slot) else { return };
        remove(&mut self.model, slot, text.shift(keep, dropped));
    }

    fn end(&mut self, slot: usize, tokens: &[Token], generated: usize) {
        self.model.end(slot, tokens, generated);
    }

    fn save(&mut self, slot: usize) -> Option<Snapshot> {
        self.model.save(slot)
    }

    fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        self.model.load(slot, snapshot)
    }

    fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        let Some(TranslatedSlot { text, .. }) = self.slots.get_mut(slot) else { return };
        text.follow(&self.dictionary, prompt);
        self.model.reuse(slot, text.tokens(), least);
    }

    fn disabled(&self, slot: usize) -> Option<&str> {
        self.model.disabled(slot)
    }
}

/// Removes `gone` from what the model has of a text: as many tokens as the second says, from the first on.
fn remove(model: &mut DraftModel, slot: usize, (keep, dropped): (usize, usize)) {
    if dropped > 0 {
        model.shift(slot, keep, dropped);
    }
}
