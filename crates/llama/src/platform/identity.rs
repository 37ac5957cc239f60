//! The identity of a file.

/// A number that two files have in common only if they are the same: device and inode, or what the system has instead.
pub(crate) type FileIdentity = (u64, u64);
