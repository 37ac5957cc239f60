//! A sequence of a context: the tokens in it, and how it is cut back, shifted, grouped, copied out and put back.
//!
//! Target and draft keep their caches in the same way, with this. Positions in the context are not always token numbers
//! (see [`SelfExtend`]), and not every memory can be cut back (see [`Context::cuts_anywhere`]): nobody else needs to know.

use std::ops::{Deref, Range};

use super::reuse;
use super::{Checkpoints, SelfExtend, common_prefix};
use crate::error::{Error, Result};
use crate::llama::{Context, Part, SeqId, Token};

/// The tokens of one sequence in a context; as a slice, those tokens from the first on.
#[derive(Debug)]
pub struct Sequence {
    id: SeqId,
    tokens: Vec<Token>,
    extend: Option<SelfExtend>,
    /// Blocks that are grouped.
    blocks: usize,
    checkpoints: Checkpoints,
}

/// The sequences for branches beside the one numbered `slot`, in a context where `n_shared` sequences share a buffer, of which
/// the first `n_slots` belong to slots.
pub fn branches(slot: usize, n_slots: usize, n_shared: usize) -> Vec<SeqId> {
    let each = (n_shared / n_slots.max(1)).saturating_sub(1);
    let first = n_slots + slot * each;
    (first..first + each).filter_map(|sequence| SeqId::try_from(sequence).ok()).collect()
}

/// A sequence copied out of its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// What another context must agree in to take it: name and value of each.
    pub identity: Vec<(String, String)>,
    /// The tokens.
    pub tokens: Vec<Token>,
    /// Blocks of them that [`SelfExtend`] has grouped.
    pub blocks: usize,
    /// llama.cpp's bytes.
    pub state: Vec<u8>,
}

impl Deref for Sequence {
    type Target = [Token];

    fn deref(&self) -> &[Token] {
        &self.tokens
    }
}

impl Sequence {
    /// The empty sequence number `index`.
    pub fn new(index: usize, extend: Option<SelfExtend>) -> Sequence {
        let id = SeqId::try_from(index).unwrap_or(SeqId::MAX);
        Sequence { id, tokens: Vec::new(), extend, blocks: 0, checkpoints: Checkpoints::default() }
    }

    /// Its number in the context.
    pub fn id(&self) -> SeqId {
        self.id
    }

    /// The position of the next token.
    pub fn next(&self) -> usize {
        self.position(self.tokens.len())
    }

    fn position(&self, index: usize) -> usize {
        self.extend.map_or(index, |extend| extend.position(self.blocks, index))
    }

    /// Tokens that may be evaluated before the next [`Sequence::group`].
    pub fn room(&self) -> usize {
        self.extend.map_or(usize::MAX, |extend| ((self.blocks + 1) * extend.w()).saturating_sub(self.tokens.len()))
    }

    /// Groups what is due before the next token.
    pub fn group(&mut self, context: &mut Context) {
        let Some(extend) = self.extend else { return };
        while self.blocks < extend.blocks(self.tokens.len()) {
            let (n, w, len) = (extend.n(), extend.w(), self.tokens.len());
            // The block goes to where it would be ungrouped, which makes its positions multiples of the token numbers'.
            let up = self.blocks * extend.gain();
            let start = self.blocks * w;
            let rest = start + w..len;
            let down = up + extend.gain();
            let done = context.move_by(self.id, start - up..len - up, up.cast_signed())
                && context.divide(self.id, start..start + w, n)
                && context.move_by(self.id, rest, -down.cast_signed());
            if !done {
                self.clear(context);
                return;
            }
            self.blocks += 1;
        }
    }

    /// Tokens behind ours were evaluated.
    pub fn push(&mut self, tokens: &[Token]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Removes all behind `len` tokens, also what was evaluated there and is not ours. Returns how many are left, which are
    /// fewer where the memory cannot be cut just there.
    pub fn cut(&mut self, context: &mut Context, len: usize) -> usize {
        let len = len.min(self.tokens.len());
        let len = self.extend.map_or(len, |extend| extend.cut(self.blocks, len));
        let next = self.position(len);
        let nothing_behind = len == self.tokens.len() && context.len(self.id) == next;
        if (nothing_behind || context.truncate(self.id, next)) && context.reaches(self.id, next) {
            self.keep(len);
            return len;
        }
        self.back_to_checkpoint(context, len)
    }

    /// Becomes a copy of `other`, which is in the same context. False when that cannot be; then nothing changed, or it is empty.
    pub fn copy_from(&mut self, context: &mut Context, other: &Sequence) -> bool {
        if Sequence::needs_checkpoints(context) {
            // A copy that is still to be made would be made over a checkpoint that is put back: so it is made at once.
            let Ok(state) = context.state(other.id, Part::Whole) else { return false };
            if context.set_state(self.id, &state, Part::Whole).is_err() {
                self.clear(context);
                return false;
            }
        } else if !context.copy(other.id, self.id) {
            return false;
        }
        self.checkpoints.clone_from(&other.checkpoints);
        self.tokens.clone_from(&other.tokens);
        self.blocks = other.blocks;
        true
    }

    fn keep(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.blocks = self.blocks.min(self.extend.map_or(0, |extend| extend.blocks(len)));
        self.checkpoints.keep(len);
    }

    fn back_to_checkpoint(&mut self, context: &mut Context, len: usize) -> usize {
        self.checkpoints.keep(len);
        if let Some((len, state)) = self.checkpoints.last()
            && context.set_state(self.id, state, Part::Fleeting).is_ok()
            && context.truncate(self.id, len)
            && context.reaches(self.id, len)
        {
            self.keep(len);
            return len;
        }
        self.clear(context);
        0
    }

    /// Removes everything.
    pub fn clear(&mut self, context: &mut Context) {
        context.truncate(self.id, 0);
        self.keep(0);
    }

    /// After an evaluation that was stopped or failed: of the tokens `evaluated` behind ours, takes those that are in the
    /// context.
    pub fn recover(&mut self, context: &mut Context, evaluated: &[Token]) {
        let known = self.tokens.len();
        if !context.model().can_roll_back() {
            // The state is somewhere between two tokens.
            self.back_to_checkpoint(context, known);
            return;
        }
        let next = context.len(self.id);
        let there = self.extend.map_or(Some(next), |extend| extend.tokens_before(self.blocks, next));
        match there.and_then(|there| there.checked_sub(known)) {
            Some(new) => self.push(evaluated.get(..new.min(evaluated.len())).unwrap_or(&[])),
            None => self.clear(context),
        }
        self.cut(context, self.tokens.len());
    }

    /// Makes the sequence as much of the beginning of `prompt` as it can be. `least`: parts of the prompt that are so long
    /// and further back in the cache are moved to their new place (0: none). Returns how many tokens that is.
    pub fn reuse(&mut self, context: &mut Context, prompt: &[Token], least: usize) -> usize {
        let prefix = common_prefix(&self.tokens, prompt);
        let can_move = self.blocks == 0 && context.can_shift() && context.cuts_anywhere();
        let mut end = prefix;
        if can_move && least > 0 {
            for reuse::Chunk { from, to, len } in reuse::chunks(&self.tokens, prompt, prefix, least) {
                let moved = context.remove(self.id, to, Some(from))
                    && context.move_by(self.id, from..from + len, to.cast_signed() - from.cast_signed());
                if !moved {
                    break;
                }
                self.tokens.copy_within(from..from + len, to);
                end = to + len;
            }
        }
        self.cut(context, end)
    }

    /// Removes the tokens `range`, as far as they are here; those behind move down. False when this memory cannot do that, or
    /// groups positions; then nothing changed.
    pub fn shift(&mut self, context: &mut Context, range: Range<usize>) -> bool {
        if self.extend.is_some() || range.is_empty() || !context.can_shift() {
            return false;
        }
        if range.end > self.tokens.len() {
            self.cut(context, range.start);
            return true;
        }
        if !context.remove(self.id, range.start, Some(range.end)) {
            return false;
        }
        let down = range.len().cast_signed();
        if !context.move_by(self.id, range.end..self.tokens.len(), -down) {
            self.clear(context);
            return false;
        }
        self.tokens.drain(range);
        self.checkpoints.keep(0);
        // What is kept may be within a sliding window again that had forgotten it.
        if !context.reaches(self.id, self.next()) {
            self.clear(context);
        }
        true
    }

    /// Whether it needs [`Sequence::checkpoint`]s to be cut back.
    pub fn needs_checkpoints(context: &Context) -> bool {
        !context.cuts_anywhere()
    }

    /// Remembers this place to come back to, where the memory could not be cut back to it.
    pub fn checkpoint(&mut self, context: &mut Context) {
        if !Sequence::needs_checkpoints(context) || self.tokens.is_empty() || self.blocks > 0 {
            return;
        }
        let len = self.tokens.len();
        if self.checkpoints.last().is_none_or(|(last, _)| last < len)
            && let Ok(state) = context.state(self.id, Part::Fleeting)
        {
            self.checkpoints.add(len, state);
        }
    }

    fn identity(&self, context: &Context) -> Vec<(String, String)> {
        let extend = self.extend.map_or("1".into(), |extend| format!("{}, {}", extend.n(), extend.w()));
        let own = context.model().identity().iter().chain(context.layout());
        own.map(|(name, value)| ((*name).to_owned(), value.clone()))
            .chain([("grp_attn_n and _w".into(), extend)])
            .collect()
    }

    /// Copies it out.
    ///
    /// # Errors
    /// As [`Context::state`].
    pub fn save(&mut self, context: &mut Context) -> Result<Snapshot> {
        let state = context.state(self.id, Part::Whole)?;
        Ok(Snapshot { identity: self.identity(context), tokens: self.tokens.clone(), blocks: self.blocks, state })
    }

    /// What `snapshot` is that this is not, as "what: its value, here ours"; `None`: it fits.
    pub fn difference(&self, context: &Context, snapshot: &Snapshot) -> Option<String> {
        let own = self.identity(context);
        let pairs = snapshot.identity.iter().zip(&own);
        let differing = pairs.filter(|(theirs, ours)| theirs != ours).map(|(theirs, ours)| {
            let shown = |value: &str| if value.is_empty() { "none".to_owned() } else { value.to_owned() };
            format!("{}: {} there, {} here", theirs.0, shown(&theirs.1), shown(&ours.1))
        });
        let counted = (snapshot.identity.len() != own.len()).then(|| "it is described in another way".into());
        let most = self.extend.map_or(0, |extend| extend.blocks(snapshot.tokens.len()));
        let blocks =
            (snapshot.blocks > most).then(|| format!("{} blocks are grouped, at most {most}", snapshot.blocks));
        differing.into_iter().next().or(counted).or(blocks)
    }

    /// Copies it out, if there is anything, before [`Sequence::load`], when nothing waits to be moved or copied any more: a copy that
    /// is still to be made would be made over the new state, or of it.
    ///
    /// # Errors
    /// That cannot be; then nothing changed.
    pub fn make_way(&mut self, context: &mut Context) -> Result<Option<Snapshot>> {
        context.settle(self.id)?;
        if self.tokens.is_empty() { Ok(None) } else { self.save(context).map(Some) }
    }

    /// Puts `snapshot`, which fits and for which there is room, in place of what is there, which is `before`.
    ///
    /// # Errors
    /// The state is a forgery (damage was noticed before). What that did to the context's memory nobody knows, so all of it
    /// is emptied: this sequence is then as it was, all others must be cleared.
    pub fn load(&mut self, context: &mut Context, snapshot: &Snapshot, before: Option<Snapshot>) -> Result<()> {
        let result = self.put(context, snapshot);
        if result.is_err() {
            context.reset();
            self.clear(context);
            if before.is_some_and(|before| self.put(context, &before).is_err()) {
                self.clear(context);
            }
        }
        result
    }

    fn put(&mut self, context: &mut Context, snapshot: &Snapshot) -> Result<()> {
        context.set_state(self.id, &snapshot.state, Part::Whole)?;
        self.checkpoints.keep(0);
        self.tokens.clone_from(&snapshot.tokens);
        self.blocks = snapshot.blocks;
        let there = context.len(self.id);
        if there != self.next() || !context.reaches(self.id, there) {
            return Err(Error::model(format!("the state is {there} positions long, not {}", self.next())));
        }
        // What is last is checked as all else is that a cut leaves; a place to come back to is worth its bytes here.
        self.checkpoint(context);
        Ok(())
    }
}
