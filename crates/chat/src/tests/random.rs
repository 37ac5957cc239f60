//! Random turns of all formats: a message does not depend on how the text is cut, nothing is taken back, the lenient tree reads every text,
//! and what the strict tree reads in the same way. `FOREDRAFT_FUZZ`: how many turns of each format; `FOREDRAFT_FUZZ_SEED`: the first one.

use std::sync::Arc;

use super::round_trip::{request_tools, tools};
use super::templates;
use crate::{Calls, ChatFormat, ChatMessage, MessageParser, MessageReader, ReaderOptions};

/// The turns of each format in a run without `FOREDRAFT_FUZZ`.
const SAMPLE: u64 = 120;

/// Parts of turns that are no texts of a format.
const PIECES: [&str; 22] = [
    "get_it",
    "get_it_all",
    "t",
    "\"",
    "'",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "x",
    " ",
    "\n",
    "\u{e9}",
    "<",
    ", ",
    "{}",
    "{\"t\": \"v\"}",
    "{\"name\": \"get_it\", \"arguments\": {\"t\": \"v\"}}",
    "{\"name\": \"get_it_all\", \"parameters\": {}}",
    "t='v'",
];

/// Texts of a format, and calls that are complete.
fn pieces(format: &ChatFormat) -> Vec<String> {
    let blocks = [&format.reasoning, &format.content].into_iter().flatten();
    let mut pieces: Vec<String> = blocks.flat_map(|block| block.begins.iter().chain(&block.ends).cloned()).collect();
    pieces.extend(format.between.iter().chain(&format.foreign).chain([&format.turn_end]).cloned());
    pieces.extend(format.calls.iter().flat_map(Calls::texts));
    pieces.retain(|piece| !piece.is_empty());
    pieces.iter_mut().for_each(|piece| *piece = piece.replace('\0', "t"));
    // The parts of a call in a row make calls frequent.
    let whole: Vec<String> = format.calls.iter().map(|calls| calls.texts().concat()).collect();
    pieces.extend(whole);
    pieces.extend(PIECES.map(str::to_owned));
    pieces
}

/// Whether one message is a beginning of another.
fn begins(old: &ChatMessage, new: &ChatMessage) -> bool {
    new.content.starts_with(&old.content)
        && new.reasoning.starts_with(&old.reasoning)
        && new.calls.len() >= old.calls.len()
        && old
            .calls
            .iter()
            .zip(&new.calls)
            .all(|(old, new)| (old.name == new.name && old.id == new.id) && new.arguments.starts_with(&old.arguments))
}

/// Reads a text at once and character by character, and ends it behind each. Returns the message, and whether the tree reads it to its end.
fn read(reader: &Arc<MessageReader>, text: &str, what: &str) -> (ChatMessage, bool) {
    let mut whole = MessageParser::new(Arc::clone(reader));
    whole.push(text);
    let is_read = whole.may_end();
    whole.finish();
    let (mut parser, mut last) = (MessageParser::new(Arc::clone(reader)), ChatMessage::default());
    for (at, char) in text.char_indices() {
        parser.push(&text[at..at + char.len_utf8()]);
        let (now, mut ended) = (parser.message(), parser.clone());
        ended.finish();
        assert!(
            begins(&last, &now) && begins(&now, &ended.message()),
            "{what}: {text:?} at {at}: {last:?} {now:?} {ended:?}"
        );
        last = now;
    }
    parser.finish();
    assert_eq!(parser.message(), whole.message(), "{what}: {text:?}");
    (whole.message(), is_read)
}

#[test]
fn random_turns_are_read_leniently_as_strictly() {
    let number = |key: &str| std::env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
    let (n, mut state) = (number("FOREDRAFT_FUZZ").unwrap_or(SAMPLE), number("FOREDRAFT_FUZZ_SEED").unwrap_or(7));
    let mut next = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let tools = tools(&request_tools(&serde_json::json!({"t": {"type": "string"}})));
    for (name, format) in templates::formats() {
        let reader = |is_enforced| {
            let options = ReaderOptions { is_enforced, ..ReaderOptions::default() };
            Arc::new(
                MessageReader::new(format.clone(), tools.clone(), options, &foredraft_base::work::Work::unlimited())
                    .unwrap(),
            )
        };
        let (strict, lenient, pieces) = (reader(true), reader(false), pieces(&format));
        for _ in 0..n {
            let text: String = (0..1 + next(10)).map(|_| pieces[next(pieces.len())].as_str()).collect();
            let (loose, is_read) = read(&lenient, &text, name);
            assert!(is_read, "{name}: the lenient tree does not read {text:?}");
            let (tight, is_read) = read(&strict, &text, name);
            assert!(!is_read || tight == loose, "{name}: {text:?}: {tight:?} {loose:?}");
        }
    }
}
