//! Whole chains against the reference implementation: random settings, in random order, with and without a grammar.

use super::super::sampler::Sampler;
use super::super::{MirostatVersion, SamplingSettings, Stage};
use crate::tests::fakes::{FakeVocabulary, plain};
use crate::tests::reference::{self, AllowList, Rng};
use foredraft_base::Token;

const STAGES: [Stage; 10] = [
    Stage::Penalties,
    Stage::Dry,
    Stage::TopNSigma,
    Stage::TopK,
    Stage::TfsZ,
    Stage::TypicalP,
    Stage::TopP,
    Stage::MinP,
    Stage::Xtc,
    Stage::Temperature,
];

/// The distribution that a sampler draws from, by token.
fn distribution(
    settings: &SamplingSettings,
    logits: &[f32],
    history: &[Token],
    grammar: Option<AllowList>,
) -> Vec<f64> {
    let mut sampler = Sampler::build(settings, &FakeVocabulary::new(logits.len()), grammar).unwrap();
    let mut row = logits.to_vec();
    let mut result = vec![0.0; logits.len()];
    let left = sampler.distribution(&mut row, history, 3).unwrap();
    assert!(left.iter().all(|item| item.p > 0.0), "only tokens with a probability above 0");
    assert!(left.is_sorted_by(|a, b| a.p >= b.p), "most probable first");
    left.iter().for_each(|item| result[item.id as usize] = f64::from(item.p));
    assert!((result.iter().sum::<f64>() - 1.0).abs() < 1e-5, "sums to 1");
    result
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    for (token, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 2e-5 + 2e-4 * b, "{what}\ntoken {token} has {a}, expected {b}");
    }
}

/// Random settings. Continuous numbers, so that no threshold is hit exactly. XTC always applies.
fn any_settings(rng: &mut Rng) -> SamplingSettings {
    let mut settings =
        SamplingSettings { min_keep: *rng.pick(&[0, 0, 0, 1, 2, 5]), seed: rng.bits() as u32, ..plain() };
    let mut on = |chance: f64| rng.unit() < chance;
    let choices: [bool; 14] = std::array::from_fn(|_| on(0.35));
    let mut between = |low: f64, high: f64| (low + (high - low) * rng.unit()) as f32;
    if choices[0] {
        settings.temperature = between(0.2, 2.0);
    }
    if choices[1] {
        settings.dynatemp_range = between(0.1, 1.5);
        settings.dynatemp_exponent = between(0.3, 2.0);
    }
    if choices[2] {
        settings.top_k = between(1.0, 60.0) as i32;
    }
    if choices[3] {
        settings.top_p = between(0.1, 0.99);
    }
    if choices[4] {
        settings.min_p = between(0.001, 0.3);
    }
    if choices[5] {
        settings.tfs_z = between(0.3, 0.999);
    }
    if choices[6] {
        settings.typical_p = between(0.1, 0.99);
    }
    if choices[7] {
        settings.top_n_sigma = between(0.3, 4.0);
    }
    if choices[8] {
        (settings.xtc_probability, settings.xtc_threshold) = (1.0, between(0.01, 0.4));
    }
    if choices[9] {
        settings.dry.multiplier = between(0.1, 1.5);
        settings.dry.base = between(1.0, 2.5);
        settings.dry.allowed_length = between(0.0, 4.0) as i32;
        settings.dry.penalty_last_n = between(-1.0, 40.0) as i32;
    }
    if choices[10] {
        settings.repeat_penalty = between(0.8, 2.0);
    }
    if choices[11] {
        settings.presence_penalty = between(-1.0, 2.0);
        settings.frequency_penalty = between(-0.5, 1.0);
    }
    settings.repeat_last_n = between(-1.0, 80.0) as i32;
    settings.penalize_nl = choices[12];
    if choices[13] {
        let strength = between(-4.0, 4.0);
        settings.logit_bias = vec![(0, strength), (1, f32::NEG_INFINITY), (3, -strength)];
    }
    settings
}

/// Random logits for `n` tokens: like a model's, with many ties, or with NaN and banned tokens.
fn any_logits(rng: &mut Rng, n: usize) -> Vec<f32> {
    let mut logits = rng.logits(n);
    match rng.below(4) {
        0 => logits.iter_mut().for_each(|logit| *logit = logit.round()),
        1 => {
            for (token, logit) in logits.iter_mut().enumerate().skip(2) {
                match (token * 7919) % 11 {
                    0 => *logit = f32::NAN,
                    1 | 2 => *logit = f32::NEG_INFINITY,
                    _ => {}
                }
            }
        }
        _ => {}
    }
    logits
}

fn any_history(rng: &mut Rng, n: usize) -> Vec<Token> {
    let different = 1 + rng.below(n.min(12));
    (0..rng.below(90)).map(|_| rng.below(different) as Token).collect()
}

#[test]
fn random_chains_match_the_reference() {
    let mut rng = Rng::new(2024);
    for round in 0..4000 {
        let n = *rng.pick(&[4, 9, 50, 300, 1500]);
        let (mut settings, logits, history) =
            (any_settings(&mut rng), any_logits(&mut rng, n), any_history(&mut rng, n));
        if round % 2 == 1 {
            settings.stages = (0..rng.below(14)).map(|_| *rng.pick(&STAGES)).collect();
        }
        let expected = reference::distribution(&settings, &logits, &history, true, 0.0, &|_| true);
        let what = format!("round {round}, {n} tokens: {settings:?}");
        assert_close(&distribution(&settings, &logits, &history, None), &expected, &what);
    }
}

/// If the grammar forbids the first choice, the chain runs on the allowed tokens.
#[test]
fn random_chains_with_a_grammar_match_the_reference() {
    let (mut rng, mut second) = (Rng::new(99), 0);
    for round in 0..3000 {
        let n = *rng.pick(&[9, 50, 300, 1500]);
        let (mut settings, logits, history) =
            (any_settings(&mut rng), any_logits(&mut rng, n), any_history(&mut rng, n));
        if round % 2 == 1 {
            settings.stages = (0..rng.below(14)).map(|_| *rng.pick(&STAGES)).collect();
        }
        let share = *rng.pick(&[0.005, 0.1, 0.7]);
        let usable = |token: usize| token != 1 && logits[token] > f32::NEG_INFINITY;
        let mut allowed: Vec<Token> = (0..n).filter(|_| rng.unit() < share).map(|token| token as Token).collect();
        allowed.extend((2..n).rev().find(|token| usable(*token)).map(|token| token as Token));
        let mut sampler = Sampler::build(&settings, &FakeVocabulary::new(n), Option::<AllowList>::None).unwrap();
        let first = sampler.sample(&mut logits.clone(), &history, 3).unwrap();
        let allows = |token: Token| allowed.contains(&token);
        let lets_through: &dyn Fn(Token) -> bool = if allows(first) { &|_| true } else { &allows };
        second += usize::from(!allows(first));
        let expected = reference::distribution(&settings, &logits, &history, true, 0.0, lets_through);
        let what = format!("round {round}, {n} tokens, {} allowed: {settings:?}", allowed.len());
        let found = distribution(&settings, &logits, &history, Some(AllowList::new(allowed.iter().copied())));
        assert_close(&found, &expected, &what);
    }
    assert!(second > 500, "the grammar forbade only {second} first choices");
}

/// The chain always runs on the allowed tokens. Without a grammar, the distribution is the one that tokens are drawn
/// from.
#[test]
fn constrained_distribution_matches_the_reference() {
    let mut rng = Rng::new(123);
    for round in 0..3000 {
        let n = *rng.pick(&[9, 50, 300, 1500]);
        let (mut settings, logits, history) =
            (any_settings(&mut rng), any_logits(&mut rng, n), any_history(&mut rng, n));
        if round % 2 == 1 {
            settings.stages = (0..rng.below(14)).map(|_| *rng.pick(&STAGES)).collect();
        }
        if round % 5 == 0 {
            settings.mirostat = *rng.pick(&[MirostatVersion::V1, MirostatVersion::V2]);
        } else if round % 7 == 0 {
            settings.temperature = 0.0;
        }
        let mu = 2.0 * f64::from(settings.mirostat_tau);
        let usable = |token: usize| token != 1 && logits[token] > f32::NEG_INFINITY;
        let guided = rng.below(3) > 0;
        let share = if guided { *rng.pick(&[0.005, 0.1, 0.7]) } else { 1.0 };
        let mut allowed: Vec<Token> = (0..n).filter(|_| rng.unit() < share).map(|token| token as Token).collect();
        allowed.extend((2..n).rev().find(|token| usable(*token)).map(|token| token as Token));
        let expected =
            reference::distribution(&settings, &logits, &history, true, mu, &|token| allowed.contains(&token));
        let grammar = guided.then(|| AllowList::new(allowed.iter().copied()));
        let mut sampler = Sampler::build(&settings, &FakeVocabulary::new(n), grammar).unwrap();
        let (mut row, mut found) = (logits.clone(), vec![0.0; n]);
        sampler
            .constrained_distribution(&mut row, &history, 3)
            .unwrap()
            .iter()
            .for_each(|item| found[item.id as usize] = f64::from(item.p));
        assert!(row.iter().zip(&logits).all(|(a, b)| a.to_bits() == b.to_bits()), "the logits are restored");
        assert_close(&found, &expected, &format!("round {round}, {n} tokens, {} allowed: {settings:?}", allowed.len()));
        if !guided {
            let drawn_from = sampler.distribution(&mut row, &history, 3).unwrap();
            assert!(drawn_from.iter().all(|item| f64::from(item.p) == found[item.id as usize]), "{settings:?}");
        }
    }
}

#[test]
fn mirostat_matches_the_reference() {
    let mut rng = Rng::new(7);
    for round in 0..600 {
        let n = *rng.pick(&[9, 300, 1500]);
        let (mut settings, logits, history) =
            (any_settings(&mut rng), any_logits(&mut rng, n), any_history(&mut rng, n));
        settings.mirostat = *rng.pick(&[MirostatVersion::V1, MirostatVersion::V2]);
        settings.mirostat_tau = (0.5 + 4.0 * rng.unit()) as f32;
        let mu = 2.0 * f64::from(settings.mirostat_tau);
        let expected = reference::distribution(&settings, &logits, &history, true, mu, &|_| true);
        let what = format!("round {round}, {n} tokens: {settings:?}");
        assert_close(&distribution(&settings, &logits, &history, None), &expected, &what);
    }
}

#[test]
fn temperature_0_takes_the_argmax_after_biases_and_penalties() {
    let mut rng = Rng::new(70);
    for round in 0..1000 {
        let n = *rng.pick(&[4, 50, 1500]);
        let (mut settings, logits, history) =
            (any_settings(&mut rng), any_logits(&mut rng, n), any_history(&mut rng, n));
        settings.temperature = *rng.pick(&[0.0, -1.0]);
        settings.mirostat = *rng.pick(&[MirostatVersion::Off, MirostatVersion::V1, MirostatVersion::V2]);
        settings.dynatemp_range = 0.0;
        if round % 2 == 1 {
            settings.stages = (0..rng.below(14)).map(|_| *rng.pick(&STAGES)).collect();
        }
        let expected = reference::distribution(&settings, &logits, &history, true, 0.0, &|_| true);
        assert_close(&distribution(&settings, &logits, &history, None), &expected, &format!("{round}: {settings:?}"));
        let mut sampler = Sampler::build(&settings, &FakeVocabulary::new(n), Option::<AllowList>::None).unwrap();
        let sampled = sampler.sample(&mut logits.clone(), &history, round).unwrap();
        assert_eq!(expected[sampled as usize], 1.0, "round {round}");
    }
}

/// Small examples, worked out by hand, where the order of the stages changes the result.
#[test]
fn stages_run_in_the_requested_order() {
    let p = [0.4_f32, 0.3, 0.2, 0.1];
    let logits: Vec<f32> = p.iter().map(|p| p.ln()).collect();
    let check = |stages: &[Stage], settings: &SamplingSettings, history: &[Token], expected: [f64; 4]| {
        let settings = SamplingSettings { stages: stages.to_vec(), ..settings.clone() };
        assert_close(&distribution(&settings, &logits, history, None), &expected, &format!("{stages:?}"));
    };
    // At temperature 0.5 the probabilities are 16 : 9 : 4 : 1, so two tokens reach 0.8. At temperature 1, three do.
    let warm = SamplingSettings { temperature: 0.5, top_p: 0.8, ..plain() };
    check(&[Stage::Temperature, Stage::TopP], &warm, &[], [16.0 / 25.0, 9.0 / 25.0, 0.0, 0.0]);
    check(&[Stage::TopP, Stage::Temperature], &warm, &[], [16.0 / 29.0, 9.0 / 29.0, 4.0 / 29.0, 0.0]);
    // A setting whose stage is not in the chain has no effect.
    check(&[Stage::Temperature], &warm, &[], [16.0 / 30.0, 9.0 / 30.0, 4.0 / 30.0, 1.0 / 30.0]);
    check(&[], &warm, &[], [0.4, 0.3, 0.2, 0.1]);
    // A presence penalty of ln 4 divides token 0's weight by 4: 1 : 3 : 2 : 1.
    let absent = SamplingSettings { presence_penalty: 4.0_f32.ln(), top_k: 2, repeat_last_n: 64, ..plain() };
    check(&[Stage::Penalties, Stage::TopK], &absent, &[0], [0.0, 3.0 / 5.0, 2.0 / 5.0, 0.0]);
    check(&[Stage::TopK, Stage::Penalties], &absent, &[0], [1.0 / 4.0, 3.0 / 4.0, 0.0, 0.0]);
    // XTC after top_k 2 sees two top choices and keeps the second. Before top_k it sees three and keeps the third.
    let xtc = SamplingSettings { xtc_probability: 1.0, xtc_threshold: 0.15, top_k: 2, ..plain() };
    check(&[Stage::TopK, Stage::Xtc], &xtc, &[], [0.0, 1.0, 0.0, 0.0]);
    check(&[Stage::Xtc, Stage::TopK], &xtc, &[], [0.0, 0.0, 2.0 / 3.0, 1.0 / 3.0]);
}

#[test]
fn biases_apply_before_all_stages() {
    let logits = [0.0, 1.0, 2.0, 3.0];
    let settings =
        SamplingSettings { logit_bias: vec![(0, 10.0), (1, f32::NEG_INFINITY), (3, -5.0)], top_k: 2, ..plain() };
    let (a, b) = (10.0_f64.exp(), 2.0_f64.exp());
    assert_close(&distribution(&settings, &logits, &[], None), &[a / (a + b), 0.0, b / (a + b), 0.0], "biases");
    let infinite = [f32::INFINITY, f32::INFINITY, 2.0, 3.0];
    let banned = SamplingSettings { logit_bias: vec![(0, f32::NEG_INFINITY), (9, 1.0)], ..plain() };
    assert_close(
        &distribution(&banned, &infinite, &[], None),
        &[0.0, 1.0, 0.0, 0.0],
        "a ban also applies to a logit of +inf",
    );
}
