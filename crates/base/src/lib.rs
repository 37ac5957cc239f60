//! The leaf that every layer of foredraft shares: errors, tokens, vocabularies, how a prompt fits a context, files replaced whole.
//!
//! Nothing here knows llama.cpp, and nothing here knows the layers above it. Types that two of them use belong here, so that they need not
//! import each other.
//!
//! - [`error`]: a code from a closed list, and a message that names the field and the value.
//! - [`Vocabulary`], [`Token`], [`TokenData`]: tokens as grammars and samplers see them. A model implements the trait; tests have fakes.
//! - [`TokenTree`]: a vocabulary's tokens as a tree of their bytes.
//! - [`HiddenStates`]: what drafters read of a target.
//! - [`prompt_fit`]: prefix reuse, truncation and context shifts, as functions of tokens and their counts.
//! - [`Snapshot`]: one sequence of a KV cache as plain data.
//! - [`atomic_write`]: files. [`memory`]: lack of memory as an error.
//! - [`words`](words!): enums whose values have words in JSON.
//! - [`work`]: steps and interrupts of passes over a host's text.

pub mod atomic_write;
pub mod error;
mod hidden_states;
pub mod memory;
pub mod prompt_fit;
mod snapshot;
mod token;
mod token_tree;
mod vocabulary;
mod words;
pub mod work;

pub use hidden_states::HiddenStates;
pub use snapshot::{RowSpan, SavedMedia, Snapshot};
pub use token::{Token, TokenData};
pub use token_tree::{TextSummary, TokenNode, TokenTree};
pub use vocabulary::Vocabulary;
