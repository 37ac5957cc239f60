//! Turns a pattern, which is searched for, into one that describes the whole text: what is not anchored is surrounded by any text.

use foredraft_base::work::Work;

use foredraft_grammar::pattern::RegexNode;

use super::node::PatternNode;

/// The maximum number of alternatives with anchors of their own.
const MAX_BRANCHES: usize = 64;

/// A way to match: a part without anchors, and whether it must begin at the start and end at the end of the text.
#[derive(Clone, Default)]
struct Branch {
    at_start: bool,
    at_end: bool,
    body: Vec<PatternNode>,
    /// The number of parts of the body that are not nullable.
    n_solid: usize,
}

/// The whole texts in which the pattern is found. The error names what is in the way.
pub(super) fn whole_text(pattern: &RegexNode, work: &Work) -> Result<PatternNode, String> {
    let mut alternatives = Vec::new();
    for branch in branches(pattern, work)? {
        alternatives.push(surround(branch));
    }
    match alternatives.len() {
        0 => Err("anchors that no text matches".into()),
        1 => Ok(alternatives.swap_remove(0)),
        _ => Ok(PatternNode::Alt(alternatives)),
    }
}

/// Any text before and after a branch, where it is not anchored.
fn surround(branch: Branch) -> PatternNode {
    let mut body = branch.body;
    if !branch.at_start {
        // Any text, and then what can be empty, is any text.
        let n_nullable = body.iter().take_while(|node| node.is_nullable()).count();
        body.drain(..n_nullable);
        shorten(body.first_mut());
    }
    if !branch.at_end {
        while body.last().is_some_and(PatternNode::is_nullable) {
            body.pop();
        }
        shorten(body.last_mut());
    }
    let is_any = body.is_empty() && !(branch.at_start && branch.at_end);
    if is_any {
        return PatternNode::any_text();
    }
    if !branch.at_start {
        body.insert(0, PatternNode::any_text());
    }
    if !branch.at_end {
        body.push(PatternNode::any_text());
    }
    PatternNode::Seq(body)
}

/// Beside any text, the fewest repetitions are enough. This keeps the number of parses small.
fn shorten(node: Option<&mut PatternNode>) {
    if let Some(PatternNode::Repeat(_, least, most)) = node {
        *most = Some(*least);
    }
}

/// The texts of a regular expression without anchors. The error names the part that a grammar cannot express.
pub(super) fn plain(node: &RegexNode, work: &Work) -> Result<PatternNode, String> {
    let all = |nodes: &[RegexNode]| nodes.iter().map(|node| plain(node, work)).collect::<Result<Vec<_>, _>>();
    Ok(match node {
        RegexNode::Class(set) => PatternNode::Class(set.clone()),
        RegexNode::Seq(nodes) => PatternNode::Seq(all(nodes)?),
        RegexNode::Alt(nodes) => PatternNode::Alt(all(nodes)?),
        RegexNode::Group(node, _) => plain(node, work)?,
        RegexNode::Repeat(node, least, most, _) => PatternNode::repeat(plain(node, work)?, *least, *most, work)?,
        RegexNode::Look(..) => return Err("a lookahead".into()),
        RegexNode::WordBoundary(is) => return Err(format!("a word boundary (\\{})", if *is { 'b' } else { 'B' })),
        RegexNode::Start | RegexNode::End => return Err("a repeated anchor".into()),
    })
}

/// Whether there is an anchor in a regular expression.
fn has_anchor(node: &RegexNode) -> bool {
    match node {
        RegexNode::Start | RegexNode::End => true,
        RegexNode::Seq(nodes) | RegexNode::Alt(nodes) => nodes.iter().any(has_anchor),
        RegexNode::Group(node, _) | RegexNode::Repeat(node, ..) => has_anchor(node),
        RegexNode::Class(_) | RegexNode::Look(..) | RegexNode::WordBoundary(_) => false,
    }
}

/// The branches of a node.
fn branches(node: &RegexNode, work: &Work) -> Result<Vec<Branch>, String> {
    if !has_anchor(node) {
        let body = match plain(node, work)? {
            PatternNode::Seq(nodes) => nodes,
            node => vec![node],
        };
        let n_solid = body.iter().filter(|node| !node.is_nullable()).count();
        return Ok(vec![Branch { body, n_solid, ..Branch::default() }]);
    }
    match node {
        RegexNode::Start => Ok(vec![Branch { at_start: true, ..Branch::default() }]),
        RegexNode::End => Ok(vec![Branch { at_end: true, ..Branch::default() }]),
        RegexNode::Group(node, _) | RegexNode::Repeat(node, 1, Some(1), _) => branches(node, work),
        RegexNode::Repeat(_, _, Some(0), _) => Ok(vec![Branch::default()]),
        RegexNode::Repeat(node, 0, Some(1), _) => {
            let mut all = branches(node, work)?;
            all.push(Branch::default());
            Ok(all)
        }
        RegexNode::Alt(nodes) => {
            let mut all = Vec::new();
            for node in nodes {
                all.extend(branches(node, work)?);
                count(&all)?;
            }
            Ok(all)
        }
        RegexNode::Seq(nodes) => {
            let mut all = vec![Branch::default()];
            for node in nodes {
                let next = branches(node, work)?;
                let copied = next.iter().map(|branch| branch.body.len()).sum::<usize>() * all.len();
                work.step(1 + copied).map_err(|end| end.to_string())?;
                all = match next.as_slice() {
                    [only] => all.into_iter().filter_map(|one| one.then(only)).collect(),
                    next => {
                        let before = all.iter().map(|branch| branch.body.len()).sum::<usize>() * next.len();
                        work.step(before).map_err(|end| end.to_string())?;
                        all.iter().flat_map(|one| next.iter().filter_map(|other| one.clone().then(other))).collect()
                    }
                };
                count(&all)?;
            }
            Ok(all)
        }
        _ => Err("a repeated anchor".into()),
    }
}

fn count(branches: &[Branch]) -> Result<(), String> {
    if branches.len() <= MAX_BRANCHES { Ok(()) } else { Err(format!("more than {MAX_BRANCHES} anchored alternatives")) }
}

impl Branch {
    /// This branch and then another; `None` if no text matches both. Between an anchor and its end of the text, only the empty
    /// text fits.
    fn then(mut self, next: &Branch) -> Option<Branch> {
        if next.at_start && self.n_solid > 0 || self.at_end && next.n_solid > 0 {
            return None;
        }
        if next.at_start {
            (self.body, self.n_solid) = (Vec::new(), 0);
        }
        if !self.at_end {
            self.body.extend_from_slice(&next.body);
            self.n_solid += next.n_solid;
        }
        (self.at_start, self.at_end) = (self.at_start || next.at_start, self.at_end || next.at_end);
        Some(self)
    }
}
