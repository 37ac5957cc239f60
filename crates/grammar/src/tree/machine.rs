//! Small automata over bytes: classes of characters in UTF-8, and text without delimiters.

use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::dfa::DFA;
use aho_corasick::{Anchored, StartKind};
use foldhash::{HashMap, HashMapExt as _};

use crate::pattern::CharSet;

/// No state.
const DEAD: u32 = u32::MAX;
/// The most bytes that the delimiters of a text may have together.
const MAX_DELIMITERS: usize = 1 << 12;
/// The largest code point.
const MAX_CHAR: u32 = 0x10_FFFF;

/// Text in which delimiters and characters do not occur.
#[derive(Debug, Clone, Copy)]
pub struct TextWithout<'a> {
    /// None of these occurs. Empty ones do not count. At most 4 KiB together.
    pub delimiters: &'a [&'a str],
    /// No character of these ranges of code points occurs. Only for UTF-8.
    pub excluded: &'a [(u32, u32)],
    /// Where the text may end.
    pub end: TextEnd,
    /// The text is UTF-8, or else any bytes.
    pub is_utf8: bool,
}

/// Where a [`TextWithout`] may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextEnd {
    /// Anywhere.
    Anywhere,
    /// Where a delimiter may follow: whichever of them does, it is the first one that occurs.
    BeforeDelimiter,
    /// Where it does not end with the beginning of a delimiter.
    OutsideOfDelimiters,
}

/// An automaton over bytes. State 0 is the first one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    /// The column of each byte: bytes that no state tells apart share one.
    columns: Box<[u8; 256]>,
    n_columns: usize,
    next: Box<[u32]>,
    may_end: Box<[bool]>,
    /// Whether the text is one character, and may be any that is not ASCII: all of them or none.
    others: Option<bool>,
}

/// The effect of a byte on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachineStep {
    /// The byte may not follow.
    Dead,
    /// The machine is in this state.
    State(u32),
    /// The text is complete, and nothing may follow.
    Done,
}

impl Machine {
    fn new(rows: &[[u32; 256]], may_end: Vec<bool>) -> Machine {
        let mut columns = Box::new([0_u8; 256]);
        // The first byte of each column.
        let mut firsts = vec![0];
        for row in rows {
            let mut split: HashMap<(u8, u32), u8> = HashMap::new();
            let mut before = None;
            firsts.clear();
            for (byte, (column, next)) in columns.iter_mut().zip(row).enumerate() {
                let pair = (*column, *next);
                // Neighbours mostly share a column.
                *column = match before {
                    Some((same, column)) if same == pair => column,
                    _ => *split.entry(pair).or_insert_with(|| {
                        firsts.push(byte);
                        u8::try_from(firsts.len() - 1).unwrap_or(u8::MAX)
                    }),
                };
                before = Some((pair, *column));
            }
        }
        let next = rows.iter().flat_map(|row| firsts.iter().filter_map(|byte| row.get(*byte)).copied());
        Machine { next: next.collect(), columns, n_columns: firsts.len(), may_end: may_end.into(), others: None }
    }

    /// The state after a byte.
    pub(crate) fn step(&self, state: u32, byte: u8) -> MachineStep {
        let column = usize::from(self.column(byte));
        let next = self.next.get(state as usize * self.n_columns + column).copied().unwrap_or(DEAD);
        match next {
            DEAD => MachineStep::Dead,
            next if self.may_end(next) && self.ways_out(next).next().is_none() => MachineStep::Done,
            next => MachineStep::State(next),
        }
    }

    /// Whether the text may end in a state.
    pub(crate) fn may_end(&self, state: u32) -> bool {
        self.may_end.get(state as usize).copied().unwrap_or(false)
    }

    /// Whether all characters that are not ASCII complete the text, or none of them can follow. `None`: neither is known.
    pub(crate) fn takes_others(&self, state: u32) -> Option<bool> {
        self.others.filter(|_| state == 0)
    }

    /// The column of a byte: two bytes of one column lead to the same states.
    pub(crate) fn column(&self, byte: u8) -> u8 {
        self.columns.get(usize::from(byte)).copied().unwrap_or(0)
    }

    pub(crate) fn n_columns(&self) -> usize {
        self.n_columns
    }

    /// The bytes that may follow in a state.
    pub(crate) fn next_bytes(&self, state: u32) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |byte| self.step(state, *byte) != MachineStep::Dead)
    }

    /// The number of transitions.
    pub(crate) fn size(&self) -> usize {
        self.next.len()
    }

    fn ways_out(&self, state: u32) -> impl Iterator<Item = u32> {
        let from = state as usize * self.n_columns;
        self.next.get(from..from + self.n_columns).into_iter().flatten().copied().filter(|next| *next != DEAD)
    }
}

/// One character whose code point is in the ranges, or in none of them if `is_negated`.
pub(super) fn class(is_negated: bool, ranges: &[(u32, u32)]) -> Machine {
    let set = CharSet::new(is_negated, ranges);
    let ranges = set.ranges();
    let has_all = |from, to| ranges.iter().any(|(first, last)| *first <= from && *last >= to);
    let others = match ranges.last() {
        Some((_, last)) if *last >= 0x80 => (has_all(0x80, 0xD7FF) && has_all(0xE000, MAX_CHAR)).then_some(true),
        _ => Some(false),
    };
    let mut builder =
        ClassBuilder { ranges, ids: HashMap::new(), rows: vec![[DEAD; 256], [DEAD; 256]], whole: [DEAD; 4] };
    let mut first = [DEAD; 256];
    for (byte, next) in (0..=u8::MAX).zip(&mut first) {
        *next = match byte {
            0..=0x7F => builder.state(u32::from(byte), 0, 0),
            0xC2..=0xDF => builder.state(u32::from(byte & 0x1F) << 6, 1, 0x80),
            0xE0..=0xEF => builder.state(u32::from(byte & 0x0F) << 12, 2, 0x800),
            0xF0..=0xF4 => builder.state(u32::from(byte & 0x07) << 18, 3, 0x1_0000),
            _ => DEAD,
        };
    }
    builder.rows.first_mut().into_iter().for_each(|row| *row = first);
    let may_end = (0..builder.rows.len()).map(|state| state == 1).collect();
    Machine { others, ..Machine::new(&builder.rows, may_end) }
}

/// Numbers are below [`super::MAX_SIZE`].
pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Builds the states of a class: state 0 is the first one, state 1 the end of a character.
struct ClassBuilder<'r> {
    ranges: &'r [(u32, u32)],
    ids: HashMap<[u32; 64], u32>,
    rows: Vec<[u32; 256]>,
    /// By the number of missing bytes, the state from which all of them lead to a character.
    whole: [u32; 4],
}

impl ClassBuilder<'_> {
    /// The state in which `left` bytes are missing from a character that is `low` so far and must be at least `least`.
    fn state(&mut self, low: u32, left: u8, least: u32) -> u32 {
        let high = (low | ((1 << (6 * left)) - 1)).min(MAX_CHAR);
        let reached = self.ranges.partition_point(|(_, last)| *last < low.max(least));
        let (is_any, is_whole) = match self.ranges.get(reached) {
            Some((first, last)) => (*first <= high && least <= high, *first <= low && *last >= high && low >= least),
            None => (false, false),
        };
        if !is_any || left == 0 {
            return if is_any { 1 } else { DEAD };
        }
        // All characters with `left` more bytes share their states.
        let is_whole = is_whole && high < MAX_CHAR;
        if let Some(known) = self.whole.get(usize::from(left)).filter(|known| is_whole && **known != DEAD) {
            return *known;
        }
        let mut after = [DEAD; 64];
        for (bits, next) in (0..).zip(&mut after) {
            *next = self.state(low | bits << (6 * (left - 1)), left - 1, least);
        }
        let id = number(self.rows.len());
        let known = *self.ids.entry(after).or_insert(id);
        if known == id {
            let mut row = [DEAD; 256];
            row.iter_mut().skip(0x80).zip(after).for_each(|(next, after)| *next = after);
            self.rows.push(row);
        }
        self.whole.get_mut(usize::from(left)).filter(|_| is_whole).into_iter().for_each(|whole| *whole = known);
        known
    }
}

/// A search for delimiters. A state is the longest end of the text that begins one.
struct DelimiterSearch<'a> {
    texts: Vec<&'a [u8]>,
    start: StateID,
    automaton: DFA,
}

impl<'a> DelimiterSearch<'a> {
    /// `None`: they are too long.
    fn new(delimiters: &[&'a str]) -> Option<DelimiterSearch<'a>> {
        let given: Vec<&[u8]> = delimiters.iter().map(|text| text.as_bytes()).filter(|text| !text.is_empty()).collect();
        if given.iter().map(|text| text.len()).fold(0, usize::saturating_add) > MAX_DELIMITERS {
            return None;
        }
        let automaton = DFA::builder().start_kind(StartKind::Unanchored).build(&given).ok()?;
        let start = automaton.start_state(Anchored::No).ok()?;
        let mut new = DelimiterSearch { texts: Vec::new(), start, automaton };
        // Where another one ends inside of a delimiter, that one comes first.
        let is_reached = |text: &&[u8]| {
            let inside = text.split_last().map_or(&[][..], |(_, inside)| inside);
            let next = |state, byte: &u8| Some(new.step(state, *byte)).filter(|state| new.found(*state) == 0);
            inside.iter().try_fold(start, next).is_some()
        };
        new.texts = given.iter().copied().filter(is_reached).collect();
        Some(new)
    }

    fn step(&self, state: StateID, byte: u8) -> StateID {
        self.automaton.next_state(Anchored::No, state, byte)
    }

    /// The length of the longest delimiter with which the text ends; 0: none.
    fn found(&self, state: StateID) -> usize {
        if !self.automaton.is_match(state) {
            return 0;
        }
        let ends = (0..self.automaton.match_len(state)).map(|index| self.automaton.match_pattern(state, index));
        ends.map(|text| self.automaton.pattern_len(text)).max().unwrap_or(0)
    }

    /// Whether the first delimiter that occurs is the one that follows, whichever does.
    fn may_follow(&self, state: StateID) -> bool {
        self.texts.iter().all(|text| {
            let mut state = state;
            text.iter().enumerate().all(|(index, byte)| {
                state = self.step(state, *byte);
                let found = self.found(state);
                if index + 1 < text.len() { found == 0 } else { found <= text.len() }
            })
        })
    }
}

/// The machine of a text without delimiters. `None`: the delimiters are too long.
pub(super) fn text_without(text: &TextWithout<'_>) -> Option<Machine> {
    let delimiters = DelimiterSearch::new(text.delimiters)?;
    let chars = match text.is_utf8 {
        true => class(true, text.excluded),
        false => Machine::new(&[[1; 256], [DEAD; 256]], vec![false, true]),
    };
    // A state is one of the delimiters and one of the character that has begun.
    let start = (delimiters.start, 0);
    let mut ids = HashMap::from_iter([(start, 0)]);
    let (mut states, mut rows, mut may_end) = (vec![start], Vec::new(), Vec::new());
    while let Some(&(found, char)) = states.get(rows.len()) {
        let mut row = [DEAD; 256];
        for (byte, next) in (0..=u8::MAX).zip(&mut row) {
            let char = match chars.step(char, byte) {
                MachineStep::Dead => continue,
                MachineStep::State(char) => char,
                MachineStep::Done => 0,
            };
            let after = (delimiters.step(found, byte), char);
            if delimiters.found(after.0) > 0 {
                continue;
            }
            let id = number(states.len());
            *next = *ids.entry(after).or_insert(id);
            if *next == id {
                states.push(after);
            }
        }
        rows.push(row);
        let is_end = match text.end {
            TextEnd::Anywhere => true,
            TextEnd::BeforeDelimiter => delimiters.may_follow(found),
            TextEnd::OutsideOfDelimiters => found == delimiters.start,
        };
        may_end.push(char == 0 && is_end);
    }
    Some(Machine::new(&rows, may_end))
}
