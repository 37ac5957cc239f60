//! How the content of a string is spelled: in JSON, in Python, or as it is between delimiters.

use std::collections::{BTreeSet, HashMap};

use foredraft_base::work::Work;
use foredraft_grammar::pattern::{CharSet, Ranges};
use foredraft_grammar::tree::{Mark, NodeId, TextEnd, TextWithout, TreeBuilder};

use crate::pattern::{PatternNode, STEPS_PER_NODE, SetFault, TextSet};

/// Surrogates are no characters.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);
/// Characters that no completion has raw.
const UNSAYABLE: [(u32, u32); 2] = [(0, 0), SURROGATES];
/// Characters that a JSON string has only as escapes, DEL, and surrogates.
const ESCAPED: [(u32, u32); 5] = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), SURROGATES];
/// The escapes that have a letter in JSON: the character, the letter, and what JSON has for it.
const LETTERS: &[(u32, char, &str)] = &[
    (0x08, 'b', "\\b"),
    (0x09, 't', "\\t"),
    (0x0A, 'n', "\\n"),
    (0x0C, 'f', "\\f"),
    (0x0D, 'r', "\\r"),
    (0x22, '"', "\\\""),
    (0x2F, '/', "/"),
    (0x5C, '\\', "\\\\"),
];
/// Further escapes of Python.
const PYTHON_LETTERS: &[(u32, char, &str)] =
    &[(0x27, '\'', "'"), (0x07, 'a', "\\u0007"), (0x0B, 'v', "\\u000b"), (0x00, '0', "\\u0000")];
const HEX: &[(u32, u32)] = &[(0x30, 0x39), (0x41, 0x46), (0x61, 0x66)];
/// The maximum number of nodes of a pattern.
const MAX_NODES: usize = 1 << 15;

/// How the content of a string is spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// As in a JSON string.
    Json,
    /// As in a string of Python in these quotes; if lenient, also with line ends and escapes that Python does not know.
    Python { quote: char, is_lenient: bool },
    /// As it is.
    Raw,
}

/// A script, and texts that do not occur in the string.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Spelling {
    pub(crate) script: Script,
    pub(crate) delimiters: Vec<String>,
}

/// The text without its last character.
fn without_last(text: &str) -> &str {
    text.char_indices().next_back().and_then(|(last, _)| text.get(..last)).unwrap_or_default()
}

impl Spelling {
    pub(crate) fn new(script: Script, delimiters: &[&str]) -> Spelling {
        // Where another one ends inside of a delimiter, that one comes first.
        let is_reached =
            |text: &str| !delimiters.iter().any(|other| !other.is_empty() && without_last(text).contains(other));
        let given: BTreeSet<&str> =
            delimiters.iter().copied().filter(|text| !text.is_empty() && is_reached(text)).collect();
        Spelling { script, delimiters: given.into_iter().map(str::to_owned).collect() }
    }

    /// The characters that are not written as themselves.
    fn escaped(&self) -> Vec<(u32, u32)> {
        match self.script {
            Script::Json => ESCAPED.to_vec(),
            Script::Python { quote, is_lenient } => {
                let controls: &[(u32, u32)] = if is_lenient { &[(0, 0x08), (0x0B, 0x1F)] } else { &[(0, 0x1F)] };
                [controls, &[(quote.into(), quote.into()), (0x5C, 0x5C), (0x7F, 0x7F), SURROGATES]].concat()
            }
            Script::Raw => UNSAYABLE.to_vec(),
        }
    }

    /// The escapes that have a letter.
    fn letters(&self) -> impl Iterator<Item = (u32, char, &'static str)> + use<> {
        let (json, python) = match self.script {
            Script::Json => (LETTERS, &[][..]),
            Script::Python { .. } => (LETTERS, PYTHON_LETTERS),
            Script::Raw => (&[][..], &[][..]),
        };
        json.iter().chain(python).copied()
    }

    /// Says that JSON must escape the text of a node. JSON's own is JSON as it stands.
    fn marked(&self, node: NodeId, tree: &TreeBuilder) -> NodeId {
        if self.script == Script::Json { node } else { tree.mark(Mark::Text, node) }
    }

    /// An escape: the text of the completion, and what JSON has for it.
    fn escape_text(&self, text: &str, json: &str, tree: &TreeBuilder) -> NodeId {
        if self.script == Script::Json { tree.text(text) } else { tree.as_text(text, json) }
    }

    /// The escapes with these letters.
    fn letter_escapes(
        &self,
        letters: impl Iterator<Item = (u32, char, &'static str)>,
        tree: &TreeBuilder,
    ) -> Vec<NodeId> {
        if self.script != Script::Json {
            return letters.map(|(_, letter, json)| tree.as_text(&format!("\\{letter}"), json)).collect();
        }
        let letters: String = letters.map(|(_, letter, _)| letter).collect();
        if letters.is_empty() { Vec::new() } else { vec![tree.seq(&[tree.text("\\"), tree.one_of(&letters)])] }
    }

    /// Any escape.
    fn escape(&self, tree: &TreeBuilder) -> NodeId {
        let mut forms = self.letter_escapes(self.letters(), tree);
        let (hex, surrogate) = (tree.class(HEX), tree.one_of("dD"));
        let verbatim = |node: NodeId| match self.script {
            Script::Json => node,
            _ => tree.mark(Mark::Verbatim, node),
        };
        // Surrogates only in pairs, because a lone one is invalid.
        let unicode = self.escape_text("\\u", "\\u", tree);
        let two = tree.repeat(hex, 2, Some(2));
        let plain = tree.seq(&[tree.one_of("0123456789abcefABCEF"), tree.repeat(hex, 3, Some(3))]);
        let below = tree.seq(&[surrogate, tree.one_of("01234567"), two]);
        let code = verbatim(tree.alt(&[plain, below]));
        let first = verbatim(tree.seq(&[surrogate, tree.one_of("89abAB"), two]));
        let last = verbatim(tree.seq(&[surrogate, tree.one_of("cdefCDEF"), two]));
        let pair = tree.seq(&[first, unicode, last]);
        forms.push(tree.seq(&[unicode, tree.alt(&[code, pair])]));
        if let Script::Python { is_lenient, .. } = self.script {
            forms.push(tree.seq(&[tree.as_text("\\x", "\\u00"), tree.mark(Mark::Verbatim, two)]));
            forms.push(long_escape(tree));
            if !is_lenient {
                return tree.alt(&forms);
            }
            // Python keeps the backslash of an escape that it does not know.
            let known: String = self.letters().map(|(_, letter, _)| letter).chain("xuU\n".chars()).collect();
            let other = tree.mark(Mark::Text, tree.none_of(&known));
            forms.push(tree.seq(&[tree.as_text("\\", "\\\\"), other]));
        }
        tree.alt(&forms)
    }

    /// Characters as themselves, any number of them.
    fn run(&self, end: TextEnd, tree: &TreeBuilder) -> NodeId {
        self.marked(self.unmarked_run(end, tree), tree)
    }

    /// As [`Spelling::run`], for a place inside of a mark.
    fn unmarked_run(&self, end: TextEnd, tree: &TreeBuilder) -> NodeId {
        let delimiters: Vec<&str> = self.delimiters.iter().map(String::as_str).collect();
        tree.text_without(&TextWithout { delimiters: &delimiters, excluded: &self.escaped(), end, is_utf8: true })
    }

    /// Any string. `is_closed`: it does not end with the beginning of a delimiter.
    pub(crate) fn any_text(&self, tree: &TreeBuilder, is_closed: bool) -> NodeId {
        let end = if is_closed { TextEnd::OutsideOfDelimiters } else { TextEnd::BeforeDelimiter };
        let last = self.run(end, tree);
        if self.script == Script::Raw {
            return last;
        }
        let escaped = tree.seq(&[self.run(TextEnd::Anywhere, tree), self.escape(tree)]);
        tree.seq(&[tree.repeat(escaped, 0, None), last])
    }

    /// A text inside of a string of Python.
    pub(crate) fn python(&self, text: &str) -> String {
        let Script::Python { quote, .. } = self.script else { return text.to_owned() };
        let mut out = String::new();
        for char in text.chars() {
            let letter = self.letters().find(|(code, letter, _)| {
                *code == u32::from(char) && (char.is_control() && char != '\0' || *letter == quote || char == '\\')
            });
            match letter {
                Some((_, letter, _)) => out.extend(['\\', letter]),
                None if char.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(char))),
                None => out.push(char),
            }
        }
        out
    }

    /// A text with escapes in place of the first characters of delimiters.
    pub(crate) fn without_delimiters(&self, mut text: String) -> String {
        for delimiter in &self.delimiters {
            let Some(first) = delimiter.chars().next() else { continue };
            let mut escaped: String = match self.script {
                Script::Python { .. } if u32::from(first) > 0xFFFF => format!("\\U{:08x}", u32::from(first)),
                _ => first.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
            };
            escaped.push_str(delimiter.get(first.len_utf8()..).unwrap_or_default());
            text = text.replace(delimiter, &escaped);
        }
        text
    }

    /// Whether a text can be written as it is: it has no delimiter, and the first one that occurs is the one that follows, whichever does.
    pub(crate) fn allows(&self, text: &str) -> bool {
        !text.contains('\0')
            && self.delimiters.iter().all(|delimiter| {
                let whole = format!("{text}{delimiter}");
                self.delimiters.iter().all(|other| {
                    !without_last(&whole).contains(other.as_str())
                        && (other.len() <= delimiter.len() || !whole.ends_with(other.as_str()))
                })
            })
    }

    /// The strings that a pattern matches as a whole. The error names the part that a grammar cannot express.
    pub(crate) fn pattern(&self, node: &PatternNode, work: &Work, tree: &TreeBuilder) -> Result<NodeId, String> {
        if node.is_any_text() {
            return Ok(self.any_text(tree, false));
        }
        let avoiding = avoid(node, &self.delimiters).ok_or("only texts with what ends the argument")?;
        let written = self.write(&avoiding, work, &mut 0, tree)?;
        // Of text as it is, all is one part.
        Ok(if self.script == Script::Raw { self.marked(written, tree) } else { written })
    }

    fn write(
        &self,
        node: &PatternNode,
        work: &Work,
        n_nodes: &mut usize,
        tree: &TreeBuilder,
    ) -> Result<NodeId, String> {
        work.step(STEPS_PER_NODE).map_err(|end| end.to_string())?;
        *n_nodes += 1;
        if *n_nodes > MAX_NODES {
            return Err("too many characters and classes".into());
        }
        let mut all = |nodes: &[PatternNode]| -> Result<Vec<NodeId>, String> {
            nodes.iter().map(|node| self.write(node, work, n_nodes, tree)).collect()
        };
        Ok(match node {
            PatternNode::Class(set) => self.set(set, tree)?,
            PatternNode::Seq(nodes) => tree.seq(&all(nodes)?),
            PatternNode::Alt(nodes) => tree.alt(&all(nodes)?),
            node if node.is_any_text() => self.any_part(tree),
            PatternNode::Repeat(item, least, most) => {
                tree.repeat(self.write(item, work, n_nodes, tree)?, *least, *most)
            }
        })
    }

    /// Any text inside of a pattern.
    fn any_part(&self, tree: &TreeBuilder) -> NodeId {
        match self.script {
            // The mark is around the whole string.
            Script::Raw => self.unmarked_run(TextEnd::OutsideOfDelimiters, tree),
            _ => self.any_text(tree, true),
        }
    }

    /// One character of a set.
    fn set(&self, set: &CharSet, tree: &TreeBuilder) -> Result<NodeId, String> {
        let plain = set.without(&self.escaped());
        let class = match plain.single().and_then(char::from_u32) {
            Some(char) => Some(tree.text(char.encode_utf8(&mut [0; 4]))),
            None => (!plain.is_empty()).then(|| tree.class(plain.ranges())),
        };
        if self.script == Script::Raw {
            return class.ok_or_else(|| "an empty class".into());
        }
        // A character as itself, or an escape with a letter. Escapes by number are used only where nothing else is in the set.
        let mut forms: Vec<NodeId> = class.map(|class| self.marked(class, tree)).into_iter().collect();
        if *set == CharSet::any() {
            forms.push(self.escape(tree));
            return Ok(tree.alt(&forms));
        }
        let letters = self.letters().filter(|(code, ..)| set.contains(*code));
        forms.extend(self.letter_escapes(letters, tree));
        if plain.is_empty() {
            let is_letter = |code: u32| self.letters().any(|(other, ..)| other == code);
            let controls = (0..0x20).chain([0x7F]).filter(|code| set.contains(*code) && !is_letter(*code));
            for code in controls {
                let text = format!("\\u{code:04x}");
                forms.push(self.escape_text(&text, &text, tree));
            }
        }
        if forms.is_empty() { Err("an empty class".into()) } else { Ok(tree.alt(&forms)) }
    }

    /// The strings of a set. The error says why there are none, or too many.
    pub(crate) fn texts(&self, set: &TextSet, work: &Work, tree: &TreeBuilder) -> Result<NodeId, String> {
        let is_raw = self.script == Script::Raw;
        let own = (is_raw || !self.delimiters.is_empty())
            .then(|| set.without(&self.delimiters, if is_raw { &UNSAYABLE } else { &[] }, work));
        let own = own.transpose().map_err(|fault| match fault {
            SetFault::Empty => "only texts with what ends the argument".to_owned(),
            SetFault::TooLarge(why) => why,
        })?;
        let states = &own.as_ref().unwrap_or(set).states;
        let rules: Vec<NodeId> = states.iter().map(|_| tree.declare()).collect();
        // Most states have the classes of others, which take time to write.
        let mut written: HashMap<&[(u32, u32)], NodeId> = HashMap::new();
        for (state, rule) in states.iter().zip(&rules) {
            let mut forms = Vec::new();
            if state.is_any {
                forms.push(self.any_part(tree));
            } else {
                for (chars, next) in &state.next {
                    let char = match written.get(chars.ranges()) {
                        Some(known) => *known,
                        None => {
                            work.step(STEPS_PER_NODE).map_err(|end| end.to_string())?;
                            self.set(chars, tree)?
                        }
                    };
                    written.insert(chars.ranges(), char);
                    forms.extend(rules.get(*next).map(|next| tree.seq(&[char, *next])));
                }
                forms.extend(state.may_end.then(|| tree.empty()));
            }
            tree.define(*rule, tree.alt(&forms));
        }
        let root = rules.first().copied().ok_or("no text")?;
        Ok(if is_raw { self.marked(root, tree) } else { root })
    }
}

/// `\U` with eight digits. JSON has a pair of surrogates for a character beyond the first plane, whose bits are those of the digits in other
/// places: each digit that is read makes one of the pair known.
fn long_escape(tree: &TreeBuilder) -> NodeId {
    let hex = tree.class(HEX);
    // A digit that is read, and the text that it makes known.
    let digit = |value: u32, json: &str| {
        let lower = char::from_digit(value, 16).unwrap_or('0');
        let forms: BTreeSet<char> = [lower, lower.to_ascii_uppercase()].into();
        let forms: Vec<NodeId> =
            forms.into_iter().map(|form| tree.as_text(form.encode_utf8(&mut [0; 4]), json)).collect();
        tree.alt(&forms)
    };
    let last = tree.mark(Mark::Verbatim, tree.repeat(hex, 2, Some(2)));
    // By the two bits of the digit before that are in the next digit of the pair.
    let third: Vec<NodeId> = (0..4)
        .map(|before| {
            let forms: Vec<NodeId> = (0..16)
                .map(|value: u32| {
                    let json = format!("{:x}\\ud{:x}", before << 2 | value >> 2, 0xC | value & 3);
                    digit(value, &json)
                })
                .collect();
            tree.seq(&[tree.alt(&forms), last])
        })
        .collect();
    let second: Vec<NodeId> = (0..4)
        .map(|before| {
            let mut forms = Vec::new();
            for value in 0..16_u32 {
                let read = digit(value, &format!("{:x}", before << 2 | value >> 2));
                forms.extend(third.get((value & 3) as usize).map(|next| tree.seq(&[read, *next])));
            }
            tree.alt(&forms)
        })
        .collect();
    let four = tree.mark(Mark::Verbatim, tree.repeat(hex, 4, Some(4)));
    let mut forms = vec![tree.seq(&[tree.as_text("\\U0000", "\\u"), four])];
    for plane in 0..16_u32 {
        let json = format!("\\ud{:x}", 8 | plane >> 2);
        let read = match plane {
            15 => tree.as_text("\\U0010", &json),
            plane => tree.seq(&[tree.text("\\U000"), digit(plane + 1, &json)]),
        };
        forms.extend(second.get((plane & 3) as usize).map(|next| tree.seq(&[read, *next])));
    }
    tree.alt(&forms)
}

/// A pattern of which no text has a delimiter, and no text ends with the beginning of one. `None`: there are no such texts.
///
/// The result can be narrower than it must be. Where the pattern has any text, this stays, because it avoids the delimiters by itself
/// ([`Spelling::any_text`]).
fn avoid(node: &PatternNode, delimiters: &[String]) -> Option<PatternNode> {
    let mut sets = Vec::new();
    node.add_sets(&mut sets);
    let chars = |text: &str| -> Vec<u32> { text.chars().map(u32::from).collect() };
    let delimiters: Vec<Vec<u32>> = delimiters.iter().map(|text| chars(text)).collect();
    let nth = |n: usize| delimiters.iter().filter_map(move |text| text.get(n)).map(|code| (*code, *code));
    let is_possible = |char: &u32| sets.iter().any(|set| set.contains(*char));
    let possible: Vec<&Vec<u32>> = delimiters.iter().filter(|text| text.iter().all(is_possible)).collect();
    if possible.is_empty() {
        return Some(node.clone());
    }
    let firsts: Ranges = nth(0).collect();
    // A length alone: characters with which no delimiter begins, or those and pairs of one and a harmless next one.
    if let PatternNode::Repeat(item, least, most) = node
        && **item == PatternNode::Class(CharSet::any())
    {
        let plain = PatternNode::Class(CharSet::any().without(&firsts));
        let repeat = |item: &PatternNode, most: Option<u32>| PatternNode::Repeat(Box::new(item.clone()), *least, most);
        let harmless = CharSet::any().without(&nth(1).chain(nth(0)).collect::<Ranges>());
        let has_singles = delimiters.iter().any(|text| text.len() == 1);
        let pairs = most.map(|most| most / 2).filter(|_| !has_singles);
        let can_pair = !has_singles && (most.is_none() || pairs.is_some_and(|pairs| pairs > 0 && pairs >= *least));
        if !can_pair {
            return Some(repeat(&plain, *most));
        }
        let pair = vec![PatternNode::Class(CharSet::new(false, &firsts)), PatternNode::Class(harmless)];
        let unit = PatternNode::Alt(vec![plain.clone(), PatternNode::Seq(pair)]);
        return Some(match most {
            None => repeat(&unit, None),
            Some(_) => PatternNode::Alt(vec![repeat(&plain, *most), repeat(&unit, pairs)]),
        });
    }
    // No delimiter begins outside of any text.
    if let Some(without) = node.without(&firsts, true) {
        return Some(without);
    }
    // One of each delimiter's characters occurs nowhere.
    possible.into_iter().try_fold(node.clone(), |rest, text| {
        let candidates: BTreeSet<u32> = text.iter().copied().collect();
        candidates.into_iter().find_map(|code| rest.without(&[(code, code)], false))
    })
}
