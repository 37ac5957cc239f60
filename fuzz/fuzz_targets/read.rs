//! Reads any text with any tree of rules: in pieces as at once, and nothing is taken back.
#![no_main]

use foredraft_grammar::tree::{Each, Mark, NodeId, TreeBuilder};
use foredraft_grammar::{CompletionReader, ReadEvent};
use libfuzzer_sys::fuzz_target;

const MARKS: [Mark; 5] = [Mark::Reasoning, Mark::Content, Mark::Name, Mark::Verbatim, Mark::Text];

/// Builds a tree by a program: each byte adds a node, of those that it takes from a stack.
fn build(tree: &TreeBuilder, program: &[u8]) -> NodeId {
    let mut nodes = vec![tree.text("a")];
    for byte in program {
        let mut take = || if nodes.len() > 1 { nodes.pop() } else { nodes.last().copied() };
        let Some(part) = take() else { break };
        let number = u32::from(byte / 16);
        let node = match byte % 16 {
            0..=2 => {
                nodes.push(part);
                tree.text(["a", "b", "ab", "<"][number as usize % 4])
            }
            3 => {
                nodes.push(part);
                tree.free_text([&["ab"][..], &["<", "b"], &[]][number as usize % 3])
            }
            4 => {
                nodes.push(part);
                tree.emit("x")
            }
            5 => tree.opt(part),
            6 => tree.repeat(part, number / 4, None),
            7 => tree.repeat(part, number / 4, Some(number / 4 + number % 4)),
            8..=9 => tree.mark(MARKS[number as usize % MARKS.len()], part),
            10 => {
                // A rule that contains itself.
                let (rule, begin) = (tree.declare(), tree.text("b"));
                let again = tree.seq(&[begin, rule]);
                let body = tree.alt(&[again, part]);
                tree.define(rule, body);
                rule
            }
            11 => {
                let (items, separator) = (vec![(part, number % 2 == 0), (take().unwrap_or(part), number % 4 < 2)], tree.text("<"));
                let any_order = number < 8;
                tree.each(Each { items, separator, further: None, least: 0, most: None, any_order })
            }
            12..=13 => {
                let first = take().unwrap_or(part);
                tree.seq(&[first, part])
            }
            _ => {
                let first = take().unwrap_or(part);
                tree.alt(&[first, part])
            }
        };
        nodes.push(node);
    }
    let root = tree.alt(&nodes);
    tree.mark(Mark::Content, root)
}

fn show(shown: &mut String, event: ReadEvent<'_>) {
    match event {
        ReadEvent::Open(mark) => *shown += &format!("<{mark:?} "),
        ReadEvent::Close(_) => shown.push('>'),
        ReadEvent::Text(_, text) | ReadEvent::Arguments(text) => *shown += text,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let (program, text) = bytes.split_at(bytes.len() / 2);
    let tree = TreeBuilder::new();
    let root = build(&tree, program);
    let Ok(reader) = CompletionReader::new(tree, root, &foredraft_base::work::Work::unlimited()) else { return };
    let (mut whole, mut expected) = (reader.clone(), String::new());
    whole.push(text, &mut |event| show(&mut expected, event));
    let is_lost = whole.is_lost();
    whole.finish(&mut |event| show(&mut expected, event));
    let (mut pieces, mut shown) = (reader, String::new());
    for byte in text {
        pieces.push(std::slice::from_ref(byte), &mut |event| show(&mut shown, event));
        let mut ended = shown.clone();
        pieces.clone().finish(&mut |event| show(&mut ended, event));
        assert!(ended.starts_with(&shown), "an end takes nothing back");
    }
    assert_eq!(pieces.is_lost(), is_lost);
    pieces.finish(&mut |event| show(&mut shown, event));
    assert_eq!(shown, expected);
});
