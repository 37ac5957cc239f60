//! Sets of stacks: the states of the automaton, each with the transitions that are known.

use std::sync::Arc;

use foldhash::HashMap;

use super::columns::{ColumnTable, Columns};
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
    /// The columns of its row.
    pub(super) columns: Arc<Columns>,
    /// The next symbols depend on the stack below one that was cut off ([`super::stacks::BASE`]).
    pub(super) is_open: bool,
}

/// All sets by id.
#[derive(Debug, Default)]
pub(super) struct Sets {
    stacks: Vec<Arc<[u32]>>,
    ids: HashMap<Arc<[u32]>, u32>,
    /// Each with the beginning of its row.
    facts: Vec<(usize, SetFacts)>,
    /// For each set a row of the sets that follow, by the columns of bytes.
    rows: Vec<u32>,
    pub(super) columns: ColumnTable,
    /// Total number of stacks in all sets.
    n_listed: usize,
}

impl Sets {
    /// The id of the set of these stacks, if it is known.
    pub(super) fn find(&self, stacks: &[u32]) -> Option<u32> {
        self.ids.get(stacks).copied()
    }

    /// Adds a set.
    pub(super) fn add(&mut self, stacks: &[u32], facts: SetFacts) -> u32 {
        let id = u32::try_from(self.stacks.len()).unwrap_or(UNKNOWN);
        let stacks: Arc<[u32]> = stacks.into();
        let (start, n_columns) = (self.rows.len(), facts.columns.n());
        self.n_listed += stacks.len();
        self.stacks.push(Arc::clone(&stacks));
        self.ids.insert(stacks, id);
        self.facts.push((start, facts));
        self.rows.resize(start + n_columns, if id == REJECTED_SET { REJECTED_SET } else { UNKNOWN });
        id
    }

    pub(super) fn stacks(&self, set: u32) -> Arc<[u32]> {
        self.stacks.get(set as usize).cloned().unwrap_or_else(|| Arc::new([]))
    }

    pub(super) fn facts(&self, set: u32) -> Option<&SetFacts> {
        self.facts.get(set as usize).map(|(_, facts)| facts)
    }

    /// Whether a set has a stack that was cut off and read to its end.
    pub(super) fn is_open(&self, set: u32) -> bool {
        self.facts(set).is_some_and(|facts| facts.is_open)
    }

    /// The column of a byte in a set's row.
    pub(super) fn column(&self, set: u32, byte: u8) -> u8 {
        self.facts(set).map_or(0, |facts| facts.columns.of(byte))
    }

    /// The set after a byte, if it is known.
    #[inline]
    pub(super) fn next(&self, set: u32, byte: u8) -> Option<u32> {
        self.rows.get(self.place(set, byte)?).copied().filter(|next| *next != UNKNOWN)
    }

    pub(super) fn set_next(&mut self, set: u32, byte: u8, next: u32) {
        let entry = self.place(set, byte).and_then(|at| self.rows.get_mut(at));
        entry.into_iter().for_each(|entry| *entry = next);
    }

    #[inline]
    fn place(&self, set: u32, byte: u8) -> Option<usize> {
        let (start, facts) = self.facts.get(set as usize)?;
        Some(start + usize::from(facts.columns.of(byte)))
    }

    /// The size in entries of about 16 bytes.
    pub(super) fn size(&self) -> usize {
        self.n_listed / 2 + self.rows.len() / 4 + 6 * self.stacks.len() + self.columns.size()
    }
}
