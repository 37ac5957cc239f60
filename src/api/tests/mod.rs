//! Tests of the whole layer.

pub(super) mod mutations;
