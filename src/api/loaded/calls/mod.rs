//! The functions of a loaded engine, one file for each group. All are methods of [`LocalEngine`](crate::api::LocalEngine) that take a JSON
//! document and return one.

mod chat;
mod completion;
mod constraint;
mod decision;
mod embedding;
mod poll;
mod session;
mod text;

pub use self::chat::record as chat_record;
pub use self::poll::{
    PollCommand, PollSource, cancel_left, cancel_without_models, cancelled, found_elsewhere, poll_left,
    poll_without_models,
};
