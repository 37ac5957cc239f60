//! Decisions on rows that are a function of the tokens before them.

use std::sync::Arc;

use super::*;

/// The logits after these tokens, of a vocabulary of 8.
fn logits(before: &[Token]) -> Vec<f32> {
    let hash = before.iter().fold(17_u32, |hash, token| hash.wrapping_mul(31).wrapping_add(token.unsigned_abs() + 1));
    (0..8).map(|token| (hash.wrapping_mul(2_654_435_761).rotate_left(4 * token) % 97) as f32 / 16.0).collect()
}

/// The log-probability of `token` after these tokens.
fn logprob(before: &[Token], token: Token, temperature: f64) -> f64 {
    let weights: Vec<f64> = logits(before).iter().map(|logit| f64::from(*logit) / temperature).collect();
    let total: f64 = weights.iter().map(|weight| weight.exp()).sum();
    weights[token as usize] - total.ln()
}

fn choices() -> Vec<Vec<Token>> {
    Vec::from([vec![1], vec![2, 3, 4], vec![2, 3, 5], vec![6, 1, 1, 1], vec![2], vec![7, 7]])
}

/// A question, whose `tokens` follow the prompt.
fn question(tokens: &[Token], choices: Vec<Vec<Token>>, temperature: f32) -> Question {
    Question { name: "choices".to_owned(), tokens: tokens.to_vec(), choices, temperature }
}

fn asked(choices: Vec<Vec<Token>>, temperature: f32) -> Questions {
    Arc::from([question(&[], choices, temperature)])
}

/// Makes a decision, with room for `room` nodes in each step; none if decoded tokens cannot be removed.
fn decide(questions: Questions, room: usize, may_branch: bool, can_roll_back: bool) -> (Vec<DecisionScores>, usize) {
    let prompt = vec![5, 4];
    let mut decision = ChoiceDecision::new(questions, Vec::new(), prompt.len(), 100).unwrap();
    let (mut tokens, mut steps) = (prompt.clone(), 0);
    let mut n_cached = 0;
    loop {
        let n_pending = tokens.len() - n_cached;
        assert!(n_pending > 0);
        let (drafted, parents) =
            if can_roll_back && n_pending == 1 { decision.plan(room, may_branch, false) } else { Default::default() };
        assert!(drafted.len() <= room && drafted.len() == parents.len());
        let mut rows = vec![logits(&tokens)];
        let mut ways = vec![tokens.clone()];
        for (token, parent) in drafted.iter().zip(&parents) {
            let way = [ways[*parent].as_slice(), &[*token]].concat();
            rows.push(logits(&way));
            ways.push(way);
        }
        for (place, node) in decision.due(drafted.len()) {
            decision.read(node, &rows[place]).unwrap();
        }
        steps += 1;
        let is_made = decision.finish().unwrap().is_some();
        n_cached = decision.next_context(&mut tokens, can_roll_back);
        if is_made {
            assert_eq!(tokens, prompt);
            return (decision.into_scores(), steps);
        }
        assert!(n_cached < tokens.len() && steps < 500);
    }
}

#[test]
fn choices_are_as_probable_as_each_alone_however_they_are_decoded() {
    for temperature in [0.7_f32, 1.0, 0.0] {
        let scale = if temperature > 0.0 { f64::from(temperature) } else { 1.0 };
        let expected: Vec<f64> = choices()
            .iter()
            .map(|tokens| {
                let before = |n: usize| [&[5, 4], &tokens[..n]].concat();
                tokens.iter().enumerate().map(|(n, token)| logprob(&before(n), *token, scale)).sum()
            })
            .collect();
        let total: f64 = expected.iter().map(|logprob| logprob.exp()).sum();
        for (room, may_branch, can_roll_back, most_steps) in [
            (99, true, true, 2),
            (3, true, true, 4),
            (99, false, true, 6),
            (3, false, true, 6),
            (2, false, true, 6),
            (0, true, true, 9),
            (0, true, false, 8),
        ] {
            let (scores, steps) = decide(asked(choices(), temperature), room, may_branch, can_roll_back);
            let scores = &scores[0];
            assert!(steps <= most_steps, "{room} {may_branch} {can_roll_back}: {steps} steps");
            for (index, expected) in expected.iter().enumerate() {
                assert!((scores.logprobs[index] - expected).abs() < 1e-9, "{room}: {index}");
                assert!((scores.probs[index] - expected.exp() / total).abs() < 1e-12, "{room}: {index}");
            }
            let best = expected.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert!(expected[scores.choice] > best - 1e-9);
            assert_eq!(scores.probs.iter().position(|prob| *prob == scores.probs[scores.choice]), Some(scores.choice));
            assert!((scores.probs.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }
}

/// In whatever order they are given.
#[test]
fn choices_with_a_common_beginning_are_decoded_together() {
    let ways: Vec<Vec<Token>> = (0..6).flat_map(|last| (0..4).map(move |first| vec![first, 7, last, 1])).collect();
    // Each of the 4 beginnings takes 2 nodes, and each choice one more.
    let (_, steps) = decide(asked(ways, 1.0), 7, true, true);
    assert!(steps <= 1 + 32_usize.div_ceil(5), "{steps} steps");
}

#[test]
fn questions_that_begin_alike_are_decoded_together() {
    let beginning: Vec<Token> = (10..19).collect();
    // The last two differ only in their temperatures.
    let asked = |number: Token| {
        let tokens = [beginning.as_slice(), &[20 + number.min(18)]].concat();
        question(&tokens, vec![vec![1], vec![2]], if number == 19 { 2.0 } else { 1.0 })
    };
    let questions: Vec<Question> = (0..20).map(asked).collect();
    let (all, steps) = decide(questions.as_slice().into(), 9 + 20, true, true);
    assert_eq!(steps, 2, "the prompt, and all questions");
    for (question, scores) in questions.iter().zip(&all) {
        let before = [&[5, 4], question.tokens.as_slice()].concat();
        let expected = logprob(&before, 1, f64::from(question.temperature));
        assert!((scores.logprobs[0] - expected).abs() < 1e-9);
        let (alone, _) = decide(Arc::from([question.clone()]), 99, true, true);
        assert_eq!(alone[0].probs, scores.probs);
    }
}

#[test]
fn biases_count_and_may_not_ban_every_choice() {
    let decide = |biases: Vec<(Token, f32)>| -> Result<DecisionScores> {
        let mut decision = ChoiceDecision::new(asked(vec![vec![1], vec![2]], 1.0), biases, 1, 10).unwrap();
        decision.read(0, &[0.0; 8]).unwrap();
        decision.finish().map(|_| ())?;
        Ok(decision.into_scores().remove(0))
    };
    let scores = decide(vec![(1, 2.0)]).unwrap();
    assert!((scores.probs[0] / scores.probs[1] - 2_f64.exp()).abs() < 1e-9);
    let scores = decide(vec![(1, f32::NEG_INFINITY)]).unwrap();
    assert_eq!((scores.choice, scores.probs[0]), (1, 0.0));
    let banned: Error = decide(vec![(1, f32::NEG_INFINITY), (2, f32::NEG_INFINITY)]).unwrap_err();
    assert!(banned.message().contains("bans all of them"), "{banned}");
}

#[test]
fn choices_that_do_not_fit_are_refused() {
    let error = ChoiceDecision::new(asked(vec![vec![1], vec![2; 8]], 1.0), Vec::new(), 3, 10).err().unwrap();
    assert!(error.message().contains("choices[1]: its 8 tokens and the prompt's 3 do not fit"), "{error}");
    let long = Question { name: "questions.mood".to_owned(), ..question(&[1; 7], vec![vec![1]], 1.0) };
    let error = ChoiceDecision::new(Arc::from([long]), Vec::new(), 3, 10).err().unwrap();
    assert!(error.message().contains("questions.mood: its 8 tokens and the prompt's 3 do not fit"), "{error}");
}

/// Questions of different lengths, two of which differ only in their temperature.
fn questions() -> Vec<Question> {
    let yes_no = || vec![vec![1], vec![2]];
    vec![
        question(&[3], yes_no(), 1.0),
        question(&[3, 3, 6], choices(), 0.7),
        question(&[3], yes_no(), 2.0),
        question(&[6; 9], vec![vec![0], vec![1], vec![2, 7]], 0.0),
        question(&[3, 3, 6, 1], yes_no(), 1.3),
    ]
}

#[test]
fn questions_have_the_bits_of_each_alone_in_any_order_however_they_are_decoded() {
    for (room, may_branch, can_roll_back) in
        [(99, true, true), (12, true, true), (99, false, true), (5, true, true), (0, true, true), (0, true, false)]
    {
        let alone: Vec<DecisionScores> = questions()
            .into_iter()
            .map(|question| decide(Arc::from([question]), room, may_branch, can_roll_back).0.remove(0))
            .collect();
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]] {
            let asked: Vec<Question> = order.iter().map(|index| questions()[*index].clone()).collect();
            let (scores, _) = decide(Arc::from(asked), room, may_branch, can_roll_back);
            assert_eq!(scores.len(), order.len());
            for (scores, index) in scores.iter().zip(order) {
                assert_eq!(*scores, alone[index], "{room} {may_branch} {can_roll_back}: question {index}");
            }
        }
        assert_ne!(alone[0], alone[2], "each has its own temperature");
    }
}

/// The tokens of a question are part of what its choices follow, and are not scored.
#[test]
fn a_question_gives_what_its_tokens_in_the_prompt_give() {
    for asked in questions() {
        let scale = if asked.temperature > 0.0 { f64::from(asked.temperature) } else { 1.0 };
        let (scores, steps) = decide(Arc::from([asked.clone()]), 99, true, true);
        assert!(steps <= 2, "{steps} steps");
        for (choice, found) in asked.choices.iter().zip(&scores[0].logprobs) {
            let before = |n: usize| [&[5, 4], asked.tokens.as_slice(), &choice[..n]].concat();
            let expected: f64 = choice.iter().enumerate().map(|(n, token)| logprob(&before(n), *token, scale)).sum();
            assert!((found - expected).abs() < 1e-9);
        }
    }
}
