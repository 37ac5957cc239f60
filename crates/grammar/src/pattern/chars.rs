//! Sets of characters.

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
pub type Ranges = Vec<(u32, u32)>;

/// A set of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CharSet {
    /// In order, neither overlapping nor adjacent.
    ranges: Ranges,
}

impl CharSet {
    /// The characters in the ranges, or all others.
    #[must_use]
    pub fn new(negated: bool, ranges: &[(u32, u32)]) -> CharSet {
        let others = complement(ranges);
        CharSet { ranges: if negated { others } else { complement(&others) } }
    }

    /// The set of one character.
    #[must_use]
    pub fn one(code: u32) -> CharSet {
        CharSet { ranges: vec![(code, code)] }
    }

    /// All characters.
    #[must_use]
    pub fn any() -> CharSet {
        CharSet::new(true, &[])
    }

    /// `.`.
    #[must_use]
    pub fn not_line_end() -> CharSet {
        CharSet::new(true, &LINE_ENDS)
    }

    /// `\d` or `\D`.
    #[must_use]
    pub fn digit(negated: bool) -> CharSet {
        CharSet::new(negated, &[(0x30, 0x39)])
    }

    /// `\w` or `\W`.
    #[must_use]
    pub fn word(negated: bool) -> CharSet {
        CharSet::new(negated, &[(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
    }

    /// `\s` or `\S`.
    #[must_use]
    pub fn whitespace(negated: bool) -> CharSet {
        CharSet::new(negated, &WHITESPACE)
    }

    /// Its ranges, in order, neither overlapping nor adjacent.
    #[must_use]
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// The character of a set of one.
    #[must_use]
    pub fn single(&self) -> Option<u32> {
        match self.ranges.as_slice() {
            [(first, last)] if first == last => Some(*first),
            _ => None,
        }
    }

    /// Whether it has a character.
    #[must_use]
    pub fn contains(&self, code: u32) -> bool {
        let at = self.ranges.partition_point(|(_, last)| *last < code);
        self.ranges.get(at).is_some_and(|(first, _)| *first <= code)
    }

    /// The set without some characters.
    #[must_use]
    pub fn without(&self, codes: &[(u32, u32)]) -> CharSet {
        let mut excluded = codes.to_vec();
        excluded.extend(complement(&self.ranges));
        CharSet { ranges: complement(&excluded) }
    }

    /// Whether it has no character.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// The complement of the ranges, in order.
fn complement(ranges: &[(u32, u32)]) -> Ranges {
    let mut ranges: Ranges = ranges.iter().copied().filter(|(first, last)| first <= last).collect();
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
