//! Tests of the whole crate.

mod chats;
mod formats;
mod former;
mod like_before;
pub(crate) mod masks;
mod values;
mod work;
