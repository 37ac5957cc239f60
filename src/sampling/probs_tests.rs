use super::super::oracle::Rng;
use super::{LOWEST, TokenProbs, probability, token_probs};
use crate::llama::Token;

/// Log-probabilities by the definition, in f64.
fn by_definition(logits: &[f32]) -> Vec<f64> {
    let clean: Vec<f64> = logits.iter().map(|l| if l.is_nan() { f64::NEG_INFINITY } else { f64::from(*l) }).collect();
    let max = clean.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = clean.iter().map(|logit| (logit - max).exp()).sum();
    clean.iter().map(|logit| logit - max - sum.ln()).collect()
}

#[test]
fn probabilities_are_the_softmax() {
    let mut rng = Rng::new(31);
    for n in [1, 2, 17, 300, 5000, 40_000] {
        let mut logits = rng.logits(n);
        if n > 10 {
            (logits[3], logits[5], logits[7]) = (f32::NAN, f32::NEG_INFINITY, -500.0);
        }
        let expected = by_definition(&logits);
        let mut best: Vec<Token> =
            (0..n as Token).filter(|token| expected[*token as usize] > f64::NEG_INFINITY).collect();
        best.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        for token in (0..n).step_by(1 + n / 30).chain((0..n.min(9)).filter(|token| *token < n)) {
            let p = f64::from(probability(&logits, token as Token));
            assert!((p - expected[token].exp()).abs() <= 1e-6 * expected[token].exp() + 1e-37, "{token} of {n}");
            let found = token_probs(&logits, token as Token, 5);
            let close = |logprob: f32, token: Token| {
                let expected = expected[token as usize];
                logprob == LOWEST && expected == f64::NEG_INFINITY
                    || (f64::from(logprob) - expected).abs() < 1e-5 * (1.0 + expected.abs())
            };
            assert_eq!(found.token, token as Token);
            assert!(close(found.logprob, token as Token), "{token} of {n}: {}", found.logprob);
            assert_eq!(found.top.iter().map(|top| top.0).collect::<Vec<_>>(), best[..best.len().min(5)]);
            assert!(found.top.iter().all(|(token, logprob)| close(*logprob, *token)));
        }
        assert_eq!(token_probs(&logits, 0, usize::MAX).top.len(), best.len(), "all that can be drawn");
        assert_eq!(token_probs(&logits, 0, 0).top, []);
    }
}

#[test]
fn what_has_no_probability() {
    for row in [vec![], vec![f32::NAN; 5], vec![f32::NEG_INFINITY; 300]] {
        for token in [0, 4, -1, Token::MAX] {
            assert_eq!(probability(&row, token), 0.0);
            assert_eq!(token_probs(&row, token, 3), TokenProbs { token, logprob: LOWEST, top: vec![] });
        }
    }
    let row = [1.0, 2.0];
    for token in [-1, 2, Token::MIN, Token::MAX] {
        assert_eq!(probability(&row, token), 0.0);
        assert_eq!(token_probs(&row, token, 1).logprob, LOWEST);
    }
    assert_eq!(probability(&[f32::INFINITY, 2.0], 0), 1.0);
    assert_eq!(token_probs(&[f32::INFINITY, 2.0], 1, 2).top, [(0, 0.0), (1, LOWEST)]);
}
