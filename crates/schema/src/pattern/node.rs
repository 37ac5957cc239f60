//! The texts of a pattern as a tree: a regular expression without anchors, groups and preferences.

use foredraft_base::work::Work;

use foredraft_grammar::pattern::CharSet;

/// The maximum number of elements of a sequence of which every one may be empty, inside a repetition.
const MAX_OPTIONAL: usize = 16;

/// The maximum number of nodes of a pattern in a grammar.
const MAX_NODES: usize = 1 << 15;
/// Surrogates are no characters.
pub(super) const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PatternNode {
    /// One character of a set.
    Class(CharSet),
    /// One after the other. The empty sequence is the empty text.
    Seq(Vec<PatternNode>),
    /// One of several. Never empty.
    Alt(Vec<PatternNode>),
    /// At least so often, at most so often. The repeated text is never empty.
    Repeat(Box<PatternNode>, u32, Option<u32>),
}

impl PatternNode {
    /// The empty text.
    pub(crate) const EMPTY: PatternNode = PatternNode::Seq(Vec::new());

    /// This text.
    pub(crate) fn text(text: &str) -> PatternNode {
        PatternNode::Seq(text.chars().map(|char| PatternNode::Class(CharSet::one(char.into()))).collect())
    }

    /// Any text.
    pub(crate) fn any_text() -> PatternNode {
        PatternNode::Repeat(Box::new(PatternNode::Class(CharSet::any())), 0, None)
    }

    /// A repetition. If the repeated part can be empty, its other texts are repeated instead, because a grammar must not repeat
    /// nothing without end.
    pub(crate) fn repeat(node: PatternNode, least: u32, most: Option<u32>, work: &Work) -> Result<PatternNode, String> {
        if most == Some(0) {
            return Ok(PatternNode::EMPTY);
        }
        if !node.is_nullable() {
            return Ok(PatternNode::Repeat(Box::new(node), least, most));
        }
        Ok(match node.without_empty(work)? {
            Some(node) => PatternNode::Repeat(Box::new(node), 0, most),
            None => PatternNode::EMPTY,
        })
    }

    /// Whether the node matches the empty text.
    pub(crate) fn is_nullable(&self) -> bool {
        match self {
            PatternNode::Class(_) => false,
            PatternNode::Seq(nodes) => nodes.iter().all(PatternNode::is_nullable),
            PatternNode::Alt(nodes) => nodes.iter().any(PatternNode::is_nullable),
            PatternNode::Repeat(_, least, _) => *least == 0,
        }
    }

    /// The number of its nodes.
    fn size(&self) -> usize {
        match self {
            PatternNode::Seq(nodes) | PatternNode::Alt(nodes) => 1 + nodes.iter().map(PatternNode::size).sum::<usize>(),
            PatternNode::Repeat(node, ..) => 1 + node.size(),
            PatternNode::Class(_) => 1,
        }
    }

    /// The node, if each string of it can be spelled in each notation. The error names the part that cannot.
    pub(crate) fn expressible(self) -> Result<PatternNode, String> {
        let mut sets = Vec::new();
        self.add_sets(&mut sets);
        if sets.iter().any(|set| set.without(&[SURROGATES]).is_empty()) {
            return Err("an empty class".into());
        }
        if self.size() > MAX_NODES { Err("too many characters and classes".into()) } else { Ok(self) }
    }

    /// Returns whether it is [`PatternNode::any_text`].
    pub(crate) fn is_any_text(&self) -> bool {
        *self == PatternNode::any_text()
    }

    /// Adds the sets of its classes.
    pub(crate) fn add_sets<'n>(&'n self, sets: &mut Vec<&'n CharSet>) {
        match self {
            PatternNode::Class(set) => sets.push(set),
            PatternNode::Seq(nodes) | PatternNode::Alt(nodes) => nodes.iter().for_each(|node| node.add_sets(sets)),
            PatternNode::Repeat(node, ..) => node.add_sets(sets),
        }
    }

    /// The texts without some characters. `keeps_any`: where it has any text, this stays. `None`: there are none.
    pub(crate) fn without(&self, codes: &[(u32, u32)], keeps_any: bool) -> Option<PatternNode> {
        match self {
            node if keeps_any && node.is_any_text() => Some(node.clone()),
            PatternNode::Class(set) => Some(set.without(codes)).filter(|set| !set.is_empty()).map(PatternNode::Class),
            PatternNode::Seq(nodes) => {
                nodes.iter().map(|node| node.without(codes, keeps_any)).collect::<Option<_>>().map(PatternNode::Seq)
            }
            PatternNode::Alt(nodes) => {
                let kept: Vec<PatternNode> = nodes.iter().filter_map(|node| node.without(codes, keeps_any)).collect();
                (!kept.is_empty()).then_some(PatternNode::Alt(kept))
            }
            PatternNode::Repeat(node, least, most) => match node.without(codes, keeps_any) {
                Some(node) => Some(PatternNode::Repeat(Box::new(node), *least, *most)),
                None => (*least == 0).then_some(PatternNode::EMPTY),
            },
        }
    }

    /// The texts of a node except the empty one; `None` if there are no others.
    fn without_empty(self, work: &Work) -> Result<Option<PatternNode>, String> {
        if !self.is_nullable() {
            return Ok(Some(self));
        }
        let mut kept = Vec::new();
        match self {
            PatternNode::Class(_) => return Ok(Some(self)),
            PatternNode::Repeat(node, _, most) => return Ok(Some(PatternNode::Repeat(node, 1, most))),
            PatternNode::Alt(nodes) => {
                for node in nodes {
                    kept.extend(node.without_empty(work)?);
                }
            }
            // The first element that is not empty, and whatever follows it.
            PatternNode::Seq(nodes) if nodes.len() <= MAX_OPTIONAL => {
                let size: usize = nodes.iter().map(PatternNode::size).sum();
                for (i, node) in nodes.iter().enumerate() {
                    work.step(size).map_err(|end| end.to_string())?;
                    if let Some(first) = node.clone().without_empty(work)? {
                        let mut rest = vec![first];
                        rest.extend(nodes.iter().skip(i + 1).cloned());
                        kept.push(PatternNode::Seq(rest));
                    }
                }
            }
            PatternNode::Seq(_) => return Err(format!("a repeated group of more than {MAX_OPTIONAL} optional parts")),
        }
        Ok(if kept.is_empty() { None } else { Some(PatternNode::Alt(kept)) })
    }

    /// The fewest and the most characters of its texts.
    pub(crate) fn lengths(&self) -> (u64, Option<u64>) {
        match self {
            PatternNode::Class(_) => (1, Some(1)),
            PatternNode::Seq(nodes) => {
                nodes.iter().map(PatternNode::lengths).fold((0, Some(0)), |(low, high), (least, most)| {
                    (low.saturating_add(least), high.zip(most).map(|(high, most)| high.saturating_add(most)))
                })
            }
            PatternNode::Alt(nodes) => {
                let each = nodes.iter().map(PatternNode::lengths);
                each.reduce(|(low, high), (least, most)| (low.min(least), high.zip(most).map(|(a, b)| a.max(b))))
                    .unwrap_or((0, Some(0)))
            }
            PatternNode::Repeat(node, least, most) => {
                let (low, high) = node.lengths();
                let high = high.zip(*most).map(|(high, most)| high.saturating_mul(u64::from(most)));
                (low.saturating_mul(u64::from(*least)), high)
            }
        }
    }

    /// Limits the number of characters. `None`: only an intersection of languages could.
    pub(crate) fn limit(self, least: u64, most: Option<u64>) -> Option<PatternNode> {
        let (low, high) = self.lengths();
        let is_within = |high: u64| most.is_none_or(|most| high <= most);
        if low >= least && (most.is_none() || high.is_some_and(is_within)) {
            return Some(self);
        }
        let mut nodes = match self {
            PatternNode::Alt(nodes) => {
                return nodes
                    .into_iter()
                    .map(|node| node.limit(least, most))
                    .collect::<Option<_>>()
                    .map(PatternNode::Alt);
            }
            PatternNode::Seq(nodes) => nodes,
            node => vec![node],
        };
        // With one element of a variable length, and this one a repeated class, the limits are limits of its count.
        let is_fixed = |node: &PatternNode| matches!(node.lengths(), (low, Some(high)) if low == high);
        let fixed: u64 = nodes.iter().filter(|node| is_fixed(node)).map(|node| node.lengths().0).sum();
        let mut variable = nodes.iter_mut().filter(|node| !is_fixed(node));
        let (Some(PatternNode::Repeat(node, min, max)), None) = (variable.next(), variable.next()) else { return None };
        if !matches!(**node, PatternNode::Class(_)) {
            return None;
        }
        let needed = u32::try_from(least.saturating_sub(fixed)).ok()?;
        let room = match most {
            None => None,
            Some(most) => Some(u32::try_from(most.checked_sub(fixed)?).ok()?),
        };
        *min = needed.max(*min);
        *max = (*max).into_iter().chain(room).min();
        if max.is_some_and(|max| max < *min) {
            return None;
        }
        Some(PatternNode::Seq(nodes))
    }
}
