use proptest::prelude::*;

use super::*;

/// A model of `n` tokens, where 0 is EOS: the log-probabilities of the next token depend on the text so far.
struct ToyModel {
    n: Token,
    seed: u64,
}

impl ToyModel {
    fn logprobs(&self, text: &[Token]) -> Vec<f64> {
        let mut state = self.seed;
        let mut mix = |value: u64| {
            state = (state ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            state ^= state >> 29;
            state
        };
        for token in text {
            mix(*token as u64 + 1);
        }
        let weights: Vec<f64> = (0..self.n).map(|token| 1.0 + (mix(token as u64 + 99) % 1000) as f64).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| (weight / sum).ln()).collect()
    }

    /// Every text that has ended or has `length` tokens, with its log-probability.
    fn all(&self, length: usize) -> Vec<(Vec<Token>, f64)> {
        let mut texts = vec![(Vec::new(), 0.0)];
        let mut done = Vec::new();
        for _ in 0..length {
            let mut longer = Vec::new();
            for (text, logprob) in texts {
                for (token, more) in (0..).zip(self.logprobs(&text)) {
                    let next = ([text.as_slice(), &[token]].concat(), logprob + more);
                    if token == 0 { done.push(next) } else { longer.push(next) }
                }
            }
            texts = longer;
        }
        done.extend(texts);
        done
    }

    fn search(&self, width: usize, length: usize) -> (Vec<Token>, f64) {
        let mut search = Search::new(width, Vec::new());
        for _ in 0..length {
            let mut candidates = Vec::new();
            for (beam, live) in search.live.iter().enumerate() {
                let logprobs = self.logprobs(&live.text);
                candidates.extend((0..).zip(logprobs).map(|(token, logprob)| BeamCandidate { beam, token, logprob }));
            }
            let before = search.live.clone();
            let parents = search.advance(&mut candidates, |text, candidate| {
                ([text.as_slice(), &[candidate.token]].concat(), candidate.token == 0)
            });
            assert!(search.live.len() <= width && parents.len() == search.live.len());
            for (beam, parent) in search.live.iter().zip(parents) {
                assert!(beam.text.starts_with(&before[parent].text) && beam.logprob < before[parent].logprob);
            }
            if search.is_over() {
                break;
            }
        }
        let best = search.answer().expect("a text");
        (best.text.clone(), best.logprob)
    }
}

proptest! {
    /// A wide search finds the most probable text, as an exhaustive search does.
    #[test]
    fn wide_search_finds_the_most_probable_output(seed in any::<u64>(), n in 2i32..5, length in 1usize..5) {
        let model = ToyModel { n, seed };
        let best = model.all(length).into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        let (text, logprob) = model.search(4usize.pow(5), length);
        prop_assert!((logprob - best.1).abs() < 1e-9);
        // Several texts may be equally probable.
        let own = model.all(length).into_iter().find(|(other, _)| *other == text);
        prop_assert!(own.is_some_and(|(_, logprob)| (logprob - best.1).abs() < 1e-9));
    }

    /// A narrow search finds a text of the model and reports its exact probability.
    #[test]
    fn reported_probability_is_exact(seed in any::<u64>(), n in 2i32..5, length in 1usize..6, width in 1usize..4) {
        let model = ToyModel { n, seed };
        let (text, logprob) = model.search(width, length);
        let real = model.all(length).into_iter().find(|(other, _)| *other == text).expect("an output of the model").1;
        prop_assert!((logprob - real).abs() < 1e-9);
    }

    /// A search with one beam is greedy decoding up to the first EOS.
    #[test]
    fn one_beam_is_greedy(seed in any::<u64>(), n in 2i32..6) {
        let model = ToyModel { n, seed };
        let mut greedy = Vec::new();
        loop {
            let logprobs = model.logprobs(&greedy);
            // The lowest of equally probable tokens, as in the search.
            let best = (0..).zip(&logprobs).max_by(|a: &(Token, _), b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).unwrap().0;
            greedy.push(best);
            if best == 0 || greedy.len() == 6 {
                break;
            }
        }
        prop_assert_eq!(model.search(1, 6).0, greedy);
    }
}

#[test]
fn search_ends_when_no_live_beam_can_win() {
    let mut search = Search::new(2, "");
    let mut step = |candidates: &[(usize, Token, f64)]| {
        let mut candidates: Vec<BeamCandidate> = candidates
            .iter()
            .map(|(beam, token, p)| BeamCandidate { beam: *beam, token: *token, logprob: p.ln() })
            .collect();
        search.advance(&mut candidates, |_, candidate| {
            (if candidate.token == 0 { "ended" } else { "alive" }, candidate.token == 0)
        });
        (search.live.len(), search.best.is_some(), search.is_over())
    };
    assert_eq!(step(&[(0, 1, 0.5), (0, 2, 0.3), (0, 0, 0.2)]), (2, false, false), "EOS was only the third best");
    // The finished beam has .5 * .6 = .3; the others, .5 * .4 = .2 and .3 * .9 = .27, can only get worse.
    assert_eq!(step(&[(0, 0, 0.6), (0, 1, 0.4), (1, 1, 0.9)]), (0, true, true));
}
