//! The functions of `native.h` and `kernels/native.h`, declared by bindgen.
#![allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    clippy::all,
    clippy::indexing_slicing,
    reason = "generated; not every platform uses all"
)]

include!(concat!(env!("OUT_DIR"), "/native.rs"));
