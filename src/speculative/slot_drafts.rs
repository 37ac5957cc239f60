//! What is known of one request that speculates: what was proposed for it, and whose draft is checked.

use super::calibration::Bias;
use super::drafter::Draft;
use super::drafters::{RegisteredDrafter, SlotView};
use super::policy::{Length, Plan};
use super::verify::SampledDraft;
use super::{Adaptive, MAX_DRAFT, Settings};

/// A request that speculates.
pub(super) struct SlotDrafts {
    pub(super) settings: Settings,
    pub(super) length: Length,
    /// One for each member; `None`: not asked for, or of no use here.
    pub(super) proposals: Vec<Option<Proposal>>,
    /// Who drafts in this step, and how many of its tokens are checked.
    pub(super) chosen: Option<(usize, usize)>,
    /// The same with what it was drawn from, for a rule that compares probabilities.
    pub(super) drawn: SampledDraft,
    /// Who has drawn it; `None`: it was found without chance.
    pub(super) drawer: Option<usize>,
    pub(super) probes: Probes,
    /// Why a drafter that was asked for has no proposal.
    pub(super) disabled: Option<String>,
}

pub(super) struct Proposal {
    pub(super) draft: Draft,
    pub(super) bias: Bias,
    /// It was not asked for, and is only there to guess: see [`Drafters::guess`].
    ///
    /// [`Drafters::guess`]: super::Drafters::guess
    pub(super) guesses: bool,
    /// It was asked in the last step as well, so that it has no more than that step to catch up with.
    pub(super) keeps_up: bool,
}

/// When a drafter that takes time and does not pay is tried again.
pub(super) struct Probes {
    /// Time saved up for the next try, in evaluations; negative after an expensive one.
    pub(super) credit: f64,
    /// Probes in vain since it last paid.
    failed_probes: i32,
    /// Whether it was asked in this step, and whether only to find out what it is worth.
    pub(super) asked: bool,
    pub(super) is_probe: bool,
    /// The text's length when it was last asked.
    known: usize,
}

impl Default for Probes {
    /// The first is due at once.
    fn default() -> Self {
        Probes { credit: f64::INFINITY, failed_probes: 0, asked: false, is_probe: false, known: 0 }
    }
}

impl Probes {
    /// Whether a try can be paid for, at `c` evaluations for a drafted token; `n_tokens`: of the text, with which the drafter
    /// has to catch up.
    fn are_due(&self, c: f64, n_tokens: usize) -> bool {
        let missing = n_tokens.saturating_sub(self.known).saturating_sub(1).min(MOST_MISSING);
        self.credit >= c * (PROBE_LENGTH as f64 + CATCH_UP * missing as f64)
    }

    fn is_first(&self) -> bool {
        self.credit.is_infinite()
    }

    /// By all that is known it would not pay if it were always right: only the measured costs can be wrong.
    fn must_save_up(&mut self) {
        if self.is_first() {
            self.credit = 0.0;
        }
    }

    /// A step is planned; `chosen`: with its draft.
    pub(super) fn settle(&mut self, chosen: bool) {
        if chosen {
            (self.credit, self.failed_probes, self.asked) = (0.0, 0, false);
        } else if std::mem::take(&mut self.asked) {
            self.failed_probes = (self.failed_probes + 1).min(MAX_FAILED_PROBES);
            self.credit = self.credit.min(0.0);
        } else {
            self.credit += PROBE_SHARE * 0.5_f64.powi(self.failed_probes);
        }
    }
}

/// Part of the time that tries may take; half of it after each in vain, down to `2^-MAX_FAILED_PROBES`.
const PROBE_SHARE: f64 = 0.01;
const MAX_FAILED_PROBES: i32 = 4;
/// Tokens drafted in a try.
const PROBE_LENGTH: usize = 1;
/// What a token to catch up with costs, in drafted ones.
const CATCH_UP: f64 = 0.25;
/// More are taken for so many: else what is missing could become dear faster than the time for it is saved up.
const MOST_MISSING: usize = 64;

impl SlotDrafts {
    pub(super) fn new(settings: &Settings, proposals: Vec<Option<Proposal>>, disabled: Option<String>) -> SlotDrafts {
        SlotDrafts {
            length: Length::new(settings),
            proposals,
            chosen: None,
            drawn: SampledDraft::new(settings.verify, settings.n_branches),
            drawer: None,
            probes: Probes::default(),
            disabled,
            settings: settings.clone(),
        }
    }

    /// Whether its drafts are as long as pays.
    pub(super) fn weighs(&self) -> bool {
        self.settings.adaptive == Adaptive::Auto && self.proposals.iter().flatten().any(|proposal| !proposal.guesses)
    }

    pub(super) fn clear(&mut self) {
        (self.chosen, self.drawer) = (None, None);
        self.drawn.begin(0);
    }

    /// Decides whose draft is checked.
    pub(super) fn choose(&mut self, members: &[RegisteredDrafter], plan: &Plan) {
        if let Some(index) = self.drawer {
            self.chosen = Some((index, self.drawn.len()));
            return;
        }
        let best = self.best(members, plan);
        self.chosen = best.map(|(index, n, _)| (index, n)).or_else(|| self.guess());
        let Some((index, n)) = self.chosen.filter(|_| self.settings.verify.draws()) else { return };
        let Some(Some(Proposal { draft, .. })) = self.proposals.get(index) else { return };
        self.drawn.begin(n);
        draft.tokens.iter().all(|token| self.drawn.push_deterministic(*token));
    }

    fn guess(&self) -> Option<(usize, usize)> {
        let is_guess = |proposal: &Option<Proposal>| {
            proposal.as_ref().is_some_and(|proposal| proposal.guesses && !proposal.draft.tokens.is_empty())
        };
        self.proposals.iter().position(is_guess).map(|index| (index, 1))
    }

    /// Whether what is checked was not asked for.
    pub(super) fn guesses(&self) -> bool {
        let proposal = self.chosen.and_then(|(index, _)| self.proposals.get(index)?.as_ref());
        proposal.is_some_and(|proposal| proposal.guesses)
    }

    pub(super) fn chosen(&self) -> Option<(&Draft, usize)> {
        let (index, n) = self.chosen?;
        Some((&self.proposals.get(index)?.as_ref()?.draft, n))
    }

    /// How many tokens to ask a drafter for, and whether it is to stop when more do not pay; `None`: not now.
    pub(super) fn ask(
        &mut self,
        index: usize,
        is_model_based: bool,
        before: &[RegisteredDrafter],
        plan: &Plan,
        c: f64,
        &SlotView { room, padded, tokens, .. }: &SlotView<'_>,
    ) -> Option<(usize, bool)> {
        let Proposal { bias, guesses, .. } = *self.proposals.get(index)?.as_ref()?;
        if guesses {
            return Some((room.filter(|_| padded).unwrap_or(0).min(1), false));
        }
        let adapts = self.settings.adaptive == Adaptive::Auto;
        let most = match adapts && !is_model_based {
            // Of a draft that is not checked, its beginning tells what its drafter is worth.
            true => self.settings.n_max_text.min(plan.longest().max(PROBE_LENGTH)),
            false => self.length.current(),
        };
        let n_max = room.map_or(0, |room| most.min(room));
        if room.is_some() && n_max == 0 {
            return None;
        }
        if !is_model_based {
            return Some((n_max, adapts));
        }
        // What another has drawn is checked, whatever this one would say; and shorter drafts are dropped.
        let too_short = room.is_some() && n_max < self.settings.n_min && !self.settings.verify.draws();
        if self.drawer.is_some() || too_short {
            return None;
        }
        let without = self.best(before, plan).map_or(0.0, |(_, _, gain)| gain);
        if !adapts {
            // What is drawn cannot be compared afterwards.
            let gives_way = self.settings.verify.draws() && expected(bias.mean(), n_max) <= without;
            return (room.is_none() || !gives_way).then_some((n_max, false));
        }
        let lengths = self.settings.n_min..=self.length.current();
        let prospect = |acceptance: f64| plan.prospect(acceptance, lengths.clone());
        let (pays, could_pay) = (prospect(bias.mean()) > without, prospect(1.0) > without);
        if !could_pay {
            self.probes.must_save_up();
        }
        // With a prompt it keeps up for its first try; later on it does not while it does not pay.
        let due = if room.is_some() { self.probes.are_due(c, tokens.len()) } else { self.probes.is_first() };
        let asked = pays || due;
        self.probes.asked = asked && room.is_some();
        self.probes.is_probe = self.probes.asked && !pays;
        if asked {
            self.probes.known = tokens.len();
        }
        asked.then_some((if pays { n_max } else { n_max.min(PROBE_LENGTH) }, pays))
    }

    /// The best of the drafts that are not too short: whose, how many of its tokens to check, and what that gains.
    fn best(&self, members: &[RegisteredDrafter], plan: &Plan) -> Option<(usize, usize, f64)> {
        let mut best: Option<(usize, usize, f64)> = None;
        for (index, (member, proposal)) in members.iter().zip(&self.proposals).enumerate() {
            let Some(Proposal { draft, bias, guesses, .. }) = proposal else { continue };
            // A guess that costs nothing is what a draft has to surpass; what is not weighed has been asked for.
            let most = match (guesses, self.settings.adaptive) {
                (true, Adaptive::Auto) => draft.tokens.len().min(1),
                (true, _) => 0,
                (false, _) => draft.tokens.len(),
            };
            let least = if *guesses { 0 } else { self.settings.n_min };
            if most < least {
                continue;
            }
            let sure = sure(draft, |confidence| member.calibration.acceptance(bias, confidence));
            let sure = sure.iter().skip(1).take(most).copied();
            let (n, gain) = match self.settings.adaptive {
                Adaptive::Auto if member.is_model_based => plan.best(sure, least),
                Adaptive::Auto => plan.best_of_text(sure, least),
                // All of it, whatever it costs: then the draft with most tokens to expect is the best.
                _ => (most, sure.sum()),
            };
            if n > 0 && best.is_none_or(|(_, _, most)| gain > most) {
                best = Some((index, n, gain));
            }
        }
        best
    }
}

/// For each node of a draft the probability that it and all before it are right.
fn sure(draft: &Draft, acceptance: impl Fn(f32) -> f64) -> [f64; MAX_DRAFT + 1] {
    let mut sure = [1.0; MAX_DRAFT + 1];
    for (index, (confidence, parent)) in draft.confidence.iter().zip(draft.parents(draft.tokens.len())).enumerate() {
        let before = sure.get(parent).copied().unwrap_or(0.0);
        if let Some(sure) = sure.get_mut(index + 1) {
            *sure = before * acceptance(*confidence);
        }
    }
    sure
}

/// Tokens to expect of `n`, each accepted with `acceptance` if those before it were.
fn expected(acceptance: f64, n: usize) -> f64 {
    (1..).take(n).map(|power| acceptance.powi(power)).sum()
}
