//! The C interface: each function converts, calls [`System`], and reports. The one global lives here.
//!
//! # Safety, for all functions of this room
//! A pointer that a host passes is NULL or points to a NUL-terminated string that is readable during the call; a
//! callback may be called from any thread until it is replaced. That is all that C can promise and all that is used.

mod callbacks;
mod completion;
mod guard;
mod lifecycle;
mod lookup;
mod lookup_cache;
mod session;
mod text;

use once_cell::sync::Lazy;

use crate::api::System;

/// The server that C hosts talk to.
static SYSTEM: Lazy<System> = Lazy::new(System::new);
