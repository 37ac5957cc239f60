//! A checksum of 64 bits against accidental damage: no change of up to eight neighbouring bytes within an aligned
//! word goes unnoticed. It does not resist those who forge on purpose.

/// The sum of what was added, piece by piece; where the pieces begin and end does not matter.
#[derive(Debug, Clone)]
pub struct Checksum {
    state: u64,
    length: u64,
    /// Bytes that do not fill a word yet.
    rest: [u8; 8],
}

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum { state: 0x243F_6A88_85A3_08D3, length: 0, rest: [0; 8] }
    }
}

impl Checksum {
    /// The sum of `bytes`.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.value()
    }

    /// Adds `bytes` behind what was added before.
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

    /// The sum so far.
    pub fn value(&self) -> u64 {
        let mut sum = self.clone();
        let used = usize::try_from(self.length % 8).unwrap_or(0);
        sum.rest.iter_mut().skip(used).for_each(|byte| *byte = 0);
        sum.mix(u64::from_le_bytes(sum.rest));
        sum.mix(self.length);
        sum.state
    }

    /// Each step maps states one to one, so words that differ lead to states that differ, and stay so.
    fn mix(&mut self, word: u64) {
        let product = (self.state ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.state = product ^ (product >> 29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_sum_of_the_whole() {
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
    fn every_flip_cut_and_added_byte_changes_it() {
        let bytes: Vec<u8> = (0..50).map(|n| n * 7).collect();
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
