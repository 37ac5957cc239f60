use super::*;
use proptest::prelude::*;

/// Drafts for one context that is all there is.
pub(in super::super) fn draft_of<R: HistoryDrafter>(
    settings: &Settings,
    context: &[Token],
    prompt: usize,
    n_max: usize,
) -> Draft {
    let mut drafter = TextDrafter::<R>::new(1);
    drafter.start(0, settings);
    draft_in(&mut drafter, context, prompt, n_max)
}

/// Drafts in slot 0.
pub(in super::super) fn draft_in<R: HistoryDrafter>(
    drafter: &mut TextDrafter<R>,
    context: &[Token],
    prompt: usize,
    n_max: usize,
) -> Draft {
    let mut draft = Draft::default();
    drafter.propose(
        0,
        context,
        context.len() - prompt,
        Limits { n_max, p_min: 0.0, pace: StopPolicy::All },
        &mut draft,
    );
    assert_eq!(draft.tokens.len(), draft.confidence.len());
    assert!(draft.tokens.len() <= n_max);
    assert!(draft.confidence.iter().all(|confidence| (0.0..=1.0).contains(confidence)), "{:?}", draft.confidence);
    draft
}

/// What decoding a text took.
#[derive(Debug, PartialEq)]
pub(in super::super) struct Played {
    pub steps: usize,
    pub drafted: usize,
    pub accepted: usize,
}

/// Generates `text` behind its first `prompt` tokens in slot 0, checking each draft against it, as an engine would.
pub(in super::super) fn play<R: HistoryDrafter>(
    drafter: &mut TextDrafter<R>,
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
        if !draft.tokens.is_empty() {
            drafter.checked(0, draft.tokens.len(), accepted);
        }
        played.steps += 1;
        played.drafted += draft.tokens.len();
        played.accepted += accepted;
        end += accepted + 1;
    }
    drafter.end(0, text, text.len() - prompt);
    played
}

/// Remembers what it was told.
struct Spy {
    text: Vec<Token>,
    prompt: usize,
}

impl HistoryDrafter for Spy {
    const SOURCE: DrafterKind = DrafterKind::NgramSimple;
    type Shared = Vec<Vec<Token>>;

    fn new(_settings: &Settings) -> Self {
        Spy { text: Vec::new(), prompt: 0 }
    }

    fn forget(&mut self) {
        self.text.clear();
    }

    fn learn(&mut self, _shared: &Self::Shared, text: &[Token], prompt: usize) {
        assert!(text.starts_with(&self.text), "the text changed without a word");
        (self.text, self.prompt) = (text.to_vec(), prompt);
    }

    fn draft(&mut self, _shared: &Self::Shared, text: &[Token], limits: Limits<'_>, draft: &mut Draft) {
        assert_eq!(text, self.text);
        draft.extend_from(&vec![7; limits.n_max + 3], 0.5);
    }

    fn remember(shared: &mut Self::Shared, context: &[Token], output: usize) {
        shared.push(context[output..].to_vec());
    }
}

fn spy() -> TextDrafter<Spy> {
    let mut drafter = TextDrafter::new(2);
    drafter.start(0, &Settings::default());
    drafter
}

fn learnt(drafter: &TextDrafter<Spy>) -> (&[Token], usize) {
    let slot = drafter.slots[0].as_ref().unwrap();
    (&slot.rule.text, slot.rule.prompt)
}

fn numbers(from: Token, to: Token) -> Vec<Token> {
    (from..to).collect()
}

#[test]
fn a_text_that_grows_is_learnt_once() {
    let mut drafter = spy();
    for (end, n_max) in [(10, 0), (10, 4), (11, 1), (30, 64), (30, 0)] {
        let draft = draft_in(&mut drafter, &numbers(0, end), 8, n_max);
        assert_eq!(draft.tokens.len(), n_max, "cut to what was asked for");
        assert_eq!(learnt(&drafter), (&numbers(0, end)[..], 8));
    }
}

#[test]
fn what_a_shift_drops_stays_known() {
    let mut drafter = spy();
    draft_in(&mut drafter, &numbers(0, 100), 20, 4);
    drafter.shift(0, 10, 40);
    let mut context = [numbers(0, 10), numbers(50, 103)].concat();
    draft_in(&mut drafter, &context, 20, 4);
    assert_eq!(learnt(&drafter), (&numbers(0, 103)[..], 20));
    drafter.shift(0, 10, 50);
    context.drain(10..60);
    context.extend(numbers(103, 110));
    draft_in(&mut drafter, &context, 10, 4);
    assert_eq!(learnt(&drafter), (&numbers(0, 110)[..], 20));
}

#[test]
fn a_shift_of_what_was_not_seen_yet_loses_nothing_seen() {
    let mut drafter = spy();
    draft_in(&mut drafter, &numbers(0, 50), 50, 4);
    drafter.shift(0, 10, 60);
    draft_in(&mut drafter, &[numbers(0, 10), numbers(70, 100)].concat(), 10, 4);
    assert_eq!(learnt(&drafter).0, [numbers(0, 50), numbers(70, 100)].concat());
}

#[test]
fn another_context_is_noticed() {
    let check = |second: Vec<Token>| {
        let mut drafter = spy();
        draft_in(&mut drafter, &numbers(0, 50), 40, 4);
        draft_in(&mut drafter, &second, 3, 4);
        assert_eq!(learnt(&drafter), (&second[..], 3));
    };
    check(numbers(100, 160));
    check(numbers(0, 49));
    check(numbers(1, 60));
    check([numbers(0, 49), vec![7, 8]].concat());
}

#[test]
fn the_older_half_of_a_very_long_text_is_forgotten() {
    let mut drafter = spy();
    let text = numbers(0, MAX_HISTORY as Token + 10);
    draft_in(&mut drafter, &text[..MAX_HISTORY], 10, 4);
    assert_eq!(learnt(&drafter).0.len(), MAX_HISTORY);
    draft_in(&mut drafter, &text[..MAX_HISTORY + 1], 10, 4);
    assert_eq!(learnt(&drafter), (&text[MAX_HISTORY + 1 - MAX_HISTORY / 2..MAX_HISTORY + 1], 0));
    draft_in(&mut drafter, &text, 10, 4);
    assert_eq!(learnt(&drafter).0, &text[MAX_HISTORY + 1 - MAX_HISTORY / 2..]);
}

#[test]
fn outputs_are_remembered_whoever_was_asked() {
    let mut drafter = spy();
    draft_in(&mut drafter, &numbers(0, 50), 40, 4);
    drafter.end(0, &numbers(0, 55), 15);
    assert!(drafter.slots[0].is_none(), "nothing of the request is left but its output");
    drafter.end(1, &[7], 9);
    assert_eq!(drafter.shared(), &[numbers(40, 55), vec![7]]);
    assert!(draft_in(&mut drafter, &numbers(0, 50), 40, 4).tokens.is_empty(), "it had ended");
}

#[test]
fn slots_do_not_meet_and_unknown_ones_do_nothing() {
    let mut drafter = spy();
    drafter.start(1, &Settings::default());
    draft_in(&mut drafter, &numbers(0, 50), 40, 4);
    let mut draft = Draft::default();
    drafter.propose(1, &[1, 2], 1, Limits { n_max: 2, p_min: 0.0, pace: StopPolicy::All }, &mut draft);
    assert_eq!(learnt(&drafter).0, numbers(0, 50));
    assert_eq!(drafter.slots[1].as_ref().unwrap().rule.text, [1, 2]);
    for slot in [2, usize::MAX] {
        drafter.start(slot, &Settings::default());
        let mut draft = Draft::default();
        drafter.propose(slot, &[1, 2], 1, Limits { n_max: 2, p_min: 0.0, pace: StopPolicy::All }, &mut draft);
        assert!(draft.tokens.is_empty());
        drafter.shift(slot, 1, 1);
        drafter.checked(slot, 1, 1);
        drafter.end(slot, &[], 0);
        assert!(drafter.disabled(slot).is_none());
    }
}

#[test]
fn an_empty_context_is_no_text() {
    let mut drafter = spy();
    assert!(draft_in(&mut drafter, &[], 0, 4).tokens.is_empty());
    draft_in(&mut drafter, &[3], 0, 4);
    assert_eq!(learnt(&drafter), (&[3][..], 0));
}

proptest! {
    #[test]
    fn whatever_happens_the_text_ends_as_the_context(
        events in prop::collection::vec((0..3_u8, 0..80_usize, 0..80_usize), 1..40),
    ) {
        let mut drafter = spy();
        let (mut context, mut all, mut next) = (Vec::new(), Vec::new(), 0);
        for (kind, a, b) in events {
            match kind {
                // Grows.
                0 => {
                    let new = numbers(next, next + a as Token);
                    next += a as Token;
                    context.extend_from_slice(&new);
                    all.extend(new);
                }
                // Shifts, but not all away: another context could not be told from its continuation.
                1 => {
                    let keep = a.min(context.len().saturating_sub(1));
                    let dropped = b.min(context.len().saturating_sub(keep + 1));
                    context.drain(keep..keep + dropped);
                    drafter.shift(0, keep, dropped);
                }
                // Is another.
                _ => {
                    context = numbers(next, next + a as Token + 1);
                    next += a as Token + 1;
                    all = context.clone();
                }
            }
            draft_in(&mut drafter, &context, 0, 4);
            let (text, prompt) = learnt(&drafter);
            prop_assert_eq!(text, &all[..]);
            prop_assert!(prompt <= text.len());
        }
    }
}
