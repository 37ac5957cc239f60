//! The texts that a regular expression in a schema describes.
//!
//! A pattern is found anywhere in a text, while a grammar describes the whole text. So each pattern is read into a tree without anchors,
//! surrounded by any text where it has none. A pattern with parts that a grammar cannot express is refused.

mod node;
mod search;
mod set;
#[cfg(test)]
mod tests;

use foredraft_base::work::Work;
use foredraft_grammar::pattern::{RegexNode, parse};

pub(crate) use self::node::PatternNode;
pub(crate) use self::set::{DecimalStep, SetFault, TextSet};

/// The steps of making the node of a class of characters.
pub(crate) const STEPS_PER_NODE: usize = 64;

/// Adds the whole texts in which a pattern is found: they are in `all`, and not in `none`, to which lookaheads at the beginning of the text
/// add theirs. The error names the part that a grammar cannot express.
pub(crate) fn whole_texts(
    pattern: &str,
    all: &mut Vec<PatternNode>,
    none: &mut Vec<PatternNode>,
    work: &Work,
) -> Result<(), String> {
    let mut regex = parse(pattern, work).map_err(|fault| fault.what)?;
    if let RegexNode::Seq(nodes) = &mut regex
        && nodes.first() == Some(&RegexNode::Start)
    {
        while let Some(RegexNode::Look(..)) = nodes.get(1) {
            if let RegexNode::Look(inner, is_wanted) = nodes.remove(1) {
                let texts = search::whole_text(&RegexNode::Seq(vec![RegexNode::Start, *inner]), work)?;
                if is_wanted { all.push(texts) } else { none.push(texts) }
            }
        }
    }
    all.push(search::whole_text(&regex, work)?.expressible()?);
    Ok(())
}

/// The set of the texts in which a pattern is found. `None`: no automaton can express it.
pub(crate) fn found(pattern: &str, work: &Work) -> Option<TextSet> {
    let (mut all, mut none) = (Vec::new(), Vec::new());
    whole_texts(pattern, &mut all, &mut none, work).ok()?;
    TextSet::new(all, none, None, work).ok()
}

/// The texts of a pattern of this crate, which is valid and has no anchors. Nothing, if `work` ended.
pub(crate) fn own(pattern: &str, work: &Work) -> PatternNode {
    let read = parse(pattern, work).map_err(|fault| fault.what);
    read.and_then(|regex| search::plain(&regex, work)).unwrap_or(PatternNode::EMPTY)
}
