//! The columns of rows: bytes that no top of a set's stacks tells apart share one, so a set has few transitions.

use std::sync::Arc;

use foldhash::HashMap;

use crate::tree::{Node, NodeId, Tree};

/// A top that tells bytes apart: the byte that a text goes on with, or a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ByteReader {
    Byte(u8),
    Machine(NodeId),
}

/// The columns of the sets whose stacks have the same tops.
#[derive(Debug)]
pub(super) struct Columns {
    of: [u8; 256],
    /// The ASCII characters of each column, a bit for each.
    ascii: Vec<u128>,
}

impl Columns {
    fn new(tree: &Tree, readers: &[ByteReader]) -> Columns {
        let mut columns = Columns { of: [0; 256], ascii: vec![0] };
        let mut spelt = [false; 256];
        for reader in readers {
            match reader {
                ByteReader::Byte(byte) => spelt.get_mut(usize::from(*byte)).into_iter().for_each(|is| *is = true),
                ByteReader::Machine(node) => {
                    if let Some(Node::Machine(machine)) = tree.node(*node) {
                        columns.split(machine.n_columns(), |byte| machine.column(byte).into());
                    }
                }
            }
        }
        // Each byte of a text has a column of its own.
        let is_spelt = |byte: u8| spelt.get(usize::from(byte)).is_some_and(|is| *is);
        columns.split(257, |byte| if is_spelt(byte) { byte.into() } else { 256 });
        for (byte, column) in (0..128).zip(columns.of) {
            columns.ascii.get_mut(usize::from(column)).into_iter().for_each(|ascii| *ascii |= 1 << byte);
        }
        columns
    }

    /// Splits columns whose bytes have different labels, of which there are `n_labels`.
    fn split(&mut self, n_labels: usize, label: impl Fn(u8) -> usize) {
        let mut ids = vec![None; self.ascii.len() * n_labels];
        let mut n = 0;
        for (byte, column) in (0..=u8::MAX).zip(&mut self.of) {
            let Some(id) = ids.get_mut(usize::from(*column) * n_labels + label(byte)) else { continue };
            *column = *id.get_or_insert_with(|| {
                n += 1;
                u8::try_from(n - 1).unwrap_or(u8::MAX)
            });
        }
        self.ascii = vec![0; n];
    }

    /// The number of columns.
    pub(super) fn n(&self) -> usize {
        self.ascii.len()
    }

    #[inline]
    pub(super) fn of(&self, byte: u8) -> u8 {
        self.of.get(usize::from(byte)).copied().unwrap_or(0)
    }

    /// The ASCII characters of each column that has some.
    pub(super) fn ascii(&self) -> impl Iterator<Item = u128> {
        self.ascii.iter().copied().filter(|ascii| *ascii != 0)
    }
}

/// All columns, by the tops that tell bytes apart.
#[derive(Debug, Default)]
pub(super) struct ColumnTable(HashMap<Box<[ByteReader]>, Arc<Columns>>);

impl ColumnTable {
    /// The columns for these tops, sorted and each once, and whether they are new.
    pub(super) fn find(&mut self, tree: &Tree, readers: &[ByteReader]) -> (Arc<Columns>, bool) {
        if let Some(known) = self.0.get(readers) {
            return (Arc::clone(known), false);
        }
        let columns = Arc::new(Columns::new(tree, readers));
        self.0.insert(readers.into(), Arc::clone(&columns));
        (columns, true)
    }

    /// The size in entries of about 16 bytes.
    pub(super) fn size(&self) -> usize {
        64 * self.0.len()
    }
}
