use super::super::event::SpeculationStats;
use super::*;
use crate::tests;
use foredraft_base::error::Error;

/// A second run, after a first run that generated `expected`.
fn second(expected: &[Token]) -> Compare {
    let mut first = Outcome::never_ran(Stop::Eos, 3, true);
    first.text = "the answer".into();
    Compare::Second(Box::new(SecondRun {
        expected: expected.to_vec(),
        limited: false,
        n_equal: 0,
        difference: None,
        first,
    }))
}

/// The comparison when the second run generates `tokens` from these logits and then ends.
fn run(expected: &[Token], tokens: &[Token], logits: &[f32], stop: Stop) -> Comparison {
    let mut compare = second(expected);
    let mut decided = false;
    for token in tokens {
        assert!(!decided, "the comparison was already decided");
        decided = compare.ends_with(*token);
        let logit_gap = compare.logit_gap(*token, logits);
        compare.committed(*token, logit_gap);
    }
    assert!(compare.is_second());
    let outcome = compare.answer(stop).expect("it is the second run");
    assert_eq!((outcome.text.as_str(), &outcome.stop), ("the answer", &Stop::Eos));
    outcome.speculation.and_then(|stats: SpeculationStats| stats.comparison).expect("a comparison")
}

/// A time limit may have ended the first run; the second must stop at the same token.
#[test]
fn second_run_is_limited_to_the_length_of_the_first() {
    let mut compare = second(&[5, 6]);
    let Compare::Second(run) = &mut compare else { panic!("it is") };
    run.limited = true;
    for (token, ends) in [(5, false), (6, true)] {
        assert_eq!(compare.ends_with(token), ends, "{token}");
        compare.committed(token, None);
    }
    let stats = compare.answer(Stop::Limit).and_then(|outcome| outcome.speculation);
    assert_eq!(stats.and_then(|stats| stats.comparison), Some(Comparison::Done(None)));
}

#[test]
fn first_difference_and_logit_gap_are_reported() {
    let at = |index, logit_gap| Comparison::Done(Some(Difference { index, logit_gap }));
    let logits = [0.5, 2.0, -1.0, f32::NEG_INFINITY];
    let check = |expected: &[Token], tokens: &[Token], comparison| {
        assert_eq!(run(expected, tokens, &logits, Stop::Limit), comparison, "{expected:?} {tokens:?}");
    };
    check(&[1, 0, 2], &[1, 0, 2], Comparison::Done(None));
    check(&[], &[], Comparison::Done(None));
    check(&[1, 0, 2], &[1, 1], at(1, Some(1.5)));
    // Sampling may have chosen the token with the lower logit.
    check(&[1, 0, 2], &[2], at(0, Some(-3.0)));
    // One output ends before the other.
    check(&[1, 0, 2], &[1, 0], at(2, None));
    check(&[1, 0], &[1, 0, 2], at(2, None));
    check(&[9], &[1], at(0, None));
}

#[test]
fn interrupted_second_run_reports_why() {
    let check = |stop: Stop, expected: &str| {
        let found = run(&[1, 2], &[1], &[0.0; 4], stop);
        assert_eq!(found, Comparison::Skipped(format!("the run without speculation {expected}")));
    };
    check(Stop::Cancelled, "was cancelled");
    check(Stop::Timeout, "was not done in time");
    check(Stop::Error(Error::model("no memory")), "failed: no memory");
}

#[test]
fn first_run_is_recorded_and_not_compared() {
    let mut first = Compare::First { tokens: vec![7], again: Box::new(request()) };
    assert!(!first.ends_with(8) && !first.is_second());
    first.committed(8, None);
    let Compare::First { tokens, .. } = first else { panic!("it is") };
    assert_eq!(tokens, [7, 8]);
    assert!(Compare::first(&request()).is_none());
    let speculating = Request { speculative: Some(Default::default()), ..request() };
    assert!(Compare::first(&speculating).is_none());
    assert!(Compare::first(&Request { compare: true, ..speculating }).is_some());
    assert!(Compare::first(&Request { compare: true, ..request() }).is_none());
}

#[test]
fn second_run_fails_if_irreplaceable_cached_tokens_are_gone() {
    let found = |n_cached, is_irreplaceable| CacheOfFirstRun { n_cached, is_irreplaceable };
    assert_eq!(found(2, false).of(&[1, 2, 3]), [1, 2]);
    assert_eq!(found(9, false).of(&[1, 2, 3]), [1, 2, 3]);
    for (reused, is_irreplaceable, fits) in [(5, true, true), (5, false, true), (3, false, true), (3, true, false)] {
        assert_eq!(found(5, is_irreplaceable).check(reused).is_ok(), fits, "{reused} {is_irreplaceable}");
    }
}

fn request() -> Request {
    tests::request(vec![1, 2], 3, sampling::SamplingSettings::default())
}
