//! Reads a completion: which parts of it are reasoning, content and calls, by the marks of a tree.
//!
//! As long as several stacks live, the text may be several things. What all of them agree on is decided: the longest common beginning of
//! the marks that they have passed, and the text up to the first mark that only some have passed. Later stacks come from those that live
//! now, so a decision stands. At the end of a completion, the first stack that may end is right, or else the first one.
//!
//! The state is a function of the text: it does not matter in which pieces that arrives.

mod undecided;

use std::sync::Arc;

use parking_lot::Mutex;

use self::undecided::Undecided;
use crate::automaton::{Automaton, GrammarState, Passed, TooAmbiguous, ended, refused};
use crate::tree::{Mark, NodeId, Tree};
use foredraft_base::error::Result;
use foredraft_base::work::Work;

/// The most bytes whose meaning may be undecided.
const MAX_HELD: usize = 1 << 20;
/// The most marks that may be undecided.
const MAX_UNDECIDED: usize = 1 << 18;
/// The cache's size and the work are looked at after so many bytes.
const CHUNK: usize = 4096;

/// A part of a completion that is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEvent<'a> {
    /// A mark begins.
    Open(Mark),
    /// The innermost open mark ends. Marks that are open at the end of a completion do not.
    Close(Mark),
    /// Text of the innermost open mark: reasoning, content, a name or a call's id.
    Text(Mark, &'a str),
    /// JSON of a call's arguments.
    Arguments(&'a str),
}

/// The reader of one completion. It may be copied at any time.
#[derive(Debug, Clone)]
pub struct CompletionReader {
    automaton: Arc<Mutex<Automaton>>,
    tree: Arc<Tree>,
    state: GrammarState,
    undecided: Undecided,
    /// The moves of the last byte that changed anything, by id, and its place, which [`CompletionReader::undecided`] has not followed. In free
    /// text, what a byte begins mostly dies with the next byte, so its marks need not be followed.
    waiting: Option<(u32, usize)>,
    /// The bytes from `start` to `end` of the completion, which were not given out.
    held: Vec<u8>,
    start: usize,
    end: usize,
    /// The open marks, the innermost last.
    open: Vec<Mark>,
    /// The marks passed before the first byte, until the first call.
    passed_at_start: Vec<(usize, Passed)>,
    is_lost: bool,
    is_cut: bool,
}

impl CompletionReader {
    /// A reader of completions that are texts of the node `root`. `work` counts the steps.
    ///
    /// # Errors
    /// `invalid_request`: no grammar can be made of the tree. `cancelled`: `work` was interrupted.
    pub fn new(tree: impl Into<Arc<Tree>>, root: NodeId, work: &Work) -> Result<CompletionReader> {
        let tree = tree.into();
        tree.check(root, work).map_err(|why| refused(why, work))?;
        let mut automaton = Automaton::new(Arc::clone(&tree), root);
        automaton.meter(Some(work.clone()));
        let (state, moves) = automaton.start_reading().map_err(|why| refused(why, work))?;
        let mut undecided = Undecided::new();
        let passed_at_start = moves.map_or_else(Vec::new, |moves| undecided.follow(moves, 0));
        automaton.meter(None);
        let automaton = Arc::new(Mutex::new(automaton));
        let (held, open) = (Vec::new(), Vec::new());
        let (is_lost, is_cut) = (false, false);
        Ok(CompletionReader {
            automaton,
            tree,
            state,
            undecided,
            waiting: None,
            held,
            start: 0,
            end: 0,
            open,
            passed_at_start,
            is_lost,
            is_cut,
        })
    }

    /// Whether the tree cannot read the completion. From the place on where it could not, the text is content.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether too much was undecided. The first meaning with which the completion may end was taken then, or else the first one.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether the completion may end here.
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.is_lost || self.automaton.lock().may_end(self.state)
    }

    /// Whether the completion is inside of a mark, whatever follows.
    #[must_use]
    pub fn is_inside(&self, mark: Mark) -> bool {
        !self.is_lost && self.automaton.lock().is_inside(self.state, mark)
    }

    /// Reads more of the completion. `on_event` gets what is decided now, in order.
    pub fn push(&mut self, text: &[u8], on_event: &mut dyn FnMut(ReadEvent<'_>)) {
        self.report_start(on_event);
        for chunk in text.chunks(CHUNK) {
            let (n_read, passed) = if self.is_lost { (0, Vec::new()) } else { self.read(chunk) };
            self.report(passed, on_event);
            if let Some(rest) = chunk.get(n_read..).filter(|rest| !rest.is_empty()) {
                self.lose(on_event);
                self.hold(rest);
            } else if self.held.len() > MAX_HELD || self.undecided.len() > MAX_UNDECIDED {
                let passed = self.settle();
                self.report(passed, on_event);
                let chosen;
                (self.state, chosen) = self.automaton.lock().chosen(self.state);
                let passed = self.undecided.choose(chosen);
                self.report(passed, on_event);
                self.is_cut = true;
            }
            let undecided = self.undecided.first_place().or(self.waiting.map(|(_, place)| place));
            self.give_text(undecided.unwrap_or(self.end), false, on_event);
        }
    }

    /// As [`CompletionReader::push`], for a text that a host gave before the completion. `work` counts the steps.
    ///
    /// # Errors
    /// `work` has ended.
    pub fn push_within(&mut self, text: &[u8], work: &Work, on_event: &mut dyn FnMut(ReadEvent<'_>)) -> Result<()> {
        for chunk in text.chunks(CHUNK) {
            self.automaton.lock().meter(Some(work.clone()));
            self.push(chunk, on_event);
            self.automaton.lock().meter(None);
            work.step(chunk.len()).map_err(ended)?;
        }
        Ok(())
    }

    /// Ends the completion. `on_event` gets what was not decided.
    pub fn finish(mut self, on_event: &mut dyn FnMut(ReadEvent<'_>)) {
        self.report_start(on_event);
        self.decide_all(on_event);
    }

    /// Decides for the first stack that may end, or else for the first one.
    fn decide_all(&mut self, on_event: &mut dyn FnMut(ReadEvent<'_>)) {
        let passed = self.settle();
        self.report(passed, on_event);
        let first_end = self.automaton.lock().first_end(self.state);
        let passed = self.undecided.choose(first_end.unwrap_or(0));
        self.report(passed, on_event);
        self.give_text(self.end, true, on_event);
    }

    /// Follows bytes as far as the tree can. Returns how many, and what is decided then.
    fn read(&mut self, bytes: &[u8]) -> (usize, Vec<(usize, Passed)>) {
        let mut decided = Vec::new();
        if self.make_room(&mut decided).is_err() {
            return (0, decided);
        }
        let shared = Arc::clone(&self.automaton);
        let mut automaton = shared.lock();
        let mut n_read = 0;
        for &byte in bytes {
            let Ok((next, id)) = automaton.read(self.state, byte) else { break };
            if next.is_rejected() {
                break;
            }
            (self.state, n_read) = (next, n_read + 1);
            let Some(moves) = automaton.moves(id) else { continue };
            self.follow_waiting(&automaton, moves.sources(), &mut decided);
            self.waiting = Some((id, self.end + n_read));
        }
        if let Some((id, _)) = self.waiting
            && let Some(moves) = automaton.moves(id)
        {
            // Nothing is decided where a stack has passed nothing.
            if moves.unmarked_sources().any(|source| self.undecided.is_decided(source)) {
                self.undecided.keep(moves.sources().iter().map(|source| (*source, *source)));
            } else {
                self.follow_waiting(&automaton, &[], &mut decided);
            }
        }
        drop(automaton);
        self.hold(bytes.get(..n_read).unwrap_or(bytes));
        (n_read, decided)
    }

    /// Follows the moves that wait, and returns what is decided then.
    fn settle(&mut self) -> Vec<(usize, Passed)> {
        let (shared, mut decided) = (Arc::clone(&self.automaton), Vec::new());
        self.follow_waiting(&shared.lock(), &[], &mut decided);
        decided
    }

    /// Follows the moves that wait. `next`: the only stacks that live on after them. Where these pass nothing, no mark is followed.
    fn follow_waiting(&mut self, automaton: &Automaton, next: &[u32], decided: &mut Vec<(usize, Passed)>) {
        let Some((id, place)) = self.waiting.take() else { return };
        let Some(moves) = automaton.moves(id) else { return };
        let kept = next.iter().map(|stack| Some((moves.unmarked_source(*stack)?, *stack)));
        if !next.is_empty() && kept.clone().all(|kept| kept.is_some()) {
            self.undecided.keep(kept.flatten());
        } else {
            decided.extend(self.undecided.follow(moves, place));
        }
    }

    /// Begins a call's work, in an automaton of its own when the shared one has become large.
    fn make_room(&mut self, decided: &mut Vec<(usize, Passed)>) -> Result<(), TooAmbiguous> {
        let shared = Arc::clone(&self.automaton);
        let mut automaton = shared.lock();
        automaton.begin_work();
        if let Some((rebuilt, state)) = automaton.rebuilt(self.state)? {
            self.follow_waiting(&automaton, &[], decided);
            (self.automaton, self.state) = (Arc::new(Mutex::new(rebuilt)), state);
        }
        Ok(())
    }

    fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        self.end += bytes.len();
    }

    fn report_start(&mut self, on_event: &mut dyn FnMut(ReadEvent<'_>)) {
        let passed = std::mem::take(&mut self.passed_at_start);
        self.report(passed, on_event);
    }

    /// The tree cannot read what follows, so that is content, as if the completion had ended here.
    fn lose(&mut self, on_event: &mut dyn FnMut(ReadEvent<'_>)) {
        if self.is_lost {
            return;
        }
        self.decide_all(on_event);
        while let Some(mark) = self.open.pop() {
            on_event(ReadEvent::Close(mark));
        }
        self.open.push(Mark::Content);
        on_event(ReadEvent::Open(Mark::Content));
        self.is_lost = true;
    }

    fn report(&mut self, passed: Vec<(usize, Passed)>, on_event: &mut dyn FnMut(ReadEvent<'_>)) {
        for (place, passed) in passed {
            self.give_text(place, true, on_event);
            match passed {
                Passed::Open(mark) => {
                    self.open.push(mark);
                    on_event(ReadEvent::Open(mark));
                }
                Passed::Close(mark) => {
                    self.open.pop();
                    on_event(ReadEvent::Close(mark));
                }
                Passed::Emit(node) => on_event(ReadEvent::Arguments(self.tree.emitted(node))),
            }
        }
    }

    /// Gives out the text up to a place. The beginning of a character stays, unless the text ends there.
    fn give_text(&mut self, until: usize, is_end: bool, on_event: &mut dyn FnMut(ReadEvent<'_>)) {
        let text = self.held.get(..until.saturating_sub(self.start)).unwrap_or(&self.held);
        let n_begun = if is_end { 0 } else { n_begun(text) };
        let text = text.get(..text.len() - n_begun).unwrap_or(text);
        if text.is_empty() {
            return;
        }
        let shown = String::from_utf8_lossy(text);
        match self.open.last() {
            Some(mark @ (Mark::Reasoning | Mark::Content | Mark::Name | Mark::CallId)) => {
                on_event(ReadEvent::Text(*mark, &shown));
            }
            Some(Mark::Verbatim) => on_event(ReadEvent::Arguments(&shown)),
            Some(Mark::Text) => on_event(ReadEvent::Arguments(&escaped(&shown))),
            Some(Mark::Call | Mark::Foreign | Mark::ReasoningBlock) | None => {}
        }
        let n_given = text.len();
        self.start += n_given;
        self.held.drain(..n_given);
    }
}

/// The number of bytes at the end that begin a character.
fn n_begun(text: &[u8]) -> usize {
    let end = text.get(text.len().saturating_sub(3)..).unwrap_or(text);
    let last = end.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
}

/// The text as a part of a JSON string.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(char))),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests;
