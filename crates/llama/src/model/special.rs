//! Finds special tokens in a text, except guarded tokens in text that comes from messages.
//!
//! llama.cpp trusts the whole prompt: wherever a special token's text occurs, it becomes that token. In a chat prompt, the template's
//! text can contain control tokens, but the messages' text must not. Nor must it contain the tokens that the template uses as its own
//! marks, whatever their type is (`<think>` is a user-defined token in most vocabularies). So this module reimplements llama.cpp's
//! partition of a text at its special tokens (`tokenizer_st_partition`), with one additional rule: text that contains a *tainted*
//! character does not become a guarded token. Tainted characters are given by the byte offsets after them.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Token;

/// llama.cpp walks over half a million parts for so many special tokens, which takes a millisecond.
const MANY: usize = 1024;

/// A token that llama.cpp searches for in the text before tokenization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecialToken {
    pub(crate) token: Token,
    pub(crate) text: Vec<u8>,
    /// A control, unknown or end-of-generation token, in llama.cpp or in the model's file. The other ones (user-defined) are text with a
    /// separate id, such as several spaces; llama.cpp finds them even with `parse_special` off.
    pub(crate) is_control: bool,
    /// Whitespace before it (or after it) is part of the token.
    pub(crate) strips_left: bool,
    pub(crate) strips_right: bool,
}

/// The special tokens of a vocabulary.
#[derive(Debug, Default)]
pub struct SpecialTokens {
    /// The longest first, which is llama.cpp's order of precedence.
    tokens: Vec<SpecialToken>,
    /// The indices of `tokens`, sorted by text.
    sorted: Vec<usize>,
    /// For each byte: whether a token begins with it.
    first_bytes: Vec<bool>,
}

/// The tokens that data must not become: the control tokens, and the marks of a template.
#[derive(Debug)]
pub struct GuardedTokens<'a> {
    specials: &'a SpecialTokens,
    /// User-defined tokens that the template's text contains, ascending.
    marks: Vec<Token>,
    first_chars: Vec<char>,
}

/// A part of a partitioned text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// Bytes without special tokens.
    Text(Range<usize>),
    Special(Token),
}

impl SpecialTokens {
    pub(crate) fn new(mut tokens: Vec<SpecialToken>) -> SpecialTokens {
        tokens.retain(|special| !special.text.is_empty());
        tokens.sort_by_key(|special| (std::cmp::Reverse(special.text.len()), special.token));
        let mut sorted: Vec<usize> = (0..tokens.len()).collect();
        sorted.sort_by(|a, b| tokens.get(*a).map(|it| &it.text).cmp(&tokens.get(*b).map(|it| &it.text)));
        let mut first_bytes = vec![false; 256];
        for byte in tokens.iter().filter_map(|special| special.text.first()) {
            first_bytes.get_mut(usize::from(*byte)).into_iter().for_each(|is_first| *is_first = true);
        }
        SpecialTokens { tokens, sorted, first_bytes }
    }

    /// The texts of the control tokens, longest first.
    pub fn control_texts(&self) -> impl Iterator<Item = &[u8]> {
        self.tokens.iter().filter(|special| special.is_control).map(|special| special.text.as_slice())
    }

    /// The guarded tokens of a template whose text is in `texts`: its source and its string literals.
    pub fn guarded<'t>(&self, texts: impl Iterator<Item = &'t str>) -> GuardedTokens<'_> {
        let mut found: Vec<&SpecialToken> = self.tokens.iter().filter(|special| special.is_control).collect();
        let n_control = found.len();
        for text in texts {
            for at in 0..text.len() {
                self.walk(text.as_bytes().get(at..).unwrap_or(&[]), |special| {
                    if !special.is_control && special.looks_like_mark() {
                        found.push(special);
                    }
                });
            }
        }
        let first = |special: &&SpecialToken| String::from_utf8_lossy(&special.text).chars().next();
        let mut first_chars: Vec<char> = found.iter().filter_map(first).filter(|c| !c.is_alphanumeric()).collect();
        first_chars.sort_unstable();
        first_chars.dedup();
        let mut marks: Vec<Token> = found.into_iter().skip(n_control).map(|special| special.token).collect();
        marks.sort_unstable();
        marks.dedup();
        GuardedTokens { specials: self, marks, first_chars }
    }

    /// Calls `found` for each special token that `text` begins with, the shortest first. Returns the tokens that begin with the whole
    /// `text` and are longer.
    fn walk<'a>(&'a self, text: &[u8], mut found: impl FnMut(&'a SpecialToken)) -> &'a [usize] {
        let is_first = |byte: &u8| self.first_bytes.get(usize::from(*byte)) == Some(&true);
        if !text.first().is_some_and(is_first) {
            return &[];
        }
        let byte = |index: &usize, depth: usize| self.tokens.get(*index).and_then(|special| special.text.get(depth));
        let mut range = self.sorted.as_slice();
        for (depth, next) in text.iter().enumerate() {
            // After `depth` equal bytes, the tokens are sorted by the next byte.
            let start = range.partition_point(|index| byte(index, depth) < Some(next));
            let end = range.partition_point(|index| byte(index, depth) <= Some(next));
            range = range.get(start..end).unwrap_or(&[]);
            let complete = |index: &&usize| byte(index, depth + 1).is_none();
            range.iter().take_while(complete).filter_map(|index| self.tokens.get(*index)).for_each(&mut found);
            if range.is_empty() {
                return range;
            }
        }
        let complete = range.iter().take_while(|index| byte(index, text.len()).is_none()).count();
        range.get(complete..).unwrap_or(&[])
    }

    /// Whether a text has so many special tokens that llama.cpp's partition takes long, which walks over all earlier parts at each one, and not
    /// so many that overlap that [`SpecialTokens::partition`] takes much memory.
    pub(crate) fn are_many(&self, text: &[u8], parse_special: bool) -> bool {
        let mut n = 0;
        for at in 0..text.len() {
            self.walk(text.get(at..).unwrap_or(&[]), |special| n += usize::from(parse_special || !special.is_control));
            if n > text.len() {
                return false;
            }
        }
        n > MANY
    }

    /// Splits a text at its special tokens as llama.cpp does with `parse_special`, except that no control token and none of `marks`
    /// contains a tainted character. `tainted` and `marks` are ascending.
    pub(crate) fn partition(&self, text: &[u8], tainted: &[usize], marks: &[Token]) -> Vec<Fragment> {
        let mut matches: Vec<(usize, usize, &SpecialToken)> = Vec::new();
        for at in 0..text.len() {
            self.walk(text.get(at..).unwrap_or(&[]), |special| {
                let end = at + special.text.len();
                let next = tainted.get(tainted.partition_point(|offset| *offset <= at));
                if next.is_none_or(|offset| *offset > end) || !special.is_guarded(marks) {
                    matches.push((at, end, special));
                }
            });
        }
        // llama.cpp searches the text for one special token after the other.
        matches.sort_by_key(|(at, end, special)| (std::cmp::Reverse(end - at), special.token, *at));
        let mut taken: BTreeMap<usize, (usize, Token)> = BTreeMap::new();
        for (mut at, mut end, special) in matches {
            let before = taken.range(..end).next_back().map_or(0, |(_, (end, _))| *end);
            if before > at {
                continue;
            }
            let after = taken.range(end..).next().map_or(text.len(), |(start, _)| *start);
            let is_blank = |at: usize| text.get(at).is_some_and(|byte| matches!(byte, b' ' | b'\t'..=b'\r'));
            while special.strips_left && at > before && is_blank(at - 1) {
                at -= 1;
            }
            while special.strips_right && end < after && is_blank(end) {
                end += 1;
            }
            taken.insert(at, (end, special.token));
        }
        let (mut parts, mut done) = (Vec::new(), 0);
        for (at, (end, token)) in taken {
            if at > done {
                parts.push(Fragment::Text(done..at));
            }
            parts.push(Fragment::Special(token));
            done = end;
        }
        if done < text.len() {
            parts.push(Fragment::Text(done..text.len()));
        }
        parts
    }
}

impl SpecialToken {
    fn is_guarded(&self, marks: &[Token]) -> bool {
        self.is_control || marks.binary_search(&self.token).is_ok()
    }

    /// Whether a template can use it as a mark: not a word, a run of spaces or a short operator of a programming language.
    fn looks_like_mark(&self) -> bool {
        let text = String::from_utf8_lossy(&self.text);
        text.chars().nth(2).is_some() && text.contains(|c: char| !c.is_alphanumeric() && !c.is_whitespace())
    }
}

impl GuardedTokens<'_> {
    /// The first characters of the tokens, except letters and digits. They are few and rare in texts.
    pub fn first_chars(&self) -> &[char] {
        &self.first_chars
    }

    /// The template's marks that are no control tokens, ascending.
    pub fn into_marks(self) -> Vec<Token> {
        self.marks
    }

    /// The byte offsets at which tokens begin.
    pub fn starts(&self, text: &str) -> TokenStarts {
        let mut starts = TokenStarts::default();
        for (at, _) in text.char_indices() {
            let (mut is_control, mut is_mark) = (false, false);
            let rest = text.as_bytes().get(at..).unwrap_or(&[]);
            let longer = self.specials.walk(rest, |special| {
                is_control |= special.is_control;
                is_mark |= special.is_guarded(&self.marks);
            });
            let mut longer = longer.iter().filter_map(|index| self.specials.tokens.get(*index));
            if is_control {
                starts.whole.push(at);
            } else if is_mark {
                starts.marks.push(at);
            } else if longer.any(|special| special.is_guarded(&self.marks)) {
                starts.cut.push(at);
            }
        }
        starts
    }
}

/// The positions of guarded tokens in a text, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenStarts {
    /// Offsets of complete control tokens.
    pub whole: Vec<usize>,
    /// Offsets of the template's other complete marks.
    pub marks: Vec<usize>,
    /// Offsets of tokens that the end of the text cuts off.
    pub cut: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(list: &[(&str, bool)]) -> SpecialTokens {
        let special = |(token, (text, is_control)): (Token, &(&str, bool))| SpecialToken {
            token,
            text: text.as_bytes().to_vec(),
            is_control: *is_control,
            strips_left: false,
            strips_right: text.contains("phi"),
        };
        SpecialTokens::new((0..).zip(list).map(special).collect())
    }

    /// Compares the parts as text, with special tokens as numbers in parentheses.
    fn check(list: &[(&str, bool)], text: &str, tainted: &[usize], expected: &str) {
        check_marks(list, &[], text, tainted, expected);
    }

    fn check_marks(list: &[(&str, bool)], marks: &[Token], text: &str, tainted: &[usize], expected: &str) {
        let parts = specials(list).partition(text.as_bytes(), tainted, marks);
        let shown: Vec<String> = parts
            .into_iter()
            .map(|part| match part {
                Fragment::Text(range) => text[range].to_owned(),
                Fragment::Special(token) => format!("({token})"),
            })
            .collect();
        assert_eq!(shown.join(","), expected, "{text:?} {tainted:?}");
    }

    const TURNS: [(&str, bool); 4] = [("<s>", true), ("<s><s>", true), ("  ", false), ("</s>", true)];

    #[test]
    fn text_is_split_at_special_tokens_longest_first() {
        check(&TURNS, "", &[], "");
        check(&TURNS, "ab", &[], "ab");
        check(&TURNS, "<s>a</s>", &[], "(0),a,(3)");
        check(&TURNS, "a<s><s><s>b", &[], "a,(1),(0),b");
        check(&TURNS, "a   b", &[], "a,(2), b");
        check(&[("<phi>", true), ("\n\n", false)], "<phi> \n\n\nx", &[], "(0),x");
    }

    #[test]
    fn a_control_token_over_a_tainted_character_stays_text() {
        check(&TURNS, "<s>a</s>", &[5], "(0),a</s>");
        check(&TURNS, "<s>a</s>", &[1, 5], "<s>a</s>");
        // Any of its characters, including the last one, but not its neighbours.
        check(&TURNS, "a</s>b", &[5], "a</s>b");
        check(&TURNS, "a</s>b", &[1, 6], "a,(3),b");
        // A shorter token beside it is still found. User-defined tokens are text.
        check(&TURNS, "<s><s>", &[4], "(0),<s>");
        check(&TURNS, "a  b", &[2], "a,(2),b");
    }

    #[test]
    fn a_mark_of_the_template_over_a_tainted_character_stays_text() {
        let list = [("<s>", true), ("<think>", false), ("<b>", false), ("ab", false), ("-->", false)];
        let all = specials(&list);
        let marks = |text: &'static str| all.guarded([text].into_iter()).into_marks();
        assert_eq!(marks("ab <think>\n</s> --> <s>"), [1, 4], "words and control tokens are no marks");
        check_marks(&list, &marks("<think>"), "<think><b><think>ab", &[11], "(1),(2),<think>,(3)");
        check_marks(&list, &marks("<think>"), "<think><b>", &[1, 8], "<think>,(2)");
        let guarded = all.guarded(["-->{{ x }}<think>"].into_iter());
        assert_eq!(guarded.first_chars(), ['-', '<']);
        let TokenStarts { whole, marks, cut } = guarded.starts("<b><think><s>--");
        assert_eq!((whole, marks, cut), (vec![10], vec![3], vec![13, 14]));
    }

    #[test]
    fn control_tokens_are_found_in_a_text_and_at_its_end() {
        let find = |text| {
            let TokenStarts { whole, cut, .. } = specials(&TURNS).guarded(std::iter::empty()).starts(text);
            (whole, cut)
        };
        assert_eq!(find("a  b"), (vec![], vec![]));
        assert_eq!(find("é<s>"), (vec![2], vec![]));
        assert_eq!(find("a</s>  <s"), (vec![1], vec![7]));
        assert_eq!(find("<</"), (vec![], vec![1]));
        assert_eq!(find("<s><s"), (vec![0], vec![3]));
    }
}
