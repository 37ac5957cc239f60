//! The sending end of a connection to an engine's process.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use crossbeam_channel::{Receiver, Sender};

use super::protocol::{Frame, FrameSender};

/// The connection to a process. Sending never waits.
pub(super) struct Connection {
    frames: Sender<Frame>,
    stream: UnixStream,
}

impl Connection {
    pub(super) fn new(frames: Sender<Frame>, stream: UnixStream) -> Connection {
        Connection { frames, stream }
    }

    pub(super) fn send(&self, frame: Frame) {
        // The supervisor notices that the process has died.
        let _ = self.frames.send(frame);
    }

    /// Closes it, which ends the process.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
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
