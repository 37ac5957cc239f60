//! What the old names accept and `foredraft_*` functions do not: keys that have another name now, and values that the old server clamped
//! or ignored. The functions themselves are in `ffi::legacy`, and `docs/migration.md` describes the differences that stay.

pub(super) mod keys;
mod values;

pub use self::values::clamp_old_values;
