//! The engine's thread: the only one that touches contexts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, TryRecvError};

use super::command::{Command, Submission};
use super::embedder::Embedder;
use super::event::Stop;
use super::generation::Generation;
use super::preview::Preview;
use super::{Notify, Shared};
use crate::error::{Code, Error};

pub(super) struct Worker {
    pub(super) commands: Receiver<Command>,
    pub(super) generation: Option<Box<Generation>>,
    pub(super) preview: Option<Preview>,
    pub(super) embedder: Option<Embedder>,
    pub(super) shared: Arc<Shared>,
    pub(super) notify: Arc<Notify>,
}

impl Worker {
    /// Runs until the engine is told to stop. Requests that are left then end as cancelled.
    pub(super) fn run(mut self) {
        let mut stop = Stop::Cancelled;
        while !self.shared.stopping.load(Ordering::Acquire) {
            // A defect in a step must end the requests, not the host.
            let step = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step()));
            if step.is_err() {
                let error = Error::new(Code::Internal, "the engine's thread panicked; init starts a new one");
                stop = Stop::Error(error);
                break;
            }
        }
        self.shared.close();
        let notify = Arc::clone(&self.notify);
        while let Ok(command) = self.commands.try_recv() {
            self.take(command);
        }
        if let Some(preview) = &mut self.preview {
            preview.end_waiting(&stop, &mut |id| notify(id));
        }
        for generation in self.generations() {
            generation.end_all(&stop, &mut |id| notify(id));
        }
        self.publish();
        self.deliver();
    }

    fn step(&mut self) {
        // First of all: what raised it is looked at below, and what raises it from now on stops the evaluation.
        self.shared.interrupt.clear();
        self.receive();
        if self.shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let (notify, shared) = (Arc::clone(&self.notify), Arc::clone(&self.shared));
        if let Some(preview) = &mut self.preview {
            preview.open(&mut |id| notify(id));
        }
        for generation in self.generations().filter(|generation| !generation.is_idle()) {
            generation.open(&mut |id| notify(id));
        }
        // What began now is evaluated for a while.
        self.publish();
        for generation in self.generations().filter(|generation| !generation.is_idle()) {
            generation.step(&shared.interrupt, &mut |id| notify(id));
        }
        self.publish();
        self.deliver();
    }

    fn deliver(&mut self) {
        let notify = Arc::clone(&self.notify);
        for generation in self.generations() {
            generation.outbox.deliver(&mut |id| notify(id));
        }
    }

    /// The target's slots and the preview's, as far as there are any.
    fn generations(&mut self) -> impl Iterator<Item = &mut Generation> {
        let target = self.generation.as_deref_mut().into_iter();
        target.chain(self.preview.as_mut().and_then(Preview::generation))
    }

    /// Takes the commands that have come, up to one that took time: two of these have a step of the slots between them. Waits for
    /// one when there is nothing else to do.
    fn receive(&mut self) {
        let is_idle = self.generation.as_deref().is_none_or(Generation::is_idle)
            && self.preview.as_ref().is_none_or(Preview::is_idle);
        let disconnected = |_| TryRecvError::Disconnected;
        let mut next = if is_idle { self.commands.recv().map_err(disconnected) } else { self.commands.try_recv() };
        loop {
            match next {
                Ok(command) => {
                    if self.take(command) {
                        return;
                    }
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.shared.stopping.store(true, Ordering::Release),
            }
            next = self.commands.try_recv();
        }
    }

    /// Does what is told; true when that took time.
    fn take(&mut self, command: Command) -> bool {
        let takes_time = matches!(command, Command::Embed(..) | Command::Session(_));
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Session(job) => {
                if let Some(generation) = &mut self.generation {
                    generation.session_jobs.push_back(job);
                    generation.serve_sessions();
                }
            }
            Command::Embed(tokens, reply) => {
                let result = match &mut self.embedder {
                    Some(embedder) => embedder.embed(&tokens, &self.shared),
                    None => Err(Error::invalid("the engine was not started for embeddings")),
                };
                // The asker may be gone.
                let _ = reply.send(result);
            }
            Command::ForgetAnswers => {
                if let Some(generation) = &mut self.generation {
                    generation.drafters.forget_answers();
                }
            }
            Command::Wake => {}
        }
        takes_time
    }

    /// Queues a text for the model that is to answer.
    fn submit(&mut self, submission: Submission) {
        match (submission.request.preview, &mut self.generation, &mut self.preview) {
            (false, Some(generation), _) => generation.queue.push_back(submission),
            (true, _, Some(preview)) => preview.submit(submission),
            // Whoever submits has looked before.
            _ => {
                let error = Error::new(Code::Internal, "there is no model that could answer");
                submission.sink.finish_if_queued(Stop::Error(error));
            }
        }
    }

    /// Writes down what `poll_system_status` shows.
    fn publish(&self) {
        let Some(generation) = &self.generation else { return };
        for (status, slot) in self.shared.slots.lock().iter_mut().zip(&generation.slots) {
            let busy = slot.task.as_ref();
            status.request = busy.map(|task| task.sink.id());
            status.phase = busy.map(|task| task.sink.phase());
            status.n_past = slot.cache.len();
            status.lora.clone_from(&slot.lora);
            // Cached tokens matter to those who ask what a prompt will reuse: free slots only, and only when they changed.
            if busy.is_some() {
                status.cache = None;
            } else if status.cache.as_ref().is_none_or(|cache| cache.as_slice() != &*slot.cache) {
                status.cache = Some(Arc::new(slot.cache.to_vec()));
            }
        }
    }
}
