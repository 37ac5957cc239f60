//! Watches the engine's process by the host's clock: ends requests that it has not ended in time, and ends a process that does not answer.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::connection::Connection;
use super::shared::RemoteShared;
use crate::llama::log::Level;

/// How often it looks while something waits for the process.
const INTERVAL: Duration = Duration::from_millis(250);
/// The pings without an answer after which a process is ended: five seconds. Counted, because the host may have been stopped meanwhile.
const MAX_SILENT: u32 = 20;
/// The same before the process has said that it is `foredraft-engine`: ten seconds, for a slow disk.
const MAX_SILENT_AT_START: u32 = 40;

/// Runs until the engine is unloaded. `woken`: something may wait for the process, or the engine is being unloaded.
pub(super) fn watch(shared: &RemoteShared, woken: &Receiver<()>) {
    let mut next: Option<Instant> = None;
    while !shared.is_stopping.load(Ordering::Acquire) {
        let is_woken = match next {
            Some(next) => woken.recv_deadline(next),
            None => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let now = Instant::now();
        match is_woken {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) if next.is_some_and(|next| now < next) => {}
            // It begins to watch.
            Ok(()) if next.is_none() => next = Some(now + INTERVAL),
            _ => next = look(shared, now).then_some(now + INTERVAL),
        }
    }
}

/// Looks once. Returns whether something waits for the process.
fn look(shared: &RemoteShared, now: Instant) -> bool {
    let hangs = shared.end_overdue(now);
    if !shared.is_waited_for() {
        return false;
    }
    if shared.has_suspects() {
        shared.dispatch();
    }
    let process = shared.starting.lock().clone();
    if let Some(process) = process.filter(|process| !process.is_given_up() && (hangs || is_silent(process))) {
        shared.log(Level::Error, "isolate: the engine's process does not answer, so it is ended");
        process.give_up();
    }
    true
}

fn is_silent(process: &Connection) -> bool {
    let most = if process.has_greeted() { MAX_SILENT } else { MAX_SILENT_AT_START };
    process.ping() > most
}
