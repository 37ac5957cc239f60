//! Regular expressions in the notation of ECMAScript: read for schemas and triggers, and searched for triggers.

mod chars;
mod parse;
mod search;

pub use self::chars::{CharSet, Ranges};
pub use self::parse::{PatternFault, RegexNode, parse};
pub(crate) use self::search::Pattern;
