//! The cost of looking at a whole vocabulary with a grammar, along a text that the grammar allows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use foredraft::grammar::Grammar;
use foredraft::llama::{Model, ModelParams, Token, TokenData};

/// The vocabularies, if `scripts/models.sh` has loaded them: 49,152 and 151,936 tokens.
const MODELS: [&str; 2] = ["smollm2-135m-q4_1.gguf", "qwen2.5-coder-0.5b-q4_k_m.gguf"];
/// So few candidates are looked at one by one.
const FEW: usize = 256;

const JSON: &str = r#"root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}"#;
const JSON_TEXT: &str = r#"{"name": "A long name of something", "values": [1, 2.5, -3e10, true, null], "nested": {"a": {"b": ["Grüße aus Köln, 中文", "x"]}}, "text": "Once upon a time there was a fox, who said: \"hello\"\nand went away."}"#;

const SCHEMA: &str = r#"root ::= "{" s "\"name\":" s str "," s "\"kind\":" s ("\"red\"" | "\"green\"") "," s "\"tags\":" s "[" (short ("," s short){0,9})? "]" "," s "\"count\":" s int "," s "\"text\":" s long "}"
str ::= "\"" char* "\""
short ::= "\"" char{1,20} "\""
long ::= "\"" char{0,400} "\""
int ::= "-"? ("0" | [1-9] [0-9]{0,15})
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
s ::= | " " | "\n" [ \t]{0,20}"#;
const SCHEMA_TEXT: &str = r#"{"name": "A long name of something", "kind": "green", "tags": ["one", "two words", "Köln"], "count": 1234, "text": "Once upon a time there was a fox, who said: \"hello\"\nand went away. 中文, and more of it."}"#;

/// Prints a row for each vocabulary and grammar: microseconds for all tokens, where a state is new, where it was seen, and token by token.
pub fn run() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/models");
    println!(
        "\n## Masks of a whole vocabulary: microseconds, median / 99th percentile / most of the places of a text\n"
    );
    println!("| tokens | grammar | first time | seen before | token by token |\n| ---: | --- | ---: | ---: | ---: |");
    for file in MODELS.map(|name| folder.join(name)).into_iter().filter(|file| file.is_file()) {
        let params = ModelParams { vocab_only: true, ..ModelParams::new(&file) };
        let model = Arc::new(Model::load(&params, |_| true).expect("the vocabulary loads"));
        for (name, gbnf, text) in [("JSON", JSON, JSON_TEXT), ("a schema", SCHEMA, SCHEMA_TEXT)] {
            let tokens = model.vocab().tokenize(text.as_bytes(), false, false).expect("tokens");
            let new = || Grammar::new(&model, gbnf, &foredraft_base::work::Work::unlimited()).expect("a grammar");
            // Makes the tree.
            let n = model.vocab().n_tokens();
            measure(&new(), n, &tokens[..1], usize::MAX);
            let grammar = new();
            let first = measure(&grammar, n, &tokens, usize::MAX);
            let seen = measure(&grammar, n, &tokens, usize::MAX);
            let by_token = measure(&new(), n, &tokens, FEW);
            println!("| {n} | {name} | {first} | {seen} | {by_token} |");
        }
    }
}

/// Filters all tokens at each place of a completion, so many at once.
fn measure(grammar: &Grammar, n_tokens: usize, tokens: &[Token], at_once: usize) -> String {
    let mut grammar = grammar.clone();
    let n_tokens = Token::try_from(n_tokens).expect("few tokens");
    let mut times: Vec<f64> = Vec::new();
    for token in tokens {
        let mut all: Vec<TokenData> = (0..n_tokens).map(|id| TokenData { id, logit: 0.0, p: 0.0 }).collect();
        let start = Instant::now();
        for some in all.chunks_mut(at_once) {
            grammar.filter(some).expect("within the limits");
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
        grammar.accept(*token).expect("the grammar allows the text");
    }
    times.sort_by(f64::total_cmp);
    let [median, late, most] = [times.len() / 2, times.len() * 99 / 100, times.len() - 1].map(|at| times[at]);
    format!("{median:.0} / {late:.0} / {most:.0}")
}
