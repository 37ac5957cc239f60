//! The pictures of an engine: their numbers in token lists, and the rows of those that were encoded last.
//!
//! In a list of tokens a picture is a run of negative numbers, one for each row, which no other picture of the engine has. So prompts with pictures
//! are compared as others are.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::bitmap::Bitmap;
use super::projector::{Picture, PicturePiece, PictureRows, Projector};
use crate::{Batch, BatchInput, PauseGate, SeqId, Token};
use foredraft_base::RowSpan;
use foredraft_base::error::{Error, Result};
use foredraft_base::work::StopSignal;

/// The number of an engine's first row. llama.cpp has -1 for no token.
const FIRST_ROW: Token = -2;

/// The pictures of an engine.
#[derive(Debug)]
pub struct PictureCache {
    projector: Projector,
    /// While they are closed, no encode goes on.
    pauses: Arc<PauseGate>,
    /// The most bytes of rows in memory.
    most: usize,
    seed: u64,
    known: Mutex<KnownPictures>,
}

#[derive(Debug)]
struct KnownPictures {
    next_row: Token,
    /// The first row of each picture, by the hash of its pixels and its size.
    first_rows: HashMap<(u128, u32, u32), Token>,
    /// Encoded pictures, the one that was used last at the end.
    encoded: Vec<Arc<EncodedPicture>>,
}

/// A picture with its numbers in lists of tokens.
#[derive(Debug)]
pub struct NumberedPicture {
    picture: Picture,
    first: Token,
}

/// The rows of a picture.
#[derive(Debug)]
pub struct EncodedPicture {
    first: Token,
    pieces: Vec<PictureRows>,
    n_embd: usize,
    is_non_causal: bool,
    rows: Vec<f32>,
}

impl PictureCache {
    /// A cache of this encoder with at most `most` bytes of rows. It encodes nothing while the engine is paused.
    pub fn new(projector: Projector, most: usize, pauses: &Arc<PauseGate>) -> PictureCache {
        let known = KnownPictures { next_row: FIRST_ROW, first_rows: HashMap::new(), encoded: Vec::new() };
        // Unknown to anybody who makes pictures, so that none can be made whose hash is that of another one.
        let seed = RandomState::new().hash_one(0);
        PictureCache { projector, pauses: Arc::clone(pauses), most, seed, known: Mutex::new(known) }
    }

    /// The encoder.
    pub fn projector(&self) -> &Projector {
        &self.projector
    }

    /// Cuts a picture, and gives it its numbers: those that the same pixels had before.
    ///
    /// # Errors
    /// Those of [`Projector::cut`]; or the engine has no numbers left.
    pub fn number(&self, bitmap: &Bitmap) -> Result<NumberedPicture> {
        let picture = self.projector.cut(bitmap)?;
        let n = Token::try_from(picture.n_rows()).unwrap_or(Token::MAX);
        let key = (xxh3_128_with_seed(bitmap.rgb(), self.seed), bitmap.width(), bitmap.height());
        let mut known = self.known.lock();
        let (next, known_first) = (known.next_row, known.first_rows.get(&key).copied());
        let first = known_first.unwrap_or(next);
        if known_first.is_none() {
            let exhausted = || Error::exhausted("the engine has encoded too many pictures: load it again");
            known.next_row = next.checked_sub(n).ok_or_else(exhausted)?;
            known.first_rows.insert(key, first);
        }
        Ok(NumberedPicture { picture, first })
    }

    /// The rows of a picture: those in memory, or new ones. The cache then has them, and no more than its bytes.
    ///
    /// # Errors
    /// Those of [`Projector::encode`].
    pub fn encode(&self, numbered: &NumberedPicture, stops: &StopSignal) -> Result<Arc<EncodedPicture>> {
        if let Some(known) = self.known.lock().take(numbered.first) {
            return Ok(known);
        }
        let (pauses, stops) = (Arc::clone(&self.pauses), Arc::clone(stops));
        let waits_or_stops: StopSignal = Arc::new(move || {
            pauses.wait_while(|| !stops());
            stops()
        });
        let rows = self.projector.encode(&numbered.picture, &waits_or_stops)?;
        let pieces = numbered.picture.pieces().iter().filter_map(|piece| match piece {
            PicturePiece::Tokens(_) => None,
            PicturePiece::Rows(rows) => Some(rows.clone()),
        });
        let encoded = Arc::new(EncodedPicture {
            first: numbered.first,
            pieces: pieces.collect(),
            n_embd: self.projector.n_embd(),
            is_non_causal: self.projector.is_non_causal(),
            rows,
        });
        self.known.lock().keep(Arc::clone(&encoded), self.most);
        Ok(encoded)
    }
}

impl KnownPictures {
    /// A picture in memory, which thereby is the one that was used last.
    fn take(&mut self, first: Token) -> Option<Arc<EncodedPicture>> {
        let at = self.encoded.iter().position(|encoded| encoded.first == first)?;
        let encoded = self.encoded.remove(at);
        self.encoded.push(Arc::clone(&encoded));
        Some(encoded)
    }

    /// Keeps a picture, without the ones that were not used for longest and make it more than `most` bytes.
    fn keep(&mut self, picture: Arc<EncodedPicture>, most: usize) {
        if self.take(picture.first).is_none() {
            self.encoded.push(picture);
        }
        let mut bytes: usize = self.encoded.iter().map(|encoded| encoded.bytes()).sum();
        self.encoded.retain(|encoded| {
            let fits = bytes <= most;
            bytes -= if fits { 0 } else { encoded.bytes() };
            fits
        });
    }
}

impl NumberedPicture {
    /// The picture in a list of tokens: tags, and a negative number for each row.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        let mut next = self.first;
        self.picture.pieces().iter().flat_map(move |piece| match piece {
            PicturePiece::Tokens(tokens) => tokens.clone(),
            PicturePiece::Rows(rows) => {
                let last = next - Token::try_from(rows.n).unwrap_or(0);
                let rows = (last + 1..=next).rev().collect();
                next = last;
                rows
            }
        })
    }
}

impl EncodedPicture {
    fn bytes(&self) -> usize {
        size_of_val(self.rows.as_slice())
    }

    /// How many rows there are from the one with this number to the end of its piece; `None`: it is none of this picture.
    pub fn rows_from(&self, token: Token) -> Option<usize> {
        self.place_of(token).map(|(piece, at)| piece.n - at)
    }

    /// The rows that begin with this one, which is the token at `start`, if they share a position.
    pub fn span_from(&self, token: Token, start: usize) -> Option<RowSpan> {
        let (piece, _) = self.place_of(token).filter(|(piece, at)| *at == 0 && !piece.places.is_empty())?;
        Some(RowSpan { start, rows: piece.n, positions: piece.n_positions })
    }

    /// Whether its rows share positions.
    pub fn shares_positions(&self) -> bool {
        self.pieces.iter().any(|piece| !piece.places.is_empty())
    }

    /// Adds the rows with these numbers to a batch, from `position` of `sequence` on.
    pub fn push_to(&self, batch: &mut Batch, tokens: &[Token], position: usize, sequence: SeqId) {
        let (n, first) = (tokens.len(), tokens.first().copied().unwrap_or(Token::MAX));
        let at = self.first.checked_sub(first).and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX);
        let rows = at.checked_mul(self.n_embd).zip(at.checked_add(n).and_then(|end| end.checked_mul(self.n_embd)));
        let rows = rows.and_then(|(start, end)| self.rows.get(start..end)).unwrap_or(&[]);
        let places = self.place_of(first).and_then(|(piece, at)| piece.places.get(at..at + n)).unwrap_or(&[]);
        batch.push_rows(self.input(), tokens, rows, places, position, sequence);
    }

    /// The most rows that are decoded together; 0: none have to be.
    pub fn most_together(&self) -> usize {
        if self.is_non_causal { self.pieces.iter().map(|piece| piece.n).max().unwrap_or(0) } else { 0 }
    }

    /// How its rows are decoded.
    pub fn input(&self) -> BatchInput {
        if self.is_non_causal { BatchInput::NonCausalRows } else { BatchInput::Rows }
    }

    /// The piece that has the row with this number, and its place there.
    fn place_of(&self, token: Token) -> Option<(&PictureRows, usize)> {
        let mut at = usize::try_from(self.first.checked_sub(token)?).ok()?;
        for piece in &self.pieces {
            if at < piece.n {
                return Some((piece, at));
            }
            at -= piece.n;
        }
        None
    }
}
