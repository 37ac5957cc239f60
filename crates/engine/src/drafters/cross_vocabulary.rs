//! Drafting with a model of another vocabulary. It reads the context in its own tokens, and its draft is converted back to the target's.
//!
//! Based on the string-level matching of arXiv 2502.05202, Hugging Face's universal assisted generation, and llama.cpp's former
//! `--spec-replace`. Unlike these, it converts only the new part of the context (see [`VocabularyMap`]), and keeps the draft's cache where
//! it still matches. The target's random numbers belong to the target's tokens, so the draft cannot share them. It proposes its most
//! probable tokens, without the request's penalties and grammar.

use std::sync::Arc;

use super::draft_model::DraftModel;
use super::vocabulary_map::{Dictionary, VocabularyMap};
use crate::session::SelfExtend;
use foredraft_base::Snapshot;
use foredraft_base::error::Result;
use foredraft_llama::{Context, Model, Token, TokenSubset};
use foredraft_sampling as sampling;
use foredraft_sampling::Sampler;
use foredraft_speculation::{Draft, DraftRequest, Drafter};
use foredraft_speculation::{DrafterKind, Settings};

/// A [`DraftModel`] with its own tokens.
pub struct CrossVocabulary {
    model: DraftModel,
    dictionary: Dictionary,
    /// The draft model's sampler.
    sampler: Sampler,
    slots: Vec<CrossVocabularySlot>,
    n_ctx: usize,
}

struct CrossVocabularySlot {
    text: VocabularyMap,
    /// The draft model's last draft.
    last_draft: Draft,
}

impl CrossVocabulary {
    /// Creates a drafter for `n_slots` slots of `target`, with the model of `context`, which scores the `frequent` tokens and those of the
    /// contexts. Reads both vocabularies.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn new(
        context: Context,
        n_slots: usize,
        target: &Arc<Model>,
        extend: Option<SelfExtend>,
        frequent: Option<TokenSubset>,
    ) -> Result<CrossVocabulary> {
        let own = Arc::clone(context.model());
        let settings = sampling::SamplingSettings {
            temperature: 0.0,
            stages: Vec::new(),
            ..sampling::SamplingSettings::default()
        };
        let sampler = Sampler::new(&settings, &*own, None)?;
        let dictionary = Dictionary::new(target, &own);
        let slots = (0..n_slots)
            .map(|_| CrossVocabularySlot { text: VocabularyMap::new(&dictionary), last_draft: Draft::default() })
            .collect();
        let n_ctx = context.n_ctx();
        let model = DraftModel::new(context, n_slots, own.vocab().n_tokens(), extend, frequent);
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

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        for request in requests.iter() {
            let Some(CrossVocabularySlot { text, last_draft }) = self.slots.get_mut(request.slot) else { continue };
            text.follow(&self.dictionary, request.tokens);
            last_draft.clear();
            // The context can have more of the draft's tokens than of the target's. If it is too long, its beginning is dropped.
            if text.tokens().len() + text.about(request.n_max) + 1 >= self.n_ctx {
                remove(&mut self.model, request.slot, text.shorten(self.n_ctx / 2));
            }
        }
        let mut own = Vec::with_capacity(requests.len());
        for (index, CrossVocabularySlot { text, last_draft }) in self.slots.iter_mut().enumerate() {
            let Some(request) = requests.iter().find(|request| request.slot == index) else { continue };
            let n_max = if request.n_max == 0 { 0 } else { text.about(request.n_max) };
            let DraftRequest { slot, generated, position, p_min, stop_policy, .. } = *request;
            let (tokens, sampler, draft) = (text.tokens(), &self.sampler, last_draft);
            // Tokens drawn from one vocabulary have no distribution in the other, so the verification rules cannot use them. Nothing is
            // drawn.
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
                stop_policy,
                draft,
                drawing: None,
            });
        }
        self.model.draft(&mut own);
        for request in requests {
            let Some(CrossVocabularySlot { text, last_draft }) = self.slots.get(request.slot) else { continue };
            let (tokens, confidence) = self.dictionary.to_target(text, &last_draft.tokens, &last_draft.confidence);
            for (token, confidence) in tokens.into_iter().zip(confidence).take(request.n_max) {
                if confidence < request.p_min {
                    break;
                }
                request.draft.push(token, confidence);
            }
        }
    }

    fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        let Some(CrossVocabularySlot { text, .. }) = self.slots.get_mut(slot) else { return };
        remove(&mut self.model, slot, text.shift(keep, dropped));
    }

    fn end(&mut self, slot: usize, _tokens: &[Token], _generated: usize) {
        // The completion is in the target's tokens.
        self.model.end(slot, &[], 0);
    }

    fn forget_answers(&mut self) {
        self.model.forget_answers();
    }

    fn save(&mut self, slot: usize) -> Option<Snapshot> {
        self.model.save(slot)
    }

    fn state_size(&mut self, slot: usize) -> usize {
        self.model.state_size(slot)
    }

    fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        self.model.load(slot, snapshot)
    }

    fn erase(&mut self, slot: usize) -> usize {
        self.model.erase(slot)
    }

    fn copy(&mut self, from: usize, to: usize, prompt: &[Token]) {
        let Some(CrossVocabularySlot { text, .. }) = self.slots.get_mut(to) else { return };
        text.follow(&self.dictionary, prompt);
        self.model.copy(from, to, text.tokens());
    }

    fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        let Some(CrossVocabularySlot { text, .. }) = self.slots.get_mut(slot) else { return };
        text.follow(&self.dictionary, prompt);
        self.model.reuse(slot, text.tokens(), least);
    }

    fn disabled(&self, slot: usize) -> Option<&str> {
        self.model.disabled(slot)
    }
}

/// Removes `dropped` tokens from index `keep` on from the model's context.
fn remove(model: &mut DraftModel, slot: usize, (keep, dropped): (usize, usize)) {
    if dropped > 0 {
        model.shift(slot, keep, dropped);
    }
}
