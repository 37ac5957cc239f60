//! Searches for patterns, for the triggers of lazy grammars.
//!
//! llama.cpp searches with `std::regex`, whose recursion exhausts the stack on long texts and whose time can grow exponentially. Here
//! a search visits each pair of an instruction and a position at most once. A lookahead is computed for all positions at once, from the
//! end of the text to its beginning, when a search first meets it. No crate of the standard kind has lookahead, which llama.cpp's
//! triggers use. Bytes that are no UTF-8 count as U+FFFD.

use std::collections::BTreeMap;

use foredraft_base::work::Work;

use super::chars::CharSet;
use super::parse::{RegexNode, parse};

/// The longest pattern in bytes.
const MAX_PATTERN: usize = 1 << 12;
/// The most instructions of a pattern.
const MAX_INSTRUCTIONS: usize = 1 << 13;
/// The most pairs of an instruction and a position in a search. Of a longer text only the end is searched.
const MAX_VISITS: usize = 1 << 26;

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    program: Vec<Instruction>,
    classes: Vec<CharSet>,
    n_slots: usize,
    /// The characters that a match can begin with; `None`: it can be empty, or begins with an assertion.
    first: Option<CharSet>,
    /// A match begins at the beginning of the text.
    is_anchored: bool,
    /// `\w`.
    word: CharSet,
}

#[derive(Debug, Clone, Copy)]
enum Instruction {
    Class(usize),
    /// Continues at the first target, or else at the second one.
    Split(usize, usize),
    Jump(usize),
    /// Remembers the position.
    Save(usize),
    Start,
    End,
    WordBoundary(bool),
    /// The program from the next instruction up to the one before `end` matches here, or does not.
    Look {
        ahead: bool,
        end: usize,
    },
    Match,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The pattern's fault, with its place.
    pub(crate) fn new(pattern: &str) -> Result<Pattern, String> {
        if pattern.len() > MAX_PATTERN {
            return Err(format!("{} bytes are more than the {MAX_PATTERN} allowed", pattern.len()));
        }
        // Its length bounds the work.
        let node = parse(pattern, &Work::unlimited()).map_err(|fault| fault.to_string())?;
        let mut compiled = Pattern {
            program: Vec::new(),
            classes: Vec::new(),
            n_slots: 0,
            first: None,
            is_anchored: begins_with_start(&node),
            word: CharSet::word(false),
        };
        compiled.emit(&node)?;
        compiled.push(Instruction::Match)?;
        compiled.first = compiled.first_chars();
        Ok(compiled)
    }

    /// Searches the text. Returns where the first group that matched some text begins, or else where the match begins. `steps_left` is
    /// what the search may still cost, and is 0 afterwards if that was too little: then it finds nothing.
    pub(crate) fn find(&self, text: &[u8], steps_left: &mut usize) -> Option<usize> {
        let most = MAX_VISITS / self.program.len().max(1);
        let (text, places) = decoded(text);
        let found = self.find_char(&text, most, steps_left)?;
        places.get(found).copied()
    }

    /// As [`Pattern::find`], in characters. `most`: of a longer text only so many characters at the end are searched.
    fn find_char(&self, text: &[u32], most: usize, steps_left: &mut usize) -> Option<usize> {
        let skipped = text.len().saturating_sub(most);
        let starts = if self.is_anchored { 0..=0 } else { skipped..=text.len() };
        let mut search: Option<PatternSearch> = None;
        for start in starts {
            let can_begin = |first: &CharSet| text.get(start).is_some_and(|char| first.contains(*char));
            if !self.first.as_ref().is_none_or(can_begin) {
                continue;
            }
            let search = search.get_or_insert_with(|| PatternSearch::new(self, text, skipped.min(start)));
            match search.run(start, steps_left) {
                None => *steps_left = 0,
                Some(false) => {}
                Some(true) => return Some(search.group_start().unwrap_or(start)),
            }
            if *steps_left == 0 {
                break;
            }
        }
        None
    }

    fn push(&mut self, instruction: Instruction) -> Result<usize, String> {
        if self.program.len() >= MAX_INSTRUCTIONS {
            return Err("too large".to_owned());
        }
        self.program.push(instruction);
        Ok(self.program.len() - 1)
    }

    fn set(&mut self, at: usize, instruction: Instruction) {
        self.program.get_mut(at).into_iter().for_each(|place| *place = instruction);
    }

    fn emit(&mut self, node: &RegexNode) -> Result<(), String> {
        match node {
            RegexNode::Class(set) => {
                self.classes.push(set.clone());
                self.push(Instruction::Class(self.classes.len() - 1))?;
            }
            RegexNode::Start => drop(self.push(Instruction::Start)?),
            RegexNode::End => drop(self.push(Instruction::End)?),
            RegexNode::WordBoundary(is) => drop(self.push(Instruction::WordBoundary(*is))?),
            RegexNode::Seq(nodes) => nodes.iter().try_for_each(|node| self.emit(node))?,
            RegexNode::Alt(nodes) => {
                let mut jumps = Vec::new();
                for (index, node) in nodes.iter().enumerate() {
                    if index + 1 == nodes.len() {
                        self.emit(node)?;
                        break;
                    }
                    let split = self.push(Instruction::Match)?;
                    self.emit(node)?;
                    jumps.push(self.push(Instruction::Match)?);
                    self.set(split, Instruction::Split(split + 1, self.program.len()));
                }
                let end = self.program.len();
                jumps.into_iter().for_each(|jump| self.set(jump, Instruction::Jump(end)));
            }
            RegexNode::Group(node, number) => {
                self.n_slots = self.n_slots.max(2 * number + 2);
                self.push(Instruction::Save(2 * number))?;
                self.emit(node)?;
                self.push(Instruction::Save(2 * number + 1))?;
            }
            RegexNode::Look(node, ahead) => {
                let look = self.push(Instruction::Match)?;
                self.emit(node)?;
                self.push(Instruction::Match)?;
                self.set(look, Instruction::Look { ahead: *ahead, end: self.program.len() });
            }
            RegexNode::Repeat(node, min, max, is_greedy) => {
                let split = |one, other| match is_greedy {
                    true => Instruction::Split(one, other),
                    false => Instruction::Split(other, one),
                };
                (0..*min).try_for_each(|_| self.emit(node))?;
                match max {
                    None => {
                        let start = self.push(Instruction::Match)?;
                        self.emit(node)?;
                        self.push(Instruction::Jump(start))?;
                        self.set(start, split(start + 1, self.program.len()));
                    }
                    Some(max) => {
                        let mut splits = Vec::new();
                        for _ in *min..*max {
                            splits.push(self.push(Instruction::Match)?);
                            self.emit(node)?;
                        }
                        let end = self.program.len();
                        splits.into_iter().for_each(|at| self.set(at, split(at + 1, end)));
                    }
                }
            }
        }
        Ok(())
    }

    /// The characters that a match can begin with.
    fn first_chars(&self) -> Option<CharSet> {
        let (mut first, mut open, mut seen) = (Vec::new(), vec![0], vec![false; self.program.len()]);
        while let Some(at) = open.pop() {
            if std::mem::replace(seen.get_mut(at)?, true) {
                continue;
            }
            match *self.program.get(at)? {
                Instruction::Class(index) => first.extend_from_slice(self.classes.get(index)?.ranges()),
                Instruction::Split(one, other) => open.extend([one, other]),
                Instruction::Jump(to) => open.push(to),
                Instruction::Save(_) => open.push(at + 1),
                _ => return None,
            }
        }
        Some(CharSet::new(false, &first))
    }
}

fn begins_with_start(node: &RegexNode) -> bool {
    match node {
        RegexNode::Start => true,
        RegexNode::Seq(nodes) => nodes.first().is_some_and(begins_with_start),
        RegexNode::Alt(nodes) => nodes.iter().all(begins_with_start),
        RegexNode::Group(node, _) => begins_with_start(node),
        _ => false,
    }
}

/// A search, by backtracking that never takes the same way twice.
struct PatternSearch<'a> {
    pattern: &'a Pattern,
    text: &'a [u32],
    /// The first position of the search.
    from: usize,
    /// For each instruction and position: whether it was visited. Those that led to a match end the search.
    visited: Vec<u64>,
    /// For each lookahead that was met, by its instruction: whether its body matches at each position.
    lookaheads: BTreeMap<usize, Vec<u64>>,
    slots: Vec<Option<usize>>,
    todo: Vec<Todo>,
    is_new: bool,
}

enum Todo {
    Visit(usize, usize),
    Restore(usize, Option<usize>),
}

impl<'a> PatternSearch<'a> {
    fn new(pattern: &'a Pattern, text: &'a [u32], from: usize) -> PatternSearch<'a> {
        let visited = vec![0; (pattern.program.len() * (text.len() - from + 1)).div_ceil(64)];
        let slots = vec![None; pattern.n_slots];
        let lookaheads = BTreeMap::new();
        PatternSearch { pattern, text, from, visited, lookaheads, slots, todo: Vec::new(), is_new: true }
    }

    /// Whether the pattern matches at `position`. `None`: it takes more than the steps that are left.
    fn run(&mut self, position: usize, steps_left: &mut usize) -> Option<bool> {
        if std::mem::take(&mut self.is_new) {
            // Setting to zero takes time, too.
            pay(steps_left, self.visited.len() / 4)?;
        }
        self.todo.clear();
        self.todo.push(Todo::Visit(0, position));
        while let Some(todo) = self.todo.pop() {
            match todo {
                Todo::Restore(slot, old) => self.slots.get_mut(slot).into_iter().for_each(|place| *place = old),
                Todo::Visit(at, position) => {
                    if self.follow(at, position, steps_left)? {
                        return Some(true);
                    }
                }
            }
        }
        Some(false)
    }

    fn follow(&mut self, mut at: usize, mut position: usize, steps_left: &mut usize) -> Option<bool> {
        loop {
            let instruction = self.pattern.program.get(at).copied()?;
            let index = at * (self.text.len() - self.from + 1) + (position - self.from);
            let word = self.visited.get_mut(index / 64)?;
            let bit = 1_u64 << (index % 64);
            if *word & bit != 0 {
                return Some(false);
            }
            *word |= bit;
            pay(steps_left, 1)?;
            at = match instruction {
                Instruction::Match => return Some(true),
                Instruction::Class(_) if self.consumes(instruction, position) => {
                    position += 1;
                    at + 1
                }
                Instruction::Class(_) => return Some(false),
                Instruction::Split(one, other) => {
                    self.todo.push(Todo::Visit(other, position));
                    one
                }
                Instruction::Jump(to) => to,
                Instruction::Save(slot) => {
                    if let Some(place) = self.slots.get_mut(slot) {
                        self.todo.push(Todo::Restore(slot, place.replace(position)));
                    }
                    at + 1
                }
                Instruction::Start | Instruction::End | Instruction::WordBoundary(_) => {
                    if !self.holds(instruction, position) {
                        return Some(false);
                    }
                    at + 1
                }
                Instruction::Look { ahead, end } => {
                    self.look_ahead(at, end, steps_left)?;
                    if self.matches_ahead(at, position) != ahead {
                        return Some(false);
                    }
                    end
                }
            };
        }
    }

    /// Computes at which positions the body of the lookahead at `look` matches, unless that is known. The lookaheads within it come first.
    fn look_ahead(&mut self, look: usize, end: usize, steps_left: &mut usize) -> Option<()> {
        let inner = (look..end).rev().filter_map(|at| match self.pattern.program.get(at) {
            Some(Instruction::Look { end, .. }) => Some((at, *end)),
            _ => None,
        });
        for (at, end) in inner.collect::<Vec<_>>() {
            if !self.lookaheads.contains_key(&at) {
                let matches = self.body_matches(at + 1, end, steps_left)?;
                self.lookaheads.insert(at, matches);
            }
        }
        Some(())
    }

    /// The positions at which the instructions from `begin` up to `end` match: a bit for each, counted from the first of the search.
    fn body_matches(&self, begin: usize, end: usize, steps_left: &mut usize) -> Option<Vec<u64>> {
        let program = self.pattern.program.get(begin..end)?;
        let n_positions = self.text.len() - self.from + 1;
        let mut matches = vec![0_u64; n_positions.div_ceil(64)];
        // Whether each instruction leads to the end of the body, at this position and at the next one.
        let (mut here, mut next) = (vec![false; program.len() + 1], vec![false; program.len() + 1]);
        for position in (self.from..=self.text.len()).rev() {
            std::mem::swap(&mut here, &mut next);
            here.fill(false);
            let leads = |states: &[bool], at: usize| at.checked_sub(begin).and_then(|at| states.get(at)) == Some(&true);
            // Only loops lead backwards, so this is repeated once for each loop within a loop, and once more.
            loop {
                pay(steps_left, program.len())?;
                let mut has_changed = false;
                for (offset, instruction) in program.iter().enumerate().rev() {
                    let at = begin + offset;
                    let leads_on = match *instruction {
                        Instruction::Match => true,
                        Instruction::Class(_) => self.consumes(*instruction, position) && leads(&next, at + 1),
                        Instruction::Split(one, other) => leads(&here, one) || leads(&here, other),
                        Instruction::Jump(to) => leads(&here, to),
                        Instruction::Save(_) => leads(&here, at + 1),
                        Instruction::Start | Instruction::End | Instruction::WordBoundary(_) => {
                            self.holds(*instruction, position) && leads(&here, at + 1)
                        }
                        Instruction::Look { ahead, end } => {
                            self.matches_ahead(at, position) == ahead && leads(&here, end)
                        }
                    };
                    if let Some(known) = here.get_mut(offset).filter(|known| leads_on && !**known) {
                        *known = true;
                        has_changed = true;
                    }
                }
                if !has_changed {
                    break;
                }
            }
            let index = position - self.from;
            if let (Some(true), Some(word)) = (here.first(), matches.get_mut(index / 64)) {
                *word |= 1 << (index % 64);
            }
        }
        Some(matches)
    }

    /// Whether the body of a lookahead, which is known, matches at a position.
    fn matches_ahead(&self, look: usize, position: usize) -> bool {
        let index = position - self.from;
        let word = self.lookaheads.get(&look).and_then(|matches| matches.get(index / 64));
        word.is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    /// Whether an instruction takes the character at a position.
    fn consumes(&self, instruction: Instruction, position: usize) -> bool {
        let next = self.text.get(position).copied();
        match instruction {
            Instruction::Class(index) => {
                next.zip(self.pattern.classes.get(index)).is_some_and(|(char, set)| set.contains(char))
            }
            _ => false,
        }
    }

    /// Whether an assertion holds at a position.
    fn holds(&self, instruction: Instruction, position: usize) -> bool {
        match instruction {
            Instruction::Start => position == 0,
            Instruction::End => position == self.text.len(),
            Instruction::WordBoundary(is) => self.is_word_boundary(position) == is,
            _ => false,
        }
    }

    fn is_word_boundary(&self, position: usize) -> bool {
        let is_word = |at: Option<usize>| {
            at.and_then(|at| self.text.get(at)).is_some_and(|char| self.pattern.word.contains(*char))
        };
        is_word(position.checked_sub(1)) != is_word(Some(position))
    }

    /// Where the first group that matched some text begins.
    fn group_start(&self) -> Option<usize> {
        self.slots.chunks(2).find_map(|pair| match pair {
            [Some(start), Some(end)] if start < end => Some(*start),
            _ => None,
        })
    }
}

/// The characters of a text and its end, and where they begin in bytes.
fn decoded(text: &[u8]) -> (Vec<u32>, Vec<usize>) {
    let (mut chars, mut places, mut begin) = (Vec::new(), Vec::new(), 0);
    for chunk in text.utf8_chunks() {
        for (at, char) in chunk.valid().char_indices() {
            chars.push(u32::from(char));
            places.push(begin + at);
        }
        begin += chunk.valid().len();
        if !chunk.invalid().is_empty() {
            chars.push(u32::from(char::REPLACEMENT_CHARACTER));
            places.push(begin);
        }
        begin += chunk.invalid().len();
    }
    places.push(begin);
    (chars, places)
}

/// Takes steps from those that are left. `None`: there are too few.
fn pay(steps_left: &mut usize, steps: usize) -> Option<()> {
    *steps_left = steps_left.checked_sub(steps)?;
    Some(())
}

#[cfg(test)]
mod tests;
