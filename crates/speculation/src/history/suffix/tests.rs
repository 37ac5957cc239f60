use super::super::history_drafter::tests::{Played, draft_in, draft_of, play};
use super::*;
use crate::controller::test_costs as costs;
use crate::{Calibration, Choice, DraftPrices, Drafter, Prices, StepSlot, StopPolicy};
use proptest::prelude::*;

fn settings(params: SuffixParams) -> Settings {
    Settings { suffix: params, ..Settings::default() }
}

fn draft(context: &[Token], n_max: usize) -> Vec<Token> {
    draft_of::<SuffixDrafter>(&Settings::default(), context, context.len(), n_max).tokens
}

fn numbers(from: Token, to: Token) -> Vec<Token> {
    (from..to).collect()
}

/// A deterministic random number generator.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn text(&mut self, len: usize, vocabulary: usize) -> Vec<Token> {
        (0..len).map(|_| self.below(vocabulary) as Token).collect()
    }
}

#[test]
fn match_is_copied() {
    let text = [numbers(0, 100), numbers(20, 80)].concat();
    assert_eq!(draft(&text, 16), numbers(80, 96));
    // The copy continues past the previous end of the history.
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
fn most_frequent_continuation_is_drafted() {
    let check = |texts: &[&[Token]], context: &[Token], expected: Token| {
        let text = [&texts.concat()[..], context].concat();
        assert_eq!(draft(&text, 1), [expected], "{texts:?}");
    };
    let (a, b): (&[Token], &[Token]) = (&[1, 2, 3, 80], &[1, 2, 4, 81]);
    check(&[a, b, b], &[1, 2], 4);
    check(&[a, a, a, b], &[1, 2], 3);
    // Equally frequent: the latest.
    check(&[&[50], a, &[51], b, &[52]], &[1, 2], 4);
    check(&[&[50], b, &[51], a, &[52]], &[1, 2], 3);
    // Alternating: the other one.
    check(&[a, b, a, b], &[1, 2], 3);
    // A longer match is worth more than the frequency of a shorter one.
    let longer: &[Token] = &[70, 71, 72, 73, 1, 2, 5];
    check(&[longer, a, b], &[70, 71, 72, 73, 1, 2], 5);
}

#[test]
fn draft_obeys_its_limits() {
    let text = [numbers(0, 100), numbers(20, 28)].concat();
    let length = |params| draft_of::<SuffixDrafter>(&settings(params), &text, text.len(), 64).tokens.len();
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
    // Only the free first token may be below min_prob.
    assert_eq!(
        [false, true].map(|offers_free_token| length(SuffixParams { min_prob: 1.0, offers_free_token, ..params })),
        [0, 1]
    );
    let mut drafter = Suffix::new(1);
    drafter.start(0, &settings(params));
    let mut drafts = [0.0, 0.999].map(|p_min| {
        let mut draft = Draft::default();
        drafter.propose(0, &text, 1, Limits { n_max: 64, p_min, stop_policy: StopPolicy::All }, &mut draft);
        draft.tokens.len()
    });
    drafts.reverse();
    assert_eq!(drafts, [0, 64]);
}

#[test]
fn replaced_names_in_a_copied_text_cost_one_step_each() {
    // Every tenth token is replaced.
    let copy: Vec<Token> =
        numbers(0, 300).into_iter().map(|token| if token % 10 == 5 { token + 1000 } else { token }).collect();
    let text = [numbers(0, 300), copy].concat();
    let played = play(&mut Suffix::new(1), &Settings::default(), &text, 300, 16);
    // One step for each of the thirty, plus a few.
    assert!(played.steps <= 36, "{played:?}");
}

#[test]
fn insertions_and_deletions_are_recovered() {
    let mut numbers = TestRng(7);
    let prompt = numbers.text(1000, 5000);
    let copy = [&prompt[..200], &[9001, 9002, 9003], &prompt[200..400], &prompt[420..900]].concat();
    let text = [&prompt[..], &copy].concat();
    let played = play(&mut Suffix::new(1), &Settings::default(), &text, 1000, 64);
    assert!(played.accepted + 16 > copy.len() - played.steps && played.steps < 40, "{played:?}");
}

#[test]
fn random_text_gets_few_drafts() {
    let text = TestRng(1).text(6000, 2000);
    let played = play(&mut Suffix::new(1), &Settings::default(), &text, 2000, 16);
    assert!(played.drafted < 200, "{played:?}");
}

#[test]
fn outputs_are_learned_and_prompts_are_not() {
    let (prompt, output) = (numbers(0, 100), numbers(1000, 1100));
    let mut drafter = Suffix::new(2);
    play(&mut drafter, &Settings::default(), &[&prompt[..], &output].concat(), 100, 16);
    assert_eq!(drafter.shared().len(), 101);
    drafter.start(0, &Settings::default());
    assert_eq!(draft_in(&mut drafter, &[&[5000], &output[..20]].concat(), 1, 4).tokens, output[20..24]);
    drafter.start(0, &Settings::default());
    assert!(draft_in(&mut drafter, &prompt[..20], 20, 4).tokens.is_empty());
    // The tokens of a running request are not visible to the other slot.
    drafter.start(0, &Settings::default());
    draft_in(&mut drafter, &numbers(3000, 3100), 10, 4);
    drafter.start(1, &Settings::default());
    let mut draft = Draft::default();
    drafter.propose(
        1,
        &numbers(3000, 3020),
        20,
        Limits { n_max: 4, p_min: 0.0, stop_policy: StopPolicy::All },
        &mut draft,
    );
    assert!(draft.tokens.is_empty());
}

#[test]
fn earlier_requests_do_not_affect_drafts_without_outputs() {
    let mut numbers = TestRng(3);
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
    // Earlier requests with the same prompt: one ended without output, one never ended.
    let mut used = Suffix::new(1);
    drafts(&mut used);
    used.end(0, &text, 0);
    assert!(used.shared().is_empty());
    drafts(&mut used);
    assert_eq!(drafts(&mut used), first);
}

#[test]
fn trace_into_dropped_outputs_is_reset() {
    let mut drafter = Suffix::new(2);
    let output = numbers(0, 1000);
    play(&mut drafter, &Settings::default(), &[&[1_000_000], &output[..]].concat(), 1, 16);
    drafter.start(0, &Settings::default());
    assert_eq!(draft_in(&mut drafter, &numbers(0, 100), 1, 4).tokens, [100, 101, 102, 103]);
    // Another slot's long outputs replace it.
    for from in [1_000_000, 2_000_000] {
        let long = numbers(from, from + MAX_EARLIER_TOKENS as Token / 2);
        drafter.start(1, &Settings::default());
        drafter.propose(
            1,
            &long[..1],
            1,
            Limits { n_max: 4, p_min: 0.0, stop_policy: StopPolicy::All },
            &mut Draft::default(),
        );
        drafter.end(1, &long, long.len());
    }
    assert!(draft_in(&mut drafter, &numbers(0, 104), 1, 4).tokens.is_empty());
}

/// The steps a drafter needs to generate the texts.
fn steps<R: HistoryDrafter>(texts: &[(Vec<Token>, usize)]) -> Vec<Played> {
    texts
        .iter()
        .map(|(text, prompt)| play(&mut SlotDrafters::<R>::new(1), &Settings::default(), text, *prompt, 64))
        .collect()
}

#[test]
fn suffix_needs_no_more_steps_than_llama_cpp_drafters_on_repetitive_texts() {
    let mut numbers = TestRng(11);
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
    let ours = steps::<SuffixDrafter>(&texts);
    // The fewest steps of `ngram-simple`, `ngram-map-k`, `ngram-map-k4v` and `ngram-mod`, with their defects removed.
    for (text, (ours, theirs)) in ours.iter().zip([53, 500, 1029, 1495, 59]).enumerate() {
        assert!(ours.steps <= theirs, "text {text}: {ours:?}, llama.cpp {theirs}");
    }
}

proptest! {
    #[test]
    fn draft_is_a_continuation_from_the_history(
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
            // The first token followed the last token, or one of the last few tokens at a copied position, before.
            if let Some(first) = draft.tokens.first() {
                let agrees = |place: usize| (1..=8.min(place)).any(|back| seen[place - back] == seen[end - back]);
                prop_assert!((0..end).any(|place| seen[place] == *first && agrees(place)), "{seen:?} {first}");
            }
            let product: f64 = draft.confidence.iter().map(|confidence| f64::from(*confidence)).product();
            prop_assert!(draft.tokens.is_empty() || product >= f64::from(SuffixParams::default().min_prob));
        }
    }

    #[test]
    fn drafts_do_not_depend_on_the_step_sizes(
        text in prop::collection::vec(0..4_i32, 2..200),
        cuts in prop::collection::vec(1..30_usize, 0..20),
    ) {
        let whole = draft_of::<SuffixDrafter>(&Settings::default(), &text, text.len(), 16);
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
fn draft_stops_where_longer_does_not_pay() {
    let text: Vec<Token> = numbers(0, 40).into_iter().chain(numbers(0, 9)).collect();
    let calibration = Calibration::of_text();
    let drafted = |target_ms: &[(usize, u64)]| {
        let mut prices = DraftPrices::default();
        let (costs, slots) = (costs(target_ms, 0.1), [StepSlot { n_tokens: 1, generates: true, room: 64, n_past: 0 }]);
        prices.update(
            &Prices { slots: &slots, costs: &costs, rate: 1.0, preferred: None, most_lost: f64::MAX, least_lost: 0.0 },
            1,
        );
        let stop_policy = StopPolicy::Paying {
            prices: &prices,
            calibration: &calibration,
            bias: calibration.begin(Choice::Greedy),
            n_min: 0,
        };
        let (mut drafter, mut draft) = (Suffix::new(1), Draft::default());
        drafter.start(0, &Settings::default());
        drafter.propose(0, &text, 1, Limits { n_max: 30, p_min: 0.0, stop_policy }, &mut draft);
        draft.tokens.len()
    };
    let [cheap, steep, never] =
        [[(1, 100), (64, 101)], [(1, 100), (64, 2000)], [(1, 100), (64, 9000)]].map(|t| drafted(&t));
    assert!(never == 1 && steep > 1 && steep < cheap, "{never} {steep} {cheap}");
}

mod outputs {
    use super::super::*;

    fn continuation(earlier_outputs: &EarlierOutputs, context: &[Token]) -> Option<Token> {
        let longest = earlier_outputs.tree.look_up(context, &mut Hint::default());
        earlier_outputs.text.get(usize::try_from(longest?.best.0).unwrap()).copied()
    }

    #[test]
    fn contexts_do_not_cross_outputs() {
        let mut earlier_outputs = EarlierOutputs::default();
        earlier_outputs.add(&[1, 2, 3]);
        earlier_outputs.add(&[]);
        earlier_outputs.add(&[4, 5, Token::MAX]);
        assert_eq!(earlier_outputs.len(), 8, "the outputs and their separators");
        for (context, expected) in
            [(1, Some(2)), (2, Some(3)), (3, None), (4, Some(5)), (5, Some(Token::MAX)), (Token::MAX, None)]
        {
            assert_eq!(continuation(&earlier_outputs, &[context]), expected, "{context}");
        }
    }

    #[test]
    fn oldest_outputs_are_dropped() {
        let mut earlier_outputs = EarlierOutputs::default();
        let output =
            |number: usize| -> Vec<Token> { (0..1000).map(|token| (number * 1000 + token) as Token).collect() };
        for number in 0..1000 {
            earlier_outputs.add(&output(number));
            assert!(earlier_outputs.len() <= MAX_EARLIER_TOKENS);
            let newest = output(number);
            assert_eq!(continuation(&earlier_outputs, &newest[10..11]), Some(newest[11]));
        }
        assert!(earlier_outputs.forgotten > 3);
        assert!(earlier_outputs.len() >= MAX_EARLIER_TOKENS / 2);
        assert_eq!(continuation(&earlier_outputs, &output(100)[10..11]), None);
        let kept = earlier_outputs.len() / 1001 - 1;
        let oldest = output(1000 - kept);
        assert_eq!(continuation(&earlier_outputs, &oldest[10..11]), Some(oldest[11]));
    }

    #[test]
    fn huge_output_keeps_its_end() {
        let mut earlier_outputs = EarlierOutputs::default();
        let huge: Vec<Token> = (0..3 * MAX_EARLIER_TOKENS as Token).collect();
        earlier_outputs.add(&huge);
        assert!(earlier_outputs.len() <= MAX_EARLIER_TOKENS && !earlier_outputs.is_empty());
        let last = huge.len() - 2;
        assert_eq!(continuation(&earlier_outputs, &huge[last..=last]), Some(huge[last + 1]));
        assert_eq!(continuation(&earlier_outputs, &huge[..1]), None);
    }
}

mod trace {
    use super::super::*;

    const TEXT: [Token; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, Token::MAX];

    fn at(place: usize) -> Trace {
        Trace { at: place, length: 3, misses: 0, active: true, ..Trace::default() }
    }

    fn state(trace: &Trace) -> (usize, usize, u32, bool) {
        (trace.at, trace.length, trace.misses, trace.active)
    }

    #[test]
    fn trace_follows_matches_and_survives_mismatches() {
        let check = |tokens: &[Token], expected| {
            let mut trace = at(3);
            for token in tokens {
                trace.follow(&TEXT, *token);
            }
            assert_eq!(state(&trace), expected, "{tokens:?}");
        };
        check(&[], (3, 3, 0, true));
        check(&[3, 4], (5, 5, 0, true));
        check(&[3, 99], (5, 0, 1, true));
        check(&[3, 99, 5, 6], (7, 2, 1, true));
        check(&[99, 4, 5, 6, 7, 8, 9, 10, Token::MAX], (12, 8, 0, true));
        check(&[99; 7], (10, 0, 7, true));
        check(&[99; 8], (11, 0, 8, false));
        check(&[99; 20], (11, 0, 8, false));
    }

    #[test]
    fn trace_moves_to_the_longer_match() {
        // 5 is best (most frequent), but 1 2 3 was followed by 7 at index 3.
        let text = [1, 2, 3, 7, 9, 3, 5, 8, 3, 5, 1, 2, 3];
        let mut tree = ContextTree::new(1);
        for at in 0..text.len() {
            tree.learn(&text, at);
        }
        let source = SuffixSource { origin: Origin::Own, tokens: &text, tree: &tree };
        let mut trace = Trace::default();
        let found = trace.look_up(source, &text);
        trace.seek(source, &text, found.as_ref());
        assert_eq!(state(&trace), (3, 3, 0, true));
        // A long match stays, a short one does not.
        for (length, place) in [(LONG_MATCH, 5), (LONG_MATCH - 1, 5), (2, 3)] {
            trace = Trace { length, ..at(5) };
            trace.seek(source, &text, found.as_ref());
            assert_eq!(trace.at, place, "length {length}");
        }
    }

    #[test]
    fn trace_moves_to_the_drafted_candidate() {
        let bins = ConfidenceBins::default();
        let kind = bins.copied(Origin::Own, &CopiedMatch { length: 1, before: 0, misses: 0, total: 0, agreeing: 0 }).0;
        let candidate = SuffixCandidate { token: 8, confidence: 0.5, kind, at: 8, length: 4 };
        let check = |token, candidate: Option<SuffixCandidate>, expected| {
            let mut trace = at(3);
            trace.continue_with(&TEXT, token, candidate);
            assert_eq!(state(&trace), expected);
        };
        check(8, Some(candidate), (9, 5, 0, true));
        check(3, Some(SuffixCandidate { token: 3, at: 8, ..candidate }), (4, 4, 0, true));
        check(3, None, (4, 4, 0, true));
        check(9, Some(candidate), (4, 0, 1, true));
    }

    #[test]
    fn no_candidate_follows_the_end_of_an_output() {
        let text = [1, 2, SEPARATOR, 4];
        let tree = ContextTree::new(4);
        let source = SuffixSource { origin: Origin::Earlier, tokens: &text, tree: &tree };
        for (place, expected) in [(1, Some(2)), (2, None), (3, Some(4)), (4, None)] {
            let trace = at(place);
            let mut noted = 0;
            let candidate = trace.candidate(source, None, &ConfidenceBins::default(), |_| noted += 1);
            assert_eq!(candidate.map(|candidate| candidate.token), expected);
            assert_eq!(noted, usize::from(expected.is_some()));
        }
    }
}

mod confidence {
    use super::super::*;

    fn context(length: usize, best: u8, total: u8) -> Continuations {
        Continuations { length, total, best: (0, best), other: (0, 0) }
    }

    fn copied(length: usize, misses: u32, agreeing: u8, total: u8) -> CopiedMatch {
        CopiedMatch { length, before: 0, misses, total, agreeing }
    }

    #[test]
    fn prior_rises_with_length_and_agreement() {
        let bins = ConfidenceBins::default();
        let of_context = |length, best, total| bins.context(Origin::Own, &context(length, best, total)).1;
        let of_copy =
            |length, misses, agreeing, total| bins.copied(Origin::Own, &copied(length, misses, agreeing, total)).1;
        let rising = |values: &[f32]| {
            assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{values:?}");
            assert!(values.iter().all(|value| (0.0..1.0).contains(value)), "{values:?}");
        };
        rising(&[of_context(1, 1, 1), of_context(2, 1, 1), of_context(8, 1, 1), of_context(32, 1, 1)]);
        rising(&[of_context(2, 1, 1), of_context(2, 2, 2), of_context(2, 20, 20)]);
        rising(&[of_context(2, 3, 9), of_context(2, 5, 9), of_context(2, 8, 9), of_context(2, 9, 9)]);
        rising(&[
            of_copy(0, 3, 0, 0),
            of_copy(0, 1, 0, 0),
            of_copy(1, 0, 0, 0),
            of_copy(10, 0, 0, 0),
            of_copy(1000, 0, 0, 0),
        ]);
        rising(&[of_copy(9, 0, 0, 5), of_copy(9, 0, 2, 5), of_copy(9, 0, 5, 5)]);
        let after = |before| bins.copied(Origin::Own, &CopiedMatch { before, ..copied(0, 1, 0, 0) }).1;
        rising(&[after(0), after(5), after(30)]);
        assert!(bins.context(Origin::Earlier, &context(4, 1, 1)).1 < of_context(4, 1, 1));
        assert!(bins.copied(Origin::Earlier, &copied(4, 0, 0, 0)).1 < of_copy(4, 0, 0, 0));
    }

    #[test]
    fn observations_outweigh_the_prior_of_their_kind_only() {
        let mut bins = ConfidenceBins::default();
        let single = context(1, 1, 1);
        let (kind, before) = bins.context(Origin::Own, &single);
        let others = |bins: &ConfidenceBins| {
            let other = [(Origin::Own, 2, 1, 1), (Origin::Own, 1, 2, 2), (Origin::Earlier, 1, 1, 1)];
            let contexts =
                other.map(|(origin, length, best, total)| bins.context(origin, &context(length, best, total)));
            (contexts, bins.copied(Origin::Own, &copied(1, 0, 1, 1)))
        };
        let others_before = others(&bins);
        for _ in 0..1000 {
            bins.record(kind, false);
        }
        assert!(bins.context(Origin::Own, &single).1 < 0.1 * before);
        for _ in 0..1000 {
            bins.record(kind, true);
        }
        assert!(bins.context(Origin::Own, &single).1 > 0.9, "the estimate can recover");
        assert_eq!(others(&bins), others_before);
    }

    #[test]
    fn bin_converges_to_the_success_rate() {
        let mut bins = ConfidenceBins::default();
        let copy = copied(20, 0, 0, 0);
        let (kind, _) = bins.copied(Origin::Own, &copy);
        for step in 0..400 {
            bins.record(kind, step % 4 != 0);
        }
        let (_, estimate) = bins.copied(Origin::Own, &copy);
        assert!((estimate - 0.75).abs() < 0.05, "{estimate}");
    }

    #[test]
    fn each_kind_has_its_own_bin() {
        let bins = ConfidenceBins::default();
        let mut kinds = std::collections::HashSet::new();
        for origin in [Origin::Own, Origin::Earlier] {
            for length in LENGTHS {
                for (best, total) in [(1, 1), (2, 2), (9, 9), (8, 9), (5, 9), (2, 9)] {
                    assert!(kinds.insert(bins.context(origin, &context(length, best, total)).0.0));
                }
            }
            for length in [0, 1, 2, 4, 8, 16, 32, 64] {
                for (agreeing, total) in [(0, 0), (5, 5), (4, 5), (0, 5)] {
                    for misses in 0..3 {
                        assert!(kinds.insert(bins.copied(origin, &copied(length, misses, agreeing, total)).0.0));
                    }
                }
            }
        }
        assert_eq!(kinds.len(), KINDS);
        assert!(kinds.iter().all(|kind| *kind < KINDS));
        let far = bins.copied(Origin::Earlier, &copied(usize::MAX, u32::MAX, u8::MAX, u8::MAX));
        assert!(far.0.0 < KINDS && far.1 <= 1.0);
    }
}
