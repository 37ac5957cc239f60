//! Writes the shipped models with a changed vocabulary: the same weights, with the token rows reordered or left out.

use std::collections::{HashMap, HashSet};

use super::gguf::Gguf;
use super::tiny_models::{put_string, write_file};

/// A shipped model with the vocabulary it is to be written with.
pub struct ChangedVocabulary {
    file: Gguf,
    /// Text, token type as llama.cpp numbers it, and row in the shipped model.
    tokens: Vec<(String, u32, usize)>,
    merges: Vec<(String, String)>,
    is_spm: bool,
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// The header of a GGUF array: item type and length.
fn list(kind: u32, len: usize) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(len as u64).to_le_bytes()].concat()
}

fn strings(bytes: &[u8]) -> Vec<String> {
    let mut rest = &bytes[12..];
    (0..number(&bytes[4..12]))
        .map(|_| {
            let (text, after) = rest[8..].split_at(number(&rest[..8]));
            rest = after;
            String::from_utf8(text.to_vec()).expect("UTF-8")
        })
        .collect()
}

/// GPT-2's characters for the 256 bytes, with the byte each stands for.
fn letters() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 256..;
    let mut code = |byte: u8| if printable(byte) { Some(u32::from(byte)) } else { others.next() };
    (0..=255).map(|byte| (code(byte).and_then(char::from_u32).expect("a letter"), byte)).collect()
}

impl ChangedVocabulary {
    /// Reads a shipped model: `target` or `draft`.
    pub fn new(name: &str) -> ChangedVocabulary {
        let file = Gguf::read(&super::model(name));
        let value = |key: &str| &file.bytes[file.value(&format!("tokenizer.ggml.{key}"))];
        let kinds = value("token_type")[12..].chunks(4).map(|kind| number(kind) as u32);
        let tokens = strings(value("tokens")).into_iter().zip(kinds).enumerate();
        let tokens = tokens.map(|(row, (text, kind))| (text, kind, row)).collect();
        let merges = strings(value("merges")).into_iter();
        let merges = merges.map(|merge| merge.split_once(' ').map(|(a, b)| (a.into(), b.into())).expect("two parts"));
        ChangedVocabulary { merges: merges.collect(), file, tokens, is_spm: false }
    }

    /// Gives the same tokens other ids.
    pub fn shuffled(mut self) -> ChangedVocabulary {
        let n = self.tokens.len();
        // 7 and the number of tokens are coprime, so this is a permutation.
        self.tokens = (0..n).map(|index| self.tokens[(index * 7 + 3) % n].clone()).collect();
        self
    }

    /// Drops every `nth` merge and all tokens built from it, so that these must be spelled with shorter tokens.
    pub fn without_every(mut self, nth: usize) -> ChangedVocabulary {
        let mut gone: HashSet<String> = HashSet::new();
        let mut count = 0;
        self.merges.retain(|(a, b)| {
            count += 1;
            let stays = count % nth > 0 && !gone.contains(a) && !gone.contains(b);
            if !stays {
                gone.insert(format!("{a}{b}"));
            }
            stays
        });
        self.tokens.retain(|(text, ..)| !gone.contains(text));
        self
    }

    /// Converts it to a SentencePiece vocabulary, which adds a space before every text.
    pub fn sentence_piece(mut self) -> ChangedVocabulary {
        let letters = letters();
        self.is_spm = true;
        self.tokens.retain_mut(|(text, kind, _)| {
            if *kind != 1 {
                return true;
            }
            let bytes: Vec<u8> = text.chars().map(|letter| letters[&letter]).collect();
            match (bytes.as_slice(), String::from_utf8(bytes.clone())) {
                ([byte @ (..0x20 | 0x80..)], _) => (*text, *kind) = (format!("<0x{byte:02X}>"), 6),
                (_, Ok(plain)) => *text = plain.replace(' ', "\u{2581}"),
                _ => return false,
            }
            true
        });
        self
    }

    /// Writes the model and returns its path.
    pub fn write(&self, name: &str) -> String {
        let mut entries = Vec::new();
        let mut count = 0_u64;
        let mut put = |key: &str, kind: u32, value: &[u8]| {
            put_string(&mut entries, key);
            entries.extend(kind.to_le_bytes());
            entries.extend(value);
            count += 1;
        };
        let bytes = &self.file.bytes;
        let n = self.tokens.len();
        for entry in &self.file.entries {
            let value = &bytes[entry.value.clone()];
            let kind = number(&bytes[entry.value.start - 4..entry.value.start]) as u32;
            let mut changed = Vec::new();
            match entry.key.as_str() {
                "tokenizer.ggml.tokens" => {
                    changed.extend(list(8, n));
                    self.tokens.iter().for_each(|(text, ..)| put_string(&mut changed, text));
                }
                "tokenizer.ggml.token_type" => {
                    changed.extend(list(5, n));
                    self.tokens.iter().for_each(|(_, kind, _)| changed.extend(kind.to_le_bytes()));
                }
                "tokenizer.ggml.merges" if self.is_spm => continue,
                "tokenizer.ggml.merges" => {
                    changed.extend(list(8, self.merges.len()));
                    self.merges.iter().for_each(|(a, b)| put_string(&mut changed, &format!("{a} {b}")));
                }
                "tokenizer.ggml.pre" if self.is_spm => continue,
                "tokenizer.ggml.model" if self.is_spm => put_string(&mut changed, "llama"),
                key if key.ends_with("_token_id") => {
                    let id = self.tokens.iter().position(|(.., row)| *row == number(value)).expect("special ones stay");
                    changed.extend((id as u32).to_le_bytes());
                }
                "llama.vocab_size" => changed.extend((n as u32).to_le_bytes()),
                _ => changed.extend(value),
            }
            put(&entry.key, kind, &changed);
        }
        if self.is_spm {
            let mut scores = list(6, n);
            // Tokens with lower ids were merged earlier, so they score higher.
            self.tokens.iter().for_each(|(.., row)| scores.extend((-(*row as f32)).to_le_bytes()));
            put("tokenizer.ggml.scores", 9, &scores);
        }
        self.save(name, count, &entries)
    }

    fn save(&self, name: &str, n_entries: u64, entries: &[u8]) -> String {
        let bytes = &self.file.bytes;
        let (mut infos, mut data) = (Vec::new(), Vec::new());
        let mut n_tensors = 0_u64;
        let mut at = self.file.tensors.start;
        let start = self.file.tensors.end.next_multiple_of(32);
        while at < self.file.tensors.end {
            let mut read = |size: usize| {
                at += size;
                number(&bytes[at - size..at])
            };
            let name = read(8);
            read(name);
            let shape: Vec<usize> = (0..read(4)).map(|_| read(8)).collect();
            let (kind, offset) = (read(4), read(8));
            let row = match kind {
                0 => 4 * shape[0],
                8 => 34 * shape[0] / 32,
                _ => panic!("type {kind}"),
            };
            let rows = shape.get(1).copied().unwrap_or(1);
            let of_tokens = ["token_embd.weight", "output.weight"].iter().any(|tensor| {
                let end = at - 12 - 8 * shape.len() - 4;
                &bytes[end - name..end] == tensor.as_bytes()
            });
            let old = |index: usize| &bytes[start + offset + index * row..start + offset + (index + 1) * row];
            let kept: Vec<usize> = match of_tokens {
                true => self.tokens.iter().map(|(.., row)| *row).collect(),
                false => (0..rows).collect(),
            };
            let end = at - 12;
            infos.extend(&bytes[end - 8 * shape.len() - 4 - name - 8..end]);
            if of_tokens {
                infos.truncate(infos.len() - 8);
                infos.extend((kept.len() as u64).to_le_bytes());
            }
            infos.extend((kind as u32).to_le_bytes());
            infos.extend((data.len() as u64).to_le_bytes());
            kept.iter().for_each(|index| data.extend(old(*index)));
            data.resize(data.len().next_multiple_of(32), 0);
            n_tensors += 1;
        }
        let counts = [3_u32.to_le_bytes().to_vec(), n_tensors.to_le_bytes().to_vec(), n_entries.to_le_bytes().to_vec()];
        let mut file = [b"GGUF".as_slice(), &counts.concat(), entries, &infos].concat();
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data);
        write_file(&format!("other-{name}"), file)
    }
}
