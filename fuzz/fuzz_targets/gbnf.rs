//! Compiles any text as a grammar, and follows it for some tokens.
#![no_main]

use std::sync::{Arc, LazyLock};

use foredraft_base::error::Result;
use foredraft_base::{Token, Vocabulary};
use foredraft_grammar::Grammar;
use libfuzzer_sys::fuzz_target;

/// One token for each byte, and one that ends a completion.
#[derive(Debug)]
struct Bytes(Vec<[u8; 1]>);

impl Vocabulary for Bytes {
    fn n_tokens(&self) -> usize {
        257
    }

    fn piece(&self, token: Token) -> &[u8] {
        usize::try_from(token).ok().and_then(|index| self.0.get(index)).map_or(&[], |byte| &byte[..])
    }

    fn is_eog(&self, token: Token) -> bool {
        token == 256
    }

    fn newline(&self) -> Option<Token> {
        Some(10)
    }

    fn tokenize(&self, text: &[u8], _: bool) -> Result<Vec<Token>> {
        Ok(text.iter().map(|byte| Token::from(*byte)).collect())
    }
}

static VOCABULARY: LazyLock<Arc<Bytes>> = LazyLock::new(|| Arc::new(Bytes((0..=255).map(|byte| [byte]).collect())));

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let (gbnf, completion) = text.split_once('\u{0}').unwrap_or((&text, "{\"a\": [1, true]}"));
    let Ok(mut grammar) = Grammar::new(&VOCABULARY, gbnf, &foredraft_base::work::Work::unlimited()) else { return };
    for byte in completion.bytes().take(64) {
        let token = Token::from(byte);
        match grammar.allows(token) {
            // The grammar accepts each token that it allows.
            Ok(true) => grammar.accept(token).expect("an allowed token is accepted"),
            _ => return,
        }
    }
});
