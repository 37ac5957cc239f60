use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::MAX_DRAFT;
use crate::controller::StepSlot;
use crate::controller::test_costs as costs;
use crate::drafter::{DraftRequest, Drawing};
use crate::verify::{SampledDraft, TokenDistribution};
use foredraft_base::TokenData;
use foredraft_sampling as sampling;

thread_local! {
    static NOW: Cell<Instant> = Cell::new(Instant::now());
}

/// A fake drafter that proposes the tokens given to `proposes`.
#[derive(Clone, Default)]
struct Scripted {
    source: Option<DrafterKind>,
    script: Arc<Mutex<Vec<(Token, f32)>>>,
    log: Arc<Mutex<Vec<String>>>,
    /// The cost of a drafted token, in milliseconds.
    ms: f64,
}

impl Scripted {
    fn new(source: DrafterKind) -> Scripted {
        Scripted { source: Some(source), ..Scripted::default() }
    }

    fn proposes(&self, tokens: &[(Token, f32)]) {
        *self.script.lock().unwrap() = tokens.to_vec();
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

impl Drafter for Scripted {
    fn source(&self) -> DrafterKind {
        self.source.unwrap()
    }

    fn begin(&mut self, slot: usize, _: &Sampler, _: &Settings) {
        self.log.lock().unwrap().push(format!("begin {slot}"));
    }

    fn draft(&mut self, asks: &mut [DraftRequest<'_>]) {
        for ask in asks {
            self.log.lock().unwrap().push(format!("draft {} {}", ask.slot, ask.n_max));
            for (token, confidence) in self.script.lock().unwrap().iter().take(ask.n_max) {
                if *confidence < ask.p_min {
                    break;
                }
                if let Some(Drawing { drawn, random }) = &mut ask.drawing {
                    let only = [TokenData { id: *token, logit: 0.0, p: 1.0 }];
                    let last = drawn.len();
                    assert!(drawn.draw(last, TokenDistribution::new(&only).unwrap(), 1, random).eq([*token]));
                }
                ask.draft.push(*token, *confidence);
                NOW.set(NOW.get() + Duration::from_secs_f64(self.ms / 1e3));
                if !ask.stop_policy.wants_more(&ask.draft.confidence, ask.n_max) {
                    break;
                }
            }
        }
    }

    fn verified(&mut self, slot: usize, drafted: usize, accepted: usize) {
        self.log.lock().unwrap().push(format!("checked {slot} {drafted} {accepted}"));
    }

    fn shift(&mut self, _: usize, _: usize, _: usize) {}

    fn end(&mut self, slot: usize, tokens: &[Token], generated: usize) {
        self.log.lock().unwrap().push(format!("end {slot} {tokens:?} {generated}"));
    }

    fn disabled(&self, _: usize) -> Option<&str> {
        None
    }
}

/// A text drafter and a model on slot 0, at these costs.
struct Table {
    drafters: Drafters,
    /// The request's state; `None`: it has ended.
    state: Option<DraftingState>,
    drafts: SlotDrafts,
    sampler: Sampler,
    text: Scripted,
    model: Scripted,
    /// Whether a token more costs nothing.
    padded: bool,
}

fn table(settings: &Settings, target_ms: &[(usize, u64)], draft_ms: f64) -> Table {
    let sampler = crate::tests::fakes::sampler(&sampling::SamplingSettings::default(), 100, None);
    let (text, mut model) = (Scripted::new(DrafterKind::Suffix), Scripted::new(DrafterKind::Draft));
    model.ms = draft_ms;
    let mut drafters = Drafters::new(Vec::new(), || NOW.get());
    drafters.controller.costs = costs(target_ms, draft_ms);
    drafters.add_model(Box::new(model.clone()));
    drafters.add(Box::new(text.clone()));
    let state = Some(drafters.begin(0, &sampler, settings));
    Table { drafters, state, drafts: SlotDrafts::default(), sampler, text, model, padded: false }
}

impl Table {
    /// A step, at the costs that are known, in which the target chooses `truth`: how many tokens were checked, whose, and how many of them were right.
    fn step(&mut self, truth: &[Token]) -> (usize, Option<DrafterKind>, usize) {
        let steps = [StepSlot { n_tokens: 1, generates: true, room: 100, n_past: 0 }];
        self.drafts.clear();
        let slot = self.state.as_mut().map(|state| DraftingSlot {
            slot: 0,
            tokens: &[1, 2, 3],
            text: &[1, 2, 3],
            sampler: &self.sampler,
            generated: 1,
            position: 1,
            room: Some(100),
            is_padded: self.padded,
            state,
            drafts: &mut self.drafts,
        });
        self.drafters.draft(&steps, &mut slot.into_iter().collect::<Vec<_>>());
        let chosen = self.drafts.chosen();
        let draft = chosen.map_or(Vec::new(), |chosen| chosen.draft.tokens[..chosen.n].to_vec());
        let kind = chosen.and_then(|chosen| chosen.kind);
        let right = draft.iter().zip(truth).take_while(|(drafted, chosen)| drafted == chosen).count();
        let outcome = DraftOutcome { kind, n_drafted: draft.len(), n_longest: draft.len(), n_accepted: right };
        if let Some(state) = &mut self.state {
            self.drafters.learn(0, &steps, state, &self.drafts, &truth[..=right], &outcome);
        }
        let costs = &mut self.drafters.controller.costs;
        let cost = costs.v(draft.len() + 1);
        costs.record_step(&[draft.len() + 1], |_| 0, Duration::from_secs_f64(cost / 10.0));
        let adapts = self.state.as_ref().is_some_and(DraftingState::adapts);
        self.drafters.stepped(&steps, adapts, right + 1, cost, 0.0);
        (draft.len(), kind, right)
    }
}

impl Table {
    fn begin(&mut self, settings: &Settings) {
        self.state = Some(self.drafters.begin(0, &self.sampler, settings));
    }

    fn end(&mut self, tokens: &[Token], generated: usize) {
        self.drafters.end(0, tokens, generated);
        self.state = None;
    }

    fn sampled(&mut self) -> &SampledDraft {
        self.drafts.sampled(MAX_DRAFT)
    }
}

const CHEAP: [(usize, u64); 3] = [(1, 100), (9, 140), (65, 400)];
const DEAR: [(usize, u64); 3] = [(1, 100), (2, 195), (65, 6400)];

fn both(adaptive: Adaptive) -> Settings {
    Settings { sources: vec![DrafterKind::Suffix, DrafterKind::Draft], adaptive, ..Settings::default() }
}

#[test]
fn the_draft_with_most_to_expect_is_checked() {
    let mut table = table(&both(Adaptive::Fixed), &CHEAP, 1.0);
    table.text.proposes(&[(7, 0.9), (8, 0.2)]);
    table.model.proposes(&[(7, 0.9), (8, 0.9), (9, 0.9)]);
    assert_eq!(table.step(&[7, 8, 9, 4]), (3, Some(DrafterKind::Draft), 3));
    table.text.proposes(&[(7, 0.95), (8, 0.99), (9, 0.99), (1, 0.99), (2, 0.99)]);
    assert_eq!(table.step(&[7, 8, 9, 4]), (5, Some(DrafterKind::Suffix), 3));
    assert_eq!(table.text.log(), ["begin 0", "draft 0 16", "draft 0 16", "checked 0 5 3"]);
    assert_eq!(table.model.log(), ["begin 0", "draft 0 16", "checked 0 3 3", "draft 0 16"]);
}

#[test]
fn behind_the_end_of_a_text_nothing_is_drafted() {
    let mut table = table(&both(Adaptive::Fixed), &CHEAP, 1.0);
    table.drafters.end_tokens = vec![8, 5];
    table.text.proposes(&[(7, 0.9), (8, 0.9), (9, 0.9), (5, 0.9)]);
    assert_eq!(table.step(&[7, 8, 1]), (2, Some(DrafterKind::Suffix), 2));
}

#[test]
fn free_draft_token_is_proposed_and_attributed_to_no_drafter() {
    for (settings, padded, expected) in [
        (Settings::none(), true, 1),
        (Settings::none(), false, 0),
        (Settings { sources: vec![DrafterKind::Prediction], ..both(Adaptive::Fixed) }, true, 1),
        (
            Settings { sources: vec![DrafterKind::Prediction], verify: Verify::Rejection, ..both(Adaptive::Fixed) },
            true,
            0,
        ),
    ] {
        let mut table = table(&settings, &CHEAP, 1.0);
        table.drafters.offer_free_tokens();
        table.begin(&settings);
        table.padded = padded;
        table.text.proposes(&[(7, 0.1), (8, 0.9)]);
        assert_eq!(table.step(&[7, 3]), (expected, None, expected), "{settings:?}");
        assert_eq!(table.step(&[4, 3]), (expected, None, 0), "{settings:?}");
    }
    // A draft that was asked for comes first.
    let settings = Settings { sources: vec![DrafterKind::Draft], ..both(Adaptive::Fixed) };
    let mut table = table(&settings, &CHEAP, 1.0);
    table.drafters.offer_free_tokens();
    table.begin(&settings);
    table.padded = true;
    table.text.proposes(&[(7, 0.9)]);
    table.model.proposes(&[(6, 0.3), (5, 0.3)]);
    assert_eq!(table.step(&[6, 5, 1]), (2, Some(DrafterKind::Draft), 2));
}

#[test]
fn model_is_not_asked_if_a_free_draft_token_is_as_good() {
    let settings = Settings { sources: vec![DrafterKind::Draft], ..both(Adaptive::Auto) };
    let mut asked = [0, 0];
    for (asked, padded) in asked.iter_mut().zip([false, true]) {
        let mut table = table(&settings, &[(1, 100), (2, 100), (3, 195), (65, 6400)], 20.0);
        table.drafters.offer_free_tokens();
        table.begin(&settings);
        table.padded = padded;
        table.text.proposes(&[(7, 0.9)]);
        table.model.proposes(&[(7, 0.9)]);
        for _ in 0..60 {
            table.step(&[7, 8]);
        }
        *asked = table.model.log().iter().filter(|entry| entry.starts_with("draft")).count();
    }
    assert!(asked[0] > 50 && asked[1] < 30, "{asked:?}");
}

#[test]
fn a_drafter_is_judged_by_what_it_proposed_even_when_it_was_not_checked() {
    let mut table = table(&both(Adaptive::Auto), &CHEAP, 1.0);
    table.text.proposes(&[(5, 0.9), (5, 0.9)]);
    table.model.proposes(&[(7, 0.7), (8, 0.7)]);
    table.step(&[7, 8, 9]);
    // The text drafter boasted and was wrong all the time: from now on it is the model that is checked.
    for _ in 0..30 {
        table.step(&[7, 8, 9]);
    }
    assert_eq!(table.step(&[7, 8, 9]), (2, Some(DrafterKind::Draft), 2));
    table.text.proposes(&[(7, 0.9), (8, 0.9), (9, 0.9)]);
    let until = (0..300).find(|_| table.step(&[7, 8, 9, 1]).1 == Some(DrafterKind::Suffix));
    assert!(until.is_some_and(|steps| steps > 3), "it has to win back its credit, and can: {until:?}");
}

#[test]
fn a_model_is_not_asked_where_the_text_says_enough() {
    let mut table = table(&both(Adaptive::Auto), &[(1, 100), (2, 160), (65, 6400)], 30.0);
    table.text.proposes(&[(7, 0.99), (8, 0.99)]);
    for _ in 0..60 {
        table.step(&[7, 8, 9]);
    }
    table.model.log();
    for _ in 0..500 {
        assert_eq!(table.step(&[7, 8, 9]).1, Some(DrafterKind::Suffix));
    }
    let asked = table.model.log().len();
    assert!((1..10).contains(&asked), "only tried now and then: {asked}");
}

#[test]
fn where_nothing_pays_a_model_is_tried_ever_more_rarely_and_the_text_is_still_watched() {
    let mut table = table(&both(Adaptive::Auto), &DEAR, 50.0);
    table.text.proposes(&[(5, 0.5)]);
    table.model.proposes(&[(5, 0.5), (5, 0.5)]);
    let mut tried = Vec::new();
    let mut checked = 0;
    for step in 0..20_000 {
        checked += table.step(&[7, 8]).0;
        let log = table.model.log();
        if log.iter().any(|entry| entry.starts_with("draft")) {
            tried.push(step);
        }
    }
    let gaps: Vec<usize> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A probe costs half a forward pass. A hundredth of the time pays for it, after four failed probes a sixteenth of that.
    assert!(gaps.iter().rev().take(3).all(|gap| *gap >= 800), "{:?}", &gaps[..gaps.len().min(20)]);
    assert!(tried.len() > 5, "{}", tried.len());
    assert!(checked < 30, "{checked}");
    assert_eq!(table.text.log().iter().filter(|entry| entry.starts_with("draft")).count(), 20_000);
}

/// Stochastic verification verifies every probe, so the verification is no sign that the probe pays.
#[test]
fn failed_probes_that_are_verified_become_rarer_too() {
    let settings = Settings { verify: Verify::Rejection, ..both(Adaptive::Auto) };
    let mut table = table(&settings, &DEAR, 50.0);
    table.model.proposes(&[(5, 0.5), (5, 0.5)]);
    let tried = (0..20_000).filter(|_| {
        table.step(&[7, 8]);
        table.model.log().iter().any(|entry| entry.starts_with("draft"))
    });
    // A probe costs half a forward pass. A hundredth of the time pays for it, after four failed probes a sixteenth of that.
    let tried = tried.count();
    assert!((5..60).contains(&tried), "{tried}");
}

#[test]
fn what_time_is_worth_is_not_forgotten_over_plain_requests() {
    let settings = Settings { sources: vec![DrafterKind::Draft], ..both(Adaptive::Auto) };
    let mut table = table(&settings, &[(1, 100), (65, 1060)], 1.0);
    table.model.proposes(&[(7, 0.99), (8, 0.99), (9, 0.5), (10, 0.5), (11, 0.5)]);
    let right_and_wrong = [[7, 8, 9, 4, 4, 4], [7, 8, 4, 4, 4, 4]];
    for truth in right_and_wrong.iter().cycle().take(100) {
        table.step(truth);
    }
    let learnt = table.step(&right_and_wrong[0]).0;
    table.end(&[], 0);
    table.begin(&Settings::none());
    for _ in 0..100 {
        assert_eq!(table.step(&[7]).0, 0);
    }
    table.end(&[], 0);
    table.begin(&settings);
    assert_eq!((learnt, table.step(&right_and_wrong[0]).0), (3, 3));
}

#[test]
fn drafts_that_are_too_short_or_too_unlikely_are_dropped() {
    let settings = Settings { n_min: 2, p_min: 0.5, ..both(Adaptive::Fixed) };
    let mut table = table(&settings, &CHEAP, 1.0);
    for (proposed, expected) in [
        (&[(7, 0.9)][..], 0),
        (&[(7, 0.9), (8, 0.4), (9, 0.9)], 0),
        (&[(7, 0.9), (8, 0.6), (9, 0.4)], 2),
        (&[(7, 0.9), (8, 0.6), (9, 0.5)], 3),
    ] {
        table.text.proposes(proposed);
        assert_eq!(table.step(&[7, 8, 9, 1]).0, expected, "{proposed:?}");
    }
}

/// A draft that gets no longer than pays, which is too short, would be made for nothing in each step.
#[test]
fn drafts_shorter_than_n_min_are_not_compared() {
    let likely: Vec<(Token, f32)> = (10..26).map(|token| (token, 0.8)).collect();
    let truth: Vec<Token> = (10..13).chain([1]).collect();
    for (n_min, draft_ms, expected) in [(0, 20.0, true), (2, 20.0, true), (14, 20.0, false), (14, 0.1, true)] {
        let settings = Settings { n_min, sources: vec![DrafterKind::Draft], ..both(Adaptive::Auto) };
        let mut table = table(&settings, &CHEAP, draft_ms);
        table.model.proposes(&likely);
        let checked: Vec<usize> = (0..200).map(|_| table.step(&truth).0).skip(100).collect();
        assert!(checked.iter().all(|n| *n == 0 || *n >= n_min), "{n_min}: {checked:?}");
        let many = checked.iter().filter(|n| **n > 0).count() > 90;
        let long =
            table.model.log().iter().filter(|entry| entry.starts_with("draft") && !entry.ends_with(" 1")).count();
        assert_eq!((many, long > 90), (expected, expected), "{n_min} {draft_ms}: {checked:?}, {long}");
    }
}

/// The first model's drawn draft is verified, whatever the second model would propose.
#[test]
fn a_second_model_does_not_draw_behind_the_first() {
    let sources = vec![DrafterKind::Draft, DrafterKind::Mtp];
    let settings = Settings { sources, verify: Verify::Rejection, ..both(Adaptive::Fixed) };
    let mut table = table(&settings, &CHEAP, 1.0);
    let second = Scripted::new(DrafterKind::Mtp);
    table.drafters.add_model(Box::new(second.clone()));
    table.begin(&settings);
    second.proposes(&[(5, 0.9), (6, 0.9), (7, 0.9)]);
    table.model.proposes(&[(7, 0.9)]);
    assert_eq!(table.step(&[7, 1]), (1, Some(DrafterKind::Draft), 1));
    table.model.proposes(&[]);
    assert_eq!(table.step(&[5, 1]).1, Some(DrafterKind::Mtp), "where the first says nothing");
    let asked = second.log().iter().filter(|entry| entry.starts_with("draft")).count();
    assert_eq!(asked, 1);
}

#[test]
fn every_drafter_is_given_every_end_and_none_drafts_after_it() {
    let mut table = table(&Settings { sources: vec![DrafterKind::Suffix], ..both(Adaptive::Fixed) }, &CHEAP, 1.0);
    table.text.proposes(&[(7, 0.9)]);
    table.model.proposes(&[(7, 0.9), (8, 0.9)]);
    assert_eq!(table.step(&[7, 8]), (1, Some(DrafterKind::Suffix), 1));
    table.end(&[6, 7, 8], 2);
    assert_eq!(table.model.log(), ["end 0 [6, 7, 8] 2"], "it was not asked for");
    assert_eq!(table.step(&[7, 8]), (0, None, 0));
}

/// Dropping a drawn draft because of its tokens would change the distribution of the output.
#[test]
fn what_was_drawn_is_checked_whole() {
    for adaptive in [Adaptive::Fixed, Adaptive::Heuristic] {
        let settings = Settings { verify: Verify::Rejection, n_min: 3, ..both(adaptive) };
        let mut table = table(&settings, &CHEAP, 1.0);
        table.model.proposes(&[(7, 0.1), (8, 0.1)]);
        assert_eq!(table.step(&[9]), (2, Some(DrafterKind::Draft), 0), "shorter than n_min, and improbable");
        table.text.proposes(&[(7, 0.1), (8, 0.1), (9, 0.1), (1, 0.1)]);
        assert_eq!(table.step(&[7, 8, 5]), (2, Some(DrafterKind::Draft), 2), "another draft is longer");
        assert_eq!((table.sampled().tokens(), table.sampled().is_block()), (vec![7, 8], false));
    }
}

/// Whether the model is to draw is decided before it does.
#[test]
fn a_better_draft_found_without_chance_comes_before_a_draw() {
    let settings = Settings { verify: Verify::Block, ..both(Adaptive::Fixed) };
    let mut table = table(&settings, &CHEAP, 1.0);
    let sure: Vec<(Token, f32)> = (10..40).map(|token| (token, 0.99)).collect();
    for _ in 0..40 {
        // Both learn: the text's drafts are right, the model's wrong.
        table.text.proposes(&[]);
        table.model.proposes(&[(7, 0.1)]);
        table.step(&[8]);
        table.text.proposes(&sure);
        table.model.proposes(&[]);
        table.step(&(10..40).collect::<Vec<_>>()[..]);
    }
    table.model.log();
    let (n, source, _) = table.step(&[8]);
    assert_eq!((n, source), (16, Some(DrafterKind::Suffix)));
    assert!(!table.model.log().iter().any(|line| line.starts_with("draft")), "nothing was drawn");
    assert_eq!(table.sampled().tokens(), (10..26).collect::<Vec<_>>());
    assert!(table.sampled().is_block(), "it is checked by the same rule");
}
