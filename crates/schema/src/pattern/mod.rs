//! Regular expressions in schemas.
//!
//! A pattern is found anywhere in a text, while a grammar describes the whole text. So each pattern is read into a tree, surrounded by
//! any text where it has no anchor. A pattern with parts that a grammar cannot express is refused.

mod classes;
mod matching;
mod node;
mod parse;
mod search;
#[cfg(test)]
mod tests;

use foredraft_base::work::Work;

pub(crate) use self::classes::{CharSet, Ranges};
pub(crate) use self::matching::matches;
pub(crate) use self::node::PatternNode;

/// The whole texts in which a pattern is found. The error names the part that a grammar cannot express.
pub(crate) fn whole_text(pattern: &str, work: &Work) -> Result<PatternNode, String> {
    search::whole_text(parse::parse(pattern, work)?, work)
}
