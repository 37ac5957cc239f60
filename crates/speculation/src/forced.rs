//! `grammar`: drafts what the request's grammar allows as the only continuation: the keys and the punctuation of JSON, the rest of a value
//! of an enum.
//!
//! The grammar determines text, not tokens. If the target spells the text by other tokens, the draft is rejected there.

use crate::drafter::{DraftRequest, Drafter};
use crate::{DrafterKind, Settings};
use foredraft_base::Token;
use foredraft_sampling::Sampler;

/// The `grammar` drafter. It keeps nothing: the target's sampler has the grammar's state.
#[derive(Debug, Default)]
pub struct GrammarDrafter;

impl Drafter for GrammarDrafter {
    fn source(&self) -> DrafterKind {
        DrafterKind::Grammar
    }

    fn begin(&mut self, _slot: usize, _sampler: &Sampler, _settings: &Settings) {}

    fn draft(&mut self, asks: &mut [DraftRequest<'_>]) {
        for request in asks.iter_mut().filter(|request| request.n_max > 0) {
            let Some(grammar) = request.sampler.grammar() else { continue };
            for (token, certainty) in grammar.continuation(request.n_max) {
                if certainty < request.p_min {
                    break;
                }
                request.draft.push(token, certainty);
            }
        }
    }

    fn shift(&mut self, _slot: usize, _keep: usize, _dropped: usize) {}

    fn end(&mut self, _slot: usize, _tokens: &[Token], _generated: usize) {}

    fn disabled(&self, _slot: usize) -> Option<&str> {
        None
    }
}
