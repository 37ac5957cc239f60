//! A hash index of record numbers: open addressing with linear probing, four bytes per slot.
//!
//! A slot holds a record number and, in the unused bits, part of the hash. So a missing key is usually detected without
//! reading other records, which are elsewhere in memory. Storing whole hashes would double the memory.

const EMPTY: u32 = u32::MAX;

/// The largest number of records: their numbers leave at least one bit to distinguish them from [`EMPTY`].
pub(super) const MAX_RECORDS: usize = 1 << 30;

#[derive(Default)]
pub(super) struct Index {
    slots: Vec<u32>,
    used: usize,
    /// The number of bits of a slot that hold the record number.
    bits: u32,
}

/// The result of a search.
pub(super) enum IndexSearch {
    /// The record's number.
    Record(u32),
    /// The key is missing; it belongs into this slot.
    Slot(usize),
}

impl Index {
    /// An index with space for `records` records. `None` if out of memory.
    pub fn try_with_capacity(records: usize) -> Option<Index> {
        Index::try_of(records.checked_add(records / 2)?.checked_add(8)?)
    }

    fn try_of(length: usize) -> Option<Index> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(length).ok()?;
        slots.resize(length, EMPTY);
        // Numbers stay below the number of slots, so EMPTY is none of them.
        Some(Index { slots, used: 0, bits: usize::BITS - length.leading_zeros() })
    }

    /// Whether another record needs a larger index.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used + self.used / 3 + 1 >= self.slots.len()
    }

    /// An empty index with half as many slots more, so that 50 to 75 % of them are used. `None` if out of memory.
    pub fn larger(&self) -> Option<Index> {
        Index::try_of(self.slots.len() + self.slots.len() / 2 + 8)
    }

    fn mask(&self) -> u32 {
        1_u32.unbounded_shl(self.bits).wrapping_sub(1)
    }

    /// The first slot to probe: the upper half of the hash as a fraction of the length, which need not be a power of two.
    #[inline]
    fn start(&self, hash: u64) -> usize {
        (((hash >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    /// Prefetches the memory where a search will begin.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        std::hint::black_box(self.slots.get(self.start(hash)).copied());
    }

    /// The record that a search will probably read first.
    #[inline]
    pub fn likely_record(&self, hash: u64) -> Option<u32> {
        let mask = self.mask();
        let slot = self.slots.get(self.start(hash)).copied()?;
        (slot & !mask == hash as u32 & !mask).then_some(slot & mask)
    }

    /// Searches a record; `is` compares the key of a record number.
    #[inline]
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> IndexSearch {
        let length = self.slots.len();
        let mask = self.mask();
        let tag = hash as u32 & !mask;
        let mut at = self.start(hash);
        for _ in 0..length {
            match self.slots.get(at) {
                Some(&EMPTY) => break,
                Some(&slot) if slot & !mask == tag && is(slot & mask) => return IndexSearch::Record(slot & mask),
                Some(_) => at += 1,
                None => at = 0,
            }
        }
        IndexSearch::Slot(at)
    }

    /// Stores a record in the slot that a search returned.
    #[inline]
    pub fn put(&mut self, slot: usize, hash: u64, record: u32) {
        let tag = hash as u32 & !self.mask();
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = tag | record;
            self.used += 1;
        }
    }

    /// Removes all records; keeps the allocation.
    pub fn clear(&mut self) {
        if self.used > 0 {
            self.slots.fill(EMPTY);
            self.used = 0;
        }
    }

    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }
}
