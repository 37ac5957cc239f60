//! The frames between a host's process and its engine's process. Both are the same version of this library.
//!
//! A frame is the length of its text (u32, little-endian), its kind (u8), a number (u64) and the text. The number of a request is its id in
//! the host's process; other calls have numbers from [`FIRST_CALL`] on.

use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use parking_lot::Mutex;

use crate::llama::process::send_all;

/// The first number of a call that is not a completion request.
pub(in crate::api) const FIRST_CALL: u64 = 1 << 63;
/// The length of a frame's head.
const HEAD: usize = 13;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::api) enum FrameKind {
    /// To the host, first: the library's version.
    Hello = 1,
    /// To the engine: the name of a function, a line end, and its argument.
    Call = 2,
    /// To the host: the answer of the call with this number, as JSON.
    Answer = 3,
    /// To the engine: ends the request with this number.
    Cancel = 4,
    /// To the host: the answer of a poll of this request, and `tokens` for each completion.
    Update = 5,
    /// To the host: a log line; the number is its level.
    Log = 6,
    /// To the host: the progress of a load, in thousandths.
    Progress = 7,
    /// To the engine: lets the reasoning of this request end with the next token.
    EndReasoning = 8,
    /// To the engine: as `Call`, of a request that a former process had. They are queued in the order in which they arrive.
    Continue = 9,
    /// To the engine: asks whether it lives.
    Ping = 10,
    /// To the host: the answer of a ping.
    Pong = 11,
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::api) struct Frame {
    pub(in crate::api) kind: FrameKind,
    pub(in crate::api) number: u64,
    pub(in crate::api) text: Vec<u8>,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::{Answer, Call, Cancel, Continue, EndReasoning, Hello, Log, Ping, Pong, Progress, Update};
        let kinds = [Hello, Call, Answer, Cancel, Update, Log, Progress, EndReasoning, Continue, Ping, Pong];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl Frame {
    pub(in crate::api) fn new(kind: FrameKind, number: u64, text: impl Into<Vec<u8>>) -> Frame {
        Frame { kind, number, text: text.into() }
    }

    /// A call of a function.
    pub(in crate::api) fn call(number: u64, function: &str, argument: &[u8]) -> Frame {
        Frame::new(FrameKind::Call, number, [function.as_bytes(), b"\n", argument].concat())
    }

    /// The function and the argument of a call.
    pub(in crate::api) fn as_call(&self) -> Option<(&str, &[u8])> {
        let end = self.text.iter().position(|byte| *byte == b'\n')?;
        let (function, rest) = self.text.split_at_checked(end)?;
        Some((std::str::from_utf8(function).ok()?, rest.get(1..)?))
    }

    /// Reads the next frame. `None`: the other end has closed.
    ///
    /// # Errors
    /// The stream failed, or sent something else.
    pub(in crate::api) fn read(stream: &mut impl Read) -> io::Result<Option<Frame>> {
        let mut head = [0; HEAD];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let [a, b, c, d, kind, number @ ..] = head;
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "an unknown kind of frame");
        let kind = FrameKind::from_byte(kind).ok_or_else(invalid)?;
        let mut text = Vec::new();
        let len = u64::from(u32::from_le_bytes([a, b, c, d]));
        if stream.take(len).read_to_end(&mut text)? as u64 != len {
            return Ok(None);
        }
        Ok(Some(Frame { kind, number: u64::from_le_bytes(number), text }))
    }
}

/// The sending end of a connection, for all threads.
#[derive(Debug)]
pub(in crate::api) struct FrameSender(Mutex<UnixStream>);

impl FrameSender {
    pub(in crate::api) fn new(stream: UnixStream) -> FrameSender {
        FrameSender(Mutex::new(stream))
    }

    /// Sends a frame. Waits while the other end does not read.
    ///
    /// # Errors
    /// The other end has closed, or the text has 4 GiB.
    pub(in crate::api) fn send(&self, frame: &Frame) -> io::Result<()> {
        let len = u32::try_from(frame.text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut bytes = Vec::with_capacity(HEAD + frame.text.len());
        bytes.extend(len.to_le_bytes());
        bytes.push(frame.kind as u8);
        bytes.extend(frame.number.to_le_bytes());
        bytes.extend_from_slice(&frame.text);
        let stream = self.0.lock();
        send_all(stream.as_fd(), &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_as_they_were_sent() {
        let (here, mut there) = UnixStream::pair().expect("a pair");
        let sender = FrameSender::new(here);
        let frames = [
            Frame::call(FIRST_CALL, "tokenize", b"{\"text\": \"a\nb\"}"),
            Frame::new(FrameKind::Cancel, 7, Vec::new()),
            Frame::new(FrameKind::Log, 3, "x".repeat(1000)),
        ];
        for frame in &frames {
            sender.send(frame).expect("sent");
        }
        drop(sender);
        for frame in &frames {
            assert_eq!(Frame::read(&mut there).expect("read").as_ref(), Some(frame));
        }
        assert_eq!(frames[0].as_call(), Some(("tokenize", &b"{\"text\": \"a\nb\"}"[..])));
        assert_eq!(Frame::read(&mut there).expect("read"), None);
    }

    #[test]
    fn other_bytes_are_an_error_and_cut_frames_are_the_end() {
        assert!(Frame::read(&mut &[0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0][..]).is_err());
        assert_eq!(Frame::read(&mut &[9, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, b'a'][..]).expect("an end"), None);
        assert_eq!(Frame::read(&mut &[9, 0, 0][..]).expect("an end"), None);
    }
}
