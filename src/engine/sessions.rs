//! Sessions: a slot's sequences, target's and draft's, copied out to a file and put back.
//!
//! A slot with a request in it is waited for, and so are requests that were queued before. For `session_save` and `session_load` the engine's thread only copies; files
//! are read and written on the caller's thread. The fields of a request are served on the engine's thread whole: only
//! there it is known when the request begins, and its end is told when the file is there.

use std::path::Path;

use super::Engine;
use super::command::{Command, SessionJob, SessionWork};
use super::event::{Restored, Saved};
use super::scheduler::BatchScheduler;
use crate::error::{Code, Error, Result};
use crate::session::Session;

impl Engine {
    /// Copies the sequences of `slot` out and writes them to `path`. Waits for the request that runs there.
    ///
    /// # Errors
    /// The slot is empty, or the file cannot be written.
    pub fn save_session(&self, slot: usize, path: &Path) -> Result<Saved> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.send(Command::Session(SessionJob { slot, after: super::newest_id(), work: SessionWork::Save(reply) }))?;
        let session = answer.recv().map_err(|_| self.stopped())??;
        session.write(path).map(|n_bytes| saved(&session, n_bytes))
    }

    /// Reads `path` and puts its sequences into `slot`. Waits for the request that runs there.
    ///
    /// # Errors
    /// The file is missing, damaged, of another version, or of another model; the slot is then as it was.
    pub fn load_session(&self, slot: usize, path: &Path) -> Result<Restored> {
        let session = Box::new(Session::read(path)?);
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.send(Command::Session(SessionJob {
            slot,
            after: super::newest_id(),
            work: SessionWork::Load(session, reply),
        }))?;
        answer.recv().map_err(|_| self.stopped())?.map_err(|error| of_file(path, error))
    }
}

fn of_file(path: &Path, error: Error) -> Error {
    error.within(&path.display().to_string())
}

fn saved(session: &Session, n_bytes: u64) -> Saved {
    let n_draft = session.draft.as_ref().map_or(0, |draft| draft.tokens.len());
    Saved { n_tokens: session.target.tokens.len(), n_draft, n_bytes }
}

impl BatchScheduler {
    /// Does what waits for slots that are free now, in its order.
    pub(super) fn serve_sessions(&mut self) {
        for job in std::mem::take(&mut self.session_jobs) {
            let takes_it = |slot: Option<usize>| slot.is_none_or(|slot| slot == job.slot);
            let earlier = self.queue.iter().take_while(|submission| submission.sink.id() <= job.after);
            let busy = self.slots.get(job.slot).is_some_and(|slot| slot.task.is_some());
            if busy || earlier.into_iter().any(|submission| takes_it(submission.request.options.slot)) {
                self.session_jobs.push_back(job);
                continue;
            }
            // Whoever asked may be gone.
            let answer: Box<dyn FnOnce() + Send> = match job.work {
                SessionWork::Save(reply) => {
                    let result = self.copy_out(job.slot);
                    Box::new(move || drop(reply.send(result)))
                }
                SessionWork::Load(session, reply) => {
                    let result = self.put_in(job.slot, &session);
                    Box::new(move || drop(reply.send(result)))
                }
            };
            self.outbox.answer(answer);
        }
    }

    /// `session_save` of a request.
    pub(super) fn save_to(&mut self, slot: usize, path: &Path) -> Result<Saved> {
        let session = self.copy_out(slot)?;
        session.write(path).map(|n_bytes| saved(&session, n_bytes))
    }

    /// `session_load` of a request.
    pub(super) fn load_from(&mut self, slot: usize, path: &Path) -> Result<Restored> {
        let restored =
            Session::read(path).and_then(|session| self.put_in(slot, &session).map_err(|error| of_file(path, error)));
        restored.map_err(|error| error.within("session_load"))
    }

    fn copy_out(&mut self, index: usize) -> Result<Session> {
        let slot = self.slots.get_mut(index).ok_or_else(|| no_slot(index))?;
        if slot.cache.is_empty() {
            return Err(Error::invalid(format!("slot {index} has no tokens to be saved")));
        }
        if slot.lora != self.context.model().lora_scales() {
            let message = format!("slot {index} was evaluated with other LoRA scales than init's, which no file holds");
            return Err(Error::invalid(message));
        }
        let target = slot.cache.save(&mut self.context)?;
        let draft = self.drafters.save(index);
        Ok(Session { target, draft, seed: slot.seed, lora: slot.lora.clone() })
    }

    /// Everything is checked before anything is changed.
    fn put_in(&mut self, index: usize, session: &Session) -> Result<Restored> {
        let n_ctx = self.context.n_ctx();
        let slot = self.slots.get(index).ok_or_else(|| no_slot(index))?;
        if let Some(difference) = slot.cache.mismatch(&self.context, &session.target) {
            return Err(Error::invalid(format!("was saved with another model or context: {difference}")));
        }
        let n_tokens = session.target.tokens.len();
        if n_tokens > n_ctx {
            return Err(Error::new(Code::ContextFull, format!("{n_tokens} tokens, where n_ctx is {n_ctx}")));
        }
        self.make_room_for_session(index, n_tokens)?;
        let slot = self.slots.get_mut(index).ok_or_else(|| no_slot(index))?;
        let before = slot.cache.save_before_load(&mut self.context)?;
        if let Err(error) = slot.cache.load(&mut self.context, &session.target, before) {
            // What runs in them is evaluated again.
            (0..self.slots.len()).filter(|other| *other != index).for_each(|other| self.forget(other));
            return Err(error);
        }
        slot.seed = session.seed;
        slot.lora.clone_from(&session.lora);
        slot.loaded = Some(session.target.tokens.clone());
        self.tick += 1;
        slot.last_used = self.tick;
        let draft = session.draft.as_ref().filter(|draft| self.drafters.load(index, draft));
        let taken = draft.map_or(0, |draft| draft.tokens.len());
        Ok(Restored { n_tokens, n_draft: taken, seed: session.seed })
    }

    /// Where slots share their cells, those that nobody uses make way.
    fn make_room_for_session(&mut self, index: usize, n_tokens: usize) -> Result<()> {
        let Some(cells) = self.shared_cells else { return Ok(()) };
        loop {
            let others = self.slots.iter().filter(|slot| slot.index != index && !slot.cache.is_empty());
            let used: usize = others.clone().map(|slot| slot.cache.len()).sum();
            if used + n_tokens <= cells {
                return Ok(());
            }
            let idle = others.filter(|slot| slot.task.is_none()).min_by_key(|slot| slot.last_used);
            let full = || format!("{n_tokens} tokens do not fit beside the {used} of running requests into {cells}");
            let idle = idle.map(|slot| slot.index).ok_or_else(|| Error::new(Code::ContextFull, full()))?;
            self.forget(idle);
        }
    }
}

fn no_slot(index: usize) -> Error {
    Error::invalid(format!("id_slot: there is no slot {index}"))
}
