//! Memory for the tokens that follow an n-gram, apart from the most frequent one: sorted lists of pairs in one vector.
//!
//! A `Vec` or a map for each would cost an allocation each, and the sizes of its own and of malloc's heads.

/// How often a token followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The token.
    pub token: i32,
    /// How often: 1..=`i32::MAX`, where it stays.
    pub count: u32,
}

/// Counts end here, as files have them in an `i32`.
pub(super) const MAX_COUNT: u32 = i32::MAX.cast_unsigned();

impl Count {
    /// Whether it comes before `other`: the higher count, then the lower token id.
    #[inline]
    pub fn beats(self, other: Count) -> bool {
        self.count > other.count || (self.count == other.count && self.token < other.token)
    }
}

/// A list of a [`Pool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List(u32);

impl List {
    pub const EMPTY: List = List(u32::MAX);
}

/// Numbers of different capacities: 1, 2, 3, 4, 6, 8, 12, ..., 2^31.
const CLASSES: usize = 62;

/// All lists of a cache. A list is a head (its capacity as `token`, its length as `count`) and its pairs, by token.
pub(super) struct Pool {
    cells: Vec<Count>,
    /// Of each class the first free block, whose head names the next one.
    free: [u32; CLASSES],
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { cells: Vec::new(), free: [List::EMPTY.0; CLASSES] }
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

/// The largest class that such a capacity can serve.
fn class_within(size: u32) -> usize {
    (0..CLASSES).rev().find(|class| capacity(*class) <= size).unwrap_or(0)
}

impl Pool {
    fn head(&self, list: List) -> Option<Count> {
        self.cells.get(list.0 as usize).copied()
    }

    /// The pairs of a list, by token.
    #[inline]
    pub fn get(&self, list: List) -> &[Count] {
        let Some(head) = self.head(list) else { return &[] };
        let start = list.0 as usize + 1;
        self.cells.get(start..start + head.count as usize).unwrap_or_default()
    }

    /// The pairs with `spare` cells behind them, as far as the list has them.
    fn pairs(&mut self, list: List, spare: usize) -> &mut [Count] {
        let Some(head) = self.head(list) else { return &mut [] };
        let start = list.0 as usize + 1;
        let room = (head.count as usize + spare).min(head.token as usize);
        self.cells.get_mut(start..start + room).unwrap_or_default()
    }

    /// A new list of the pairs of both, which are sorted by token; `EMPTY` for none. `None`: there is no memory or no number left.
    pub fn list(&mut self, first: &[Count], then: &[Count]) -> Option<List> {
        let length = i32::try_from(first.len().checked_add(then.len())?).ok()?;
        if length == 0 {
            return Some(List::EMPTY);
        }
        let list = self.block(length, length)?;
        self.cells.extend_from_slice(first);
        self.cells.extend_from_slice(then);
        self.set_length(list, length.cast_unsigned());
        Some(list)
    }

    /// An unused block at the end, of which `written` cells are about to be pushed. `None`: there is no memory or no number left.
    fn block(&mut self, capacity: i32, written: i32) -> Option<List> {
        let at = u32::try_from(self.cells.len()).ok()?;
        let end = at.checked_add(capacity.cast_unsigned())?.checked_add(1)?;
        try_grow(&mut self.cells, capacity.cast_unsigned() as usize + 1)?;
        self.cells.push(Count { token: capacity, count: 0 });
        let length = (end - written.cast_unsigned()) as usize;
        self.cells.resize(length, Count { token: 0, count: 0 });
        Some(List(at))
    }

    fn set_length(&mut self, list: List, length: u32) {
        if let Some(head) = self.cells.get_mut(list.0 as usize) {
            head.count = length;
        }
    }

    /// Adds to the count of a token in the list, which ends at [`MAX_COUNT`]. Returns where it is, its count now, and how much was
    /// added. `Err`: it is not in the list, and would be there.
    pub fn add(&mut self, list: List, token: i32, count: u32) -> Result<(usize, Count, u32), usize> {
        let at = self.get(list).binary_search_by_key(&token, |pair| pair.token)?;
        let pair = self.pairs(list, 0).get_mut(at).ok_or(at)?;
        let before = pair.count;
        pair.count = before.saturating_add(count).min(MAX_COUNT);
        Ok((at, *pair, pair.count - before))
    }

    /// Puts a pair, whose token is not in the list, where it belongs. `None` where there is no memory or no number left. `list` may
    /// move.
    pub fn insert(&mut self, list: &mut List, at: usize, pair: Count) -> Option<()> {
        let head = self.head(*list).unwrap_or(Count { token: 0, count: 0 });
        if head.count >= head.token.cast_unsigned() {
            *list = self.moved(*list, head, 1)?;
        }
        let pairs = self.pairs(*list, 1);
        pairs.get_mut(at..)?.rotate_right(1);
        *pairs.get_mut(at)? = pair;
        self.set_length(*list, head.count + 1);
        Some(())
    }

    /// Adds pairs whose tokens are not in the list, sorted by token; in one pass, however many they are. `None`, and nothing is
    /// added, where there is no memory or no number left. `list` may move.
    pub fn insert_all(&mut self, list: &mut List, new: &[Count]) -> Option<()> {
        let head = self.head(*list).unwrap_or(Count { token: 0, count: 0 });
        let length = u32::try_from(new.len()).ok().and_then(|new| head.count.checked_add(new))?;
        if length > head.token.cast_unsigned() {
            *list = self.moved(*list, head, length - head.count)?;
        }
        let pairs = self.pairs(*list, new.len());
        // From the end, so that what is there is moved before its place is taken.
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

    /// The list in a block with room for `more` pairs at least; its old one becomes free.
    fn moved(&mut self, list: List, head: Count, more: u32) -> Option<List> {
        let length = head.count.checked_add(more)?;
        let class = (0..CLASSES).find(|class| capacity(*class) >= length)?;
        let new = match self.free.get(class).copied().map(List) {
            Some(first) if first != List::EMPTY => {
                let next = self.head(first)?.count;
                *self.free.get_mut(class)? = next;
                first
            }
            _ => self.block(i32::try_from(capacity(class)).ok()?, 0)?,
        };
        if list != List::EMPTY {
            let from = list.0 as usize + 1;
            self.cells.copy_within(from..from + head.count as usize, new.0 as usize + 1);
            let class = class_within(head.token.cast_unsigned());
            let first = self.free.get_mut(class)?;
            let freed = self.cells.get_mut(list.0 as usize)?;
            // A block as files have them becomes one of a class, which may be smaller.
            *freed = Count { token: capacity(class).cast_signed(), count: *first };
            *first = list.0;
        }
        self.set_length(new, head.count);
        Some(new)
    }

    /// Puts `pair` into the list in place of the one at `at`, in order.
    pub fn replace(&mut self, list: List, at: usize, pair: Count) {
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

    /// Gives memory back that was taken in advance.
    pub fn shrink(&mut self) {
        self.cells.shrink_to_fit();
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.cells.clear();
        self.free = [List::EMPTY.0; CLASSES];
    }

    pub fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<Count>()
    }
}

/// Makes room for `more`, an eighth of what there is at a time: large vectors are grown by moving pages, so doubling them
/// would only waste memory. `None`: there is none left.
#[inline]
pub(super) fn try_grow<T>(vec: &mut Vec<T>, more: usize) -> Option<()> {
    if vec.capacity() - vec.len() < more {
        vec.try_reserve_exact(more.max(vec.len() / 8).max(16)).ok()?;
    }
    Some(())
}
