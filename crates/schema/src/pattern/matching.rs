//! Whether a text matches a pattern, in bounded time.

use super::node::PatternNode;

/// Whether the whole text matches. `count` gets the number of steps taken so far, and stops the search by returning false: then the
/// result is `None`.
pub(crate) fn matches(node: &PatternNode, text: &str, count: &dyn Fn(usize) -> bool) -> Option<bool> {
    let chars: Vec<u32> = text.chars().map(u32::from).collect();
    let mut start = vec![false; chars.len() + 1];
    if let Some(first) = start.first_mut() {
        *first = true;
    }
    let ends = ends(node, &chars, start, count)?;
    Some(ends.last().copied().unwrap_or(false))
}

/// Where a match can end that begins at one of the places in `from`.
fn ends(node: &PatternNode, text: &[u32], from: Vec<bool>, count: &dyn Fn(usize) -> bool) -> Option<Vec<bool>> {
    if !count(1 + from.len() / 8) {
        return None;
    }
    let union = |all: &mut Vec<bool>, more: &[bool]| {
        let mut grows = false;
        for (one, other) in all.iter_mut().zip(more) {
            grows |= *other && !*one;
            *one |= *other;
        }
        grows
    };
    Some(match node {
        PatternNode::Class(set) => {
            let mut next = vec![false; from.len()];
            for ((begins, char), end) in from.iter().zip(text).zip(next.iter_mut().skip(1)) {
                *end = *begins && set.contains(*char);
            }
            next
        }
        PatternNode::Seq(nodes) => {
            let mut places = from;
            for node in nodes {
                places = ends(node, text, places, count)?;
            }
            places
        }
        PatternNode::Alt(nodes) => {
            let mut all = vec![false; from.len()];
            for node in nodes {
                union(&mut all, &ends(node, text, from.clone(), count)?);
            }
            all
        }
        PatternNode::Repeat(node, least, most) => {
            let mut places = from;
            for _ in 0..*least {
                places = ends(node, text, places, count)?;
            }
            let mut all = places.clone();
            for _ in *least..most.unwrap_or(u32::MAX) {
                places = ends(node, text, places, count)?;
                if !union(&mut all, &places) {
                    break;
                }
            }
            all
        }
        // None are left in a pattern for the whole text.
        PatternNode::Start | PatternNode::End => from,
    })
}
