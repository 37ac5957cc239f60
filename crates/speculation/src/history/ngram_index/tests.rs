use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

proptest! {
    #[test]
    fn rolling_hash_depends_only_on_the_last_n_tokens(n in 1..20_usize, text in tokens(0..60), before in tokens(0..30)) {
        let hash_at = |text: &[Token], end: usize| {
            let mut hash = RollingHash::new(n);
            hash.advance(text, end);
            hash.get()
        };
        let longer = [&before[..], &text[..]].concat();
        for end in n..=text.len() {
            let alone = hash_at(&text[end - n..end], n);
            prop_assert_eq!(hash_at(&text, end), alone);
            prop_assert_eq!(hash_at(&longer, before.len() + end), alone);
        }
    }

    #[test]
    fn latest_position_matches_a_search(
        n in 1..6_usize,
        first in 0..3_usize,
        text in tokens(0..120),
        steps in prop::collection::vec(1..20_usize, 1..20),
    ) {
        let mut places = LatestPositions::new(n, first);
        let mut len = 0;
        for step in steps {
            len = (len + step).min(text.len());
            let (text, end) = (&text[..len], len.saturating_sub(n));
            places.learn(text, end);
            let Some(start) = len.checked_sub(n) else { continue };
            let naive = (first..end).rev().find(|place| text[*place..place + n] == text[start..]);
            prop_assert_eq!(places.find(text, &text[start..], places.tail()), naive);
        }
    }

    #[test]
    fn index_is_a_map_even_if_hashes_collide(entries in prop::collection::vec((0..40_u32, 0..3_u32, 0..1000_u32), 0..200)) {
        // A value encodes its n-gram: value % 40. Hashes collide on purpose.
        let mut index = NgramIndex::default();
        let mut map = HashMap::new();
        for (key, hashes, value) in entries {
            let value = value * 40 + key;
            let hash = key % (hashes + 1).max(1) * 0x1000_0001 + if hashes == 2 { key << 20 } else { 0 };
            let hash = *map.get(&key).map_or(&hash, |(hash, _)| hash);
            let (place, old) = index.seek(hash, |value| value % 40 == key);
            prop_assert_eq!(old, map.get(&key).map(|(_, value)| *value));
            index.set(&place, value);
            map.insert(key, (hash, value));
        }
        for (key, (hash, value)) in map {
            prop_assert_eq!(index.get(hash, |value| value % 40 == key), Some(value));
        }
        index.clear();
        prop_assert_eq!(index.get(0, |_| true), None);
    }
}

#[test]
fn growing_the_table_keeps_all_ngrams() {
    let text: Vec<Token> = (0..10_000).map(|index| index * 7 % 10_007).collect();
    let mut places = LatestPositions::new(2, 0);
    places.learn(&text, text.len() - 2);
    for start in 0..text.len() - 2 {
        let ngram = &text[start..start + 2];
        let mut hash = RollingHash::new(2);
        hash.advance(ngram, 2);
        assert_eq!(places.find(&text, ngram, &hash), Some(start));
    }
}

#[test]
fn smallest_and_largest_token_ids_are_indexed() {
    let text = [Token::MAX, 0, Token::MAX, -1, Token::MAX, 0, Token::MIN];
    let mut places = LatestPositions::new(2, 0);
    places.learn(&text, 5);
    let find = |a, b| {
        let mut hash = RollingHash::new(2);
        hash.advance(&[a, b], 2);
        places.find(&text, &[a, b], &hash)
    };
    for (a, b, expected) in
        [(Token::MAX, 0, Some(4)), (Token::MAX, -1, Some(2)), (0, Token::MAX, Some(1)), (0, -1, None)]
    {
        assert_eq!(find(a, b), expected, "{a} {b}");
    }
}

/// Few different tokens, so that n-grams repeat.
fn tokens(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Token>> {
    prop::collection::vec(prop_oneof![4 => 0..3_i32, 1 => Just(Token::MAX)], len)
}
