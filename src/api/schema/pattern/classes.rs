//! Sets of characters, and how a JSON string spells them.

/// Characters that need an escape in a JSON string, and surrogates.
const ESCAPED: [(u32, u32); 5] = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)];
/// The escapes that have a letter in JSON.
const LETTERS: [(u32, char); 7] =
    [(0x08, 'b'), (0x09, 't'), (0x0A, 'n'), (0x0C, 'f'), (0x0D, 'r'), (0x22, '"'), (0x5C, '\\')];
/// Line ends, which `.` does not match (ECMA-262).
const LINE_ENDS: [(u32, u32); 3] = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)];
/// The whitespace that `\s` matches (ECMA-262). The list is complete, because `\S` is its complement.
const WHITESPACE: [(u32, u32); 10] = [
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
];

/// Ranges of code points, both ends inclusive.
pub(super) type Ranges = Vec<(u32, u32)>;

/// A set of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CharSet {
    /// In order, neither overlapping nor adjacent.
    ranges: Ranges,
}

impl CharSet {
    /// The characters in the ranges, or all others.
    pub(super) fn new(negated: bool, ranges: &[(u32, u32)]) -> CharSet {
        let others = complement(ranges);
        CharSet { ranges: if negated { others } else { complement(&others) } }
    }

    pub(super) fn one(code: u32) -> CharSet {
        CharSet { ranges: vec![(code, code)] }
    }

    /// All characters.
    pub(super) fn any() -> CharSet {
        CharSet::new(true, &[])
    }

    /// `.`.
    pub(super) fn not_line_end() -> CharSet {
        CharSet::new(true, &LINE_ENDS)
    }

    /// `\d` or `\D`.
    pub(super) fn digit(negated: bool) -> CharSet {
        CharSet::new(negated, &[(0x30, 0x39)])
    }

    /// `\w` or `\W`.
    pub(super) fn word(negated: bool) -> CharSet {
        CharSet::new(negated, &[(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
    }

    /// `\s` or `\S`.
    pub(super) fn whitespace(negated: bool) -> CharSet {
        CharSet::new(negated, &WHITESPACE)
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// The character of a set of one.
    pub(super) fn single(&self) -> Option<u32> {
        match self.ranges.as_slice() {
            [(first, last)] if first == last => Some(*first),
            _ => None,
        }
    }

    /// Writes the set in the converter's notation, as a JSON string spells its characters: itself, or an escape with a letter.
    /// Escapes by number are used only where nothing else is in the set.
    pub(super) fn write(&self, out: &mut String) -> Result<(), String> {
        let mut excluded = ESCAPED.to_vec();
        excluded.extend(complement(&self.ranges));
        let plain = complement(&excluded);
        let contains = |code: u32| self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&code));
        let letters: Ranges = LETTERS
            .iter()
            .filter(|(code, _)| contains(*code))
            .map(|(_, letter)| (u32::from(*letter), u32::from(*letter)))
            .collect();
        let mut spellings = Vec::new();
        if !plain.is_empty() {
            spellings.push(class(&plain));
        }
        if !letters.is_empty() {
            spellings.push(class(&[(0x5C, 0x5C)]) + &class(&letters));
        }
        if plain.is_empty() {
            let controls = (0..0x20).chain([0x7F]);
            let by_number = controls.filter(|code| contains(*code) && LETTERS.iter().all(|(other, _)| other != code));
            let spell = |text: String| text.chars().map(|char| class(&[(u32::from(char), u32::from(char))])).collect();
            spellings.extend(by_number.map(|code| spell(format!("\\u{code:04x}"))).collect::<Vec<String>>());
        }
        match spellings.as_slice() {
            [] => return Err("an empty class".into()),
            [only] if !plain.is_empty() => out.push_str(only),
            _ => out.push_str(&format!("({})", spellings.join("|"))),
        }
        Ok(())
    }
}

/// A class in the converter's notation.
fn class(ranges: &[(u32, u32)]) -> String {
    let mut out = String::from("[");
    for (first, last) in ranges {
        out.push_str(&format!("\\U{first:08X}"));
        if last > first {
            out.push_str(&format!("-\\U{last:08X}"));
        }
    }
    out + "]"
}

/// The complement of the ranges, in order.
fn complement(ranges: &[(u32, u32)]) -> Ranges {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    let mut next = 0;
    let mut rest = Vec::new();
    for (first, last) in ranges {
        if next < first {
            rest.push((next, first - 1));
        }
        next = next.max(last.saturating_add(1));
    }
    if next <= 0x10_FFFF {
        rest.push((next, 0x10_FFFF));
    }
    rest
}
