//! Tests of the whole crate.

mod former;
mod like_before;
