//! The costs of decodes on this machine with these models, measured at run time.

use std::time::Duration;

use super::batch_split::BatchSplit;
use super::kalman::Kalman;
use crate::MAX_DRAFT;

/// The cost of each size up to this is measured. Beyond, it is extrapolated.
pub const MAX_MEASURED: usize = 4 * MAX_DRAFT;
/// Batches of prompts with at least this many tokens are used for the extrapolation.
const LEAST_PROMPT: usize = MAX_DRAFT + 2;

/// v(n), the cost of a physical batch of n tokens of the target, and c(k), the cost of a pass of drafting for k slots ([`DraftPasses`]), both
/// in forward passes of one token of the target. Shared by all requests.
///
/// On CPUs, v grows in steps and is not even monotonic (with Q4_0, four tokens can cost less than two), so it is a table. Attention costs
/// more with the context ([`Costs::attention`]). Effects that slow down all decodes, such as a busy machine, are in one common factor, so
/// that rarely used sizes remain comparable with frequent ones.
///
/// A batch can be decoded as several physical ones (see [`BatchSplit`]). Its time is then their sum.
///
/// llama.cpp keeps the graph of the last batch, and rebuilds it for a batch of another size. With small models, this costs as much as
/// another token, so it is measured separately.
#[derive(Debug)]
pub struct Costs {
    /// The seconds of a physical batch of 1, 2, ... tokens, at `scale` 1. 0: not measured.
    target: Vec<f64>,
    /// The number and age of the measurements of each size: see [`Costs::uncertainty`].
    known: Vec<Known>,
    /// v(0), v(1), ..., computed from these when one of them changes.
    v: Vec<f64>,
    /// The largest size that v was measured for, also as a prompt. 0: none.
    largest: usize,
    split: BatchSplit,
    /// One token costs the same as two.
    padded: bool,
    /// See [`Costs::repeat`].
    repeats: bool,
    /// See [`Costs::become_cheaper`].
    become_cheaper: bool,
    passes: DraftPasses,
    /// The tokens of a prompt's batch and its seconds at `scale` 1, for the extrapolation.
    bulk: Option<(usize, f64)>,
    /// How slow the machine is now, relative to the table.
    scale: f64,
    /// The cost of a thousand tokens of context, in forward passes of one token: for each slot of a batch, and for each of its tokens.
    attention: [f64; 2],
    /// The errors of ln `scale` and `attention`.
    target_errors: Kalman<3>,
    /// The cost of a thousand tokens of context in a round of drafting for one slot, in forward passes of one token of the target.
    draft_attention: f64,
    draft_errors: Kalman<1>,
    /// The seconds for drafting one token for each of 1, 2, ... slots, at `scale` 1. 0: not measured.
    draft: Vec<f64>,
    /// The size of the last physical batch.
    last: usize,
    /// The additional seconds of a batch of another size than the last, at `scale` 1, and the number of measurements.
    change: f64,
    changes: usize,
    /// The number of steps.
    step: u64,
}

/// The sizes of batches to measure before the first request, the most useful ones first; those between are measured when they are used.
/// Slots that generate decode the same number of tokens each. CPUs multiply by four rows at a time, so steps are looked for at both ends.
pub fn sizes_to_measure(n_slots: usize) -> Vec<usize> {
    let n_slots = n_slots.max(1);
    let of_slots = [1, 2, 4, 8, 16, 3, 6].into_iter().map(|each| each * n_slots);
    let all = [1].into_iter().chain(of_slots).chain([2, 4, 8, 16, 3, 6, 12, 5, 9, 24, 13, 32, 48, 62]);
    let mut sizes = Vec::new();
    for size in all.filter(|size| *size <= MAX_DRAFT) {
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    sizes
}

/// The passes that a model needs to draft. Each costs the same: see [`Costs::c`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DraftPasses {
    /// One for each token.
    #[default]
    PerToken,
    /// One for a block of tokens, however many of them are used.
    PerBlock,
}

impl DraftPasses {
    /// The number of passes from a draft of `drafted` tokens to one of `length`.
    pub fn between(self, drafted: usize, length: usize) -> usize {
        match self {
            DraftPasses::PerToken => length.saturating_sub(drafted),
            DraftPasses::PerBlock => usize::from(drafted == 0 && length > 0),
        }
    }
}

/// How many steps have measured a size, and the last one.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    times: u32,
    step: u64,
}

// A constant that names nothing else was found with the simulator, by trying others: these values bring most of its 756 scenarios near the
// best fixed length. The first values hold only until a step was measured.

/// The relative noise of a step's time and of a draft's.
const NOISE: f64 = 0.05;
const DRAFT_NOISE: f64 = 0.1;
/// How much slower or faster the machine may be in the first step than when sizes were measured: the standard deviation. With [`NOISE`] in its place,
/// the sizes that the first steps use take the difference, and others look cheap: in the simulator, a machine that is slower from the first step on
/// then has .923 of the best fixed length's speed at least, .953 with this.
const SCALE_DEVIATION: f64 = 0.3;
/// How far the common factor and the costs of attention move from step to step. With them and the first values below, found together with the
/// simulator, adaptive lengths were below .97 of the best fixed one in 35 of 756 scenarios; in 154 of 648 with one factor for all.
const DRIFT: [f64; 3] = [0.011, 0.005, 0.003];
/// The cost of a thousand tokens of context is known only after a few steps: the first values, and their standard deviations.
const FIRST_ATTENTION: [f64; 2] = [0.06, 0.02];
const ATTENTION_DEVIATION: [f64; 2] = [0.12, 0.06];
const FIRST_DRAFT_ATTENTION: f64 = 0.04;
const DRAFT_ATTENTION_DEVIATION: f64 = 0.08;
/// The weights of a new measurement in a size's own entry, in the draft's, and in the cost of another size than the last.
const FRESH_ENTRY: f64 = 0.1;
const FRESH_DRAFT: f64 = 0.2;
const FRESH_CHANGE: f64 = 0.05;
/// The noise of what a batch costs beyond one token, in forward passes of one token: so much is added before two are compared. Found with the
/// simulator's pair whose weights go into panels after the load.
const LEAST_BEYOND: f64 = 0.1;
/// The weight of a size's first measurements in steps is higher.
const FIRST_ENTRY: f64 = 0.5;
/// The most by which a step counts as slower than a size's own entry says: three deviations of the noise. What is beyond that is more often a
/// disturbance, or the first step on a slower machine, which the common factor follows from the second one on. Without this, one slow step made
/// its size look up to 9 % dearer than all others, and a slowdown made the others look up to 8 % cheaper than its first step's size: in the
/// simulator's pair on busy memory 11 of 216 scenarios were below .97 of the best fixed length's speed, 4 were with it.
const MOST_OF_ENTRY: f64 = 3.0 * NOISE;
/// Limits the effect of a single slow decode, for example if the machine was busy.
const MOST_SLOWER: f64 = 2.0;
/// The smallest size that tells the cost of larger ones. With such an estimate the first request of a near draft model reaches .94 of the best
/// fixed length's speed in the simulator, .66 without.
const FEW: usize = 8;
/// The initial value: each further token of a batch costs this fraction of the first. (0.75 B parameters in Q8_0 on two cores: two, three and
/// four tokens cost 1.14, 1.29 and 1.46 times as much as one.)
const INITIAL_SLOPE: f64 = 0.15;
/// The initial values: a drafted token costs this fraction of a target's forward pass, and each further slot this fraction of that.
const INITIAL_DRAFT: f64 = 0.1;
const INITIAL_DRAFT_SLOPE: f64 = 0.15;
/// The uncertainty of a size's cost: if requests have never used it, if they have used it once, and the change by the context's length
/// after this number of steps.
const UNKNOWN: f64 = 0.25;
const MEASURED_ONCE: f64 = 0.15;
const FORGOTTEN: f64 = 0.1;
const FORGOTTEN_AFTER: f64 = 2000.0;

impl Default for Costs {
    fn default() -> Self {
        let initial = |n| if n == 0 { 0.0 } else { 1.0 + INITIAL_SLOPE * (n - 1) as f64 };
        Costs {
            target: vec![0.0; MAX_MEASURED],
            known: vec![Known::default(); MAX_MEASURED],
            v: (0..=MAX_MEASURED).map(initial).collect(),
            largest: 0,
            split: BatchSplit::default(),
            padded: false,
            repeats: false,
            become_cheaper: false,
            passes: DraftPasses::PerToken,
            bulk: None,
            scale: 1.0,
            attention: FIRST_ATTENTION,
            target_errors: Kalman::new([SCALE_DEVIATION, ATTENTION_DEVIATION[0], ATTENTION_DEVIATION[1]], NOISE),
            draft_attention: FIRST_DRAFT_ATTENTION,
            draft_errors: Kalman::new([DRAFT_ATTENTION_DEVIATION], DRAFT_NOISE),
            draft: Vec::new(),
            last: 0,
            change: 0.0,
            changes: 0,
            step: 0,
        }
    }
}

impl Costs {
    /// Sets the division of batches.
    pub fn set_split(&mut self, split: BatchSplit) {
        self.split = split;
    }

    /// The division of batches.
    pub fn split(&self) -> BatchSplit {
        self.split
    }

    /// From now on, tokens of a draft that was not right throughout are decoded again in the next step, because the memory cannot be rolled
    /// back.
    pub fn repeat(&mut self) {
        self.repeats = true;
    }

    /// Batches of several tokens become cheaper after they were measured, because the weights were still in a slower layout.
    pub fn become_cheaper(&mut self) {
        self.become_cheaper = true;
    }

    /// Forgets the times of the target's batches, which are measured again: the weights have their final layout now.
    pub fn forget_target(&mut self) {
        self.target.fill(0.0);
        self.become_cheaper = false;
    }

    /// The model drafts blocks of tokens from now on: see [`DraftPasses::PerBlock`].
    pub fn draft_blocks(&mut self) {
        self.passes = DraftPasses::PerBlock;
    }

    /// The passes that the model needs to draft.
    pub fn passes(&self) -> DraftPasses {
        self.passes
    }

    /// Whether tokens are decoded again: see [`Costs::repeat`].
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// Records the time of a physical batch of `n` tokens with an empty context.
    pub fn record_target(&mut self, n: usize, time: Duration) {
        self.record_physical(n, [0.0; 2], time);
    }

    /// Records the time of a batch with this number of generated or drafted tokens of each sequence id, without prompts, each after
    /// `n_past(id)` tokens of context. Returns its cost in forward passes of one token.
    pub fn record_step(&mut self, n_tokens: &[usize], n_past: impl Fn(usize) -> usize, time: Duration) -> f64 {
        self.step += 1;
        let (mut n_physical, mut only) = (0_usize, 0);
        self.for_each(n_tokens, |n| (n_physical, only) = (n_physical + 1, n));
        let contexts = contexts(n_tokens_of(n_tokens), &n_past, n_tokens.len());
        if n_physical == 1 {
            self.note(only);
            return self.record_physical(only, contexts, time);
        }
        if self.one().is_finite() {
            let expected = self.step(n_tokens, &n_past);
            let slower = self.correct(contexts, expected, |costs| costs.step(n_tokens, &n_past), time);
            let (split, last) = (self.split, &mut self.last);
            let (target, padded) = (&mut self.target, self.padded);
            split.for_each(n_tokens_of(n_tokens), n_tokens.len(), |n| {
                let n = if padded { n.max(2) } else { n };
                *last = n;
                if let Some(entry) = n.checked_sub(1).and_then(|index| target.get_mut(index)) {
                    *entry *= 1.0 + FRESH_ENTRY / n_physical as f64 * slower;
                }
            });
            self.update();
        }
        self.step(n_tokens, &n_past)
    }

    /// Records the time of a physical batch of `n` tokens with these [`contexts`]. Returns its cost, in forward passes of one token.
    fn record_physical(&mut self, n: usize, contexts: [f64; 2], time: Duration) -> f64 {
        let n = self.decoded(n);
        let changed = self.last != n;
        let change = if changed { self.change } else { 0.0 };
        self.last = n;
        let one = self.one();
        match n.checked_sub(1).and_then(|index| self.target.get(index)).copied() {
            Some(entry) if entry > 0.0 && one.is_finite() => {
                let cost = |costs: &Costs| (entry + change) / one + costs.of_contexts(contexts);
                let expected = cost(self);
                let slower = self.correct(contexts, expected, cost, time);
                let times = self.known.get(n - 1).map_or(0, |known| known.times);
                let fresh = if times == 0 { FRESH_ENTRY } else { FRESH_ENTRY.max(FIRST_ENTRY / f64::from(times)) };
                if let Some(entry) = self.target.get_mut(n - 1) {
                    *entry *= 1.0 + fresh * slower.min(MOST_OF_ENTRY);
                }
                if times == 1 {
                    self.correct_unused(n, entry, one);
                }
                if changed {
                    // The first measurements have the highest weight.
                    self.changes += 1;
                    let fresh = FRESH_CHANGE.max(1.0 / (self.changes + 2) as f64);
                    self.change = (change + fresh * slower * expected * one).max(0.0);
                }
            }
            Some(_) => {
                let time = time.as_secs_f64() / self.scale;
                let attention = if one.is_finite() { self.of_contexts(contexts) * one } else { 0.0 };
                if let Some(entry) = self.target.get_mut(n - 1) {
                    *entry = (time - change - attention).max(time / 2.0);
                }
            }
            None => {}
        }
        self.update();
        self.v(n) + change / self.one() + self.of_contexts(contexts)
    }

    /// Corrects the common factor and the cost of attention by a batch with these contexts, which was expected to cost so many forward
    /// passes of one token. Returns how much slower it was than `cost` says afterwards.
    fn correct(&mut self, contexts: [f64; 2], expected: f64, cost: impl Fn(&Costs) -> f64, time: Duration) -> f64 {
        let slower = |costs: &Costs, expected: f64| (costs.of(time) / expected).min(MOST_SLOWER) - 1.0;
        let [slots, tokens] = contexts;
        let error = slower(self, expected);
        let [scale, slot, token] = DRIFT.map(|deviation| deviation * deviation);
        // All sizes follow a jump at once, also those that no step uses now.
        let jump = self.target_errors.jump(error);
        self.target_errors.drift([scale + jump * jump, slot, token]);
        let slopes = [1.0, slots / expected, tokens / expected];
        let [scale, slot, token] = self.target_errors.observe(slopes, error);
        self.scale *= 1.0 + scale;
        let [of_slot, of_token] = self.attention;
        self.attention = [(of_slot + slot).max(0.0), (of_token + token).max(0.0)];
        let expected = cost(self);
        slower(self, expected)
    }

    /// If several tokens become cheaper: corrects the sizes that no step has used yet after the first step of `n` tokens, which was expected to
    /// take `before` seconds, and one token `one`. What tokens cost beyond the first one falls for all sizes alike.
    fn correct_unused(&mut self, n: usize, before: f64, one: f64) {
        if !self.become_cheaper {
            return;
        }
        let Some(now) = n.checked_sub(1).filter(|index| *index > 0).and_then(|index| self.target.get(index)) else {
            return;
        };
        let beyond = |seconds: f64| (seconds / one - 1.0).max(0.0) + LEAST_BEYOND;
        let by = (beyond(*now) / beyond(before)).min(1.0);
        for (entry, known) in self.target.iter_mut().zip(&self.known).skip(1) {
            if known.times == 0 && *entry > one {
                *entry = one + by * (*entry - one);
            }
        }
    }

    /// Counts a measurement of a size in a step.
    fn note(&mut self, n: usize) {
        let (step, n) = (self.step, self.decoded(n));
        if let Some(known) = n.checked_sub(1).and_then(|index| self.known.get_mut(index)) {
            *known = Known { times: known.times.saturating_add(1), step };
        }
    }

    fn for_each(&self, n_tokens: &[usize], mut physical: impl FnMut(usize)) {
        self.split.for_each(n_tokens_of(n_tokens), n_tokens.len(), |n| physical(self.decoded(n)));
    }

    /// The cost of a batch with this number of tokens of each sequence id, each after `n_past(id)` tokens of context, in forward passes of
    /// one token, if the last one had the same size.
    pub fn step(&self, n_tokens: &[usize], n_past: impl Fn(usize) -> usize) -> f64 {
        self.step_of(n_tokens_of(n_tokens), n_past, n_tokens.len())
    }

    /// The same for `n_tokens(id)` tokens of each of `n_sequences` sequence ids.
    pub fn step_of(
        &self,
        n_tokens: impl Fn(usize) -> usize,
        n_past: impl Fn(usize) -> usize,
        n_sequences: usize,
    ) -> f64 {
        let (mut cost, mut before) = (self.of_contexts(contexts(&n_tokens, n_past, n_sequences)), None);
        self.split.for_each(n_tokens, n_sequences, |n| {
            let changes = before.is_some_and(|before| before != n);
            cost += self.v(self.decoded(n)) + if changes { self.change() } else { 0.0 };
            before = Some(n);
        });
        cost
    }

    /// The cost that `n_past` tokens of context add to `n` tokens of a slot, in forward passes of one token.
    pub fn attention(&self, n: usize, n_past: usize) -> f64 {
        self.of_contexts(contexts(|_| n, |_| n_past, 1))
    }

    fn of_contexts(&self, contexts: [f64; 2]) -> f64 {
        self.attention.iter().zip(contexts).map(|(cost, thousands)| cost * thousands).sum()
    }

    /// The relative amount by which the cost of a physical batch of `n` tokens may be lower than [`Costs::v`].
    pub fn uncertainty(&self, n: usize) -> f64 {
        let known = self.decoded(n).checked_sub(1).and_then(|index| self.known.get(index)).copied().unwrap_or_default();
        if known.times == 0 {
            return UNKNOWN;
        }
        let age = self.step.saturating_sub(known.step) as f64;
        MEASURED_ONCE / f64::from(known.times) + FORGOTTEN * (age / FORGOTTEN_AFTER).min(1.0)
    }

    /// Records a target batch of `n` tokens that has prompts.
    pub fn record_mixed(&mut self, n: usize) {
        self.last = n;
    }

    /// The number of tokens that are decoded for `n`, with padding.
    fn decoded(&self, n: usize) -> usize {
        if self.padded { n.max(2) } else { n }
    }

    /// The seconds for one token at `scale` 1. Infinite if not measured.
    fn one(&self) -> f64 {
        self.target.first().copied().filter(|one| *one > 0.0).unwrap_or(f64::INFINITY)
    }

    /// A single token is always padded from now on: see [`Drafters::offer_free_tokens`].
    ///
    /// [`Drafters::offer_free_tokens`]: crate::Drafters::offer_free_tokens
    pub fn pad(&mut self) {
        self.padded = true;
        self.update();
    }

    /// Records the time of a target batch of `n` tokens of prompts.
    pub fn record_prompt(&mut self, n: usize, time: Duration) {
        self.record_mixed(n);
        if n >= LEAST_PROMPT {
            self.bulk = Some((n, time.as_secs_f64() / self.scale));
            self.update();
        }
    }

    /// Records the time of drafting one token in each of `rounds` rounds, for `n_slots(round)` slots with about `n_past` tokens of context.
    pub fn record_drafts(&mut self, n_slots: impl Fn(usize) -> usize, rounds: usize, n_past: usize, time: Duration) {
        let expected = |costs: &Costs| (0..rounds).map(|round| costs.c(n_slots(round), n_past)).sum::<f64>();
        let Some(first) = (0..rounds).map(&n_slots).max().filter(|n_slots| *n_slots > 0) else { return };
        if n_past > 0 {
            let expected = expected(self);
            let thousands = (0..rounds).map(&n_slots).sum::<usize>() as f64 * n_past as f64 / 1e3;
            let error = (self.of(time) / expected).min(2.0 * MOST_SLOWER) - 1.0;
            let [more] = self.draft_errors.observe([thousands / expected], error);
            self.draft_attention = (self.draft_attention + more).max(0.0);
        }
        let slower = self.of(time) / expected(self);
        if self.draft.len() < first {
            self.draft.resize(first, 0.0);
        }
        let mut last = 0;
        for n_slots in (0..rounds).map(n_slots).filter(|n_slots| *n_slots > 0) {
            // Each entry once.
            if std::mem::replace(&mut last, n_slots) == n_slots {
                continue;
            }
            let estimate = self.draft_seconds(n_slots);
            let Some(entry) = self.draft.get_mut(n_slots - 1) else { continue };
            *entry = match *entry > 0.0 {
                true => *entry * (1.0 + FRESH_DRAFT * (slower.min(MOST_SLOWER) - 1.0)),
                false => estimate * slower,
            };
        }
    }

    /// The seconds for drafting one token for each of `n_slots` slots, at `scale` 1.
    fn draft_seconds(&self, n_slots: usize) -> f64 {
        let shape = |n: usize| 1.0 + INITIAL_DRAFT_SLOPE * (n.max(1) - 1) as f64;
        let known =
            |n: usize| n.checked_sub(1).and_then(|index| self.draft.get(index)).filter(|seconds| **seconds > 0.0);
        let nearest = (0..=n_slots.max(self.draft.len())).filter_map(|away| {
            let near = n_slots.checked_sub(away).into_iter().chain([n_slots + away]).find(|n| known(*n).is_some())?;
            Some(known(near)? / shape(near))
        });
        let one = self.one();
        let estimate = if one.is_finite() { INITIAL_DRAFT * one } else { 1.0 };
        nearest.into_iter().next().unwrap_or(estimate) * shape(n_slots)
    }

    /// v(n): the cost of a batch of `n` tokens, in forward passes of one token. v(0) = 0. Interpolated linearly between measured sizes.
    /// Extrapolated with the cost of prompts, or of the largest measured sizes.
    pub fn v(&self, n: usize) -> f64 {
        self.v.get(n).copied().unwrap_or_else(|| {
            let most = self.v.last().copied().unwrap_or(1.0);
            let slope = most / self.v.len().max(1) as f64;
            most + slope * (n + 1 - self.v.len()) as f64
        })
    }

    /// As [`Costs::v`], but assumes that the cost per token does not fall for batches larger than all that were measured.
    pub fn v_at_most(&self, n: usize) -> f64 {
        if self.largest == 0 || n <= self.largest {
            return self.v(n);
        }
        self.v(self.largest) * n as f64 / self.largest as f64
    }

    /// [`Costs::v`] plus the cost of changing to this size from the last one and, if `preferred` is the size of the following steps, of
    /// changing back.
    pub fn next(&self, preferred: Option<usize>) -> impl Fn(usize) -> f64 + '_ {
        let (change, preferred) = (self.change(), preferred.map(|preferred| self.decoded(preferred)));
        move |n| {
            let n_decoded = self.decoded(n);
            let changes =
                u8::from(n_decoded != self.last) + u8::from(preferred.is_some_and(|preferred| preferred != n_decoded));
            self.v(n) + change * f64::from(changes)
        }
    }

    /// The additional cost of a batch of another size than the last one, in forward passes of one token.
    pub fn change(&self) -> f64 {
        self.change / self.one()
    }

    /// Recomputes v.
    fn update(&mut self) {
        if let (true, [one, two, ..]) = (self.padded, &mut *self.target) {
            *one = *two;
        }
        if self.known.first().is_some_and(|known| known.times == 0) {
            // One token costs no more than several. The load measures it first, when weights or processors may not be at their speed yet.
            let least = self.target.iter().copied().filter(|seconds| *seconds > 0.0).fold(f64::INFINITY, f64::min);
            if let Some(one) = self.target.first_mut() {
                *one = one.min(least);
            }
        }
        let one = self.one();
        if one.is_infinite() {
            return;
        }
        let n_of_one = self.decoded(1);
        let known = (1..).zip(&self.target).filter(|(_, cost)| **cost > 0.0).map(|(n, cost)| (n, cost / one));
        let bulk = self.bulk.map(|(n, cost)| (n, cost / one));
        let (mut before, mut v) = ((0, 0.0), self.v.iter_mut().enumerate().skip(1));
        let largest = known.clone().last().map_or(0, |(n, _)| n);
        for (n, cost) in known.chain(bulk.filter(|(n, _)| *n > largest)) {
            let slope = (cost - before.1) / (n - before.0).max(1) as f64;
            for (at, v) in v.by_ref().take(n - before.0) {
                *v = before.1 + slope * (at - before.0) as f64;
            }
            before = (n, cost);
        }
        let slope = match before.0 {
            // One token alone says nothing about several, and few say little.
            n if n <= n_of_one => INITIAL_SLOPE,
            n if n < FEW => INITIAL_SLOPE.max((before.1 - 1.0) / (n - n_of_one) as f64),
            // Assumes that the cost per token does not fall further for larger batches.
            n => before.1 / n as f64,
        };
        self.largest = before.0;
        v.for_each(|(at, v)| *v = before.1 + slope * (at - before.0) as f64);
    }

    /// c(k): the cost of drafting one token, or one block of tokens, for each of `n_slots` slots with about `n_past` tokens of context, in
    /// forward passes of one token of the target.
    pub fn c(&self, n_slots: usize, n_past: usize) -> f64 {
        let attention = self.draft_attention * n_slots as f64 * n_past as f64 / 1e3;
        self.in_forward_passes(self.draft_seconds(n_slots) * self.scale) + attention
    }

    /// A time in forward passes of one token by the target.
    pub fn of(&self, time: Duration) -> f64 {
        self.in_forward_passes(time.as_secs_f64())
    }

    fn in_forward_passes(&self, seconds: f64) -> f64 {
        let one = self.one();
        if one.is_finite() { seconds / (one * self.scale) } else { INITIAL_DRAFT }
    }
}

/// The thousands of tokens of context that a batch attends to: counted once for each slot, and once for each of its tokens.
fn contexts(n_tokens: impl Fn(usize) -> usize, n_past: impl Fn(usize) -> usize, n_sequences: usize) -> [f64; 2] {
    let (mut slots, mut tokens) = (0.0, 0.0);
    for sequence in 0..n_sequences {
        let (n, thousands) = (n_tokens(sequence), n_past(sequence) as f64 / 1e3);
        slots += if n > 0 { thousands } else { 0.0 };
        tokens += n as f64 * thousands;
    }
    [slots, tokens]
}

fn n_tokens_of(n_tokens: &[usize]) -> impl Fn(usize) -> usize + Copy + '_ {
    |sequence| n_tokens.get(sequence).copied().unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests;
