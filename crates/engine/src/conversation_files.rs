//! The states of conversations on disk: a session file for each, whose name is a hash of the conversation's name and of the model, its
//! adapters and its context. So any text names a file, and models can share a folder. Files are replaced completely or left unchanged.

use std::fs;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::session::{ConversationRecord, Session};
use foredraft_base::error::Error;
use foredraft_llama::log::{self, Level};

/// The end of the names of the files.
const EXTENSION: &str = "conversation";

/// Bytes of a conversation beside its states, tokens, turns and name, at most: the names of properties, the entry.
pub(super) const OVERHEAD: usize = 4096;

/// The state of a conversation that no slot has.
#[derive(Clone)]
pub(super) struct ConversationState {
    pub(super) conversation: ConversationRecord,
    pub(super) session: Session,
    /// Whether the state comes from a file, so that it is checked when a slot gets it.
    pub(super) is_from_file: bool,
}

/// The bytes of a sequence with this state and these tokens.
pub(super) fn sequence_bytes(n_state: usize, n_tokens: usize) -> usize {
    n_state + n_tokens * size_of::<i32>() + OVERHEAD
}

/// The bytes of a conversation beside its sequences.
pub(super) fn name_bytes(conversation: &ConversationRecord) -> usize {
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

/// A folder of conversations of a model and a kind of context.
pub(super) struct ConversationFiles {
    folder: PathBuf,
    /// A hash of what a state must have in common with the engine.
    identity: u64,
}

impl ConversationFiles {
    /// `identity`: that of the states, see [`Snapshot`](foredraft_base::Snapshot).
    pub(super) fn new(folder: PathBuf, identity: &[(String, String)]) -> ConversationFiles {
        let mut hash = Xxh3::new();
        for text in identity.iter().flat_map(|(name, value)| [name, value]) {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        ConversationFiles { folder, identity: hash.digest() }
    }

    fn path(&self, name: &str) -> PathBuf {
        let mut hash = Xxh3::new();
        hash.update(name.as_bytes());
        self.folder.join(format!("{:016x}-{:032x}.{EXTENSION}", self.identity, hash.digest128()))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.path(name).is_file()
    }

    /// Writes a conversation. Returns whether that succeeded; otherwise the log has the reason, and an older file stays.
    pub(super) fn write(&self, ConversationState { conversation, session, .. }: &ConversationState) -> bool {
        let written = session.write_of(Some(conversation), &self.path(&conversation.name));
        written.as_ref().err().into_iter().for_each(|error| warn(&conversation.name, error));
        written.is_ok()
    }

    /// Reads a conversation. `None`: there is none, or its file cannot be used, which the log says.
    pub(super) fn read(&self, name: &str) -> Option<ConversationState> {
        let path = self.path(name);
        if !path.is_file() {
            return None;
        }
        let read = Session::read_of(&path).and_then(|(session, conversation)| match conversation {
            Some(conversation) if conversation.name == name => {
                Ok(ConversationState { conversation, session, is_from_file: true })
            }
            _ => Err(Error::invalid(format!("{}: is of another conversation", path.display()))),
        });
        read.inspect_err(|error| warn(name, error)).ok()
    }

    /// Removes the file of a conversation, if there is one.
    pub(super) fn remove(&self, name: &str) {
        // Nothing can be done about a file that stays: its conversation is listed again.
        let _ = fs::remove_file(self.path(name));
    }

    /// The conversation of a name, without its state, and the bytes of its file. `None`: there is none that can be used.
    pub(super) fn find(&self, name: &str) -> Option<(ConversationRecord, u64)> {
        found(&self.path(name)).filter(|(conversation, _)| conversation.name == name)
    }

    /// All conversations of this model and kind of context, without their states, and the bytes of their files.
    pub(super) fn list(&self) -> Vec<(ConversationRecord, u64)> {
        let prefix = format!("{:016x}-", self.identity);
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with(EXTENSION))
        });
        files.filter_map(|entry| found(&entry.path())).collect()
    }
}

fn found(path: &Path) -> Option<(ConversationRecord, u64)> {
    let size = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
    Some((Session::conversation_of(path).ok()??, size))
}

fn warn(name: &str, error: &Error) {
    log::write(Level::Warn, &format!("cache_dir: conversation {name:?}: {error}; its prompt is decoded again"));
}
