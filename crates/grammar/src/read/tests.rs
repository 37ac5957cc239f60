use proptest::collection::vec;
use proptest::prelude::*;

use super::{CompletionReader, MAX_HELD, ReadEvent};
use crate::tests::masks::compare_along;
use crate::tree::{Each, Mark, NodeId, TreeBuilder};

impl CompletionReader {
    /// The number of bytes whose meaning is undecided.
    fn n_held(&self) -> usize {
        self.held.len()
    }
}

/// A tree as the reference reads it.
#[derive(Debug, Clone)]
enum Part {
    Text(&'static str),
    /// Text without any of these.
    Free(&'static [&'static str]),
    Seq(Vec<Part>),
    Alt(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
    Each(Vec<(Part, bool)>, bool),
    Mark(Mark, Box<Part>),
    Emit(&'static str),
}

impl Part {
    fn build(&self, tree: &TreeBuilder) -> NodeId {
        let all = |parts: &[Part], tree: &TreeBuilder| parts.iter().map(|part| part.build(tree)).collect::<Vec<_>>();
        match self {
            Part::Text(text) => tree.text(text),
            Part::Free(delimiters) => tree.free_text(delimiters),
            Part::Seq(parts) => {
                let parts = all(parts, tree);
                tree.seq(&parts)
            }
            Part::Alt(parts) => {
                let parts = all(parts, tree);
                tree.alt(&parts)
            }
            Part::Repeat(part, min, max) => {
                let part = part.build(tree);
                tree.repeat(part, *min, *max)
            }
            Part::Each(items, any_order) => {
                let items = items.iter().map(|(item, is_required)| (item.build(tree), *is_required)).collect();
                let separator = tree.text(",");
                tree.each(Each { items, separator, further: None, least: 0, most: None, any_order: *any_order })
            }
            Part::Mark(mark, part) => {
                let part = part.build(tree);
                tree.mark(*mark, part)
            }
            Part::Emit(text) => tree.emit(text),
        }
    }

    /// Backtracks through all readings from `at` on, those that have priority first. `next` says whether a reading is the right one.
    fn read(&self, text: &str, at: usize, log: &mut Log, next: &mut dyn FnMut(usize, &mut Log) -> bool) -> bool {
        let Some(left) = log.left.checked_sub(1) else { return false };
        log.left = left;
        match self {
            Part::Text(own) => text[at..].starts_with(own) && next(at + own.len(), log),
            Part::Free(delimiters) => (at..=text.len())
                .any(|end| delimiters.iter().all(|delimiter| !text[at..end].contains(delimiter)) && next(end, log)),
            Part::Seq(parts) => match parts.split_first() {
                None => next(at, log),
                Some((first, rest)) => {
                    let rest = Part::Seq(rest.to_vec());
                    first.read(text, at, log, &mut |at, log| rest.read(text, at, log, next))
                }
            },
            Part::Alt(parts) => parts.iter().any(|part| part.read(text, at, log, next)),
            Part::Repeat(part, min, max) => {
                let again = Part::Repeat(part.clone(), min.saturating_sub(1), max.map(|max| max.saturating_sub(1)));
                *max != Some(0) && part.read(text, at, log, &mut |at, log| again.read(text, at, log, next))
                    || *min == 0 && next(at, log)
            }
            Part::Each(items, any_order) => {
                let seen = vec![false; items.len()];
                read_items(items, *any_order, &seen, text, at, log, next)
            }
            Part::Mark(mark, part) => {
                let n = log.marks.len();
                log.marks.push((at, format!("<{mark:?} "), Some(*mark)));
                let found = part.read(text, at, log, &mut |at, log| {
                    let n = log.marks.len();
                    log.marks.push((at, ">".to_owned(), None));
                    let found = next(at, log);
                    if !found {
                        log.marks.truncate(n);
                    }
                    found
                });
                if !found {
                    log.marks.truncate(n);
                }
                found
            }
            Part::Emit(emitted) => {
                let n = log.marks.len();
                log.marks.push((at, format!("!{emitted}"), None));
                let found = next(at, log);
                if !found {
                    log.marks.truncate(n);
                }
                found
            }
        }
    }
}

fn read_items(
    items: &[(Part, bool)],
    any_order: bool,
    seen: &[bool],
    text: &str,
    at: usize,
    log: &mut Log,
    next: &mut dyn FnMut(usize, &mut Log) -> bool,
) -> bool {
    let is_first = seen.iter().all(|seen| !seen);
    let from = if any_order { 0 } else { seen.iter().rposition(|seen| *seen).map_or(0, |last| last + 1) };
    for index in (from..items.len()).filter(|index| !seen[*index]) {
        let mut after = seen.to_vec();
        after[index] = true;
        let begin = if is_first { Part::Seq(Vec::new()) } else { Part::Text(",") };
        let found = begin.read(text, at, log, &mut |at, log| {
            items[index].0.read(text, at, log, &mut |at, log| read_items(items, any_order, &after, text, at, log, next))
        });
        if found {
            return true;
        }
    }
    items.iter().zip(seen).all(|((_, is_required), seen)| *seen || !is_required) && next(at, log)
}

/// The marks of a reading: place, how it is shown, and the mark that begins.
#[derive(Default)]
struct Log {
    marks: Vec<(usize, String, Option<Mark>)>,
    /// How many steps the reference may still make.
    left: usize,
}

/// The first reading of a whole text. `None`: there is none. `Err`: it takes too long to know.
fn reference(part: &Part, text: &str) -> Result<Option<String>, ()> {
    let mut log = Log { marks: Vec::new(), left: 20_000 };
    let found = part.read(text, 0, &mut log, &mut |at, _| at == text.len());
    if log.left == 0 {
        return Err(());
    }
    let (mut shown, mut at, mut n_open) = (String::new(), 0, 0);
    for (place, mark, opened) in &log.marks {
        shown += if n_open > 0 { &text[at..*place] } else { "" };
        shown += mark;
        n_open += i32::from(opened.is_some()) - i32::from(mark == ">");
        at = *place;
    }
    Ok(found.then_some(shown))
}

fn show(shown: &mut String, event: ReadEvent<'_>) {
    match event {
        ReadEvent::Open(mark) => *shown += &format!("<{mark:?} "),
        ReadEvent::Close(_) => *shown += ">",
        ReadEvent::Text(_, text) => *shown += text,
        ReadEvent::Arguments(text) => *shown += &format!("!{text}"),
    }
}

fn part() -> impl Strategy<Value = Part> {
    let leaf = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "ab", "ba", "aab", ","]).prop_map(Part::Text),
        2 => prop::sample::select(vec![&["ab"][..], &["b", ","], &[]]).prop_map(Part::Free),
        1 => prop::sample::select(vec!["x", "y"]).prop_map(Part::Emit),
        1 => Just(Part::Seq(Vec::new())),
    ];
    leaf.prop_recursive(4, 20, 3, |inner| {
        let marks = prop::sample::select(vec![Mark::Reasoning, Mark::Content, Mark::Name]);
        // What is repeated without end is not empty.
        let some = (prop::sample::select(vec!["a", "b"]), inner.clone()).prop_map(|(text, part)| Part::Seq(vec![Part::Text(text), part]));
        prop_oneof![
            3 => vec(inner.clone(), 0..4).prop_map(Part::Seq),
            3 => vec(inner.clone(), 1..4).prop_map(Part::Alt),
            2 => (inner.clone(), 0_u32..2, 0_u32..3).prop_map(|(part, min, more)| Part::Repeat(part.into(), min, Some(min + more))),
            2 => (some, 0_u32..3).prop_map(|(part, min)| Part::Repeat(part.into(), min, None)),
            1 => (vec((inner.clone(), any::<bool>()), 1..4), any::<bool>()).prop_map(|(items, any_order)| Part::Each(items, any_order)),
            3 => (marks, inner).prop_map(|(mark, part)| Part::Mark(mark, part.into())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn masks_of_random_trees_are_those_of_tokens(part in part(), texts in vec("[ab,]{0,8}", 2)) {
        let tree = TreeBuilder::new();
        let root = part.build(&tree);
        compare_along(tree, root, &[&texts[0], &texts[1], "abba,aab"]);
    }

    /// Cut anywhere, nothing is taken back, and the result is the first one in the order of alternatives.
    #[test]
    fn random_trees_are_read_as_by_backtracking(part in part(), texts in vec("[ab,]{0,6}", 4), cut in 0_usize..6) {
        let tree = TreeBuilder::new();
        let root = part.build(&tree);
        let begin = tree.mark(Mark::Content, root);
        // A mark somewhere, so that order counts.
        let root = tree.alt(&[root, begin]);
        let reader = CompletionReader::new(tree, root, &foredraft_base::work::Work::unlimited()).unwrap();
        let part = Part::Alt(vec![part.clone(), Part::Mark(Mark::Content, part.into())]);
        for text in &texts {
            let Ok(expected) = reference(&part, text) else { continue };
            let mut pieces = reader.clone();
            let (first, second) = text.split_at(cut.min(text.len()));
            let mut shown = String::new();
            pieces.push(first.as_bytes(), &mut |event| show(&mut shown, event));
            let early = shown.clone();
            pieces.push(second.as_bytes(), &mut |event| show(&mut shown, event));
            let may_end = !pieces.is_lost() && pieces.may_end();
            prop_assert_eq!(may_end, expected.is_some(), "{:?}", text);
            pieces.finish(&mut |event| show(&mut shown, event));
            let Some(expected) = expected else { continue };
            prop_assert!(shown.starts_with(&early));
            prop_assert_eq!(&shown, &expected, "{:?}", text);
        }
    }
}

proptest! {
    /// Texts that are too long and too ambiguous for the reference.
    #[test]
    fn pieces_of_long_texts_are_read_as_the_whole(parts in vec(part(), 1..4), text in "[ab,é]{8,40}") {
        let tree = TreeBuilder::new();
        let parts: Vec<NodeId> = parts.iter().map(|part| part.build(&tree)).collect();
        let any = tree.alt(&parts);
        let any = tree.mark(Mark::Name, any);
        let (many, letter) = (tree.repeat(any, 0, None), tree.one_of("ab,é"));
        let letter = tree.mark(Mark::Reasoning, letter);
        let each = tree.alt(&[many, letter]);
        let root = tree.repeat(each, 0, None);
        let reader = CompletionReader::new(tree, root, &foredraft_base::work::Work::unlimited()).unwrap();
        let whole = read(&reader, text.as_bytes(), text.len());
        for n in [1, 3] {
            prop_assert_eq!(&read(&reader, text.as_bytes(), n), &whole);
        }
    }
}

/// The events of a text that arrives in pieces of `n` bytes.
fn read(reader: &CompletionReader, text: &[u8], n: usize) -> String {
    let (mut reader, mut shown) = (reader.clone(), String::new());
    for piece in text.chunks(n) {
        reader.push(piece, &mut |event| show(&mut shown, event));
    }
    reader.finish(&mut |event| show(&mut shown, event));
    shown
}

/// Content up to `<x`, and then a name in brackets.
fn tagged(commits: bool) -> CompletionReader {
    let tree = TreeBuilder::new();
    let content = tree.free_text(if commits { &["<x"] } else { &[] });
    let content = tree.mark(Mark::Content, content);
    let (begin, letters, end, commit) = (tree.text("<x["), tree.one_of("ab"), tree.text("]"), tree.commit());
    let name = tree.repeat(letters, 0, None);
    let name = tree.mark(Mark::Name, name);
    let call = tree.seq(&[begin, name, end]);
    let call = tree.mark(Mark::Call, call);
    let call = if commits { call } else { tree.seq(&[call, commit]) };
    let calls = tree.repeat(call, 1, None);
    let both = tree.seq(&[content, calls]);
    let root = tree.alt(&[both, content]);
    CompletionReader::new(tree, root, &foredraft_base::work::Work::unlimited()).unwrap()
}

#[test]
fn only_what_may_be_a_tag_is_held_back() {
    let mut reader = tagged(true);
    let mut shown = String::new();
    for (text, n_held) in [("a <", 1), ("b", 0), ("<", 1), ("x", 0), ("[a", 0), ("]", 0)] {
        reader.push(text.as_bytes(), &mut |event| show(&mut shown, event));
        assert_eq!(reader.n_held(), n_held, "{shown} {text}");
    }
    assert_eq!(shown, "<Content a <b><Call <Name a>>");
    assert!(!reader.is_inside(Mark::Content));
}

#[test]
fn a_call_that_fails_is_content_where_nothing_commits() {
    let reader = tagged(false);
    for n in 1..9 {
        assert_eq!(read(&reader, b"a <x[ab]", n), "<Content a ><Call <Name ab>>", "{n}");
        assert_eq!(read(&reader, b"a <x[c] <x", n), "<Content a <x[c] <x>", "{n}");
        assert_eq!(read(&reader, b"<x[<x[a]", n), "<Content <x[><Call <Name a>>", "{n}");
        assert_eq!(read(&reader, b"a <x[ab", n), "<Content a <x[ab>", "{n}");
    }
    // What was committed stays.
    assert_eq!(read(&reader, b"<x[a] b", 3), "<Content ><Call <Name a>><Content  b");
}

#[test]
fn what_the_tree_cannot_read_becomes_content() {
    let reader = tagged(true);
    for n in 1..9 {
        assert_eq!(read(&reader, b"a<x[abc] d", n), "<Content a><Call <Name ab>><Content c] d", "{n}");
        assert_eq!(read(&reader, b"a<x[a", n), "<Content a><Call <Name a", "a call that breaks off, {n}");
    }
    let tree = TreeBuilder::new();
    let never = tree.class(&[]);
    let reader = CompletionReader::new(tree, never, &foredraft_base::work::Work::unlimited()).unwrap();
    assert_eq!(read(&reader, b"abc", 2), "<Content abc");
}

#[test]
fn characters_are_whole_in_any_pieces() {
    let reader = tagged(true);
    let text = "é€😀".as_bytes();
    for n in 1..9 {
        assert_eq!(read(&reader, text, n), "<Content é€😀>", "{n}");
        assert_eq!(read(&reader, b"\xE2\x82<\xF0\x9F\x98", n), "<Content \u{FFFD}<\u{FFFD}>", "{n}");
        assert_eq!(read(&reader, b"\xFF\xC3\xA9\xC3<x[]", n), "<Content \u{FFFD}é\u{FFFD}><Call <Name >>", "{n}");
    }
    let mut shown = String::new();
    let mut early = reader.clone();
    early.push(b"a\xF0\x9F", &mut |event| show(&mut shown, event));
    assert_eq!((shown.as_str(), early.n_held()), ("<Content a", 2));
}

#[test]
fn texts_of_arguments_are_escaped() {
    let tree = TreeBuilder::new();
    let (text, open, close) = (tree.free_text(&["'"]), tree.as_text("'", "\""), tree.as_text("'", "\""));
    let text = tree.mark(Mark::Text, text);
    let root = tree.seq(&[open, text, close]);
    let reader = CompletionReader::new(tree, root, &foredraft_base::work::Work::unlimited()).unwrap();
    let shown = read(&reader, b"'a\"\\\n\x01\xC3\xA9'", 1);
    assert_eq!(shown.replace('!', ""), "\"<Text a\\\"\\\\\\n\\u0001é>\"");
}

#[test]
fn too_much_undecided_text_is_taken_for_what_may_end() {
    let mut reader = tagged(false);
    let mut shown = String::new();
    reader.push(b"c <x[", &mut |event| show(&mut shown, event));
    let many = vec![b'a'; MAX_HELD + 1];
    for piece in many.chunks(1000) {
        reader.push(piece, &mut |event| show(&mut shown, event));
        assert!(reader.n_held() <= MAX_HELD + 4096);
    }
    assert!(reader.is_cut() && !reader.is_lost() && reader.n_held() < 2000, "{}", reader.n_held());
    assert!(shown.starts_with("<Content c <x[aaaa"), "{}", &shown[..40]);
}

/// As many brackets close as were opened, with a name in the innermost, although the automaton is rebuilt in between.
#[test]
fn rebuilt_automaton_reads_on() {
    let tree = TreeBuilder::new();
    let (open, close, name) = (tree.text("("), tree.text(")"), tree.text("x"));
    let (pair, name) = (tree.declare(), tree.mark(Mark::Name, name));
    let inner = tree.alt(&[pair, name]);
    let body = tree.seq(&[open, inner, close]);
    tree.define(pair, body);
    let root = tree.mark(Mark::Content, pair);
    let mut reader = CompletionReader::new(tree, root, &foredraft_base::work::Work::unlimited()).unwrap();
    let before = std::sync::Arc::clone(&reader.automaton);
    let depth = 150_000;
    let (opened, closed) = ("(".repeat(depth), ")".repeat(depth));
    let mut shown = String::new();
    for piece in [opened.as_str(), "x", &closed] {
        assert!(!reader.may_end());
        reader.push(piece.as_bytes(), &mut |event| show(&mut shown, event));
    }
    assert!(reader.may_end() && !std::sync::Arc::ptr_eq(&before, &reader.automaton));
    assert_eq!(shown, format!("<Content {opened}<Name x>{closed}>"));
}

#[test]
fn set_knows_the_marks_that_all_stacks_are_inside_of() {
    let tree = TreeBuilder::new();
    let (open, close) = (tree.text("<"), tree.text("/>"));
    let thought = tree.free_text(&["/>"]);
    let thought = tree.mark(Mark::Reasoning, thought);
    let thoughts = tree.seq(&[thought, close]);
    let thoughts = tree.mark(Mark::ReasoningBlock, thoughts);
    let (rest, commit) = (tree.free_text(&[]), tree.commit());
    let rest = tree.mark(Mark::Content, rest);
    let block = tree.seq(&[open, commit, thoughts]);
    let block = tree.opt(block);
    let root = tree.seq(&[block, rest]);
    let mut reader = CompletionReader::new(tree, root, &foredraft_base::work::Work::unlimited()).unwrap();
    let mut inside = Vec::new();
    for text in ["", "<", "a", "/", "/>", "b"] {
        reader.push(text.as_bytes(), &mut |_| {});
        inside.push(reader.is_inside(Mark::ReasoningBlock));
        assert!(!reader.is_inside(Mark::Reasoning), "it may end at any place");
    }
    assert_eq!(inside, [false, true, true, true, false, false]);
}

#[test]
fn decisions_inside_of_values_are_refused() {
    let tree = TreeBuilder::new();
    let (text, commit) = (tree.text("a"), tree.commit());
    let both = tree.seq(&[text, commit]);
    let (value, foreign) = (tree.mark(Mark::Verbatim, both), tree.mark(Mark::Foreign, both));
    assert!(CompletionReader::new(tree.clone(), value, &foredraft_base::work::Work::unlimited()).is_err());
    assert!(CompletionReader::new(tree.clone(), foreign, &foredraft_base::work::Work::unlimited()).is_ok());
    let open = tree.declare();
    assert!(CompletionReader::new(tree, open, &foredraft_base::work::Work::unlimited()).is_err(), "it is not defined");
}

/// Each stack has passed all marks that may be around it, so all together are as many as the square of their number.
#[test]
fn marks_of_many_stacks_are_bounded() {
    let tree = TreeBuilder::new();
    let mut node = tree.text("a");
    for _ in 0..2000 {
        let marked = tree.mark(Mark::Content, node);
        let empty = tree.empty();
        let text = tree.text("b");
        let both = tree.seq(&[marked, text]);
        node = tree.alt(&[both, text, empty]);
    }
    let begun = CompletionReader::new(tree, node, &foredraft_base::work::Work::unlimited());
    assert!(begun.is_err());
}
