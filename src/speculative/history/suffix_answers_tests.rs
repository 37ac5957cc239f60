use super::super::suffix_tree::Hint;
use super::*;

fn behind(answers: &Answers, context: &[Token]) -> Option<Token> {
    let longest = answers.tree.look_up(context, &mut Hint::default());
    answers.text.get(usize::try_from(longest?.best.0).unwrap()).copied()
}

#[test]
fn contexts_end_where_their_answer_begins() {
    let mut answers = Answers::default();
    answers.add(&[1, 2, 3]);
    answers.add(&[]);
    answers.add(&[4, 5, Token::MAX]);
    assert_eq!(answers.len(), 8, "each answer and what is between them");
    for (context, expected) in
        [(1, Some(2)), (2, Some(3)), (3, None), (4, Some(5)), (5, Some(Token::MAX)), (Token::MAX, None)]
    {
        assert_eq!(behind(&answers, &[context]), expected, "{context}");
    }
}

#[test]
fn the_oldest_answers_are_forgotten() {
    let mut answers = Answers::default();
    let answer = |number: usize| -> Vec<Token> { (0..1000).map(|token| (number * 1000 + token) as Token).collect() };
    for number in 0..1000 {
        answers.add(&answer(number));
        assert!(answers.len() <= MAX_ANSWERS);
        let newest = answer(number);
        assert_eq!(behind(&answers, &newest[10..11]), Some(newest[11]));
    }
    assert!(answers.forgotten > 3);
    assert!(answers.len() >= MAX_ANSWERS / 2);
    assert_eq!(behind(&answers, &answer(100)[10..11]), None);
    let kept = answers.len() / 1001 - 1;
    let oldest = answer(1000 - kept);
    assert_eq!(behind(&answers, &oldest[10..11]), Some(oldest[11]));
}

#[test]
fn of_a_huge_answer_the_end_is_kept() {
    let mut answers = Answers::default();
    let huge: Vec<Token> = (0..3 * MAX_ANSWERS as Token).collect();
    answers.add(&huge);
    assert!(answers.len() <= MAX_ANSWERS && !answers.is_empty());
    let last = huge.len() - 2;
    assert_eq!(behind(&answers, &huge[last..=last]), Some(huge[last + 1]));
    assert_eq!(behind(&answers, &huge[..1]), None);
}
