//! Reads completions of one chat format in tokens of four bytes, with a delta after each: nanoseconds and allocations a byte, and the memory of a request.
//!
//!     cargo bench -p foredraft-chat --bench reading
//!     valgrind --tool=callgrind target/release/deps/reading-* CASE TOKENS
//!
//! With a case and a number of tokens it only reads so many, without a grammar, so that two runs under callgrind differ by the instructions of the
//! tokens between them. `strict` follows the grammar of the turn, `lenient` reads what nothing constrained. Memory is what the record keeps that is named: all
//! bytes that were allocated and not freed, once a message was read.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "benchmarks may panic and count allocations"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use foredraft_base::work::Work;
use foredraft_chat::{
    Block, CallObject, CallPart, Calls, ChatFormat, MessageParser, MessageReader, ReaderOptions, Tool, TurnRequest,
    TurnStart,
};
use serde_json::json;

/// The bytes that are allocated now, and how often some were.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: passes each call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Hermes' and Qwen's calls, with reasoning.
fn format() -> ChatFormat {
    let object = CallObject { name: Some("name".into()), arguments: "arguments".into(), ..CallObject::default() };
    let text = |text: &str| CallPart::Text(text.to_owned());
    let calls = Calls {
        separator: "\n".into(),
        call: vec![text("<tool_call>\n"), CallPart::Object(object), text("\n</tool_call>")],
        ..Calls::default()
    };
    ChatFormat {
        reasoning: Some(Block::new("<think>\n", "\n</think>")),
        calls: vec![calls],
        shows_tools: true,
        ..ChatFormat::default()
    }
}

fn tools(work: &Work) -> Vec<Tool> {
    let schema = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}, "unit": {"enum": ["celsius", "fahrenheit"]},
    }});
    ["get_weather", "get_forecast"].map(|name| Tool::new(name, &schema, work).expect("a schema")).into()
}

/// The completions: a name, the text before, what is repeated, and the text behind.
const CASES: [(&str, &str, &str, &str); 3] = [
    ("content", "", "The quick brown fox jumps over the lazy dog, and then it sleeps. Grüße!\n\n- one `x < y`\n", ""),
    (
        "reasoning",
        "<think>\n",
        "The user asks for the weather, so I look at the tools. First the city, then the unit.\n",
        "</think>\nYes.",
    ),
    (
        "arguments",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"",
        "a long name of a city, with \\n and Grüße ",
        "\"}}\n</tool_call>",
    ),
];

/// Reads a text, and returns its parser.
fn read(reader: &Arc<MessageReader>, text: &[String]) -> MessageParser {
    let mut parser = MessageParser::new(Arc::clone(reader));
    for token in text {
        parser.push(token);
        std::hint::black_box(parser.delta());
    }
    parser
}

/// A text of so many tokens of about four bytes.
fn tokens((_, before, repeated, behind): (&str, &str, &str, &str), n_tokens: usize) -> Vec<String> {
    let text = format!("{before}{}{behind}", repeated.repeat(n_tokens * 4 / repeated.len() + 1));
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(4).map(|token| token.iter().collect()).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let work = Work::unlimited();
    let wanted = arguments.first();
    for case in CASES.into_iter().filter(|case| wanted.is_none_or(|wanted| wanted == case.0)) {
        for is_enforced in [false, true] {
            let start = LIVE.load(Ordering::Relaxed);
            let kept = || LIVE.load(Ordering::Relaxed) - start;
            let tools = tools(&work);
            let request = TurnRequest { tools: &tools, parallel: true, ..TurnRequest::default() };
            let grammar = format().grammar(&request, &TurnStart::default(), &work).expect("a grammar");
            let of_grammar = kept();
            let options =
                ReaderOptions { is_enforced, grammar: grammar.filter(|_| is_enforced), ..ReaderOptions::default() };
            let reader = Arc::new(MessageReader::new(format(), tools, options, &work).expect("a reader"));
            let of_reader = kept();
            let n_tokens = arguments.get(1).map_or(20_000, |n| n.parse().expect("a number of tokens"));
            let text = tokens(case, n_tokens);
            if wanted.is_some() {
                std::hint::black_box(read(&reader, &text));
                break;
            }
            let few = tokens(case, 64);
            let without = kept();
            let parser = read(&reader, &few);
            let of_parser = kept() - without;
            drop(parser);
            let n_bytes: usize = text.iter().map(String::len).sum();
            let (begin, before) = (Instant::now(), ALLOCATIONS.load(Ordering::Relaxed));
            drop(read(&reader, &text));
            let (time, n_allocated) = (begin.elapsed(), ALLOCATIONS.load(Ordering::Relaxed) - before);
            println!(
                "{:<10} {:<8} {:>6.1} ns/byte  {:>5.2} allocations/byte  tools and grammar {:>6} bytes, reader {:>6}, a message of 64 tokens {:>6}",
                case.0,
                if is_enforced { "strict" } else { "lenient" },
                time.as_nanos() as f64 / n_bytes as f64,
                n_allocated as f64 / n_bytes as f64,
                of_grammar,
                of_reader - of_grammar,
                of_parser
            );
        }
    }
}
