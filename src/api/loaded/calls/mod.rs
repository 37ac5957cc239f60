//! The functions of a loaded engine, one file for each group. All are methods of [`LocalEngine`](crate::api::LocalEngine) that take a JSON
//! document and return one.

mod chat;
mod completion;
mod constraint;
mod conversation;
mod decision;
mod embedding;
mod encoder_decision;
mod poll;
mod session;
mod text;

pub use self::chat::messages;
pub use self::completion::completion_records;
pub use self::poll::{PollCommand, cancelled};
