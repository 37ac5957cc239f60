//! One sequence of a KV cache: its tokens, and rollback, shift, grouping, saving and restoring.
//!
//! Used for the caches of target and draft. Hides that positions are not always token indices (see [`SelfExtend`]), and that
//! some memories cannot be rolled back to any position (see [`Context::cuts_anywhere`]).

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::extend::SelfExtend;
use foredraft_base::error::{Error, Result};
use foredraft_base::prompt_fit::{Chunk, chunks, common_prefix};
use foredraft_base::{RowSpan, Snapshot};
use foredraft_llama::{Batch, Context, Part, SeqId, Token};

/// One sequence of a context. Dereferences to its tokens.
#[derive(Debug)]
pub struct Sequence {
    id: SeqId,
    tokens: Vec<Token>,
    extend: Option<SelfExtend>,
    /// Number of grouped blocks.
    blocks: usize,
    /// Rows of pictures that have fewer positions than cells.
    spans: Vec<RowSpan>,
    checkpoints: Checkpoints,
    /// The first token that was moved: its cell depends on tokens that are not in the sequence any more. `None`: no token was.
    moved: Option<usize>,
}

/// The sequence ids for the branches of the slot `slot`, in a context where `n_shared` sequences share a buffer and the first
/// `n_slots` of them belong to slots.
pub fn branches(slot: usize, n_slots: usize, n_shared: usize) -> Vec<SeqId> {
    let each = (n_shared / n_slots.max(1)).saturating_sub(1);
    let first = n_slots + slot * each;
    (first..first + each).filter_map(|sequence| SeqId::try_from(sequence).ok()).collect()
}

impl Deref for Sequence {
    type Target = [Token];

    fn deref(&self) -> &[Token] {
        &self.tokens
    }
}

impl Sequence {
    /// The empty sequence with the id `index`.
    pub fn new(index: usize, extend: Option<SelfExtend>) -> Sequence {
        let id = SeqId::try_from(index).unwrap_or(SeqId::MAX);
        let (tokens, spans, checkpoints) = (Vec::new(), Vec::new(), Checkpoints::default());
        Sequence { id, tokens, extend, blocks: 0, spans, checkpoints, moved: None }
    }

    /// Its sequence id.
    pub fn id(&self) -> SeqId {
        self.id
    }

    /// The position of the next token, or of the next row of a picture.
    pub fn next(&self) -> usize {
        self.position(self.tokens.len())
    }

    fn position(&self, index: usize) -> usize {
        let saved = self.spans.iter().filter_map(|span| match index.checked_sub(span.start)? {
            at if at < span.rows => Some(at),
            _ => Some(span.rows - span.positions.min(span.rows)),
        });
        self.extend.map_or_else(|| index - saved.sum::<usize>(), |extend| extend.position(self.blocks, index))
    }

    /// The position after the last one that a cell has, with the first `len` tokens.
    fn end(&self, len: usize) -> usize {
        match self.spans.iter().find(|span| span.start < len && len <= span.start + span.rows) {
            Some(span) => self.position(span.start) + 1,
            None => self.position(len),
        }
    }

    /// As many of the first `len` tokens as can be kept: rows that share a position are removed together.
    fn whole(&self, len: usize) -> usize {
        let cut = self.spans.iter().find(|span| span.start < len && len < span.start + span.rows);
        cut.map_or(len, |span| span.start)
    }

    /// Notes that the tokens that are pushed next begin with these rows.
    pub fn begin_span(&mut self, span: RowSpan) {
        self.spans.push(span);
    }

    /// Number of tokens that may be decoded before the next [`Sequence::group`].
    pub fn tokens_until_group(&self) -> usize {
        self.extend.map_or(usize::MAX, |extend| ((self.blocks + 1) * extend.w()).saturating_sub(self.tokens.len()))
    }

    /// Groups all blocks that are due before the next token.
    pub fn group(&mut self, context: &mut Context) {
        let Some(extend) = self.extend else { return };
        while self.blocks < extend.blocks(self.tokens.len()) {
            let (n, w, len) = (extend.n(), extend.w(), self.tokens.len());
            // Move the block to its ungrouped position first, so that the division gives the right positions.
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

    /// Appends tokens that were decoded after the current ones.
    pub fn push(&mut self, tokens: &[Token]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Rolls back to `len` tokens, also removing decoded cells that are not in the token list. Returns the number of remaining
    /// tokens, which is smaller if the memory cannot be rolled back to that position.
    pub fn cut(&mut self, context: &mut Context, len: usize) -> usize {
        let len = self.whole(len.min(self.tokens.len()));
        let len = self.extend.map_or(len, |extend| extend.cut(self.blocks, len));
        let next = self.position(len);
        let end = self.end(len);
        let is_current = len == self.tokens.len() && context.len(self.id) == end;
        if (is_current || context.truncate(self.id, next)) && context.reaches(self.id, end) {
            self.keep(len);
            return len;
        }
        self.back_to_checkpoint(context, len)
    }

    /// Replaces this sequence by a copy of the first `len` tokens of `other`, which is in the same context and has a buffer of its own.
    /// Fewer are left if the memory cannot be rolled back to `len`. Returns false on failure; then this sequence is unchanged or empty.
    pub fn copy_from(&mut self, context: &mut Context, other: &Sequence, len: usize) -> bool {
        if Sequence::needs_checkpoints(context) {
            // llama.cpp copies lazily, which would overwrite a checkpoint restored later. So copy the state immediately.
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
        self.spans.clone_from(&other.spans);
        (self.blocks, self.moved) = (other.blocks, other.moved);
        self.cut(context, len);
        true
    }

    /// The number of tokens of `prompt` that [`Sequence::reuse`] would find here, at least.
    pub fn reusable(&self, context: &Context, prompt: &[Token], min_len: usize) -> usize {
        let prefix = common_prefix(&self.tokens, prompt);
        let last = self.chunks(context, prompt, prefix, min_len).pop();
        self.left_by_cut(context, last.map_or(prefix, |chunk| chunk.to + chunk.len))
    }

    /// The number of tokens at the start of `prompt` that another sequence can copy, at least: as far as their cells depend on nothing else.
    pub fn copyable(&self, context: &Context, prompt: &[Token]) -> usize {
        self.left_by_cut(context, self.unmoved_prefix(&self.tokens, prompt))
    }

    /// The number of tokens that `prompt` has in common with `tokens`, which this sequence has or will have: without those that are moved.
    pub fn unmoved_prefix(&self, tokens: &[Token], prompt: &[Token]) -> usize {
        let prefix = common_prefix(tokens, prompt);
        self.moved.map_or(prefix, |moved| moved.min(prefix))
    }

    /// The number of tokens that a cut to `len` leaves, at least.
    fn left_by_cut(&self, context: &Context, len: usize) -> usize {
        let len = self.whole(len);
        let is_whole = len == self.tokens.len() || context.cuts_anywhere();
        match is_whole || context.rollback().is_unlimited() && context.reaches_back(self.id, self.end(len)) {
            true => self.extend.map_or(len, |extend| extend.cut(self.blocks, len)),
            false => self.checkpoints.before(len),
        }
    }

    /// The parts of `prompt` after its first `prefix` tokens, of at least `min_len` tokens, that can be moved to their new positions (0: none).
    fn chunks(&self, context: &Context, prompt: &[Token], prefix: usize, min_len: usize) -> Vec<Chunk> {
        let can_move = self.blocks == 0 && context.can_shift() && context.cuts_anywhere();
        chunks(&self.tokens, prompt, prefix, if can_move { min_len } else { 0 })
    }

    fn keep(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.spans.retain(|span| span.start < len);
        self.blocks = self.blocks.min(self.extend.map_or(0, |extend| extend.blocks(len)));
        self.moved = self.moved.filter(|moved| *moved < len);
        self.checkpoints.keep(len);
    }

    fn back_to_checkpoint(&mut self, context: &mut Context, len: usize) -> usize {
        self.checkpoints.keep(len);
        if let Some((len, state)) = self.checkpoints.last()
            && context.set_state(self.id, state, Part::Overwritten).is_ok()
            && context.truncate(self.id, self.position(len))
            && context.reaches(self.id, self.end(len))
        {
            self.keep(len);
            return len;
        }
        self.clear(context);
        0
    }

    /// Removes all tokens.
    pub fn clear(&mut self, context: &mut Context) {
        context.truncate(self.id, 0);
        self.keep(0);
    }

    /// Recovers from an aborted or failed decode of the tokens `decoded`: appends those that are in the context.
    pub fn recover(&mut self, context: &mut Context, decoded: &[Token]) {
        let known = self.tokens.len();
        if !context.rollback().is_unlimited() {
            // The recurrent state may be between two tokens.
            self.back_to_checkpoint(context, known);
            return;
        }
        let next = context.len(self.id);
        let new = match self.extend {
            None if next < self.end(known) => None,
            None => Some(next.saturating_sub(self.next())),
            Some(extend) => extend.tokens_before(self.blocks, next).and_then(|there| there.checked_sub(known)),
        };
        match new {
            Some(new) => self.push(decoded.get(..new.min(decoded.len())).unwrap_or(&[])),
            None => self.clear(context),
        }
        self.cut(context, self.tokens.len());
    }

    /// Rolls back to the longest reusable part of `prompt`'s beginning, and returns its number of tokens. Parts of the prompt of
    /// at least `min_len` tokens that are at later positions in the cache are shifted to their new positions (0: none).
    pub fn reuse(&mut self, context: &mut Context, prompt: &[Token], min_len: usize) -> usize {
        let prefix = common_prefix(&self.tokens, prompt);
        let mut end = prefix;
        for Chunk { from, to, len } in self.chunks(context, prompt, prefix, min_len) {
            let moved = context.remove(self.id, to, Some(from))
                && context.move_by(self.id, from..from + len, to.cast_signed() - from.cast_signed());
            if !moved {
                break;
            }
            self.tokens.copy_within(from..from + len, to);
            self.note_moved(to);
            end = to + len;
        }
        self.cut(context, end)
    }

    /// Removes the tokens of `range` and shifts the later ones. If the memory cannot move these, it loses them, and they are decoded again.
    /// Returns false if positions are grouped; then nothing changed.
    pub fn shift(&mut self, context: &mut Context, range: Range<usize>) -> bool {
        if self.extend.is_some() || range.is_empty() {
            return false;
        }
        let moves = range.end <= self.tokens.len() && context.can_shift();
        if !moves || !context.remove(self.id, range.start, Some(range.end)) {
            self.cut(context, range.start);
            return true;
        }
        let down = range.len().cast_signed();
        if !context.move_by(self.id, range.end..self.tokens.len(), -down) {
            self.clear(context);
            return true;
        }
        if range.end < self.tokens.len() {
            self.note_moved(range.start);
        }
        self.tokens.drain(range);
        self.checkpoints.keep(0);
        // Kept tokens may be inside a sliding window again although their cells were dropped.
        if !context.reaches(self.id, self.next()) {
            self.clear(context);
        }
        true
    }

    fn note_moved(&mut self, from: usize) {
        self.moved = Some(self.moved.map_or(from, |moved| moved.min(from)));
    }

    /// Whether a rollback in this context needs [`Sequence::checkpoint`]s.
    pub fn needs_checkpoints(context: &Context) -> bool {
        !context.cuts_anywhere()
    }

    /// Saves a checkpoint of the current state, if the memory needs checkpoints for a rollback.
    pub fn checkpoint(&mut self, context: &mut Context) {
        if !Sequence::needs_checkpoints(context) || self.tokens.is_empty() || self.blocks > 0 {
            return;
        }
        let len = self.tokens.len();
        if self.whole(len) < len {
            return;
        }
        if self.checkpoints.list.last().is_none_or(|(last, _)| *last < len)
            && let Ok(state) = context.state(self.id, Part::Overwritten)
        {
            self.checkpoints.add(len, state);
        }
    }

    /// Keeps the state before a draft that the memory cannot remove again, so that [`Sequence::cut`] can return to it. Without it, a cut
    /// would return to the last checkpoint.
    pub fn mark(&mut self, context: &mut Context) {
        let len = self.tokens.len();
        if !context.rollback().is_unlimited() && len > 0 && self.checkpoints.last().is_none_or(|(last, _)| last < len) {
            self.checkpoints.mark(len, |state| context.state_into(self.id, Part::Overwritten, state).is_ok());
        }
    }

    /// The properties that a context must share with this one to restore the sequence: names and values.
    pub fn identity(&self, context: &Context) -> Vec<(String, String)> {
        let extend = self.extend.map_or("1".into(), |extend| format!("{}, {}", extend.n(), extend.w()));
        let own = context.model().identity().iter().chain(context.layout());
        own.map(|(name, value)| ((*name).to_owned(), value.clone()))
            .chain([("grp_attn_n and _w".into(), extend)])
            .collect()
    }

    /// The bytes of what [`Sequence::save`] saves beside the tokens.
    ///
    /// # Errors
    /// As [`Context::state`].
    pub fn state_size(&self, context: &mut Context) -> Result<usize> {
        Ok(context.state_size(self.id, Part::Whole)? + self.checkpoints.bytes())
    }

    /// Whether cells may depend on tokens that are not in the sequence.
    pub fn is_moved(&self) -> bool {
        self.moved.is_some()
    }

    /// Notes that cells may depend on tokens that are not in the sequence.
    pub fn set_moved(&mut self) {
        self.note_moved(0);
    }

    /// Saves the sequence.
    ///
    /// # Errors
    /// As [`Context::state`].
    pub fn save(&mut self, context: &mut Context) -> Result<Snapshot> {
        let state = context.state(self.id, Part::Whole)?;
        Ok(Snapshot {
            identity: self.identity(context),
            tokens: self.tokens.clone(),
            blocks: self.blocks,
            spans: Arc::new(self.spans.clone()),
            state,
            checkpoints: self.checkpoints.list.clone(),
        })
    }

    /// The first property in which `snapshot` does not match this sequence and context, with both values; `None` if it matches.
    pub fn mismatch(&self, context: &Context, snapshot: &Snapshot) -> Option<String> {
        let own = self.identity(context);
        let pairs = snapshot.identity.iter().zip(&own);
        let differing = pairs.filter(|(theirs, ours)| theirs != ours).map(|(theirs, ours)| {
            let shown = |value: &str| if value.is_empty() { "none".to_owned() } else { value.to_owned() };
            format!("{}: {} there, {} here", theirs.0, shown(&theirs.1), shown(&ours.1))
        });
        let counted = (snapshot.identity.len() != own.len()).then(|| "the number of its properties differs".into());
        let most = self.extend.map_or(0, |extend| extend.blocks(snapshot.tokens.len()));
        let blocks =
            (snapshot.blocks > most).then(|| format!("{} blocks are grouped, at most {most}", snapshot.blocks));
        differing.into_iter().next().or(counted).or(blocks)
    }

    /// Saves the sequence, unless it is empty, before [`Sequence::load`]. First applies pending moves and copies of the context,
    /// which would otherwise apply to the new state.
    ///
    /// # Errors
    /// It cannot be saved; then nothing changed.
    pub fn save_before_load(&mut self, context: &mut Context) -> Result<Option<Snapshot>> {
        context.apply_pending_moves(self.id)?;
        if self.tokens.is_empty() { Ok(None) } else { self.save(context).map(Some) }
    }

    /// Restores `snapshot`, which matches and fits. `before` is the current state from [`Sequence::save_before_load`].
    ///
    /// # Errors
    /// llama.cpp rejects the state, which means that it was forged: checksums detect damage earlier. The context's memory may be
    /// corrupt, so it is reset: this sequence is restored from `before`, and the caller must clear all others.
    pub fn load(&mut self, context: &mut Context, snapshot: &Snapshot, before: Option<Snapshot>) -> Result<()> {
        let result = self.restore(context, snapshot).and_then(|()| self.check_numbers(context, snapshot));
        if result.is_err() {
            context.reset();
            self.clear(context);
            if before.is_some_and(|before| self.restore(context, &before).is_err()) {
                self.clear(context);
            }
        }
        result
    }

    /// Returns to a state of this context that was saved in this process. Without success the sequence is empty. `is_moved`: its cells may
    /// depend on tokens that are not in it.
    pub fn put_back(&mut self, context: &mut Context, snapshot: &Snapshot, is_moved: bool) {
        self.clear(context);
        if context.apply_pending_moves(self.id).and_then(|()| self.restore(context, snapshot)).is_err() {
            self.clear(context);
        } else if is_moved {
            self.set_moved();
        }
    }

    /// Decodes one more token after a restored state, and removes it. Attention reads every cell, so a number that is not finite in any
    /// of them shows in the logits.
    fn check_numbers(&mut self, context: &mut Context, snapshot: &Snapshot) -> Result<()> {
        let next = self.next();
        let mut batch = Batch::new();
        let vocab = context.model().vocab();
        batch.push(vocab.bos().or(vocab.eos()).unwrap_or(0), next, self.id, true);
        // A full context has no cell for it.
        if next >= context.n_ctx() {
            return Ok(());
        }
        // A decode that fails says nothing about the state, but can leave the token behind.
        let is_finite = context.decode_whole(&batch).is_err()
            || context.logits(0).is_none_or(|row| !row.iter().any(|logit| logit.is_nan()));
        if context.cuts_anywhere() {
            context.truncate(self.id, next);
        } else {
            self.restore(context, snapshot)?;
        }
        if is_finite { Ok(()) } else { Err(Error::invalid("the state contains numbers that are not finite")) }
    }

    fn restore(&mut self, context: &mut Context, snapshot: &Snapshot) -> Result<()> {
        context.set_state(self.id, &snapshot.state, Part::Whole)?;
        self.checkpoints.keep(0);
        if Sequence::needs_checkpoints(context) {
            self.checkpoints.list.clone_from(&snapshot.checkpoints);
        }
        self.tokens.clone_from(&snapshot.tokens);
        self.spans = snapshot.spans.to_vec();
        (self.blocks, self.moved) = (snapshot.blocks, None);
        let there = context.len(self.id);
        let expected = self.end(self.tokens.len());
        if there != expected || !context.reaches(self.id, there) {
            return Err(Error::model(format!("the state is {there} positions long, not {expected}")));
        }
        // A later rollback can return to this state.
        self.checkpoint(context);
        Ok(())
    }
}

/// The largest number of checkpoints per sequence.
pub const MAX_CHECKPOINTS: usize = 8;
/// The largest total size of a sequence's checkpoints; the last one is kept regardless.
const MAX_CHECKPOINT_BYTES: usize = 512 << 20;

/// Saved states of a memory that cannot be rolled back, each with its number of tokens, in ascending order.
#[derive(Debug, Clone, Default)]
struct Checkpoints {
    list: Vec<(usize, Arc<Vec<u8>>)>,
    /// The state before the last draft and its number of tokens. 0: there is none.
    mark: (usize, Vec<u8>),
}

impl Checkpoints {
    /// Adds the state after `len` tokens, which must be more than those of all others. If there are too many, drops the one
    /// with the smallest gap to its neighbours.
    fn add(&mut self, len: usize, state: Vec<u8>) {
        self.list.push((len, Arc::new(state)));
        while self.list.len() > 1 && (self.list.len() > MAX_CHECKPOINTS || self.bytes() > MAX_CHECKPOINT_BYTES) {
            let starts = std::iter::once(0).chain(self.list.iter().map(|(len, _)| *len));
            let gaps = starts.zip(self.list.iter().skip(1)).map(|(before, (after, _))| after - before);
            let closest = gaps.enumerate().min_by_key(|(_, gap)| *gap).map_or(0, |(index, _)| index);
            self.list.remove(closest);
        }
    }

    /// Replaces the state before the last draft by one of `len` tokens, which `save` writes into the same memory. `save` returns whether it
    /// could.
    fn mark(&mut self, len: usize, save: impl FnOnce(&mut Vec<u8>) -> bool) {
        self.mark.0 = if save(&mut self.mark.1) { len } else { 0 };
    }

    /// The last checkpoint.
    fn last(&self) -> Option<(usize, &[u8])> {
        let saved = self.list.last().map(|(len, state)| (*len, state.as_slice()));
        let marked = Some((self.mark.0, self.mark.1.as_slice())).filter(|(len, _)| *len > 0);
        saved.into_iter().chain(marked).max_by_key(|(len, _)| *len)
    }

    /// The number of tokens of the last checkpoint that has at most `len`.
    fn before(&self, len: usize) -> usize {
        let all = self.list.iter().map(|(at, _)| *at).chain(Some(self.mark.0));
        all.filter(|at| *at <= len).max().unwrap_or(0)
    }

    /// Drops checkpoints with more than `len` tokens.
    fn keep(&mut self, len: usize) {
        self.list.retain(|(at, _)| *at <= len && *at > 0);
        if self.mark.0 > len {
            self.mark.0 = 0;
        }
    }

    fn bytes(&self) -> usize {
        self.list.iter().map(|(_, state)| state.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_share_a_position_are_kept_together() {
        let mut sequence = Sequence::new(0, None);
        sequence.push(&[1, 2]);
        // Six rows of three columns, and four of one row.
        sequence.begin_span(RowSpan { start: 2, rows: 6, positions: 3 });
        sequence.push(&[-2, -3, -4, -5, -6, -7]);
        sequence.begin_span(RowSpan { start: 8, rows: 4, positions: 4 });
        sequence.push(&[-8, -9, -10, -11, 3]);
        let of = |what: fn(&Sequence, usize) -> usize| (0..=13).map(|at| what(&sequence, at)).collect::<Vec<_>>();
        assert_eq!(of(Sequence::position), [0, 1, 2, 2, 2, 2, 2, 2, 5, 5, 5, 5, 9, 10]);
        assert_eq!(of(Sequence::end), [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 6, 6, 6, 10]);
        assert_eq!(of(Sequence::whole), [0, 1, 2, 2, 2, 2, 2, 2, 8, 8, 8, 8, 12, 13]);
        sequence.keep(8);
        assert_eq!((sequence.next(), sequence.spans.len()), (5, 1));
        sequence.keep(2);
        assert_eq!((sequence.next(), sequence.spans.len()), (2, 0));
    }

    fn places(checkpoints: &Checkpoints) -> Vec<usize> {
        checkpoints.list.iter().map(|(len, _)| *len).collect()
    }

    #[test]
    fn excess_checkpoints_are_dropped_evenly_and_the_last_stays() {
        let mut checkpoints = Checkpoints::default();
        for len in 1..=100 {
            checkpoints.add(len * 10, Vec::new());
            let places = places(&checkpoints);
            assert!(places.len() <= MAX_CHECKPOINTS && places.last() == Some(&(len * 10)), "{places:?}");
        }
        let places = places(&checkpoints);
        assert_eq!(places.len(), MAX_CHECKPOINTS);
        let gaps: Vec<usize> = std::iter::once(&0).chain(&places).zip(&places).map(|(a, b)| b - a).collect();
        assert!(gaps.iter().all(|gap| *gap <= 500), "{gaps:?}");
    }

    #[test]
    fn rollback_drops_later_checkpoints() {
        let mut checkpoints = Checkpoints::default();
        for len in [5, 10, 20] {
            checkpoints.add(len, vec![1]);
        }
        checkpoints.keep(19);
        assert_eq!(checkpoints.last().map(|(len, _)| len), Some(10));
        checkpoints.keep(10);
        assert_eq!(places(&checkpoints), [5, 10]);
        checkpoints.keep(0);
        assert_eq!(checkpoints.last(), None);
    }

    #[test]
    fn the_state_before_a_draft_is_kept_beside_the_checkpoints() {
        let mut checkpoints = Checkpoints::default();
        let save = |state: &mut Vec<u8>| {
            *state = vec![9];
            true
        };
        checkpoints.add(5, vec![1]);
        checkpoints.mark(8, save);
        assert_eq!(checkpoints.last(), Some((8, &[9][..])));
        checkpoints.keep(8);
        checkpoints.mark(9, save);
        assert_eq!((checkpoints.last(), places(&checkpoints)), (Some((9, &[9][..])), vec![5]));
        checkpoints.keep(8);
        assert_eq!(checkpoints.last(), Some((5, &[1][..])), "a state of more tokens is of no use");
        checkpoints.mark(8, |_| false);
        assert_eq!(checkpoints.last(), Some((5, &[1][..])), "it could not be saved");
        checkpoints.mark(3, save);
        assert_eq!(checkpoints.last(), Some((5, &[1][..])));
    }
}
