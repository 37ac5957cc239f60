//! Character classes in GBNF.

use crate::pattern::CharSet;

/// The class of the characters in the ranges.
pub(crate) fn class(ranges: &[(u32, u32)]) -> String {
    format!("[{}]", inside(ranges))
}

/// The class of all other characters.
pub(crate) fn class_without(ranges: &[(u32, u32)]) -> String {
    // In order, without overlaps.
    let set = CharSet::new(false, ranges);
    if set.is_empty() { ".".to_owned() } else { format!("[^{}]", inside(set.ranges())) }
}

fn inside(ranges: &[(u32, u32)]) -> String {
    let mut out = String::new();
    for (first, last) in ranges {
        push(&mut out, *first);
        if last > first {
            out.push('-');
            push(&mut out, *last);
        }
    }
    out
}

fn push(out: &mut String, code: u32) {
    match char::from_u32(code).filter(char::is_ascii_alphanumeric) {
        Some(char) => out.push(char),
        None if code <= 0xFF => out.push_str(&format!("\\x{code:02X}")),
        None if code <= 0xFFFF => out.push_str(&format!("\\u{code:04X}")),
        None => out.push_str(&format!("\\U{code:08X}")),
    }
}
