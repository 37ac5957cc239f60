//! Writes model files that contain only a vocabulary.
#![allow(dead_code)] // each test and benchmark uses only some of these

use std::collections::HashSet;
use std::path::Path;

/// A token's type, as llama.cpp numbers it.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Byte = 6,
}

/// A vocabulary to be written.
pub struct Vocabulary {
    /// llama.cpp's names of the tokenizer and of the pre-tokenizer.
    pub model: &'static str,
    pub pre: Option<&'static str>,
    /// Text, score, type.
    pub tokens: Vec<(String, f32, Kind)>,
    pub merges: Vec<String>,
    /// Flags such as `add_bos_token`, without the prefix `tokenizer.ggml.`.
    pub flags: Vec<(&'static str, bool)>,
    /// Ids such as `bos_token_id`.
    pub ids: Vec<(&'static str, u32)>,
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl Vocabulary {
    /// Writes the file into cargo's temporary folder and returns its path.
    pub fn write(&self, name: &str) -> String {
        let (mut entries, mut count) = (Vec::new(), 0_u64);
        let mut entry = |key: &str, kind: u32, value: &dyn Fn(&mut Vec<u8>)| {
            put_string(&mut entries, key);
            entries.extend(kind.to_le_bytes());
            value(&mut entries);
            count += 1;
        };
        let list = |bytes: &mut Vec<u8>, kind: u32, len: usize| {
            bytes.extend(kind.to_le_bytes());
            bytes.extend((len as u64).to_le_bytes());
        };
        let n = self.tokens.len();
        entry("general.architecture", 8, &|bytes| put_string(bytes, "llama"));
        entry("tokenizer.ggml.model", 8, &|bytes| put_string(bytes, self.model));
        if let Some(pre) = self.pre {
            entry("tokenizer.ggml.pre", 8, &|bytes| put_string(bytes, pre));
        }
        entry("tokenizer.ggml.tokens", 9, &|bytes| {
            list(bytes, 8, n);
            self.tokens.iter().for_each(|(text, ..)| put_string(bytes, text));
        });
        entry("tokenizer.ggml.scores", 9, &|bytes| {
            list(bytes, 6, n);
            self.tokens.iter().for_each(|(_, score, _)| bytes.extend(score.to_le_bytes()));
        });
        entry("tokenizer.ggml.token_type", 9, &|bytes| {
            list(bytes, 5, n);
            self.tokens.iter().for_each(|(.., kind)| bytes.extend((*kind as i32).to_le_bytes()));
        });
        if self.model == "gpt2" {
            entry("tokenizer.ggml.merges", 9, &|bytes| {
                list(bytes, 8, self.merges.len());
                self.merges.iter().for_each(|merge| put_string(bytes, merge));
            });
        }
        for (key, flag) in &self.flags {
            entry(&format!("tokenizer.ggml.{key}"), 7, &|bytes| bytes.push(u8::from(*flag)));
        }
        for (key, id) in &self.ids {
            entry(&format!("tokenizer.ggml.{key}"), 4, &|bytes| bytes.extend(id.to_le_bytes()));
        }
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(entries);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        // Written beside and renamed, because another test may have the file open.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(concat!("models-", env!("CARGO_CRATE_NAME")));
        std::fs::create_dir_all(&folder).expect("target/ is writable");
        let (path, beside) =
            (folder.join(format!("{name}.gguf")), folder.join(format!("{name}-{:p}.tmp", &raw const bytes)));
        std::fs::write(&beside, bytes).expect("target/ is writable");
        std::fs::rename(&beside, &path).expect("target/ is writable");
        path.to_string_lossy().into_owned()
    }
}

/// A SentencePiece vocabulary of the 256 bytes and `words`; earlier words merge first.
pub fn sentence_piece(words: impl IntoIterator<Item = String>) -> Vocabulary {
    let mut tokens = vec![
        ("<unk>".to_owned(), 0.0, Kind::Unknown),
        ("<s>".to_owned(), 0.0, Kind::Control),
        ("</s>".to_owned(), 0.0, Kind::Control),
    ];
    tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0.0, Kind::Byte)));
    let mut seen = HashSet::new();
    let words = words.into_iter().filter(|word| seen.insert(word.clone()));
    tokens.extend((0_u32..).zip(words).map(|(rank, word)| (word, -(rank as f32), Kind::Normal)));
    Vocabulary { model: "llama", pre: None, tokens, merges: Vec::new(), flags: Vec::new(), ids: Vec::new() }
}

/// GPT-2's letters for the 256 bytes: printable ones stand for themselves.
pub fn byte_letters() -> Vec<char> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 256..;
    let code = |byte| if printable(byte) { Some(byte) } else { others.next() };
    (0..256).map(code).map(|code| code.and_then(char::from_u32).expect("a letter")).collect()
}

/// A byte-level vocabulary of the 256 bytes, a few words, and these special tokens.
pub fn byte_level(specials: impl IntoIterator<Item = (String, Kind)>) -> Vocabulary {
    let letters = byte_letters();
    let spell = |text: &str| text.bytes().map(|byte| letters[usize::from(byte)]).collect::<String>();
    let mut tokens: Vec<_> = letters.iter().map(|letter| (letter.to_string(), 0.0, Kind::Normal)).collect();
    let pairs = [("t", "h"), ("th", "e"), (" ", "the"), ("i", "n"), ("\n", "\n"), (" ", "i"), ("<", "|"), ("|", ">")];
    tokens.extend(pairs.iter().map(|(a, b)| (spell(&format!("{a}{b}")), 0.0, Kind::Normal)));
    tokens.extend(specials.into_iter().map(|(text, kind)| (text, 0.0, kind)));
    Vocabulary {
        model: "gpt2",
        pre: Some("qwen2"),
        tokens,
        merges: pairs.iter().map(|(a, b)| format!("{} {}", spell(a), spell(b))).collect(),
        flags: vec![("add_bos_token", false)],
        ids: Vec::new(),
    }
}
