//! All work of making a grammar and a reader of a turn is counted, and ends where the signal says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foredraft_base::error::{Code, Result};
use foredraft_base::work::{StopSignal, Work};
use serde_json::json;

use super::round_trip::{request_tools, tools};
use super::templates;
use crate::{MessageReader, ReaderOptions, TurnRequest, TurnStart};

/// The questions that the signal is asked, and how `make` ends if it says "stop" after this many.
fn made(most: usize, make: &dyn Fn(&Work) -> Result<()>) -> (usize, Option<Code>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let stop: StopSignal = Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) >= most);
    let made = make(&Work::new(1 << 25, Some(stop)));
    (asked.load(Ordering::Relaxed), made.err().map(|error| error.code()))
}

/// A host continues a long message, whose text is read for the grammar and for the message.
#[test]
fn continued_messages_are_read_until_the_signal_says_stop() {
    let tools = tools(&request_tools(&json!({"t": {"type": "string"}})));
    for (name, format) in templates::formats() {
        let start = TurnStart { opened: "A hat < a drum, and a kite. ".repeat(4000) };
        let grammar = |work: &Work| {
            let request = TurnRequest { tools: &tools, parallel: true, ..TurnRequest::default() };
            format.grammar(&request, &start, work).map(drop)
        };
        let reader = |work: &Work| {
            let options =
                ReaderOptions { opened: start.opened.clone(), is_continued: true, ..ReaderOptions::default() };
            MessageReader::new(format.clone(), tools.clone(), options, work).map(drop)
        };
        for make in [&grammar as &dyn Fn(&Work) -> Result<()>, &reader] {
            let (all, failure) = made(usize::MAX, make);
            assert!(all >= start.opened.len() / 4096 && failure.is_none(), "{name}: {all} {failure:?}");
            for most in [0, 1, all / 2, all * 3 / 4] {
                assert_eq!(made(most, make), (most + 1, Some(Code::Cancelled)), "{name}");
            }
        }
    }
}

/// A list of many optional items, each with many first letters.
#[test]
fn first_sets_of_grammars_and_readers_are_counted() {
    let many: serde_json::Map<_, _> = (0..100).map(|index| (format!("p{index}"), json!({"type": "string"}))).collect();
    let tools = tools(&request_tools(&json!(many)));
    for (name, format) in templates::formats() {
        let request = TurnRequest { tools: &tools, is_required: true, ..TurnRequest::default() };
        let grammar = |work: &Work| format.grammar(&request, &TurnStart::default(), work).map(drop);
        let (all, failure) = made(usize::MAX, &grammar);
        assert!(failure.is_none(), "{name}: {all} {failure:?}");
        for most in [0, all / 2, all * 3 / 4].into_iter().filter(|most| *most < all) {
            assert_eq!(made(most, &grammar), (most + 1, Some(Code::Cancelled)), "{name}");
        }
    }
}
