//! The texts that a regular expression in a schema describes.
//!
//! A pattern is found anywhere in a text, while a grammar describes the whole text. So each pattern is read into a tree without anchors,
//! surrounded by any text where it has none. A pattern with parts that a grammar cannot express is refused.

mod node;
mod search;
#[cfg(test)]
mod tests;

use foredraft_base::work::Work;
use foredraft_grammar::pattern::parse;

pub(crate) use self::node::PatternNode;

/// The steps of making the node of a class of characters.
pub(crate) const STEPS_PER_NODE: usize = 64;

/// The whole texts in which a pattern is found. The error names the part that a grammar cannot express.
pub(crate) fn whole_text(pattern: &str, work: &Work) -> Result<PatternNode, String> {
    search::whole_text(&parse(pattern, work).map_err(|fault| fault.what)?, work)
}

/// The texts of a pattern of this crate, which is valid and has no anchors. Nothing, if `work` ended.
pub(crate) fn own(pattern: &str, work: &Work) -> PatternNode {
    let read = parse(pattern, work).map_err(|fault| fault.what);
    read.and_then(|regex| search::plain(&regex, work)).unwrap_or(PatternNode::EMPTY)
}
