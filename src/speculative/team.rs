//! All drafters of an engine: who drafts for a slot in this step, and how much of it is checked.
//!
//! Drafters that look at the text alone take a microsecond: each is asked in every step, and what it proposed is compared
//! with what came, whether or not it was chosen. So what they are worth here and now is known without ever having paid for
//! it, and on text that nobody can foretell they cost next to nothing. A draft model's time counts: it is asked when what
//! it has brought lately makes up for that, and now and then for a short draft, to notice when it would again.
//!
//! With a rule that compares probabilities, what the model has drawn is checked, all of it (see [`Proposal`]). So whether
//! its draft is preferred to those that others found is decided before it is asked.

use std::time::Instant;

use super::calibration::{Bias, Calibration};
use super::drafter::{Ask, Draft, Drafter, Drawing, Evaluated};
use super::policy::{Length, Pace, Plan, Rate};
use super::verify::{Proposal, StepChance};
use super::{Adaptive, Costs, MAX_DRAFT, Settings, Source};
use crate::llama::{Context, Token};
use crate::sampling::Sampler;
use crate::session::Snapshot;

/// The drafters, and what is known of each.
pub struct Team {
    /// Those that look at the text alone come first, the draft model last.
    members: Vec<Member>,
    slots: Vec<Option<Player>>,
    /// What evaluations cost.
    pub costs: Costs,
    rate: Rate,
    plan: Plan,
    clock: fn() -> Instant,
}

struct Member {
    drafter: Box<dyn Drafter + Send>,
    /// Whether its drafts take time that counts.
    takes_time: bool,
    calibration: Calibration,
}

/// A request that speculates.
struct Player {
    settings: Settings,
    length: Length,
    /// One for each member; `None`: not asked for, or of no use here.
    bids: Vec<Option<Bid>>,
    /// Who drafts in this step, and how many of its tokens are checked.
    chosen: Option<(usize, usize)>,
    /// The same with what it was drawn from, for a rule that compares probabilities.
    drawn: Proposal,
    /// Who has drawn it; `None`: it was found without chance.
    drawer: Option<usize>,
    tries: Tries,
    /// Why a drafter that was asked for has no bid.
    disabled: Option<String>,
}

struct Bid {
    draft: Draft,
    bias: Bias,
}

/// When a drafter that takes time and does not pay is tried again.
#[derive(Default)]
struct Tries {
    /// Time saved up for the next try, in evaluations; negative after an expensive one.
    credit: f64,
    /// Tries in vain since it last paid.
    in_vain: i32,
    /// Whether it was asked in this step.
    asked: bool,
}

impl Tries {
    fn are_due(&self, c: f64) -> bool {
        self.credit >= TRY as f64 * c
    }

    /// A step is planned; `chosen`: with its draft.
    fn settle(&mut self, chosen: bool) {
        if chosen {
            *self = Tries::default();
        } else if std::mem::take(&mut self.asked) {
            self.in_vain = (self.in_vain + 1).min(MAX_IN_VAIN);
            self.credit = self.credit.min(0.0);
        } else {
            self.credit += TRY_SHARE * 0.5_f64.powi(self.in_vain);
        }
    }
}

/// Part of the time that tries may take; half of it after each in vain, down to `2^-MAX_IN_VAIN`.
const TRY_SHARE: f64 = 0.01;
const MAX_IN_VAIN: i32 = 4;
/// Tokens drafted in a try.
const TRY: usize = 2;

/// One slot's wish for a draft.
pub struct Wish<'a> {
    /// The slot.
    pub slot: usize,
    /// As [`Ask::tokens`].
    pub tokens: &'a [Token],
    /// The target's sampler.
    pub sampler: &'a Sampler,
    /// As [`Ask::generated`].
    pub generated: usize,
    /// As [`Ask::position`].
    pub position: usize,
    /// Most tokens that there is room for; `None`: the context is not evaluated yet, only keep up with it.
    pub room: Option<usize>,
}

/// What became of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Whose it was.
    pub source: Source,
    /// Tokens checked, at least one.
    pub drafted: usize,
    /// The most that could be right: fewer than were checked where the draft had branches.
    pub depth: usize,
    /// Those that were right.
    pub accepted: usize,
}

impl Team {
    /// A team without drafters, for `n_slots` slots.
    pub fn new(n_slots: usize) -> Team {
        Team {
            members: Vec::new(),
            slots: std::iter::repeat_with(|| None).take(n_slots).collect(),
            costs: Costs::default(),
            rate: Rate::default(),
            plan: Plan::default(),
            clock: Instant::now,
        }
    }

    /// Adds a drafter that looks at the text alone.
    pub fn add(&mut self, drafter: Box<dyn Drafter + Send>) {
        let place = self.members.iter().position(|member| member.takes_time).unwrap_or(self.members.len());
        self.members.insert(place, Member { drafter, takes_time: false, calibration: Calibration::default() });
    }

    /// Adds a drafter whose time counts: a model.
    pub fn add_model(&mut self, drafter: Box<dyn Drafter + Send>) {
        self.members.push(Member { drafter, takes_time: true, calibration: Calibration::default() });
    }

    /// Whether anybody drafts like this.
    pub fn has(&self, source: Source) -> bool {
        self.members.iter().any(|member| member.drafter.source() == source)
    }

    /// A request that speculates begins in `slot`.
    pub fn begin(&mut self, slot: usize, sampler: &Sampler, settings: &Settings) {
        let mut disabled = None;
        let mut bids = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            let wanted = settings.sources.contains(&member.drafter.source());
            let begun = wanted.then(|| member.drafter.begin(slot, sampler, settings));
            if let Some(Err(error)) = &begun {
                disabled = Some(error.message().to_owned());
            }
            let usable = matches!(begun, Some(Ok(())));
            bids.push(usable.then(|| Bid { draft: Draft::default(), bias: member.calibration.begin() }));
        }
        let length = Length::new(settings);
        let (settings, tries) = (settings.clone(), Tries::default());
        let drawn = Proposal::default();
        let player = Player { settings, length, bids, chosen: None, drawn, drawer: None, tries, disabled };
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(player);
        }
    }

    /// Lets the drafters keep up with all that speculate and propose tokens to those that have room. `base`: how many
    /// slots generate, those included that do not speculate.
    pub fn draft(&mut self, wishes: &[Wish<'_>], base: usize) {
        self.plan.update(&self.costs, &self.rate, base);
        for wish in wishes {
            let Some(player) = self.slots.get_mut(wish.slot).and_then(Option::as_mut) else { continue };
            player.clear();
            for bid in player.bids.iter_mut().flatten() {
                bid.draft.clear();
            }
        }
        for index in 0..self.members.len() {
            self.ask(index, wishes);
        }
        for wish in wishes.iter().filter(|wish| wish.room.is_some()) {
            let Some(player) = self.slots.get_mut(wish.slot).and_then(Option::as_mut) else { continue };
            player.choose(&self.members, &self.plan);
            let chosen = player.chosen.and_then(|(index, _)| self.members.get(index));
            player.tries.settle(chosen.is_some_and(|member| member.takes_time));
        }
    }

    /// Asks one drafter for all slots: together when it is a model, which evaluates them in one batch.
    fn ask(&mut self, index: usize, wishes: &[Wish<'_>]) {
        let Some((member, before)) = self.members.get_mut(..=index).and_then(|members| members.split_last_mut()) else {
            return;
        };
        let Member { drafter, takes_time, calibration } = member;
        let (plan, costs) = (&self.plan, &mut self.costs);
        let mut asks = Vec::new();
        for (slot, player) in self.slots.iter_mut().enumerate() {
            let Some(player) = player else { continue };
            let Some(wish) = wishes.iter().find(|wish| wish.slot == slot) else { continue };
            let asked = player.ask(index, *takes_time, before, plan, costs.c(), wish.room);
            let Some((n_max, pays)) = asked else { continue };
            let Some(Bid { draft, bias }) = player.bids.get_mut(index).and_then(Option::as_mut) else {
                continue;
            };
            let pace = if pays { Pace::Paying { plan, calibration, bias: *bias } } else { Pace::All };
            let Settings { p_min, n_branches, p_split, .. } = player.settings;
            let Wish { tokens, sampler, generated, position, .. } = *wish;
            let draws = *takes_time && player.settings.verify.draws() && player.drawer.is_none();
            let drawing = draws.then(|| {
                player.drawn.begin(n_max);
                Drawing { proposal: &mut player.drawn, chance: StepChance::new(sampler.seed(), position) }
            });
            let branches = (if player.settings.verify.draws() { 1 } else { n_branches }, p_split);
            let mut ask =
                Ask { slot, tokens, sampler, generated, position, n_max, p_min, branches, pace, draft, drawing };
            if *takes_time {
                asks.push(ask);
                continue;
            }
            drafter.draft(std::slice::from_mut(&mut ask));
            let likely = ask.draft.confidence.iter().take_while(|confidence| **confidence >= p_min).count();
            ask.draft.truncate(likely);
        }
        if asks.is_empty() {
            return;
        }
        let start = (self.clock)();
        drafter.draft(&mut asks);
        let time = (self.clock)().saturating_duration_since(start);
        let longest = asks.iter().map(|ask| ask.draft.tokens.len()).max().unwrap_or(0);
        let each = costs.of(time) / asks.len() as f64;
        costs.saw_draft(longest, time);
        for (slot, player) in self.slots.iter_mut().enumerate() {
            let Some(player) = player else { continue };
            if player.tries.asked {
                player.tries.credit -= each;
            }
            if player.drawer.is_none() && !player.drawn.tokens().is_empty() {
                player.drawer = Some(index);
            }
            if let Some(why) = drafter.disabled(slot).filter(|_| player.bids.get(index).is_some_and(Option::is_some)) {
                player.disabled = Some(why.to_owned());
                player.bids.iter_mut().skip(index).take(1).for_each(|bid| *bid = None);
            }
        }
    }

    /// No more than `n` of the draft for `slot` are in the batch, where there is no room for more.
    pub fn cap(&mut self, slot: usize, n: usize) {
        let Some(player) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        player.drawn.cap(n);
        player.chosen = player.chosen.map(|(index, all)| (index, all.min(n)));
    }

    /// The tokens to check in `slot` in this step.
    pub fn drafted(&self, slot: usize) -> &[Token] {
        let player = self.slots.get(slot).and_then(Option::as_ref);
        player.and_then(Player::chosen).and_then(|(draft, n)| draft.tokens.get(..n)).unwrap_or(&[])
    }

    /// The node before each of [`Team::drafted`]: see [`Draft`].
    pub fn parents(&self, slot: usize) -> impl Iterator<Item = usize> + '_ {
        let player = self.slots.get(slot).and_then(Option::as_ref);
        player.and_then(Player::chosen).into_iter().flat_map(|(draft, n)| draft.parents(n))
    }

    /// [`Team::drafted`] with what it was drawn from, for a rule that compares probabilities.
    pub fn proposal(&self, slot: usize) -> Option<&Proposal> {
        Some(&self.slots.get(slot)?.as_ref()?.drawn)
    }

    /// Who proposed [`Team::drafted`].
    pub fn source(&self, slot: usize) -> Option<Source> {
        let (index, _) = self.slots.get(slot)?.as_ref()?.chosen?;
        Some(self.members.get(index)?.drafter.source())
    }

    /// Whether somebody who drafts now needs the target's hidden states.
    pub fn needs_hidden(&self) -> bool {
        let players = self.slots.iter().flatten();
        let mut pairs = players.flat_map(|player| self.members.iter().zip(&player.bids));
        pairs.any(|(member, bid)| bid.is_some() && member.drafter.needs_hidden())
    }

    /// As [`Drafter::evaluated`]: of `tokens` those from number `from` on, and the first `drafted` of [`Team::drafted`].
    pub fn evaluated(
        &mut self,
        slot: usize,
        target: &mut Context,
        first: usize,
        tokens: &[Token],
        from: usize,
        drafted: usize,
    ) {
        let Some(player) = self.slots.get(slot).and_then(Option::as_ref) else { return };
        // Where it has branches, as far as it goes on behind the text without one.
        let straight =
            |draft: &Draft| draft.parents(drafted).enumerate().take_while(|(at, parent)| at == parent).count();
        let draft = player.chosen().and_then(|(draft, _)| draft.tokens.get(..straight(draft))).unwrap_or(&[]);
        for (member, bid) in self.members.iter_mut().zip(&player.bids) {
            if bid.is_some() {
                member.drafter.evaluated(slot, &mut Evaluated { target, first, tokens, from, draft });
            }
        }
    }

    /// The target said `tokens`, of which the first `accepted` are the draft's, when it was checked for `drafted` tokens.
    /// Tells what became of the draft, if there was one.
    pub fn saw(&mut self, slot: usize, tokens: &[Token], drafted: usize, accepted: usize) -> Option<Checked> {
        let player = self.slots.get_mut(slot)?.as_mut()?;
        for (index, (member, bid)) in self.members.iter_mut().zip(&mut player.bids).enumerate() {
            let Some(Bid { draft, bias }) = bid else { continue };
            // What was drawn and refused may still come, as the target's own.
            let most = if player.drawer == Some(index) { accepted } else { usize::MAX };
            // How many tokens were said up to each node that was right.
            let mut said = [None; MAX_DRAFT + 1];
            let [text, ..] = &mut said;
            *text = Some(0);
            let drafted = draft.tokens.iter().zip(&draft.confidence).zip(draft.parents(draft.tokens.len()));
            for (node, ((token, confidence), parent)) in (1..).zip(drafted) {
                let Some(before) = said.get(parent).copied().flatten() else { continue };
                let Some(actual) = tokens.get(before) else { continue };
                let right = before < most && actual == token;
                member.calibration.saw(bias, *confidence, right);
                if let Some(said) = said.get_mut(node).filter(|_| right) {
                    *said = Some(before + 1);
                }
            }
        }
        let depth = player.chosen().map_or(0, |(draft, _)| draft.depth(drafted));
        let (index, _) = player.chosen.take().filter(|_| drafted > 0)?;
        player.length.saw(depth, accepted);
        let member = self.members.get_mut(index)?;
        member.drafter.checked(slot, drafted, accepted);
        Some(Checked { source: member.drafter.source(), drafted, depth, accepted })
    }

    /// A step of `evaluated` tokens, and no prompt, brought `tokens` and took the drafters `drafting` evaluations of one token.
    pub fn stepped(&mut self, tokens: usize, evaluated: usize, drafting: f64) {
        self.rate.saw(tokens, self.costs.v(evaluated) + drafting);
    }

    /// As [`Drafter::shift`].
    pub fn shift(&mut self, slot: usize, keep: usize, dropped: usize) {
        for member in &mut self.members {
            member.drafter.shift(slot, keep, dropped);
        }
    }

    /// As [`Drafter::reuse`].
    pub fn reuse(&mut self, slot: usize, prompt: &[Token], least: usize) {
        for member in &mut self.members {
            member.drafter.reuse(slot, prompt, least);
        }
    }

    /// As [`Drafter::save`]; the draft model's, if there is one.
    pub fn save(&mut self, slot: usize) -> Option<Snapshot> {
        self.members.iter_mut().rev().find_map(|member| member.drafter.save(slot))
    }

    /// As [`Drafter::load`].
    pub fn load(&mut self, slot: usize, snapshot: &Snapshot) -> bool {
        self.members.iter_mut().any(|member| member.drafter.load(slot, snapshot))
    }

    /// A request has ended, whether or not it speculated: see [`Drafter::end`].
    pub fn end(&mut self, slot: usize, tokens: &[Token], generated: usize) {
        for member in &mut self.members {
            member.drafter.end(slot, tokens, generated);
        }
        if let Some(player) = self.slots.get_mut(slot) {
            *player = None;
        }
    }

    /// Why a drafter that the request in `slot` asked for does not draft.
    pub fn disabled(&self, slot: usize) -> Option<&str> {
        self.slots.get(slot)?.as_ref()?.disabled.as_deref()
    }

    /// The draft length in use.
    pub fn length(&self, slot: usize) -> Option<usize> {
        Some(self.slots.get(slot)?.as_ref()?.length.current())
    }
}

impl Player {
    fn clear(&mut self) {
        (self.chosen, self.drawer) = (None, None);
        self.drawn.begin(0);
    }

    /// Decides whose draft is checked.
    fn choose(&mut self, members: &[Member], plan: &Plan) {
        if let Some(index) = self.drawer {
            self.chosen = Some((index, self.drawn.tokens().len()));
            return;
        }
        let best = self.best(members, plan);
        self.chosen = best.map(|(index, n, _)| (index, n)).filter(|(_, n)| *n >= self.settings.n_min);
        let Some((index, n)) = self.chosen.filter(|_| self.settings.verify.draws()) else { return };
        let Some(Some(Bid { draft, .. })) = self.bids.get(index) else { return };
        self.drawn.begin(n);
        draft.tokens.iter().all(|token| self.drawn.fix(*token));
    }

    fn chosen(&self) -> Option<(&Draft, usize)> {
        let (index, n) = self.chosen?;
        Some((&self.bids.get(index)?.as_ref()?.draft, n))
    }

    /// How many tokens to ask a drafter for, and whether it is to stop when more do not pay; `None`: not now.
    fn ask(
        &mut self,
        index: usize,
        takes_time: bool,
        before: &[Member],
        plan: &Plan,
        c: f64,
        room: Option<usize>,
    ) -> Option<(usize, bool)> {
        let bias = self.bids.get(index)?.as_ref()?.bias;
        let adapts = self.settings.adaptive == Adaptive::Auto;
        let most = match adapts && !takes_time {
            // Of a draft that is not checked, its beginning tells what its drafter is worth.
            true => self.settings.n_max_text.min(plan.longest().max(TRY)),
            false => self.length.current(),
        };
        let n_max = room.map_or(0, |room| most.min(room));
        if room.is_some() && n_max == 0 {
            return None;
        }
        if !takes_time {
            return Some((n_max, false));
        }
        let without = self.best(before, plan).map_or(0.0, |(_, _, gain)| gain);
        if !adapts {
            // What is drawn cannot be compared afterwards.
            let gives_way = self.settings.verify.draws() && expected(bias.mean(), n_max) <= without;
            return (room.is_none() || !gives_way).then_some((n_max, false));
        }
        let pays = plan.prospect(bias.mean(), self.length.current()) > without;
        // Nor does it keep up with a prompt while it does not pay.
        let asked = pays || (room.is_some() && self.tries.are_due(c));
        self.tries.asked = asked && room.is_some();
        asked.then_some((if pays { n_max } else { n_max.min(TRY) }, pays))
    }

    /// The best of the drafts: whose, how many of its tokens to check, and what that gains.
    fn best(&self, members: &[Member], plan: &Plan) -> Option<(usize, usize, f64)> {
        let mut best: Option<(usize, usize, f64)> = None;
        for (index, (member, bid)) in members.iter().zip(&self.bids).enumerate() {
            let Some(Bid { draft, bias }) = bid else { continue };
            let sure = sure(draft, |confidence| member.calibration.acceptance(bias, confidence));
            let sure = sure.iter().skip(1).take(draft.tokens.len()).copied();
            let (n, gain) = match self.settings.adaptive {
                Adaptive::Auto => plan.best(sure),
                // All of it, whatever it costs: then the draft with most tokens to expect is the best.
                _ => (draft.tokens.len(), sure.sum()),
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

#[cfg(test)]
#[path = "team_tests.rs"]
mod tests;
