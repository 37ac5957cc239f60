//! How long the data of a PNG file are when they are inflated (RFC 1951). mtmd's reader keeps all that a file inflates to, up to 4 GiB of a
//! file of 4 MB, so it is measured here before.

/// The longest code.
const MAX_BITS: usize = 15;
/// The order in which lengths of codes for lengths are given.
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Whether what this zlib stream inflates to has at most `most` bytes. A stream that is damaged has not.
pub(super) fn fits(stream: &[u8], most: u64) -> bool {
    // Two bytes of a match are the least that 258 bytes take.
    stream.len() as u64 * 1032 <= most || length(stream, most).is_some_and(|length| length <= most)
}

/// The length of what a stream inflates to, or one that is more than `most`. `None`: it is damaged.
fn length(stream: &[u8], most: u64) -> Option<u64> {
    let mut bits = Bits { bytes: stream.get(2..)?, held: 0, n_held: 0 };
    let mut length = 0;
    let mut is_last = false;
    while !is_last && length <= most {
        is_last = bits.take(1)? == 1;
        let (symbols, distances) = match bits.take(2)? {
            0 => {
                length += u64::from(bits.skip_stored()?);
                continue;
            }
            1 => (Codes::of(&fixed())?, Codes::of(&[5; 30])?),
            2 => bits.codes()?,
            _ => return None,
        };
        while length <= most {
            length += match bits.symbol(&symbols)? {
                0..256 => 1,
                256 => break,
                symbol => {
                    let (base, n_extra) = match symbol - 257 {
                        short @ 0..8 => (3 + short, 0),
                        28 => (258, 0),
                        long @ 8..28 => (3 + ((4 + (long & 3)) << ((long - 4) / 4)), (long - 4) / 4),
                        _ => return None,
                    };
                    let matched = base + bits.take(n_extra)?;
                    let distance = bits.symbol(&distances)?;
                    bits.take(if distance < 4 { 0 } else { (distance - 2) / 2 })?;
                    u64::from(matched)
                }
            }
        }
    }
    Some(length)
}

/// The lengths of the fixed codes.
fn fixed() -> Vec<u8> {
    [(8, 144), (9, 112), (7, 24), (8, 8)].into_iter().flat_map(|(length, n)| std::iter::repeat_n(length, n)).collect()
}

/// Codes for symbols. Making them takes little more than reading their lengths, because a stream can have many.
struct Codes {
    /// How many codes there are of each length.
    n: [usize; MAX_BITS + 1],
    /// The symbols in the order of their codes.
    symbols: Vec<u32>,
}

impl Codes {
    /// The codes with these lengths.
    fn of(lengths: &[u8]) -> Option<Codes> {
        let mut n = [0; MAX_BITS + 1];
        for length in lengths.iter().filter(|length| **length > 0) {
            *n.get_mut(usize::from(*length))? += 1;
        }
        let mut places: Vec<usize> =
            n.iter().scan(0, |before, n| Some(std::mem::replace(before, *before + n))).collect();
        let mut symbols = vec![0; n.iter().sum()];
        for (symbol, length) in (0..).zip(lengths).filter(|(_, length)| **length > 0) {
            let place = places.get_mut(usize::from(*length))?;
            *symbols.get_mut(*place)? = symbol;
            *place += 1;
        }
        Some(Codes { n, symbols })
    }
}

/// The bits of a stream, the lowest of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    held: u64,
    n_held: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.n_held <= 48
            && let Some((byte, rest)) = self.bytes.split_first()
        {
            self.held |= u64::from(*byte) << self.n_held;
            (self.bytes, self.n_held) = (rest, self.n_held + 8);
        }
    }

    fn take(&mut self, n: u32) -> Option<u32> {
        self.fill();
        let taken = (self.held & ((1 << n) - 1)) as u32;
        self.n_held = self.n_held.checked_sub(n)?;
        self.held >>= n;
        Some(taken)
    }

    fn symbol(&mut self, codes: &Codes) -> Option<u32> {
        let (mut code, mut first, mut place) = (0, 0, 0);
        for n in codes.n.iter().skip(1) {
            code = code << 1 | self.take(1)? as usize;
            first <<= 1;
            if code < first + n {
                return codes.symbols.get(place + code.checked_sub(first)?).copied();
            }
            (place, first) = (place + n, first + n);
        }
        None
    }

    /// Skips a block that is not compressed, and returns its length.
    fn skip_stored(&mut self) -> Option<u32> {
        self.take(self.n_held % 8)?;
        let length = self.take(16)?;
        self.take(16)?;
        self.fill();
        let held = (self.n_held / 8).min(length);
        self.take(8 * held)?;
        self.bytes = self.bytes.get((length - held) as usize..)?;
        Some(length)
    }

    /// Reads the codes of symbols and distances.
    fn codes(&mut self) -> Option<(Codes, Codes)> {
        let (n_symbols, n_distances, n) = (self.take(5)? + 257, self.take(5)? + 1, self.take(4)? + 4);
        let mut own = [0; 19];
        for at in ORDER.iter().take(n as usize) {
            *own.get_mut(*at)? = self.take(3)? as u8;
        }
        let own = Codes::of(&own)?;
        let mut lengths: Vec<u8> = Vec::new();
        while lengths.len() < (n_symbols + n_distances) as usize {
            let (length, n) = match self.symbol(&own)? {
                16 => (*lengths.last()?, 3 + self.take(2)?),
                17 => (0, 3 + self.take(3)?),
                18 => (0, 11 + self.take(7)?),
                length => (length as u8, 1),
            };
            lengths.extend(std::iter::repeat_n(length, n as usize));
        }
        let (symbols, distances) = lengths.split_at_checked(n_symbols as usize)?;
        Some((Codes::of(symbols)?, Codes::of(distances)?))
    }
}
