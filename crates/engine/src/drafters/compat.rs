//! Whether a draft model can serve a target: the compatibility report.

use super::vocabulary_map::can_convert;
use foredraft_llama::{Model, Rollback, Vocab, VocabKind};

/// llama.cpp's tolerance: vocabularies that are padded to different sizes match if their common tokens do.
const MAX_SIZE_DIFFERENCE: usize = 128;
/// As in llama.cpp, the first ids can be special tokens with different names.
const FIRST_COMPARED: usize = 5;

/// A summary of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabSummary {
    /// The type.
    pub kind: VocabKind,
    /// The number of tokens.
    pub n_tokens: usize,
    /// BOS, and whether texts start with it.
    pub bos: (Option<i32>, bool),
    /// EOS, and whether texts end with it.
    pub eos: (Option<i32>, bool),
}

/// The compatibility of a draft model with its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compatibility {
    /// The target's vocabulary.
    pub target: VocabSummary,
    /// The draft's vocabulary.
    pub draft: VocabSummary,
    /// The first id with different tokens, and both tokens.
    pub first_difference: Option<(i32, String, String)>,
    /// The draft's context length in tokens.
    pub n_ctx: usize,
    /// Rejected tokens can be removed from the target's cache, as far as drafts are verified. If not, accepted tokens are decoded again.
    pub target_rolls_back: bool,
    /// Rejected tokens can be removed from the draft's cache. If not, accepted tokens are decoded again.
    pub draft_rolls_back: bool,
    /// Cross-vocabulary drafting is used, because the vocabularies differ.
    pub is_cross_vocabulary: bool,
    /// The tokens that every draft can have, beside those of the context. `None`: all.
    pub n_scored: Option<usize>,
    /// The reason why the draft model cannot be used. `None`: it can.
    pub reason: Option<String>,
}

impl Compatibility {
    /// Compares two models, each with how far its cache can be rolled back. `n_ctx`: the draft's context length.
    pub fn of(target: (&Model, Rollback), draft: (&Model, Rollback), n_ctx: usize) -> Compatibility {
        let ((target, target_rollback), (draft, draft_rollback)) = (target, draft);
        let (target_vocab, draft_vocab) = (target.vocab(), draft.vocab());
        let mut report = Compatibility {
            target: summary(target_vocab),
            draft: summary(draft_vocab),
            first_difference: first_difference(target_vocab, draft_vocab),
            n_ctx,
            target_rolls_back: target_rollback != Rollback::Never,
            draft_rolls_back: draft_rollback.is_unlimited(),
            is_cross_vocabulary: false,
            n_scored: None,
            reason: None,
        };
        let difference = report.difference();
        report.is_cross_vocabulary = difference.is_some() && can_convert(target_vocab) && can_convert(draft_vocab);
        report.reason = difference.filter(|_| !report.is_cross_vocabulary);
        report
    }

    /// The difference between the vocabularies.
    fn difference(&self) -> Option<String> {
        let (target, draft) = (&self.target, &self.draft);
        if target.kind != draft.kind {
            let (target, draft) = (target.kind.as_str(), draft.kind.as_str());
            return Some(format!("the draft's vocabulary is of type {draft}, the target's of type {target}"));
        }
        if target.bos.1 != draft.bos.1 || (target.bos.1 && target.bos != draft.bos) {
            return Some("target and draft begin texts with different tokens (BOS)".into());
        }
        if target.eos.1 != draft.eos.1 || (target.eos.1 && target.eos != draft.eos) {
            return Some("target and draft end texts with different tokens (EOS)".into());
        }
        if target.n_tokens.abs_diff(draft.n_tokens) > MAX_SIZE_DIFFERENCE {
            return Some(format!(
                "the draft's vocabulary has {} tokens, the target's {}",
                draft.n_tokens, target.n_tokens
            ));
        }
        if let Some((token, target, draft)) = &self.first_difference {
            return Some(format!(
                "token {token} is {target:?} in the target's vocabulary and {draft:?} in the draft's"
            ));
        }
        None
    }
}

fn summary(vocab: &Vocab) -> VocabSummary {
    VocabSummary {
        kind: vocab.kind(),
        n_tokens: vocab.n_tokens(),
        bos: (vocab.bos(), vocab.adds_bos()),
        eos: (vocab.eos(), vocab.adds_eos()),
    }
}

fn first_difference(target: &Vocab, draft: &Vocab) -> Option<(i32, String, String)> {
    let n = target.n_tokens().min(draft.n_tokens());
    (0..).zip(0..n).skip(FIRST_COMPARED).find_map(|(token, _): (i32, usize)| {
        let (target, draft) = (target.raw_text(token), draft.raw_text(token));
        (target != draft).then_some((token, target, draft))
    })
}
