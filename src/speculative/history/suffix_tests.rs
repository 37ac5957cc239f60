use super::super::history_drafter::tests::{Played, draft_in, draft_of, play};
use super::super::ngram_params::NgramParams;
use super::super::{ngram_map, ngram_mod, ngram_simple};
use super::*;
use crate::speculative::costs::tests::costs;
use crate::speculative::{Prices, StepSlot};
use crate::speculative::{Calibration, Choice, Drafter, Plan, StopPolicy};
use proptest::prelude::*;

fn settings(params: SuffixParams) -> Settings {
    Settings { ngram: NgramParams { suffix: params, ..NgramParams::default() }, ..Settings::default() }
}

fn draft(context: &[Token], n_max: usize) -> Vec<Token> {
    draft_of::<Matches>(&Settings::default(), context, context.len(), n_max).tokens
}

fn numbers(from: Token, to: Token) -> Vec<Token> {
    (from..to).collect()
}

/// A generator of numbers, so that texts are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn text(&mut self, len: usize, vocabulary: usize) -> Vec<Token> {
        (0..len).map(|_| self.below(vocabulary) as Token).collect()
    }
}

#[test]
fn a_match_is_copied() {
    let text = [numbers(0, 100), numbers(20, 80)].concat();
    assert_eq!(draft(&text, 16), numbers(80, 96));
    // It goes on as the text did, even behind what was the end.
    assert_eq!(draft(&text, 64), [numbers(80, 100), numbers(20, 64)].concat());
    assert_eq!(draft(&text, 1), [80]);
    assert!(draft(&text, 0).is_empty());
    assert!(draft(&[], 16).is_empty());
    assert!(draft(&[1], 16).is_empty());
    assert!(draft(&numbers(0, 1000), 16).is_empty());
    let ends = [Token::MAX, 0, Token::MAX - 1, 5, 6, Token::MAX, 0];
    assert_eq!(draft(&ends, 2), [Token::MAX - 1, 5]);
}

#[test]
fn the_most_frequent_continuation_is_drafted() {
    let check = |texts: &[&[Token]], context: &[Token], expected: Token| {
        let text = [&texts.concat()[..], context].concat();
        assert_eq!(draft(&text, 1), [expected], "{texts:?}");
    };
    let (a, b): (&[Token], &[Token]) = (&[1, 2, 3, 80], &[1, 2, 4, 81]);
    check(&[a, b, b], &[1, 2], 4);
    check(&[a, a, a, b], &[1, 2], 3);
    // Equals: the latest.
    check(&[&[50], a, &[51], b, &[52]], &[1, 2], 4);
    check(&[&[50], b, &[51], a, &[52]], &[1, 2], 3);
    // In turns: it is the other one's.
    check(&[a, b, a, b], &[1, 2], 3);
    // A longer match is worth more than the frequency of a shorter one.
    let longer: &[Token] = &[70, 71, 72, 73, 1, 2, 5];
    check(&[longer, a, b], &[70, 71, 72, 73, 1, 2], 5);
}

#[test]
fn limits_end_a_draft() {
    let text = [numbers(0, 100), numbers(20, 28)].concat();
    let length = |params| draft_of::<Matches>(&settings(params), &text, text.len(), 64).tokens.len();
    let params = SuffixParams { factor: 100.0, min_prob: 0.0, ..SuffixParams::default() };
    assert_eq!(length(params), 64);
    // Eight tokens match.
    assert_eq!(length(SuffixParams { factor: 1.0, ..params }), 8);
    assert_eq!(length(SuffixParams { factor: 0.5, ..params }), 4);
    assert_eq!(length(SuffixParams { factor: 0.0, ..params }), 0);
    assert_eq!(length(SuffixParams { factor: f32::NAN, ..params }), 0);
    assert_eq!(length(SuffixParams { factor: f32::INFINITY, ..params }), 64);
    let by_probability: Vec<usize> =
        [0.5, 0.1, 0.01].map(|min_prob| length(SuffixParams { min_prob, ..params })).into();
    assert!(by_probability.is_sorted() && by_probability[0] > 0 && by_probability[0] < by_probability[2]);
    // One that costs nothing may be as unlikely as it is; the others may not.
    assert_eq!([false, true].map(|guesses| length(SuffixParams { min_prob: 1.0, guesses, ..params })), [0, 1]);
    let mut drafter = Suffix::new(1);
    drafter.start(0, &settings(params));
    let mut drafts = [0.0, 0.999].map(|p_min| {
        let mut draft = Draft::default();
        drafter.propose(0, &text, 1, Limits { n_max: 64, p_min, pace: StopPolicy::All }, &mut draft);
        draft.tokens.len()
    });
    drafts.reverse();
    assert_eq!(drafts, [0, 64]);
}

#[test]
fn other_names_in_a_copied_text_are_passed_by() {
    // Every tenth token is another one.
    let copy: Vec<Token> =
        numbers(0, 300).into_iter().map(|token| if token % 10 == 5 { token + 1000 } else { token }).collect();
    let text = [numbers(0, 300), copy].concat();
    let played = play(&mut Suffix::new(1), &Settings::default(), &text, 300, 16);
    // One step for each of the thirty, and one or two more.
    assert!(played.steps <= 36, "{played:?}");
}

#[test]
fn what_is_put_in_or_left_out_is_passed_by() {
    let mut numbers = Numbers(7);
    let prompt = numbers.text(1000, 5000);
    let copy = [&prompt[..200], &[9001, 9002, 9003], &prompt[200..400], &prompt[420..900]].concat();
    let text = [&prompt[..], &copy].concat();
    let played = play(&mut Suffix::new(1), &Settings::default(), &text, 1000, 64);
    assert!(played.accepted + 16 > copy.len() - played.steps && played.steps < 40, "{played:?}");
}

#[test]
fn random_text_is_hardly_drafted_for() {
    let text = Numbers(1).text(6000, 2000);
    let played = play(&mut Suffix::new(1), &Settings::default(), &text, 2000, 16);
    assert!(played.drafted < 200, "{played:?}");
}

#[test]
fn answers_are_learnt_and_prompts_are_not() {
    let (prompt, answer) = (numbers(0, 100), numbers(1000, 1100));
    let mut drafter = Suffix::new(2);
    play(&mut drafter, &Settings::default(), &[&prompt[..], &answer].concat(), 100, 16);
    assert_eq!(drafter.shared().len(), 101);
    drafter.start(0, &Settings::default());
    assert_eq!(draft_in(&mut drafter, &[&[5000], &answer[..20]].concat(), 1, 4).tokens, answer[20..24]);
    drafter.start(0, &Settings::default());
    assert!(draft_in(&mut drafter, &prompt[..20], 20, 4).tokens.is_empty());
    // A request that is still running is not known to the other slot.
    drafter.start(0, &Settings::default());
    draft_in(&mut drafter, &numbers(3000, 3100), 10, 4);
    drafter.start(1, &Settings::default());
    let mut draft = Draft::default();
    drafter.propose(1, &numbers(3000, 3020), 20, Limits { n_max: 4, p_min: 0.0, pace: StopPolicy::All }, &mut draft);
    assert!(draft.tokens.is_empty());
}

#[test]
fn a_request_starts_as_if_it_were_the_first() {
    let mut numbers = Numbers(3);
    let prompt = numbers.text(400, 50);
    let text = [&prompt[..], &prompt[100..300]].concat();
    let drafts = |drafter: &mut Suffix| {
        drafter.start(0, &Settings::default());
        (401..600)
            .map(|end| draft_in(drafter, &text[..end], 400, 16))
            .map(|draft| (draft.tokens, draft.confidence))
            .collect()
    };
    let first: Vec<_> = drafts(&mut Suffix::new(1));
    // One that read the same, guessed wrong and right, and ended without an answer; and one that did not even end.
    let mut used = Suffix::new(1);
    drafts(&mut used);
    used.end(0, &text, 0);
    assert!(used.shared().is_empty());
    drafts(&mut used);
    assert_eq!(drafts(&mut used), first);
}

#[test]
fn a_trace_into_answers_that_were_forgotten_is_lost() {
    use super::super::suffix_answers::MAX_ANSWERS;
    let mut drafter = Suffix::new(2);
    let answer = numbers(0, 1000);
    play(&mut drafter, &Settings::default(), &[&[1_000_000], &answer[..]].concat(), 1, 16);
    drafter.start(0, &Settings::default());
    assert_eq!(draft_in(&mut drafter, &numbers(0, 100), 1, 4).tokens, [100, 101, 102, 103]);
    // Another slot's long answers push it out.
    for from in [1_000_000, 2_000_000] {
        let long = numbers(from, from + MAX_ANSWERS as Token / 2);
        drafter.start(1, &Settings::default());
        drafter.propose(
            1,
            &long[..1],
            1,
            Limits { n_max: 4, p_min: 0.0, pace: StopPolicy::All },
            &mut Draft::default(),
        );
        drafter.end(1, &long, long.len());
    }
    assert!(draft_in(&mut drafter, &numbers(0, 104), 1, 4).tokens.is_empty());
}

/// Steps to generate texts with a rule.
fn steps<R: HistoryDrafter>(texts: &[(Vec<Token>, usize)]) -> Vec<Played> {
    texts
        .iter()
        .map(|(text, prompt)| play(&mut TextDrafter::<R>::new(1), &Settings::default(), text, *prompt, 64))
        .collect()
}

#[test]
fn on_repetitive_texts_no_rule_of_llama_cpp_needs_fewer_steps() {
    let mut numbers = Numbers(11);
    let prompt = numbers.text(2000, 3000);
    let mut edited = prompt.clone();
    for _ in 0..40 {
        let place = numbers.below(edited.len());
        edited[place] = 5000 + numbers.below(100) as Token;
    }
    let quotes: Vec<Token> = (0..40)
        .flat_map(|_| {
            let from = numbers.below(1800);
            [numbers.text(12, 3000), prompt[from..from + 30 + numbers.below(150)].to_vec()].concat()
        })
        .collect();
    let record = numbers.text(40, 3000);
    let records: Vec<Token> = (0..150)
        .flat_map(|_| {
            let mut record = record.clone();
            for field in [7, 15, 22, 33] {
                record[field] = numbers.below(10) as Token;
            }
            record
        })
        .collect();
    let period: Vec<Token> = (0..3000).map(|index| index % 7).collect();
    let texts = [
        ([&prompt[..], &prompt].concat(), 2000),
        ([&prompt[..], &edited].concat(), 2000),
        ([&prompt[..], &quotes].concat(), 2000),
        (records, 80),
        (period, 20),
    ];
    let ours = steps::<Matches>(&texts);
    let theirs = [
        steps::<ngram_simple::Simple>(&texts),
        steps::<ngram_map::Map<false>>(&texts),
        steps::<ngram_map::Map<true>>(&texts),
        steps::<ngram_mod::Chain>(&texts),
    ];
    for (text, ours) in ours.iter().enumerate() {
        for (rule, theirs) in theirs.iter().enumerate() {
            let theirs = &theirs[text];
            assert!(ours.steps <= theirs.steps, "text {text}: {ours:?}, rule {rule}: {theirs:?}");
        }
    }
}

proptest! {
    #[test]
    fn a_draft_is_a_continuation_that_was_seen(
        text in prop::collection::vec(0..40_i32, 1..400),
        steps in prop::collection::vec((1..24_usize, 0..20_usize), 1..40),
    ) {
        let mut drafter = Suffix::new(1);
        drafter.start(0, &Settings::default());
        let mut end = 0;
        for (step, n_max) in steps {
            end = (end + step).min(text.len());
            let seen = &text[..end];
            let draft = draft_in(&mut drafter, seen, 0, n_max);
            // The first token was seen behind the last one, or behind one of the last few, where a copied text goes on.
            if let Some(first) = draft.tokens.first() {
                let agrees = |place: usize| (1..=8.min(place)).any(|back| seen[place - back] == seen[end - back]);
                prop_assert!((0..end).any(|place| seen[place] == *first && agrees(place)), "{seen:?} {first}");
            }
            let product: f64 = draft.confidence.iter().map(|confidence| f64::from(*confidence)).product();
            prop_assert!(draft.tokens.is_empty() || product >= f64::from(SuffixParams::default().min_prob));
        }
    }

    #[test]
    fn drafts_do_not_depend_on_how_the_text_was_told(
        text in prop::collection::vec(0..4_i32, 2..200),
        cuts in prop::collection::vec(1..30_usize, 0..20),
    ) {
        let whole = draft_of::<Matches>(&Settings::default(), &text, text.len(), 16);
        let mut drafter = Suffix::new(1);
        drafter.start(0, &Settings::default());
        let mut end = 0;
        for cut in cuts {
            end = (end + cut).min(text.len());
            draft_in(&mut drafter, &text[..end], end, 0);
        }
        let pieces = draft_in(&mut drafter, &text, text.len(), 16);
        prop_assert_eq!((whole.tokens, whole.confidence), (pieces.tokens, pieces.confidence));
    }
}

#[test]
fn it_stops_where_more_would_not_pay() {
    let text: Vec<Token> = numbers(0, 40).into_iter().chain(numbers(0, 9)).collect();
    let calibration = Calibration::of_text();
    let drafted = |target_ms: &[(usize, u64)]| {
        let mut plan = Plan::default();
        let (costs, slots) = (costs(target_ms, 0.1), [StepSlot { n_tokens: 1, generates: true, room: 64 }]);
        plan.update(&Prices { slots: &slots, costs: &costs, rate: 1.0, preferred: None }, 1);
        let pace = StopPolicy::Paying {
            plan: &plan,
            calibration: &calibration,
            bias: calibration.begin(Choice::Greedy),
            n_min: 0,
        };
        let (mut drafter, mut draft) = (Suffix::new(1), Draft::default());
        drafter.start(0, &Settings::default());
        drafter.propose(0, &text, 1, Limits { n_max: 30, p_min: 0.0, pace }, &mut draft);
        draft.tokens.len()
    };
    let [cheap, steep, never] =
        [[(1, 100), (64, 101)], [(1, 100), (64, 2000)], [(1, 100), (64, 9000)]].map(|t| drafted(&t));
    assert!(never == 1 && steep > 1 && steep < cheap, "{never} {steep} {cheap}");
}
