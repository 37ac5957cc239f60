use super::*;
use proptest::prelude::*;

/// Drafts for one context in a new slot.
pub(in super::super) fn draft_of<R: HistoryDrafter>(
    settings: &Settings,
    context: &[Token],
    prompt: usize,
    n_max: usize,
) -> Draft {
    let mut drafter = SlotDrafters::<R>::new(1);
    drafter.start(0, settings);
    draft_in(&mut drafter, context, prompt, n_max)
}

/// Drafts in slot 0.
pub(in super::super) fn draft_in<R: HistoryDrafter>(
    drafter: &mut SlotDrafters<R>,
    context: &[Token],
    prompt: usize,
    n_max: usize,
) -> Draft {
    let mut draft = Draft::default();
    drafter.propose(
        0,
        context,
        context.len() - prompt,
        Limits { n_max, p_min: 0.0, stop_policy: StopPolicy::All },
        &mut draft,
    );
    assert_eq!(draft.tokens.len(), draft.confidence.len());
    assert!(draft.tokens.len() <= n_max);
    assert!(draft.confidence.iter().all(|confidence| (0.0..=1.0).contains(confidence)), "{:?}", draft.confidence);
    draft
}

/// Counts of a simulated decode.
#[derive(Debug, PartialEq)]
pub(in super::super) struct Played {
    pub steps: usize,
    pub drafted: usize,
    pub accepted: usize,
}

/// Generates `text` after its first `prompt` tokens in slot 0 and verifies each draft against it, as an engine would.
pub(in super::super) fn play<R: HistoryDrafter>(
    drafter: &mut SlotDrafters<R>,
    settings: &Settings,
    text: &[Token],
    prompt: usize,
    n_max: usize,
) -> Played {
    drafter.start(0, settings);
    let mut played = Played { steps: 0, drafted: 0, accepted: 0 };
    let mut end = prompt + 1;
    while end < text.len() {
        let draft = draft_in(drafter, &text[..end], prompt, n_max);
        let accepted = draft.tokens.iter().zip(&text[end..]).take_while(|(a, b)| a == b).count();
        played.steps += 1;
        played.drafted += draft.tokens.len();
        played.accepted += accepted;
        end += accepted + 1;
    }
    drafter.end(0, text, text.len() - prompt);
    played
}

/// Records its calls.
struct RecordingDrafter {
    text: Vec<Token>,
    prompt: usize,
}

impl HistoryDrafter for RecordingDrafter {
    const KIND: DrafterKind = DrafterKind::Suffix;
    type Shared = Vec<Vec<Token>>;

    fn new(_settings: &Settings) -> Self {
        RecordingDrafter { text: Vec::new(), prompt: 0 }
    }

    fn reset(&mut self) {
        self.text.clear();
    }

    fn extend(&mut self, _shared: &Self::Shared, text: &[Token], prompt: usize) {
        assert!(text.starts_with(&self.text), "the history changed without a reset");
        (self.text, self.prompt) = (text.to_vec(), prompt);
    }

    fn draft(&mut self, _shared: &Self::Shared, text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        assert_eq!(text, self.text);
        draft.extend_from(&vec![7; limits.n_max + 3], 0.5);
    }

    fn learn_output(shared: &mut Self::Shared, context: &[Token], output: usize) {
        shared.push(context[output..].to_vec());
    }
}

fn recording() -> SlotDrafters<RecordingDrafter> {
    let mut drafter = SlotDrafters::new(2);
    drafter.start(0, &Settings::default());
    drafter
}

fn seen_by(drafter: &SlotDrafters<RecordingDrafter>) -> (&[Token], usize) {
    let slot = drafter.slots[0].as_ref().unwrap();
    (&slot.drafter.text, slot.drafter.prompt)
}

fn numbers(from: Token, to: Token) -> Vec<Token> {
    (from..to).collect()
}

#[test]
fn growing_history_is_processed_once() {
    let mut drafter = recording();
    for (end, n_max) in [(10, 0), (10, 4), (11, 1), (30, 64), (30, 0)] {
        let draft = draft_in(&mut drafter, &numbers(0, end), 8, n_max);
        assert_eq!(draft.tokens.len(), n_max, "truncated to n_max");
        assert_eq!(seen_by(&drafter), (&numbers(0, end)[..], 8));
    }
}

#[test]
fn tokens_dropped_by_a_shift_stay_in_the_history() {
    let mut drafter = recording();
    draft_in(&mut drafter, &numbers(0, 100), 20, 4);
    drafter.shift(0, 10, 40);
    let mut context = [numbers(0, 10), numbers(50, 103)].concat();
    draft_in(&mut drafter, &context, 20, 4);
    assert_eq!(seen_by(&drafter), (&numbers(0, 103)[..], 20));
    drafter.shift(0, 10, 50);
    context.drain(10..60);
    context.extend(numbers(103, 110));
    draft_in(&mut drafter, &context, 10, 4);
    assert_eq!(seen_by(&drafter), (&numbers(0, 110)[..], 20));
}

#[test]
fn shift_of_unseen_tokens_keeps_the_history() {
    let mut drafter = recording();
    draft_in(&mut drafter, &numbers(0, 50), 50, 4);
    drafter.shift(0, 10, 60);
    draft_in(&mut drafter, &[numbers(0, 10), numbers(70, 100)].concat(), 10, 4);
    assert_eq!(seen_by(&drafter).0, [numbers(0, 50), numbers(70, 100)].concat());
}

#[test]
fn replaced_context_resets_the_history() {
    let check = |second: Vec<Token>| {
        let mut drafter = recording();
        draft_in(&mut drafter, &numbers(0, 50), 40, 4);
        draft_in(&mut drafter, &second, 3, 4);
        assert_eq!(seen_by(&drafter), (&second[..], 3));
    };
    check(numbers(100, 160));
    check(numbers(0, 49));
    check(numbers(1, 60));
    check([numbers(0, 49), vec![7, 8]].concat());
}

#[test]
fn older_half_of_a_very_long_history_is_dropped() {
    let mut drafter = recording();
    let text = numbers(0, MAX_HISTORY as Token + 10);
    draft_in(&mut drafter, &text[..MAX_HISTORY], 10, 4);
    assert_eq!(seen_by(&drafter).0.len(), MAX_HISTORY);
    draft_in(&mut drafter, &text[..MAX_HISTORY + 1], 10, 4);
    assert_eq!(seen_by(&drafter), (&text[MAX_HISTORY + 1 - MAX_HISTORY / 2..MAX_HISTORY + 1], 0));
    draft_in(&mut drafter, &text, 10, 4);
    assert_eq!(seen_by(&drafter).0, &text[MAX_HISTORY + 1 - MAX_HISTORY / 2..]);
}

#[test]
fn outputs_are_learned_when_requests_end() {
    let mut drafter = recording();
    draft_in(&mut drafter, &numbers(0, 50), 40, 4);
    drafter.end(0, &numbers(0, 55), 15);
    assert!(drafter.slots[0].is_none(), "the slot's drafter is dropped");
    drafter.end(1, &[7], 9);
    assert_eq!(drafter.shared(), &[numbers(40, 55), vec![7]]);
    assert!(draft_in(&mut drafter, &numbers(0, 50), 40, 4).tokens.is_empty(), "the request has ended");
}

#[test]
fn slots_are_independent_and_unknown_slots_are_ignored() {
    let mut drafter = recording();
    drafter.start(1, &Settings::default());
    draft_in(&mut drafter, &numbers(0, 50), 40, 4);
    let mut draft = Draft::default();
    drafter.propose(1, &[1, 2], 1, Limits { n_max: 2, p_min: 0.0, stop_policy: StopPolicy::All }, &mut draft);
    assert_eq!(seen_by(&drafter).0, numbers(0, 50));
    assert_eq!(drafter.slots[1].as_ref().unwrap().drafter.text, [1, 2]);
    for slot in [2, usize::MAX] {
        drafter.start(slot, &Settings::default());
        let mut draft = Draft::default();
        drafter.propose(slot, &[1, 2], 1, Limits { n_max: 2, p_min: 0.0, stop_policy: StopPolicy::All }, &mut draft);
        assert!(draft.tokens.is_empty());
        drafter.shift(slot, 1, 1);
        drafter.end(slot, &[], 0);
        assert!(drafter.disabled(slot).is_none());
    }
}

#[test]
fn empty_context_gives_no_draft() {
    let mut drafter = recording();
    assert!(draft_in(&mut drafter, &[], 0, 4).tokens.is_empty());
    draft_in(&mut drafter, &[3], 0, 4);
    assert_eq!(seen_by(&drafter), (&[3][..], 0));
}

proptest! {
    #[test]
    fn history_always_ends_with_the_context(
        events in prop::collection::vec((0..3_u8, 0..80_usize, 0..80_usize), 1..40),
    ) {
        let mut drafter = recording();
        let (mut context, mut all, mut next) = (Vec::new(), Vec::new(), 0);
        for (kind, a, b) in events {
            match kind {
                // The context grows.
                0 => {
                    let new = numbers(next, next + a as Token);
                    next += a as Token;
                    context.extend_from_slice(&new);
                    all.extend(new);
                }
                // The context is shifted, but not completely: then a replaced context would look like a continuation.
                1 => {
                    let keep = a.min(context.len().saturating_sub(1));
                    let dropped = b.min(context.len().saturating_sub(keep + 1));
                    context.drain(keep..keep + dropped);
                    drafter.shift(0, keep, dropped);
                }
                // The context is replaced.
                _ => {
                    context = numbers(next, next + a as Token + 1);
                    next += a as Token + 1;
                    all = context.clone();
                }
            }
            draft_in(&mut drafter, &context, 0, 4);
            let (text, prompt) = seen_by(&drafter);
            prop_assert_eq!(text, &all[..]);
            prop_assert!(prompt <= text.len());
        }
    }
}
