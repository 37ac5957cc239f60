//! The C interface: each function converts, calls [`System`](crate::api::System), and reports.
//!
//! `foredraft_*` functions name an engine by a handle (`engines`). The old names (`rpcserver`, a cargo feature) are the same
//! calls on the process's default engine, which `foredraft_*` functions name by NULL.
//!
//! # Safety, for all functions of this module
//! A string that a host passes is NULL or points to a NUL-terminated string that is readable during the call; a callback may
//! be called from any thread until it is replaced. That is all that C can promise and all that is used. Handles are numbers:
//! none is ever dereferenced.

mod callbacks;
mod engine;
mod engines;
mod exit;
mod guard;
mod notify_fd;
mod requests;
#[cfg(feature = "rpcserver")]
mod rpcserver;
mod types;
