use super::super::noise::GumbelNoise;
use super::super::{DrySettings, MirostatVersion, SamplingSettings};
use super::Sampler;
use crate::tests::fakes::{FakeVocabulary, plain};
use crate::tests::reference::{AllowList, Rng, chi_square};
use foredraft_base::Token;
use foredraft_base::error::Code;

fn sampler(settings: &SamplingSettings, n_vocab: usize) -> Sampler<AllowList> {
    Sampler::build(settings, &FakeVocabulary::new(n_vocab), None).unwrap()
}

fn guided(settings: &SamplingSettings, n_vocab: usize, allowed: impl IntoIterator<Item = Token>) -> Sampler<AllowList> {
    Sampler::build(settings, &FakeVocabulary::new(n_vocab), Some(AllowList::new(allowed))).unwrap()
}

/// Settings for one chain of each kind.
fn kinds() -> Vec<SamplingSettings> {
    let dry = DrySettings { multiplier: 0.8, ..SamplingSettings::default().dry };
    let biased = vec![(1, 2.0), (2, f32::NEG_INFINITY), (9, -3.0)];
    vec![
        SamplingSettings::default(),
        plain(),
        SamplingSettings { temperature: 0.0, ..SamplingSettings::default() },
        SamplingSettings {
            temperature: 0.0,
            logit_bias: biased.clone(),
            dry: dry.clone(),
            ..SamplingSettings::default()
        },
        SamplingSettings { logit_bias: biased, presence_penalty: 0.5, frequency_penalty: 0.2, dry, ..plain() },
        SamplingSettings { top_p: 0.9, ..plain() },
        SamplingSettings { min_p: 0.05, temperature: 1.3, ..plain() },
        SamplingSettings { tfs_z: 0.9, typical_p: 0.9, ..plain() },
        SamplingSettings { top_n_sigma: 1.5, xtc_probability: 0.5, ..plain() },
        SamplingSettings { dynatemp_range: 0.5, ..plain() },
        SamplingSettings { mirostat: MirostatVersion::V1, ..SamplingSettings::default() },
        SamplingSettings { mirostat: MirostatVersion::V2, ..SamplingSettings::default() },
    ]
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn logits_are_restored_bit_for_bit() {
    let mut rng = Rng::new(1);
    for settings in kinds() {
        for n in [12, 700] {
            let mut row = rng.logits(n);
            (row[3], row[4], row[5]) = (f32::from_bits(0x7fc0_1234), f32::INFINITY, -0.0);
            let before = bits(&row);
            let history: Vec<Token> = (0..200).map(|_| rng.below(n) as Token).collect();
            let mut sampler = guided(&settings, n, [7, 8]);
            sampler.sample(&mut row, &history, 0).unwrap();
            assert_eq!(bits(&row), before, "sample with {settings:?}");
            sampler.distribution(&mut row, &history, 1).unwrap();
            assert_eq!(bits(&row), before, "distribution with {settings:?}");
            guided(&settings, n, []).sample(&mut row, &history, 2).unwrap_err();
            assert_eq!(bits(&row), before, "failing with {settings:?}");
        }
    }
}

/// The same arguments give the same token, in any order of calls and from any sampler with these settings. So speculation
/// may sample ahead and discard the result.
#[test]
fn sampling_does_not_change_state() {
    let mut rng = Rng::new(2);
    let (n, history) = (500, vec![1, 2, 3, 1, 2]);
    let rows: Vec<Vec<f32>> = (0..30).map(|_| rng.logits(n)).collect();
    for settings in kinds() {
        let mut one = sampler(&settings, n);
        let in_order: Vec<Token> =
            (0..).zip(&rows).map(|(position, row)| one.sample(&mut row.clone(), &history, position).unwrap()).collect();
        for position in (0..rows.len()).rev() {
            one.distribution(&mut rows[position].clone(), &history[..2], 7).unwrap();
            assert_eq!(one.sample(&mut rows[position].clone(), &history, position).unwrap(), in_order[position]);
        }
        let mut other = sampler(&settings, n);
        assert_eq!(other.sample(&mut rows[20].clone(), &history, 20).unwrap(), in_order[20]);
    }
}

#[test]
fn samples_follow_the_distribution() {
    let mut rng = Rng::new(3);
    let (n, history) = (60, [1, 2, 3, 4, 1, 2]);
    for settings in kinds() {
        let mut row = rng.logits(n);
        row.iter_mut().for_each(|logit| *logit *= 0.5);
        let mut sampler = sampler(&settings, n);
        let (mut counts, mut sums) = (vec![0; n], vec![0.0; n]);
        let draws = 40_000;
        for position in 0..draws {
            counts[sampler.sample(&mut row, &history, position).unwrap() as usize] += 1;
            if settings.xtc_probability > 0.0 || position == 0 {
                let left = sampler.distribution(&mut row, &history, position).unwrap();
                left.iter().for_each(|item| sums[item.id as usize] += f64::from(item.p));
            }
        }
        let total: f64 = sums.iter().sum();
        let p: Vec<f64> = sums.iter().map(|sum| sum / total).collect();
        let (statistic, bound) = chi_square(&counts, &p);
        assert!(statistic < bound, "{statistic} is over {bound} with {settings:?}");
        assert!(
            counts.iter().zip(&p).all(|(count, p)| *count == 0 || *p > 0.0),
            "sampled a token outside the distribution: {settings:?}"
        );
    }
}

#[test]
fn seeds_and_positions_give_different_tokens() {
    let text = |seed| {
        let mut sampler = sampler(&SamplingSettings { seed, ..plain() }, 1000);
        (0..64).map(|position| sampler.sample(&mut vec![0.0; 1000], &[], position).unwrap()).collect::<Vec<_>>()
    };
    let texts: Vec<Vec<Token>> = [0, 1, 2, u32::MAX].map(text).to_vec();
    assert_eq!(text(1), texts[1]);
    for (i, a) in texts.iter().enumerate() {
        for b in &texts[i + 1..] {
            let equal = a.iter().zip(b).filter(|(a, b)| a == b).count();
            assert!(equal < 4, "{equal} of 64 tokens agree");
        }
        let mut different = a.clone();
        different.sort();
        different.dedup();
        assert!(different.len() > 55, "the positions repeat each other");
    }
}

#[test]
fn greedy_takes_the_lowest_token_among_equals() {
    let mut greedy = sampler(&SamplingSettings { temperature: 0.0, ..plain() }, 5);
    assert_eq!(greedy.sample(&mut [1.0, 3.0, 2.0, 3.0, 3.0], &[], 0).unwrap(), 1);
    let penalized = SamplingSettings { temperature: 0.0, repeat_penalty: 2.0, ..plain() };
    assert_eq!(sampler(&penalized, 5).sample(&mut [1.0, 3.0, 2.0, 3.0, 3.0], &[1, 1, 3], 0).unwrap(), 4);
    let only = sampler(&penalized, 5).distribution(&mut [1.0, 3.0, 2.0, 3.0, 3.0], &[1], 0).unwrap().to_vec();
    assert_eq!((only.len(), only[0].id, only[0].p), (1, 3, 1.0));
}

#[test]
fn nan_and_infinite_logits_are_sampled_correctly() {
    let strange = [
        vec![f32::NAN, 1.0, f32::NAN],
        vec![f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY],
        vec![f32::MAX, f32::MIN, 0.0],
        vec![f32::MIN, f32::MIN, f32::MIN],
        vec![1e-45, -1e-45, 0.0],
        vec![f32::NEG_INFINITY, f32::NAN, f32::MIN],
        vec![5.0],
    ];
    for settings in kinds() {
        for row in &strange {
            for history in [vec![], vec![0, 1, 2, 0, 1, 2], vec![-7, 1 << 30]] {
                let settings = SamplingSettings { logit_bias: vec![], ..settings.clone() };
                let mut sampler = sampler(&settings, row.len());
                for position in 0..20 {
                    let token = sampler.sample(&mut row.clone(), &history, position).unwrap();
                    assert!(row[token as usize] > f32::NEG_INFINITY, "{row:?}: {token}");
                    let left = sampler.distribution(&mut row.clone(), &history, position).unwrap();
                    assert!((left.iter().map(|item| item.p).sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}: {left:?}");
                    sampler.accept(token).unwrap();
                }
            }
        }
    }
}

#[test]
fn rows_of_another_length_than_the_vocabulary_are_accepted() {
    for settings in kinds() {
        for n in [3, 10, 600] {
            let mut sampler = sampler(&settings, 10);
            let token = sampler.sample(&mut vec![1.0; n], &[1, 2, 599], 0).unwrap();
            assert!((token as usize) < n);
        }
    }
}

#[test]
fn errors_distinguish_the_model_from_the_request() {
    for settings in kinds() {
        for row in [vec![], vec![f32::NAN; 4], vec![f32::NEG_INFINITY; 300]] {
            let error = sampler(&settings, 300).sample(&mut row.clone(), &[1], 0).unwrap_err();
            assert_eq!(error.code(), Code::ModelError, "{error}");
        }
        let bans = (0..6).map(|token| (token, f32::NEG_INFINITY)).collect();
        let banned = SamplingSettings { logit_bias: bans, ..settings.clone() };
        let error = sampler(&banned, 6).sample(&mut [1.0; 6], &[], 0).unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::InvalidRequest, "logit_bias: every token is banned"));
        assert_eq!(sampler(&banned, 6).constrained_distribution(&mut [1.0; 6], &[], 0).unwrap_err(), error);
        let refused = guided(&settings, 20, []).constrained_distribution(&mut [1.0; 20], &[], 5).unwrap_err();
        let error = guided(&settings, 20, []).sample(&mut [1.0; 20], &[], 5).unwrap_err();
        assert_eq!(refused, error);
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.message().starts_with("grammar: no token can follow"), "{error}");
    }
}

#[test]
fn first_choice_is_kept_if_the_grammar_allows_it() {
    let mut rng = Rng::new(8);
    for settings in kinds() {
        for position in 0..30 {
            let mut row = rng.logits(400);
            let free = sampler(&settings, 400).sample(&mut row, &[3, 4], position).unwrap();
            let mut with_grammar = guided(&settings, 400, [free, 11]);
            assert_eq!(with_grammar.sample(&mut row, &[3, 4], position).unwrap(), free);
            assert_eq!(with_grammar.grammar.as_ref().unwrap().filtered, 0, "no candidate needs filtering");
            let forbidden: Vec<Token> = (0..400).filter(|token| *token != free).collect();
            let mut without_it = guided(&settings, 400, forbidden.iter().copied());
            let second = without_it.sample(&mut row, &[3, 4], position).unwrap();
            assert!(forbidden.contains(&second), "the second choice is allowed");
        }
    }
}

/// Filtering the most probable tokens first gives the same result as filtering all, and is cheaper.
#[test]
fn grammar_filters_few_candidates() {
    let mut rng = Rng::new(81);
    for settings in [SamplingSettings::default(), SamplingSettings { temperature: 0.0, ..SamplingSettings::default() }]
    {
        let mut row = rng.logits(20_000);
        let first = sampler(&settings, 20_000).sample(&mut row, &[], 0).unwrap();
        let others = || (0..20_000).filter(|token| *token != first);
        let mut many = guided(&settings, 20_000, others());
        many.sample(&mut row, &[], 0).unwrap();
        let asked = many.grammar.as_ref().unwrap().filtered;
        assert!(asked <= 200, "filtered {asked} of 20000");
        // Only the least probable token is allowed, so all candidates must be filtered.
        let least = others().min_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])).unwrap();
        let mut few = guided(&settings, 20_000, [least]);
        assert_eq!(few.sample(&mut row, &[], 0).unwrap(), least);
    }
}

#[test]
fn accept_advances_the_grammar() {
    let mut sampler = guided(&plain(), 10, [2, 3]);
    sampler.accept(2).unwrap();
    sampler.accept(3).unwrap();
    assert_eq!(sampler.grammar.as_ref().unwrap().accepted, [2, 3]);
    assert_eq!(sampler.accept(4).unwrap_err().code(), Code::InvalidRequest);
}

#[test]
fn mirostat_state_changes_only_in_accept() {
    for mirostat in [MirostatVersion::V1, MirostatVersion::V2] {
        let settings = SamplingSettings { mirostat, mirostat_tau: 2.0, mirostat_eta: 0.5, ..plain() };
        let mut row = Rng::new(4).logits(300);
        let mut sampler = sampler(&settings, 300);
        let left = sampler.distribution(&mut row, &[], 0).unwrap().to_vec();
        for position in 0..40 {
            sampler.sample(&mut row, &[], position).unwrap();
        }
        assert_eq!(sampler.distribution(&mut row, &[], 0).unwrap(), left, "sampling does not change the state");
        let (token, p) = (left[1].id, f64::from(left[1].p));
        sampler.accept(token).unwrap();
        let expected = 4.0 - 0.5 * (-p.log2() - 2.0);
        assert!((f64::from(sampler.state) - expected).abs() < 1e-5, "{} and {expected}", sampler.state);
        let mu = sampler.state;
        sampler.sample(&mut row, &[], 1).unwrap();
        sampler.accept(299_999).unwrap();
        assert_eq!(sampler.state, mu, "a token that was not a candidate does not change the state");
    }
}

/// The completion's sampler reaches the state of a lookahead sampler from its tokens and their probabilities.
#[test]
fn accept_with_gives_the_state_of_the_sampler_that_looked_ahead() {
    for mirostat in [MirostatVersion::V1, MirostatVersion::V2] {
        let settings = SamplingSettings { mirostat, mirostat_tau: 2.0, mirostat_eta: 0.3, ..plain() };
        let mut rng = Rng::new(12);
        let mut own = guided(&settings, 300, 5..300);
        let mut ahead = own.for_draft(false);
        let mut history = Vec::new();
        for position in 0..20 {
            let mut row = rng.logits(300);
            let left = ahead.constrained_distribution(&mut row, &history, position).unwrap();
            assert!(left.iter().all(|item| item.id >= 5));
            let item = left[rng.below(left.len())];
            ahead.accept(item.id).unwrap();
            own.accept_with(item.id, item.p).unwrap();
            history.push(item.id);
            assert_eq!(own.state, ahead.state);
        }
        assert_ne!(own.state, 4.0);
        assert_eq!(own.grammar.as_ref().unwrap().accepted, history);
        assert!(own.accept_with(4, 0.5).is_err());
    }
}

#[test]
fn draft_sampler_samples_the_same_token_from_the_same_logits() {
    let mut rng = Rng::new(5);
    for settings in kinds() {
        let mut target = sampler(&settings, 800);
        let mut draft = target.for_draft(false);
        let mut history = vec![5, 6];
        for position in 0..60 {
            let mut row = rng.logits(800);
            let token = target.sample(&mut row, &history, position).unwrap();
            assert_eq!(draft.sample(&mut row, &history, position).unwrap(), token, "with {settings:?}");
            target.accept(token).unwrap();
            draft.accept(token).unwrap();
            history.push(token);
        }
    }
}

/// The state of mirostat and of the grammar are both copied.
#[test]
fn sync_from_restores_the_targets_state() {
    for mirostat in [MirostatVersion::V1, MirostatVersion::V2] {
        let settings = SamplingSettings { mirostat, mirostat_tau: 2.0, ..plain() };
        let mut row = Rng::new(6).logits(300);
        let mut target = guided(&settings, 300, 0..300);
        let mut draft = target.for_draft(false);
        for position in 0..30 {
            let likely = draft.sample(&mut row, &[], position + 1000).unwrap();
            draft.accept(likely).unwrap();
        }
        let token = target.sample(&mut row, &[], 0).unwrap();
        target.accept(token).unwrap();
        assert_ne!(draft.state, target.state);
        draft.sync_from(&target);
        assert_eq!(draft.grammar.as_ref().unwrap().accepted, target.grammar.as_ref().unwrap().accepted);
        let expected = target.distribution(&mut row, &[], 1).unwrap().to_vec();
        assert_eq!(draft.distribution(&mut row, &[], 1).unwrap(), expected);
    }
}

#[test]
fn greedy_draft_takes_the_argmax_of_the_same_penalized_logits() {
    for settings in kinds() {
        let mut row = Rng::new(7).logits(300);
        let likely =
            sampler(&SamplingSettings { temperature: 0.0, ..settings.clone() }, 300).sample(&mut row, &[], 0).unwrap();
        let history = [likely, likely, 3];
        let of_target = SamplingSettings { temperature: 0.0, mirostat: MirostatVersion::Off, ..settings.clone() };
        let expected = sampler(&of_target, 300).sample(&mut row, &history, 0).unwrap();
        let mut draft = sampler(&settings, 300).for_draft(true);
        for position in 0..5 {
            assert_eq!(draft.sample(&mut row, &history, position).unwrap(), expected, "{settings:?}");
            draft.accept(expected).unwrap();
        }
    }
}

/// Coupled draws from different distributions agree with probability Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)), which is
/// at least (1 - TV)/(1 + TV).
#[test]
fn coupled_draws_agree_at_the_theoretical_rate() {
    let mut rng = Rng::new(9);
    for round in 0..6 {
        let n = [3, 8, 40, 300, 300, 1000][round];
        let p: Vec<f32> = (0..n).map(|_| (1.5 * rng.normal()) as f32).collect();
        let noise = [0.3, 0.8, 1.0, 1.0, 2.0, 0.5][round];
        let q: Vec<f32> = p.iter().map(|logit| logit + (noise * rng.normal()) as f32).collect();
        let normal = |row: &[f32]| {
            let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            row.iter().map(|logit| f64::from(*logit).exp() / sum).collect::<Vec<_>>()
        };
        let (ps, qs) = (normal(&p), normal(&q));
        let ratio = |x: usize| (0..n).map(|y| (ps[y] / ps[x]).max(qs[y] / qs[x])).sum::<f64>();
        let expected: f64 = (0..n).map(|x| 1.0 / ratio(x)).sum();
        let distance: f64 = ps.iter().zip(&qs).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
        assert!(expected >= (1.0 - distance) / (1.0 + distance) - 1e-9);

        let mut target = sampler(&SamplingSettings { seed: round as u32, ..plain() }, n);
        let mut draft = target.for_draft(false);
        let draws = 30_000;
        let (mut row_p, mut row_q) = (p.clone(), q.clone());
        let agreed = (0..draws)
            .filter(|position| {
                target.sample(&mut row_p, &[], *position).unwrap() == draft.sample(&mut row_q, &[], *position).unwrap()
            })
            .count() as f64;
        let deviation = (expected * (1.0 - expected) * draws as f64).sqrt();
        let wanted = expected * draws as f64;
        assert!((agreed - wanted).abs() < 5.0 * deviation, "round {round}: {agreed} agreed, {wanted} expected");
    }
}

#[test]
fn sample_is_the_argmax_of_log_probability_plus_noise() {
    let mut rng = Rng::new(10);
    for settings in kinds().into_iter().filter(|settings| settings.temperature > 0.0) {
        for position in 0..40 {
            let mut row = rng.logits(900);
            let mut sampler = sampler(&settings, 900);
            let left = sampler.distribution(&mut row, &[1, 2], position).unwrap().to_vec();
            let noise = GumbelNoise::new(settings.seed, position);
            let score = |token: Token, p: f32| f64::from(p).ln() + noise.gumbel(token);
            let best = left.iter().max_by(|a, b| score(a.id, a.p).total_cmp(&score(b.id, b.p))).unwrap();
            assert_eq!(sampler.sample(&mut row, &[1, 2], position).unwrap(), best.id, "{settings:?}");
        }
    }
}
