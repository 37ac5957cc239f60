use super::super::blocks::{BlockMaxima, BlockScratch};
use super::super::candidates::Candidates;
use super::super::settings::{MirostatVersion, SamplingSettings};
use super::{AdaptiveP, Mirostat};
use crate::tests::reference::Rng;
use foredraft_base::{Token, TokenData};

fn mirostat(version: MirostatVersion, n_vocab: usize) -> Mirostat {
    let settings =
        SamplingSettings { mirostat: version, mirostat_tau: 3.0, mirostat_eta: 0.25, ..SamplingSettings::default() };
    Mirostat::new(&settings, n_vocab).unwrap()
}

/// The remaining tokens, best first. Asserts that row and list give the same.
fn left(version: MirostatVersion, mu: f32, logits: &[f32]) -> Vec<Token> {
    let mirostat = mirostat(version, logits.len());
    let (mut list, mut scratch) = (Candidates::default(), BlockScratch::default());
    let mut blocks = BlockMaxima::scan(logits, &mut scratch);
    let ids = |list: &mut Candidates| {
        list.sort();
        list.items().iter().map(|item| item.id).collect::<Vec<_>>()
    };
    blocks.list_all(&mut list);
    mirostat.truncate(mu, &mut list);
    let from_list = ids(&mut list);
    mirostat.truncate_row(mu, &mut blocks, &mut list);
    assert_eq!(ids(&mut list), from_list, "row and list");
    from_list
}

#[test]
fn mirostat_v2_truncates_at_surprise_mu() {
    // Surprises of 1, 2, 3, 4 and 4 bits.
    let logits: Vec<f32> = [0.0625_f32, 0.5, 0.125, 0.25, 0.0625].iter().map(|p| p.ln()).collect();
    for (mu, expected) in [(-1.0, 1), (0.5, 1), (1.01, 1), (1.99, 1), (2.01, 2), (3.01, 3), (4.01, 5), (100.0, 5)] {
        assert_eq!(left(MirostatVersion::V2, mu, &logits), [1, 3, 2, 0, 4][..expected], "mu = {mu}");
    }
}

/// With Zipf's law the exponent is estimated exactly, so k has a closed form.
#[test]
fn mirostat_v1_estimates_the_exponent() {
    let n = 5000;
    for (s, mu) in [(1.5_f64, 4.0_f64), (1.5, 6.0), (1.1, 5.0), (1.1, 9.0), (2.0, 3.0), (0.8, 7.0)] {
        let logits: Vec<f32> = (1..=n).map(|rank| (-s * f64::from(rank).ln()) as f32).collect();
        let e = s - 1.0;
        let k = ((e * mu.exp2()) / (1.0 - f64::from(n).powf(-e))).powf(1.0 / s);
        let found = left(MirostatVersion::V1, mu as f32, &logits).len() as f64;
        assert!((found - k.clamp(1.0, f64::from(n)).floor()).abs() <= 1.0, "s = {s}, mu = {mu}: {found}, expected {k}");
    }
}

#[test]
fn mirostat_keeps_a_token_when_no_exponent_exists() {
    for logits in [vec![1.0], vec![2.0; 300], vec![f32::INFINITY, 1.0, 0.0], vec![5.0, f32::NEG_INFINITY, 1.0]] {
        for mu in [-100.0, 0.0, 6.0, 1e30, f32::NAN] {
            assert!(!left(MirostatVersion::V1, mu, &logits).is_empty());
            assert!(!left(MirostatVersion::V2, mu, &logits).is_empty());
        }
    }
}

#[test]
fn mirostat_updates_mu_by_the_surprise() {
    let mirostat = mirostat(MirostatVersion::V2, 10);
    assert_eq!(mirostat.initial(), 6.0);
    // Surprises of 1 bit, 3 bits, 5 bits and 0 bits, with tau 3 and eta 1/4.
    for (p, expected) in [(0.5, 6.5), (0.125, 6.0), (0.03125, 5.5), (1.0, 6.75)] {
        assert_eq!(mirostat.next(6.0, p), expected, "p = {p}");
    }
    assert!(Mirostat::new(&SamplingSettings::default(), 10).is_none());
}

/// Mirostat's purpose: the average surprise of a long completion is close to tau.
#[test]
fn mirostat_average_surprise_approaches_tau() {
    use super::super::sampler::Sampler;
    use crate::tests::fakes::{FakeVocabulary, plain};
    use crate::tests::reference::AllowList;
    for version in [MirostatVersion::V1, MirostatVersion::V2] {
        let settings = SamplingSettings { mirostat: version, mirostat_tau: 3.0, mirostat_eta: 0.1, seed: 5, ..plain() };
        let mut sampler = Sampler::<AllowList>::build(&settings, &FakeVocabulary::new(2000), None).unwrap();
        let (mut rng, mut sum, n) = (Rng::new(2), 0.0, 3000);
        for position in 0..n {
            let mut logits: Vec<f32> = (0..2000).map(|_| (2.0 * rng.normal()) as f32).collect();
            let token = sampler.sample(&mut logits, &[], position).unwrap();
            let left = sampler.distribution(&mut logits, &[], position).unwrap();
            let p = left.iter().find(|item| item.id == token).unwrap().p;
            sampler.accept(token).unwrap();
            sum -= f64::from(p).log2();
        }
        assert!((sum / n as f64 - 3.0).abs() < 0.1, "{version:?}: {}", sum / n as f64);
    }
}

fn stage(target: f32, decay: f32) -> Option<AdaptiveP> {
    AdaptiveP::new(&SamplingSettings { adaptive_target: target, adaptive_decay: decay, ..SamplingSettings::default() })
}

#[test]
fn adaptive_p_with_a_negative_target_is_off() {
    assert_eq!(stage(-1.0, 0.9), None);
    assert!(stage(0.0, 0.9).is_some());
}

#[test]
fn adaptive_p_state_is_the_moving_average_of_accepted_tokens() {
    let stage = stage(0.5, 0.75).expect("on");
    assert_eq!(stage.initial(), 0.5);
    assert_eq!(stage.next(0.5, 0.1), 0.75 * 0.5 + 0.25 * 0.1);
    // With a constant probability the average converges to it.
    let mean = (0..100).fold(0.5, |mean, _| stage.next(mean, 0.125));
    assert!((mean - 0.125).abs() < 1e-6, "{mean}");
}

#[test]
fn adaptive_p_logits_fall_with_the_distance_from_the_target() {
    let probabilities = [0.5_f32, 0.3, 0.15, 0.05];
    // (settings, mean so far, the target that follows)
    for (target, mean, moved) in [(0.3, 0.3, 0.3), (0.3, 0.4, 0.2), (0.3, 0.9, 0.0), (0.9, 0.1, 1.0)] {
        let mut list = Candidates::default();
        list.refill(true, |items| {
            items.extend((0..).zip(probabilities).map(|(id, p)| TokenData { id, logit: p.ln(), p: 0.0 }));
        });
        let mut before = Vec::new();
        stage(target, 0.9).expect("on").apply(mean, &mut list, &mut before);
        for (i, p) in probabilities.iter().enumerate() {
            let x = (f64::from(*p) - moved).abs() / 0.3;
            let expected = 5.0 - 10.0 * x * x / (1.0 + x);
            let found = f64::from(list.items()[i].logit);
            assert!((found - expected).abs() < 1e-5, "{target} {mean}: {found}, not {expected}");
            assert_eq!(before[i].0, i as i32);
            assert!((before[i].1 - p).abs() < 1e-6);
        }
    }
}
