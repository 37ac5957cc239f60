use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn laid_out(parents: &[usize], n_spare: SeqId) -> (DraftTree, usize) {
    let mut tree = DraftTree::new(5, (10..10 + n_spare).collect());
    let n = tree.lay_out(parents.iter().copied());
    (tree, n)
}

/// For each token in batch order: its node, its depth, and its sequences.
fn layout(tree: &DraftTree) -> Vec<(usize, usize, Vec<SeqId>)> {
    tree.nodes().map(|(node, depth, sequences)| (node, depth, sequences.to_vec())).collect()
}

#[test]
fn chain_stays_in_the_slots_own_sequence() {
    let (tree, n) = laid_out(&[0, 1, 2], 3);
    assert_eq!((n, tree.of_context()), (3, &[5][..]));
    assert_eq!(layout(&tree), [(1, 0, vec![5]), (2, 1, vec![5]), (3, 2, vec![5])]);
    assert_eq!([0, 1, 2, 3].map(|node| tree.row(node)), [0, 1, 2, 3]);
}

#[test]
fn first_branch_is_decoded_first() {
    // 1 and 2 follow the context, 3 follows 1, and 4 and 5 follow 2.
    let (tree, n) = laid_out(&[0, 0, 1, 2, 2], 3);
    assert_eq!((n, tree.of_context()), (5, &[5, 10, 11][..]));
    let expected = [(1, 0, vec![5]), (3, 1, vec![5]), (2, 0, vec![10, 11]), (4, 1, vec![10]), (5, 1, vec![11])];
    assert_eq!(layout(&tree), expected);
    assert_eq!([0, 1, 2, 3, 4, 5].map(|node| tree.row(node)), [0, 1, 3, 2, 4, 5]);
    assert_eq!((tree.towards(0, 5), tree.towards(2, 5), tree.towards(5, 5)), (Some(2), Some(5), None));
    assert!(tree.is_own(3) && !tree.is_own(4));
}

#[test]
fn draft_is_cut_when_sequences_run_out() {
    assert_eq!(laid_out(&[0, 0, 0, 1], 1).1, 2);
    assert_eq!(laid_out(&[0, 0], 0).1, 1);
    let (tree, _) = laid_out(&[0, 0, 0, 1], 1);
    assert_eq!((tree.of_context(), tree.sequences()), (&[5, 10][..], (5, &[10][..])));
    assert_eq!(laid_out(&[0, 0], 0).0.of_context(), [5]);
}

proptest! {
    /// A token sees only the context and the tokens before it in its own branch.
    #[test]
    fn each_token_sees_only_its_own_branch(choices in vec(any::<prop::sample::Index>(), 1..40)) {
        let parents: Vec<usize> = choices.iter().enumerate().map(|(n, choice)| choice.index(n + 1)).collect();
        let (tree, n) = laid_out(&parents, 40);
        prop_assert_eq!(n, parents.len());
        let before = |node: usize| {
            let way = std::iter::successors(Some(node), |at| Some(parents[*at - 1]).filter(|parent| *parent > 0));
            way.skip(1).collect::<Vec<_>>()
        };
        let nodes = layout(&tree);
        for (node, depth, sequences) in &nodes {
            prop_assert_eq!(before(*node).len(), *depth);
            prop_assert!(sequences.iter().all(|sequence| tree.of_context().contains(sequence)));
            for (other, other_depth, others) in nodes.iter().filter(|other| other.1 < *depth) {
                let shared = sequences.iter().any(|sequence| others.contains(sequence));
                prop_assert_eq!(shared, before(*node).contains(other), "{} {} {}", node, other, other_depth);
            }
            let mut way: Vec<usize> = std::iter::successors(tree.towards(0, *node), |at| tree.towards(*at, *node)).collect();
            way.reverse();
            prop_assert_eq!(way, [&[*node], before(*node).as_slice()].concat());
        }
        // Accepted tokens of the first branch are contiguous in the slot's own sequence.
        let own = nodes.iter().take_while(|(node, ..)| tree.is_own(*node)).count();
        prop_assert!(nodes.iter().skip(own).all(|(node, ..)| !tree.is_own(*node)));
    }
}
