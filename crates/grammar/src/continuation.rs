//! The text that must come next: where the grammar allows only one byte, and then again only one.
//!
//! The whitespace of JSON is optional nearly everywhere. There the text goes on with a guess: a space after a colon or a comma, none
//! elsewhere. Such text is less certain.

use foredraft_base::Token;

use super::{Grammar, OutputConstraint};

/// The longest continuation, in bytes.
const MAX_BYTES: usize = 256;
/// The most bytes among which a guess is made: one, and whitespace.
const MAX_OPTIONS: usize = 6;
/// How certain a token is that only the grammar determines; and how much less each guess makes those after it.
const CERTAIN: f32 = 0.9;
const GUESS: f32 = 0.8;
/// How certain the last token is: a longer one may take its place, which goes on with what is not determined.
const LAST: f32 = 0.6;

/// Text that must come next, and how certain each of its bytes is.
#[derive(Debug, Default, PartialEq)]
struct ForcedText {
    text: Vec<u8>,
    certainty: Vec<f32>,
}

impl OutputConstraint {
    /// The tokens that are likely next because nothing else is allowed, at most `n`, and how certain each of them is (0..=1).
    pub fn continuation(&self, n: usize) -> Vec<(Token, f32)> {
        match self.forced() {
            Some(forced) => std::iter::repeat_n((forced, CERTAIN), n.min(1)).collect(),
            None => self.applied_grammar().map_or_else(Vec::new, |grammar| grammar.continuation(n)),
        }
    }
}

impl Grammar {
    /// The tokens that the grammar makes likely next because it allows nothing else, at most `n`, and how certain each of them is
    /// (0..=1). Empty where the grammar leaves a choice. The text may have other tokens.
    pub fn continuation(&self, n: usize) -> Vec<(Token, f32)> {
        let ForcedText { text, certainty } = self.continuing_text(n.saturating_mul(16).min(MAX_BYTES));
        if text.is_empty() {
            return Vec::new();
        }
        let tokens = self.spell(&text);
        let n_tokens = tokens.len();
        let mut end = 0;
        let with_certainty = tokens.into_iter().enumerate().map(|(index, token)| {
            end += self.vocabulary.text(token).len();
            let certain = certainty.get(end.saturating_sub(1)).copied().unwrap_or(0.0);
            (token, if index + 1 == n_tokens { certain * LAST / CERTAIN } else { certain })
        });
        with_certainty.take(n).collect()
    }

    /// The text of at most `n` bytes, in whole characters.
    fn continuing_text(&self, n: usize) -> ForcedText {
        let mut automaton = self.automaton.lock();
        automaton.begin_work();
        let (mut found, mut state, mut certain) = (ForcedText::default(), self.state, CERTAIN);
        while found.text.len() < n {
            let Ok(Some(options)) = automaton.next_bytes(state, MAX_OPTIONS) else { break };
            let Some((byte, is_guess)) = likely(&options, found.text.last().copied()) else { break };
            let Ok(next) = automaton.follow_text(state, &[byte]) else { break };
            certain *= if is_guess { GUESS } else { 1.0 };
            found.text.push(byte);
            found.certainty.push(certain);
            state = next;
        }
        let n_whole = std::str::from_utf8(&found.text).map_or_else(|error| error.valid_up_to(), str::len);
        found.text.truncate(n_whole);
        found
    }

    /// The tokens of a text that follows others; empty if the vocabulary does not spell exactly this text.
    fn spell(&self, text: &[u8]) -> Vec<Token> {
        // Vocabularies that put a space before a text put none after a newline.
        const BEFORE: &[u8] = b"\n";
        let vocabulary = &self.vocabulary;
        let spells = |tokens: &[Token]| tokens.iter().flat_map(|token| vocabulary.text(*token)).eq(text.iter());
        let tokenize = |text: &[u8]| vocabulary.tokenize(text, false).unwrap_or_default();
        let alone = tokenize(text);
        if spells(&alone) {
            return alone;
        }
        let (before, both) = (tokenize(BEFORE), tokenize(&[BEFORE, text].concat()));
        both.strip_prefix(before.as_slice()).filter(|rest| spells(rest)).map(<[Token]>::to_vec).unwrap_or_default()
    }
}

/// The byte that comes next after `last`, if there is one that is likely, and whether it is a guess.
fn likely(options: &[u8], last: Option<u8>) -> Option<(u8, bool)> {
    if let [only] = options {
        return Some((*only, false));
    }
    let mut others = options.iter().filter(|byte| !b"\t\n\r ".contains(byte));
    let other = others.next().filter(|_| others.next().is_none())?;
    let has_space = options.contains(&b' ') && matches!(last, Some(b':' | b','));
    Some((if has_space { b' ' } else { *other }, true))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foredraft_base::error::Result;
    use foredraft_base::{Token, Vocabulary};

    use super::super::Grammar;

    /// A token for each byte, and some for longer texts.
    #[derive(Debug)]
    struct Letters {
        pieces: Vec<Vec<u8>>,
    }

    impl Letters {
        fn new(longer: &[&str]) -> Arc<Letters> {
            let bytes = (0..=255_u8).map(|byte| vec![byte]);
            Arc::new(Letters { pieces: bytes.chain(longer.iter().map(|text| text.as_bytes().to_vec())).collect() })
        }
    }

    impl Vocabulary for Letters {
        fn n_tokens(&self) -> usize {
            self.pieces.len()
        }

        fn piece(&self, token: Token) -> &[u8] {
            &self.pieces[token as usize]
        }

        fn is_eog(&self, token: Token) -> bool {
            token == 0
        }

        fn newline(&self) -> Option<Token> {
            Some(10)
        }

        /// The longest token first.
        fn tokenize(&self, mut text: &[u8], _parse_special: bool) -> Result<Vec<Token>> {
            let mut tokens = Vec::new();
            while !text.is_empty() {
                let fits = |(_, piece): &(usize, &Vec<u8>)| text.starts_with(piece);
                let (token, piece) =
                    self.pieces.iter().enumerate().filter(fits).max_by_key(|(_, piece)| piece.len()).unwrap();
                tokens.push(token as Token);
                text = &text[piece.len()..];
            }
            Ok(tokens)
        }
    }

    fn continuation(gbnf: &str, output: &str) -> String {
        let vocabulary = Letters::new(&["name", "\": \"", "true"]);
        let mut grammar = Grammar::new(&vocabulary, gbnf, &foredraft_base::work::Work::unlimited()).unwrap();
        for token in vocabulary.tokenize(output.as_bytes(), false).unwrap() {
            grammar.accept(token).unwrap();
        }
        let tokens = grammar.continuation(40);
        assert!(tokens.iter().all(|(_, certainty)| (0.0..=1.0).contains(certainty)));
        let mut after = grammar.clone();
        assert!(tokens.iter().all(|(token, _)| after.accept(*token).is_ok()), "the grammar allows its continuation");
        tokens.iter().flat_map(|(token, _)| vocabulary.pieces[*token as usize].clone()).map(char::from).collect()
    }

    #[test]
    fn continuation_is_what_the_grammar_leaves_no_choice_of() {
        let gbnf = "root ::= \"{\\\"name\\\":\" value \"}\"\nvalue ::= \"true\" | \"null\" | [0-9]+";
        assert_eq!(continuation(gbnf, ""), "{\"name\":");
        assert_eq!(continuation(gbnf, "{\"na"), "me\":");
        assert_eq!(continuation(gbnf, "{\"name\":"), "", "a choice");
        assert_eq!(continuation(gbnf, "{\"name\":t"), "rue}");
        assert_eq!(continuation(gbnf, "{\"name\":7"), "", "more digits, or the end");
        assert_eq!(continuation(gbnf, "{\"name\":true}"), "", "the end");
        assert_eq!(continuation("root ::= \"a\" | \"ab\"", "a"), "", "it may end here");
        assert_eq!(continuation("root ::= ([x] \"é\")+", "x"), "Ã©", "two bytes, and then it may end");
        assert_eq!(continuation("root ::= \"a\"+ \"b\"", "a"), "");
        assert_eq!(continuation("root ::= . \"b\"", ""), "");
    }

    /// The notation of llama.cpp's converter of JSON schemas.
    #[test]
    fn optional_whitespace_is_guessed() {
        let space = "space ::= | \" \" | \"\\n\"{1,2} [ \\t]{0,20}";
        let gbnf = format!("root ::= \"{{\" space \"\\\"name\\\"\" space \":\" space \"true\" space \"}}\"\n{space}");
        assert_eq!(continuation(&gbnf, ""), "{\"name\": true}");
        assert_eq!(continuation(&gbnf, "{\n"), "\"name\": true}");
    }

    #[test]
    fn tokens_after_guesses_are_less_certain() {
        let vocabulary = Letters::new(&[]);
        let grammar = Grammar::new(
            &vocabulary,
            "root ::= \"ab\" \" \"? \"cd\" \" \"? \"e.\"",
            &foredraft_base::work::Work::unlimited(),
        )
        .unwrap();
        let tokens = grammar.continuation(9);
        assert!(tokens.len() == 6 && tokens.is_sorted_by(|(_, a), (_, b)| a >= b), "{tokens:?}");
        assert!(tokens[1].1 > tokens[2].1 && tokens[3].1 > tokens[4].1, "{tokens:?}");
        assert_eq!(grammar.continuation(3).len(), 3);
        assert!(grammar.continuation(0).is_empty());
    }

    #[test]
    fn endless_and_ambiguous_continuations_are_bounded() {
        assert!(continuation("root ::= \"ab\" root", "").len() <= 256);
        assert_eq!(continuation("x ::= \"a\" x \"b\" | \"a\" x \"c\" | \"a\"\nroot ::= x", "aa"), "");
    }
}
