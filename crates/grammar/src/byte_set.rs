//! Sets of bytes.

/// A set of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(crate) const EMPTY: ByteSet = ByteSet([0; 4]);

    pub(crate) fn contains(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte / 64)).is_some_and(|word| word & (1 << (byte % 64)) != 0)
    }

    /// Adds a range of bytes.
    pub(crate) fn add(&mut self, from: u8, to: u8) {
        for byte in from..=to {
            self.0.get_mut(usize::from(byte / 64)).into_iter().for_each(|word| *word |= 1 << (byte % 64));
        }
    }
}
