//! Regular expressions in the notation of ECMAScript, over bytes, for the triggers of lazy grammars.
//!
//! llama.cpp searches with `std::regex`, whose recursion exhausts the stack on long texts and whose time can grow exponentially. Here
//! a search visits each pair of an instruction and a position at most once. A lookahead is computed for all positions at once, from the
//! end of the text to its beginning, when a search first meets it. No crate of the standard kind has lookahead, which llama.cpp's
//! triggers use. Not supported: backreferences and lookbehind.

use std::collections::BTreeMap;

use super::byte_set::ByteSet;

/// The longest pattern in bytes.
const MAX_PATTERN: usize = 1 << 12;
/// The most instructions of a pattern.
const MAX_INSTRUCTIONS: usize = 1 << 13;
/// The most pairs of an instruction and a position in a search. Of a longer text only the end is searched.
const MAX_VISITS: usize = 1 << 26;
/// The deepest nesting of groups.
const MAX_NESTING: usize = 64;

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    program: Vec<Instruction>,
    classes: Vec<ByteSet>,
    n_slots: usize,
    /// The bytes that a match can begin with; `None`: it can be empty, or begins with an assertion.
    first: Option<ByteSet>,
    /// A match begins at the beginning of the text.
    is_anchored: bool,
}

#[derive(Debug, Clone, Copy)]
enum Instruction {
    Byte(u8),
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

/// A part of a pattern.
enum RegexNode {
    Byte(u8),
    Class(ByteSet),
    Start,
    End,
    WordBoundary(bool),
    Sequence(Vec<RegexNode>),
    Choice(Vec<RegexNode>),
    Group(Box<RegexNode>, Option<usize>),
    Look(Box<RegexNode>, bool),
    Repeat { node: Box<RegexNode>, min: usize, max: Option<usize>, is_greedy: bool },
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The pattern's fault, with the position in bytes.
    pub(crate) fn new(pattern: &str) -> Result<Pattern, String> {
        if pattern.len() > MAX_PATTERN {
            return Err(format!("{} bytes are more than the {MAX_PATTERN} allowed", pattern.len()));
        }
        let mut parser = PatternParser { bytes: pattern.as_bytes(), at: 0, n_groups: 0, nesting: 0 };
        let node = parser.choice()?;
        if parser.at < parser.bytes.len() {
            return Err(parser.error("unmatched )"));
        }
        let mut compiled = Pattern {
            program: Vec::new(),
            classes: Vec::new(),
            n_slots: parser.n_groups * 2,
            first: None,
            is_anchored: begins_with_start(&node),
        };
        compiled.emit(&node)?;
        compiled.push(Instruction::Match)?;
        compiled.first = compiled.first_bytes();
        Ok(compiled)
    }

    /// Searches the text. Returns where the first group that matched some text begins, or else where the match begins. `steps_left` is
    /// what the search may still cost, and is 0 afterwards if that was too little: then it finds nothing.
    pub(crate) fn find(&self, text: &[u8], steps_left: &mut usize) -> Option<usize> {
        let most = MAX_VISITS / self.program.len().max(1);
        let skipped = text.len().saturating_sub(most);
        let starts = if self.is_anchored { 0..=0 } else { skipped..=text.len() };
        let mut search: Option<PatternSearch> = None;
        for start in starts {
            let can_begin = |first: &ByteSet| text.get(start).is_some_and(|byte| first.contains(*byte));
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
            RegexNode::Byte(byte) => drop(self.push(Instruction::Byte(*byte))?),
            RegexNode::Class(set) => {
                self.classes.push(*set);
                self.push(Instruction::Class(self.classes.len() - 1))?;
            }
            RegexNode::Start => drop(self.push(Instruction::Start)?),
            RegexNode::End => drop(self.push(Instruction::End)?),
            RegexNode::WordBoundary(is) => drop(self.push(Instruction::WordBoundary(*is))?),
            RegexNode::Sequence(nodes) => nodes.iter().try_for_each(|node| self.emit(node))?,
            RegexNode::Choice(nodes) => {
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
            RegexNode::Group(node, slot) => {
                if let Some(slot) = slot {
                    self.push(Instruction::Save(*slot))?;
                }
                self.emit(node)?;
                if let Some(slot) = slot {
                    self.push(Instruction::Save(slot + 1))?;
                }
            }
            RegexNode::Look(node, ahead) => {
                let look = self.push(Instruction::Match)?;
                self.emit(node)?;
                self.push(Instruction::Match)?;
                self.set(look, Instruction::Look { ahead: *ahead, end: self.program.len() });
            }
            RegexNode::Repeat { node, min, max, is_greedy } => {
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

    /// The bytes that a match can begin with.
    fn first_bytes(&self) -> Option<ByteSet> {
        let (mut first, mut open, mut seen) = (ByteSet::EMPTY, vec![0], vec![false; self.program.len()]);
        while let Some(at) = open.pop() {
            if std::mem::replace(seen.get_mut(at)?, true) {
                continue;
            }
            match *self.program.get(at)? {
                Instruction::Byte(byte) => first.add(byte, byte),
                Instruction::Class(index) => first.unite(self.classes.get(index)?),
                Instruction::Split(one, other) => open.extend([one, other]),
                Instruction::Jump(to) => open.push(to),
                Instruction::Save(_) => open.push(at + 1),
                _ => return None,
            }
        }
        Some(first)
    }
}

fn begins_with_start(node: &RegexNode) -> bool {
    match node {
        RegexNode::Start => true,
        RegexNode::Sequence(nodes) => nodes.first().is_some_and(begins_with_start),
        RegexNode::Choice(nodes) => nodes.iter().all(begins_with_start),
        RegexNode::Group(node, _) => begins_with_start(node),
        _ => false,
    }
}

/// A search, by backtracking that never takes the same way twice.
struct PatternSearch<'a> {
    pattern: &'a Pattern,
    text: &'a [u8],
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
    fn new(pattern: &'a Pattern, text: &'a [u8], from: usize) -> PatternSearch<'a> {
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
                Instruction::Byte(_) | Instruction::Class(_) if self.consumes(instruction, position) => {
                    position += 1;
                    at + 1
                }
                Instruction::Byte(_) | Instruction::Class(_) => return Some(false),
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
                        Instruction::Byte(_) | Instruction::Class(_) => {
                            self.consumes(*instruction, position) && leads(&next, at + 1)
                        }
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

    /// Whether an instruction takes the byte at a position.
    fn consumes(&self, instruction: Instruction, position: usize) -> bool {
        let next = self.text.get(position).copied();
        match instruction {
            Instruction::Byte(byte) => next == Some(byte),
            Instruction::Class(index) => next.is_some_and(|byte| self.class_contains(index, byte)),
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

    fn class_contains(&self, index: usize, byte: u8) -> bool {
        self.pattern.classes.get(index).is_some_and(|set| set.contains(byte))
    }

    fn is_word_boundary(&self, position: usize) -> bool {
        let is_word = |at: Option<usize>| {
            at.and_then(|at| self.text.get(at)).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
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

/// Takes steps from those that are left. `None`: there are too few.
fn pay(steps_left: &mut usize, steps: usize) -> Option<()> {
    *steps_left = steps_left.checked_sub(steps)?;
    Some(())
}

struct PatternParser<'a> {
    bytes: &'a [u8],
    at: usize,
    n_groups: usize,
    nesting: usize,
}

impl PatternParser<'_> {
    fn error(&self, what: &str) -> String {
        format!("{what} at byte {}", self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(text.as_bytes()));
        if found {
            self.at += text.len();
        }
        found
    }

    fn choice(&mut self) -> Result<RegexNode, String> {
        let mut nodes = vec![self.sequence()?];
        while self.eat("|") {
            nodes.push(self.sequence()?);
        }
        Ok(if nodes.len() == 1 { nodes.swap_remove(0) } else { RegexNode::Choice(nodes) })
    }

    fn sequence(&mut self) -> Result<RegexNode, String> {
        let mut nodes = Vec::new();
        while let Some(byte) = self.peek() {
            if byte == b'|' || byte == b')' {
                break;
            }
            let node = self.atom()?;
            nodes.push(self.quantified(node)?);
        }
        Ok(RegexNode::Sequence(nodes))
    }

    fn atom(&mut self) -> Result<RegexNode, String> {
        let byte = self.peek().ok_or_else(|| self.error("unexpected end"))?;
        if byte == b'(' {
            return self.group();
        }
        self.at += 1;
        Ok(match byte {
            b'^' => RegexNode::Start,
            b'$' => RegexNode::End,
            b'.' => {
                let mut ends = ByteSet::EMPTY;
                b"\n\r".iter().for_each(|byte| ends.add(*byte, *byte));
                RegexNode::Class(ends.inverted())
            }
            b'[' => RegexNode::Class(self.class()?),
            b'\\' => self.escape()?,
            b'*' | b'+' | b'?' => return Err(self.error("nothing to repeat")),
            byte => RegexNode::Byte(byte),
        })
    }

    fn group(&mut self) -> Result<RegexNode, String> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.error("too many nested groups"));
        }
        let look = if self.eat("(?=") { Some(true) } else { self.eat("(?!").then_some(false) };
        let slot = if look.is_some() || self.eat("(?:") {
            None
        } else if self.eat("(?") {
            return Err(self.error("unsupported group"));
        } else {
            self.at += 1;
            self.n_groups += 1;
            Some((self.n_groups - 1) * 2)
        };
        let inner = Box::new(self.choice()?);
        if !self.eat(")") {
            return Err(self.error("missing )"));
        }
        self.nesting -= 1;
        Ok(match look {
            Some(ahead) => RegexNode::Look(inner, ahead),
            None => RegexNode::Group(inner, slot),
        })
    }

    /// The rest of an escape, after the backslash.
    fn escape(&mut self) -> Result<RegexNode, String> {
        let byte = self.peek().ok_or_else(|| self.error("unexpected end"))?;
        self.at += 1;
        if let Some(set) = ByteSet::named(byte) {
            return Ok(RegexNode::Class(set));
        }
        match byte {
            b'b' => Ok(RegexNode::WordBoundary(true)),
            b'B' => Ok(RegexNode::WordBoundary(false)),
            b'1'..=b'9' => Err(self.error("unsupported backreference")),
            _ => {
                let text = self.escaped(byte)?;
                Ok(RegexNode::Sequence(text.into_iter().map(RegexNode::Byte).collect()))
            }
        }
    }

    /// The bytes of an escaped character.
    fn escaped(&mut self, byte: u8) -> Result<Vec<u8>, String> {
        let single = match byte {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'f' => 0x0c,
            b'v' => 0x0b,
            b'0' => 0,
            b'x' | b'u' => {
                let n = if byte == b'x' { 2 } else { 4 };
                let digits = self.bytes.get(self.at..self.at + n).and_then(|digits| std::str::from_utf8(digits).ok());
                let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).and_then(char::from_u32);
                let character = code.ok_or_else(|| self.error("invalid escape"))?;
                self.at += n;
                return Ok(character.encode_utf8(&mut [0; 4]).as_bytes().to_vec());
            }
            byte if byte.is_ascii_alphanumeric() => return Err(self.error("unsupported escape")),
            byte => byte,
        };
        Ok(vec![single])
    }

    /// The rest of a class, after the opening bracket.
    fn class(&mut self) -> Result<ByteSet, String> {
        let is_inverted = self.eat("^");
        let mut set = ByteSet::EMPTY;
        loop {
            if self.eat("]") {
                return Ok(if is_inverted { set.inverted() } else { set });
            }
            let Some(from) = self.class_member(&mut set)? else { continue };
            let is_range = self.peek() == Some(b'-') && self.bytes.get(self.at + 1).is_some_and(|next| *next != b']');
            if !is_range {
                set.add(from, from);
                continue;
            }
            self.at += 1;
            match self.class_member(&mut set)? {
                Some(to) if to >= from => set.add(from, to),
                _ => return Err(self.error("invalid range")),
            }
        }
    }

    /// A byte of a class; `None`: a named set, which is added.
    fn class_member(&mut self, set: &mut ByteSet) -> Result<Option<u8>, String> {
        let byte = self.peek().ok_or_else(|| self.error("missing ]"))?;
        self.at += 1;
        if byte != b'\\' {
            return Ok(Some(byte));
        }
        let escaped = self.peek().ok_or_else(|| self.error("unexpected end"))?;
        self.at += 1;
        if let Some(named) = ByteSet::named(escaped) {
            set.unite(&named);
            return Ok(None);
        }
        match self.escaped(escaped)?.as_slice() {
            [byte] => Ok(Some(*byte)),
            _ => Err(self.error("a class can contain only ASCII escapes")),
        }
    }

    fn quantified(&mut self, node: RegexNode) -> Result<RegexNode, String> {
        let (min, max) = match self.peek() {
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'?') => (0, Some(1)),
            Some(b'{') => return self.counted(node),
            _ => return Ok(node),
        };
        self.at += 1;
        let is_greedy = !self.eat("?");
        Ok(RegexNode::Repeat { node: Box::new(node), min, max, is_greedy })
    }

    fn counted(&mut self, node: RegexNode) -> Result<RegexNode, String> {
        self.at += 1;
        let min = self.number()?;
        let max = match self.eat(",") {
            false => Some(min),
            true if self.peek() == Some(b'}') => None,
            true => Some(self.number()?),
        };
        if !self.eat("}") || max.is_some_and(|max| max < min) {
            return Err(self.error("invalid count"));
        }
        let is_greedy = !self.eat("?");
        Ok(RegexNode::Repeat { node: Box::new(node), min, max, is_greedy })
    }

    fn number(&mut self) -> Result<usize, String> {
        let mut number = None;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            self.at += 1;
            number = Some(number.unwrap_or(0_usize) * 10 + usize::from(digit - b'0'));
            if number > Some(MAX_INSTRUCTIONS) {
                return Err(self.error("too large a count"));
            }
        }
        number.ok_or_else(|| self.error("expected a number"))
    }
}

#[cfg(test)]
mod tests;
