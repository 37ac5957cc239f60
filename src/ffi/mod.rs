//! The C interface. Each function converts its arguments, calls [`JsonEngine`](crate::api::JsonEngine), and converts the result.
//!
//! `foredraft_*` functions take the handle of an engine (`engines`). The old names (`legacy`, cargo feature `rpcserver`) call the same
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
#[cfg(feature = "rpcserver")]
mod legacy;
#[cfg(feature = "rpcserver")]
mod legacy_added;
#[cfg(unix)]
mod notify_fd;
#[cfg(windows)]
mod notify_handle;
mod requests;
mod types;
