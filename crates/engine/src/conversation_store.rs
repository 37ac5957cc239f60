//! The states of conversations that no slot holds, in memory, up to a limit, and beyond it on disk.

use std::collections::HashMap;

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
    n_bytes: usize,
    /// Counts uses.
    n_uses: u64,
    kept: HashMap<String, KeptConversation>,
    /// The conversations on disk, which have those that memory does not hold.
    pub(super) disk: Option<ConversationDisk>,
}

struct KeptConversation {
    state: ConversationState,
    n_bytes: usize,
    last_used: u64,
}

impl ConversationStore {
    pub(super) fn new(limit: usize, disk: Option<ConversationDisk>) -> ConversationStore {
        ConversationStore { limit, n_bytes: 0, n_uses: 0, kept: HashMap::new(), disk }
    }

    /// Removes the conversations unused for longest from memory until there is room for so many bytes. Returns whether there is. `needed`
    /// and those that are pinned stay.
    pub(super) fn make_room(&mut self, n_bytes: usize, needed: Option<&str>) -> bool {
        let stays = needed.and_then(|name| self.kept.get(name)).map_or(0, |kept| kept.n_bytes);
        if n_bytes.saturating_add(stays) > self.limit {
            return false;
        }
        while self.n_bytes + n_bytes > self.limit {
            let others = self
                .kept
                .iter()
                .filter(|(name, kept)| Some(name.as_str()) != needed && !kept.state.conversation.is_pinned);
            let Some(oldest) = others.min_by_key(|(_, kept)| kept.last_used).map(|(name, _)| name.clone()) else {
                return false;
            };
            let oldest = self.take_from_memory(&oldest);
            if let (Some(disk), Some(oldest)) = (&mut self.disk, oldest) {
                disk.write(oldest);
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
        self.n_bytes.saturating_add(n_bytes) <= self.limit || !self.disk_is_busy()
    }

    /// Keeps a conversation, if there is room for it in memory, else on disk. Returns where.
    pub(super) fn keep(&mut self, state: ConversationState) -> Option<ConversationPlace> {
        let name = state.conversation.name.clone();
        self.take_from_memory(&name);
        let n_bytes = state.n_bytes();
        if self.n_bytes + n_bytes > self.limit {
            self.disk.as_mut()?.write(state);
            return Some(ConversationPlace::Disk);
        }
        self.n_uses += 1;
        self.n_bytes += n_bytes;
        self.kept.insert(name, KeptConversation { state, n_bytes, last_used: self.n_uses });
        Some(ConversationPlace::Memory)
    }

    /// Writes all conversations in memory to disk, if there is a folder for them. Waits for the disk.
    pub(super) fn write_all(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        disk.wait();
        self.n_bytes = 0;
        for (_, kept) in self.kept.drain() {
            disk.write(kept.state);
            disk.wait();
        }
    }

    /// Whether reads or writes of files have not ended.
    pub(super) fn disk_is_busy(&self) -> bool {
        self.disk.as_ref().is_some_and(ConversationDisk::is_busy)
    }

    /// The conversations in memory, with their bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConversationState, usize)> {
        self.kept.values().map(|kept| (&kept.state, kept.n_bytes))
    }

    /// A conversation in memory, or one that was fetched from disk.
    pub(super) fn get(&self, name: &str) -> Option<(&ConversationState, ConversationPlace)> {
        let kept = self.kept.get(name).map(|kept| (&kept.state, ConversationPlace::Memory));
        kept.or_else(|| Some((self.disk.as_ref()?.fetched(name)?, ConversationPlace::Disk)))
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
        self.take_from_memory(name).or_else(|| self.disk.as_mut()?.take(name))
    }

    fn take_from_memory(&mut self, name: &str) -> Option<ConversationState> {
        let kept = self.kept.remove(name)?;
        self.n_bytes -= kept.n_bytes;
        Some(kept.state)
    }

    /// Forgets a conversation, in memory and on disk.
    pub(super) fn forget(&mut self, name: &str) {
        self.take_from_memory(name);
        if let Some(disk) = &mut self.disk {
            disk.remove(name);
        }
    }

    pub(super) fn memory(&self) -> ConversationMemory {
        ConversationMemory { n: self.kept.len(), n_bytes: self.n_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation_files::OVERHEAD;
    use crate::session::Session;
    use foredraft_base::Snapshot;

    fn state(name: &str, n_bytes: usize) -> ConversationState {
        let target = Snapshot {
            identity: Vec::new(),
            tokens: Vec::new(),
            blocks: 0,
            spans: Default::default(),
            state: vec![0; n_bytes - OVERHEAD - 2 * name.len()],
            checkpoints: Vec::new(),
        };
        let session = Session { target, draft: None, seed: None, lora: Vec::new() };
        let conversation = ConversationRecord { name: name.to_owned(), ..ConversationRecord::default() };
        ConversationState { conversation, session, is_from_file: false }
    }

    fn store(limit: usize, names: &[&str]) -> ConversationStore {
        let mut store = ConversationStore::new(limit, None);
        names.iter().for_each(|name| _ = store.keep(state(name, 10_000)));
        store
    }

    fn left(store: &ConversationStore) -> Vec<&str> {
        ["a", "b", "c"].into_iter().filter(|name| store.get(name).is_some()).collect()
    }

    #[test]
    fn the_conversations_unused_for_longest_make_room() {
        let mut full = store(30_000, &["a", "b", "c"]);
        assert_eq!(full.memory(), ConversationMemory { n: 3, n_bytes: 30_000 });
        assert!(full.make_room(15_000, None));
        assert_eq!(left(&full), ["c"]);
        let mut full = store(30_000, &["b", "a", "c"]);
        assert!(full.make_room(15_000, Some("b")));
        assert_eq!(left(&full), ["b"], "the one that is needed stays");
    }

    #[test]
    fn nothing_passes_the_limit() {
        let mut full = store(30_000, &["a", "b", "c"]);
        assert!(!full.make_room(30_001, None) && !full.make_room(20_001, Some("a")));
        assert_eq!(left(&full), ["a", "b", "c"], "nothing is dropped without need");
        full.keep(state("d", 10_000));
        assert!(full.get("d").is_none() && full.memory().n_bytes == 30_000);
        full.keep(state("a", 9_000));
        assert_eq!(full.memory(), ConversationMemory { n: 3, n_bytes: 29_000 }, "it replaces the old state");
        let mut none = store(0, &["a"]);
        assert!(none.get("a").is_none() && none.take("a").is_none() && none.memory() == ConversationMemory::default());
    }

    #[test]
    fn pinned_conversations_make_no_room() {
        let mut full = store(30_000, &["a", "b", "c"]);
        full.change("a", |conversation| conversation.is_pinned = true);
        assert!(full.make_room(10_000, None));
        assert_eq!(left(&full), ["a", "c"]);
        assert!(!full.make_room(25_000, None));
        assert!(full.get("a").is_some());
    }
}
