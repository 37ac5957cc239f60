//! The states of conversations on disk: a session file for each, whose name is a hash of the conversation's name and of the model, its
//! adapters and its context. So any text names a file, and models can share a folder. Files are replaced completely or left unchanged. Those
//! unused for longest are removed when all of the folder would have more bytes than the limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

use super::chunk_pool::ChunkPool;
use crate::session::{ConversationRecord, MAX_CHECKPOINTS, Session};
use foredraft_base::error::{Error, Result};
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

/// The most bytes of a sequence with a state, which includes those of its checkpoints, and tokens.
pub(super) fn sequence_bytes(n_state: usize, n_tokens: usize) -> usize {
    ChunkPool::most_bytes(n_state, 1 + MAX_CHECKPOINTS) + n_tokens * size_of::<i32>() + OVERHEAD
}

/// The bytes of a conversation beside its sequences.
pub(super) fn name_bytes(conversation: &ConversationRecord) -> usize {
    conversation.name.len() * 3 + conversation.turns.capacity() * size_of::<usize>()
}

impl ConversationState {
    /// The most bytes that it takes in memory, if it has nothing in common with others.
    pub(super) fn n_bytes(&self) -> usize {
        let all = [Some(&self.session.target), self.session.draft.as_ref()].into_iter().flatten();
        let sequences = all.map(|part| {
            let checkpoints: usize = part.checkpoints.iter().map(|(_, state)| state.len()).sum();
            sequence_bytes(part.state.capacity() + checkpoints, part.tokens.capacity())
        });
        sequences.sum::<usize>() + name_bytes(&self.conversation)
    }

    /// The states of its sequences and their checkpoints, always in the same order.
    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        let parts = std::iter::once(&mut self.session.target).chain(&mut self.session.draft);
        parts.flat_map(|part| {
            let checkpoints = part.checkpoints.iter_mut().map(|(_, state)| Arc::make_mut(state));
            std::iter::once(&mut part.state).chain(checkpoints)
        })
    }
}

/// A folder of conversations of a model and a kind of context.
pub(super) struct ConversationFiles {
    folder: PathBuf,
    /// The most bytes of all files, of other models too. `None`: no limit.
    limit: Option<u64>,
    /// A hash of what a state must have in common with the engine.
    identity: u64,
}

impl ConversationFiles {
    /// `identity`: that of the states, see [`Snapshot`](foredraft_base::Snapshot).
    pub(super) fn new(folder: PathBuf, limit: Option<u64>, identity: &[(String, String)]) -> ConversationFiles {
        let mut hash = Xxh3::new();
        for text in identity.iter().flat_map(|(name, value)| [name, value]) {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        ConversationFiles { folder, limit, identity: hash.digest() }
    }

    fn path(&self, name: &str) -> PathBuf {
        let mut hash = Xxh3::new();
        hash.update(name.as_bytes());
        self.folder.join(format!("{:016x}-{:032x}.{EXTENSION}", self.identity, hash.digest128()))
    }

    /// Writes a conversation. If that fails, the log has the reason, and an older file stays.
    pub(super) fn write(&self, ConversationState { conversation, session, .. }: &ConversationState) {
        let path = self.path(&conversation.name);
        let written = session.write_of(Some(conversation), &path, |n_bytes| self.make_room(n_bytes, &path));
        written.err().iter().for_each(|error| warn(&conversation.name, error));
    }

    /// Removes the files unused for longest until there is room for so many bytes, except for those of pinned conversations. `replaced`:
    /// the file that is written anew, which does not count.
    ///
    /// # Errors
    /// There is no room.
    fn make_room(&self, n_bytes: u64, replaced: &Path) -> Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        let used = |path: PathBuf| {
            let metadata = fs::metadata(&path).ok()?;
            Some((metadata.modified().ok(), path, metadata.len()))
        };
        let mut files: Vec<_> = self.paths("").filter(|path| path != replaced).filter_map(used).collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(.., n_bytes)| n_bytes).sum();
        for (_, path, n_old) in files {
            if n_bytes > limit || total.saturating_add(n_bytes) <= limit {
                break;
            }
            let is_pinned = Session::conversation_of(&path).is_ok_and(|found| found.is_some_and(|it| it.is_pinned));
            if !is_pinned && fs::remove_file(&path).is_ok() {
                total -= n_old;
            }
        }
        match total.saturating_add(n_bytes) <= limit {
            true => Ok(()),
            false => Err(Error::exhausted(format!("cache_dir_mb: has no room for the {n_bytes} bytes of the file"))),
        }
    }

    /// The files whose names begin with `prefix`.
    fn paths(&self, prefix: &str) -> impl Iterator<Item = PathBuf> {
        let names = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        names.filter(move |path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(prefix) && !name.starts_with('.'))
                && path.extension().is_some_and(|extension| extension == EXTENSION)
        })
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
        // Only the order in which files are removed depends on it.
        let _ = fs::OpenOptions::new().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
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
        self.paths(&format!("{:016x}-", self.identity)).filter_map(|path| found(&path)).collect()
    }
}

fn found(path: &Path) -> Option<(ConversationRecord, u64)> {
    let size = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
    Some((Session::conversation_of(path).ok()??, size))
}

fn warn(name: &str, error: &Error) {
    log::write(Level::Warn, &format!("cache_dir: conversation {name:?}: {error}; its prompt is decoded again"));
}
