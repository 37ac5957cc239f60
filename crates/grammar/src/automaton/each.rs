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
        let n_missing = self.n_required_missing(each);
        // Once the most items are counted, they stay counted.
        let is_full = each.most.is_some_and(|most| self.n_items() + self.n_further >= most);
        // The required items that cannot come after a later one.
        let mut n_passed = 0;
        let items = each.items.iter().enumerate().filter_map(move |(index, (item, is_required))| {
            let may_come = match each.any_order {
                true => !self.has(index),
                false => index >= self.end() && self.n_further == 0 && n_passed == 0,
            };
            n_passed += u32::from(!each.any_order && *is_required && !self.has(index));
            if is_full || !may_come {
                return None;
            }
            let mut next = self.clone();
            next.bits.resize(next.bits.len().max(index / 64 + 1), 0);
            next.bits.get_mut(index / 64).into_iter().for_each(|word| *word |= 1 << (index % 64));
            next.can_end(each, n_missing - u32::from(*is_required)).then_some((*item, next))
        });
        let may_come = !is_full && (each.any_order || n_missing == 0);
        let n_further = (self.n_further + 1).min(each.most.unwrap_or(1).max(most_further(each)));
        let further =
            each.further.filter(|_| may_come).map(|further| (further, SeenItems { n_further, ..self.clone() }));
        items.chain(further.filter(move |(_, next)| next.can_end(each, n_missing)))
    }

    /// Whether the items may end here.
    pub(super) fn may_end(&self, each: &Each) -> bool {
        self.n_required_missing(each) == 0 && self.n_items() + self.n_further.min(most_further(each)) >= each.least
    }

    /// Whether the items can end here or after more, if none of the `n_missing` required ones is passed.
    fn can_end(&self, each: &Each, n_missing: u32) -> bool {
        let n_listed = u32::try_from(each.items.len()).unwrap_or(u32::MAX);
        let n_behind = n_listed.saturating_sub(u32::try_from(self.end()).unwrap_or(u32::MAX));
        let n_open = match (each.any_order, self.n_further) {
            (true, _) => n_listed.saturating_sub(self.n_items()),
            (false, 0) => n_behind,
            (false, _) => 0,
        };
        let n_further = self.n_further.min(most_further(each));
        let n_open = n_open + each.further.map_or(0, |_| most_further(each) - n_further);
        let n_free = each.most.map_or(u32::MAX, |most| most.saturating_sub(self.n_items() + self.n_further));
        let counted = self.n_items() + n_further;
        n_missing <= n_free && counted + n_open.min(n_free) >= each.least
    }

    fn n_required_missing(&self, each: &Each) -> u32 {
        each.items.iter().enumerate().map(|(index, item)| u32::from(item.1 && !self.has(index))).sum()
    }
}

/// How many further items count towards the fewest ones.
fn most_further(each: &Each) -> u32 {
    let n_listed = u32::try_from(each.items.len()).unwrap_or(u32::MAX);
    if each.least > n_listed.saturating_add(1) { each.least } else { 1 }
}
