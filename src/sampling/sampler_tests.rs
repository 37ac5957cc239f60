use super::super::noise::Noise;
use super::super::oracle::{Allow, Rng, Toy, chi_square, plain};
use super::super::{Dry, Mirostat, Settings};
use super::Sampler;
use crate::error::Code;
use crate::llama::Token;

fn sampler(settings: &Settings, n_vocab: usize) -> Sampler<Allow> {
    Sampler::build(settings, &Toy::new(n_vocab), None).unwrap()
}

fn guided(settings: &Settings, n_vocab: usize, allowed: impl IntoIterator<Item = Token>) -> Sampler<Allow> {
    Sampler::build(settings, &Toy::new(n_vocab), Some(Allow::new(allowed))).unwrap()
}

/// One of each kind of chain.
fn kinds() -> Vec<Settings> {
    let dry = Dry { multiplier: 0.8, ..Settings::default().dry };
    let biased = vec![(1, 2.0), (2, f32::NEG_INFINITY), (9, -3.0)];
    vec![
        Settings::default(),
        plain(),
        Settings { temperature: 0.0, ..Settings::default() },
        Settings { temperature: 0.0, logit_bias: biased.clone(), dry: dry.clone(), ..Settings::default() },
        Settings { logit_bias: biased, presence_penalty: 0.5, frequency_penalty: 0.2, dry, ..plain() },
        Settings { top_p: 0.9, ..plain() },
        Settings { min_p: 0.05, temperature: 1.3, ..plain() },
        Settings { tfs_z: 0.9, typical_p: 0.9, ..plain() },
        Settings { top_n_sigma: 1.5, xtc_probability: 0.5, ..plain() },
        Settings { dynatemp_range: 0.5, ..plain() },
        Settings { mirostat: Mirostat::V1, ..Settings::default() },
        Settings { mirostat: Mirostat::V2, ..Settings::default() },
    ]
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn the_row_is_put_back_bit_for_bit() {
    let mut rng = Rng::new(1);
    for settings in kinds() {
        for n in [12, 700] {
            let mut row = rng.logits(n);
            (row[3], row[4], row[5]) = (f32::from_bits(0x7fc0_1234), f32::INFINITY, -0.0);
            let before = bits(&row);
            let history: Vec<Token> = (0..200).map(|_| rng.below(n) as Token).collect();
            let mut sampler = guided(&settings, n, [7, 8]);
            sampler.pick(&mut row, &history, 0).unwrap();
            assert_eq!(bits(&row), before, "pick with {settings:?}");
            sampler.distribution(&mut row, &history, 1).unwrap();
            assert_eq!(bits(&row), before, "distribution with {settings:?}");
            guided(&settings, n, []).pick(&mut row, &history, 2).unwrap_err();
            assert_eq!(bits(&row), before, "failing with {settings:?}");
        }
    }
}

/// Asking changes nothing: the same question has the same answer, in any order of questions, from any sampler of these
/// settings. So speculation may look ahead and forget it.
#[test]
fn picking_has_no_memory() {
    let mut rng = Rng::new(2);
    let (n, history) = (500, vec![1, 2, 3, 1, 2]);
    let rows: Vec<Vec<f32>> = (0..30).map(|_| rng.logits(n)).collect();
    for settings in kinds() {
        let mut one = sampler(&settings, n);
        let in_order: Vec<Token> =
            (0..).zip(&rows).map(|(position, row)| one.pick(&mut row.clone(), &history, position).unwrap()).collect();
        for position in (0..rows.len()).rev() {
            one.distribution(&mut rows[position].clone(), &history[..2], 7).unwrap();
            assert_eq!(one.pick(&mut rows[position].clone(), &history, position).unwrap(), in_order[position]);
        }
        let mut other = sampler(&settings, n);
        assert_eq!(other.pick(&mut rows[20].clone(), &history, 20).unwrap(), in_order[20]);
    }
}

#[test]
fn picks_are_of_the_distribution() {
    let mut rng = Rng::new(3);
    let (n, history) = (60, [1, 2, 3, 4, 1, 2]);
    for settings in kinds() {
        let mut row = rng.logits(n);
        row.iter_mut().for_each(|logit| *logit *= 0.5);
        let mut sampler = sampler(&settings, n);
        let (mut counts, mut sums) = (vec![0; n], vec![0.0; n]);
        let draws = 40_000;
        for position in 0..draws {
            counts[sampler.pick(&mut row, &history, position).unwrap() as usize] += 1;
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
            "picked what is not left: {settings:?}"
        );
    }
}

#[test]
fn seeds_and_positions_give_other_texts() {
    let text = |seed| {
        let mut sampler = sampler(&Settings { seed, ..plain() }, 1000);
        (0..64).map(|position| sampler.pick(&mut vec![0.0; 1000], &[], position).unwrap()).collect::<Vec<_>>()
    };
    let texts: Vec<Vec<Token>> = [0, 1, 2, u32::MAX].map(text).to_vec();
    assert_eq!(text(1), texts[1]);
    for (i, a) in texts.iter().enumerate() {
        for b in &texts[i + 1..] {
            let equal = a.iter().zip(b).filter(|(a, b)| a == b).count();
            assert!(equal < 4, "{equal} of 64 tokens agree by chance");
        }
        let mut different = a.clone();
        different.sort();
        different.dedup();
        assert!(different.len() > 55, "the positions repeat each other");
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    let mut greedy = sampler(&Settings { temperature: 0.0, ..plain() }, 5);
    assert_eq!(greedy.pick(&mut [1.0, 3.0, 2.0, 3.0, 3.0], &[], 0).unwrap(), 1);
    let penalised = Settings { temperature: 0.0, repeat_penalty: 2.0, ..plain() };
    assert_eq!(sampler(&penalised, 5).pick(&mut [1.0, 3.0, 2.0, 3.0, 3.0], &[1, 1, 3], 0).unwrap(), 4);
    let only = sampler(&penalised, 5).distribution(&mut [1.0, 3.0, 2.0, 3.0, 3.0], &[1], 0).unwrap().to_vec();
    assert_eq!((only.len(), only[0].id, only[0].p), (1, 3, 1.0));
}

#[test]
fn strange_logits_neither_panic_nor_hang() {
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
                let settings = Settings { logit_bias: vec![], ..settings.clone() };
                let mut sampler = sampler(&settings, row.len());
                for position in 0..20 {
                    let token = sampler.pick(&mut row.clone(), &history, position).unwrap();
                    assert!(row[token as usize] > f32::NEG_INFINITY, "{row:?}: {token}");
                    let left = sampler.distribution(&mut row.clone(), &history, position).unwrap();
                    assert!((left.iter().map(|item| item.p).sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}: {left:?}");
                    sampler.accept(token).unwrap();
                }
            }
        }
    }
}

/// A row that is longer or shorter than the vocabulary said is taken as it is.
#[test]
fn the_rows_length_is_what_counts() {
    for settings in kinds() {
        for n in [3, 10, 600] {
            let mut sampler = sampler(&settings, 10);
            let token = sampler.pick(&mut vec![1.0; n], &[1, 2, 599], 0).unwrap();
            assert!((token as usize) < n);
        }
    }
}

#[test]
fn failures_say_whose_fault_it_is() {
    for settings in kinds() {
        for row in [vec![], vec![f32::NAN; 4], vec![f32::NEG_INFINITY; 300]] {
            let error = sampler(&settings, 300).pick(&mut row.clone(), &[1], 0).unwrap_err();
            assert_eq!(error.code(), Code::ModelError, "{error}");
        }
        let bans = (0..6).map(|token| (token, f32::NEG_INFINITY)).collect();
        let banned = Settings { logit_bias: bans, ..settings.clone() };
        let error = sampler(&banned, 6).pick(&mut [1.0; 6], &[], 0).unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::InvalidRequest, "logit_bias: every token is banned"));
        assert_eq!(sampler(&banned, 6).row(&mut [1.0; 6], &[], 0).unwrap_err(), error);
        let refused = guided(&settings, 20, []).row(&mut [1.0; 20], &[], 5).unwrap_err();
        let error = guided(&settings, 20, []).pick(&mut [1.0; 20], &[], 5).unwrap_err();
        assert_eq!(refused, error);
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.message().starts_with("grammar: no token can follow"), "{error}");
    }
}

#[test]
fn the_first_choice_is_taken_when_the_grammar_allows_it() {
    let mut rng = Rng::new(8);
    for settings in kinds() {
        for position in 0..30 {
            let mut row = rng.logits(400);
            let free = sampler(&settings, 400).pick(&mut row, &[3, 4], position).unwrap();
            let mut with_grammar = guided(&settings, 400, [free, 11]);
            assert_eq!(with_grammar.pick(&mut row, &[3, 4], position).unwrap(), free);
            assert_eq!(with_grammar.grammar.as_ref().unwrap().filtered, 0, "the candidates are not filtered for that");
            let forbidden: Vec<Token> = (0..400).filter(|token| *token != free).collect();
            let mut without_it = guided(&settings, 400, forbidden.iter().copied());
            let second = without_it.pick(&mut row, &[3, 4], position).unwrap();
            assert!(forbidden.contains(&second), "what is picked instead is allowed");
        }
    }
}

/// Asking the grammar about the most probable tokens first is no other result than asking about all, and cheaper.
#[test]
fn a_grammar_is_asked_about_few() {
    let mut rng = Rng::new(81);
    for settings in [Settings::default(), Settings { temperature: 0.0, ..Settings::default() }] {
        let mut row = rng.logits(20_000);
        let first = sampler(&settings, 20_000).pick(&mut row, &[], 0).unwrap();
        let others = || (0..20_000).filter(|token| *token != first);
        let mut many = guided(&settings, 20_000, others());
        many.pick(&mut row, &[], 0).unwrap();
        let asked = many.grammar.as_ref().unwrap().filtered;
        assert!(asked <= 200, "asked about {asked} of 20000");
        // Few are allowed, and none of the probable ones: all must be asked about.
        let least = others().min_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])).unwrap();
        let mut few = guided(&settings, 20_000, [least]);
        assert_eq!(few.pick(&mut row, &[], 0).unwrap(), least);
    }
}

#[test]
fn accepting_moves_the_grammar() {
    let mut sampler = guided(&plain(), 10, [2, 3]);
    sampler.accept(2).unwrap();
    sampler.accept(3).unwrap();
    assert_eq!(sampler.grammar.as_ref().unwrap().accepted, [2, 3]);
    assert_eq!(sampler.accept(4).unwrap_err().code(), Code::InvalidRequest);
}

#[test]
fn mirostat_learns_when_a_token_is_accepted_and_only_then() {
    for mirostat in [Mirostat::V1, Mirostat::V2] {
        let settings = Settings { mirostat, mirostat_tau: 2.0, mirostat_eta: 0.5, ..plain() };
        let mut row = Rng::new(4).logits(300);
        let mut sampler = sampler(&settings, 300);
        let left = sampler.distribution(&mut row, &[], 0).unwrap().to_vec();
        for position in 0..40 {
            sampler.pick(&mut row, &[], position).unwrap();
        }
        assert_eq!(sampler.distribution(&mut row, &[], 0).unwrap(), left, "not by picking");
        let (token, p) = (left[1].id, f64::from(left[1].p));
        sampler.accept(token).unwrap();
        let expected = 4.0 - 0.5 * (-p.log2() - 2.0);
        assert!((f64::from(sampler.state) - expected).abs() < 1e-5, "{} and {expected}", sampler.state);
        let mu = sampler.state;
        sampler.pick(&mut row, &[], 1).unwrap();
        sampler.accept(299_999).unwrap();
        assert_eq!(sampler.state, mu, "nothing from a token that was no candidate");
    }
}

/// A sampler that ran ahead can be left behind: told the probabilities, the text's own sampler comes to the same state.
#[test]
fn what_another_sampler_found_is_accepted_alike() {
    for mirostat in [Mirostat::V1, Mirostat::V2] {
        let settings = Settings { mirostat, mirostat_tau: 2.0, mirostat_eta: 0.3, ..plain() };
        let mut rng = Rng::new(12);
        let mut own = guided(&settings, 300, 5..300);
        let mut ahead = own.for_draft(false);
        let mut history = Vec::new();
        for position in 0..20 {
            let mut row = rng.logits(300);
            let left = ahead.row(&mut row, &history, position).unwrap();
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
fn a_draft_with_the_same_logits_picks_the_same() {
    let mut rng = Rng::new(5);
    for settings in kinds() {
        let mut target = sampler(&settings, 800);
        let mut draft = target.for_draft(false);
        let mut history = vec![5, 6];
        for position in 0..60 {
            let mut row = rng.logits(800);
            let token = target.pick(&mut row, &history, position).unwrap();
            assert_eq!(draft.pick(&mut row, &history, position).unwrap(), token, "with {settings:?}");
            target.accept(token).unwrap();
            draft.accept(token).unwrap();
            history.push(token);
        }
    }
}

/// A draft that went astray is brought back to the target's state, mirostat's and the grammar's.
#[test]
fn a_draft_can_be_brought_back() {
    for mirostat in [Mirostat::V1, Mirostat::V2] {
        let settings = Settings { mirostat, mirostat_tau: 2.0, ..plain() };
        let mut row = Rng::new(6).logits(300);
        let mut target = guided(&settings, 300, 0..300);
        let mut draft = target.for_draft(false);
        for position in 0..30 {
            let likely = draft.pick(&mut row, &[], position + 1000).unwrap();
            draft.accept(likely).unwrap();
        }
        let token = target.pick(&mut row, &[], 0).unwrap();
        target.accept(token).unwrap();
        assert_ne!(draft.state, target.state);
        draft.sync_from(&target);
        assert_eq!(draft.grammar.as_ref().unwrap().accepted, target.grammar.as_ref().unwrap().accepted);
        let expected = target.distribution(&mut row, &[], 1).unwrap().to_vec();
        assert_eq!(draft.distribution(&mut row, &[], 1).unwrap(), expected);
    }
}

#[test]
fn a_greedy_draft_takes_the_most_probable_of_the_same_penalised_logits() {
    for settings in kinds() {
        let mut row = Rng::new(7).logits(300);
        let likely = sampler(&Settings { temperature: 0.0, ..settings.clone() }, 300).pick(&mut row, &[], 0).unwrap();
        let history = [likely, likely, 3];
        let of_target = Settings { temperature: 0.0, mirostat: Mirostat::Off, ..settings.clone() };
        let expected = sampler(&of_target, 300).pick(&mut row, &history, 0).unwrap();
        let mut draft = sampler(&settings, 300).for_draft(true);
        for position in 0..5 {
            assert_eq!(draft.pick(&mut row, &history, position).unwrap(), expected, "{settings:?}");
            draft.accept(expected).unwrap();
        }
    }
}

/// Coupled draws from different distributions agree with probability Σx 1 / Σy max(p(y)/p(x), q(y)/q(x)), which is
/// at least (1 - TV)/(1 + TV).
#[test]
fn coupled_draws_agree_as_often_as_they_must() {
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

        let mut target = sampler(&Settings { seed: round as u32, ..plain() }, n);
        let mut draft = target.for_draft(false);
        let draws = 30_000;
        let (mut row_p, mut row_q) = (p.clone(), q.clone());
        let agreed = (0..draws)
            .filter(|position| {
                target.pick(&mut row_p, &[], *position).unwrap() == draft.pick(&mut row_q, &[], *position).unwrap()
            })
            .count() as f64;
        let deviation = (expected * (1.0 - expected) * draws as f64).sqrt();
        let wanted = expected * draws as f64;
        assert!((agreed - wanted).abs() < 5.0 * deviation, "round {round}: {agreed} agreed, {wanted} were to");
    }
}

/// The draw is the argmax of ln p + G, also among few candidates of a long list.
#[test]
fn a_pick_is_the_argmax_of_the_definition() {
    let mut rng = Rng::new(10);
    for settings in kinds().into_iter().filter(|settings| settings.temperature > 0.0) {
        for position in 0..40 {
            let mut row = rng.logits(900);
            let mut sampler = sampler(&settings, 900);
            let left = sampler.distribution(&mut row, &[1, 2], position).unwrap().to_vec();
            let noise = Noise::new(settings.seed, position);
            let score = |token: Token, p: f32| f64::from(p).ln() + noise.gumbel(token);
            let best = left.iter().max_by(|a, b| score(a.id, a.p).total_cmp(&score(b.id, b.p))).unwrap();
            assert_eq!(sampler.pick(&mut row, &[1, 2], position).unwrap(), best.id, "{settings:?}");
        }
    }
}
