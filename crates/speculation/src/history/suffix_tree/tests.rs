use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// A naive tree: explicit contexts with all positions of their continuations.
#[derive(Default)]
struct NaiveTree {
    nodes: HashMap<Vec<Token>, Vec<usize>>,
}

fn context(text: &[Token], at: usize, length: usize) -> Option<&[Token]> {
    text.get(at.checked_sub(length)?..at).filter(|context| !context.contains(&SEPARATOR))
}

impl NaiveTree {
    fn learn(&mut self, text: &[Token], at: usize, depth: usize) {
        let contexts: Vec<_> = LENGTHS.iter().take(depth).map_while(|length| context(text, at, *length)).collect();
        let deepest = contexts.iter().take_while(|context| self.nodes.contains_key(**context)).count().max(1) - 1;
        let mut known = false;
        for (level, here) in contexts.iter().enumerate().skip(deepest) {
            let Some(places) = self.nodes.get_mut(*here) else {
                self.nodes.insert(here.to_vec(), vec![at]);
                break;
            };
            known |= places.iter().any(|place| text[*place] == text[at]);
            let first = places[0];
            places.push(at);
            let deeper = LENGTHS[..depth].get(level + 1).and_then(|length| context(text, first, *length));
            let early = places.len() == 2 && self.nodes.len() < NODES_PER_TOKEN * at;
            if let Some(deeper) = deeper.filter(|_| early) {
                self.nodes.entry(deeper.to_vec()).or_insert_with(|| vec![first]);
            }
        }
        for here in contexts.iter().take(deepest).rev() {
            let Some(places) = self.nodes.get_mut(*here).filter(|_| !known) else { return };
            known = places.iter().any(|place| text[*place] == text[at]);
            places.push(at);
        }
    }

    fn longest(&self, text: &[Token], depth: usize) -> Option<(usize, &[usize])> {
        let known = |length: usize| Some((length, &self.nodes.get(context(text, text.len(), length)?)?[..]));
        LENGTHS.iter().take(depth).map_while(|length| known(*length)).last()
    }
}

proptest! {
    #[test]
    fn tree_matches_a_naive_implementation(
        // With two different tokens both counts are exact.
        text in prop::collection::vec(prop_oneof![3 => Just(0), 1 => Just(Token::MAX)], 1..160),
        max_length in 1..40_usize,
        hint in 0..9_usize,
        between in 0..160_usize,
    ) {
        let depth = LENGTHS.iter().filter(|length| **length <= max_length).count();
        let mut text = text;
        if let Some(token) = text.get_mut(between) {
            *token = SEPARATOR;
        }
        let (mut tree, mut naive) = (ContextTree::new(max_length), NaiveTree::default());
        for at in 0..text.len() {
            let found = tree.look_up(&text[..at], &mut Hint(hint));
            let expected = naive.longest(&text[..at], depth);
            prop_assert_eq!(found.map(|found| found.length), expected.map(|(length, _)| length));
            if let Some((found, (_, places))) = found.zip(expected) {
                let text = &text;
                let with = |place: usize| places.iter().filter(move |other| text[**other] == text[place]);
                let (best, n_best) = (to_index(found.best.0), usize::from(found.best.1));
                prop_assert_eq!(usize::from(found.total), places.len());
                prop_assert_eq!(n_best, with(best).count());
                prop_assert_eq!(with(best).max(), Some(&best));
                prop_assert!(places.iter().all(|place| with(*place).count() <= n_best), "{:?} {:?}", found, places);
                prop_assert_eq!(usize::from(found.other.1), places.len() - n_best);
            }
            if text[at] != SEPARATOR {
                tree.learn(&text, at);
                naive.learn(&text, at, depth);
            }
        }
        tree.clear();
        prop_assert_eq!(tree.look_up(&text, &mut Hint(hint)), None);
    }

    #[test]
    fn frequent_continuation_survives_rare_ones(rare in prop::collection::vec(10..1000_i32, 0..40)) {
        // 1 is followed by 2 twice as often as by anything else.
        let text: Vec<Token> = rare.iter().flat_map(|rare| [1, 2, 1, 2, 1, *rare]).chain([1, 2, 1]).collect();
        let mut tree = ContextTree::new(1);
        for at in 0..text.len() {
            tree.learn(&text, at);
        }
        let found = tree.look_up(&text, &mut Hint::default()).expect("the context has a node");
        prop_assert_eq!(text[to_index(found.best.0)], 2);
    }
}

#[test]
fn counts_are_halved_at_their_maximum() {
    let text: Vec<Token> = [[1, 2].repeat(1000), [1, 3].repeat(1000), vec![1]].concat();
    let mut tree = ContextTree::new(1);
    for at in 0..text.len() {
        tree.learn(&text, at);
    }
    let found = tree.look_up(&text, &mut Hint::default()).expect("the context has a node");
    assert_eq!(text[to_index(found.best.0)], 3, "the recent continuation replaces the old one");
    assert!(found.total >= 127);
}

#[test]
fn memory_is_bounded_by_the_number_of_tokens() {
    let check = |text: Vec<Token>| {
        let mut tree = ContextTree::new(MAX_LENGTH);
        for at in 0..text.len() {
            tree.learn(&text, at);
            assert!(tree.used <= NODES_PER_TOKEN * at + 1);
            assert!(tree.nodes.len() * size_of::<ContextNode>() <= 96 * at.max(MIN_SIZE));
        }
        tree.used
    };
    assert_eq!(size_of::<ContextNode>(), 16);
    check((0..20_000).map(|index: i32| index * index % 97 % 5).collect());
    let twice = check((0..5000).chain(0..5000).collect());
    assert!(twice > 10_000, "copied tokens get deeper nodes");
    assert_eq!(check(vec![1; 1000]), LENGTHS.len());
}

#[test]
fn single_occurrence_is_found_by_a_longer_context() {
    // 1 2 was followed by 5 only after 70 .. 73.
    let text = [70, 71, 72, 73, 1, 2, 5, 1, 2, 3, 80, 1, 2, 4, 81, 70, 71, 72, 73, 1, 2];
    let mut tree = ContextTree::new(MAX_LENGTH);
    for at in 0..text.len() {
        tree.learn(&text, at);
    }
    let longest = tree.look_up(&text, &mut Hint::default()).expect("the context has a node");
    assert_eq!((text[to_index(longest.best.0)], longest.total), (5, 1));
    assert!(longest.length > 2);
}
