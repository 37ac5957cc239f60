//! Calls of the host that concern conversations by name, wherever their states are.

use super::conversation_store::{
    ConversationAction, ConversationAnswer, ConversationEntry, ConversationJob, ConversationPlace, ConversationState,
    Rewind,
};
use super::conversations::copy_out;
use super::preemption::PreemptedTask;
use super::slots::{Slot, SlotPool};
use crate::session::Conversation;
use foredraft_base::error::{Code, Error, Result};

/// Does a job, and sends the answer.
pub(super) fn serve(pool: &mut SlotPool, preempted: &mut [PreemptedTask], job: ConversationJob) {
    let ConversationJob { name, action, reply } = job;
    let mut calls = ConversationCalls { pool, preempted };
    // The caller may be gone.
    let _ = reply.send(calls.act(name.as_deref(), action));
}

struct ConversationCalls<'a> {
    pool: &'a mut SlotPool,
    preempted: &'a mut [PreemptedTask],
}

impl ConversationCalls<'_> {
    fn act(&mut self, name: Option<&str>, action: ConversationAction) -> Result<ConversationAnswer> {
        let Some(name) = name else { return Ok(ConversationAnswer { conversations: self.list() }) };
        let before = self.find(name)?;
        let after = match action {
            ConversationAction::List => before,
            ConversationAction::Drop => {
                self.forget(name);
                before
            }
            ConversationAction::Fork(to) => {
                self.fork(name, &to)?;
                self.find(&to)?
            }
            ConversationAction::Pin(is_pinned) => {
                self.all_mut(name).for_each(|conversation| conversation.is_pinned = is_pinned);
                self.find(name)?
            }
            ConversationAction::Rewind(rewind) => self.rewind(before, rewind)?,
        };
        Ok(ConversationAnswer { conversations: vec![after] })
    }

    /// All conversations, by name.
    fn list(&self) -> Vec<ConversationEntry> {
        let in_slots = self.pool.slots.iter().filter_map(|slot| in_slot(slot, slot.conversation.as_ref()?));
        let preempted = self.preempted.iter().filter_map(in_preempted);
        let in_memory = self.pool.conversations.iter().map(|(state, n_bytes)| in_memory(state, n_bytes));
        let mut all: Vec<ConversationEntry> = in_slots.chain(preempted).chain(in_memory).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        // A preempted request and a later one can have the same conversation, of which the slot's is the newest.
        all.dedup_by(|one, other| one.name == other.name);
        all
    }

    fn find(&self, name: &str) -> Result<ConversationEntry> {
        let slot = self.pool.slots.iter().find(|slot| slot.has_conversation(name));
        let in_slots = slot.and_then(|slot| in_slot(slot, slot.conversation.as_ref()?));
        let preempted = || self.preempted.iter().filter_map(in_preempted).find(|info| info.name == name);
        let in_memory = || self.pool.conversations.get(name).map(|state| in_memory(state, state.n_bytes()));
        let missing = || Error::new(Code::NotFound, format!("conversation: there is none with the name {name:?}"));
        in_slots.or_else(preempted).or_else(in_memory).ok_or_else(missing)
    }

    /// The conversation `name` in every place that has it.
    fn all_mut(&mut self, name: &str) -> impl Iterator<Item = &mut Conversation> {
        let SlotPool { slots, conversations, .. } = &mut *self.pool;
        let in_slots = slots.iter_mut().filter_map(|slot| slot.conversation.as_mut());
        let preempted = self.preempted.iter_mut().filter_map(|preempted| preempted.conversation.as_mut());
        let all = in_slots.chain(preempted).filter(move |conversation| conversation.name == name);
        all.chain(conversations.get_mut(name))
    }

    /// Forgets a conversation. Its running requests go on without it.
    fn forget(&mut self, name: &str) {
        let is_it = |conversation: &mut Conversation| conversation.name == name;
        self.pool.slots.iter_mut().for_each(|slot| drop(slot.conversation.take_if(is_it)));
        self.preempted.iter_mut().for_each(|preempted| drop(preempted.conversation.take_if(is_it)));
        self.pool.conversations.take(name);
    }

    /// Gives the conversation `to` a copy of the state of `name`, as far as that is decoded.
    fn fork(&mut self, name: &str, to: &str) -> Result<()> {
        if self.find(to).is_ok_and(|other| other.is_running) {
            return Err(Error::invalid(format!("to: a request of the conversation {to:?} runs")));
        }
        if name == to {
            return Err(Error::invalid(format!("to: expected another name, got {to:?}")));
        }
        let state = self.copy(name)?;
        self.forget(to);
        let conversation = Conversation { name: to.to_owned(), is_pinned: false, ..state.conversation };
        self.pool.conversations.keep(ConversationState { conversation, ..state });
        Ok(())
    }

    /// A copy of a conversation's state, for which memory has room.
    fn copy(&mut self, name: &str) -> Result<ConversationState> {
        let full =
            |n_bytes: usize| Error::exhausted(format!("cache_ram_mb: has no room for the {n_bytes} bytes of {name:?}"));
        let empty = || {
            Error::invalid(format!(
                "conversation: {name:?} has no state yet: its request waits for a slot, or has just begun"
            ))
        };
        let SlotPool { slots, conversations, .. } = &mut *self.pool;
        if let Some(slot) = slots.iter_mut().find(|slot| slot.has_conversation(name)) {
            let (index, n_tokens) = (slot.index, slot.cache.len());
            let conversation = slot.conversation.clone().unwrap_or_default();
            let copy = copy_out(self.pool, index, conversation, None)?;
            return copy.ok_or_else(|| if n_tokens == 0 { empty() } else { full(n_tokens) });
        }
        let n_bytes = conversations.get(name).ok_or_else(empty)?.n_bytes();
        if !conversations.make_room(n_bytes, Some(name)) {
            return Err(full(n_bytes));
        }
        conversations.get(name).cloned().ok_or_else(empty)
    }

    /// Cuts a conversation back. Returns it afterwards.
    fn rewind(&mut self, before: ConversationEntry, rewind: Rewind) -> Result<ConversationEntry> {
        let name = &before.name;
        if before.is_running {
            return Err(Error::invalid(format!("conversation: a request of {name:?} runs")));
        }
        let (given, most, n_tokens) = match rewind {
            Rewind::Token(n) => {
                (format!("token: expected 0 to {}, got {n}", before.n_tokens), before.n_tokens, Some(n))
            }
            Rewind::Turn(n) => {
                let ends = self.all_mut(name).next().map(|conversation| conversation.turns.clone()).unwrap_or_default();
                let end = if n == 0 { Some(0) } else { ends.get(n - 1).copied() };
                (format!("turn: expected 0 to {}, got {n}", ends.len()), before.n_tokens, end)
            }
        };
        let n_tokens = n_tokens.filter(|n_tokens| *n_tokens <= most).ok_or_else(|| Error::invalid(given))?;
        let SlotPool { context, slots, conversations, .. } = &mut *self.pool;
        let n_tokens = match slots.iter_mut().find(|slot| slot.has_conversation(name)) {
            Some(slot) => slot.cache.cut(context, n_tokens),
            None => n_tokens,
        };
        if n_tokens == 0 {
            // There is no state of no tokens.
            slots.iter_mut().filter(|slot| slot.has_conversation(name)).for_each(|slot| slot.conversation = None);
            conversations.take(name);
            return Ok(ConversationEntry { n_tokens: 0, n_turns: 0, n_bytes: 0, ..before });
        }
        self.all_mut(name).for_each(|conversation| {
            conversation.n_tokens = n_tokens;
            conversation.keep_turns(n_tokens);
        });
        self.find(name)
    }
}

fn in_slot(slot: &Slot, conversation: &Conversation) -> Option<ConversationEntry> {
    Some(ConversationEntry {
        name: conversation.name.clone(),
        place: ConversationPlace::Slot(slot.index),
        n_tokens: slot.cache.len(),
        n_turns: conversation.turns.len(),
        n_bytes: 0,
        is_pinned: conversation.is_pinned,
        is_running: slot.task.is_some(),
    })
}

fn in_preempted(preempted: &PreemptedTask) -> Option<ConversationEntry> {
    let conversation = preempted.conversation.as_ref()?;
    Some(ConversationEntry {
        name: conversation.name.clone(),
        place: ConversationPlace::Preempted,
        n_tokens: preempted.state.as_ref().map_or(0, |state| state.tokens.len()),
        n_turns: conversation.turns.len(),
        n_bytes: 0,
        is_pinned: conversation.is_pinned,
        is_running: true,
    })
}

fn in_memory(ConversationState { conversation, .. }: &ConversationState, n_bytes: usize) -> ConversationEntry {
    ConversationEntry {
        name: conversation.name.clone(),
        place: ConversationPlace::Memory,
        n_tokens: conversation.n_tokens,
        n_turns: conversation.turns.len(),
        n_bytes,
        is_pinned: conversation.is_pinned,
        is_running: false,
    }
}
