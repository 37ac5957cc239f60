//! The states of conversations that no slot holds, in memory, up to a limit. Plain data.

use std::collections::HashMap;

use crossbeam_channel::Sender;

use crate::session::{Conversation, Session};
use foredraft_base::error::Result;

/// Bytes of a conversation beside its states, tokens, turns and name, at most: the names of properties, the entry.
const OVERHEAD: usize = 4096;

/// The state of a conversation that no slot has.
#[derive(Clone)]
pub(super) struct ConversationState {
    pub(super) conversation: Conversation,
    pub(super) session: Session,
    /// Whether the state comes from a file, so that it is checked when a slot gets it.
    pub(super) is_from_file: bool,
}

/// The bytes of a sequence with this state and these tokens.
pub(super) fn sequence_bytes(n_state: usize, n_tokens: usize) -> usize {
    n_state + n_tokens * size_of::<i32>() + OVERHEAD
}

/// The bytes of a conversation beside its sequences.
pub(super) fn name_bytes(conversation: &Conversation) -> usize {
    conversation.name.len() * 2 + conversation.turns.capacity() * size_of::<usize>()
}

impl ConversationState {
    pub(super) fn n_bytes(&self) -> usize {
        let all = [Some(&self.session.target), self.session.draft.as_ref()].into_iter().flatten();
        let sequences = all.map(|part| {
            let checkpoints: usize = part.checkpoints.iter().map(|(_, state)| state.len()).sum();
            sequence_bytes(part.state.capacity() + checkpoints, part.tokens.capacity())
        });
        sequences.sum::<usize>() + name_bytes(&self.conversation)
    }
}

/// Something to do with a conversation.
#[derive(Debug, Clone)]
pub enum ConversationAction {
    /// Describes it.
    List,
    /// Forgets its state.
    Drop,
    /// Gives this conversation a copy of its state.
    Fork(String),
    /// Pins it, or not.
    Pin(bool),
    /// Cuts its state back.
    Rewind(Rewind),
}

/// How far a conversation is cut back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rewind {
    /// To the end of this turn, counted from 1; 0: to the beginning.
    Turn(usize),
    /// To so many tokens.
    Token(usize),
}

/// An action for the engine's thread.
pub(super) struct ConversationJob {
    /// The conversation; `None`: all.
    pub(super) name: Option<String>,
    pub(super) action: ConversationAction,
    pub(super) reply: Sender<Result<ConversationAnswer>>,
}

/// The result of an action.
#[derive(Default)]
pub(super) struct ConversationAnswer {
    /// The conversations that it concerned, afterwards.
    pub(super) conversations: Vec<ConversationEntry>,
}

/// A conversation, seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationEntry {
    /// Its name.
    pub name: String,
    /// Where its state is.
    pub place: ConversationPlace,
    /// The tokens of its state.
    pub n_tokens: usize,
    /// Its turns.
    pub n_turns: usize,
    /// The bytes of its state in memory; 0 in a slot.
    pub n_bytes: usize,
    /// Whether it is pinned.
    pub is_pinned: bool,
    /// Whether a request of it runs, or ran until it was preempted.
    pub is_running: bool,
}

/// Where the state of a conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationPlace {
    /// In this slot.
    Slot(usize),
    /// With its preempted request.
    Preempted,
    /// In memory.
    Memory,
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
    kept: HashMap<String, KeptConversation>,
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

    /// Drops the conversations unused for longest until there is room for so many bytes. Returns whether there is. `needed` and those that
    /// are pinned stay.
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
            self.take(&oldest);
        }
        true
    }

    /// Keeps a conversation, if there is room for it.
    pub(super) fn keep(&mut self, state: ConversationState) {
        let name = state.conversation.name.clone();
        self.take(&name);
        let n_bytes = state.n_bytes();
        if self.n_bytes + n_bytes <= self.limit {
            self.n_uses += 1;
            self.n_bytes += n_bytes;
            self.kept.insert(name, KeptConversation { state, n_bytes, last_used: self.n_uses });
        }
    }

    /// The conversations, with their bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConversationState, usize)> {
        self.kept.values().map(|kept| (&kept.state, kept.n_bytes))
    }

    pub(super) fn get(&self, name: &str) -> Option<&ConversationState> {
        self.kept.get(name).map(|kept| &kept.state)
    }

    /// The conversation of a name, but for its turns, which may only become fewer.
    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Conversation> {
        self.kept.get_mut(name).map(|kept| &mut kept.state.conversation)
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
    use foredraft_base::Snapshot;

    fn state(name: &str, n_bytes: usize) -> ConversationState {
        let target = Snapshot {
            identity: Vec::new(),
            tokens: Vec::new(),
            blocks: 0,
            state: vec![0; n_bytes - OVERHEAD - 2 * name.len()],
            checkpoints: Vec::new(),
        };
        let session = Session { target, draft: None, seed: None, lora: Vec::new() };
        let conversation = Conversation { name: name.to_owned(), ..Conversation::default() };
        ConversationState { conversation, session, is_from_file: false }
    }

    fn store(limit: usize, names: &[&str]) -> ConversationStore {
        let mut store = ConversationStore::new(limit);
        names.iter().for_each(|name| store.keep(state(name, 10_000)));
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
        full.get_mut("a").unwrap().is_pinned = true;
        assert!(full.make_room(10_000, None));
        assert_eq!(left(&full), ["a", "c"]);
        assert!(!full.make_room(25_000, None));
        assert!(full.has("a"));
    }
}
