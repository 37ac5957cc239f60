//! Conversations: a slot holds the state of the one whose request ran there last. When another request needs the slot, the state goes to
//! memory, and comes back with the conversation's next request.

use std::sync::Arc;

use super::conversation_store::{ConversationState, sequence_bytes};
use super::slots::SlotPool;
use foredraft_base::error::{Code, Error, Result};

/// Prepares a free slot for a request of the conversation `name`, or of none.
pub(super) fn switch(pool: &mut SlotPool, index: usize, name: Option<&Arc<str>>) {
    let Some(slot) = pool.slots.get(index) else { return };
    if name.is_some() && slot.conversation.as_ref() == name {
        return;
    }
    put_away(pool, index, name.map(|name| &**name));
    let Some(name) = name else { return };
    // The newest request of a conversation has its name.
    let others = pool.slots.iter_mut().filter(|slot| slot.conversation.as_ref() == Some(name));
    others.for_each(|slot| slot.conversation = None);
    if let Some(state) = pool.conversations.take(name) {
        put_back(pool, index, &state);
    }
    if let Some(slot) = pool.slots.get_mut(index) {
        slot.conversation = Some(Arc::clone(name));
    }
}

/// Moves the state of the conversation in a slot to memory, if there is room. `needed`: a conversation that stays there.
pub(super) fn put_away(pool: &mut SlotPool, index: usize, needed: Option<&str>) {
    let SlotPool { context, slots, drafters, conversations, .. } = pool;
    let Some(slot) = slots.get_mut(index) else { return };
    let Some(name) = slot.conversation.take().filter(|_| !slot.cache.is_empty()) else { return };
    let Ok(n_bytes) = slot.cache.state_size(context) else { return };
    let n_bytes = sequence_bytes(n_bytes, slot.cache.len()) + sequence_bytes(drafters.state_size(index), 0);
    if !conversations.make_room(n_bytes, needed) {
        return;
    }
    if let Ok(target) = slot.cache.save(context) {
        let (draft, lora, is_moved) = (drafters.save(index), slot.lora.clone(), slot.cache.is_moved());
        conversations.keep(name, ConversationState { target, draft, seed: slot.seed, lora, is_moved });
    }
}

fn put_back(pool: &mut SlotPool, index: usize, state: &ConversationState) {
    if make_room(pool, index, state.target.tokens.len()).is_err() {
        return;
    }
    let SlotPool { context, slots, drafters, .. } = pool;
    let Some(slot) = slots.get_mut(index) else { return };
    slot.cache.put_back(context, &state.target, state.is_moved);
    slot.lora.clone_from(&state.lora);
    (slot.seed, slot.loaded) = (state.seed, None);
    if let Some(draft) = &state.draft {
        drafters.load(index, draft);
    }
}

/// Where slots share their cells, empties the caches of free slots until a state fits into the slot `index`.
///
/// # Errors
/// It does not fit beside the requests that run.
pub(super) fn make_room(pool: &mut SlotPool, index: usize, n_tokens: usize) -> Result<()> {
    let Some(cells) = pool.shared_cells else { return Ok(()) };
    loop {
        let others = pool.slots.iter().filter(|slot| slot.index != index && !slot.cache.is_empty());
        let used: usize = others.clone().map(|slot| slot.cache.len()).sum();
        if used + n_tokens <= cells {
            return Ok(());
        }
        let idle = others.filter(|slot| slot.task.is_none()).min_by_key(|slot| slot.last_used);
        let full = || format!("{n_tokens} tokens do not fit beside the {used} of running requests into {cells}");
        let idle = idle.map(|slot| slot.index).ok_or_else(|| Error::new(Code::ContextFull, full()))?;
        put_away(pool, idle, None);
        pool.clear_cache(idle);
    }
}
