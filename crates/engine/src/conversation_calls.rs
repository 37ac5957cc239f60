//! Calls of the host that concern conversations by name, wherever their states are.

use std::sync::Arc;

use super::conversation_actions::{
    ConversationAction, ConversationAnswer, ConversationEntry, ConversationJob, ConversationPlace, Rewind, missing,
};
use super::conversation_files::ConversationState;
use super::conversations::{check_session, copy_bytes, copy_out};
use super::preemption::PreemptedTask;
use super::slots::{Slot, SlotPool};
use crate::session::{ConversationRecord, Session};
use foredraft_base::error::{Error, Result};

/// Does a job, and sends the answer. Returns the job if it has to wait for the disk.
pub(super) fn serve(
    pool: &mut SlotPool,
    preempted: &mut [PreemptedTask],
    job: ConversationJob,
) -> Option<ConversationJob> {
    if pool.conversations.disk_is_busy() {
        return Some(job);
    }
    let mut calls = ConversationCalls { pool, preempted };
    if let Some(name) =
        job.name.as_deref().filter(|_| !matches!(job.action, ConversationAction::List | ConversationAction::Put(_)))
        && calls.find(name).is_err()
        && !calls.pool.conversations.fetch(name)
    {
        return Some(job);
    }
    let ConversationJob { name, action, reply } = job;
    // The caller may be gone.
    let _ = reply.send(calls.act(name.as_deref(), action));
    None
}

struct ConversationCalls<'a> {
    pool: &'a mut SlotPool,
    preempted: &'a mut [PreemptedTask],
}

impl ConversationCalls<'_> {
    fn act(&mut self, name: Option<&str>, action: ConversationAction) -> Result<ConversationAnswer> {
        let files = || self.pool.conversations.disk.as_ref().map(|disk| Arc::clone(&disk.files));
        let Some(name) = name else {
            return Ok(ConversationAnswer { files: files(), conversations: self.list(), state: None });
        };
        let mut copied = None;
        if let ConversationAction::Put(session) = action {
            let conversations = vec![self.put(name, *session)?];
            return Ok(ConversationAnswer { conversations, ..ConversationAnswer::default() });
        }
        let before = match (self.find(name), files()) {
            // The caller looks on disk.
            (Err(_), Some(files)) if matches!(action, ConversationAction::List) => {
                return Ok(ConversationAnswer { files: Some(files), ..ConversationAnswer::default() });
            }
            (found, _) => found,
        };
        let after = match action {
            ConversationAction::Drop => {
                // Also a file that cannot be used.
                self.forget(name);
                before?
            }
            ConversationAction::List | ConversationAction::Put(_) => before?,
            ConversationAction::Copy => {
                copied = Some(self.copy(name)?);
                before?
            }
            ConversationAction::Fork(to) => self.fork(name, &to)?,
            ConversationAction::Pin(is_pinned) => {
                before?;
                self.change(name, |conversation| conversation.is_pinned = is_pinned);
                self.find(name)?
            }
            ConversationAction::Rewind(rewind) => self.rewind(before?, rewind)?,
        };
        Ok(ConversationAnswer { conversations: vec![after], files: None, state: copied })
    }

    /// All conversations, by name.
    fn list(&self) -> Vec<ConversationEntry> {
        let in_slots = self.pool.slots.iter().filter_map(in_slot);
        let preempted = self.preempted.iter().filter_map(in_preempted);
        let in_memory =
            self.pool.conversations.iter().map(|(record, n_bytes)| kept_in(ConversationPlace::Memory, record, n_bytes));
        let mut all: Vec<ConversationEntry> = in_slots.chain(preempted).chain(in_memory).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        // A preempted request and a later one can have the same conversation, of which the slot's is the newest.
        all.dedup_by(|one, other| one.name == other.name);
        all
    }

    fn find(&self, name: &str) -> Result<ConversationEntry> {
        let slot = self.pool.slots.iter().find(|slot| slot.has_conversation(name));
        let in_slots = slot.and_then(in_slot);
        let preempted = || self.preempted.iter().filter_map(in_preempted).find(|info| info.name == name);
        let kept = || self.pool.conversations.get(name).map(|(record, n_bytes, place)| kept_in(place, record, n_bytes));
        in_slots.or_else(preempted).or_else(kept).ok_or_else(|| missing(name))
    }

    /// Changes the conversation `name` in every place that has it, and on disk where no other has it.
    fn change(&mut self, name: &str, change: impl Fn(&mut ConversationRecord)) {
        let SlotPool { slots, conversations, .. } = &mut *self.pool;
        let in_slots = slots.iter_mut().filter_map(|slot| slot.conversation.as_mut());
        let preempted = self.preempted.iter_mut().filter_map(|preempted| preempted.conversation.as_mut());
        let mut all = in_slots.chain(preempted).filter(|conversation| conversation.name == name).peekable();
        let is_elsewhere = all.peek().is_some();
        all.for_each(&change);
        if !is_elsewhere || conversations.get(name).is_some() {
            conversations.change(name, change);
        }
    }

    /// Forgets a conversation. Its running requests go on without it.
    fn forget(&mut self, name: &str) {
        let is_it = |conversation: &mut ConversationRecord| conversation.name == name;
        self.pool.slots.iter_mut().for_each(|slot| drop(slot.conversation.take_if(is_it)));
        self.preempted.iter_mut().for_each(|preempted| drop(preempted.conversation.take_if(is_it)));
        self.pool.conversations.forget(name);
    }

    /// Gives the conversation `to` a copy of the state of `name`, as far as that is decoded.
    fn fork(&mut self, name: &str, to: &str) -> Result<ConversationEntry> {
        if name == to {
            return Err(Error::invalid(format!("to: expected another name, got {to:?}")));
        }
        self.check_idle("to", to)?;
        let slot = self.pool.slots.iter().find(|slot| slot.has_conversation(name));
        let n_bytes = match slot.map(|slot| (slot.index, slot.conversation.clone().unwrap_or_default())) {
            Some((index, conversation)) => copy_bytes(self.pool, index, &conversation),
            None => self.pool.conversations.get(name).map_or(0, |(_, n_bytes, _)| n_bytes),
        };
        if !self.pool.conversations.can_keep(n_bytes, Some(name)) {
            return Err(no_room(n_bytes));
        }
        let state = self.copy(name)?;
        self.forget(to);
        let conversation = ConversationRecord { name: to.to_owned(), is_pinned: false, ..state.conversation };
        self.keep(ConversationState { conversation, ..state })
    }

    /// Replaces the state of a conversation by that of a file.
    fn put(
        &mut self,
        name: &str,
        (session, conversation): (Session, Option<ConversationRecord>),
    ) -> Result<ConversationEntry> {
        self.check_idle("conversation", name)?;
        check_session(self.pool, 0, &session)?;
        let n_tokens = session.target.tokens.len();
        let conversation = conversation.unwrap_or(ConversationRecord { n_tokens, ..ConversationRecord::default() });
        let conversation = ConversationRecord { name: name.to_owned(), is_pinned: false, ..conversation };
        let state = ConversationState { conversation, session, is_from_file: true };
        if !self.pool.conversations.can_keep(state.n_bytes(), None) {
            return Err(no_room(state.n_bytes()));
        }
        self.forget(name);
        self.keep(state)
    }

    fn keep(&mut self, state: ConversationState) -> Result<ConversationEntry> {
        let n_bytes = state.n_bytes();
        let entry = kept_in(ConversationPlace::Memory, &state.conversation, n_bytes);
        let place = self.pool.conversations.keep(state).ok_or_else(|| no_room(n_bytes))?;
        Ok(ConversationEntry { place, ..entry })
    }

    /// Fails if a request of the conversation runs. `key`: that of the name.
    fn check_idle(&self, key: &str, name: &str) -> Result<()> {
        match self.find(name) {
            Ok(found) if found.is_running => Err(Error::invalid(format!("{key}: a request of {name:?} runs"))),
            _ => Ok(()),
        }
    }

    /// A copy of a conversation's state.
    fn copy(&mut self, name: &str) -> Result<ConversationState> {
        let empty = || {
            let message = "has no state yet: its request waits for a slot, or has just begun";
            Error::invalid(format!("conversation: {name:?} {message}"))
        };
        if let Some(slot) = self.pool.slots.iter().find(|slot| slot.has_conversation(name)) {
            let conversation = slot.conversation.clone().filter(|_| !slot.cache.is_empty()).ok_or_else(empty)?;
            return copy_out(self.pool, slot.index, conversation);
        }
        if self.find(name)?.is_running {
            return Err(empty());
        }
        self.pool.conversations.copy(name).ok_or_else(empty)
    }

    /// Cuts a conversation back. Returns it afterwards.
    fn rewind(&mut self, before: ConversationEntry, rewind: Rewind) -> Result<ConversationEntry> {
        let name = &before.name;
        self.check_idle("conversation", name)?;
        let (given, most, n_tokens) = match rewind {
            Rewind::Token(n) => {
                (format!("token: expected 0 to {}, got {n}", before.n_tokens), before.n_tokens, Some(n))
            }
            Rewind::Turn(n) => {
                let ends = self.turns(name);
                let end = if n == 0 { Some(0) } else { ends.get(n - 1).copied() };
                (format!("turn: expected 0 to {}, got {n}", ends.len()), before.n_tokens, end)
            }
        };
        let n_tokens = n_tokens.filter(|n_tokens| *n_tokens <= most).ok_or_else(|| Error::invalid(given))?;
        let SlotPool { context, slots, .. } = &mut *self.pool;
        let n_tokens = match slots.iter_mut().find(|slot| slot.has_conversation(name)) {
            Some(slot) => slot.cache.cut(context, n_tokens),
            None => n_tokens,
        };
        if n_tokens == 0 {
            // There is no state of no tokens.
            self.forget(name);
            return Ok(ConversationEntry { n_tokens: 0, n_turns: 0, n_bytes: 0, ..before });
        }
        self.change(name, |conversation| {
            conversation.n_tokens = n_tokens;
            conversation.keep_turns(n_tokens);
        });
        self.find(name)
    }

    /// The ends of the turns of a conversation that does not run.
    fn turns(&self, name: &str) -> Vec<usize> {
        let slot = self.pool.slots.iter().find(|slot| slot.has_conversation(name));
        let known = slot.and_then(|slot| slot.conversation.as_ref());
        let known = known.or_else(|| Some(self.pool.conversations.get(name)?.0));
        known.map(|conversation| conversation.turns.clone()).unwrap_or_default()
    }
}

fn no_room(n_bytes: usize) -> Error {
    Error::exhausted(format!("cache_ram_mb: has no room for the {n_bytes} bytes of the state"))
}

fn in_slot(slot: &Slot) -> Option<ConversationEntry> {
    let conversation = slot.conversation.as_ref()?;
    let entry = ConversationEntry::of(conversation, ConversationPlace::Slot(slot.index), slot.cache.len());
    Some(ConversationEntry { is_running: slot.task.is_some(), ..entry })
}

fn in_preempted(preempted: &PreemptedTask) -> Option<ConversationEntry> {
    let n_tokens = preempted.state.as_ref().map_or(0, |state| state.tokens.len());
    Some(ConversationEntry::of(preempted.conversation.as_ref()?, ConversationPlace::Preempted, n_tokens))
}

fn kept_in(place: ConversationPlace, conversation: &ConversationRecord, n_bytes: usize) -> ConversationEntry {
    ConversationEntry { n_bytes, ..ConversationEntry::of(conversation, place, conversation.n_tokens) }
}
