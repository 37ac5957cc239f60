//! Comparing text with the texts of a format, where white space is not significant.

/// Whether a text begins with a text of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextMatch {
    /// It begins with it, up to this byte.
    Full(usize),
    /// It may become one that begins with it.
    Partial,
    /// It does not begin with it.
    No,
}

/// Compares `text` with `expected`. White space in `expected` stands for any white space or none; the text may begin with white space.
pub(crate) fn compare(expected: &str, text: &str) -> TextMatch {
    let mut given = text.char_indices().peekable();
    let mut end = 0;
    let mut may_skip = true;
    for char in expected.trim().chars() {
        if char.is_whitespace() {
            may_skip = true;
            continue;
        }
        while may_skip && given.next_if(|(_, char)| char.is_whitespace()).is_some() {}
        may_skip = false;
        match given.next() {
            Some((at, next)) if next == char => end = at + next.len_utf8(),
            Some(_) => return TextMatch::No,
            None => return TextMatch::Partial,
        }
    }
    TextMatch::Full(end)
}

/// The first place in `text`, not before `from`, where one of the `words` begins; of words that begin there the longest, as its index.
/// `None`: there is none. The second value is the number of bytes at the end that may begin a word.
pub(crate) fn find<'a>(text: &str, words: impl Iterator<Item = &'a str> + Clone) -> (Option<(usize, usize)>, usize) {
    let mut found: Option<(usize, usize, usize)> = None;
    let mut kept = 0;
    for (index, word) in words.enumerate().filter(|(_, word)| !word.is_empty()) {
        if let Some(at) = text.find(word) {
            let is_better = found.is_none_or(|(best, len, _)| at < best || at == best && word.len() > len);
            if is_better {
                found = Some((at, word.len(), index));
            }
        }
        kept = kept.max(crate::value::overlap(text, word));
    }
    (found.map(|(at, _, index)| (at, index)), kept)
}
