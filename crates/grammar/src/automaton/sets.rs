//! Sets of stacks: the states of the automaton, each with the transitions that are known.

use std::sync::Arc;

use foldhash::HashMap;

use crate::tree::MarkSet;

/// The set without stacks: the output does not match the grammar.
pub(super) const REJECTED_SET: u32 = 0;
/// A transition that was not computed yet.
const UNKNOWN: u32 = u32::MAX;

/// The known properties of a set.
#[derive(Debug)]
pub(super) struct SetFacts {
    /// The sorted token ids that its stacks name; `None` if they name none.
    pub(super) named: Option<Arc<[u32]>>,
    /// The marks that all of its stacks are inside of.
    pub(super) marks: MarkSet,
}

/// All sets by id.
#[derive(Debug)]
pub(super) struct Sets {
    stacks: Vec<Arc<[u32]>>,
    ids: HashMap<Arc<[u32]>, u32>,
    /// For each set a row of the sets that follow, by the column of a byte.
    rows: Vec<u32>,
    n_columns: usize,
    /// For each set in an ordered tree a row of the moves of these transitions.
    moves: Vec<u32>,
    is_ordered: bool,
    facts: Vec<SetFacts>,
    /// Total number of stacks in all sets.
    n_listed: usize,
}

impl Sets {
    pub(super) fn new(n_columns: usize, is_ordered: bool) -> Sets {
        let mut sets = Sets {
            stacks: Vec::new(),
            ids: HashMap::default(),
            rows: Vec::new(),
            n_columns,
            moves: Vec::new(),
            is_ordered,
            facts: Vec::new(),
            n_listed: 0,
        };
        sets.id(&[], || SetFacts { named: None, marks: MarkSet::NONE });
        sets
    }

    /// The id of the set of these stacks. `facts` are asked for if the set is new.
    pub(super) fn id(&mut self, stacks: &[u32], facts: impl FnOnce() -> SetFacts) -> u32 {
        if let Some(known) = self.ids.get(stacks) {
            return *known;
        }
        let id = u32::try_from(self.stacks.len()).unwrap_or(UNKNOWN);
        let stacks: Arc<[u32]> = stacks.into();
        self.n_listed += stacks.len();
        self.stacks.push(Arc::clone(&stacks));
        self.ids.insert(stacks, id);
        self.facts.push(facts());
        self.rows.resize(self.rows.len() + self.n_columns, if id == REJECTED_SET { REJECTED_SET } else { UNKNOWN });
        self.moves.resize(if self.is_ordered { self.rows.len() } else { 0 }, 0);
        id
    }

    pub(super) fn stacks(&self, set: u32) -> Arc<[u32]> {
        self.stacks.get(set as usize).cloned().unwrap_or_else(|| Arc::new([]))
    }

    pub(super) fn facts(&self, set: u32) -> Option<&SetFacts> {
        self.facts.get(set as usize)
    }

    /// The set after a byte of this column, if it is known.
    pub(super) fn next(&self, set: u32, column: u8) -> Option<u32> {
        let at = set as usize * self.n_columns + usize::from(column);
        self.rows.get(at).copied().filter(|next| *next != UNKNOWN)
    }

    /// The moves of a transition that is known.
    pub(super) fn moves(&self, set: u32, column: u8) -> u32 {
        self.moves.get(set as usize * self.n_columns + usize::from(column)).copied().unwrap_or(0)
    }

    pub(super) fn set_next(&mut self, set: u32, column: u8, (next, moves): (u32, u32)) {
        let at = set as usize * self.n_columns + usize::from(column);
        self.rows.get_mut(at).into_iter().for_each(|entry| *entry = next);
        self.moves.get_mut(at).into_iter().for_each(|entry| *entry = moves);
    }

    /// The size in entries of about 16 bytes.
    pub(super) fn size(&self) -> usize {
        self.n_listed / 2 + (self.rows.len() + self.moves.len()) / 4 + 4 * self.stacks.len()
    }
}
