//! A scripted model in llama.cpp's place, for tests of all that is built on a [`Context`].
//!
//! It keeps cells as llama.cpp's KV cache does, and panics where llama.cpp would refuse a batch or compute nonsense:
//! positions of a sequence with holes or twice the same, sequences that share a token and not what is before it, a state
//! that is read before moved keys are turned. Its logits ([`FakeModel`]) are a pure function of what a token sees, in order: a
//! cell that is stale, missing, doubled or misplaced changes the text. Its evaluations can be made to fail ([`Fault`]),
//! and take time on a clock that only they move on ([`clock`]), so that a run can be repeated exactly.

mod checks;
mod model;

use std::cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Batch, Context, DecodeError, SeqId, Token, padding};

pub(crate) use self::model::{FakeModel, mix};

/// What goes wrong in an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is no room.
    Full,
    /// It is interrupted while it computes this physical batch, counted modulo those that there are.
    Aborted(usize),
    /// It fails there.
    Failed(usize),
}

thread_local! {
    static START: Instant = Instant::now();
    static PASSED: cell::Cell<Duration> = const { cell::Cell::new(Duration::ZERO) };
    static EVALUATED: cell::Cell<usize> = const { cell::Cell::new(0) };
    static PHYSICAL: cell::Cell<usize> = const { cell::Cell::new(0) };
}

/// How many physical batches this thread's scripts have evaluated.
pub(crate) fn physical_batches() -> usize {
    PHYSICAL.get()
}

/// How many batches this thread's scripts have evaluated.
pub(crate) fn evaluations() -> usize {
    EVALUATED.get()
}

/// The time by this thread's scripts: only their evaluations take any.
pub(crate) fn clock() -> Instant {
    START.with(|start| *start + PASSED.get())
}

#[derive(Debug, Clone)]
struct Cell {
    token: Token,
    sight: u64,
    position: usize,
    /// Whose it is, as bits.
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

/// What stands behind a [`Context`] in llama.cpp's place.
#[derive(Debug)]
pub(crate) struct FakeBackend {
    voice: FakeModel,
    /// What a physical batch of one token takes; each further token takes an eighth of that.
    cost: Duration,
    /// What is to go wrong, by the number of the evaluation.
    faults: BTreeMap<usize, Fault>,
    n_evaluated: usize,
    /// The sizes of the last batch's physical batches.
    physical: Vec<usize>,
    /// In the order of their evaluation.
    cells: Vec<Cell>,
    /// Of the last batch: what each token with logits sees, and its row once that was asked for.
    seen: Vec<Option<Vec<u64>>>,
    rows: Vec<Option<Vec<f32>>>,
    /// Keys were moved, or sequences copied, and no evaluation has done that yet.
    unsettled: bool,
    /// Positions were divided, and may be there several times.
    divided: bool,
    n_cells: usize,
    pub(super) n_ubatch: usize,
    /// Most tokens of a sequence that are evaluated as if they were fewer.
    pub(super) max_invariant_tokens: usize,
    /// Of the context.
    unified: bool,
    /// Whether no token is to be evaluated alone; there is a cell more for that in each buffer.
    padding: bool,
    /// The last evaluation found no room: the next one may be without padding.
    was_full: bool,
    n_vocab: usize,
    end: Token,
}

impl Context {
    /// Puts a script in llama.cpp's place, as if the context had been made as small as that.
    pub(crate) fn play(&mut self, script: FakeBackend) {
        let vocab = self.model().vocab();
        let (n_vocab, end) = (vocab.n_tokens(), vocab.eos().unwrap());
        self.n_ctx = script.n_cells;
        let n_buffers = if self.unified { 1 } else { u32::try_from(self.n_seq_max).unwrap() };
        let n_batch = padding::n_batch(64, u32::try_from(script.n_ubatch).unwrap(), n_buffers);
        if let Some((padding, n_batch)) = self.padding.take().zip(n_batch) {
            self.padding = Some(padding.with_n_ubatch(script.n_ubatch));
            self.n_batch = n_batch as usize;
        }
        self.fake =
            Some(FakeBackend { n_vocab, end, unified: self.unified, padding: self.pads_single_tokens(), ..script });
    }

    /// From now on, more tokens of a sequence than that are evaluated in another way.
    pub(crate) fn play_alike(&mut self, max_invariant_tokens: usize) {
        self.fake.as_mut().unwrap().max_invariant_tokens = max_invariant_tokens;
    }

    /// The script in llama.cpp's place.
    pub(crate) fn fake(&self) -> &FakeBackend {
        self.fake.as_ref().unwrap()
    }
}

impl FakeBackend {
    /// A script with room for `n_cells` tokens (of each sequence, unless they share it) and physical batches of `n_ubatch`.
    /// `cost`: what an evaluation of one token takes. `faults`: what goes wrong, by the number of the evaluation.
    pub(crate) fn new(
        voice: FakeModel,
        n_cells: usize,
        n_ubatch: usize,
        cost: Duration,
        faults: BTreeMap<usize, Fault>,
    ) -> FakeBackend {
        FakeBackend {
            voice,
            cost,
            faults,
            n_evaluated: 0,
            physical: Vec::new(),
            cells: Vec::new(),
            seen: Vec::new(),
            rows: Vec::new(),
            unsettled: false,
            divided: false,
            n_cells,
            n_ubatch,
            max_invariant_tokens: 62,
            unified: true,
            padding: false,
            was_full: false,
            n_vocab: 0,
            end: 0,
        }
    }

    /// The tokens of `sequence`, in the order of their positions.
    pub(crate) fn tokens(&self, sequence: SeqId) -> Vec<Token> {
        self.of(sequence).iter().map(|cell| cell.token).collect()
    }

    /// How many batches it has evaluated.
    pub(crate) fn n_evaluated(&self) -> usize {
        self.n_evaluated
    }

    /// How many tokens each physical batch of the last batch had, its padding included.
    pub(crate) fn physical_batches(&self) -> &[usize] {
        &self.physical
    }

    /// The faults that are still to come.
    pub(crate) fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.values()
    }

    fn of(&self, sequence: SeqId) -> Vec<&Cell> {
        let mut cells: Vec<&Cell> = self.cells.iter().filter(|cell| cell.is_of(sequence)).collect();
        cells.sort_by_key(|cell| cell.position);
        cells
    }

    /// Whether these fit beside what is there.
    fn has_room(&self, new: &[Cell]) -> bool {
        let mut used = BTreeMap::new();
        for cell in self.cells.iter().chain(new) {
            *used.entry(if self.unified { 0 } else { cell.first() }).or_insert(0) += 1;
        }
        used.values().all(|used| *used <= self.n_cells + usize::from(self.padding))
    }

    /// As `llama_decode`; `moved`: an interrupt waits for the end.
    pub(super) fn decode(&mut self, batch: &Batch, scales: &[f32], moved: bool) -> Result<(), DecodeError> {
        let further = u32::try_from(batch.len() - 1).unwrap();
        PASSED.set(PASSED.get() + self.cost + self.cost / 8 * further);
        let fault = self.faults.remove(&self.n_evaluated);
        self.n_evaluated += 1;
        EVALUATED.set(EVALUATED.get() + 1);
        (self.seen, self.rows, self.unsettled) = (Vec::new(), Vec::new(), false);
        let new = cells_of(batch, scales);
        self.check_order(&new);
        let may_be_alone = std::mem::take(&mut self.was_full);
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
            self.check_padding(&new, &parts);
        }
        self.check_division(&new, &parts);
        for (number, part) in parts.iter().enumerate() {
            self.cells.extend(part.iter().map(|index| new[*index].clone()));
            let error = match fault {
                Some(Fault::Aborted(at)) if at % parts.len() == number && !moved => DecodeError::Aborted,
                Some(Fault::Failed(at)) if at % parts.len() == number => {
                    DecodeError::Failed("as the script says".into())
                }
                _ => continue,
            };
            // As llama.cpp: of each token's first sequence alone.
            part.iter().for_each(|index| self.remove(new[*index].first(), new[*index].position..usize::MAX));
            return Err(error);
        }
        let seen = new.iter().map(|cell| self.seen_by(cell)).zip(&batch.outputs);
        self.seen = seen.map(|(seen, output)| (*output != 0).then_some(seen)).collect();
        self.rows.resize(new.len(), None);
        Ok(())
    }

    /// The physical batches, as indices: `llama_batch_allocr::split_simple` with one buffer for all sequences, else `split_equal`, which
    /// takes consecutive increasing sequence ids and the same number of tokens from each.
    fn split(&self, new: &[Cell]) -> Vec<Vec<usize>> {
        let mut left: Vec<usize> = (0..new.len()).collect();
        if self.unified {
            return left.chunks(self.n_ubatch).map(<[usize]>::to_vec).collect();
        }
        let mut parts = Vec::new();
        while !left.is_empty() {
            let mut rows: Vec<SeqId> = Vec::new();
            for sequence in left.iter().map(|index| new[*index].first()) {
                let follows = rows.last().is_none_or(|last| sequence == last + 1);
                if follows && rows.len() < self.n_ubatch {
                    rows.push(sequence);
                }
            }
            let of = |sequence: SeqId| left.iter().copied().filter(move |index| new[*index].first() == sequence);
            let shortest = rows.iter().map(|sequence| of(*sequence).count()).min().unwrap();
            let n = shortest.min(self.n_ubatch / rows.len()).max(1);
            let part: Vec<usize> = rows.iter().flat_map(|sequence| of(*sequence).take(n)).collect();
            left.retain(|index| !part.contains(index));
            parts.push(part);
        }
        parts
    }

    /// What a token sees: the same in each of its sequences.
    fn seen_by(&self, cell: &Cell) -> Vec<u64> {
        let mut all = cell.all().map(|sequence| {
            let mut cells = self.of(sequence);
            cells.retain(|other| other.position <= cell.position);
            let positions: Vec<usize> = cells.iter().map(|cell| cell.position).collect();
            let follow = |pair: &[usize]| pair[1] == pair[0] + 1 || (self.divided && pair[1] == pair[0]);
            let whole = positions[0] == 0 && positions.windows(2).all(follow);
            assert!(whole, "the positions of sequence {sequence}: {positions:?}");
            cells.iter().map(|cell| cell.sight).collect::<Vec<u64>>()
        });
        let seen = all.next().unwrap();
        assert!(all.all(|other| other == seen), "a token of several sequences, which differ before it");
        seen
    }

    /// The row of a token that it was asked for.
    pub(super) fn logits(&mut self, index: usize) -> Option<&mut [f32]> {
        let seen = self.seen[index].as_ref()?;
        Some(self.rows[index].get_or_insert_with(|| self.voice.logits(seen, self.n_vocab, self.end)))
    }

    pub(super) fn remove(&mut self, sequence: SeqId, range: Range<usize>) {
        for cell in self.cells.iter_mut().filter(|cell| range.contains(&cell.position)) {
            cell.sequences &= !bit(sequence);
        }
        self.cells.retain(|cell| cell.sequences != 0);
    }

    /// `to` is empty.
    pub(super) fn copy(&mut self, from: SeqId, to: SeqId) {
        if self.unified {
            self.cells.iter_mut().filter(|cell| cell.is_of(from)).for_each(|cell| cell.sequences |= bit(to));
            return;
        }
        let copies: Vec<Cell> =
            self.of(from).into_iter().map(|cell| Cell { sequences: bit(to), ..cell.clone() }).collect();
        self.cells.extend(copies);
        self.unsettled = true;
    }

    /// Gives the positions `range` of `sequence` others.
    fn reposition(&mut self, sequence: SeqId, range: Range<usize>, position: impl Fn(usize) -> usize) {
        for cell in self.cells.iter_mut().filter(|cell| cell.is_of(sequence) && range.contains(&cell.position)) {
            assert_eq!(cell.sequences, bit(sequence), "a cell is moved that another sequence has, too");
            cell.position = position(cell.position);
        }
        self.unsettled = true;
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
        self.unsettled = false;
    }

    /// The position behind the last one of `sequence`.
    pub(super) fn len(&self, sequence: SeqId) -> usize {
        self.of(sequence).last().map_or(0, |cell| cell.position + 1)
    }

    /// The first position of `sequence`.
    pub(super) fn first(&self, sequence: SeqId) -> Option<usize> {
        self.of(sequence).first().map(|cell| cell.position)
    }

    pub(super) fn state(&self, sequence: SeqId) -> Vec<u8> {
        assert!(!self.unsettled, "the state of keys that are still to be moved");
        let numbers = |cell: &Cell| [cell.sight, u64::from(cell.token.unsigned_abs()), cell.position as u64];
        // A state is never empty.
        let bytes = self.of(sequence).into_iter().flat_map(numbers).flat_map(u64::to_le_bytes);
        std::iter::once(1).chain(bytes).collect()
    }

    /// False, and the sequence is empty, where there is no room.
    pub(super) fn set_state(&mut self, sequence: SeqId, state: &[u8]) -> bool {
        assert!(!self.unsettled, "a copy that is still to be made would be made over the state");
        self.remove(sequence, 0..usize::MAX);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let cells = state[1..].chunks_exact(24).map(|bytes| Cell {
            sight: number(&bytes[..8]),
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
                sight: FakeModel::sight(*token, scales),
                position: usize::try_from(*position).unwrap(),
                sequences: own.fold(0, |all, sequence| {
                    assert!(bit(*sequence) > all, "a token's sequences come in their order");
                    all | bit(*sequence)
                }),
            }
        })
        .collect()
}
