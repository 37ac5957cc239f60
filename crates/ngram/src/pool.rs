//! Storage for the tokens that follow an n-gram, except the most frequent one: sorted lists of (token, count) pairs in one
//! vector. A `Vec` or a map per n-gram would cost an allocation and headers each.

/// A token and the number of times it followed an n-gram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount {
    /// The token.
    pub token: i32,
    /// The count, 1..=`i32::MAX` (saturating).
    pub count: u32,
}

/// Counts saturate here, because files store them as `i32`.
pub(super) const MAX_COUNT: u32 = i32::MAX.cast_unsigned();

impl TokenCount {
    /// Returns whether it is preferred to `other`: the larger count, then the lower token id.
    #[inline]
    pub fn beats(self, other: TokenCount) -> bool {
        self.count > other.count || (self.count == other.count && self.token < other.token)
    }
}

/// A list of a [`CountPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListId(u32);

impl ListId {
    pub const EMPTY: ListId = ListId(u32::MAX);
}

/// The number of capacity classes: 1, 2, 3, 4, 6, 8, 12, ..., 2^31.
const CLASSES: usize = 62;

/// All lists of a cache. A list is a header (capacity as `token`, length as `count`) followed by its pairs, sorted by token.
pub(super) struct CountPool {
    cells: Vec<TokenCount>,
    /// The first free block of each class; its header has the next one.
    free: [u32; CLASSES],
}

impl Default for CountPool {
    fn default() -> CountPool {
        CountPool { cells: Vec::new(), free: [ListId::EMPTY.0; CLASSES] }
    }
}

/// The capacity of a class: 2^k at 2k - 1, 3/2 of that at 2k.
fn capacity(class: usize) -> u32 {
    match class {
        0 => 1,
        class if class % 2 == 1 => 1 << class.div_ceil(2),
        class => 3 << (class / 2 - 1),
    }
}

/// The largest class whose capacity is at most `size`.
fn class_within(size: u32) -> usize {
    (0..CLASSES).rev().find(|class| capacity(*class) <= size).unwrap_or(0)
}

impl CountPool {
    fn head(&self, list: ListId) -> Option<TokenCount> {
        self.cells.get(list.0 as usize).copied()
    }

    /// The pairs of a list, sorted by token.
    #[inline]
    pub fn get(&self, list: ListId) -> &[TokenCount] {
        let Some(head) = self.head(list) else { return &[] };
        let start = list.0 as usize + 1;
        self.cells.get(start..start + head.count as usize).unwrap_or_default()
    }

    /// The pairs and up to `spare` unused cells after them, within the list's capacity.
    fn pairs(&mut self, list: ListId, spare: usize) -> &mut [TokenCount] {
        let Some(head) = self.head(list) else { return &mut [] };
        let start = list.0 as usize + 1;
        let available = (head.count as usize + spare).min(head.token as usize);
        self.cells.get_mut(start..start + available).unwrap_or_default()
    }

    /// A new list of the pairs of `first` and `then`, which are sorted by token; `EMPTY` if there are none. `None` if out of
    /// memory or list ids.
    pub fn list(&mut self, first: &[TokenCount], then: &[TokenCount]) -> Option<ListId> {
        let length = i32::try_from(first.len().checked_add(then.len())?).ok()?;
        if length == 0 {
            return Some(ListId::EMPTY);
        }
        let list = self.block(length, length)?;
        self.cells.extend_from_slice(first);
        self.cells.extend_from_slice(then);
        self.set_length(list, length.cast_unsigned());
        Some(list)
    }

    /// A new block at the end; the caller pushes its last `written` cells. `None` if out of memory or list ids.
    fn block(&mut self, capacity: i32, written: i32) -> Option<ListId> {
        let at = u32::try_from(self.cells.len()).ok()?;
        let end = at.checked_add(capacity.cast_unsigned())?.checked_add(1)?;
        try_grow(&mut self.cells, capacity.cast_unsigned() as usize + 1)?;
        self.cells.push(TokenCount { token: capacity, count: 0 });
        let length = (end - written.cast_unsigned()) as usize;
        self.cells.resize(length, TokenCount { token: 0, count: 0 });
        Some(ListId(at))
    }

    fn set_length(&mut self, list: ListId, length: u32) {
        if let Some(head) = self.cells.get_mut(list.0 as usize) {
            head.count = length;
        }
    }

    /// Adds to the count of a token in the list, saturating at [`MAX_COUNT`]. Returns its index, its new count, and the amount
    /// added. `Err`: it is not in the list; the index where it belongs.
    pub fn add(&mut self, list: ListId, token: i32, count: u32) -> Result<(usize, TokenCount, u32), usize> {
        let at = self.get(list).binary_search_by_key(&token, |pair| pair.token)?;
        let pair = self.pairs(list, 0).get_mut(at).ok_or(at)?;
        let before = pair.count;
        pair.count = before.saturating_add(count).min(MAX_COUNT);
        Ok((at, *pair, pair.count - before))
    }

    /// Inserts a pair whose token is not in the list, at its index `at`. `None` if out of memory or list ids. `list` may
    /// change.
    pub fn insert(&mut self, list: &mut ListId, at: usize, pair: TokenCount) -> Option<()> {
        let head = self.head(*list).unwrap_or(TokenCount { token: 0, count: 0 });
        if head.count >= head.token.cast_unsigned() {
            *list = self.moved(*list, head, 1)?;
        }
        let pairs = self.pairs(*list, 1);
        pairs.get_mut(at..)?.rotate_right(1);
        *pairs.get_mut(at)? = pair;
        self.set_length(*list, head.count + 1);
        Some(())
    }

    /// Inserts pairs whose tokens are not in the list, sorted by token, in one pass. `None` if out of memory or list ids; then
    /// nothing is added. `list` may change.
    pub fn insert_all(&mut self, list: &mut ListId, new: &[TokenCount]) -> Option<()> {
        let head = self.head(*list).unwrap_or(TokenCount { token: 0, count: 0 });
        let length = u32::try_from(new.len()).ok().and_then(|new| head.count.checked_add(new))?;
        if length > head.token.cast_unsigned() {
            *list = self.moved(*list, head, length - head.count)?;
        }
        let pairs = self.pairs(*list, new.len());
        // Merges from the end, so that a pair is moved before its cell is overwritten.
        let (mut old, mut left) = (head.count as usize, new);
        while let Some((last, rest)) = left.split_last() {
            let before = old.checked_sub(1).and_then(|at| pairs.get(at).copied());
            let to = old + rest.len();
            match before.filter(|before| before.token > last.token) {
                Some(before) => {
                    *pairs.get_mut(to)? = before;
                    old -= 1;
                }
                None => {
                    *pairs.get_mut(to)? = *last;
                    left = rest;
                }
            }
        }
        self.set_length(*list, length);
        Some(())
    }

    /// Moves the list to a block with space for at least `more` pairs; its old block becomes free.
    fn moved(&mut self, list: ListId, head: TokenCount, more: u32) -> Option<ListId> {
        let length = head.count.checked_add(more)?;
        let class = (0..CLASSES).find(|class| capacity(*class) >= length)?;
        let new = match self.free.get(class).copied().map(ListId) {
            Some(first) if first != ListId::EMPTY => {
                let next = self.head(first)?.count;
                *self.free.get_mut(class)? = next;
                first
            }
            _ => self.block(i32::try_from(capacity(class)).ok()?, 0)?,
        };
        if list != ListId::EMPTY {
            let from = list.0 as usize + 1;
            self.cells.copy_within(from..from + head.count as usize, new.0 as usize + 1);
            let class = class_within(head.token.cast_unsigned());
            let first = self.free.get_mut(class)?;
            let freed = self.cells.get_mut(list.0 as usize)?;
            // A block of a loaded file may have any capacity; as a free block it gets the next smaller class.
            *freed = TokenCount { token: capacity(class).cast_signed(), count: *first };
            *first = list.0;
        }
        self.set_length(new, head.count);
        Some(new)
    }

    /// Replaces the pair at `at` with `pair`, keeping the list sorted.
    pub fn replace(&mut self, list: ListId, at: usize, pair: TokenCount) {
        let pairs = self.pairs(list, 0);
        let to = pairs.partition_point(|other| other.token < pair.token);
        if let Some(old) = pairs.get_mut(at) {
            *old = pair;
        }
        if to <= at {
            pairs.get_mut(to..=at).unwrap_or_default().rotate_right(1);
        } else {
            pairs.get_mut(at..to).unwrap_or_default().rotate_left(1);
        }
    }

    /// Releases unused capacity.
    pub fn shrink(&mut self) {
        self.cells.shrink_to_fit();
    }

    /// Removes all lists; keeps the allocation.
    pub fn clear(&mut self) {
        self.cells.clear();
        self.free = [ListId::EMPTY.0; CLASSES];
    }

    pub fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<TokenCount>()
    }
}

/// Reserves space for `more` elements, growing by at least an eighth. Large vectors grow by moving pages, so doubling
/// would only waste memory. `None` if out of memory.
#[inline]
pub(super) fn try_grow<T>(vec: &mut Vec<T>, more: usize) -> Option<()> {
    if vec.capacity() - vec.len() < more {
        vec.try_reserve_exact(more.max(vec.len() / 8).max(16)).ok()?;
    }
    Some(())
}
