//! Tests of the whole layer.

mod mutations;
