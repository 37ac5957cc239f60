//! A load on another thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use serde_json::Value;

use super::config::HostConfig as Config;
use super::engine::Engine;
use super::loaded::LoadedModel;
use foredraft_base::error::{Code, Error, Result};

/// A load that runs: [`EngineLoad::finish`] waits for it, and so does a task, because it is a future. Dropping it ends the load.
pub struct EngineLoad {
    loaded: Arc<LoadedModel>,
    /// `None`: it was waited for.
    thread: Option<JoinHandle<()>>,
    end: Arc<Mutex<LoadEnd>>,
}

/// The result of a load, and the task that waits for it.
#[derive(Default)]
struct LoadEnd {
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl EngineLoad {
    /// Begins to load the models of a configuration on another thread.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn begin(config: &Config) -> Result<EngineLoad> {
        let config = config.clone();
        let (loaded, end) = (Arc::new(LoadedModel::new()), Arc::<Mutex<LoadEnd>>::default());
        let (of_thread, end_of_thread) = (Arc::clone(&loaded), Arc::clone(&end));
        let run = move || {
            let result = of_thread.load(&config);
            // The last one that is dropped unloads, which is not this thread's work.
            drop(of_thread);
            let waker = {
                let mut end = end_of_thread.lock();
                end.result = Some(result);
                end.waker.take()
            };
            // The lock is free, because a waker may run the task.
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        let thread = std::thread::Builder::new().name("foredraft-load".to_owned()).spawn(run);
        let thread =
            thread.map_err(|error| Error::new(Code::Internal, format!("load: there is no thread: {error}")))?;
        Ok(EngineLoad { loaded, thread: Some(thread), end })
    }

    /// How far it is, 0 to 1.
    pub fn progress(&self) -> f64 {
        self.loaded.engine.status().get("progress").and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Whether it has ended, so that [`EngineLoad::finish`] does not wait.
    pub fn is_finished(&self) -> bool {
        self.end.lock().result.is_some()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The configuration is invalid, or a model cannot be loaded.
    pub fn finish(mut self) -> Result<Engine> {
        if let Some(thread) = self.thread.take() {
            // A panic leaves no result.
            let _ = thread.join();
        }
        let result = self.end.lock().result.take();
        self.engine_of(result)
    }

    fn engine_of(&self, result: Option<Result<()>>) -> Result<Engine> {
        result.unwrap_or_else(|| Err(Error::new(Code::Internal, "load: its thread has ended without a result")))?;
        Ok(Engine(Arc::clone(&self.loaded)))
    }
}

impl Future for EngineLoad {
    type Output = Result<Engine>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Engine>> {
        let result = {
            let mut end = self.end.lock();
            if end.result.is_none() {
                end.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            end.result.take()
        };
        self.thread = None;
        Poll::Ready(self.engine_of(result))
    }
}

impl Drop for EngineLoad {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.loaded.engine.close();
        }
    }
}
