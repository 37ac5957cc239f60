//! A context's memory: what it holds of each sequence, and how that is cut, moved, copied out and put back.

use std::ops::Range;

use llama_cpp_sys_2 as sys;

use super::context::faked;
use super::guard::{Why, foredraft_seq_move};
use super::guard::{foredraft_state_get, foredraft_state_set, foredraft_state_size};
use super::params::CacheType;
use super::{Batch, Context, DecodeError, Model, SeqId, log};
use crate::error::{Error, Result};

/// Which part of a sequence's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Only what later tokens overwrite: recurrent states and sliding windows. To put it back, the rest must still be there.
    Fleeting,
}

impl Part {
    fn is_fleeting(self) -> bool {
        self == Part::Fleeting
    }
}

impl Context {
    /// Removes the tokens of `sequence` from `from` on. False when this memory cannot be cut there (recurrent
    /// models); the whole sequence (`from` 0) can always be removed.
    pub fn truncate(&mut self, sequence: SeqId, from: usize) -> bool {
        self.remove(sequence, from, None)
    }

    /// Removes the positions `from..to` of `sequence` (to the end with `None`), leaving a hole.
    pub fn remove(&mut self, sequence: SeqId, from: usize, to: Option<usize>) -> bool {
        if self.memory.is_null() || !self.has_sequence(sequence) {
            return false;
        }
        faked!(fake = &mut self.fake => {
            fake.remove(sequence, from..to.unwrap_or(usize::MAX));
            true
        });
        let from = i32::try_from(from).unwrap_or(i32::MAX);
        let to = to.map_or(-1, |to| i32::try_from(to).unwrap_or(i32::MAX));
        // SAFETY: the memory belongs to the context, and the sequence is one of its own.
        unsafe { sys::llama_memory_seq_rm(self.memory, sequence, from, to) }
    }

    /// Makes the sequence `to` a copy of `from`, in place of what it holds. False for a sequence that the context does not
    /// have, and then nothing changed. Where both have buffers of their own these are copied whole, by the next
    /// evaluation; in a buffer that they share it takes no memory.
    pub fn copy(&mut self, from: SeqId, to: SeqId) -> bool {
        if from == to || !self.has_sequence(from) || !self.truncate(to, 0) {
            return false;
        }
        // As with moved keys: until then there is nothing in the new place.
        self.moved = true;
        faked!(fake = &mut self.fake => {
            fake.copy(from, to);
            true
        });
        // SAFETY: the memory belongs to the context, and both sequences are its own; whole sequences can be copied by
        // every kind of memory.
        unsafe { sys::llama_memory_seq_cp(self.memory, from, to, -1, -1) };
        true
    }

    /// Makes the sequence `to` the same as `from`, in place of what it holds, where both are in one buffer: nothing is copied.
    /// False where they are not, and then nothing changed.
    pub fn share(&mut self, from: SeqId, to: SeqId) -> bool {
        if !self.unified || !self.cuts_anywhere || from == to || !self.has_sequence(from) || !self.truncate(to, 0) {
            return false;
        }
        faked!(fake = &mut self.fake => {
            fake.copy(from, to);
            true
        });
        // SAFETY: the memory belongs to the context, and both sequences are its own, in one buffer.
        unsafe { sys::llama_memory_seq_cp(self.memory, from, to, -1, -1) };
        true
    }

    /// Adds `by` to the positions `range` of `sequence`, whose new places are free. False when this memory cannot
    /// shift; then nothing changed.
    pub fn move_by(&mut self, sequence: SeqId, range: Range<usize>, by: isize) -> bool {
        let (Some((from, to)), Ok(by)) = (bounds(&range), i32::try_from(by)) else { return false };
        let lowest = from.checked_add(by).is_some_and(|lowest| lowest >= 0);
        if !self.can_shift() || !self.has_sequence(sequence) || !lowest || to.checked_add(by).is_none() {
            return false;
        }
        if range.is_empty() || by == 0 {
            return true;
        }
        self.moved = true;
        faked!(fake = &mut self.fake => {
            fake.move_by(sequence, range, by);
            true
        });
        let mut why = Why::new();
        // SAFETY: the memory belongs to the context, the sequence is one of its own, and the memory supports shifting;
        // exceptions end in the guard.
        unsafe { foredraft_seq_move(self.memory, sequence, from, to, by, why.ptr(), why.size()) }
    }

    /// Divides the positions `range` of `sequence` by `by`, rounding down. False when this memory cannot shift; then
    /// nothing changed.
    pub fn divide(&mut self, sequence: SeqId, range: Range<usize>, by: usize) -> bool {
        let (Some((from, to)), Ok(by @ 1..)) = (bounds(&range), i32::try_from(by)) else { return false };
        if !self.can_shift() || !self.has_sequence(sequence) {
            return false;
        }
        if range.is_empty() || by == 1 {
            return true;
        }
        self.moved = true;
        faked!(fake = &mut self.fake => {
            fake.divide(sequence, range, by);
            true
        });
        // Position by position, each of which is free by then: `llama_memory_seq_div` would turn the keys the wrong way (its
        // `pos_div` adds up old minus new, `pos_add` new minus old).
        let mut why = Why::new();
        // SAFETY: as in `move_by`; the divisor is not 0.
        (from..to).all(|at| unsafe {
            foredraft_seq_move(self.memory, sequence, at, at + 1, at / by - at, why.ptr(), why.size())
        })
    }

    /// Whether [`Context::move_by`] and [`Context::divide`] work.
    pub fn can_shift(&self) -> bool {
        // SAFETY: the memory belongs to the context.
        !self.memory.is_null() && self.turns_keys && unsafe { sys::llama_memory_can_shift(self.memory) }
    }

    /// Whether every position stays in the memory until it is removed, and can be removed alone. Not so for recurrent and
    /// hybrid models, nor for sliding windows whose cache is no larger than they are.
    pub fn cuts_anywhere(&self) -> bool {
        self.cuts_anywhere
    }

    /// The position that follows those of `sequence`: without holes, how many tokens of it are in the cache.
    pub fn len(&self, sequence: SeqId) -> usize {
        if self.memory.is_null() || !self.has_sequence(sequence) {
            return 0;
        }
        faked!(fake = &self.fake => fake.len(sequence));
        // SAFETY: as in `remove`.
        let last = unsafe { sys::llama_memory_seq_pos_max(self.memory, sequence) };
        usize::try_from(last.saturating_add(1)).unwrap_or(0)
    }

    /// Whether the memory holds all that a token at the position `next` of `sequence` may look at: a sliding window's cache
    /// forgets what later tokens did not need any more.
    pub fn reaches(&self, sequence: SeqId, next: usize) -> bool {
        if next == 0 {
            return true;
        }
        if self.memory.is_null() || !self.has_sequence(sequence) || self.len(sequence) != next {
            return false;
        }
        faked!(fake = &self.fake => fake.first(sequence) == Some(0));
        // SAFETY: as in `remove`.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory, sequence) };
        // A recurrent state stands for all tokens before it.
        let needed = match self.model.n_swa() {
            _ if !self.model.can_roll_back() => next - 1,
            0 => 0,
            window => (next + 1).saturating_sub(window),
        };
        usize::try_from(first).is_ok_and(|first| first <= needed)
    }

    /// Copies the state of `sequence` out. It fits into every context of the same model and [`Context::layout`].
    ///
    /// # Errors
    /// There is no such sequence, no memory for the copy, or llama.cpp fails.
    pub fn state(&mut self, sequence: SeqId, part: Part) -> Result<Vec<u8>> {
        self.settle(sequence)?;
        faked!(fake = &self.fake => Ok(fake.state(sequence)));
        let mut why = Why::new();
        // SAFETY: the context is alive and the sequence one of its own; exceptions end in the guard.
        let size =
            unsafe { foredraft_state_size(self.ptr.as_ptr(), sequence, part.is_fleeting(), why.ptr(), why.size()) };
        let mut state = Vec::new();
        if size == 0 || state.try_reserve_exact(size).is_err() {
            return Err(Error::model(format!("a state of {size} bytes cannot be copied: {}", why.message())));
        }
        state.resize(size, 0);
        // SAFETY: as above, and the buffer is as long as said.
        let copied = unsafe {
            let to = state.as_mut_ptr();
            foredraft_state_get(self.ptr.as_ptr(), to, size, sequence, part.is_fleeting(), why.ptr(), why.size())
        };
        if copied == size {
            Ok(state)
        } else {
            Err(Error::model(format!("the state cannot be copied: {}", why.message())))
        }
    }

    /// Puts a state of [`Context::state`] into `sequence`, in place of what it holds.
    ///
    /// # Errors
    /// There is no such sequence, or the state is damaged or does not fit: the sequence is then empty.
    pub fn set_state(&mut self, sequence: SeqId, state: &[u8], part: Part) -> Result<()> {
        if !self.has_sequence(sequence) {
            return Err(Error::model(format!("there is no sequence {sequence}")));
        }
        faked!(fake = &mut self.fake => match fake.set_state(sequence, state) {
            true => Ok(()),
            false => Err(Error::model("the state does not fit")),
        });
        let mut why = Why::new();
        // SAFETY: the context is alive and the sequence one of its own; llama.cpp reads no more than `state`, whose length
        // it is told, and checks types and sizes in it against its tensors; exceptions end in the guard.
        let (read, errors) = log::collecting(|| unsafe {
            let (from, size) = (state.as_ptr(), state.len());
            foredraft_state_set(self.ptr.as_ptr(), from, size, sequence, part.is_fleeting(), why.ptr(), why.size())
        });
        if read == state.len() && read > 0 {
            return Ok(());
        }
        self.truncate(sequence, 0);
        Err(Error::model(format!("the state does not fit: {} {}", errors.join("; "), why.message())))
    }

    /// Empties all sequences.
    pub fn reset(&mut self) {
        self.moved = false;
        faked!(fake = &mut self.fake => fake.reset());
        if !self.memory.is_null() {
            // SAFETY: the memory belongs to the context.
            unsafe { sys::llama_memory_clear(self.memory, true) };
        }
    }

    /// Turns keys whose positions were moved, and copies what is to be copied: until then a state would be an old one. llama.cpp does it
    /// before an evaluation, so there is one, of a token that is removed again, which a recurrent state allows where it is empty.
    ///
    /// # Errors
    /// There is no such sequence, or the evaluation failed.
    pub fn settle(&mut self, sequence: SeqId) -> Result<()> {
        if !self.has_sequence(sequence) {
            return Err(Error::model(format!("there is no sequence {sequence}")));
        }
        if !self.moved {
            return Ok(());
        }
        let next = self.len(sequence);
        if next > 0 && !self.model.can_roll_back() {
            return Err(Error::model("its context was shifted and nothing was evaluated since; try again"));
        }
        let vocab = self.model.vocab();
        let token = vocab.bos().or(vocab.eos()).unwrap_or(0);
        let mut batch = Batch::new();
        batch.push(token, next, sequence, false);
        match self.decode(&batch) {
            // Where there is no room for a token, the keys have been turned all the same.
            Ok(()) | Err(DecodeError::Full) => {
                self.truncate(sequence, next);
                Ok(())
            }
            Err(error) => Err(Error::model(format!("its context was shifted, and that failed: {error:?}"))),
        }
    }
}

/// Whether llama.cpp can turn keys of this type for new positions. ggml's rotation knows no bf16, on a thread where that ends the
/// process; and quantized keys are first turned back by a matrix that exists for some sizes of heads alone, and is used
/// where it does not exist, too.
pub(super) fn turns_keys(kind: CacheType, model: &Model) -> bool {
    const SIZE: usize = 64;
    match kind {
        CacheType::F16 | CacheType::F32 => true,
        CacheType::Bf16 => false,
        _ => {
            let matrix = std::env::var_os("LLAMA_ATTN_ROT_DISABLE").is_none();
            matrix && model.head_sizes().is_some_and(|[key, _]| key % SIZE == 0)
        }
    }
}

fn bounds(range: &Range<usize>) -> Option<(i32, i32)> {
    Some((i32::try_from(range.start).ok()?, i32::try_from(range.end).ok()?))
}
