//! The frames between a host's process and its engine's process. Both are the same version of this library.
//!
//! A frame is the length of its text (u32, little-endian), its kind (u8), a number (u64) and the text. The number of a request is its id in
//! the host's process; other calls have numbers from [`FIRST_CALL`] on. An end that gets anything else closes the connection.

use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::prompts::ServedModel;
use crate::api::wire::request::RequestArguments;
use crate::error::{Error, Result};
use crate::llama::process::send_all;
use crate::llama::{Token, TokenPieces};

/// The first number of a call that is not a completion request.
pub const FIRST_CALL: u64 = 1 << 63;
/// The length of a frame's head.
const HEAD: usize = 13;
/// The maximum length of a frame's text.
const MAX_TEXT: usize = 1 << 30;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// To the host, first: the library's version.
    Hello = 1,
    /// To the engine: the name of a function, a line end, and its argument.
    Call = 2,
    /// To the host: the answer of the call with this number, as JSON; or an object after the last event of the request with this number.
    Answer = 3,
    /// To the engine: ends the request with this number.
    Cancel = 4,
    /// To the host: an event of this request: a [`RequestEvent`](super::events::RequestEvent).
    Event = 5,
    /// To the host: a log line; the number is its level.
    Log = 6,
    /// To the host: the progress of a load, in thousandths.
    Progress = 7,
    /// To the engine: lets the reasoning of this request end with the next token.
    EndReasoning = 8,
    /// To the engine: a completion request: a [`RequestHead`], a line end, and its text.
    Request = 9,
    /// To the engine: asks whether it lives.
    Ping = 10,
    /// To the host: the answer of a ping.
    Pong = 11,
    /// To the host: lets the logits callback change a row, as [`LogitsRow`].
    Logits = 12,
    /// To the engine: the changed row, in the order of the requests for them. Empty: there is no callback any more, or it failed.
    ChangedLogits = 13,
    /// To the host, before the answer of a load: a [`ServedModel`]; the target has the number 0, the draft model alone 1.
    Model = 14,
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub number: u64,
    pub text: Vec<u8>,
    /// The end of the text, which several frames can share. A frame that arrives has none.
    rest: Option<Arc<[u8]>>,
}

/// The part of a completion request before its text.
#[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct RequestHead {
    /// Its caller waits for the final response.
    pub is_awaited: bool,
    pub arguments: RequestArguments,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::{
            Answer, Call, Cancel, ChangedLogits, EndReasoning, Event, Hello, Log, Logits, Model, Ping, Pong, Progress,
            Request,
        };
        let calls = [Hello, Call, Answer, Cancel, Event, EndReasoning, Request];
        let others = [Log, Progress, Ping, Pong, Logits, ChangedLogits, Model];
        calls.into_iter().chain(others).find(|kind| *kind as u8 == byte)
    }
}

impl Frame {
    pub fn new(kind: FrameKind, number: u64, text: impl Into<Vec<u8>>) -> Frame {
        Frame { kind, number, text: text.into(), rest: None }
    }

    /// A call of a function.
    pub fn call(number: u64, function: &str, argument: &Arc<[u8]>) -> Frame {
        let rest = Some(Arc::clone(argument));
        Frame { rest, ..Frame::new(FrameKind::Call, number, format!("{function}\n")) }
    }

    /// A completion request.
    pub fn request(number: u64, head: &RequestHead, text: &Arc<[u8]>) -> Frame {
        let mut line = serde_json::to_vec(head).unwrap_or_default();
        line.push(b'\n');
        Frame { rest: Some(Arc::clone(text)), ..Frame::new(FrameKind::Request, number, line) }
    }

    /// The function and the argument of a call; `None`: it is something else.
    pub fn as_call(&self) -> Option<(&str, &[u8])> {
        let (function, argument) = self.lines()?;
        Some((std::str::from_utf8(function).ok()?, argument))
    }

    /// The head and the text of a completion request; `None`: it is something else.
    pub fn as_request(&self) -> Option<(RequestHead, &[u8])> {
        let (head, text) = self.lines()?;
        Some((serde_json::from_slice(head).ok()?, text))
    }

    /// The first line, and the rest.
    fn lines(&self) -> Option<(&[u8], &[u8])> {
        let end = self.text.iter().position(|byte| *byte == b'\n')?;
        let (first, rest) = self.text.split_at_checked(end)?;
        Some((first, rest.get(1..)?))
    }

    /// Refuses an argument of a call that is too long for a frame.
    ///
    /// # Errors
    /// It is.
    pub fn check_argument(argument: &[u8]) -> Result<()> {
        // The rest is for what comes before the argument.
        const MOST: usize = MAX_TEXT - (MAX_TEXT >> 3);
        if argument.len() <= MOST {
            return Ok(());
        }
        let n = argument.len();
        Err(Error::invalid(format!("isolate: an argument of {n} bytes is too long; the most are {MOST}")))
    }

    /// Reads the next frame. `None`: the other end has closed.
    ///
    /// # Errors
    /// The stream failed, or sent something else, or claims to send more than [`MAX_TEXT`].
    pub fn read(stream: &mut impl Read) -> io::Result<Option<Frame>> {
        let mut head = [0; HEAD];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let [a, b, c, d, kind, number @ ..] = head;
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let kind = FrameKind::from_byte(kind).ok_or_else(|| invalid(format!("a frame of the unknown kind {kind}")))?;
        let len = u32::from_le_bytes([a, b, c, d]);
        if len as usize > MAX_TEXT {
            return Err(invalid(format!("a frame of {len} bytes")));
        }
        let mut text = Vec::new();
        if stream.take(u64::from(len)).read_to_end(&mut text)? != len as usize {
            return Ok(None);
        }
        Ok(Some(Frame::new(kind, u64::from_le_bytes(number), text)))
    }
}

impl ServedModel {
    /// The frame that sends it.
    pub fn frame(&self, number: u64) -> Frame {
        let line = format!("{}\n", json!({"name": self.name, "n_ctx": self.n_ctx, "decision": self.decision}));
        Frame::new(FrameKind::Model, number, [line.into_bytes(), self.pieces.to_bytes()].concat())
    }

    /// Reads a frame; `None`: it is something else.
    pub(super) fn read(frame: &Frame) -> Option<ServedModel> {
        let (line, pieces) = frame.lines()?;
        let fields: Value = serde_json::from_slice(line).ok()?;
        let n_ctx = fields.get("n_ctx")?.as_u64().and_then(|n_ctx| u32::try_from(n_ctx).ok())?;
        let name = fields.get("name")?.as_str()?.to_owned();
        let decision = fields.get("decision").and_then(Value::as_str).map(str::to_owned);
        let pieces = Arc::new(TokenPieces::from_bytes(pieces)?);
        Some(ServedModel { name, n_ctx: n_ctx as usize, pieces, decision })
    }
}

/// A row of logits that the host's callback is to change.
#[derive(Debug, PartialEq)]
pub struct LogitsRow {
    /// The number of the request.
    pub request: u64,
    /// The tokens before the position.
    pub tokens: Vec<Token>,
    pub logits: Vec<f32>,
}

impl LogitsRow {
    /// The frame that sends such a row. `number`: of the row.
    pub fn frame(number: u64, request: u64, tokens: &[Token], logits: &[f32]) -> Frame {
        let mut text = Vec::with_capacity(16 + 4 * (tokens.len() + logits.len()));
        text.extend(request.to_le_bytes());
        text.extend((tokens.len() as u64).to_le_bytes());
        text.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        text.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        Frame::new(FrameKind::Logits, number, text)
    }

    /// Reads the text of a frame; `None`: it is something else.
    pub fn read(text: &[u8]) -> Option<LogitsRow> {
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
pub fn floats(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// The sending end of a connection, for all threads.
#[derive(Debug)]
pub struct FrameSender(Mutex<UnixStream>);

impl FrameSender {
    pub fn new(stream: UnixStream) -> FrameSender {
        FrameSender(Mutex::new(stream))
    }

    /// Sends a frame. Waits while the other end does not read.
    ///
    /// # Errors
    /// The other end has closed, or the text has more than [`MAX_TEXT`] bytes.
    pub fn send(&self, frame: &Frame) -> io::Result<()> {
        let rest = frame.rest.as_deref().unwrap_or_default();
        let len = frame.text.len() + rest.len();
        let len = u32::try_from(len).ok().filter(|_| len <= MAX_TEXT).ok_or(io::ErrorKind::InvalidInput)?;
        let mut bytes = Vec::with_capacity(HEAD + frame.text.len());
        bytes.extend(len.to_le_bytes());
        bytes.push(frame.kind as u8);
        bytes.extend(frame.number.to_le_bytes());
        bytes.extend_from_slice(&frame.text);
        let stream = self.0.lock();
        send_all(stream.as_fd(), &bytes)?;
        send_all(stream.as_fd(), rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_as_they_were_sent() {
        let (here, mut there) = UnixStream::pair().expect("a pair");
        let sender = FrameSender::new(here);
        let argument: Arc<[u8]> = b"{\"text\": \"a\nb\"}"[..].into();
        let head = RequestHead { is_awaited: true, ..RequestHead::default() };
        for frame in [
            Frame::call(FIRST_CALL, "tokenize", &argument),
            Frame::request(7, &head, &argument),
            Frame::new(FrameKind::Cancel, 7, Vec::new()),
            Frame::new(FrameKind::Log, 3, "x".repeat(1000)),
        ] {
            sender.send(&frame).expect("sent");
        }
        drop(sender);
        let mut read = || Frame::read(&mut there).expect("read");
        let call = read().expect("a frame");
        assert_eq!((call.number, call.as_call()), (FIRST_CALL, Some(("tokenize", &argument[..]))));
        let request = read().expect("a frame");
        assert_eq!((request.number, request.as_request()), (7, Some((head, &argument[..]))));
        assert_eq!(read(), Some(Frame::new(FrameKind::Cancel, 7, Vec::new())));
        assert_eq!(read(), Some(Frame::new(FrameKind::Log, 3, "x".repeat(1000))));
        assert_eq!(read(), None);
    }

    #[test]
    fn models_arrive_as_they_were_sent() {
        let mut pieces = TokenPieces::default();
        assert!(pieces.push(b"\na\xff"));
        let model = ServedModel {
            name: "a\nb".to_owned(),
            n_ctx: 512,
            pieces: Arc::new(pieces),
            decision: Some("lev".to_owned()),
        };
        let frame = model.frame(1);
        assert_eq!(ServedModel::read(&frame), Some(model));
        for end in 0..frame.text.len() {
            assert_eq!(ServedModel::read(&Frame::new(FrameKind::Model, 1, &frame.text[..end])), None);
        }
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
        for len in [MAX_TEXT as u32 + 1, u32::MAX] {
            let head = [&len.to_le_bytes()[..], &[FrameKind::Log as u8], &[0; 8]].concat();
            assert!(Frame::read(&mut head.chain(std::io::repeat(0))).is_err(), "{len}");
        }
        assert_eq!(Frame::read(&mut &[9, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, b'a'][..]).expect("an end"), None);
        assert_eq!(Frame::read(&mut &[9, 0, 0][..]).expect("an end"), None);
    }
}
