//! `suffix`: what followed the longest matches of the text's end, in the request's own text and in earlier answers.
//!
//! After SuffixDecoding (arXiv 2411.04975): counts of continuations say how likely each is, and the draft goes on while
//! the probability of all of it is at least `min_prob` (its first token where that costs nothing, whatever that is), up to `factor`
//! times the match's length, and no further than it can gain by what evaluations cost ([`StopPolicy::may_gain`]). As in SAM-Decoding
//! (arXiv 2411.10666) a match that goes on is not searched again: a [`Trace`] follows the copied place token by token.
//! It stays where it is when a single token differs, so that text which is rewritten with other names is followed at
//! once; insertions and deletions are found again by the [`ContextTree`].
//!
//! Each token of a draft is the likeliest of: the most frequent continuation of the longest context in the tree, and the
//! token behind the trace, each in both texts. [`Bins`] says how likely.
//!
//! Answers are learnt when their request has ended, prompts never: what one user sends does not show in the speed of
//! another's answers, except as far as the model repeated it.
//!
//! A draft token costs a look-up of about two nodes in each text, a generated one mostly two visits and at most three for
//! each depth of the tree. Memory: 100 bytes at most for each token of the request, of which the last million are kept, and
//! 17 MiB at most for all earlier answers: the last 2^18 tokens; when these are full the older half is forgotten.
//!
//! [`StopPolicy::may_gain`]: super::StopPolicy::may_gain

use super::drafter::Draft;
use super::history_drafter::{HistoryDrafter, Limits, TextDrafter};
use super::ngram_params::SuffixParams;
use super::suffix_answers::Answers;
use super::suffix_confidence::{Bins, Kind, Origin};
use super::suffix_trace::{Candidate, Text, Trace};
use super::suffix_tree::{ContextTree, MAX_LENGTH};
use super::{DrafterKind, Settings, SoFar};
use crate::llama::Token;

/// The drafter.
pub type Suffix = TextDrafter<Matches>;

/// The rule.
pub struct Matches {
    params: SuffixParams,
    /// The request's text up to `known`.
    tree: ContextTree,
    known: usize,
    own: Trace,
    earlier: Trace,
    /// [`Answers::forgotten`] when `earlier` was found.
    forgotten: usize,
    bins: Bins,
    /// The end of the text and the draft behind it.
    window: Vec<Token>,
    /// Candidates for each token of the draft, and how many tokens of the draft are before it.
    considered: Vec<(usize, Token, Kind)>,
}

impl HistoryDrafter for Matches {
    const SOURCE: DrafterKind = DrafterKind::Suffix;
    type Shared = Answers;

    fn new(settings: &Settings) -> Self {
        let params = settings.ngram.suffix;
        Matches {
            params,
            tree: ContextTree::new(params.max_depth),
            known: 0,
            own: Trace::default(),
            earlier: Trace::default(),
            forgotten: 0,
            bins: Bins::default(),
            window: Vec::new(),
            considered: Vec::new(),
        }
    }

    fn forget(&mut self) {
        self.tree.clear();
        self.considered.clear();
        (self.known, self.own) = (0, Trace::default());
    }

    fn learn(&mut self, answers: &Answers, text: &[Token], _prompt: usize) {
        self.judge(text.get(self.known..).unwrap_or(&[]));
        if self.forgotten != answers.forgotten {
            (self.earlier, self.forgotten) = (Trace::default(), answers.forgotten);
        }
        for (at, token) in text.iter().enumerate().skip(self.known) {
            self.tree.learn(text, at);
            self.own.follow(text, *token);
            self.earlier.follow(&answers.text, *token);
        }
        self.known = text.len();
    }

    fn draft(&mut self, answers: &Answers, text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        let here = Text { origin: Origin::Own, tokens: text, tree: &self.tree };
        let there = Text { origin: Origin::Earlier, tokens: &answers.text, tree: &answers.tree };
        self.considered.clear();
        self.window.clear();
        self.window.extend_from_slice(text.get(text.len().saturating_sub(MAX_LENGTH)..).unwrap_or(text));
        let mut found = (self.own.look_up(here, text), self.earlier.look_up(there, text));
        self.own.seek(here, text, found.0.as_ref());
        self.earlier.seek(there, text, found.1.as_ref());
        let (mut own, mut earlier) = (self.own, self.earlier);
        let longest = own.length().max(earlier.length()).max(1);
        let most = limits.n_max.min(times(longest, self.params.factor));
        let (mut sure, mut so_far) = (1.0, SoFar::default());
        while draft.tokens.len() < most {
            let drafted = draft.tokens.len();
            let considered = &mut self.considered;
            let mut note = |candidate: &Candidate| considered.push((drafted, candidate.token, candidate.kind));
            let of_own = own.candidate(here, found.0.as_ref(), &self.bins, &mut note);
            let of_earlier = earlier.candidate(there, found.1.as_ref(), &self.bins, &mut note);
            let Some(chosen) = of_own.into_iter().chain(of_earlier).reduce(Candidate::likelier) else { return };
            sure *= limits.pace.acceptance(chosen.confidence);
            let is_guess = drafted == 0 && self.params.guesses;
            if !is_guess && (sure < f64::from(self.params.min_prob) || chosen.confidence < limits.p_min) {
                return;
            }
            if !limits.pace.may_gain(&mut so_far, sure) {
                return;
            }
            draft.extend_from(&[chosen.token], chosen.confidence);
            self.window.push(chosen.token);
            own.continue_with(text, chosen.token, of_own);
            earlier.continue_with(&answers.text, chosen.token, of_earlier);
            let context = self.window.get(drafted + 1..).unwrap_or(&[]);
            found = (own.look_up(here, context), earlier.look_up(there, context));
        }
    }

    fn forget_answers(answers: &mut Answers) {
        answers.clear();
    }

    fn remember(answers: &mut Answers, context: &[Token], output: usize) {
        answers.add(context.get(output..).unwrap_or(&[]));
    }
}

impl Matches {
    /// Learns from what was considered for the last draft, now that `new` followed. Candidates count as long as the
    /// draft before them was right.
    fn judge(&mut self, new: &[Token]) {
        if new.is_empty() {
            return;
        }
        let before = self.window.len().min(MAX_LENGTH).min(self.known);
        let draft = self.window.get(before..).unwrap_or(&[]);
        let right = draft.iter().zip(new).take_while(|(draft, new)| draft == new).count();
        for (drafted, token, kind) in self.considered.drain(..) {
            if let Some(actual) = new.get(drafted).filter(|_| drafted <= right) {
                self.bins.saw(kind, *actual == token);
            }
        }
    }
}

/// `factor` times `length`, rounded up.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn times(length: usize, factor: f32) -> usize {
    // `as` keeps within the bounds, and a factor that is no number gives 0.
    (length as f32 * factor).ceil() as usize
}

#[cfg(test)]
#[path = "suffix_tests.rs"]
mod tests;
