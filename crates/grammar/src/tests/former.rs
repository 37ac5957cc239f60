//! The automaton over characters that was used before the tree of rules, and its parser: an independent implementation to compare with. It
//! goes when chat formats and schemas no longer need it as a reference.
#![allow(clippy::indexing_slicing, dead_code, reason = "tests")]

pub(super) mod automaton;
mod parse;
mod rules;
mod scanner;

pub(super) use parse::parse;
