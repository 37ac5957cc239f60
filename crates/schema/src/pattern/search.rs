//! Turns a pattern, which is searched for, into one that describes the whole text: what is not anchored is surrounded by any text.

use super::node::PatternNode;

/// The maximum number of alternatives with anchors of their own.
const MAX_BRANCHES: usize = 64;

/// A way to match: a part without anchors, and whether it must begin at the start and end at the end of the text.
#[derive(Clone)]
struct Branch {
    at_start: bool,
    at_end: bool,
    body: Vec<PatternNode>,
}

/// The whole texts in which the pattern is found. The error names what is in the way.
pub(super) fn whole_text(pattern: PatternNode) -> Result<PatternNode, String> {
    let mut alternatives = Vec::new();
    for branch in branches(pattern)? {
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
        while body.first().is_some_and(PatternNode::is_nullable) {
            // Any text, and then this, is any text.
            body.remove(0);
        }
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

/// The branches of a node.
fn branches(node: PatternNode) -> Result<Vec<Branch>, String> {
    if !node.has_anchor() {
        let body = match node {
            PatternNode::Seq(nodes) => nodes,
            node => vec![node],
        };
        return Ok(vec![Branch { at_start: false, at_end: false, body }]);
    }
    match node {
        PatternNode::Start => Ok(vec![Branch { at_start: true, at_end: false, body: Vec::new() }]),
        PatternNode::End => Ok(vec![Branch { at_start: false, at_end: true, body: Vec::new() }]),
        PatternNode::Alt(nodes) => {
            let mut all = Vec::new();
            for node in nodes {
                all.extend(branches(node)?);
                count(&all)?;
            }
            Ok(all)
        }
        PatternNode::Seq(nodes) => {
            let mut all = vec![Branch { at_start: false, at_end: false, body: Vec::new() }];
            for node in nodes {
                let next = branches(node)?;
                all = all.iter().flat_map(|one| next.iter().filter_map(|other| one.then(other))).collect();
                count(&all)?;
            }
            Ok(all)
        }
        PatternNode::Class(_) | PatternNode::Repeat(..) => Err("a repeated anchor".into()),
    }
}

fn count(branches: &[Branch]) -> Result<(), String> {
    if branches.len() <= MAX_BRANCHES { Ok(()) } else { Err(format!("more than {MAX_BRANCHES} anchored alternatives")) }
}

impl Branch {
    /// This branch and then another; `None` if no text matches both. Between an anchor and its end of the text, only the empty
    /// text fits.
    fn then(&self, next: &Branch) -> Option<Branch> {
        let is_empty = |body: &[PatternNode]| body.iter().all(PatternNode::is_nullable);
        if next.at_start && !is_empty(&self.body) || self.at_end && !is_empty(&next.body) {
            return None;
        }
        let before: &[PatternNode] = if next.at_start { &[] } else { &self.body };
        let after: &[PatternNode] = if self.at_end { &[] } else { &next.body };
        let body = [before, after].concat();
        Some(Branch { at_start: self.at_start || next.at_start, at_end: self.at_end || next.at_end, body })
    }
}
