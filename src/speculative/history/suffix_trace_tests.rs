use super::*;

const TEXT: [Token; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, Token::MAX];

fn at(place: usize) -> Trace {
    Trace { at: place, length: 3, misses: 0, active: true, ..Trace::default() }
}

fn state(trace: &Trace) -> (usize, usize, u32, bool) {
    (trace.at, trace.length, trace.misses, trace.active)
}

#[test]
fn it_goes_along_while_tokens_are_the_same_and_past_those_that_are_not() {
    let check = |tokens: &[Token], expected| {
        let mut trace = at(3);
        for token in tokens {
            trace.follow(&TEXT, *token);
        }
        assert_eq!(state(&trace), expected, "{tokens:?}");
    };
    check(&[], (3, 3, 0, true));
    check(&[3, 4], (5, 5, 0, true));
    check(&[3, 99], (5, 0, 1, true));
    check(&[3, 99, 5, 6], (7, 2, 1, true));
    check(&[99, 4, 5, 6, 7, 8, 9, 10, Token::MAX], (12, 8, 0, true));
    check(&[99; 7], (10, 0, 7, true));
    check(&[99; 8], (11, 0, 8, false));
    check(&[99; 20], (11, 0, 8, false));
}

#[test]
fn the_longer_match_is_taken() {
    // 5 is best (most frequent), but 1 2 3 was followed by 7 at index 3.
    let text = [1, 2, 3, 7, 9, 3, 5, 8, 3, 5, 1, 2, 3];
    let mut tree = ContextTree::new(1);
    for at in 0..text.len() {
        tree.learn(&text, at);
    }
    let source = Text { origin: Origin::Own, tokens: &text, tree: &tree };
    let mut trace = Trace::default();
    let found = trace.look_up(source, &text);
    trace.seek(source, &text, found.as_ref());
    assert_eq!(state(&trace), (3, 3, 0, true));
    // A long match stays, a short one does not.
    for (length, place) in [(LONG, 5), (LONG - 1, 5), (2, 3)] {
        trace = Trace { length, ..at(5) };
        trace.seek(source, &text, found.as_ref());
        assert_eq!(trace.at, place, "length {length}");
    }
}

#[test]
fn what_was_drafted_from_elsewhere_is_where_it_goes_on() {
    let bins = Bins::default();
    let kind = bins.copied(Origin::Own, &Copied { length: 1, before: 0, misses: 0, total: 0, agreeing: 0 }).0;
    let candidate = Candidate { token: 8, confidence: 0.5, kind, at: 8, length: 4 };
    let check = |token, candidate: Option<Candidate>, expected| {
        let mut trace = at(3);
        trace.continue_with(&TEXT, token, candidate);
        assert_eq!(state(&trace), expected);
    };
    check(8, Some(candidate), (9, 5, 0, true));
    check(3, Some(Candidate { token: 3, at: 8, ..candidate }), (4, 4, 0, true));
    check(3, None, (4, 4, 0, true));
    check(9, Some(candidate), (4, 0, 1, true));
}

#[test]
fn nothing_follows_the_end_of_an_answer() {
    let text = [1, 2, BETWEEN, 4];
    let tree = ContextTree::new(4);
    let source = Text { origin: Origin::Earlier, tokens: &text, tree: &tree };
    for (place, expected) in [(1, Some(2)), (2, None), (3, Some(4)), (4, None)] {
        let trace = at(place);
        let mut noted = 0;
        let candidate = trace.candidate(source, None, &Bins::default(), |_| noted += 1);
        assert_eq!(candidate.map(|candidate| candidate.token), expected);
        assert_eq!(noted, usize::from(expected.is_some()));
    }
}
