//! The end of the host's process, when engines are still loaded.

use std::time::{Duration, Instant};

use super::JsonEngine;
use crate::forks;
use crate::host;
use crate::llama::log::{self, Level};

/// If no new callback begins for this long while one runs, the callback is waiting for the thread that ends the process.
const STUCK_CALLBACK: Duration = Duration::from_millis(300);

/// Stops all engines before the destructors of llama.cpp's globals run. The host's callbacks are not called any more. Engines of
/// the process that this one was forked from are ignored.
///
/// Waits at most `patience`, because the host may hold a lock that a callback waits for. It gives up after [`STUCK_CALLBACK`] if a
/// callback does not return, and does not wait inside a callback. Returns false if threads may still be running.
pub(crate) fn stop_all(systems: Vec<JsonEngine>, patience: Duration) -> bool {
    log::set_level(Level::Off);
    let is_here = |engine: &JsonEngine| engine.life_cycle.belongs_to_this_process();
    let systems: Vec<JsonEngine> = systems.into_iter().filter(is_here).collect();
    if host::inside() {
        systems.iter().for_each(JsonEngine::unload);
        return true;
    }
    if systems.is_empty() {
        return true;
    }
    let (stopped, wait) = crossbeam_channel::bounded(1);
    let stop = move || {
        // All begin to stop before the first one is waited for.
        for engine in &systems {
            let _ = engine.life_cycle.begin_unload();
        }
        log::set_sink(None);
        for engine in &systems {
            engine.set_update_hook(None);
            engine.unload();
        }
        let _ = stopped.send(());
    };
    let Ok(thread) = forks::spawn("foredraft-end", stop) else { return true };
    let has_stopped = wait_for(&wait, patience);
    if has_stopped {
        let _ = thread.join();
    }
    has_stopped
}

/// Waits for the message, but gives up when a callback is stuck.
fn wait_for(stopped: &crossbeam_channel::Receiver<()>, patience: Duration) -> bool {
    let begun = Instant::now();
    let (mut last, mut since) = (None, begun);
    while begun.elapsed() < patience {
        if stopped.recv_timeout(Duration::from_millis(10)).is_ok() {
            return true;
        }
        let running = host::running();
        if running.is_none() || running != last {
            (last, since) = (running, Instant::now());
        } else if since.elapsed() > STUCK_CALLBACK {
            return false;
        }
    }
    false
}
