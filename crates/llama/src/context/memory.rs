//! The KV cache of a context: removing, moving, copying, saving and restoring the cells of a sequence.

use std::ops::Range;

use llama_cpp_sys_2 as sys;

use crate::context::faked;
use crate::guard::ErrorBuffer;
use crate::{Batch, Context, DecodeError, Rollback, SeqId, log};
use foredraft_base::error::{Error, Result};
use foredraft_native::foredraft_seq_move;
use foredraft_native::{foredraft_state_get, foredraft_state_set, foredraft_state_size};

/// A part of a sequence's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The whole state.
    Whole,
    /// The part that later tokens overwrite: recurrent states and sliding windows. It can be restored only while the rest is unchanged.
    Overwritten,
}

impl Part {
    fn is_partial(self) -> bool {
        self == Part::Overwritten
    }
}

impl Context {
    /// Removes the tokens of `sequence` from position `from` on. Returns false, and changes nothing, if that is impossible (see [`Rollback`]). The
    /// whole sequence (`from` 0) can always be removed.
    pub fn truncate(&mut self, sequence: SeqId, from: usize) -> bool {
        self.remove(sequence, from, None)
    }

    /// Removes the positions `from..to` of `sequence` (`None`: to the end), leaving a gap.
    pub fn remove(&mut self, sequence: SeqId, from: usize, to: Option<usize>) -> bool {
        if self.memory.is_null() || !self.has_sequence(sequence) || !self.can_remove(sequence, from, to) {
            return false;
        }
        faked!(fake = &mut self.fake => {
            fake.remove(sequence, from..to.unwrap_or(usize::MAX));
            true
        });
        let from = i32::try_from(from).unwrap_or(i32::MAX);
        let to = to.map_or(-1, |to| i32::try_from(to).unwrap_or(i32::MAX));
        // SAFETY: the memory belongs to the context, and the sequence exists.
        unsafe { sys::llama_memory_seq_rm(self.memory, sequence, from, to) }
    }

    /// Whether a range can be removed. If it can, the sequence counts as changed.
    fn can_remove(&mut self, sequence: SeqId, from: usize, to: Option<usize>) -> bool {
        if self.rollback().is_unlimited() {
            return true;
        }
        let len = self.len(sequence);
        let is_end = to.is_none_or(|to| to >= len);
        if from > 0 && is_end && !self.removable.allows(sequence, len.saturating_sub(from)) {
            return false;
        }
        if from < len {
            self.removable.changed(sequence);
        }
        true
    }

    /// Replaces the sequence `to` by a copy of `from`. Returns false, and changes nothing, if a sequence does not exist, or if sequences may be
    /// at an earlier state ([`Rollback::Recent`]), which llama.cpp does not copy. If each sequence has its own buffer, the next decode copies
    /// the whole buffer; in a shared buffer the copy uses no memory.
    pub fn copy(&mut self, from: SeqId, to: SeqId) -> bool {
        let copies = !matches!(self.rollback(), Rollback::Recent(_));
        if !copies || from == to || !self.has_sequence(from) || !self.truncate(to, 0) {
            return false;
        }
        // As with moved keys, the next decode carries it out.
        self.has_pending_moves = true;
        faked!(fake = &mut self.fake => {
            fake.copy(from, to);
            true
        });
        // SAFETY: the memory belongs to the context, and both sequences exist. Every kind of memory can copy whole sequences.
        unsafe { sys::llama_memory_seq_cp(self.memory, from, to, -1, -1) };
        true
    }

    /// Replaces the sequence `to` by the cells of `from`, without copying them. Returns false, and changes nothing, if the sequences
    /// do not share a buffer.
    pub fn share(&mut self, from: SeqId, to: SeqId) -> bool {
        if !self.unified || !self.cuts_anywhere || from == to || !self.has_sequence(from) || !self.truncate(to, 0) {
            return false;
        }
        faked!(fake = &mut self.fake => {
            fake.copy(from, to);
            true
        });
        // SAFETY: the memory belongs to the context, and both sequences exist in the same buffer.
        unsafe { sys::llama_memory_seq_cp(self.memory, from, to, -1, -1) };
        true
    }

    /// Adds `by` to the positions `range` of `sequence`. The new positions must be free. Returns false, and changes nothing, if this
    /// memory cannot shift.
    pub fn move_by(&mut self, sequence: SeqId, range: Range<usize>, by: isize) -> bool {
        let (Some((from, to)), Ok(by)) = (bounds(&range), i32::try_from(by)) else { return false };
        let lowest = from.checked_add(by).is_some_and(|lowest| lowest >= 0);
        if !self.can_shift() || !self.has_sequence(sequence) || !lowest || to.checked_add(by).is_none() {
            return false;
        }
        if range.is_empty() || by == 0 {
            return true;
        }
        (self.has_pending_moves, self.has_pending_rotations) = (true, true);
        faked!(fake = &mut self.fake => {
            fake.move_by(sequence, range, by);
            true
        });
        let mut why = ErrorBuffer::new();
        // SAFETY: the memory belongs to the context, the sequence exists, and the memory supports shifting. The guard catches
        // exceptions.
        unsafe { foredraft_seq_move(self.memory, sequence, from, to, by, why.ptr(), why.size()) }
    }

    /// Divides the positions `range` of `sequence` by `by`, rounding down. Returns false, and changes nothing, if this memory cannot
    /// shift.
    pub fn divide(&mut self, sequence: SeqId, range: Range<usize>, by: usize) -> bool {
        let (Some((from, to)), Ok(by @ 1..)) = (bounds(&range), i32::try_from(by)) else { return false };
        if !self.can_shift() || !self.has_sequence(sequence) {
            return false;
        }
        if range.is_empty() || by == 1 {
            return true;
        }
        (self.has_pending_moves, self.has_pending_rotations) = (true, true);
        faked!(fake = &mut self.fake => {
            fake.divide(sequence, range, by);
            true
        });
        // One position at a time, in ascending order, so that each new position is free. `llama_memory_seq_div` rotates the keys in the
        // wrong direction (its `pos_div` adds old minus new, `pos_add` new minus old).
        let mut why = ErrorBuffer::new();
        // SAFETY: as in `move_by`. The divisor is not 0.
        (from..to).all(|at| unsafe {
            foredraft_seq_move(self.memory, sequence, at, at + 1, at / by - at, why.ptr(), why.size())
        })
    }

    /// Whether [`Context::move_by`] and [`Context::divide`] work.
    pub fn can_shift(&self) -> bool {
        // SAFETY: the memory belongs to the context.
        !self.memory.is_null() && self.rotates_keys && unsafe { sys::llama_memory_can_shift(self.memory) }
    }

    /// Whether any range of positions can be removed, and no position is removed by itself. False for recurrent and hybrid models, and
    /// for sliding windows whose cache has only the size of the window.
    pub fn cuts_anywhere(&self) -> bool {
        self.cuts_anywhere
    }

    /// The position after the last one of `sequence`. Without gaps, this is the number of cached tokens.
    pub fn len(&self, sequence: SeqId) -> usize {
        if self.memory.is_null() || !self.has_sequence(sequence) {
            return 0;
        }
        faked!(fake = &self.fake => fake.len(sequence));
        // SAFETY: as in `remove`.
        let last = unsafe { sys::llama_memory_seq_pos_max(self.memory, sequence) };
        usize::try_from(last.saturating_add(1)).unwrap_or(0)
    }

    /// Whether the cache has all cells that a token at position `next` of `sequence` attends to. (A sliding window's cache drops cells
    /// that later tokens do not need.)
    pub fn reaches(&self, sequence: SeqId, next: usize) -> bool {
        if next == 0 {
            return true;
        }
        self.len(sequence) == next && self.reaches_back(sequence, next)
    }

    /// Whether [`Context::reaches`] would hold if the tokens from position `next` on were removed, which this memory can do.
    pub fn reaches_back(&self, sequence: SeqId, next: usize) -> bool {
        if self.memory.is_null() || !self.has_sequence(sequence) {
            return false;
        }
        faked!(fake = &self.fake => fake.first(sequence) == Some(0));
        // SAFETY: as in `remove`.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory, sequence) };
        // A recurrent state represents all tokens before it.
        let needed = match self.model.n_swa() {
            _ if !self.rollback().is_unlimited() => next - 1,
            0 => 0,
            window => (next + 1).saturating_sub(window),
        };
        usize::try_from(first).is_ok_and(|first| first <= needed)
    }

    /// Returns the state of `sequence`. It fits into every context with the same model and [`Context::layout`].
    ///
    /// # Errors
    /// The sequence does not exist, there is not enough memory, or llama.cpp fails.
    pub fn state(&mut self, sequence: SeqId, part: Part) -> Result<Vec<u8>> {
        let mut state = Vec::new();
        self.state_into(sequence, part, &mut state).map(|()| state)
    }

    /// As [`Context::state`], into a buffer that is used again.
    ///
    /// # Errors
    /// As [`Context::state`]; the buffer has no state then.
    pub fn state_into(&mut self, sequence: SeqId, part: Part, state: &mut Vec<u8>) -> Result<()> {
        state.clear();
        let size = self.state_size(sequence, part)?;
        faked!(fake = &self.fake => {
            *state = fake.state(sequence);
            Ok(())
        });
        let mut why = ErrorBuffer::new();
        if state.try_reserve_exact(size).is_err() {
            return Err(Error::model(format!("cannot copy a state of {size} bytes")));
        }
        // SAFETY: as in `state_size`, and the buffer has room for `size` bytes.
        let copied = unsafe {
            let to = state.spare_capacity_mut().as_mut_ptr().cast();
            foredraft_state_get(self.ptr.as_ptr(), to, size, sequence, part.is_partial(), why.ptr(), why.size())
        };
        if let Some(loss) = self.loss() {
            return Err(Error::model(loss));
        }
        if copied != size {
            return Err(Error::model(format!("cannot copy the state: {}", why.message())));
        }
        // SAFETY: llama.cpp has written so many bytes.
        unsafe { state.set_len(size) };
        Ok(())
    }

    /// Returns the number of bytes of the state of `sequence`.
    ///
    /// # Errors
    /// As [`Context::state`].
    pub fn state_size(&mut self, sequence: SeqId, part: Part) -> Result<usize> {
        self.apply_pending_moves(sequence)?;
        faked!(fake = &self.fake => Ok(fake.state(sequence).len()));
        let mut why = ErrorBuffer::new();
        // SAFETY: the context is alive, and the sequence exists. The guard catches exceptions.
        let size =
            unsafe { foredraft_state_size(self.ptr.as_ptr(), sequence, part.is_partial(), why.ptr(), why.size()) };
        if size == 0 { Err(Error::model(format!("a state has no size: {}", why.message()))) } else { Ok(size) }
    }

    /// Replaces `sequence` by a state from [`Context::state`].
    ///
    /// # Errors
    /// The sequence does not exist, or the state is damaged or does not fit. The sequence is then empty.
    pub fn set_state(&mut self, sequence: SeqId, state: &[u8], part: Part) -> Result<()> {
        if !self.has_sequence(sequence) {
            return Err(Error::model(format!("there is no sequence {sequence}")));
        }
        self.removable.changed(sequence);
        faked!(fake = &mut self.fake => match fake.set_state(sequence, state) {
            true => Ok(()),
            false => Err(Error::model("the state does not fit")),
        });
        let mut why = ErrorBuffer::new();
        // SAFETY: the context is alive, and the sequence exists. llama.cpp gets the length of `state`, reads no more, and compares the
        // types and sizes in it with its tensors. The guard catches exceptions.
        let (read, errors) = log::collecting(|| unsafe {
            let (from, size) = (state.as_ptr(), state.len());
            foredraft_state_set(self.ptr.as_ptr(), from, size, sequence, part.is_partial(), why.ptr(), why.size())
        });
        let loss = self.loss();
        if read == state.len() && read > 0 && loss.is_none() {
            return Ok(());
        }
        self.truncate(sequence, 0);
        if let Some(loss) = loss {
            return Err(Error::model(loss));
        }
        Err(Error::model(format!("the state does not fit: {} {}", errors.join("; "), why.message())))
    }

    /// Clears all sequences. Does nothing in a context that reads the memory of its target.
    pub fn reset(&mut self) {
        if self.hidden.shares_memory() {
            return;
        }
        (self.has_pending_moves, self.has_pending_rotations) = (false, false);
        self.removable.clear();
        faked!(fake = &mut self.fake => fake.reset());
        if !self.memory.is_null() {
            // SAFETY: the memory belongs to the context.
            unsafe { sys::llama_memory_clear(self.memory, true) };
        }
    }

    /// Whether positions were moved or sequences copied since the last decode, so that no state can be read without another one.
    pub fn has_pending_moves(&self) -> bool {
        self.has_pending_moves
    }

    /// Applies pending moves and copies, without which a saved state would be outdated. llama.cpp applies them before a decode, so a token
    /// is decoded and removed again. (With recurrent models this works only for an empty sequence.)
    ///
    /// # Errors
    /// The sequence does not exist, or the decode failed.
    pub fn apply_pending_moves(&mut self, sequence: SeqId) -> Result<()> {
        if !self.has_sequence(sequence) {
            return Err(Error::model(format!("there is no sequence {sequence}")));
        }
        if !self.has_pending_moves {
            return Ok(());
        }
        let next = self.len(sequence);
        if next > 0 && !self.rollback().is_unlimited() {
            return Err(Error::model("the context was shifted and no token has been decoded since; try again"));
        }
        let vocab = self.model.vocab();
        let token = vocab.bos().or(vocab.eos()).unwrap_or(0);
        let mut batch = Batch::new();
        batch.push(token, next, sequence, false);
        match self.decode(&batch) {
            // The moves are applied even if there is no space for the token.
            Ok(()) | Err(DecodeError::Full) => {
                self.truncate(sequence, next);
                Ok(())
            }
            Err(error) => Err(Error::model(format!("the context shift failed: {error:?}"))),
        }
    }
}

fn bounds(range: &Range<usize>) -> Option<(i32, i32)> {
    Some((i32::try_from(range.start).ok()?, i32::try_from(range.end).ok()?))
}
