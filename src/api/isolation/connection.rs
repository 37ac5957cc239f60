//! The sending end of a connection to an engine's process.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crossbeam_channel::{Receiver, Sender};

use super::protocol::{Frame, FrameKind, FrameSender};

/// The connection to a process. Sending never waits.
pub(super) struct Connection {
    frames: Sender<Frame>,
    stream: UnixStream,
    /// The process has said that it is `foredraft-engine`.
    has_greeted: AtomicBool,
    /// Pings since the last frame arrived.
    n_silent: AtomicU32,
    is_given_up: AtomicBool,
}

impl Connection {
    pub(super) fn new(frames: Sender<Frame>, stream: UnixStream) -> Connection {
        Connection {
            frames,
            stream,
            has_greeted: AtomicBool::new(false),
            n_silent: AtomicU32::new(0),
            is_given_up: AtomicBool::new(false),
        }
    }

    pub(super) fn send(&self, frame: Frame) {
        // The supervisor notices that the process has died.
        let _ = self.frames.send(frame);
    }

    /// Closes it, which ends the process.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// A frame arrived.
    pub(super) fn heard(&self) {
        self.n_silent.store(0, Ordering::Release);
    }

    /// The first frame arrived, and it was the right one.
    pub(super) fn greeted(&self) {
        self.has_greeted.store(true, Ordering::Release);
    }

    pub(super) fn has_greeted(&self) -> bool {
        self.has_greeted.load(Ordering::Acquire)
    }

    /// Pings the process. Returns the number of pings since the last frame arrived, this one included.
    pub(super) fn ping(&self) -> u32 {
        // Another program could do anything with it.
        if self.has_greeted() {
            self.send(Frame::new(FrameKind::Ping, 0, ""));
        }
        self.n_silent.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Ends a process that does not answer.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
        self.close();
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }
}

/// Writes the frames of a connection, until it or the channel is closed.
pub(super) fn write_all(writer: &FrameSender, outgoing: &Receiver<Frame>) {
    while let Ok(frame) = outgoing.recv() {
        if writer.send(&frame).is_err() {
            return;
        }
    }
}
