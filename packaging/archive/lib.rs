//! The C functions of `foredraft` as a static library.
extern crate foredraft as _;
