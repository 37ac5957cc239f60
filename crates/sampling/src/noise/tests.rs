use super::{BLOCK, GumbelNoise, NoisyArgmax, hash, stream, uniform, unit};
use crate::tests::reference::{Rng, chi_square};
use foredraft_base::Token;

/// Maps E = exp(-G) to one of `n` cells that are equally likely if E is exponential.
fn cell(gumbel: f64, n: usize) -> usize {
    let u = (-(-gumbel).exp()).exp();
    ((u * n as f64) as usize).min(n - 1)
}

fn assert_uniform(what: &str, n: usize, cells: impl Iterator<Item = usize>) {
    let mut counts = vec![0; n];
    cells.for_each(|cell| counts[cell] += 1);
    let (statistic, bound) = chi_square(&counts, &vec![1.0 / n as f64; n]);
    assert!(statistic < bound, "{what}: {statistic} is over {bound}");
}

/// Outputs of the published SplitMix64 for the seeds 1234567 and 0.
#[test]
fn generator_is_splitmix64() {
    let first: Vec<u64> = (0..5).map(|counter| hash(1_234_567, counter)).collect();
    let published = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
        4_593_380_528_125_082_431,
        16_408_922_859_458_223_821,
    ];
    assert_eq!(first, published);
    assert_eq!(hash(0, 0), 0xe220_a839_7b1d_cdaf);
}

#[test]
fn unit_is_strictly_between_0_and_1() {
    for bits in [0, 1, 1 << 11, 1 << 12, u64::MAX, u64::MAX - (1 << 12)] {
        let u = unit(bits);
        assert!(u > 0.0 && u < 1.0 && (-u.ln()).is_finite() && -u.ln() > 0.0, "{bits}: {u}");
    }
}

#[test]
fn noise_is_gumbel_distributed_over_tokens_positions_and_seeds() {
    let at = |seed, position, token| GumbelNoise::new(seed, position).gumbel(token);
    assert_uniform("tokens", 1000, (0..200_000).map(|token| cell(at(1, 7, token), 1000)));
    assert_uniform("positions", 1000, (0..200_000).map(|position| cell(at(1, position, 42), 1000)));
    assert_uniform("seeds", 1000, (0..200_000).map(|seed| cell(at(seed, 3, 42), 1000)));
    assert_uniform("chances", 1000, (0..200_000).map(|p| (GumbelNoise::new(9, p).stage_uniform() * 1000.0) as usize));
}

/// Far into the tail, where the shared hash of a block determines the largest noise.
#[test]
fn upper_tail_is_gumbel_distributed() {
    let n = 4_000_000;
    let values: Vec<f64> = (0..n).map(|token| GumbelNoise::new(5, 5).gumbel(token)).collect();
    for least in [2.0_f64, 5.0, 8.0, 11.0] {
        let expected = f64::from(n) * (1.0 - (-(-least).exp()).exp());
        let count = values.iter().filter(|value| **value > least).count() as f64;
        assert!((count - expected).abs() < 5.0 * expected.sqrt(), "G > {least}: {count}, expected {expected}");
    }
}

/// Pairs fall into the cells of a square uniformly.
#[test]
fn noise_of_neighbouring_tokens_is_uncorrelated() {
    let at = |seed, position, token| cell(GumbelNoise::new(seed, position).gumbel(token), 16);
    /// Seed, position and token of both of a pair.
    type Pair = [(u32, usize, Token); 2];
    type Case = (&'static str, fn(u32) -> Pair);
    let pairs: [Case; 6] = [
        ("tokens", |i| [(1, 0, i as Token), (1, 0, i as Token + 1)]),
        ("tokens a block apart", |i| [(1, 0, i as Token), (1, 0, (i as usize + BLOCK) as Token)]),
        ("positions", |i| [(1, i as usize, 9), (1, i as usize + 1, 9)]),
        ("positions and tokens", |i| [(1, i as usize, 9), (1, i as usize + 1, 10)]),
        ("seeds", |i| [(i, 2, 9), (i + 1, 2, 9)]),
        ("seed and position", |i| [(i, 2, 9), (2, i as usize, 9)]),
    ];
    for (what, pair) in pairs {
        let cells = (10..150_010).map(|i| {
            let [a, b] = pair(i);
            at(a.0, a.1, a.2) * 16 + at(b.0, b.1, b.2)
        });
        assert_uniform(what, 256, cells);
    }
}

/// The index is uniform and independent of the noise's size.
#[test]
fn index_of_a_blocks_largest_noise_is_uniform() {
    let cells = (0..200_000).map(|block| {
        let shared = GumbelNoise::new(3, 1).block_above(block, f64::NEG_INFINITY).unwrap();
        let half = usize::from(shared.bound() > (BLOCK as f64).ln() - std::f64::consts::LN_2.ln());
        half * BLOCK + shared.index
    });
    assert_uniform("index and size", 2 * BLOCK, cells);
}

#[test]
fn block_bound_is_its_largest_noise() {
    for position in 0..200 {
        let noise = GumbelNoise::new(11, position);
        let shared = noise.block_above(position, f64::NEG_INFINITY).unwrap();
        let tokens = position * BLOCK..(position + 1) * BLOCK;
        let all: Vec<f64> = tokens.map(|token| noise.gumbel(token as Token)).collect();
        let largest = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(shared.bound(), largest);
        assert_eq!(all[shared.index], largest);
    }
}

#[test]
fn block_is_ruled_out_only_if_it_cannot_win() {
    let (mut ruled_out, mut kept) = (0, 0);
    for position in 0..20_000 {
        let noise = GumbelNoise::new(2, position);
        let bound = noise.block_above(1, f64::NEG_INFINITY).unwrap().bound();
        for lead in [-3.0, 0.0, 1.0, 4.0, 5.0, 6.0, 9.0, 14.0, 40.0, 90.0, f64::INFINITY, bound, bound - 1e-7] {
            match noise.block_above(1, lead) {
                None => {
                    assert!(bound <= lead, "ruled out at {lead} with {bound}");
                    ruled_out += 1;
                }
                Some(_) => kept += 1,
            }
        }
    }
    assert!(ruled_out > 100_000 && kept > 50_000, "{ruled_out} and {kept}: both cases must occur");
}

/// A seed must give the same output in every version, so these values must not change. They were computed by another
/// program from the definition in the module's documentation. The last token has its block's largest noise.
#[test]
fn noise_of_a_seed_never_changes() {
    let expected = [
        (0, 0, 0, -0.014475200),
        (0, 0, 1, -0.293572492),
        (42, 0, 1000, 2.131488077),
        (42, 1, 1000, 1.027280768),
        (u32::MAX, 99999, 128255, 1.148743126),
        (7, 3, 546, 5.889598216),
    ];
    for (seed, position, token, gumbel) in expected {
        let value: f64 = GumbelNoise::new(seed, position).gumbel(token);
        assert!((value - gumbel).abs() < 1e-9, "seed {seed}, position {position}, token {token}: {value}");
    }
}

#[test]
fn argmax_takes_the_best_score_and_the_lowest_token_among_equals() {
    let mut best = NoisyArgmax::new();
    assert_eq!(best.token(), None);
    best.offer(f64::NEG_INFINITY, 3);
    assert_eq!(best.token(), None, "-inf is no score");
    for (score, token, winner) in [(1.0, 7, 7), (1.0, 9, 7), (1.0, 4, 4), (0.5, 1, 4), (f64::NAN, 0, 4), (2.0, 8, 8)] {
        best.offer(score, token);
        assert_eq!(best.token(), Some(winner));
    }
}

/// Each token wins with its probability.
#[test]
fn noisy_argmax_samples_the_distribution() {
    let mut rng = Rng::new(4);
    let weights: Vec<f64> = (0..300).map(|i| rng.unit().powi(4) + if i % 100 == 0 { 3.0 } else { 0.0 }).collect();
    let total: f64 = weights.iter().sum();
    let mut counts = vec![0; weights.len()];
    for position in 0..100_000 {
        let noise = GumbelNoise::new(8, position);
        let score = |token: usize| weights[token].ln() + noise.gumbel(token as Token);
        let winner = (0..weights.len()).max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap();
        counts[winner] += 1;
    }
    let p: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
    let (statistic, bound) = chi_square(&counts, &p);
    assert!(statistic < bound, "{statistic} is over {bound}");
}

/// Streams of different domains, positions and seeds are independent of each other and of the noise.
#[test]
fn streams_are_independent() {
    let mut seen = std::collections::HashSet::new();
    for (seed, domain, position) in (0..40_000).map(|n| (n % 20, u64::from(n / 20 % 20), n as usize / 400)) {
        assert!(seen.insert(stream(seed, domain, position)));
    }
    let noise = GumbelNoise::new(3, 0);
    assert_eq!(noise.stages, hash(stream(3, 0, 0), 2), "domain 0 is the Gumbel noise");
    let pairs = |n: u64| (uniform(stream(3, 9, n as usize), 0), uniform(stream(3, 0, n as usize), 0));
    let both = |n: u64| (pairs(n).0 * 30.0) as usize * 30 + (pairs(n).1 * 30.0) as usize;
    assert_uniform("domains", 900, (0..200_000).map(both));
}
