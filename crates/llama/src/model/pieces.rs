//! The bytes of the tokens of a vocabulary.

use crate::Token;

/// The bytes of all tokens of a vocabulary, so that a lookup returns a slice without allocation and without calling llama.cpp.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenPieces {
    /// All pieces, concatenated. Piece i is `bytes[ends[i - 1]..ends[i]]`.
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl TokenPieces {
    /// Appends the piece of the next token. Returns false if all pieces would have over 4 GiB.
    pub fn push(&mut self, piece: &[u8]) -> bool {
        let Ok(end) = u32::try_from(self.bytes.len() + piece.len()) else { return false };
        self.bytes.extend_from_slice(piece);
        self.ends.push(end);
        true
    }

    /// The number of tokens. Ids are `0..n_tokens()`.
    pub fn n_tokens(&self) -> usize {
        self.ends.len()
    }

    /// Whether `token` is an id of this vocabulary.
    pub fn contains(&self, token: Token) -> bool {
        usize::try_from(token).is_ok_and(|index| index < self.n_tokens())
    }

    /// The bytes of `token`. Empty for an id outside the vocabulary.
    pub fn piece(&self, token: Token) -> &[u8] {
        let Ok(index) = usize::try_from(token) else { return &[] };
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.bytes.get(start as usize..end as usize).unwrap_or(&[])
    }

    /// The pieces for another process: the number of tokens, the end of each piece, and all bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let n = self.ends.len() as u32;
        let numbers = std::iter::once(n).chain(self.ends.iter().copied()).flat_map(u32::to_le_bytes);
        numbers.chain(self.bytes.iter().copied()).collect()
    }

    /// Reads what [`TokenPieces::to_bytes`] wrote; `None`: it is something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<TokenPieces> {
        let (n, rest) = bytes.split_first_chunk()?;
        let n_bytes = usize::try_from(u32::from_le_bytes(*n)).ok()?.checked_mul(4)?;
        let (ends, bytes) = rest.split_at_checked(n_bytes)?;
        let ends: Vec<u32> = ends.as_chunks().0.iter().map(|end| u32::from_le_bytes(*end)).collect();
        let is_whole = ends.is_sorted() && ends.last().map_or(0, |end| *end as usize) == bytes.len();
        is_whole.then(|| TokenPieces { bytes: bytes.to_vec(), ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_arrive_as_they_were_sent() {
        let mut pieces = TokenPieces::default();
        for piece in [&b"a"[..], b"", b"\xc3", b"bcd"] {
            assert!(pieces.push(piece));
        }
        assert_eq!(
            (pieces.n_tokens(), pieces.piece(3), pieces.piece(1), pieces.piece(4)),
            (4, &b"bcd"[..], &b""[..], &b""[..])
        );
        assert!(pieces.contains(0) && !pieces.contains(-1) && !pieces.contains(4));
        let bytes = pieces.to_bytes();
        assert_eq!(TokenPieces::from_bytes(&bytes), Some(pieces));
        for end in 0..bytes.len() {
            assert_eq!(TokenPieces::from_bytes(&bytes[..end]), None);
        }
        assert_eq!(TokenPieces::from_bytes(&[255; 64]), None);
        assert_eq!(TokenPieces::from_bytes(&[0; 4]), Some(TokenPieces::default()));
    }
}
