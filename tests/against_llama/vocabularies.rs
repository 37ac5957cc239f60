//! Tokenizing and detokenizing match direct calls of llama.cpp, for every type of vocabulary.

use std::ffi::{CString, c_char};

use crate::vocabulary::{Kind, Vocabulary, byte_letters, sentence_piece};
use foredraft::llama::{Model, ModelParams, Token, Vocab, VocabKind};
use llama_cpp_sys_2 as sys;
use proptest::prelude::*;

/// A model loaded by the library and by llama.cpp itself.
struct Both {
    name: &'static str,
    ours: Model,
    theirs: *mut sys::llama_model,
}

impl Both {
    fn load(name: &'static str, vocabulary: &Vocabulary) -> Both {
        let file = vocabulary.write(&format!("vocabulary-{name}"));
        let params = ModelParams { vocab_only: true, ..ModelParams::new(&file) };
        let ours = Model::load(&params, |_| true).unwrap_or_else(|error| panic!("{name}: {error}"));
        let path = CString::new(file).expect("no NUL");
        // SAFETY: the path is NUL-terminated, and the parameters are llama.cpp's defaults.
        let theirs = unsafe {
            let mut params = sys::llama_model_default_params();
            params.vocab_only = true;
            sys::llama_model_load_from_file(path.as_ptr(), params)
        };
        assert!(!theirs.is_null(), "{name} loads");
        Both { name, ours, theirs }
    }

    fn vocab(&self) -> &Vocab {
        self.ours.vocab()
    }

    fn raw(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is loaded.
        unsafe { sys::llama_model_get_vocab(self.theirs) }
    }

    /// llama.cpp's tokens.
    fn tokenize(&self, text: &[u8], add_special: bool, parse_special: bool) -> Vec<Token> {
        let mut tokens = vec![0; 4 * text.len() + 64];
        let (len, capacity) = (text.len() as i32, tokens.len() as i32);
        // SAFETY: both buffers are valid for the lengths given.
        let count = unsafe {
            let text = text.as_ptr().cast::<c_char>();
            sys::llama_tokenize(self.raw(), text, len, tokens.as_mut_ptr(), capacity, add_special, parse_special)
        };
        tokens.truncate(usize::try_from(count).expect("a large enough buffer"));
        tokens
    }

    /// llama.cpp's text.
    fn detokenize(&self, tokens: &[Token], special: bool) -> Vec<u8> {
        let mut text = vec![0_u8; 64 * tokens.len() + 64];
        let (count, capacity) = (tokens.len() as i32, text.len() as i32);
        // SAFETY: both buffers are valid for the lengths given.
        let len = unsafe {
            let text = text.as_mut_ptr().cast::<c_char>();
            sys::llama_detokenize(self.raw(), tokens.as_ptr(), count, text, capacity, false, special)
        };
        text.truncate(usize::try_from(len).expect("a large enough buffer"));
        text
    }

    /// llama.cpp's piece.
    fn piece(&self, token: Token) -> Vec<u8> {
        let mut piece = vec![0_u8; 256];
        // SAFETY: the buffer is valid for its length, and the token is one of the vocabulary.
        let len = unsafe { sys::llama_token_to_piece(self.raw(), token, piece.as_mut_ptr().cast(), 256, 0, true) };
        piece.truncate(usize::try_from(len).expect("a short piece"));
        piece
    }

    fn compare(&self, text: &[u8]) {
        let shown = String::from_utf8_lossy(text);
        for (add_special, parse_special) in [(false, false), (false, true), (true, false), (true, true)] {
            let ours = match self.vocab().tokenize(text, add_special, parse_special) {
                Ok(ours) => ours,
                // llama.cpp throws an exception, which our guard turns into an error; a request's text is always UTF-8.
                Err(error) => {
                    assert!(std::str::from_utf8(text).is_err(), "{}: {shown:?}: {error}", self.name);
                    return;
                }
            };
            let theirs = self.tokenize(text, add_special, parse_special);
            assert_eq!(ours, theirs, "{}: {shown:?}, {add_special} {parse_special}", self.name);
            for special in [false, true] {
                let our_text = self.vocab().detokenize(&ours, special).expect("text");
                assert_eq!(our_text, self.detokenize(&theirs, special), "{}: {ours:?}, {special}", self.name);
            }
            self.check_ends(text, add_special, parse_special, &ours);
        }
        self.compare_tainted(text);
        let tokens = self.vocab().tokenize(text, false, false).expect("tokens");
        let pieces: Vec<u8> = tokens.iter().flat_map(|token| self.vocab().piece(*token)).copied().collect();
        match self.vocab().kind() {
            // Byte for byte. llama.cpp replaces invalid UTF-8 before BPE, and leaves spaces after it escaped in SPM.
            VocabKind::Bpe | VocabKind::Spm if std::str::from_utf8(text).is_err() => {}
            VocabKind::Bpe => assert_eq!(pieces, text, "{}", self.name),
            VocabKind::Other => assert_eq!(pieces, text, "{}", self.name),
            // A user-defined token may add a space, and U+2581 becomes a space.
            VocabKind::Spm if !shown.contains("<|user|>") && !shown.contains('\u{2581}') => {
                let with_space = [b" ", text].concat();
                let expected = if text.is_empty() || !self.adds_space() { text } else { &with_space };
                assert_eq!(pieces, expected, "{}: {shown:?}", self.name);
                if self.adds_space() {
                    // Detokenizing removes the space that tokenizing added in front.
                    assert_eq!(self.vocab().detokenize(&tokens, true).expect("text"), text, "{}", self.name);
                }
            }
            _ => {}
        }
    }

    /// Cutting a text at its special tokens is done as llama.cpp does it: with none of it tainted, and with all of it.
    fn compare_tainted(&self, text: &[u8]) {
        let Ok(shown) = std::str::from_utf8(text) else { return };
        let tokens = |tainted: &[usize]| self.vocab().tokenize_tainted(text, tainted, &[]).expect("tokens");
        // A mark behind the end taints nothing, but llama.cpp does not get the whole text.
        for tainted in [&[][..], &[text.len() + 1]] {
            assert_eq!(tokens(tainted), self.tokenize(text, true, true), "{}: {shown:?} {tainted:?}", self.name);
        }
        let all: Vec<usize> = (1..=text.len()).collect();
        let (ours, theirs) = (tokens(&all), self.tokenize(text, true, text.is_empty()));
        // The token for unknown characters may be a control token, which no text spells.
        let is_unknown = |token: Token| self.vocab().piece(token) == b"[UNK]";
        let control = |tokens: &[Token]| {
            tokens.iter().filter(|token| self.vocab().is_control(**token) && !is_unknown(**token)).count()
        };
        let ends = control(&self.tokenize(b"", true, true));
        assert_eq!(control(&ours), ends, "{}: {shown:?} as data", self.name);
        assert_eq!(self.vocab().tokenize_data(text, true).expect("tokens"), ours, "{}: {shown:?}", self.name);
        // RWKV's tokenizer knows of no control tokens.
        if control(&theirs) == ends {
            assert_eq!(ours, theirs, "{}: {shown:?} as data", self.name);
        } else {
            assert_eq!((self.name, self.detokenize(&ours, true)), ("rwkv", text.to_vec()));
        }
    }

    fn adds_space(&self) -> bool {
        !self.name.ends_with("no-space")
    }

    /// Asserts that BOS and EOS are added around the plain tokens as the model's flags say.
    fn check_ends(&self, text: &[u8], add_special: bool, parse_special: bool, tokens: &[Token]) {
        if !add_special || self.vocab().kind() == VocabKind::Wpm {
            return;
        }
        let mut expected = self.vocab().tokenize(text, false, parse_special).expect("tokens");
        if self.vocab().adds_bos() {
            expected.insert(0, self.vocab().bos().expect("BOS"));
        }
        if self.vocab().adds_eos() {
            expected.push(self.vocab().eos().expect("EOS"));
        }
        assert_eq!(tokens, expected, "{}", self.name);
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { sys::llama_model_free(self.theirs) }
    }
}

const WORDS: [&str; 24] = [
    "th",
    "he",
    "the",
    "in",
    "an",
    "er",
    "on",
    "ing",
    "and",
    "ll",
    "hello",
    "lo",
    "hel",
    "12",
    "é",
    "日",
    "本",
    "日本",
    "wor",
    "ld",
    "world",
    "'s",
    "..",
    "\u{2581}\u{2581}",
];

fn letters() -> impl Iterator<Item = String> {
    (' '..='~').filter(|c| *c != ' ').chain("éüß日本語😀".chars()).map(String::from)
}

fn spm() -> Vocabulary {
    let starts = WORDS.iter().map(|word| format!("\u{2581}{word}"));
    let words = WORDS.iter().map(|word| (*word).to_owned()).chain(starts).chain(["\u{2581}".to_owned()]);
    let mut vocabulary = sentence_piece(words.chain(letters()));
    vocabulary.tokens.push(("<|im_start|>".into(), 0.0, Kind::Control));
    vocabulary.tokens.push(("<|user|>".into(), 0.0, Kind::UserDefined));
    vocabulary
}

fn bpe(pre: &'static str) -> Vocabulary {
    let alphabet = byte_letters();
    let spell = |text: &str| text.bytes().map(|byte| alphabet[usize::from(byte)]).collect::<String>();
    let mut tokens: Vec<(String, f32, Kind)> = alphabet.iter().map(|c| (c.to_string(), 0.0, Kind::Normal)).collect();
    let pairs = [
        ("t", "h"),
        ("th", "e"),
        (" ", "the"),
        ("i", "n"),
        ("in", "g"),
        (" ", " "),
        ("l", "l"),
        ("he", "llo"),
        ("h", "e"),
        ("ll", "o"),
        (" ", "hello"),
        ("1", "2"),
        ("12", "3"),
        ("'", "s"),
        ("\n", "\n"),
        (" ", "w"),
    ];
    let mut merges: Vec<String> = pairs.iter().map(|(a, b)| format!("{} {}", spell(a), spell(b))).collect();
    tokens.extend(pairs.iter().map(|(a, b)| (spell(&format!("{a}{b}")), 0.0, Kind::Normal)));
    // Merges that build é and 日 from their bytes.
    for bytes in ["é", "日"] {
        let letters: Vec<char> = spell(bytes).chars().collect();
        for end in 1..letters.len() {
            let front: String = letters[..end].iter().collect();
            merges.push(format!("{front} {}", letters[end]));
            tokens.push((format!("{front}{}", letters[end]), 0.0, Kind::Normal));
        }
    }
    let bos = tokens.len() as u32;
    tokens.push(("<|begin|>".into(), 0.0, Kind::Control));
    tokens.push(("<|end|>".into(), 0.0, Kind::Control));
    tokens.push(("<|user|>".into(), 0.0, Kind::UserDefined));
    let ids = vec![("bos_token_id", bos), ("eos_token_id", bos + 1)];
    Vocabulary { model: "gpt2", pre: Some(pre), tokens, merges, flags: vec![("add_bos_token", pre != "gpt-2")], ids }
}

/// `unknown`: what kind of token `[UNK]` is. Converted BERT models have control tokens.
fn wpm(unknown: Kind) -> Vocabulary {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let kind = |text: &str| if text == "[UNK]" { unknown } else { Kind::Control };
    let mut tokens: Vec<_> = special.iter().map(|text| ((*text).to_owned(), 0.0, kind(text))).collect();
    let all = || WORDS.iter().map(|word| (*word).to_owned()).chain(letters().map(|letter| letter.to_lowercase()));
    let mut words: Vec<String> = all().map(|word| format!("\u{2581}{word}")).chain(all()).collect();
    words.sort();
    words.dedup();
    tokens.extend(words.into_iter().map(|word| (word, 0.0, Kind::Normal)));
    let ids = vec![
        ("bos_token_id", 2),
        ("cls_token_id", 2),
        ("seperator_token_id", 3),
        ("unknown_token_id", 1),
        ("padding_token_id", 0),
        ("mask_token_id", 4),
    ];
    Vocabulary { model: "bert", pre: None, tokens, merges: Vec::new(), flags: Vec::new(), ids }
}

fn ugm() -> Vocabulary {
    let mut tokens = vec![
        ("<pad>".to_owned(), 0.0, Kind::Control),
        ("</s>".to_owned(), 0.0, Kind::Control),
        ("<unk>".to_owned(), 0.0, Kind::Unknown),
        ("<|user|>".to_owned(), 0.0, Kind::UserDefined),
    ];
    let starts = WORDS.iter().map(|word| format!("\u{2581}{word}"));
    let words = starts.chain(WORDS.iter().map(|word| (*word).to_owned())).chain(["\u{2581}".to_owned()]);
    let mut words: Vec<String> = words.chain(letters().filter(|letter| letter != "日" && letter != "本")).collect();
    words.sort();
    words.dedup();
    tokens.extend((0_u16..).zip(words).map(|(i, word)| {
        let score = -8.0 - f32::from(i * 37 % 101) / 20.0 + word.chars().count() as f32;
        (word, score, Kind::Normal)
    }));
    let flags = vec![("add_bos_token", false), ("add_eos_token", true), ("add_space_prefix", true)];
    Vocabulary { model: "t5", pre: None, tokens, merges: Vec::new(), flags, ids: Vec::new() }
}

fn rwkv() -> Vocabulary {
    let mut tokens = vec![("<s>".to_owned(), 0.0, Kind::Control)];
    tokens.extend((0..256).map(|byte| (format!("\\x{byte:02x}"), 0.0, Kind::Normal)));
    tokens.extend(["the", " the", "hello", "日", "\\n\\n", "12"].map(|word| (word.to_owned(), 0.0, Kind::Normal)));
    Vocabulary { model: "rwkv", pre: None, tokens, merges: Vec::new(), flags: Vec::new(), ids: Vec::new() }
}

fn all() -> Vec<Both> {
    let flags = |flags: &[(&'static str, bool)]| Vocabulary { flags: flags.to_vec(), ..spm() };
    vec![
        Both::load("spm", &spm()),
        Both::load("spm-no-space", &flags(&[("add_space_prefix", false), ("add_bos_token", false)])),
        Both::load("spm-eos", &flags(&[("add_eos_token", true)])),
        Both::load("bpe-llama-bpe", &bpe("llama-bpe")),
        Both::load("bpe-qwen2", &bpe("qwen2")),
        Both::load("bpe-gpt-2", &bpe("gpt-2")),
        Both::load("bpe-default", &bpe("default")),
        Both::load("wpm", &wpm(Kind::Unknown)),
        Both::load("wpm-control", &wpm(Kind::Control)),
        Both::load("ugm", &ugm()),
        Both::load("rwkv", &rwkv()),
    ]
}

#[test]
fn tokenize_and_detokenize_match_llama_cpp() {
    let all = all();
    let kinds: Vec<&str> = all.iter().map(|both| both.vocab().kind().as_str()).collect();
    assert_eq!(kinds, ["spm", "spm", "spm", "bpe", "bpe", "bpe", "bpe", "wpm", "wpm", "ugm", "other"]);
    let long = "hello the world, ".repeat(3000);
    let texts = [
        "",
        " ",
        "   ",
        "\n",
        "\n\n \t\r\n",
        "hello",
        " hello",
        "hello  world",
        "the thing's in the inn...",
        "123 1234 12",
        "Été über straße",
        "日本語 日",
        "😀👩‍👩‍👧 é",
        "\0a\u{1}\u{7f}",
        "<s>",
        "</s> <s>x",
        "<|user|>hello<|user|>",
        "<|im_start|>user\nhi",
        "<|begin|>the<|end|>",
        "[CLS] the [SEP][MASK]",
        "<0x41><0x0A>",
        "\u{2581}the\u{2581}",
        "HELLO The",
        "\u{fffd}\u{200b}\u{feff}",
        &long,
    ];
    for both in &all {
        texts.iter().for_each(|text| both.compare(text.as_bytes()));
        for token in 0..both.vocab().n_tokens() as Token {
            assert_eq!(both.vocab().piece(token), both.piece(token), "{}: token {token}", both.name);
        }
    }
    // Every vocabulary merges something.
    for both in &all {
        let tokens = both.vocab().tokenize(long.as_bytes(), false, false).expect("tokens");
        assert!(tokens.len() < long.len() * 3 / 4, "{}: {} tokens", both.name, tokens.len());
    }
}

#[test]
fn an_unknown_character_stays_the_unknown_token_in_data() {
    for kind in [Kind::Unknown, Kind::Control] {
        let both = Both::load("wpm-unknown", &wpm(kind));
        let vocab = both.vocab();
        // As in data that spells the token's text, which is letters.
        let data = vocab.tokenize_data("語 ☃ hello [UNK]".as_bytes(), false).expect("tokens");
        let pieces: Vec<_> =
            data.iter().map(|token| String::from_utf8_lossy(vocab.piece(*token)).into_owned()).collect();
        assert_eq!(data, both.tokenize("語 ☃ hello [UNK]".as_bytes(), false, false));
        assert_eq!(pieces.iter().filter(|piece| *piece == "[UNK]").count(), 1, "{pieces:?}");
    }
}

/// llama.cpp's test vectors for tokenizers: files with texts, and files with the tokens of each.
#[test]
#[ignore = "needs llama.cpp's vocabularies: scripts/check.sh templates"]
fn all_test_vectors_of_llama_cpp_pass() {
    let folder = std::env::var_os("FOREDRAFT_TEMPLATES").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/templates"),
        std::path::PathBuf::from,
    );
    let (mut count, mut wrong) = (0, Vec::new());
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "inp"));
    files.sort();
    for texts in files {
        let file = texts.with_extension("");
        let params = ModelParams { vocab_only: true, ..ModelParams::new(&file) };
        let model = Model::load(&params, |_| true).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("a file of the collection");
        let (texts, tokens) = (read(&texts), read(&file.with_extension("gguf.out")));
        for (text, expected) in texts.split("\n__ggml_vocab_test__\n").zip(tokens.lines()) {
            let expected: Vec<Token> = expected.split_whitespace().map(|id| id.parse().expect("an id")).collect();
            let found = model.vocab().tokenize(text.as_bytes(), false, false).expect("tokens");
            let data = model.vocab().tokenize_data(text.as_bytes(), false).expect("tokens");
            count += 1;
            if found != expected || data != expected {
                wrong.push(format!("{}: {text:?}: {expected:?}, got {data:?}", file.display()));
            }
        }
    }
    assert!(count >= 470, "only {count} vectors");
    assert!(wrong.is_empty(), "{} of {count} are wrong: {}", wrong.len(), wrong.join("\n"));
}

#[test]
fn tokenizing_random_bytes_matches_llama_cpp() {
    let all = all();
    let words = prop::sample::select(vec!["the", " hello", "<|user|>", "</s>", "日本", "\u{2581}", "12", "\n"]);
    let part = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..12),
        words.prop_map(|word| word.as_bytes().to_vec()),
        any::<String>().prop_map(String::into_bytes),
    ];
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let run = runner.run(&prop::collection::vec(part, 0..6), |parts| {
        all.iter().for_each(|both| both.compare(&parts.concat()));
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}
