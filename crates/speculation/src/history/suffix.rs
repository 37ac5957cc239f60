//! `suffix`: drafts the tokens that followed the longest matches of the history's end, in the request's own history and in
//! earlier outputs.
//!
//! After SuffixDecoding (arXiv 2411.04975): counts of continuations estimate the probability of each token. The draft
//! continues while its total probability is at least `min_prob` (the first token may be less probable where verifying it is
//! free), up to `factor` times the length of the match, and only while it can pay by the measured costs
//! ([`StopPolicy::may_gain`]). As in SAM-Decoding (arXiv 2411.10666), a continuing match is not searched again: a [`Trace`]
//! follows the copied position token by token. It survives single mismatches, so it follows text that is rewritten with
//! other names; the [`ContextTree`] finds the position again after insertions and deletions.
//!
//! Each draft token is the most probable of four candidates: the most frequent continuation of the longest context, and the
//! token at the trace, each in both sources. [`ConfidenceBins`] estimates their probabilities.
//!
//! Outputs are added when their request ends. Prompts are never added, so the speed of one user's request does not reveal
//! another user's input, except for what the model repeated.
//!
//! A draft token costs a lookup of about two nodes in each source. A generated token usually costs two node visits, at most
//! three per depth of the tree. Memory: at most 100 bytes per token of the request, for the last million tokens, and at most
//! 17 MiB for earlier outputs (the last 2^18 tokens; the older half is dropped when they are full).
//!
//! [`StopPolicy::may_gain`]: crate::StopPolicy::may_gain

use super::history_drafter::{HistoryDrafter, Limits, SlotDrafters};
use super::params::SuffixParams;
use super::suffix_tree::{ContextTree, Continuations, Hint, LENGTHS, MAX_LENGTH, SEPARATOR, to_index};
use crate::{Draft, DrafterKind, Settings, SoFar};
use foredraft_base::Token;

/// The `suffix` drafter.
pub type Suffix = SlotDrafters<SuffixDrafter>;

/// The drafter of one slot.
pub struct SuffixDrafter {
    params: SuffixParams,
    /// Contexts of the first `known` tokens of the history.
    tree: ContextTree,
    known: usize,
    own: Trace,
    earlier: Trace,
    /// [`EarlierOutputs::forgotten`] when `earlier` was found.
    forgotten: usize,
    bins: ConfidenceBins,
    /// The end of the history followed by the draft.
    window: Vec<Token>,
    /// All candidates of the last draft, each with its index in the draft.
    considered: Vec<(usize, Token, ProposalKind)>,
}

impl HistoryDrafter for SuffixDrafter {
    const KIND: DrafterKind = DrafterKind::Suffix;
    type Shared = EarlierOutputs;

    fn new(settings: &Settings) -> Self {
        let params = settings.suffix;
        SuffixDrafter {
            params,
            tree: ContextTree::new(params.max_depth),
            known: 0,
            own: Trace::default(),
            earlier: Trace::default(),
            forgotten: 0,
            bins: ConfidenceBins::default(),
            window: Vec::new(),
            considered: Vec::new(),
        }
    }

    fn reset(&mut self) {
        self.tree.clear();
        self.considered.clear();
        (self.known, self.own) = (0, Trace::default());
    }

    fn extend(&mut self, earlier_outputs: &EarlierOutputs, text: &[Token], _prompt: usize) {
        self.update_bins(text.get(self.known..).unwrap_or(&[]));
        if self.forgotten != earlier_outputs.forgotten {
            (self.earlier, self.forgotten) = (Trace::default(), earlier_outputs.forgotten);
        }
        for (at, token) in text.iter().enumerate().skip(self.known) {
            self.tree.learn(text, at);
            self.own.follow(text, *token);
            self.earlier.follow(&earlier_outputs.text, *token);
        }
        self.known = text.len();
    }

    fn draft(&mut self, earlier_outputs: &EarlierOutputs, text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        let here = SuffixSource { origin: Origin::Own, tokens: text, tree: &self.tree };
        let there =
            SuffixSource { origin: Origin::Earlier, tokens: &earlier_outputs.text, tree: &earlier_outputs.tree };
        self.considered.clear();
        self.window.clear();
        self.window.extend_from_slice(text.get(text.len().saturating_sub(MAX_LENGTH)..).unwrap_or(text));
        let mut found = (self.own.look_up(here, text), self.earlier.look_up(there, text));
        self.own.seek(here, text, found.0.as_ref());
        self.earlier.seek(there, text, found.1.as_ref());
        let (mut own, mut earlier) = (self.own, self.earlier);
        let longest = own.length().max(earlier.length()).max(1);
        let most = limits.n_max.min(times(longest, self.params.factor));
        // `estimated` uses the drafter's own confidence, `sure` the acceptance measured in earlier drafts.
        let (mut estimated, mut sure, mut so_far) = (1.0, 1.0, SoFar::default());
        while draft.tokens.len() < most {
            let drafted = draft.tokens.len();
            let considered = &mut self.considered;
            let mut note = |candidate: &SuffixCandidate| considered.push((drafted, candidate.token, candidate.kind));
            let of_own = own.candidate(here, found.0.as_ref(), &self.bins, &mut note);
            let of_earlier = earlier.candidate(there, found.1.as_ref(), &self.bins, &mut note);
            let Some(chosen) = of_own.into_iter().chain(of_earlier).reduce(SuffixCandidate::more_probable) else {
                return;
            };
            estimated *= f64::from(chosen.confidence);
            sure *= limits.stop_policy.acceptance(chosen.confidence);
            let is_free = drafted == 0 && self.params.offers_free_token;
            if !is_free && (estimated < f64::from(self.params.min_prob) || chosen.confidence < limits.p_min) {
                return;
            }
            if !limits.stop_policy.may_gain(&mut so_far, sure) {
                return;
            }
            draft.extend_from(&[chosen.token], chosen.confidence);
            self.window.push(chosen.token);
            own.continue_with(text, chosen.token, of_own);
            earlier.continue_with(&earlier_outputs.text, chosen.token, of_earlier);
            let context = self.window.get(drafted + 1..).unwrap_or(&[]);
            found = (own.look_up(here, context), earlier.look_up(there, context));
        }
    }

    fn forget_outputs(earlier_outputs: &mut EarlierOutputs) {
        earlier_outputs.clear();
    }

    fn learn_output(earlier_outputs: &mut EarlierOutputs, context: &[Token], output: usize) {
        earlier_outputs.add(context.get(output..).unwrap_or(&[]));
    }
}

impl SuffixDrafter {
    /// Updates the confidence bins with the candidates of the last draft, given the tokens `new` that followed. A candidate
    /// counts only if all draft tokens before it were right.
    fn update_bins(&mut self, new: &[Token]) {
        if new.is_empty() {
            return;
        }
        let before = self.window.len().min(MAX_LENGTH).min(self.known);
        let draft = self.window.get(before..).unwrap_or(&[]);
        let right = draft.iter().zip(new).take_while(|(draft, new)| draft == new).count();
        for (drafted, token, kind) in self.considered.drain(..) {
            if let Some(actual) = new.get(drafted).filter(|_| drafted <= right) {
                self.bins.record(kind, *actual == token);
            }
        }
    }
}

/// `factor` times `length`, rounded up.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn times(length: usize, factor: f32) -> usize {
    // `as` saturates, and turns NaN into 0.
    (length as f32 * factor).ceil() as usize
}

/// The largest number of stored tokens of earlier outputs.
pub(super) const MAX_EARLIER_TOKENS: usize = 1 << 18;

/// The outputs of earlier requests of all slots.
pub struct EarlierOutputs {
    pub(super) text: Vec<Token>,
    pub(super) tree: ContextTree,
    /// Number of times that older outputs were dropped. A change invalidates earlier positions.
    pub(super) forgotten: usize,
}

impl Default for EarlierOutputs {
    fn default() -> Self {
        EarlierOutputs { text: Vec::new(), tree: ContextTree::new(MAX_LENGTH), forgotten: 0 }
    }
}

impl EarlierOutputs {
    /// The number of stored tokens.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether no token is stored.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Removes all outputs.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.tree.clear();
        self.forgotten += 1;
    }

    /// Stores an output. Drops the older half of all tokens if there are too many.
    pub(super) fn add(&mut self, output: &[Token]) {
        let output = output.get(output.len().saturating_sub(MAX_EARLIER_TOKENS / 2)..).unwrap_or(output);
        if output.is_empty() {
            return;
        }
        let mut from = self.text.len();
        self.text.extend_from_slice(output);
        self.text.push(SEPARATOR);
        if self.text.len() > MAX_EARLIER_TOKENS {
            self.text.drain(..self.text.len() - MAX_EARLIER_TOKENS / 2);
            self.tree.clear();
            self.forgotten += 1;
            from = 0;
        }
        for at in from..self.text.len() {
            if self.text.get(at) != Some(&SEPARATOR) {
                self.tree.learn(&self.text, at);
            }
        }
    }
}

/// A token sequence with the tree of its contexts.
#[derive(Clone, Copy)]
pub struct SuffixSource<'a> {
    /// Which sequence it is.
    pub origin: Origin,
    /// Its tokens.
    pub tokens: &'a [Token],
    /// Its contexts.
    pub tree: &'a ContextTree,
}

/// A candidate for the next draft token.
#[derive(Debug, Clone, Copy)]
pub struct SuffixCandidate {
    /// The token.
    pub token: Token,
    /// The estimated probability that it follows.
    pub confidence: f32,
    /// The kind of evidence for it.
    pub kind: ProposalKind,
    /// Its position in the source.
    pub at: usize,
    /// Length of the match before it.
    pub length: usize,
}

impl SuffixCandidate {
    /// The more probable candidate; `self` if they are equal.
    pub fn more_probable(self, other: SuffixCandidate) -> SuffixCandidate {
        if other.confidence > self.confidence { other } else { self }
    }
}

/// New matches are measured up to this length; afterwards they grow token by token.
const MEASURED: usize = 64;
/// A match of this length is not replaced by another one.
const LONG_MATCH: usize = 32;
/// A trace ends after this many mismatches.
const MAX_MISSES: u32 = 8;
/// This many matching tokens reset the count of mismatches.
const RECOVERED: usize = 8;

/// A position in a source that is being copied. It continues after single mismatches, so it follows text that is rewritten
/// with other names.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trace {
    /// Position of the next token.
    at: usize,
    /// Number of matching tokens before it.
    length: usize,
    /// Length of earlier matches, halved at each mismatch.
    before: usize,
    /// Mismatches since it was found.
    misses: u32,
    active: bool,
    hint: Hint,
}

impl Trace {
    /// The length of the match; the part before a mismatch counts half.
    pub fn length(&self) -> usize {
        self.length + self.before
    }

    /// Advances past `token`.
    pub fn follow(&mut self, text: &[Token], token: Token) {
        if !self.active {
            return;
        }
        if text.get(self.at) == Some(&token) {
            self.length += 1;
            if self.length >= RECOVERED {
                self.misses = 0;
            }
        } else {
            (self.before, self.length) = ((self.before + self.length) / 2, 0);
            self.misses += 1;
            self.active = self.misses < MAX_MISSES;
        }
        self.at += 1;
    }

    /// The continuations of the longest context at the end of `text` in the source's tree.
    pub fn look_up(&mut self, source: SuffixSource<'_>, text: &[Token]) -> Option<Continuations> {
        source.tree.look_up(text, &mut self.hint)
    }

    /// Moves to the longest match of the end of `text` among those in `found`, unless the current match is long or longer.
    pub fn seek(&mut self, source: SuffixSource<'_>, text: &[Token], found: Option<&Continuations>) {
        let Some(found) = found.filter(|_| !self.active || self.length < LONG_MATCH) else { return };
        for (at, count) in [found.best, found.other] {
            let at = to_index(at);
            let length = if count > 0 { common_end(source.tokens.get(..at).unwrap_or(&[]), text) } else { 0 };
            if length > self.length {
                *self = Trace { at, length, before: 0, misses: 0, active: true, ..*self };
            }
        }
    }

    /// The more probable of two candidates: the token at this position, and the most frequent continuation in `found`. Calls
    /// `note` with both.
    pub fn candidate(
        &self,
        source: SuffixSource<'_>,
        found: Option<&Continuations>,
        bins: &ConfidenceBins,
        mut note: impl FnMut(&SuffixCandidate),
    ) -> Option<SuffixCandidate> {
        let mut most_probable: Option<SuffixCandidate> = None;
        let mut consider = |at: usize, length: usize, (kind, confidence): (ProposalKind, f32)| {
            let Some(token) = source.tokens.get(at).copied().filter(|token| *token != SEPARATOR) else { return };
            let candidate = SuffixCandidate { token, confidence, kind, at, length };
            note(&candidate);
            most_probable =
                Some(most_probable.map_or(candidate, |most_probable| most_probable.more_probable(candidate)));
        };
        if self.active {
            let copied = self.compare(source.tokens, found);
            consider(self.at, self.length, bins.copied(source.origin, &copied));
        }
        if let Some(context) = found {
            consider(to_index(context.best.0), context.length, bins.context(source.origin, context));
        }
        most_probable
    }

    fn compare(&self, text: &[Token], found: Option<&Continuations>) -> CopiedMatch {
        let agrees = |place: (u32, u8)| place.1 > 0 && text.get(to_index(place.0)) == text.get(self.at);
        let agreeing = match found {
            Some(context) if agrees(context.best) => context.best.1,
            Some(context) if agrees(context.other) => context.other.1,
            _ => 0,
        };
        let total = found.map_or(0, |context| context.total);
        CopiedMatch { length: self.length, before: self.before, misses: self.misses, total, agreeing }
    }

    /// Advances past the drafted `token`. `candidate`: this source's candidate for it.
    pub fn continue_with(&mut self, text: &[Token], token: Token, candidate: Option<SuffixCandidate>) {
        let right = self.active && text.get(self.at) == Some(&token);
        match candidate {
            Some(candidate) if !right && candidate.token == token => {
                let (at, length) = (candidate.at + 1, candidate.length + 1);
                *self = Trace { at, length, before: 0, misses: 0, active: true, ..*self };
            }
            _ => self.follow(text, token),
        }
    }
}

/// Length of the common suffix, at most [`MEASURED`].
fn common_end(a: &[Token], b: &[Token]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(MEASURED).take_while(|(a, b)| a == b).count()
}

/// The source of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The request's own history.
    Own,
    /// An earlier output.
    Earlier,
}

/// A copied position, with the counts of the longest context in the tree.
#[derive(Debug, Clone, Copy)]
pub struct CopiedMatch {
    /// Number of matching tokens.
    pub length: usize,
    /// Length of earlier matches, halved at each mismatch.
    pub before: usize,
    /// Recent mismatches.
    pub misses: u32,
    /// Number of occurrences of the context.
    pub total: u8,
    /// Number of occurrences that continued with the copied token.
    pub agreeing: u8,
}

/// The index of a bin: a class of candidates with similar evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProposalKind(usize);

const SHARES: usize = 6;
const CONTEXTS: usize = LENGTHS.len() * SHARES;
const LENGTH_CLASSES: usize = 8;
const AGREEMENTS: usize = 4;
const MISSES: usize = 3;
const COPIES: usize = LENGTH_CLASSES * AGREEMENTS * MISSES;
const KINDS: usize = 2 * (CONTEXTS + COPIES);

/// Factor for candidates from earlier outputs, which are less reliable than the request's own history.
const EARLIER: f32 = 0.9;
/// Weight of the formula, in observations.
const PRIOR: f32 = 3.0;
/// A bin's counts are halved at this many observations.
const FULL: f32 = 60.0;

/// Estimates how probable candidates are, from the results of earlier candidates of the same kind in the request. 2 KiB.
///
/// Counts alone mislead: a token that followed a context once is almost certain in a copied text and worthless in a random
/// one. So each kind of candidate has a bin with its recent success rate; a formula of counts and lengths is the prior (the
/// secondary estimation of PPM and PAQ compressors).
#[derive(Debug)]
pub struct ConfidenceBins {
    bins: Vec<ConfidenceBin>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ConfidenceBin {
    right: f32,
    seen: f32,
}

impl Default for ConfidenceBins {
    fn default() -> Self {
        ConfidenceBins { bins: vec![ConfidenceBin::default(); KINDS] }
    }
}

impl ConfidenceBins {
    /// The kind and confidence of a context's most frequent continuation.
    ///
    /// The prior is its share with additive smoothing, stronger for shorter contexts.
    pub fn context(&self, origin: Origin, context: &Continuations) -> (ProposalKind, f32) {
        let (best, total) = (context.best.1, context.total);
        let share = match (best, total) {
            (1, 1) => 0,
            (2, 2) => 1,
            _ if best == total => 2,
            _ if u16::from(best) * 4 >= u16::from(total) * 3 => 3,
            _ if u16::from(best) * 2 > u16::from(total) => 4,
            _ => 5,
        };
        let length = LENGTHS.iter().position(|length| *length >= context.length).unwrap_or(0);
        let kind = length * SHARES + share;
        let formula = f32::from(best) / (f32::from(total) + 0.5 + 4.0 / small(context.length));
        self.estimate(origin, kind, formula)
    }

    /// The kind and confidence of the token at a copied position.
    ///
    /// The prior rises with the length of the match and falls with recent mismatches. The context's counts also contribute;
    /// the longer the match, the less.
    pub fn copied(&self, origin: Origin, copied: &CopiedMatch) -> (ProposalKind, f32) {
        let length = small(copied.length);
        let misses = usize::try_from(copied.misses).unwrap_or(usize::MAX);
        let (agreeing, total) = (f32::from(copied.agreeing), f32::from(copied.total));
        let agreement = match (copied.agreeing, copied.total) {
            (_, 0..=1) => 0,
            (agreeing, total) if agreeing == total => 1,
            (agreeing, total) if u16::from(agreeing) * 2 > u16::from(total) => 2,
            _ => 3,
        };
        let bits = usize::try_from(usize::BITS - copied.length.leading_zeros()).unwrap_or(0);
        let kind = (bits.min(LENGTH_CLASSES - 1) * AGREEMENTS + agreement) * MISSES + misses.min(MISSES - 1);
        let before = small(copied.before.min(32)) / 8.0;
        let matched = length + before;
        let alone = (matched + 0.5) / (matched + 1.0 + 80.0 / (16.0 + matched) + small(misses));
        let weight = (length / 16.0).clamp(1.0, 8.0);
        let formula = if total <= 1.0 { alone } else { (agreeing + weight * alone) / (total + weight) };
        self.estimate(origin, CONTEXTS + kind, formula)
    }

    fn estimate(&self, origin: Origin, kind: usize, formula: f32) -> (ProposalKind, f32) {
        let (kind, formula) = match origin {
            Origin::Own => (kind, formula),
            Origin::Earlier => (kind + CONTEXTS + COPIES, formula * EARLIER),
        };
        let bin = self.bins.get(kind).copied().unwrap_or_default();
        (ProposalKind(kind), (bin.right + PRIOR * formula) / (bin.seen + PRIOR))
    }

    /// Records whether a candidate of this kind was right.
    pub fn record(&mut self, kind: ProposalKind, right: bool) {
        let Some(bin) = self.bins.get_mut(kind.0) else { return };
        if bin.seen >= FULL {
            *bin = ConfidenceBin { right: bin.right / 2.0, seen: bin.seen / 2.0 };
        }
        bin.seen += 1.0;
        bin.right += f32::from(u8::from(right));
    }
}

fn small(number: usize) -> f32 {
    f32::from(u16::try_from(number).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests;
