//! Conversations: a slot holds the state of the one whose request ran there last. When another request needs the slot, the state goes to
//! memory, and comes back with the conversation's next request.

use super::conversation_files::{ConversationState, name_bytes, sequence_bytes};
use super::slots::SlotPool;
use crate::session::{ConversationRecord, Session};
use foredraft_base::error::{Code, Error, Result};
use foredraft_base::prompt_fit::common_prefix;
use foredraft_llama::Token;
use foredraft_llama::log::{self, Level};

/// Prepares a free slot for a request of the conversation `name`, or of none, with this prompt.
pub(super) fn switch(pool: &mut SlotPool, index: usize, name: Option<&str>, prompt: &[Token]) {
    let Some(name) = name else { return put_away(pool, index, None) };
    if !pool.slots.get(index).is_some_and(|slot| slot.has_conversation(name)) {
        put_away(pool, index, Some(name));
        // The newest request of a conversation has its name.
        let others = pool.slots.iter_mut().filter(|slot| slot.has_conversation(name));
        others.for_each(|slot| slot.conversation = None);
        if let Some(state) = pool.conversations.take(name) {
            put_back(pool, index, state);
        }
    }
    let Some(slot) = pool.slots.get_mut(index) else { return };
    let new = || ConversationRecord { name: name.to_owned(), ..ConversationRecord::default() };
    slot.conversation.get_or_insert_with(new).keep_turns(common_prefix(&slot.cache, prompt));
}

/// Whether a request of the conversation `name`, or of none, can begin in a slot without waiting for the disk. Otherwise the reading of its
/// file has begun, or other jobs have to end before.
pub(super) fn is_ready(pool: &mut SlotPool, index: usize, name: Option<&str>) -> bool {
    if let Some(name) = name
        && !pool.slots.iter().any(|slot| slot.has_conversation(name))
        && !pool.conversations.fetch(name)
    {
        return false;
    }
    // A preempted request takes its state along; it is not kept here.
    let displaced = pool.slots.get(index).filter(|slot| slot.task.is_none()).and_then(|slot| slot.conversation.clone());
    displaced.filter(|conversation| Some(conversation.name.as_str()) != name).is_none_or(|conversation| {
        !pool.conversations.disk_is_busy() || {
            let n_bytes = copy_bytes(pool, index, &conversation);
            pool.conversations.keeps_at_once(n_bytes)
        }
    })
}

/// Moves the state of the conversation in a slot to memory or to disk, if there is room. `needed`: a conversation that stays in memory.
pub(super) fn put_away(pool: &mut SlotPool, index: usize, needed: Option<&str>) {
    let Some(conversation) = pool.slots.get_mut(index).and_then(|slot| slot.conversation.take()) else { return };
    let n_bytes = copy_bytes(pool, index, &conversation);
    // Without room, its tokens are decoded again.
    if n_bytes > 0
        && pool.conversations.can_keep(n_bytes, needed)
        && let Ok(state) = copy_out(pool, index, conversation)
    {
        pool.conversations.keep(state);
    }
}

/// The bytes of a copy of a slot's state for a conversation, at most; 0: the slot is empty.
pub(super) fn copy_bytes(pool: &mut SlotPool, index: usize, conversation: &ConversationRecord) -> usize {
    let SlotPool { context, slots, drafters, .. } = pool;
    let Some(slot) = slots.get_mut(index).filter(|slot| !slot.cache.is_empty()) else { return 0 };
    let Ok(n_state) = slot.cache.state_size(context) else { return 0 };
    let n_draft = sequence_bytes(drafters.state_size(index), 0);
    sequence_bytes(n_state, slot.cache.len()) + n_draft + name_bytes(conversation)
}

/// Writes what slots and memory have to disk, when the engine stops.
pub(super) fn write_all(pool: &mut SlotPool) {
    pool.conversations.write_all();
    if pool.conversations.disk.is_some() {
        for index in 0..pool.slots.len() {
            put_away(pool, index, None);
            pool.conversations.write_all();
        }
    }
}

/// Copies the state of a slot, for a conversation.
///
/// # Errors
/// The state cannot be copied.
pub(super) fn copy_out(
    pool: &mut SlotPool,
    index: usize,
    mut conversation: ConversationRecord,
) -> Result<ConversationState> {
    let SlotPool { context, slots, drafters, media, .. } = pool;
    let slot = slots.get_mut(index).ok_or_else(|| no_slot(index))?;
    (conversation.is_moved, conversation.n_tokens) = (slot.cache.is_moved(), slot.cache.len());
    let target = slot.cache.save(context)?;
    let media = media.get().map_or_else(Vec::new, |known| known.among(&target.tokens));
    let session = Session { target, draft: drafters.save(index), seed: slot.seed, lora: slot.lora.clone(), media };
    Ok(ConversationState { conversation, session, is_from_file: false })
}

/// Puts a conversation into a slot. Without success the slot is empty.
fn put_back(pool: &mut SlotPool, index: usize, state: ConversationState) {
    let ConversationState { conversation, mut session, is_from_file } = state;
    if is_from_file {
        if let Err(error) = put_session(pool, index, &mut session) {
            pool.clear_cache(index);
            log::write(Level::Warn, &format!("conversation: {}: {error}; it is decoded again", conversation.name));
        }
    } else if make_room(pool, index, session.target.tokens.len()).is_ok() {
        let SlotPool { context, slots, drafters, .. } = pool;
        let Some(slot) = slots.get_mut(index) else { return };
        slot.cache.put_back(context, &session.target, conversation.is_moved);
        (slot.seed, slot.lora) = (session.seed, session.lora);
        if let Some(draft) = &session.draft {
            drafters.load(index, draft);
        }
    }
    let Some(slot) = pool.slots.get_mut(index) else { return };
    slot.loaded = None;
    if conversation.is_moved {
        slot.cache.set_moved();
    }
    if conversation.n_tokens < slot.cache.len() {
        slot.cache.cut(&mut pool.context, conversation.n_tokens);
    }
    slot.conversation = Some(conversation);
}

/// Puts the sequences of a file into a slot. Everything is checked before anything is changed. Returns the tokens of the draft's sequence.
///
/// # Errors
/// They are another model's, do not fit, or are invalid.
pub(super) fn put_session(pool: &mut SlotPool, index: usize, session: &mut Session) -> Result<usize> {
    check_session(pool, index, session)?;
    if let Some(known) = pool.media.get() {
        known.adopt(&mut session.target.tokens, &mut session.media)?;
    }
    put_away(pool, index, None);
    make_room(pool, index, session.target.tokens.len())?;
    // Restoring decodes a token, with the scales that the session was saved with.
    let scales = pool.context.model().lora_scales();
    pool.context.set_adapters(if session.lora.len() == scales.len() { &session.lora } else { &scales });
    let slot = pool.slots.get_mut(index).ok_or_else(|| no_slot(index))?;
    let before = slot.cache.save_before_load(&mut pool.context)?;
    if let Err(error) = slot.cache.load(&mut pool.context, &session.target, before) {
        // The other slots' requests are decoded again.
        (0..pool.slots.len()).filter(|other| *other != index).for_each(|other| pool.clear_cache(other));
        return Err(error);
    }
    slot.seed = session.seed;
    slot.lora.clone_from(&session.lora);
    let draft = session.draft.as_ref().filter(|draft| pool.drafters.load(index, draft));
    Ok(draft.map_or(0, |draft| draft.tokens.len()))
}

/// Whether a slot can have the sequences of a file.
///
/// # Errors
/// They are another model's or context's, or longer than this one.
pub(super) fn check_session(pool: &SlotPool, index: usize, session: &Session) -> Result<()> {
    let n_ctx = pool.context.n_ctx();
    let slot = pool.slots.get(index).ok_or_else(|| no_slot(index))?;
    if let Some(difference) = slot.cache.mismatch(&pool.context, &session.target) {
        return Err(Error::invalid(format!("was saved with another model or context: {difference}")));
    }
    if pool.media.get().is_none() && !session.media.is_empty() {
        return Err(Error::invalid("has pictures or sounds, and the engine was loaded without mmproj"));
    }
    match session.target.tokens.len() {
        n_tokens if n_tokens > n_ctx => {
            Err(Error::new(Code::ContextFull, format!("{n_tokens} tokens, where n_ctx is {n_ctx}")))
        }
        _ => Ok(()),
    }
}

/// The error for a slot that does not exist.
pub(super) fn no_slot(index: usize) -> Error {
    Error::invalid(format!("id_slot: there is no slot {index}"))
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
