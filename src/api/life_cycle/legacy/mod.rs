//! The old JSON-RPC server's interface, in front of an engine.
//!
//! [`OldServer`] translates calls of the old server's functions to the engine's own, which know nothing of them: `request` and `values`
//! change a request to one that the engine accepts. `keys` has the old names of a load's keys, which every load accepts. The C functions
//! are in `ffi::legacy`, and `docs/migration.md` describes the differences that stay.

mod old_server;
mod request;
mod values;

pub use self::old_server::OldServer;
pub use self::request::Endpoint;
#[cfg(test)]
pub use self::request::translate;
