//! From hashes to record numbers: open addressing with linear probing, four bytes a slot.
//!
//! A slot holds a record's number and, in the bits that numbers do not need, some of its hash: so a key that is not
//! there is found out without looking at records of other keys, which are elsewhere in memory. Whole hashes in the slots
//! would tell the same for twice the memory.

const EMPTY: u32 = u32::MAX;

/// At most so many records: numbers that fit, with at least one bit to tell them from [`EMPTY`].
pub(super) const MAX_RECORDS: usize = 1 << 30;

#[derive(Default)]
pub(super) struct Index {
    slots: Vec<u32>,
    used: usize,
    /// How many bits of a slot are the number.
    bits: u32,
}

/// Where a search ended.
pub(super) enum Found {
    /// The record's number.
    Record(u32),
    /// It is not there; it belongs into this slot.
    Slot(usize),
}

impl Index {
    /// Room for so many records. `None`: there is not that much memory.
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

    /// A larger one, empty: half as many slots more, so that 50 to 75 % of them are used. `None`: there is not that much memory.
    pub fn larger(&self) -> Option<Index> {
        Index::try_of(self.slots.len() + self.slots.len() / 2 + 8)
    }

    fn mask(&self) -> u32 {
        1_u32.unbounded_shl(self.bits).wrapping_sub(1)
    }

    /// The slot to begin at: the upper half as a fraction of the length, which need not be a power of two.
    #[inline]
    fn start(&self, hash: u64) -> usize {
        (((hash >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    /// Fetches the memory where a search will begin, without waiting for it.
    #[inline]
    pub fn touch(&self, hash: u64) {
        std::hint::black_box(self.slots.get(self.start(hash)).copied());
    }

    /// The record that a search will look at first, probably.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<u32> {
        let mask = self.mask();
        let slot = self.slots.get(self.start(hash)).copied()?;
        (slot & !mask == hash as u32 & !mask).then_some(slot & mask)
    }

    /// Searches a record; `is` compares its key.
    #[inline]
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Found {
        let length = self.slots.len();
        let mask = self.mask();
        let tag = hash as u32 & !mask;
        let mut at = self.start(hash);
        for _ in 0..length {
            match self.slots.get(at) {
                Some(&EMPTY) => break,
                Some(&slot) if slot & !mask == tag && is(slot & mask) => return Found::Record(slot & mask),
                Some(_) => at += 1,
                None => at = 0,
            }
        }
        Found::Slot(at)
    }

    /// Fills the slot that a search ended at.
    #[inline]
    pub fn put(&mut self, slot: usize, hash: u64, record: u32) {
        let tag = hash as u32 & !self.mask();
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = tag | record;
            self.used += 1;
        }
    }

    /// Forgets everything, keeps the memory.
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
