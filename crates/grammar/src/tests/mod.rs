//! Tests of the whole crate.

mod chats;
mod formats;
mod former;
mod like_before;
mod masks;
mod values;
