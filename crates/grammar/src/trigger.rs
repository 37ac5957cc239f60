//! The triggers of lazy grammars: words, patterns and tokens from which on a completion follows its grammar.

use std::sync::Arc;

use super::pattern::Pattern;
use foredraft_base::Token;
use foredraft_base::error::{Error, Result};

/// The steps of all searches for patterns in a request, besides those of each token. A step takes a few nanoseconds.
const REQUEST_STEPS: usize = 1 << 24;
/// The steps that each token adds: enough to search some 50 KB for a pattern of usual length.
const TOKEN_STEPS: usize = 1 << 18;
/// The most triggers of a grammar.
const MAX_TRIGGERS: usize = 1 << 13;

/// The trigger of a lazy grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// This text.
    Word(String),
    /// The first match of this regular expression in the completion so far. The grammar begins at the first group that matched some text,
    /// or else at the match.
    Pattern(String),
    /// The same, and the pattern matches the whole completion so far.
    FullPattern(String),
    /// This text at the beginning of the completion or behind reasoning, white space aside. The grammar begins with it.
    Beginning(String),
    /// This token.
    Token(Token),
}

/// Compiled triggers.
#[derive(Debug, Default)]
pub(crate) struct TriggerSet {
    words: Vec<Vec<u8>>,
    beginnings: Vec<Vec<u8>>,
    patterns: Vec<Pattern>,
    tokens: Vec<Token>,
    longest_word: usize,
    /// The bytes that words end with.
    last_bytes: Vec<bool>,
}

impl TriggerSet {
    /// Compiles triggers.
    ///
    /// # Errors
    /// `invalid_request`: there are too many, a word is empty, or a pattern is invalid.
    pub(crate) fn new(triggers: &[Trigger]) -> Result<TriggerSet> {
        let invalid = |index: usize, why: &str| Error::invalid(format!("grammar_triggers[{index}]: {why}"));
        if triggers.len() > MAX_TRIGGERS {
            return Err(invalid(MAX_TRIGGERS, &format!("there can be at most {MAX_TRIGGERS}")));
        }
        let mut set = TriggerSet { last_bytes: vec![false; 256], ..TriggerSet::default() };
        for (index, trigger) in triggers.iter().enumerate() {
            let compile = |pattern: &str| Pattern::new(pattern).map_err(|why| invalid(index, &why));
            match trigger {
                Trigger::Beginning(word) if word.trim_start().is_empty() => {
                    return Err(invalid(index, "the word is empty"));
                }
                Trigger::Beginning(word) => set.beginnings.push(word.as_bytes().to_vec()),
                Trigger::Word(word) => {
                    let Some(last) = word.bytes().last() else { return Err(invalid(index, "the word is empty")) };
                    set.last_bytes.get_mut(usize::from(last)).into_iter().for_each(|is_last| *is_last = true);
                    set.longest_word = set.longest_word.max(word.len());
                    set.words.push(word.as_bytes().to_vec());
                }
                Trigger::Pattern(pattern) => set.patterns.push(compile(pattern)?),
                Trigger::FullPattern(pattern) => set.patterns.push(compile(&format!("^(?:{pattern})$"))?),
                Trigger::Token(token) => set.tokens.push(*token),
            }
        }
        Ok(set)
    }

    /// Whether this token is a trigger.
    pub(crate) fn has_token(&self, token: Token) -> bool {
        self.tokens.contains(&token)
    }

    /// Whether there are patterns, which take longer to find than words.
    pub(crate) fn has_patterns(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// Where the grammar begins in a completion that ends with `text` after the bytes `before`: a position in both together. `steps_left`
    /// is what patterns may cost, and 0 afterwards if that was too little.
    fn find(&self, before: &[u8], text: &[u8], steps_left: &mut usize) -> Option<usize> {
        let ends_word = |byte: &u8| self.last_bytes.get(usize::from(*byte)) == Some(&true);
        if self.patterns.is_empty() && !text.iter().any(ends_word) {
            return None;
        }
        let whole = [before, text].concat();
        let words = self.words.iter().filter_map(|word| {
            // Earlier ends were looked at before.
            let from = (before.len() + 1).saturating_sub(word.len());
            let rest = whole.get(from..)?;
            rest.windows(word.len()).position(|window| window == word).map(|at| from + at)
        });
        let by_word = words.min();
        by_word.or_else(|| self.patterns.iter().find_map(|pattern| pattern.find(&whole, steps_left)))
    }

    /// Whether `text` begins with a trigger for the beginning of the completion. `None`: it may become one that does.
    fn begins(&self, text: &[u8]) -> Option<bool> {
        if self.beginnings.iter().any(|word| text.starts_with(word)) {
            return Some(true);
        }
        let may_begin = self.beginnings.iter().any(|word| word.starts_with(text));
        (!may_begin).then_some(false)
    }

    /// How many bytes at the end of a completion a search needs; `None`: all.
    pub(crate) fn n_needed(&self) -> Option<usize> {
        self.patterns.is_empty().then(|| self.longest_word.saturating_sub(1))
    }
}

/// The state of a grammar that has not begun.
///
/// Patterns are searched for in the whole completion after each token. Their work is bounded: where a search costs more than what is left, it
/// finds nothing, and the next one waits until twice as much is left. This depends on the completion alone.
#[derive(Debug, Clone)]
pub(crate) struct Awaiting {
    pub(crate) triggers: Arc<TriggerSet>,
    /// The end of the completion, as far as triggers need it.
    pub(crate) bytes: Vec<u8>,
    /// The beginning of the completion, or of what follows reasoning, as long as it may become a trigger for the beginning.
    beginning: Option<Vec<u8>>,
    /// The steps that searches may still take.
    steps_left: usize,
    /// The steps that must be left for a search.
    steps_needed: usize,
}

/// The effect of a text on a grammar that has not begun.
pub(crate) struct TriggerSearch {
    /// The bytes from which on the grammar begins, those of earlier tokens included.
    pub(crate) begun: Option<Vec<u8>>,
    steps_left: usize,
    steps_needed: usize,
}

impl Awaiting {
    pub(crate) fn new(triggers: TriggerSet) -> Awaiting {
        let beginning = (!triggers.beginnings.is_empty()).then(Vec::new);
        let (triggers, bytes) = (Arc::new(triggers), Vec::new());
        Awaiting { triggers, bytes, beginning, steps_left: REQUEST_STEPS, steps_needed: 0 }
    }

    /// Searches for what begins the grammar if `text` follows.
    pub(crate) fn search(&self, text: &[u8]) -> TriggerSearch {
        if let Some(beginning) = self.beginning_with(text).filter(|whole| self.triggers.begins(whole) == Some(true)) {
            return TriggerSearch {
                begun: Some(beginning),
                steps_left: self.steps_left,
                steps_needed: self.steps_needed,
            };
        }
        let had = if self.steps_left < self.steps_needed { 0 } else { self.steps_left };
        let mut steps_left = had;
        let start = self.triggers.find(&self.bytes, text, &mut steps_left);
        let begun = start.map(|start| {
            let mut begun = self.bytes.get(start..).unwrap_or(&[]).to_vec();
            begun.extend_from_slice(text.get(start.saturating_sub(self.bytes.len())..).unwrap_or(&[]));
            begun
        });
        let has_too_few = had > 0 && steps_left == 0;
        TriggerSearch {
            begun,
            steps_left: self.steps_left - (had - steps_left),
            steps_needed: if has_too_few { (2 * had).min(REQUEST_STEPS) } else { self.steps_needed },
        }
    }

    /// Appends a text that begins nothing, after `search` looked at it.
    pub(crate) fn push(&mut self, text: &[u8], search: &TriggerSearch) {
        self.beginning = self.beginning_with(text).filter(|whole| self.triggers.begins(whole).is_none());
        self.steps_left = (search.steps_left + TOKEN_STEPS).min(REQUEST_STEPS);
        self.steps_needed = search.steps_needed;
        self.bytes.extend_from_slice(text);
        if let Some(n_needed) = self.triggers.n_needed() {
            let surplus = self.bytes.len().saturating_sub(n_needed);
            self.bytes.drain(..surplus);
        }
    }

    /// Reasoning ended: what follows counts as a beginning.
    pub(crate) fn begin_again(&mut self) {
        self.beginning = (!self.triggers.beginnings.is_empty()).then(Vec::new);
    }

    /// The beginning with more text, without white space before it.
    fn beginning_with(&self, text: &[u8]) -> Option<Vec<u8>> {
        let beginning = self.beginning.as_ref()?;
        let text = if beginning.is_empty() { text.trim_ascii_start() } else { text };
        Some([beginning.as_slice(), text].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(triggers: &[Trigger], texts: &[&str]) -> Option<(usize, String)> {
        let mut awaiting = Awaiting::new(TriggerSet::new(triggers).unwrap());
        for (index, text) in texts.iter().enumerate() {
            let search = awaiting.search(text.as_bytes());
            if let Some(begun) = search.begun {
                return Some((index, String::from_utf8(begun).unwrap()));
            }
            awaiting.push(text.as_bytes(), &search);
        }
        None
    }

    #[test]
    fn words_are_found_across_tokens() {
        let word = |word: &str| Trigger::Word(word.to_owned());
        let triggers = [word("<tool_call>"), word("{\"x\"")];
        for (texts, expected) in [
            (&["a <to", "ol_call", ">\n"][..], Some((2, "<tool_call>\n"))),
            (&["<tool_call>x"], Some((0, "<tool_call>x"))),
            (&["<tool_", "x", "call>"], None),
            (&["{\"", "x\": 1, <tool_call>"], Some((1, "{\"x\": 1, <tool_call>"))),
        ] {
            assert_eq!(begun(&triggers, texts), expected.map(|(at, text)| (at, text.to_owned())), "{texts:?}");
        }
    }

    #[test]
    fn patterns_begin_at_their_first_group() {
        let triggers = [Trigger::Pattern(r"<s>assistant(\s+to)".to_owned()), Trigger::FullPattern(r"\s+to".to_owned())];
        assert_eq!(begun(&triggers, &["<s>", "assistant", " to", "="]), Some((2, " to".to_owned())));
        assert_eq!(begun(&triggers, &[" ", "to"]), Some((1, " to".to_owned())));
        assert_eq!(begun(&triggers, &["x", " to"]), None);
    }

    /// Nested repetition makes a backtracking search exponential, and nested lookahead made this one quadratic in each token.
    #[test]
    fn searches_of_a_request_are_bounded_together() {
        let nested = format!("(?:a{}b{})+c", "(?=[^b]*".repeat(30), ")".repeat(30));
        let large = "(?:(?:[ab]?){1500})*c".to_owned();
        for pattern in [nested, large, "(?=(?=(a*)*b)*a*$)x".to_owned(), "(?!(?!a*$)[ab]*)c".to_owned()] {
            let mut awaiting = Awaiting::new(TriggerSet::new(&[Trigger::Pattern(pattern.clone())]).unwrap());
            let mut n_steps = 0;
            for _ in 0..100 {
                let search = awaiting.search(b"aaaaaaaabaaaaaaa");
                assert!(search.begun.is_none(), "{pattern}");
                n_steps += awaiting.steps_left - search.steps_left;
                awaiting.push(b"aaaaaaaabaaaaaaa", &search);
            }
            assert!(n_steps <= REQUEST_STEPS + 100 * TOKEN_STEPS, "{pattern}: {n_steps}");
        }
    }

    /// A search that was too expensive is made again when enough tokens have followed.
    #[test]
    fn expensive_pattern_is_found_late() {
        let pattern = "(?:[ab]?){1500}x".to_owned();
        let mut awaiting = Awaiting::new(TriggerSet::new(&[Trigger::Pattern(pattern)]).unwrap());
        let n = (0..400).position(|_| {
            let search = awaiting.search(&[b'a'; 100]);
            awaiting.push(&[b'a'; 100], &search);
            search.steps_needed > 0
        });
        assert!(n.is_some(), "the steps run out");
        assert!((0..100).any(|_| {
            let search = awaiting.search(b"x");
            awaiting.push(b"x", &search);
            search.begun.is_some()
        }));
    }

    #[test]
    fn beginnings_are_found_behind_white_space_and_reasoning_only() {
        let triggers = [Trigger::Beginning("{\"name\"".to_owned())];
        let expected = |at| Some((at, "{\"name\": 1".to_owned()));
        assert_eq!(begun(&triggers, &["\n", " {", "\"name\": 1"]), expected(2));
        assert_eq!(begun(&triggers, &["{\"name\": 1"]), expected(0));
        for texts in [&["a ", "{\"name\""][..], &["{\"nam\"", "{\"name\""], &["x", "", "{\"name\""]] {
            assert_eq!(begun(&triggers, texts), None, "{texts:?}");
        }
        let mut awaiting = Awaiting::new(TriggerSet::new(&triggers).unwrap());
        awaiting.push(b"<think>", &awaiting.search(b"<think>"));
        assert_eq!(awaiting.search(b"{\"name\"").begun, None);
        awaiting.begin_again();
        assert_eq!(awaiting.search(b"\n\n{\"name\"").begun, Some(b"{\"name\"".to_vec()));
    }

    #[test]
    fn invalid_triggers_are_named() {
        let error = |trigger| TriggerSet::new(&[Trigger::Token(1), trigger]).unwrap_err().message().to_owned();
        assert_eq!(error(Trigger::Word(String::new())), "grammar_triggers[1]: the word is empty");
        assert_eq!(
            error(Trigger::Pattern("(".to_owned())),
            "grammar_triggers[1]: unbalanced parentheses at character 1"
        );
    }
}
