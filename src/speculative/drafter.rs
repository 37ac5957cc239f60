//! The one interface of all drafters.

use super::{Settings, Source};
use crate::error::Result;
use crate::llama::Token;
use crate::sampling::Sampler;
use crate::session::Snapshot;

/// Proposes tokens that the target then checks. One drafter serves all slots.
///
/// A drafter cannot make a text wrong, only slow: what it proposes is compared with what the target says. It owes
/// no exactness about the tokens it has seen either: each [`Ask`] carries the whole context, and the drafter finds out
/// itself what of it is new. That keeps cancelled evaluations, context shifts and reused prompts out of this interface.
pub trait Drafter {
    /// Who it is.
    fn source(&self) -> Source;

    /// A request begins in `slot`; `sampler` is the target's.
    fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) -> Result<()>;

    /// Drafts for all that ask, together. A drafter that has not yet caught up with an [`Ask`]'s context works on that
    /// and proposes nothing, so that nobody waits for a long prompt.
    fn draft(&mut self, asks: &mut [Ask<'_>]);

    /// The tokens `dropped` positions from `keep` on are gone from the context of `slot`, those behind moved down.
    fn shift(&mut self, slot: usize, keep: usize, dropped: usize);

    /// The request in `slot` has ended.
    fn end(&mut self, slot: usize);

    /// What of a session it has for `slot`; `None`: nothing that would be worth a file.
    fn save(&mut self, slot: usize) -> Option<Snapshot> {
        let _ = slot;
        None
    }

    /// Takes what [`Drafter::save`] gave; false when it does not fit or fails, after which it catches up as always.
    fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        let _ = (slot, snapshot);
        false
    }

    /// A request for `prompt` begins in `slot` that lets parts of the cache be moved: see [`Sequence::reuse`].
    ///
    /// [`Sequence::reuse`]: crate::session::Sequence::reuse
    fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        let _ = (slot, prompt, least);
    }

    /// Why it drafts no more for the request in `slot`.
    fn disabled(&self, slot: usize) -> Option<&str>;
}

/// One slot's wish for a draft.
pub struct Ask<'a> {
    /// The slot.
    pub slot: usize,
    /// The whole context: prompt and generated tokens, the last one not yet evaluated by the target.
    pub tokens: &'a [Token],
    /// The target's sampler, in the state after `tokens`.
    pub sampler: &'a Sampler,
    /// The number of the next generated token.
    pub position: usize,
    /// Most tokens to draft; 0: only keep up with `tokens`.
    pub n_max: usize,
    /// Drafting stops at a token less probable than this.
    pub p_min: f32,
    /// The draft goes here; it is empty before.
    pub draft: &'a mut Draft,
}

/// A proposed continuation.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// Who proposed them.
    pub source: Option<Source>,
}

impl Draft {
    /// Forgets it, keeping its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.source = None;
    }
}
