use super::super::oracle::Toy;
use super::Breakers;
use crate::llama::Token;

fn toy(pieces: &[&str]) -> Toy {
    Toy(pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect())
}

fn found(strings: &[&str], pieces: &[&str]) -> Vec<(Token, Vec<Token>)> {
    let strings: Vec<String> = strings.iter().map(|text| text.to_string()).collect();
    Breakers::find(&strings, &toy(pieces)).unwrap().sequences
}

#[test]
fn a_token_that_contains_the_breaker_needs_no_tail() {
    assert_eq!(found(&["\n"], &["a", "\n", "b\n\nc", "n"]), [(1, vec![]), (2, vec![])]);
}

#[test]
fn a_token_that_ends_with_its_beginning_needs_the_rest() {
    let pieces = ["a", "b", "c", "xa", "ab", "abc", "ca", "bc", "aXb"];
    let expected = [
        (0, vec![1, 2]), // a + bc
        (3, vec![1, 2]), // xa + bc
        (4, vec![2]),    // ab + c
        (5, vec![]),     // abc
        (6, vec![1, 2]), // ca + bc
    ];
    assert_eq!(found(&["abc"], &pieces), expected);
}

#[test]
fn a_token_can_begin_a_breaker_in_several_ways() {
    // "aaab": after one, two or three a.
    let pieces = ["a", "b", "aa", "xaa"];
    let (one, two) = (vec![0, 0, 1], vec![0, 1]);
    assert_eq!(found(&["aaab"], &pieces), [(0, one.clone()), (2, one.clone()), (2, two.clone()), (3, one), (3, two)]);
}

#[test]
fn empty_breakers_and_double_ones_count_once_or_not_at_all() {
    assert_eq!(found(&["", "a", "a"], &["a", "b"]), [(0, vec![])]);
    assert_eq!(found(&[], &["a", "b"]), []);
}

/// llama.cpp's limits: 40 bytes, and 20 tokens of tail.
#[test]
fn long_breakers_are_cut() {
    let long = "ab".repeat(30);
    assert_eq!(found(&[&long], &["a", &"ab".repeat(20)]), [(0, vec![0; 19]), (1, vec![])], "tokenized to a's alone");
    let of_a = format!("x{}", "a".repeat(60));
    assert_eq!(found(&[&of_a], &["a", "x"]), [(1, vec![0; 20])]);
}

#[test]
fn the_distance_is_from_the_end_of_the_last_breaker() {
    // 0 alone is a breaker; 1 2 3 and 1 2 are; 4 5 is.
    let sequences = vec![(0, vec![]), (1, vec![2, 3]), (1, vec![2]), (4, vec![5])];
    let breakers = Breakers::from_sequences(sequences, 10);
    let cases: [(&[Token], Option<usize>); 12] = [
        (&[], None),
        (&[7, 8, 9], None),
        (&[0], Some(0)),
        (&[0, 7, 8], Some(2)),
        (&[0, 7, 0, 8], Some(1)),
        (&[4, 7, 7], None),
        (&[4, 5, 7, 7], Some(2)),
        (&[4], None),
        (&[1, 2, 7, 7], Some(2)),
        (&[1, 2, 3, 7], Some(1)),
        (&[0, 7, 1, 7, 7], Some(4)),
        (&[-1, 99, 0, -5, 99], Some(2)),
    ];
    for (window, expected) in cases {
        assert_eq!(breakers.distance(window), expected, "{window:?}");
    }
    assert!(breakers.contains_one(0) && !breakers.contains_one(1) && !breakers.contains_one(-1));
}
