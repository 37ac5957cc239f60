//! The states of conversations that no slot holds, in memory, up to a limit, and beyond it on disk. Parts that states have in common, as
//! those of the same first tokens, are held once.

use std::collections::{BTreeMap, HashMap};

use super::chunk_pool::{ChunkPool, ChunkedBytes};
use super::conversation_actions::ConversationPlace;
use super::conversation_disk::ConversationDisk;
use super::conversation_files::ConversationState;
use crate::session::ConversationRecord;

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
    /// The bytes of those in memory beside their states.
    n_bytes: usize,
    /// The states of those in memory.
    states: ChunkPool,
    /// Counts uses.
    n_uses: u64,
    kept: HashMap<String, KeptConversation>,
    /// The names of those in memory by their last use.
    order: BTreeMap<u64, String>,
    /// The conversations on disk, which have those that memory does not hold.
    pub(super) disk: Option<ConversationDisk>,
}

struct KeptConversation {
    /// The conversation without its states.
    rest: ConversationState,
    states: Vec<ChunkedBytes>,
    /// The bytes that it would have alone, in one piece.
    n_bytes: usize,
    /// Its bytes beside the states, as they were counted.
    n_rest: usize,
    last_used: u64,
}

impl KeptConversation {
    /// The conversation with its states.
    fn whole(&self) -> ConversationState {
        let mut whole = self.rest.clone();
        let mut states = self.states.iter();
        whole.replace_states(|_| states.next().map(ChunkedBytes::to_vec).unwrap_or_default());
        whole
    }
}

impl ConversationStore {
    pub(super) fn new(limit: usize, disk: Option<ConversationDisk>) -> ConversationStore {
        ConversationStore {
            limit,
            n_bytes: 0,
            states: ChunkPool::default(),
            n_uses: 0,
            kept: HashMap::new(),
            order: BTreeMap::new(),
            disk,
        }
    }

    /// Removes the conversations unused for longest from memory until there is room for so many bytes. Returns whether there is. `needed`
    /// and those that are pinned stay.
    pub(super) fn make_room(&mut self, n_bytes: usize, needed: Option<&str>) -> bool {
        let stays = needed.and_then(|name| self.kept.get(name)).map_or(0, |kept| kept.n_bytes);
        if n_bytes.saturating_add(stays) > self.limit {
            return false;
        }
        while self.held().saturating_add(n_bytes) > self.limit {
            let is_free = |name: &&String| {
                let kept = self.kept.get(*name).filter(|kept| !kept.rest.conversation.is_pinned);
                kept.is_some() && Some(name.as_str()) != needed
            };
            let Some(oldest) = self.order.values().find(is_free).cloned() else { return false };
            let kept = self.remove_from_memory(&oldest);
            if let (Some(disk), Some(kept)) = (&mut self.disk, kept) {
                disk.write(&oldest, move || kept.whole());
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
    pub(super) fn keep(&mut self, mut state: ConversationState) -> Option<ConversationPlace> {
        let name = state.conversation.name.clone();
        self.remove_from_memory(&name);
        let n_bytes = state.n_bytes();
        if self.held().saturating_add(n_bytes) > self.limit {
            self.disk.as_mut()?.write(&name, || state);
            return Some(ConversationPlace::Disk);
        }
        let mut states = Vec::new();
        state.replace_states(|bytes| {
            states.push(self.states.add(bytes));
            Vec::new()
        });
        self.n_uses += 1;
        let n_rest = state.n_bytes();
        self.n_bytes += n_rest;
        self.order.insert(self.n_uses, name.clone());
        self.kept.insert(name, KeptConversation { rest: state, states, n_bytes, n_rest, last_used: self.n_uses });
        Some(ConversationPlace::Memory)
    }

    /// The bytes of all conversations in memory.
    fn held(&self) -> usize {
        self.n_bytes + self.states.n_bytes()
    }

    /// Writes all conversations in memory to disk, if there is a folder for them. Waits for the disk.
    pub(super) fn write_all(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        disk.wait();
        for (name, kept) in self.kept.drain() {
            disk.write(&name, move || kept.whole());
            disk.wait();
        }
        (self.n_bytes, self.states, self.order) = (0, ChunkPool::default(), BTreeMap::new());
    }

    /// Whether reads or writes of files have not ended.
    pub(super) fn disk_is_busy(&self) -> bool {
        self.disk.as_ref().is_some_and(ConversationDisk::is_busy)
    }

    /// The conversations in memory, with the bytes that each would have alone.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConversationRecord, usize)> {
        self.kept.values().map(|kept| (&kept.rest.conversation, kept.n_bytes))
    }

    /// A conversation in memory, or one that was fetched from disk, with the bytes that it would have alone.
    pub(super) fn get(&self, name: &str) -> Option<(&ConversationRecord, usize, ConversationPlace)> {
        let kept = self.kept.get(name);
        let kept = kept.map(|kept| (&kept.rest.conversation, kept.n_bytes, ConversationPlace::Memory));
        kept.or_else(|| {
            let fetched = self.disk.as_ref()?.fetched(name)?;
            Some((&fetched.conversation, fetched.n_bytes(), ConversationPlace::Disk))
        })
    }

    /// A copy of a conversation that [`ConversationStore::get`] has.
    pub(super) fn copy(&self, name: &str) -> Option<ConversationState> {
        let kept = self.kept.get(name).map(KeptConversation::whole);
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
            change(&mut kept.rest.conversation);
        } else if let Some(disk) = &mut self.disk {
            disk.change(name, change);
        }
    }

    /// Takes a conversation that [`ConversationStore::get`] has. A file stays: an older state is better than none.
    pub(super) fn take(&mut self, name: &str) -> Option<ConversationState> {
        let kept = self.remove_from_memory(name).map(|kept| kept.whole());
        kept.or_else(|| self.disk.as_mut()?.take(name))
    }

    fn remove_from_memory(&mut self, name: &str) -> Option<KeptConversation> {
        let kept = self.kept.remove(name)?;
        self.n_bytes -= kept.n_rest;
        self.order.remove(&kept.last_used);
        kept.states.iter().for_each(|state| self.states.remove(state));
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
        let session = Session { target, draft: None, seed: None, lora: Vec::new() };
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
        let memory = store.memory();
        assert!(memory.n == 50 && memory.n_bytes < 1_200_000, "{memory:?}: of 30 MB");
        let taken = store.take("7").unwrap();
        assert_eq!(taken.session.target.state, own(7));
        assert_eq!(taken.session.target.checkpoints[0], (7, Arc::new(own(7))));
        assert_eq!(taken.session.target.checkpoints[1], (9, Arc::new(noise(107, 50))));
        store.keep(taken);
        assert_eq!(store.memory(), memory, "it is held as before");
        let fork = store.copy("8").unwrap();
        store.keep(ConversationState {
            conversation: ConversationRecord { name: "fork".to_owned(), ..ConversationRecord::default() },
            ..fork
        });
        assert!(store.memory().n_bytes - memory.n_bytes < 25_000, "a fork has all in common");
        (0..50).for_each(|name| store.forget(&name.to_string()));
        assert_eq!(store.take("fork").unwrap().session.target.state, own(8));
        assert_eq!(store.memory(), ConversationMemory::default());
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
