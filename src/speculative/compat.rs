//! Whether a draft model can serve a target: the compatibility report.

use super::vocabulary_map::translates;
use crate::llama::{Model, Vocab, VocabKind};

/// llama.cpp's tolerance: vocabularies padded to different sizes still match where both have tokens.
const MAX_SIZE_DIFFERENCE: usize = 128;
/// The first ids may be special tokens that differ by name only, as llama.cpp has it.
const FIRST_COMPARED: usize = 5;

/// A vocabulary in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabSummary {
    /// Its kind.
    pub kind: VocabKind,
    /// Its size in tokens.
    pub n_tokens: usize,
    /// BOS, and whether texts begin with it.
    pub bos: (Option<i32>, bool),
    /// EOS, and whether texts end with it.
    pub eos: (Option<i32>, bool),
}

/// What stands between a draft model and its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compatibility {
    /// The target's vocabulary.
    pub target: VocabSummary,
    /// The draft's vocabulary.
    pub draft: VocabSummary,
    /// The first id whose token differs, with both texts.
    pub first_difference: Option<(i32, String, String)>,
    /// The draft's context in tokens.
    pub n_ctx: usize,
    /// Whether the target's cache can be cut back after a rejected draft.
    pub target_rolls_back: bool,
    /// Whether the draft's cache can be cut back.
    pub draft_rolls_back: bool,
    /// Whether tokens must be translated, through their text: the vocabularies differ.
    pub translates: bool,
    /// Why the draft cannot be used; `None`: it can.
    pub reason: Option<String>,
}

impl Compatibility {
    /// Compares the two models.
    pub fn of(target: &Model, draft: &Model, n_ctx: usize) -> Compatibility {
        let (target_vocab, draft_vocab) = (target.vocab(), draft.vocab());
        let mut report = Compatibility {
            target: summary(target_vocab),
            draft: summary(draft_vocab),
            first_difference: first_difference(target_vocab, draft_vocab),
            n_ctx,
            target_rolls_back: target.can_roll_back(),
            draft_rolls_back: draft.can_roll_back(),
            translates: false,
            reason: None,
        };
        let difference = report.difference();
        report.translates = difference.is_some() && translates(target_vocab) && translates(draft_vocab);
        report.reason = difference.filter(|_| !report.translates).or_else(|| report.obstacle());
        report
    }

    /// Why the tokens of the one are not those of the other.
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

    fn obstacle(&self) -> Option<String> {
        if !self.target_rolls_back {
            return Some("the target's memory cannot be cut back after a rejected draft".into());
        }
        if !self.draft_rolls_back {
            return Some("the draft's memory cannot be cut back after a rejected draft".into());
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
