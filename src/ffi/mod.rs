//! The C interface. Each function converts its arguments, calls [`System`](crate::api::System), and converts the result.
//!
//! `foredraft_*` functions take the handle of an engine (`engines`). The old names (`rpcserver`, a cargo feature) call the same
//! functions with the default engine, whose handle is NULL.
//!
//! # Safety
//! All functions of this module rely on two properties of the host. A string argument is NULL, or points to a NUL-terminated string
//! that is readable during the call. A callback can be called from any thread until it is replaced. Handles are numbers and never
//! dereferenced.

mod callbacks;
mod engine;
mod engines;
mod exit;
mod guard;
mod notify_fd;
mod requests;
#[cfg(feature = "rpcserver")]
mod rpcserver;
#[cfg(feature = "rpcserver")]
mod rpcserver_all;
mod types;
