//! The marks that the stacks of a set have passed and that are not decided: a tree in which each live stack is at a node.

use crate::automaton::{Moves, Passed};

/// A mark's new number while marks are dropped: none yet.
const UNNEEDED: u32 = u32::MAX;
const NEEDED: u32 = u32::MAX - 1;

/// A mark after others.
#[derive(Debug, Clone, Copy)]
struct PassedMark {
    /// The one before it.
    before: u32,
    /// The first undecided one up to it.
    first: u32,
    /// How many there are up to it.
    depth: u32,
    /// The newest mark after this one, and the one before it after the same mark. 0: there is none.
    newest: u32,
    older: u32,
    place: usize,
    passed: Passed,
}

/// The undecided marks of all live stacks.
#[derive(Debug, Clone)]
pub(super) struct Undecided {
    marks: Vec<PassedMark>,
    /// The last decided one.
    decided: u32,
    /// The last one of each live stack.
    live: Vec<u32>,
    before: Vec<u32>,
    /// How many marks were needed when they were last counted.
    n_needed: usize,
    /// For [`Undecided::drop_unneeded`], the new number of each mark.
    new_ids: Vec<u32>,
}

impl Undecided {
    /// One live stack that has passed nothing.
    pub(super) fn new() -> Undecided {
        let passed = Passed::Close(crate::tree::Mark::Content);
        let none = PassedMark { before: 0, first: 0, depth: 0, newest: 0, older: 0, place: 0, passed };
        Undecided { marks: vec![none], decided: 0, live: vec![0], before: Vec::new(), n_needed: 1, new_ids: Vec::new() }
    }

    /// Follows a transition to `place`. The result is what is decided now, in order.
    pub(super) fn follow(&mut self, moves: &Moves, place: usize) -> Vec<(usize, Passed)> {
        std::mem::swap(&mut self.live, &mut self.before);
        self.live.clear();
        let n_before = self.marks.len();
        for (from, passed) in moves.iter() {
            let mut last = self.before.get(from as usize).copied().unwrap_or(self.decided);
            for &passed in passed {
                last = self.add(last, place, passed, n_before);
            }
            self.live.push(last);
        }
        let decided = self.decide();
        if self.marks.len() > 1024.max(4 * self.n_needed) {
            self.drop_unneeded();
        }
        decided
    }

    /// Whether a stack has passed nothing that is undecided.
    pub(super) fn is_decided(&self, stack: u32) -> bool {
        self.live.get(stack as usize).is_some_and(|last| *last == self.decided)
    }

    /// Only these stacks live on, each with its new index, and pass nothing.
    pub(super) fn keep(&mut self, stacks: impl Iterator<Item = (u32, u32)>) {
        std::mem::swap(&mut self.live, &mut self.before);
        self.live.clear();
        for (from, to) in stacks {
            if self.live.len() <= to as usize {
                self.live.resize(to as usize + 1, self.decided);
            }
            let last = self.before.get(from as usize).copied();
            self.live.get_mut(to as usize).zip(last).into_iter().for_each(|(place, last)| *place = last);
        }
    }

    /// Only one stack lives on. The result is what it has passed.
    pub(super) fn choose(&mut self, stack: usize) -> Vec<(usize, Passed)> {
        let chosen = self.live.get(stack).copied().unwrap_or(self.decided);
        self.live = vec![chosen];
        self.decide()
    }

    /// The place of the first undecided mark of any live stack.
    pub(super) fn first_place(&self) -> Option<usize> {
        let undecided = self.live.iter().filter(|last| **last != self.decided);
        undecided.filter_map(|last| Some(self.mark(self.mark(*last)?.first)?.place)).min()
    }

    /// The number of undecided marks, and of some that are not needed any more.
    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    /// The mark after `before`. Those from `n_before` on have the same place.
    fn add(&mut self, before: u32, place: usize, passed: Passed, n_before: usize) -> u32 {
        let new = u32::try_from(self.marks.len()).unwrap_or(u32::MAX);
        let older = self.mark(before).map_or(0, |mark| mark.newest);
        let mut at = older;
        while let Some(mark) = self.mark(at).filter(|_| at as usize >= n_before) {
            if mark.passed == passed {
                return at;
            }
            at = mark.older;
        }
        let mark = PassedMark { before, first: 0, depth: 0, newest: 0, older, place, passed };
        self.marks.push(self.placed_after(mark, new));
        self.marks.get_mut(before as usize).into_iter().for_each(|mark| mark.newest = new);
        new
    }

    /// Takes the marks that all live stacks have passed.
    fn decide(&mut self) -> Vec<(usize, Passed)> {
        let first_of = |last: u32| self.mark(last).filter(|_| last != self.decided).map(|mark| mark.first);
        let Some((&one, others)) = self.live.split_first() else { return Vec::new() };
        let first = first_of(one);
        if first.is_none() || others.iter().any(|other| first_of(*other) != first) {
            return Vec::new();
        }
        let mut common = one;
        for &other in others {
            let mut other = other;
            while common != other {
                let depth = |at: u32| self.mark(at).map_or(0, |mark| mark.depth);
                let deeper = if depth(common) >= depth(other) { &mut common } else { &mut other };
                *deeper = self.mark(*deeper).map_or(self.decided, |mark| mark.before);
            }
        }
        let passed: Vec<(usize, Passed)> = self
            .chain(common)
            .into_iter()
            .filter_map(|at| self.mark(at).map(|mark| (mark.place, mark.passed)))
            .collect();
        self.decided = common;
        self.drop_unneeded();
        passed
    }

    /// The marks after the last decided one, up to one of them.
    fn chain(&self, mut last: u32) -> Vec<u32> {
        let mut chain = Vec::new();
        while let Some(mark) = self.mark(last).filter(|_| last != self.decided) {
            chain.push(last);
            last = mark.before;
        }
        chain.reverse();
        chain
    }

    /// Keeps only the marks of live stacks. The last decided one gets number 0.
    fn drop_unneeded(&mut self) {
        self.new_ids.clear();
        self.new_ids.resize(self.marks.len(), UNNEEDED);
        for &last in &self.live {
            let mut at = last;
            while let Some(id) = self.new_ids.get_mut(at as usize).filter(|id| at != self.decided && **id == UNNEEDED) {
                *id = NEEDED;
                at = self.marks.get(at as usize).map_or(self.decided, |mark| mark.before);
            }
        }
        self.decided = 0;
        let mut n_kept = 1;
        for old in 1..self.marks.len() {
            let Some(&mark) = self.marks.get(old).filter(|_| self.new_ids.get(old) == Some(&NEEDED)) else { continue };
            let before = self.new_id(mark.before);
            let kept = self.placed_after(PassedMark { before, newest: 0, older: 0, ..mark }, n_kept);
            self.marks.get_mut(n_kept as usize).into_iter().for_each(|place| *place = kept);
            self.new_ids.get_mut(old).into_iter().for_each(|id| *id = n_kept);
            n_kept += 1;
        }
        self.marks.truncate(n_kept as usize);
        self.marks.first_mut().into_iter().for_each(|mark| mark.newest = 0);
        let mut live = std::mem::take(&mut self.live);
        live.iter_mut().for_each(|last| *last = self.new_id(*last));
        (self.live, self.n_needed) = (live, self.marks.len());
    }

    fn new_id(&self, old: u32) -> u32 {
        self.new_ids.get(old as usize).copied().filter(|id| *id < NEEDED).unwrap_or(0)
    }

    /// The mark with number `at`, with what follows from the one before it.
    fn placed_after(&self, mark: PassedMark, at: u32) -> PassedMark {
        let before = self.mark(mark.before).filter(|_| mark.before != self.decided);
        let (first, depth) = before.map_or((at, 0), |before| (before.first, before.depth));
        PassedMark { first, depth: depth + 1, ..mark }
    }

    fn mark(&self, at: u32) -> Option<&PassedMark> {
        self.marks.get(at as usize)
    }
}
