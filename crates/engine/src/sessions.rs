//! Sessions: the sequences of a slot, of target and draft, copied out to a file and put back, or erased.
//!
//! A job waits until its slot has no request, and until requests that were queued before it have run. For `session_save` and `session_load`
//! the engine's thread only copies; files are read and written on the caller's thread. The fields of a request are served on the engine's
//! thread: only there it is known when the request begins, and its end is reported when the file exists.

use std::path::Path;

use crossbeam_channel::Sender;

use super::conversations::{no_slot, put_session};
use super::event::{Erased, Restored, Saved};
use super::request::{SessionJob, SessionWork};
use super::slots::SlotPool;
use crate::session::Session;
use foredraft_base::error::{Error, Result};

pub(super) fn of_file(path: &Path, error: Error) -> Error {
    error.within(&path.display().to_string())
}

pub(super) fn saved(session: &Session, n_bytes: u64) -> Saved {
    let n_draft = session.draft.as_ref().map_or(0, |draft| draft.tokens.len());
    Saved { n_tokens: session.target.tokens.len(), n_draft, n_bytes }
}

/// The result of a job, and the channel to its caller.
pub(super) enum SessionAnswer {
    Saved(Sender<Result<Session>>, Box<Result<Session>>),
    Restored(Sender<Result<Restored>>, Result<Restored>),
    Erased(Sender<Result<Erased>>, Result<Erased>),
}

impl SessionAnswer {
    /// Sends the result to the caller, unless the caller is gone.
    pub(super) fn send(self) {
        match self {
            SessionAnswer::Saved(caller, result) => drop(caller.send(*result)),
            SessionAnswer::Restored(caller, result) => drop(caller.send(result)),
            SessionAnswer::Erased(caller, result) => drop(caller.send(result)),
        }
    }
}

/// Does a job on a free slot.
pub(super) fn serve(pool: &mut SlotPool, job: SessionJob) -> SessionAnswer {
    match job.work {
        SessionWork::Save(caller) => SessionAnswer::Saved(caller, Box::new(copy_out(pool, job.slot))),
        SessionWork::Load(session, caller) => SessionAnswer::Restored(caller, put_in(pool, job.slot, *session)),
        SessionWork::Erase(caller) => SessionAnswer::Erased(caller, erase(pool, job.slot)),
    }
}

/// Serves `session_save` of a request.
pub(super) fn save_to(pool: &mut SlotPool, slot: usize, path: &Path) -> Result<Saved> {
    let session = copy_out(pool, slot)?;
    session.write(path).map(|n_bytes| saved(&session, n_bytes))
}

/// Serves `session_load` of a request.
pub(super) fn load_from(pool: &mut SlotPool, slot: usize, path: &Path) -> Result<Restored> {
    let restored =
        Session::read(path).and_then(|session| put_in(pool, slot, session).map_err(|error| of_file(path, error)));
    restored.map_err(|error| error.within("session_load"))
}

fn copy_out(pool: &mut SlotPool, index: usize) -> Result<Session> {
    let slot = pool.slots.get_mut(index).ok_or_else(|| no_slot(index))?;
    if slot.cache.is_empty() {
        return Err(Error::invalid(format!("slot {index} has no tokens to be saved")));
    }
    if slot.lora != pool.context.model().lora_scales() {
        let message = format!(
            "slot {index} was decoded with other LoRA scales than the load's, which a session file cannot hold"
        );
        return Err(Error::invalid(message));
    }
    let target = slot.cache.save(&mut pool.context)?;
    let media = pool.media.get().map_or_else(Vec::new, |known| known.among(&target.tokens));
    Ok(Session { target, draft: pool.drafters.save(index), seed: slot.seed, lora: slot.lora.clone(), media })
}

/// Puts a session into a slot. Everything is checked before anything is changed.
fn put_in(pool: &mut SlotPool, index: usize, mut session: Session) -> Result<Restored> {
    let n_draft = put_session(pool, index, &mut session)?;
    pool.n_admissions += 1;
    let slot = pool.slots.get_mut(index).ok_or_else(|| no_slot(index))?;
    let n_tokens = session.target.tokens.len();
    slot.loaded = Some(session.target.tokens);
    slot.last_used = pool.n_admissions;
    Ok(Restored { n_tokens, n_draft, seed: session.seed })
}

/// Removes the tokens of a slot from the caches of target and draft, with the seed that a session would have.
fn erase(pool: &mut SlotPool, index: usize) -> Result<Erased> {
    let slot = pool.slots.get_mut(index).ok_or_else(|| no_slot(index))?;
    let n_tokens = slot.cache.len();
    (slot.seed, slot.loaded, slot.conversation) = (None, None, None);
    pool.clear_cache(index);
    Ok(Erased { n_tokens, n_draft: pool.drafters.erase(index) })
}
