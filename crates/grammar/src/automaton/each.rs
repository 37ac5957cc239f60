//! Items of which each occurs at most once: which may come next after those seen.

use crate::tree::{Each, NodeId};

/// The items seen so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct SeenItems {
    /// A bit for each item, without zeros at the end.
    bits: Vec<u64>,
    /// The number of further items, as far as it matters.
    n_further: u32,
}

impl SeenItems {
    fn has(&self, index: usize) -> bool {
        self.bits.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn n_items(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// The number of items up to the last one seen.
    fn end(&self) -> usize {
        self.bits.last().map_or(0, |word| self.bits.len() * 64 - word.leading_zeros() as usize)
    }

    /// Whether no item was seen.
    pub(super) fn is_empty(&self) -> bool {
        self.bits.is_empty() && self.n_further == 0
    }

    /// The next node and the items seen after it, for each that may come next.
    pub(super) fn options<'a>(&'a self, each: &'a Each) -> impl Iterator<Item = (NodeId, SeenItems)> + 'a {
        let items = each.items.iter().enumerate().filter(|(index, _)| match each.any_order {
            true => !self.has(*index),
            false => *index >= self.end() && self.n_further == 0,
        });
        let items = items.map(|(index, (item, _))| {
            let mut next = self.clone();
            next.bits.resize(next.bits.len().max(index / 64 + 1), 0);
            next.bits.get_mut(index / 64).into_iter().for_each(|word| *word |= 1 << (index % 64));
            (*item, next)
        });
        let n_further = (self.n_further + 1).min(each.most.unwrap_or(1).max(1));
        let further = each.further.map(|further| (further, SeenItems { n_further, ..self.clone() }));
        // Once the most items are counted, they stay counted.
        let is_full = each.most.is_some_and(|most| self.n_items() + self.n_further >= most);
        items.chain(further).filter(move |(_, next)| !is_full && next.can_end(each))
    }

    /// Whether the items may end here.
    pub(super) fn may_end(&self, each: &Each) -> bool {
        self.n_required_missing(each) == 0 && self.n_items() + self.n_further.min(1) >= each.least
    }

    /// Whether the items can end here or after more.
    fn can_end(&self, each: &Each) -> bool {
        let is_first =
            |index: usize| if each.any_order { !self.has(index) } else { index >= self.end() && self.n_further == 0 };
        let (mut n_open, mut n_passed) = (u32::from(each.further.is_some() && self.n_further == 0), 0);
        for (index, (_, is_required)) in each.items.iter().enumerate() {
            n_open += u32::from(is_first(index));
            n_passed += u32::from(*is_required && !self.has(index) && !is_first(index));
        }
        let n_free = each.most.map_or(u32::MAX, |most| most.saturating_sub(self.n_items() + self.n_further));
        let counted = self.n_items() + self.n_further.min(1);
        n_passed == 0 && self.n_required_missing(each) <= n_free && counted + n_open.min(n_free) >= each.least
    }

    fn n_required_missing(&self, each: &Each) -> u32 {
        each.items.iter().enumerate().map(|(index, item)| u32::from(item.1 && !self.has(index))).sum()
    }
}
