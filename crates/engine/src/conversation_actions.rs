//! The actions of a host on conversations, as plain data.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::conversation_files::{ConversationFiles, ConversationState};
use crate::session::{ConversationRecord, Session};
use foredraft_base::error::{Code, Error, Result};

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
    /// Copies its state for a file.
    Copy,
    /// Replaces its state by that of a file.
    Put(Box<(Session, Option<ConversationRecord>)>),
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
    /// Where more of them may be, for a list.
    pub(super) files: Option<Arc<ConversationFiles>>,
    /// The copied state.
    pub(super) state: Option<ConversationState>,
}

/// The error for a conversation that does not exist.
pub(super) fn missing(name: &str) -> Error {
    Error::new(Code::NotFound, format!("conversation: there is none with the name {name:?}"))
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
    /// The bytes of its state in memory, or of its file; 0 in a slot.
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
    /// On disk.
    Disk,
}

impl ConversationEntry {
    /// The conversation at a place.
    pub(super) fn of(
        conversation: &ConversationRecord,
        place: ConversationPlace,
        n_tokens: usize,
    ) -> ConversationEntry {
        ConversationEntry {
            name: conversation.name.clone(),
            place,
            n_tokens,
            n_turns: conversation.turns.len(),
            n_bytes: 0,
            is_pinned: conversation.is_pinned,
            is_running: place == ConversationPlace::Preempted,
        }
    }

    /// A conversation on disk, and the bytes of its file.
    pub(super) fn on_disk((conversation, n_bytes): &(ConversationRecord, u64)) -> ConversationEntry {
        let n_bytes = usize::try_from(*n_bytes).unwrap_or(usize::MAX);
        ConversationEntry {
            n_bytes,
            ..ConversationEntry::of(conversation, ConversationPlace::Disk, conversation.n_tokens)
        }
    }
}
