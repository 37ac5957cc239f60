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

    pub(crate) fn unite(&mut self, other: &ByteSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own |= other);
    }

    pub(crate) fn inverted(self) -> ByteSet {
        ByteSet(self.0.map(|word| !word))
    }

    /// `\d`, `\w` or `\s`, or one of their complements.
    pub(crate) fn named(name: u8) -> Option<ByteSet> {
        let mut set = ByteSet::EMPTY;
        match name.to_ascii_lowercase() {
            b'd' => set.add(b'0', b'9'),
            b'w' => [(b'a', b'z'), (b'A', b'Z'), (b'0', b'9'), (b'_', b'_')].iter().for_each(|(a, b)| set.add(*a, *b)),
            b's' => b" \t\n\r\x0b\x0c".iter().for_each(|byte| set.add(*byte, *byte)),
            _ => return None,
        }
        Some(if name.is_ascii_uppercase() { set.inverted() } else { set })
    }
}
