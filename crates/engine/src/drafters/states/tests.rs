use super::*;

/// States of two numbers: the token and its square.
fn with(context: &[Token], from: usize) -> States {
    let mut states = States::new(2);
    add(&mut states, context, from);
    states
}

fn add(states: &mut States, context: &[Token], from: usize) {
    states.begin(context, from);
    for token in &context[from..] {
        assert!(states.push(*token, &[*token as f32, (token * token) as f32]));
    }
}

/// The token whose state each token of `context` comes with; 0: none.
fn befores(states: &States, context: &[Token]) -> Vec<Token> {
    (0..context.len())
        .map(|index| {
            let [token, square] = states.before(index) else { panic!("two numbers") };
            assert_eq!(token * token, *square);
            *token as Token
        })
        .collect()
}

#[test]
fn a_token_comes_with_the_state_before_it() {
    let context = [4, 5, 6, 7, 8];
    let mut states = with(&context, 0);
    assert_eq!(befores(&states, &context), [0, 4, 5, 6, 7]);
    assert_eq!(states.before(usize::MAX), [0.0, 0.0]);
    states.forget_before(3);
    assert_eq!(befores(&states, &context), [0, 0, 0, 0, 7]);
    assert_eq!((states.from(), states.len(), states.reach(&context)), (3, 2, 5));
    states.forget_before(1);
    assert_eq!(states.from(), 3, "what is gone is gone");
    states.forget_before(9);
    assert_eq!((states.from(), states.len()), (5, 0));
    assert!(!states.push(1, &[1.0]), "of another size");
}

#[test]
fn states_of_other_tokens_do_not_count() {
    let mut states = with(&[4, 5, 6, 7], 2);
    for (context, reach) in [(&[4, 5, 6, 9][..], 3), (&[4, 5, 6, 7, 8], 4), (&[4, 5], 2), (&[4, 5, 9], 2), (&[], 2)] {
        assert_eq!(states.reach(context), reach, "{context:?}");
    }
    // The draft's 7 was rejected.
    let context = [4, 5, 6, 9, 8];
    add(&mut states, &context, 3);
    assert_eq!((states.from(), befores(&states, &context)), (2, vec![0, 0, 0, 6, 9]));
    // Another context, and one that goes on further behind: what is there is of no use.
    for (context, from) in
        [(&[1, 1, 1, 1, 2, 3][..], 4), (&[4, 5, 6, 9, 8, 1, 2, 3], 6), (&[7, 8, 9], 1), (&[4, 5, 6], 0)]
    {
        let mut other = with(&[4, 5, 6, 9, 8], 2);
        add(&mut other, context, from);
        assert_eq!((other.from(), other.reach(context)), (from, context.len()), "{context:?}");
        let expected = (0..context.len()).map(|i| if i > from { context[i - 1] } else { 0 });
        assert_eq!(befores(&other, context), expected.collect::<Vec<_>>());
    }
}

#[test]
fn shifts() {
    // The states are known from index 4 on.
    let context: Vec<Token> = (10..20).collect();
    for (keep, dropped, from, len) in
        [(0, 3, 1, 6), (1, 3, 1, 6), (2, 4, 2, 4), (4, 3, 4, 3), (9, 1, 4, 0), (6, 2, 6, 2)]
    {
        let mut states = with(&context, 4);
        states.shift(keep, dropped);
        let mut shifted = context.clone();
        shifted.drain(keep..keep + dropped);
        let reach = states.reach(&shifted);
        if len == 0 {
            assert_eq!(states.len(), 0, "{keep} {dropped}");
        } else {
            assert_eq!((states.from(), states.len(), reach), (from, len, from + len), "{keep} {dropped}");
        }
    }
    let mut states = with(&context, 4);
    states.shift(10, 5);
    assert_eq!((states.from(), states.len()), (4, 6), "all behind");
}
