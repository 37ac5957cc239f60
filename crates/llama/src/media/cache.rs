//! The pictures and sounds of an engine: their numbers in token lists, and the rows of those that were encoded last.
//!
//! In a list of tokens each is a run of negative numbers, one for each row, which no other one of the engine has. So prompts with pictures and
//! sounds are compared as others are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::bitmap::Bitmap;
use super::projector::{CutMedia, MediaPiece, MediaRows, Projector};
use crate::{Batch, BatchInput, PauseGate, SeqId, ThreadPool, Token};
use foredraft_base::error::{Code, Error, Result};
use foredraft_base::work::StopSignal;
use foredraft_base::{RowSpan, SavedMedia};

/// The number of an engine's first row. llama.cpp has -1 for no token.
const FIRST_ROW: Token = -2;

/// The pictures and sounds of an engine.
#[derive(Debug)]
pub struct MediaCache {
    projector: Projector,
    /// While they are closed, no encode goes on.
    pauses: Arc<PauseGate>,
    /// The engine's threads, whose settings those of an encode have.
    threads: Arc<ThreadPool>,
    /// The most bytes of rows in memory.
    most: usize,
    known: Mutex<KnownMedia>,
}

#[derive(Debug)]
struct KnownMedia {
    next_row: Token,
    /// The first row of each, by its hash and the number of its rows.
    first_rows: HashMap<([u8; 32], Token), Token>,
    /// All by their first rows.
    by_first: BTreeMap<Token, SavedMedia>,
    /// The encoded ones, the one that was used last at the end.
    encoded: Vec<Arc<EncodedMedia>>,
}

/// A picture or a sound with its numbers in lists of tokens.
#[derive(Debug)]
pub struct NumberedMedia {
    pieces: Arc<[MediaPiece]>,
    first: Token,
    /// The SHA-256 of its file, if it has one.
    file: Option<[u8; 32]>,
    state: MediaState,
}

/// The parts of a picture or a sound that are kept beside its pieces.
#[derive(Debug)]
enum MediaState {
    Cut(CutMedia),
    Encoded(Arc<EncodedMedia>),
}

/// The rows of a picture or a sound.
#[derive(Debug)]
pub struct EncodedMedia {
    first: Token,
    file: Option<[u8; 32]>,
    pieces: Arc<[MediaPiece]>,
    n_embd: usize,
    rows: Vec<f32>,
}

impl MediaCache {
    /// A cache of this encoder with at most `most` bytes of rows. It encodes nothing while the engine is paused.
    pub fn new(projector: Projector, most: usize, pauses: &Arc<PauseGate>, threads: &Arc<ThreadPool>) -> MediaCache {
        let (first_rows, by_first) = Default::default();
        let known = KnownMedia { next_row: FIRST_ROW, first_rows, by_first, encoded: Vec::new() };
        let (pauses, threads) = (Arc::clone(pauses), Arc::clone(threads));
        MediaCache { projector, pauses, threads, most, known: Mutex::new(known) }
    }

    /// The encoder.
    pub fn projector(&self) -> &Projector {
        &self.projector
    }

    /// Reads and cuts the file of a picture or a sound, and gives it its numbers. A file whose rows are in memory is not read again. Between these, it
    /// sleeps while the engine is paused. mtmd does each in one go: it scales the spectrum of a sound by its largest value, so no part of it is final
    /// before all are there.
    ///
    /// # Errors
    /// Those of [`Bitmap::from_file`], [`Projector::sound`] and [`MediaCache::number`]. [`Code::Cancelled`]: `stops` was true.
    pub fn number_file(&self, file: &[u8], is_sound: bool, stops: &StopSignal) -> Result<NumberedMedia> {
        let hash = Sha256::new_with_prefix([u8::from(is_sound)]).chain_update(file).finalize().into();
        let known = self.known.lock().encoded.iter().find(|encoded| encoded.file == Some(hash)).map(Arc::clone);
        if let Some(encoded) = known {
            let (pieces, first) = (Arc::clone(&encoded.pieces), encoded.first);
            return Ok(NumberedMedia { pieces, first, file: Some(hash), state: MediaState::Encoded(encoded) });
        }
        let bitmap = if is_sound { self.projector.sound(file) } else { Bitmap::from_file(file) }?;
        self.pauses.wait_while(|| !stops());
        if stops() {
            return Err(Error::new(Code::Cancelled, "a picture or a sound was interrupted before it was encoded"));
        }
        Ok(NumberedMedia { file: Some(hash), ..self.number(&bitmap)? })
    }

    /// Cuts a picture or a sound, and gives it its numbers: those that the same one had before.
    ///
    /// # Errors
    /// Those of [`Projector::cut`]; or the engine has no numbers left.
    pub fn number(&self, bitmap: &Bitmap) -> Result<NumberedMedia> {
        let medium = self.projector.cut(bitmap)?;
        let rows = Token::try_from(medium.n_rows()).unwrap_or(Token::MAX);
        let mut hash = Sha256::new_with_prefix(self.projector.identity());
        [bitmap.width(), bitmap.height()].iter().for_each(|side| hash.update(side.to_le_bytes()));
        if bitmap.is_sound() {
            hash.update(b"sound");
        }
        let hash = hash.chain_update(bitmap.bytes()).finalize().into();
        let (pieces, first) = (medium.pieces().into(), self.known.lock().number(hash, rows)?);
        Ok(NumberedMedia { pieces, first, file: None, state: MediaState::Cut(medium) })
    }

    /// The pictures and sounds whose rows are among these tokens.
    pub fn among(&self, tokens: &[Token]) -> Vec<SavedMedia> {
        let known = self.known.lock();
        let mut found: Vec<SavedMedia> = Vec::new();
        for token in tokens.iter().filter(|token| **token < 0) {
            if !found.iter().rev().any(|medium| medium.has(*token)) {
                found.extend(known.by_first.range(*token..).next().map(|(_, medium)| medium.clone()));
            }
        }
        found
    }

    /// Gives the rows of saved pictures and sounds the numbers that they have in this engine.
    ///
    /// # Errors
    /// A row is in none of them, or the engine has no numbers left.
    pub fn adopt(&self, tokens: &mut [Token], media: &mut [SavedMedia]) -> Result<()> {
        let mut known = self.known.lock();
        let first_rows = media.iter().map(|medium| known.number(medium.hash, medium.rows));
        let first_rows: Vec<Token> = first_rows.collect::<Result<_>>()?;
        for token in tokens.iter_mut().filter(|token| **token < 0) {
            let place = media.iter().zip(&first_rows).find(|(medium, _)| medium.has(*token));
            let (medium, first) = place.ok_or_else(|| Error::invalid("a row belongs to no picture or sound"))?;
            *token = first - (medium.first - *token);
        }
        media.iter_mut().zip(first_rows).for_each(|(medium, first)| medium.first = first);
        Ok(())
    }

    /// The rows of a picture or a sound: those in memory, or new ones. The cache then has them, and no more than its bytes.
    ///
    /// # Errors
    /// Those of [`Projector::encode`].
    pub fn encode(&self, numbered: &NumberedMedia, stops: &StopSignal) -> Result<Arc<EncodedMedia>> {
        let known = self.known.lock().take(numbered.first);
        let cut = match (known, &numbered.state) {
            (Some(known), _) => return Ok(known),
            (None, MediaState::Encoded(encoded)) => return Ok(Arc::clone(encoded)),
            (None, MediaState::Cut(cut)) => cut,
        };
        let rows = self.projector.encode(cut, &self.pauses, &self.threads, stops)?;
        let (first, file, pieces) = (numbered.first, numbered.file, Arc::clone(&numbered.pieces));
        let encoded = Arc::new(EncodedMedia { first, file, pieces, n_embd: self.projector.n_embd(), rows });
        self.known.lock().keep(Arc::clone(&encoded), self.most);
        Ok(encoded)
    }
}

impl KnownMedia {
    /// The number of the first row: the one that it had before, or a new one.
    fn number(&mut self, hash: [u8; 32], rows: Token) -> Result<Token> {
        if let Some(first) = self.first_rows.get(&(hash, rows)) {
            return Ok(*first);
        }
        let exhausted = || Error::exhausted("the engine has encoded too many pictures and sounds: load it again");
        let first = self.next_row;
        self.next_row = first.checked_sub(rows).ok_or_else(exhausted)?;
        self.first_rows.insert((hash, rows), first);
        self.by_first.insert(first, SavedMedia { first, rows, hash });
        Ok(first)
    }

    /// The rows in memory, which thereby are the one that was used last.
    fn take(&mut self, first: Token) -> Option<Arc<EncodedMedia>> {
        let at = self.encoded.iter().position(|encoded| encoded.first == first)?;
        let encoded = self.encoded.remove(at);
        self.encoded.push(Arc::clone(&encoded));
        Some(encoded)
    }

    /// Keeps rows, without the ones that were not used for longest and make it more than `most` bytes.
    fn keep(&mut self, medium: Arc<EncodedMedia>, most: usize) {
        if self.take(medium.first).is_none() {
            self.encoded.push(medium);
        }
        let mut bytes: usize = self.encoded.iter().map(|encoded| encoded.bytes()).sum();
        self.encoded.retain(|encoded| {
            let fits = bytes <= most;
            bytes -= if fits { 0 } else { encoded.bytes() };
            fits
        });
    }
}

impl NumberedMedia {
    /// Whether its rows were in memory, so that its file was not read.
    pub fn is_encoded(&self) -> bool {
        matches!(self.state, MediaState::Encoded(_))
    }

    /// The medium in a list of tokens: tags, and a negative number for each row.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        let mut next = self.first;
        self.pieces.iter().flat_map(move |piece| match piece {
            MediaPiece::Tokens(tokens) => tokens.clone(),
            MediaPiece::Rows(rows) => {
                let last = next - Token::try_from(rows.n).unwrap_or(0);
                let rows = (last + 1..=next).rev().collect();
                next = last;
                rows
            }
        })
    }
}

impl EncodedMedia {
    /// The pieces that have rows.
    fn runs(&self) -> impl Iterator<Item = &MediaRows> {
        self.pieces.iter().filter_map(|piece| match piece {
            MediaPiece::Tokens(_) => None,
            MediaPiece::Rows(rows) => Some(rows),
        })
    }

    fn bytes(&self) -> usize {
        size_of_val(self.rows.as_slice())
    }

    /// How many rows there are from the one with this number to the end of its piece; `None`: it is none of these.
    pub fn rows_from(&self, token: Token) -> Option<usize> {
        self.place_of(token).map(|(piece, at)| piece.n - at)
    }

    /// The rows that begin with this one, which is the token at `start`, if they share a position.
    pub fn span_from(&self, token: Token, start: usize) -> Option<RowSpan> {
        let (piece, _) = self.place_of(token).filter(|(piece, at)| *at == 0 && piece.share_a_position())?;
        Some(RowSpan { start, rows: piece.n, positions: piece.n_positions })
    }

    /// Whether its rows share positions.
    pub fn shares_positions(&self) -> bool {
        self.runs().any(MediaRows::share_a_position)
    }

    /// Adds the rows with these numbers to a batch, from `position` of `sequence` on.
    pub fn push_to(&self, batch: &mut Batch, tokens: &[Token], position: usize, sequence: SeqId) {
        let (n, first) = (tokens.len(), tokens.first().copied().unwrap_or(Token::MAX));
        let at = self.first.checked_sub(first).and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX);
        let rows = at.checked_mul(self.n_embd).zip(at.checked_add(n).and_then(|end| end.checked_mul(self.n_embd)));
        let rows = rows.and_then(|(start, end)| self.rows.get(start..end)).unwrap_or(&[]);
        let place = self.place_of(first);
        let places = place.and_then(|(piece, at)| piece.places.get(at..at + n)).unwrap_or(&[]);
        // `position` is that of the first row of a span, or of the first one here.
        let position = position.saturating_sub(places.first().map_or(0, |place| place.t.unsigned_abs() as usize));
        batch.push_rows(self.input_from(first), tokens, rows, places, position, sequence);
    }

    /// The most rows that are decoded together; 0: none have to be.
    pub fn most_together(&self) -> usize {
        self.runs().filter(|piece| piece.is_non_causal).map(|piece| piece.n).max().unwrap_or(0)
    }

    /// How the rows from the one with this number to the end of its piece are decoded.
    pub fn input_from(&self, token: Token) -> BatchInput {
        let is_non_causal = self.place_of(token).is_some_and(|(piece, _)| piece.is_non_causal);
        if is_non_causal { BatchInput::NonCausalRows } else { BatchInput::Rows }
    }

    /// The piece that has the row with this number, and its place there.
    fn place_of(&self, token: Token) -> Option<(&MediaRows, usize)> {
        let mut at = usize::try_from(self.first.checked_sub(token)?).ok()?;
        for piece in self.runs() {
            if at < piece.n {
                return Some((piece, at));
            }
            at -= piece.n;
        }
        None
    }
}
