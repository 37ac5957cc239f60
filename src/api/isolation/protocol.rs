//! The frames between a host's process and its engine's process. Both are the same version of this library.
//!
//! A frame is the length of its text (u32, little-endian), its kind (u8), a number (u64) and the text. The number of a request is its id in
//! the host's process; other calls have numbers from [`FIRST_CALL`] on.

use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use parking_lot::Mutex;

use crate::llama::Token;
use crate::llama::process::send_all;

/// The first number of a call that is not a completion request.
pub(in crate::api) const FIRST_CALL: u64 = 1 << 63;
/// The length of a frame's head.
const HEAD: usize = 13;

/// The kind of a frame.
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
    /// To the host: lets the logits callback change a row, as [`LogitsRow`].
    Logits = 12,
    /// To the engine: the changed row, in the order of the requests for them. Empty: there is no callback any more, or it failed.
    ChangedLogits = 13,
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
        use FrameKind::{
            Answer, Call, Cancel, ChangedLogits, Continue, EndReasoning, Hello, Log, Logits, Ping, Pong, Progress,
            Update,
        };
        let calls = [Hello, Call, Answer, Cancel, Update, EndReasoning, Continue];
        let others = [Log, Progress, Ping, Pong, Logits, ChangedLogits];
        calls.into_iter().chain(others).find(|kind| *kind as u8 == byte)
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

/// A row of logits that the host's callback is to change.
#[derive(Debug, PartialEq)]
pub(in crate::api) struct LogitsRow {
    /// The number of the request.
    pub(in crate::api) request: u64,
    /// The tokens before the position.
    pub(in crate::api) tokens: Vec<Token>,
    pub(in crate::api) logits: Vec<f32>,
}

impl LogitsRow {
    /// The frame that sends such a row. `number`: of the row.
    pub(in crate::api) fn frame(number: u64, request: u64, tokens: &[Token], logits: &[f32]) -> Frame {
        let mut text = Vec::with_capacity(16 + 4 * (tokens.len() + logits.len()));
        text.extend(request.to_le_bytes());
        text.extend((tokens.len() as u64).to_le_bytes());
        text.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        text.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        Frame { kind: FrameKind::Logits, number, text }
    }

    /// Reads the text of a frame; `None`: it is something else.
    pub(in crate::api) fn read(text: &[u8]) -> Option<LogitsRow> {
        let (request, rest) = text.split_first_chunk()?;
        let (n_tokens, rest) = rest.split_first_chunk()?;
        let n_bytes = usize::try_from(u64::from_le_bytes(*n_tokens)).ok()?.checked_mul(4)?;
        let (tokens, logits) = rest.split_at_checked(n_bytes)?;
        let tokens = tokens.as_chunks().0.iter().map(|bytes| Token::from_le_bytes(*bytes));
        Some(LogitsRow {
            request: u64::from_le_bytes(*request),
            tokens: tokens.collect(),
            logits: floats(logits).collect(),
        })
    }
}

/// The numbers of a row that was sent.
pub(in crate::api) fn floats(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
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
    fn rows_arrive_as_they_were_sent() {
        let frame = LogitsRow::frame(3, 7, &[1, 2], &[0.5, f32::NEG_INFINITY]);
        let row = LogitsRow { request: 7, tokens: vec![1, 2], logits: vec![0.5, f32::NEG_INFINITY] };
        assert_eq!(LogitsRow::read(&frame.text), Some(row));
        for end in 0..16 {
            assert_eq!(LogitsRow::read(&frame.text[..end]), None);
        }
        assert_eq!(LogitsRow::read(&[0xFF; 20]), None);
    }

    #[test]
    fn other_bytes_are_an_error_and_cut_frames_are_the_end() {
        assert!(Frame::read(&mut &[0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0][..]).is_err());
        assert_eq!(Frame::read(&mut &[9, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, b'a'][..]).expect("an end"), None);
        assert_eq!(Frame::read(&mut &[9, 0, 0][..]).expect("an end"), None);
    }
}
