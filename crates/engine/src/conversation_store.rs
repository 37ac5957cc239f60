//! The states of conversations that no slot holds, in memory, up to a limit, and beyond it on disk.

use std::collections::HashMap;
use std::sync::Arc;

use super::conversation_files::{ConversationFiles, ConversationState};
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
    pub(super) files: Option<Arc<ConversationFiles>>,
}

struct KeptConversation {
    state: ConversationState,
    n_bytes: usize,
    last_used: u64,
}

impl ConversationStore {
    pub(super) fn new(limit: usize, files: Option<ConversationFiles>) -> ConversationStore {
        ConversationStore { limit, n_bytes: 0, n_uses: 0, kept: HashMap::new(), files: files.map(Arc::new) }
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
            if let (Some(files), Some(oldest)) = (&self.files, oldest) {
                files.write(&oldest);
            }
        }
        true
    }

    /// Whether a state of so many bytes can be kept: in memory, after [`ConversationStore::make_room`], or on disk.
    pub(super) fn can_keep(&mut self, n_bytes: usize, needed: Option<&str>) -> bool {
        self.make_room(n_bytes, needed) || self.files.is_some()
    }

    /// Keeps a conversation, if there is room for it in memory, else on disk. Returns whether it is kept.
    pub(super) fn keep(&mut self, state: ConversationState) -> bool {
        let name = state.conversation.name.clone();
        self.take_from_memory(&name);
        let n_bytes = state.n_bytes();
        if self.n_bytes + n_bytes > self.limit {
            return self.files.as_ref().is_some_and(|files| files.write(&state));
        }
        self.n_uses += 1;
        self.n_bytes += n_bytes;
        self.kept.insert(name, KeptConversation { state, n_bytes, last_used: self.n_uses });
        true
    }

    /// Writes all conversations in memory to disk, if there is a folder for them.
    pub(super) fn write_all(&mut self) {
        if let Some(files) = &self.files {
            self.kept.values().for_each(|kept| _ = files.write(&kept.state));
        }
    }

    /// The conversations in memory, with their bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConversationState, usize)> {
        self.kept.values().map(|kept| (&kept.state, kept.n_bytes))
    }

    /// A conversation in memory.
    pub(super) fn get(&self, name: &str) -> Option<&ConversationState> {
        self.kept.get(name).map(|kept| &kept.state)
    }

    /// Changes a conversation in memory or on disk, if there is one: its turns may only become fewer.
    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut ConversationRecord)) {
        if let Some(kept) = self.kept.get_mut(name) {
            change(&mut kept.state.conversation);
        } else if let Some(files) = &self.files
            && let Some(mut state) = files.read(name)
        {
            change(&mut state.conversation);
            files.write(&state);
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.kept.contains_key(name) || self.files.as_ref().is_some_and(|files| files.has(name))
    }

    /// Takes a conversation out of memory, or reads it. A file stays: an older state is better than none.
    pub(super) fn take(&mut self, name: &str) -> Option<ConversationState> {
        self.take_from_memory(name).or_else(|| self.files.as_ref()?.read(name))
    }

    fn take_from_memory(&mut self, name: &str) -> Option<ConversationState> {
        let kept = self.kept.remove(name)?;
        self.n_bytes -= kept.n_bytes;
        Some(kept.state)
    }

    /// Forgets a conversation, in memory and on disk.
    pub(super) fn forget(&mut self, name: &str) {
        self.take_from_memory(name);
        if let Some(files) = &self.files {
            files.remove(name);
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
        ["a", "b", "c"].into_iter().filter(|name| store.has(name)).collect()
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
        assert!(!full.has("d") && full.memory().n_bytes == 30_000);
        full.keep(state("a", 9_000));
        assert_eq!(full.memory(), ConversationMemory { n: 3, n_bytes: 29_000 }, "it replaces the old state");
        let mut none = store(0, &["a"]);
        assert!(!none.has("a") && none.take("a").is_none() && none.memory() == ConversationMemory::default());
    }

    #[test]
    fn pinned_conversations_make_no_room() {
        let mut full = store(30_000, &["a", "b", "c"]);
        full.change("a", |conversation| conversation.is_pinned = true);
        assert!(full.make_room(10_000, None));
        assert_eq!(left(&full), ["a", "c"]);
        assert!(!full.make_room(25_000, None));
        assert!(full.has("a"));
    }
}
