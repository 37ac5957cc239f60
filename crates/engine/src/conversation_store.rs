//! The states of conversations that no slot holds, in memory, up to a limit, and beyond it on disk. Parts that states have in common, as
//! those of the same first tokens, are held once, if otherwise less than half of the memory were free. A state that is needed again before
//! is neither cut nor put together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::chunk_pool::{ChunkPool, ChunkedEnd};
use super::conversation_actions::ConversationPlace;
use super::conversation_disk::ConversationDisk;
use super::conversation_files::ConversationState;
use crate::session::ConversationRecord;

/// The bytes of a state that are cut into chunks at once, which takes less than a millisecond.
const CUT_AT_ONCE: usize = 1 << 19;

/// A number of conversations in memory, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConversationMemory {
    /// Conversations.
    pub n: usize,
    /// Their bytes.
    pub n_bytes: usize,
}

/// Conversations by name. Those in memory never have more bytes than `limit` together.
pub(super) struct ConversationStore {
    limit: usize,
    /// The bytes of those in memory beside their chunks.
    n_bytes: usize,
    /// The chunks of the states of those in memory.
    chunks: ChunkPool,
    /// Counts uses.
    n_uses: u64,
    kept: HashMap<String, KeptConversation>,
    /// The names of those in memory by their last use.
    order: BTreeMap<u64, String>,
    /// The last uses of those whose states are not all in chunks.
    uncut: BTreeSet<u64>,
    /// The conversations on disk, which have those that memory does not hold.
    pub(super) disk: Option<ConversationDisk>,
}

struct KeptConversation {
    /// The conversation, with the beginnings of its states that are not in chunks.
    state: ConversationState,
    /// The chunks behind these beginnings, as far as they are cut.
    ends: Vec<ChunkedEnd>,
    /// The bytes that it would have alone, in one piece.
    n_bytes: usize,
    /// Its bytes beside the chunks, as they were counted.
    n_counted: usize,
    last_used: u64,
}

impl KeptConversation {
    /// Moves so many bytes of its states, or one chunk more, to chunks. Returns the bytes beside the chunks if all are in chunks.
    fn cut(&mut self, pool: &mut ChunkPool, mut n_bytes: usize) -> Option<usize> {
        let mut n_lists = 0;
        for (index, bytes) in self.state.states_mut().enumerate() {
            if index == self.ends.len() {
                self.ends.push(ChunkedEnd::of(bytes.len()));
            }
            let Some(end) = self.ends.get_mut(index) else { continue };
            while !bytes.is_empty() {
                if n_bytes == 0 {
                    return None;
                }
                n_bytes = n_bytes.saturating_sub(pool.move_end(bytes, end));
            }
            n_lists += end.close();
        }
        Some(self.state.n_bytes() + n_lists)
    }

    /// The conversation with its states.
    fn into_whole(mut self) -> ConversationState {
        self.ends.iter().zip(self.state.states_mut()).for_each(|(end, bytes)| end.append_to(bytes));
        self.state
    }

    /// A copy of the conversation with its states.
    fn to_whole(&self) -> ConversationState {
        let mut state = self.state.clone();
        self.ends.iter().zip(state.states_mut()).for_each(|(end, bytes)| end.append_to(bytes));
        state
    }
}

impl ConversationStore {
    pub(super) fn new(limit: usize, disk: Option<ConversationDisk>) -> ConversationStore {
        ConversationStore {
            limit,
            n_bytes: 0,
            chunks: ChunkPool::default(),
            n_uses: 0,
            kept: HashMap::new(),
            order: BTreeMap::new(),
            uncut: BTreeSet::new(),
            disk,
        }
    }

    /// Holds common parts once, and then removes the conversations unused for longest from memory, until there is room for so many bytes.
    /// Returns whether there is. `needed` stays as it is, and those that are pinned stay.
    pub(super) fn make_room(&mut self, n_bytes: usize, needed: Option<&str>) -> bool {
        let stays = needed.and_then(|name| self.kept.get(name)).map_or(0, |kept| kept.n_bytes);
        if n_bytes.saturating_add(stays) > self.limit {
            return false;
        }
        while self.held().saturating_add(n_bytes) > self.limit {
            if self.cut_some(needed) {
                continue;
            }
            let is_free = |name: &&String| {
                let kept = self.kept.get(*name).filter(|kept| !kept.state.conversation.is_pinned);
                kept.is_some() && Some(name.as_str()) != needed
            };
            let Some(oldest) = self.order.values().find(is_free).cloned() else { return false };
            let kept = self.remove_from_memory(&oldest);
            if let (Some(disk), Some(kept)) = (&mut self.disk, kept) {
                disk.write(&oldest, move || kept.into_whole());
            }
        }
        true
    }

    /// Whether a state of so many bytes can be kept: in memory, after [`ConversationStore::make_room`], or on disk.
    pub(super) fn can_keep(&mut self, n_bytes: usize, needed: Option<&str>) -> bool {
        self.make_room(n_bytes, needed) || self.disk.is_some()
    }

    /// Whether a state of so many bytes can be kept without waiting for the disk, or not at all.
    pub(super) fn keeps_at_once(&self, n_bytes: usize) -> bool {
        self.held().saturating_add(n_bytes) <= self.limit || !self.disk_is_busy()
    }

    /// Keeps a conversation, if there is room for it in memory, else on disk. Returns where.
    pub(super) fn keep(&mut self, state: ConversationState) -> Option<ConversationPlace> {
        let name = state.conversation.name.clone();
        self.remove_from_memory(&name);
        let n_bytes = state.n_bytes();
        if self.held().saturating_add(n_bytes) > self.limit {
            self.disk.as_mut()?.write(&name, || state);
            return Some(ConversationPlace::Disk);
        }
        self.n_uses += 1;
        self.n_bytes += n_bytes;
        self.order.insert(self.n_uses, name.clone());
        self.uncut.insert(self.n_uses);
        let kept = KeptConversation { state, ends: Vec::new(), n_bytes, n_counted: n_bytes, last_used: self.n_uses };
        self.kept.insert(name, kept);
        Some(ConversationPlace::Memory)
    }

    /// Holds common parts once while less than half of the memory is free, a bit at each call, when there is time. Returns whether there was
    /// something to do.
    pub(super) fn cut_early(&mut self) -> bool {
        self.held() > self.limit / 2 && self.cut_some(None)
    }

    /// Moves a part of a state to chunks, of the conversation unused for longest that has one, but not of `needed`. Returns whether there
    /// was one.
    fn cut_some(&mut self, needed: Option<&str>) -> bool {
        let mut names = self.uncut.iter().filter_map(|used| self.order.get(used));
        let name = names.find(|name| Some(name.as_str()) != needed);
        let Some(kept) = name.and_then(|name| self.kept.get_mut(name)) else { return false };
        let before = self.chunks.n_bytes();
        let all_cut = kept.cut(&mut self.chunks, CUT_AT_ONCE);
        if all_cut.is_some() {
            self.uncut.remove(&kept.last_used);
        }
        // Until then, what is left and the chunks have room in what the states had whole.
        let added = self.chunks.n_bytes() - before;
        let n_counted = all_cut.unwrap_or(kept.n_counted.saturating_sub(added));
        self.n_bytes -= std::mem::replace(&mut kept.n_counted, n_counted);
        self.n_bytes += n_counted;
        true
    }

    /// The bytes of all conversations in memory.
    fn held(&self) -> usize {
        self.n_bytes + self.chunks.n_bytes()
    }

    /// Writes all conversations in memory to disk, if there is a folder for them. Waits for the disk.
    pub(super) fn write_all(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        disk.wait();
        for (name, kept) in self.kept.drain() {
            disk.write(&name, move || kept.into_whole());
            disk.wait();
        }
        (self.n_bytes, self.chunks) = (0, ChunkPool::default());
        self.order.clear();
        self.uncut.clear();
    }

    /// Whether reads or writes of files have not ended.
    pub(super) fn disk_is_busy(&self) -> bool {
        self.disk.as_ref().is_some_and(ConversationDisk::is_busy)
    }

    /// The conversations in memory, with the bytes that each would have alone.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConversationRecord, usize)> {
        self.kept.values().map(|kept| (&kept.state.conversation, kept.n_bytes))
    }

    /// A conversation in memory, or one that was fetched from disk, with the bytes that it would have alone.
    pub(super) fn get(&self, name: &str) -> Option<(&ConversationRecord, usize, ConversationPlace)> {
        let kept = self.kept.get(name);
        let kept = kept.map(|kept| (&kept.state.conversation, kept.n_bytes, ConversationPlace::Memory));
        kept.or_else(|| {
            let fetched = self.disk.as_ref()?.fetched(name)?;
            Some((&fetched.conversation, fetched.n_bytes(), ConversationPlace::Disk))
        })
    }

    /// A copy of a conversation that [`ConversationStore::get`] has.
    pub(super) fn copy(&self, name: &str) -> Option<ConversationState> {
        let kept = self.kept.get(name).map(KeptConversation::to_whole);
        kept.or_else(|| self.disk.as_ref()?.fetched(name).cloned())
    }

    /// Looks for a conversation that memory does not have on disk. Returns whether that has ended: [`ConversationStore::get`] then has it,
    /// if there is one.
    pub(super) fn fetch(&mut self, name: &str) -> bool {
        self.kept.contains_key(name) || self.disk.as_mut().is_none_or(|disk| disk.fetch(name))
    }

    /// Changes a conversation that [`ConversationStore::get`] has: its turns may only become fewer.
    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut ConversationRecord)) {
        if let Some(kept) = self.kept.get_mut(name) {
            change(&mut kept.state.conversation);
        } else if let Some(disk) = &mut self.disk {
            disk.change(name, change);
        }
    }

    /// Takes a conversation that [`ConversationStore::get`] has. A file stays: an older state is better than none.
    pub(super) fn take(&mut self, name: &str) -> Option<ConversationState> {
        let kept = self.remove_from_memory(name).map(KeptConversation::into_whole);
        kept.or_else(|| self.disk.as_mut()?.take(name))
    }

    fn remove_from_memory(&mut self, name: &str) -> Option<KeptConversation> {
        let kept = self.kept.remove(name)?;
        self.n_bytes -= kept.n_counted;
        self.order.remove(&kept.last_used);
        self.uncut.remove(&kept.last_used);
        kept.ends.iter().for_each(|end| self.chunks.remove(end));
        Some(kept)
    }

    /// Forgets a conversation, in memory and on disk.
    pub(super) fn forget(&mut self, name: &str) {
        self.remove_from_memory(name);
        if let Some(disk) = &mut self.disk {
            disk.remove(name);
        }
    }

    pub(super) fn memory(&self) -> ConversationMemory {
        ConversationMemory { n: self.kept.len(), n_bytes: self.held() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use foredraft_base::Snapshot;
    use foredraft_llama::fake::mix;
    use std::sync::Arc;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        (0..).flat_map(|at| mix(seed * 1_000_003 + at).to_le_bytes()).take(len).collect()
    }

    fn state_of(name: &str, state: Vec<u8>) -> ConversationState {
        let target = Snapshot {
            identity: Vec::new(),
            tokens: Vec::new(),
            blocks: 0,
            spans: Arc::default(),
            state,
            checkpoints: Vec::new(),
        };
        let session = Session { target, draft: None, seed: None, lora: Vec::new(), media: Vec::new() };
        let conversation = ConversationRecord { name: name.to_owned(), ..ConversationRecord::default() };
        ConversationState { conversation, session, is_from_file: false }
    }

    fn state(name: &str, n_bytes: usize) -> ConversationState {
        state_of(name, noise(u64::from(name.as_bytes()[0]), n_bytes))
    }

    /// The bytes of room for one.
    fn one() -> usize {
        state("a", 100_000).n_bytes()
    }

    fn store(limit: usize, names: &[&str]) -> ConversationStore {
        let mut store = ConversationStore::new(limit, None);
        names.iter().for_each(|name| _ = store.keep(state(name, 100_000)));
        store
    }

    /// Cuts all states, within the limit at each moment.
    fn cut_all(store: &mut ConversationStore) {
        while store.cut_some(None) {
            assert!(store.held() <= store.limit);
        }
    }

    fn left(store: &ConversationStore) -> Vec<&str> {
        ["a", "b", "c"].into_iter().filter(|name| store.get(name).is_some()).collect()
    }

    #[test]
    fn the_conversations_unused_for_longest_make_room() {
        let mut full = store(3 * one(), &["a", "b", "c"]);
        let memory = full.memory();
        assert!(memory.n == 3 && (300_000..=3 * one()).contains(&memory.n_bytes), "{memory:?}");
        assert!(full.make_room(one() * 3 / 2, None));
        assert_eq!(left(&full), ["c"]);
        let mut full = store(3 * one(), &["b", "a", "c"]);
        assert!(full.make_room(one() * 3 / 2, Some("b")));
        assert_eq!(left(&full), ["b"], "the one that is needed stays");
    }

    #[test]
    fn nothing_passes_the_limit() {
        let mut full = store(3 * one(), &["a", "b", "c"]);
        assert!(!full.make_room(3 * one() + 1, None) && !full.make_room(2 * one() + 1, Some("a")));
        assert_eq!(left(&full), ["a", "b", "c"], "nothing is dropped without need");
        let before = full.memory();
        full.keep(state("d", 100_000));
        assert!(full.get("d").is_none() && full.memory() == before);
        full.keep(state("a", 90_000));
        assert!(full.memory().n == 3 && full.memory().n_bytes < before.n_bytes, "it replaces the old state");
        let mut none = store(0, &["a"]);
        assert!(none.get("a").is_none() && none.take("a").is_none() && none.memory() == ConversationMemory::default());
    }

    #[test]
    fn pinned_conversations_make_no_room() {
        let mut full = store(3 * one(), &["a", "b", "c"]);
        full.change("a", |conversation| conversation.is_pinned = true);
        assert!(full.make_room(one(), None));
        assert_eq!(left(&full), ["a", "c"]);
        assert!(!full.make_room(one() * 5 / 2, None));
        assert!(full.get("a").is_some());
    }

    #[test]
    fn a_common_beginning_is_held_once_and_given_back_to_the_byte() {
        let world = noise(1, 300_000);
        let own = |name: u64| [world.clone(), noise(name + 2, 4000)].concat();
        let mut store = ConversationStore::new(1 << 22, None);
        for name in 0..50 {
            let mut state = state_of(&name.to_string(), own(name));
            state.session.target.checkpoints = vec![(7, Arc::new(own(name))), (9, Arc::new(noise(name + 100, 50)))];
            assert!(store.can_keep(state.n_bytes(), None) && store.keep(state).is_some());
        }
        cut_all(&mut store);
        let memory = store.memory();
        assert!(memory.n == 50 && memory.n_bytes < 1_200_000, "{memory:?}: of 30 MB");
        let taken = store.take("7").unwrap();
        assert_eq!(taken.session.target.state, own(7));
        assert_eq!(taken.session.target.checkpoints[0], (7, Arc::new(own(7))));
        assert_eq!(taken.session.target.checkpoints[1], (9, Arc::new(noise(107, 50))));
        store.keep(taken);
        cut_all(&mut store);
        assert_eq!(store.memory(), memory, "it is held as before");
        let fork = store.copy("8").unwrap();
        store.keep(ConversationState {
            conversation: ConversationRecord { name: "fork".to_owned(), ..ConversationRecord::default() },
            ..fork
        });
        cut_all(&mut store);
        assert!(store.memory().n_bytes - memory.n_bytes < 25_000, "a fork has all in common");
        (0..50).for_each(|name| store.forget(&name.to_string()));
        assert_eq!(store.take("fork").unwrap().session.target.state, own(8));
        assert_eq!(store.memory(), ConversationMemory::default());
    }

    #[test]
    fn common_beginnings_make_room_before_conversations_do() {
        let world = noise(1, 3 << 20);
        let own = |name: u64| [world.clone(), noise(name + 2, 4000)].concat();
        let n_bytes = state_of("0", own(0)).n_bytes();
        let mut store = ConversationStore::new(4 * n_bytes, None);
        for name in 0..50_u64 {
            assert!(store.can_keep(n_bytes, Some("0")) && store.memory().n_bytes <= 3 * n_bytes);
            assert!(store.keep(state_of(&name.to_string(), own(name))).is_some());
        }
        assert_eq!(store.memory().n, 50);
        assert!(store.uncut.contains(&1) && store.kept["0"].ends.is_empty(), "the one that is needed is not cut");
        // One of which a part is cut is read, taken, and dropped.
        while store.uncut.len() > 1 {
            store.cut_some(Some("0"));
        }
        store.cut_some(None);
        assert!((1..world.len()).contains(&store.kept["0"].state.session.target.state.len()));
        assert_eq!(store.copy("0").unwrap().session.target.state, own(0));
        assert_eq!(store.take("0").unwrap().session.target.state, own(0));
        (1..50_u64).for_each(|name| assert_eq!(store.take(&name.to_string()).unwrap().session.target.state, own(name)));
        assert_eq!((store.memory(), store.uncut.len()), (ConversationMemory::default(), 0), "to the byte");
    }

    #[test]
    fn a_hundred_thousand_conversations_stay_within_the_limit() {
        let mut store = ConversationStore::new(16 << 20, None);
        let name = |number: usize| format!("{number:0200}");
        for number in 0..100_000 {
            let state = state_of(&name(number), vec![7; 300]);
            assert!(store.can_keep(state.n_bytes(), None) && store.keep(state).is_some());
            assert!(store.memory().n_bytes <= 16 << 20);
        }
        let memory = store.memory();
        assert!(memory.n > 1000 && memory.n == store.iter().count() && memory.n == store.order.len(), "{memory:?}");
        let all = |from: usize| (from..100_000).all(|number| store.get(&name(number)).is_some());
        assert!(all(100_000 - memory.n) && !all(99_999 - memory.n), "the newest are there");
    }
}
