use super::super::blocks::{BlockScratch, Blocks};
use super::super::candidates::Candidates;
use super::super::oracle::Rng;
use super::super::settings::{self, Settings};
use super::Mirostat;
use crate::llama::Token;

fn mirostat(version: settings::Mirostat, n_vocab: usize) -> Mirostat {
    let settings = Settings { mirostat: version, mirostat_tau: 3.0, mirostat_eta: 0.25, ..Settings::default() };
    Mirostat::new(&settings, n_vocab).unwrap()
}

/// The tokens that are left, best first; the same for row and list.
fn left(version: settings::Mirostat, mu: f32, logits: &[f32]) -> Vec<Token> {
    let mirostat = mirostat(version, logits.len());
    let (mut list, mut scratch) = (Candidates::default(), BlockScratch::default());
    let mut blocks = Blocks::survey(logits, &mut scratch);
    let ids = |list: &mut Candidates| {
        list.sort();
        list.items().iter().map(|item| item.id).collect::<Vec<_>>()
    };
    blocks.all(&mut list);
    mirostat.cut(mu, &mut list);
    let from_list = ids(&mut list);
    mirostat.cut_row(mu, &mut blocks, &mut list);
    assert_eq!(ids(&mut list), from_list, "row and list");
    from_list
}

#[test]
fn version_2_cuts_at_the_surprise_mu() {
    // Surprises of 1, 2, 3, 4 and 4 bits.
    let logits: Vec<f32> = [0.0625_f32, 0.5, 0.125, 0.25, 0.0625].iter().map(|p| p.ln()).collect();
    for (mu, expected) in [(-1.0, 1), (0.5, 1), (1.01, 1), (1.99, 1), (2.01, 2), (3.01, 3), (4.01, 5), (100.0, 5)] {
        assert_eq!(left(settings::Mirostat::V2, mu, &logits), [1, 3, 2, 0, 4][..expected], "mu = {mu}");
    }
}

/// Version 1 on Zipf's law: the exponent is estimated exactly, so k has a closed form.
#[test]
fn version_1_estimates_the_exponent() {
    let n = 5000;
    for (s, mu) in [(1.5_f64, 4.0_f64), (1.5, 6.0), (1.1, 5.0), (1.1, 9.0), (2.0, 3.0), (0.8, 7.0)] {
        let logits: Vec<f32> = (1..=n).map(|rank| (-s * f64::from(rank).ln()) as f32).collect();
        let e = s - 1.0;
        let k = ((e * mu.exp2()) / (1.0 - f64::from(n).powf(-e))).powf(1.0 / s);
        let found = left(settings::Mirostat::V1, mu as f32, &logits).len() as f64;
        assert!((found - k.clamp(1.0, f64::from(n)).floor()).abs() <= 1.0, "s = {s}, mu = {mu}: {found}, expected {k}");
    }
}

#[test]
fn version_1_survives_what_has_no_exponent() {
    for logits in [vec![1.0], vec![2.0; 300], vec![f32::INFINITY, 1.0, 0.0], vec![5.0, f32::NEG_INFINITY, 1.0]] {
        for mu in [-100.0, 0.0, 6.0, 1e30, f32::NAN] {
            assert!(!left(settings::Mirostat::V1, mu, &logits).is_empty());
            assert!(!left(settings::Mirostat::V2, mu, &logits).is_empty());
        }
    }
}

#[test]
fn mu_learns_from_the_surprise() {
    let mirostat = mirostat(settings::Mirostat::V2, 10);
    assert_eq!(mirostat.initial(), 6.0);
    // Of 1 bit, 3 bits, 5 bits, with tau 3 and eta 1/4.
    for (p, expected) in [(0.5, 6.5), (0.125, 6.0), (0.03125, 5.5), (1.0, 6.75)] {
        assert_eq!(mirostat.next(6.0, p), expected, "p = {p}");
    }
    assert!(Mirostat::new(&Settings::default(), 10).is_none());
}

/// The sense of it: the average surprise of a long text comes close to tau.
#[test]
fn the_average_surprise_comes_close_to_tau() {
    use super::super::oracle::{Allow, Toy, plain};
    use super::super::sampler::Sampler;
    for version in [settings::Mirostat::V1, settings::Mirostat::V2] {
        let settings = Settings { mirostat: version, mirostat_tau: 3.0, mirostat_eta: 0.1, seed: 5, ..plain() };
        let mut sampler = Sampler::<Allow>::build(&settings, &Toy::new(2000), None).unwrap();
        let (mut rng, mut sum, n) = (Rng::new(2), 0.0, 3000);
        for position in 0..n {
            let mut logits: Vec<f32> = (0..2000).map(|_| (2.0 * rng.normal()) as f32).collect();
            let token = sampler.pick(&mut logits, &[], position).unwrap();
            let left = sampler.distribution(&mut logits, &[], position).unwrap();
            let p = left.iter().find(|item| item.id == token).unwrap().p;
            sampler.accept(token).unwrap();
            sum -= f64::from(p).log2();
        }
        assert!((sum / n as f64 - 3.0).abs() < 0.1, "{version:?}: {}", sum / n as f64);
    }
}
