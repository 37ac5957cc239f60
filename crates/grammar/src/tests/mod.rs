//! Tests of the whole crate.

mod chats;
mod formats;
pub(crate) mod masks;
mod values;
mod work;
