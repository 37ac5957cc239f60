//! A 64-bit checksum against accidental damage. Detects every change within one aligned 8-byte word. It is not cryptographic.

/// An incremental checksum. The value does not depend on how the input is split.
#[derive(Debug, Clone)]
pub struct Checksum {
    state: u64,
    length: u64,
    /// The bytes of an incomplete word.
    rest: [u8; 8],
}

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum { state: 0x243F_6A88_85A3_08D3, length: 0, rest: [0; 8] }
    }
}

impl Checksum {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.value()
    }

    /// Appends `bytes`.
    pub fn add(&mut self, mut bytes: &[u8]) {
        let used = usize::try_from(self.length % 8).unwrap_or(0);
        self.length += bytes.len() as u64;
        if used > 0 {
            let (head, tail) = bytes.split_at(bytes.len().min(8 - used));
            for (to, from) in self.rest.iter_mut().skip(used).zip(head) {
                *to = *from;
            }
            bytes = tail;
            if used + head.len() < 8 {
                return;
            }
            self.mix(u64::from_le_bytes(self.rest));
        }
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        for (to, from) in self.rest.iter_mut().zip(tail) {
            *to = *from;
        }
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u64 {
        let mut sum = self.clone();
        let used = usize::try_from(self.length % 8).unwrap_or(0);
        sum.rest.iter_mut().skip(used).for_each(|byte| *byte = 0);
        sum.mix(u64::from_le_bytes(sum.rest));
        sum.mix(self.length);
        sum.state
    }

    /// A bijection of the state, so different words give different states, which stay different.
    fn mix(&mut self, word: u64) {
        let product = (self.state ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.state = product ^ (product >> 29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_does_not_depend_on_the_split() {
        let bytes: Vec<u8> = (0..100).collect();
        for cut in 0..bytes.len() {
            for second in (cut..bytes.len()).step_by(7) {
                let mut sum = Checksum::default();
                sum.add(&bytes[..cut]);
                sum.add(&bytes[cut..second]);
                sum.add(&bytes[second..]);
                assert_eq!(sum.value(), Checksum::of(&bytes), "{cut} {second}");
            }
        }
    }

    #[test]
    fn flipped_removed_and_added_bytes_change_the_checksum() {
        let bytes: Vec<u8> = (0..50u8).map(|n| n.wrapping_mul(7)).collect();
        let sum = Checksum::of(&bytes);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                assert_ne!(Checksum::of(&other), sum, "{at} {bit}");
            }
            assert_ne!(Checksum::of(&bytes[..at]), sum);
        }
        assert_ne!(Checksum::of(&[bytes, vec![0]].concat()), sum);
    }
}
