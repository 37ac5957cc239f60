//! Compares our grammars with llama.cpp's: the same grammars are valid, and the same tokens are allowed.

use std::ffi::CString;
use std::sync::Arc;

use foredraft::grammar::Grammar;
use foredraft::llama::{Model, ModelParams, Token, TokenData};
use llama_cpp_sys_2 as sys;

/// Grammars with every construct. Token ids are of the shipped vocabulary.
const GRAMMARS: [&str; 24] = [
    "root ::= \"a\"",
    "root ::= [a-z]+ \" \" [^a-z\\n]* # a comment\n",
    "root   ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | \"(\" ws expr \")\" ws\n\
     ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*",
    "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\
     object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n\
     array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n\
     string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n\
     number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n\
     ws ::= | \" \" | \"\\n\" [ \\t]{0,20}",
    "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"",
    "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n\
     move ::= (pawn | nonpawn | castle) [+#]?\nnonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n\
     pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\ncastle ::= \"O-O\" \"-O\"?",
    "root ::= jp-char+ ([ \\t\\n] jp-char+)*\njp-char ::= hiragana | katakana | [一-龠]\nhiragana ::= [ぁ-ゟ]\nkatakana ::= [ァ-ヿ]",
    "root ::= \"a\"{3} \"b\"{1,} \"c\"{0,4} [d-f]{2,5} (\"g\" | \"h\"){0,3}",
    "root ::= (\"a\"? \"b\"*)*",
    "root ::= \"\"",
    "root ::= | \"x\" root",
    "root ::= . . .+",
    "root ::= <[5]> !<[6]> \"a\" | <[7]>*",
    "root ::= \"\\u00e9\" [\\u00e0-\\u00ff]* \"\\U0001F600\"",
    "root ::= ((((\"a\"))))",
    "root ::= a b\na ::= \"x\" | b\nb ::= \"y\"",
    "root ::= [a\\-z\\]\\[^]+",
    "root ::= \"a\" |\n \"b\" |\n\n \"c\"\r\nother ::= root",
    "root ::= root2 \"\\\\\"\nroot2 ::= [\\t] [-] [a-]",
    "a ::= \"x\" a \"y\" | \"z\"\nroot ::= a",
    "root ::= (\"a\" | \"b\" # one\n | \"c\")\n# two\n",
    "root ::= \"once\"? ( \" upon\" \" a\" )* \" time\"{2}",
    "root ::= x\nroot ::= \"b\" | \"c\"\nx ::= \"d\"",
    "root ::= [^\\]a] \"b\" [] \"c\"",
];

/// Strings that mutations insert.
const PIECES: [&str; 30] = [
    "\"", "(", ")", "[", "]", "{", "}", "|", "*", "+", "?", "\n", "\\", "::=", "root", ",", "<", ">", "!", "#", "^",
    "-", "é", "\\x4", "{2,3}", "{9,1}", "<[3]>", "\\u12", " ", "a ::= ",
];

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-target.gguf");

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn model() -> Arc<Model> {
    let params = ModelParams { vocab_only: true, ..ModelParams::new(PATH) };
    Arc::new(Model::load(&params, |_| true).expect("the model loads"))
}

/// The vocabulary of a model that is never freed.
fn their_vocab() -> *const sys::llama_vocab {
    let path = CString::new(PATH).expect("no NUL");
    // SAFETY: a NUL-terminated path; the model is never freed.
    unsafe {
        let mut params = sys::llama_model_default_params();
        params.vocab_only = true;
        sys::llama_model_get_vocab(sys::llama_model_load_from_file(path.as_ptr(), params))
    }
}

/// llama.cpp's grammar sampler.
struct LlamaGrammar(*mut sys::llama_sampler);

impl Drop for LlamaGrammar {
    fn drop(&mut self) {
        // SAFETY: this value is the only owner.
        unsafe { sys::llama_sampler_free(self.0) }
    }
}

impl LlamaGrammar {
    fn new(vocab: *const sys::llama_vocab, gbnf: &str) -> Option<LlamaGrammar> {
        let text = CString::new(gbnf).expect("no NUL");
        // SAFETY: NUL-terminated strings, and the vocabulary is never freed.
        let ptr = unsafe { sys::llama_sampler_init_grammar(vocab, text.as_ptr(), c"root".as_ptr()) };
        (!ptr.is_null()).then_some(LlamaGrammar(ptr))
    }

    fn filter(&mut self, candidates: &mut [TokenData]) {
        let (data, size) = (candidates.as_mut_ptr().cast(), candidates.len());
        let mut list = sys::llama_token_data_array { data, size, selected: -1, sorted: false };
        // SAFETY: the length is that of the list, and all ids are in the vocabulary.
        unsafe { sys::llama_sampler_apply(self.0, &mut list) }
    }

    fn accept(&mut self, token: Token) {
        // SAFETY: the token was allowed.
        unsafe { sys::llama_sampler_accept(self.0, token) }
    }
}

/// Asserts that both accept or both reject `gbnf`, if llama.cpp can safely parse it. Returns both grammars if accepted.
fn compare(model: &Arc<Model>, vocab: *const sys::llama_vocab, gbnf: &str) -> Option<(Grammar, LlamaGrammar)> {
    let ours = Grammar::new(model, gbnf, &foredraft_base::work::Work::unlimited());
    // llama.cpp would count down from 2^64, access a missing rule, or exhaust the memory.
    let unsafe_in_llama_cpp = ["at least", "undefined rule 'root'", "too ambiguous"];
    if let Err(error) = &ours
        && unsafe_in_llama_cpp.iter().any(|what| error.message().contains(what))
    {
        return None;
    }
    let theirs = LlamaGrammar::new(vocab, gbnf);
    let message = ours.as_ref().err().map_or("accepted".into(), |error| error.message().to_owned());
    assert_eq!(ours.is_ok(), theirs.is_some(), "{gbnf:?}: {message}");
    ours.ok().zip(theirs)
}

/// Generates random outputs with both grammars; returns the number of compared tokens. Skips incomplete characters: there
/// llama.cpp allows bytes that can never become UTF-8, and forbids some that can become a character outside a class (see the
/// automaton's tests). Skips control tokens, which llama.cpp matches by their names although they add no text.
fn walk(
    model: &Arc<Model>,
    (mut ours, mut theirs): (Grammar, LlamaGrammar),
    rng: &mut Rng,
    steps: usize,
    what: &str,
) -> usize {
    let vocab = model.vocab();
    let n = Token::try_from(vocab.n_tokens()).expect("small");
    let whole = |token: Token| std::str::from_utf8(vocab.piece(token)).is_ok();
    let hidden = |token: Token| vocab.text(token).is_empty() && !vocab.is_eog(token);
    let mut text = Vec::new();
    let mut compared = 0;
    for _ in 0..steps {
        let row = || (0..n).map(|id| TokenData { id, logit: 0.0, p: 0.0 }).collect::<Vec<_>>();
        let (mut a, mut b) = (row(), row());
        ours.filter(&mut a).expect("the output matches so far");
        theirs.filter(&mut b);
        for (a, b) in a.iter().zip(&b).filter(|(a, _)| whole(a.id)) {
            let shown = String::from_utf8_lossy(vocab.piece(a.id));
            assert!(
                a.logit == b.logit || (hidden(a.id) && a.logit < b.logit),
                "{what:?} after {:?}: token {} {shown:?}",
                String::from_utf8_lossy(&text),
                a.id
            );
        }
        compared += a.len();
        let allowed: Vec<Token> = a
            .iter()
            .filter(|item| item.logit == 0.0 && !vocab.is_eog(item.id) && whole(item.id))
            .map(|item| item.id)
            .collect();
        if allowed.is_empty() {
            break;
        }
        let token = allowed[rng.below(allowed.len())];
        text.extend_from_slice(vocab.piece(token));
        ours.accept(token).expect("the token is allowed");
        theirs.accept(token);
    }
    compared
}

#[test]
fn grammars_and_allowed_tokens_match_llama_cpp() {
    let model = model();
    let vocab = their_vocab();
    let mut rng = Rng(0x1234_5678_9abc_def1);
    let mut compared = 0;
    for gbnf in GRAMMARS {
        for _ in 0..4 {
            let both = compare(&model, vocab, gbnf).unwrap_or_else(|| panic!("{gbnf:?} is a grammar"));
            compared += walk(&model, both, &mut rng, 40, gbnf);
        }
    }
    assert!(compared > 1_000_000, "{compared}");
}

#[test]
fn mutated_grammars_are_accepted_or_rejected_as_in_llama_cpp() {
    let model = model();
    let vocab = their_vocab();
    let mut rng = Rng(0xfeed_beef_cafe_f00d);
    let mut accepted = 0;
    let rounds = 4000;
    for round in 0..rounds {
        let mut gbnf: Vec<char> = GRAMMARS[rng.below(GRAMMARS.len())].chars().collect();
        for _ in 0..=rng.below(3) {
            let at = rng.below(gbnf.len() + 1);
            if rng.below(2) == 0 && !gbnf.is_empty() {
                let end = (at + 1 + rng.below(4)).min(gbnf.len());
                gbnf.drain(at.min(end)..end);
            } else {
                gbnf.splice(at..at, PIECES[rng.below(PIECES.len())].chars());
            }
        }
        let gbnf: String = gbnf.into_iter().collect();
        if let Some(both) = compare(&model, vocab, &gbnf) {
            accepted += 1;
            if round % 8 == 0 {
                walk(&model, both, &mut rng, 6, &gbnf);
            }
        }
    }
    assert!(accepted > rounds / 10 && accepted < rounds * 9 / 10, "{accepted} of {rounds}");
}
