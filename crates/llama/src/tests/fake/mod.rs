//! A fake backend that replaces llama.cpp behind a [`Context`], for tests of the layers above.
//!
//! It keeps cells like llama.cpp's KV cache, and panics where llama.cpp would refuse a batch or compute nonsense: missing or
//! duplicate positions of a sequence, sequences that share a token but not what precedes it, a state that is read before
//! moved keys are rotated. Its logits ([`FakeModel`]) are a pure function of the tokens that a token sees, in order, so a
//! stale, missing, duplicate or misplaced cell changes the output. Its decodes can be made to fail ([`Fault`]). They take
//! time on a clock that nothing else advances ([`clock`]), so that a run can be repeated exactly.
//!
//! It can be a memory with recurrent states ([`Rollback`]): then it panics if tokens are removed to whose state llama.cpp could not
//! return, or if a sequence is decoded whose state was lost in a decode that failed.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "for tests, which may panic"
)]

mod checks;
mod model;
mod states;

use std::cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::context::padding;
use crate::context::rollback::RemovableTokens;
use crate::{Batch, Context, DecodeError, Rollback, SeqId, Token, TokenSubset};

pub use self::model::{FakeModel, mix};
use self::states::RecurrentStates;

/// An error that a decode is made to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The KV cache is full.
    Full,
    /// The decode is interrupted in this physical batch (modulo their number).
    Aborted(usize),
    /// The decode fails in this physical batch (modulo their number).
    Failed(usize),
    /// There is no memory for the logits of the batch. Nothing is decoded.
    NoMemory,
}

thread_local! {
    static START: Instant = Instant::now();
    static PASSED: cell::Cell<Duration> = const { cell::Cell::new(Duration::ZERO) };
    static DECODES: cell::Cell<usize> = const { cell::Cell::new(0) };
    static PHYSICAL: cell::Cell<usize> = const { cell::Cell::new(0) };
}

/// The number of physical batches that this thread's fake backends have decoded.
pub fn physical_batches() -> usize {
    PHYSICAL.get()
}

/// The number of batches that this thread's fake backends have decoded.
pub fn decodes() -> usize {
    DECODES.get()
}

/// The time on this thread's fake clock, which only decodes advance.
pub fn clock() -> Instant {
    START.with(|start| *start + PASSED.get())
}

#[derive(Debug, Clone)]
struct Cell {
    token: Token,
    token_hash: u64,
    position: usize,
    /// The sequences that the cell belongs to, as a bit set.
    sequences: u64,
}

impl Cell {
    fn is_of(&self, sequence: SeqId) -> bool {
        self.sequences & bit(sequence) != 0
    }

    fn all(&self) -> impl Iterator<Item = SeqId> {
        let sequences = self.sequences;
        (0..64).filter(move |sequence| sequences & bit(*sequence) != 0)
    }

    fn first(&self) -> SeqId {
        self.all().next().unwrap()
    }
}

fn bit(sequence: SeqId) -> u64 {
    assert!((0..64).contains(&sequence), "sequence {sequence}");
    1 << sequence
}

/// The backend of a [`Context`] that replaces llama.cpp.
#[derive(Debug)]
pub struct FakeBackend {
    model: FakeModel,
    /// The time to decode a physical batch of one token; each further token takes an eighth of that.
    cost: Duration,
    /// The errors to report, by the number of the decode.
    faults: BTreeMap<usize, Fault>,
    n_decodes: usize,
    /// The sizes of the last batch's physical batches.
    physical: Vec<usize>,
    /// In the order in which they were decoded.
    cells: Vec<Cell>,
    /// For each token with logits of the last batch: the hashes of the tokens it sees, and its row once it was requested.
    seen: Vec<Option<Vec<u64>>>,
    rows: Vec<Option<Vec<f32>>>,
    /// Cells were moved or sequences copied, which the next decode carries out.
    moves_pending: bool,
    /// Positions were divided, so a position may occur several times.
    divided: bool,
    n_cells: usize,
    pub(super) n_ubatch: usize,
    /// The most tokens of a sequence in a batch whose logits do not depend on their number.
    pub(super) max_invariant_tokens: usize,
    /// For a memory with recurrent states, which these are.
    states: Option<RecurrentStates>,
    /// Whether the context's KV cache is unified.
    unified: bool,
    /// Whether single tokens must be padded; each buffer then has one more cell.
    padding: bool,
    /// The last decode reported a full cache; the next one may come without padding.
    was_full: bool,
    n_vocab: usize,
    end: Token,
}

impl Context {
    /// Replaces llama.cpp by a fake backend, with the backend's number of cells and batch size.
    pub fn set_fake(&mut self, backend: FakeBackend) {
        let vocab = self.model().vocab();
        let (n_vocab, end) = (vocab.n_tokens(), vocab.eos().unwrap());
        self.n_ctx = backend.n_cells;
        let n_buffers = if self.unified { 1 } else { u32::try_from(self.n_seq_max).unwrap() };
        let n_batch = padding::n_batch(64, u32::try_from(backend.n_ubatch).unwrap(), n_buffers);
        if let Some((padding, n_batch)) = self.padding.take().zip(n_batch) {
            self.padding = Some(padding.with_n_ubatch(backend.n_ubatch));
            self.n_batch = n_batch as usize;
        }
        let rollback = backend.states.as_ref().map_or(Rollback::Anywhere, RecurrentStates::rollback);
        self.removable = RemovableTokens::new(rollback, self.n_seq_max);
        self.cuts_anywhere &= rollback.is_unlimited();
        self.fake =
            Some(FakeBackend { n_vocab, end, unified: self.unified, padding: self.pads_single_tokens(), ..backend });
    }

    /// Sets the most tokens of a sequence in a batch whose logits do not depend on their number.
    pub fn set_fake_invariant_tokens(&mut self, max_invariant_tokens: usize) {
        self.fake.as_mut().unwrap().max_invariant_tokens = max_invariant_tokens;
    }

    /// The fake backend.
    pub fn fake(&self) -> &FakeBackend {
        self.fake.as_ref().unwrap()
    }
}

impl FakeBackend {
    /// A backend with `n_cells` cells (for each sequence, unless the cache is unified) and physical batches of `n_ubatch` tokens.
    /// `cost` is the time to decode one token, and `faults` are the errors to report, by the number of the decode.
    pub fn new(
        model: FakeModel,
        n_cells: usize,
        n_ubatch: usize,
        cost: Duration,
        faults: BTreeMap<usize, Fault>,
    ) -> FakeBackend {
        FakeBackend {
            model,
            cost,
            faults,
            n_decodes: 0,
            physical: Vec::new(),
            cells: Vec::new(),
            seen: Vec::new(),
            rows: Vec::new(),
            moves_pending: false,
            divided: false,
            n_cells,
            n_ubatch,
            max_invariant_tokens: 62,
            states: None,
            unified: true,
            padding: false,
            was_full: false,
            n_vocab: 0,
            end: 0,
        }
    }

    /// Gives it a memory that can be rolled back only so far.
    pub fn with_rollback(self, rollback: Rollback) -> FakeBackend {
        let states = RecurrentStates::new(rollback);
        assert!(states.is_none_or(|states| states.n_kept_together() < self.n_ubatch), "llama.cpp asserts this");
        FakeBackend { states: RecurrentStates::new(rollback), ..self }
    }

    /// The tokens of `sequence` by position.
    pub fn tokens(&self, sequence: SeqId) -> Vec<Token> {
        self.of(sequence).iter().map(|cell| cell.token).collect()
    }

    /// The number of batches it has decoded.
    pub fn n_decodes(&self) -> usize {
        self.n_decodes
    }

    /// How many tokens each physical batch of the last batch had, its padding included.
    pub fn physical_batches(&self) -> &[usize] {
        &self.physical
    }

    /// The errors that are still to be reported.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.values()
    }

    fn of(&self, sequence: SeqId) -> Vec<&Cell> {
        let mut cells: Vec<&Cell> = self.cells.iter().filter(|cell| cell.is_of(sequence)).collect();
        cells.sort_by_key(|cell| cell.position);
        cells
    }

    /// Whether `new` cells fit beside the existing ones.
    fn has_room(&self, new: &[Cell]) -> bool {
        let mut used = BTreeMap::new();
        for cell in self.cells.iter().chain(new) {
            *used.entry(if self.unified { 0 } else { cell.first() }).or_insert(0) += 1;
        }
        used.values().all(|used| *used <= self.n_cells + usize::from(self.padding))
    }

    /// Like `llama_decode`. If `moved`, an interrupt takes effect only at the end.
    // A function of its own, whose instructions `scripts/count-instructions.sh` leaves out.
    #[inline(never)]
    pub(super) fn decode(&mut self, batch: &Batch, scales: &[f32], moved: bool) -> Result<(), DecodeError> {
        let further = u32::try_from(batch.len() - 1).unwrap();
        PASSED.set(PASSED.get() + self.cost + self.cost / 8 * further);
        let fault = self.faults.remove(&self.n_decodes);
        self.n_decodes += 1;
        DECODES.set(DECODES.get() + 1);
        (self.seen, self.rows, self.moves_pending) = (Vec::new(), Vec::new(), false);
        let new = cells_of(batch, scales);
        self.check_order(&new);
        if let Some(states) = &self.states {
            states.check_known(new.iter().flat_map(Cell::all));
        }
        let may_be_alone = std::mem::take(&mut self.was_full);
        if fault == Some(Fault::NoMemory) {
            return Err(DecodeError::of_code(-2, "could not reserve space for batch"));
        }
        if fault == Some(Fault::Full) || !self.has_room(&new) {
            self.was_full = true;
            return Err(DecodeError::Full);
        }
        let parts = self.split(&new);
        self.physical = parts.iter().map(Vec::len).collect();
        PHYSICAL.set(PHYSICAL.get() + parts.len());
        // Each begins with a token that costs as much as one alone.
        let further = u32::try_from(parts.len().saturating_sub(1)).unwrap();
        PASSED.set(PASSED.get() + (self.cost - self.cost / 8) * further);
        if self.padding && !may_be_alone {
            self.check_single_tokens(&new, &parts);
        }
        self.check_batch_split(&new, &parts);
        if let Some(states) = &mut self.states {
            states.begin_decode();
        }
        for (number, part) in parts.iter().enumerate() {
            if let Some(states) = &mut self.states {
                states.decoded(part.iter().map(|index| new[*index].first()));
            }
            self.cells.extend(part.iter().map(|index| new[*index].clone()));
            let error = match fault {
                Some(Fault::Aborted(at)) if at % parts.len() == number && !moved => DecodeError::Aborted,
                Some(Fault::Failed(at)) if at % parts.len() == number => {
                    DecodeError::failed("a fault of the fake backend")
                }
                _ => continue,
            };
            // Like llama.cpp, remove the tokens only from their first sequence.
            for index in part {
                let first = new[*index].first();
                match &mut self.states {
                    Some(states) => states.lose(first),
                    None => self.remove(first, new[*index].position..usize::MAX),
                }
            }
            return Err(error);
        }
        let seen = new.iter().map(|cell| self.seen_by(cell)).zip(&batch.outputs);
        self.seen = seen.map(|(seen, output)| (*output != 0).then_some(seen)).collect();
        self.rows.resize(new.len(), None);
        Ok(())
    }

    /// The physical batches, as indices: `llama_batch_allocr::split_simple` with one buffer for all sequences and no recurrent states, else
    /// `split_equal`, which takes the same number of tokens from sequences that, with a buffer for each, have consecutive increasing ids.
    fn split(&self, new: &[Cell]) -> Vec<Vec<usize>> {
        let mut left: Vec<usize> = (0..new.len()).collect();
        if self.unified && self.states.is_none() {
            return left.chunks(self.n_ubatch).map(<[usize]>::to_vec).collect();
        }
        let mut parts = Vec::new();
        while !left.is_empty() {
            let mut rows: Vec<SeqId> = Vec::new();
            for sequence in left.iter().map(|index| new[*index].first()) {
                let follows = rows.last().is_none_or(|last| self.unified || sequence == last + 1);
                if follows && !rows.contains(&sequence) && rows.len() < self.n_ubatch {
                    rows.push(sequence);
                }
            }
            let of = |sequence: SeqId| left.iter().copied().filter(move |index| new[*index].first() == sequence);
            let shortest = rows.iter().map(|sequence| of(*sequence).count()).min().unwrap();
            let mut n = shortest.min(self.n_ubatch / rows.len()).max(1);
            if let Some(states) = &self.states {
                let counts: Vec<usize> = rows.iter().map(|sequence| of(*sequence).count()).collect();
                n = states.keep_ends_together(&mut rows, &counts, n, self.n_ubatch);
            }
            let part: Vec<usize> = rows.iter().flat_map(|sequence| of(*sequence).take(n)).collect();
            left.retain(|index| !part.contains(index));
            parts.push(part);
        }
        parts
    }

    /// The hashes of the tokens that a token sees, which must be equal in all its sequences.
    fn seen_by(&self, cell: &Cell) -> Vec<u64> {
        let mut all = cell.all().map(|sequence| {
            let mut cells = self.of(sequence);
            cells.retain(|other| other.position <= cell.position);
            let positions: Vec<usize> = cells.iter().map(|cell| cell.position).collect();
            let follow = |pair: &[usize]| pair[1] == pair[0] + 1 || (self.divided && pair[1] == pair[0]);
            let whole = positions[0] == 0 && positions.windows(2).all(follow);
            assert!(whole, "the positions of sequence {sequence}: {positions:?}");
            cells.iter().map(|cell| cell.token_hash).collect::<Vec<u64>>()
        });
        let seen = all.next().unwrap();
        assert!(all.all(|other| other == seen), "the sequences of a token must be equal before it");
        seen
    }

    /// The row of a token for which logits were requested. The logits of tokens that are not `scored` are too large, so that a test fails if
    /// any of them is used.
    pub(super) fn logits(&mut self, index: usize, scored: Option<&TokenSubset>) -> Option<&mut [f32]> {
        let seen = self.seen[index].as_ref()?;
        Some(self.rows[index].get_or_insert_with(|| {
            let mut row = self.model.logits(seen, self.n_vocab, self.end);
            let is_left_out = |token| scored.is_some_and(|scored| !scored.contains(token));
            (0..).zip(&mut row).filter(|(token, _)| is_left_out(*token)).for_each(|(_, logit)| *logit = f32::INFINITY);
            row
        }))
    }

    pub(super) fn remove(&mut self, sequence: SeqId, range: Range<usize>) {
        let len = self.len(sequence);
        if let Some(states) = &mut self.states {
            states.remove(sequence, &range, len);
        }
        for cell in self.cells.iter_mut().filter(|cell| range.contains(&cell.position)) {
            cell.sequences &= !bit(sequence);
        }
        self.cells.retain(|cell| cell.sequences != 0);
    }

    /// Copies a sequence to `to`, which must be empty.
    pub(super) fn copy(&mut self, from: SeqId, to: SeqId) {
        if self.unified {
            self.cells.iter_mut().filter(|cell| cell.is_of(from)).for_each(|cell| cell.sequences |= bit(to));
            return;
        }
        let copies: Vec<Cell> =
            self.of(from).into_iter().map(|cell| Cell { sequences: bit(to), ..cell.clone() }).collect();
        self.cells.extend(copies);
        self.moves_pending = true;
    }

    /// Changes the positions in `range` of `sequence`.
    fn reposition(&mut self, sequence: SeqId, range: Range<usize>, position: impl Fn(usize) -> usize) {
        for cell in self.cells.iter_mut().filter(|cell| cell.is_of(sequence) && range.contains(&cell.position)) {
            assert_eq!(cell.sequences, bit(sequence), "a moved cell must not be shared");
            cell.position = position(cell.position);
        }
        self.moves_pending = true;
    }

    pub(super) fn move_by(&mut self, sequence: SeqId, range: Range<usize>, by: i32) {
        self.reposition(sequence, range, |position| position.checked_add_signed(by as isize).unwrap());
    }

    pub(super) fn divide(&mut self, sequence: SeqId, range: Range<usize>, by: i32) {
        self.divided = true;
        self.reposition(sequence, range, |position| position / by as usize);
    }

    pub(super) fn reset(&mut self) {
        self.cells.clear();
        self.states = self.states.take().and_then(|states| RecurrentStates::new(states.rollback()));
        self.moves_pending = false;
    }

    /// The position after the last one of `sequence`.
    pub(super) fn len(&self, sequence: SeqId) -> usize {
        self.of(sequence).last().map_or(0, |cell| cell.position + 1)
    }

    /// The first position of `sequence`.
    pub(super) fn first(&self, sequence: SeqId) -> Option<usize> {
        self.of(sequence).first().map(|cell| cell.position)
    }

    pub(super) fn state(&self, sequence: SeqId) -> Vec<u8> {
        assert!(
            self.states.as_ref().is_none_or(|states| states.is_known(sequence)),
            "the state of {sequence} was lost"
        );
        assert!(!self.moves_pending, "the state was read before moved keys were rotated");
        let numbers = |cell: &Cell| [cell.token_hash, u64::from(cell.token.unsigned_abs()), cell.position as u64];
        // A state is never empty, so it starts with one byte.
        let bytes = self.of(sequence).into_iter().flat_map(numbers).flat_map(u64::to_le_bytes);
        std::iter::once(1).chain(bytes).collect()
    }

    /// Restores a sequence. Returns false and leaves it empty if it does not fit.
    pub(super) fn set_state(&mut self, sequence: SeqId, state: &[u8]) -> bool {
        assert!(!self.moves_pending, "a pending copy would overwrite the restored state");
        self.remove(sequence, 0..usize::MAX);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let cells = state[1..].chunks_exact(24).map(|bytes| Cell {
            token_hash: number(&bytes[..8]),
            token: Token::try_from(number(&bytes[8..16])).unwrap(),
            position: usize::try_from(number(&bytes[16..])).unwrap(),
            sequences: bit(sequence),
        });
        let cells: Vec<Cell> = cells.collect();
        let fits = self.has_room(&cells);
        self.cells.extend(cells.into_iter().filter(|_| fits));
        fits
    }
}

fn cells_of(batch: &Batch, scales: &[f32]) -> Vec<Cell> {
    let mut sequences = batch.sequences.iter();
    let tokens = batch.tokens.iter().zip(&batch.positions).zip(&batch.n_sequences);
    tokens
        .map(|((token, position), n)| {
            let own = sequences.by_ref().take(usize::try_from(*n).unwrap());
            Cell {
                token: *token,
                token_hash: FakeModel::token_hash(*token, scales),
                position: usize::try_from(*position).unwrap(),
                sequences: own.fold(0, |all, sequence| {
                    assert!(bit(*sequence) > all, "a token's sequences must be sorted");
                    all | bit(*sequence)
                }),
            }
        })
        .collect()
}
