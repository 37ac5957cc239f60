//! The states of conversations that no slot holds, in memory, up to a limit. Plain data.

use std::collections::HashMap;
use std::sync::Arc;

use crate::session::SeedOrigin;
use foredraft_base::Snapshot;

/// Bytes of a conversation beside its states and tokens, at most: its name, the names of properties, the entry.
const OVERHEAD: usize = 4096;

/// The state of a conversation.
pub(super) struct ConversationState {
    pub(super) target: Snapshot,
    /// The draft model's, if there is one.
    pub(super) draft: Option<Snapshot>,
    pub(super) seed: Option<SeedOrigin>,
    pub(super) lora: Vec<f32>,
    /// Whether cells may depend on tokens that are not in the state.
    pub(super) is_moved: bool,
}

/// The bytes of a sequence with this state and these tokens.
pub(super) fn sequence_bytes(n_state: usize, n_tokens: usize) -> usize {
    n_state + n_tokens * size_of::<i32>() + OVERHEAD
}

impl ConversationState {
    fn n_bytes(&self) -> usize {
        let all = [Some(&self.target), self.draft.as_ref()].into_iter().flatten();
        all.map(|part| {
            let checkpoints: usize = part.checkpoints.iter().map(|(_, state)| state.len()).sum();
            sequence_bytes(part.state.capacity() + checkpoints, part.tokens.capacity())
        })
        .sum()
    }
}

/// A number of conversations in memory, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConversationMemory {
    /// Conversations.
    pub n: usize,
    /// Their bytes.
    pub n_bytes: usize,
}

/// Conversations by name. Together they never have more bytes than `limit`.
pub(super) struct ConversationStore {
    limit: usize,
    n_bytes: usize,
    /// Counts uses.
    n_uses: u64,
    kept: HashMap<Arc<str>, KeptConversation>,
}

struct KeptConversation {
    state: ConversationState,
    n_bytes: usize,
    last_used: u64,
}

impl ConversationStore {
    pub(super) fn new(limit: usize) -> ConversationStore {
        ConversationStore { limit, n_bytes: 0, n_uses: 0, kept: HashMap::new() }
    }

    /// Drops the conversations unused for longest until there is room for so many bytes. Returns whether there is. `needed` stays.
    pub(super) fn make_room(&mut self, n_bytes: usize, needed: Option<&str>) -> bool {
        let stays = needed.and_then(|name| self.kept.get(name)).map_or(0, |kept| kept.n_bytes);
        if n_bytes.saturating_add(stays) > self.limit {
            return false;
        }
        while self.n_bytes + n_bytes > self.limit {
            let others = self.kept.iter().filter(|(name, _)| Some(&***name) != needed);
            let Some(oldest) = others.min_by_key(|(_, kept)| kept.last_used).map(|(name, _)| Arc::clone(name)) else {
                return false;
            };
            self.take(&oldest);
        }
        true
    }

    /// Keeps a conversation, if there is room for it.
    pub(super) fn keep(&mut self, name: Arc<str>, state: ConversationState) {
        self.take(&name);
        let n_bytes = state.n_bytes();
        if self.n_bytes + n_bytes <= self.limit {
            self.n_uses += 1;
            self.n_bytes += n_bytes;
            self.kept.insert(name, KeptConversation { state, n_bytes, last_used: self.n_uses });
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.kept.contains_key(name)
    }

    /// Takes a conversation out.
    pub(super) fn take(&mut self, name: &str) -> Option<ConversationState> {
        let kept = self.kept.remove(name)?;
        self.n_bytes -= kept.n_bytes;
        Some(kept.state)
    }

    pub(super) fn memory(&self) -> ConversationMemory {
        ConversationMemory { n: self.kept.len(), n_bytes: self.n_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(n_bytes: usize) -> ConversationState {
        let target = Snapshot {
            identity: Vec::new(),
            tokens: Vec::new(),
            blocks: 0,
            state: vec![0; n_bytes - OVERHEAD],
            checkpoints: Vec::new(),
        };
        ConversationState { target, draft: None, seed: None, lora: Vec::new(), is_moved: false }
    }

    fn store(limit: usize, names: &[&str]) -> ConversationStore {
        let mut store = ConversationStore::new(limit);
        names.iter().for_each(|name| store.keep(Arc::from(*name), state(10_000)));
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
        full.keep("d".into(), state(10_000));
        assert!(!full.has("d") && full.memory().n_bytes == 30_000);
        full.keep("a".into(), state(9_000));
        assert_eq!(full.memory(), ConversationMemory { n: 3, n_bytes: 29_000 }, "it replaces the old state");
        let mut none = store(0, &["a"]);
        assert!(!none.has("a") && none.take("a").is_none() && none.memory() == ConversationMemory::default());
    }
}
