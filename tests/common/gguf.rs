//! Locates the parts of a GGUF file, so that tests can change or damage them.
#![allow(dead_code)] // each test program uses only some of these

use std::ops::Range;

/// A model file, with the positions of its header's parts.
pub struct Gguf {
    pub bytes: Vec<u8>,
    pub entries: Vec<Entry>,
    /// The tensor infos; the tensor data follows.
    pub tensors: Range<usize>,
}

/// A key-value pair of the header.
pub struct Entry {
    pub key: String,
    /// Position of the value, without its type.
    pub value: Range<usize>,
}

impl Gguf {
    pub fn read(path: &str) -> Gguf {
        let bytes = std::fs::read(path).expect("a shipped model");
        let mut reader = Reader { bytes: &bytes, at: 8 };
        let (n_tensors, n_entries) = (reader.number(8), reader.number(8));
        let mut entries = Vec::new();
        for _ in 0..n_entries {
            let key = reader.string();
            let kind = reader.number(4);
            let start = reader.at;
            reader.skip(kind);
            entries.push(Entry { key: String::from_utf8(key).expect("keys are ASCII"), value: start..reader.at });
        }
        let start = reader.at;
        for _ in 0..n_tensors {
            reader.string();
            let dimensions = reader.number(4);
            reader.at += 8 * dimensions + 12;
        }
        let end = reader.at;
        Gguf { bytes, entries, tensors: start..end }
    }

    pub fn value(&self, key: &str) -> Range<usize> {
        self.entries.iter().find(|entry| entry.key == key).unwrap_or_else(|| panic!("{key}")).value.clone()
    }

    /// The file with other tensors: `change` gets the name, the shape and the data of each, which are F32 or Q8_0, and changes shape and data.
    pub fn with_tensors(&self, mut change: impl FnMut(&str, &mut [u64], &mut Vec<u8>)) -> Vec<u8> {
        let (mut infos, mut all) = (Vec::new(), Vec::new());
        let begin = self.tensors.end.next_multiple_of(32);
        let mut reader = Reader { bytes: &self.bytes, at: self.tensors.start };
        while reader.at < self.tensors.end {
            let name = String::from_utf8(reader.string()).expect("names are ASCII");
            let n = reader.number(4);
            let mut shape: Vec<u64> = (0..n).map(|_| reader.number(8) as u64).collect();
            let (kind, at) = (reader.number(4), begin + reader.number(8));
            let count = shape.iter().product::<u64>() as usize;
            let mut data = self.bytes[at..at + if kind == 0 { 4 * count } else { count / 32 * 34 }].to_vec();
            change(&name, &mut shape, &mut data);
            infos.extend((name.len() as u64).to_le_bytes());
            infos.extend(name.as_bytes());
            infos.extend((n as u32).to_le_bytes());
            shape.iter().for_each(|size| infos.extend(size.to_le_bytes()));
            infos.extend((kind as u32).to_le_bytes());
            infos.extend((all.len() as u64).to_le_bytes());
            all.extend(data);
            all.resize(all.len().next_multiple_of(32), 0);
        }
        let mut file = [&self.bytes[..self.tensors.start], &infos].concat();
        file.resize(file.len().next_multiple_of(32), 0);
        [file, all].concat()
    }

    /// The file's bytes with `bytes` written over those at `at`.
    pub fn with(&self, at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut file = self.bytes.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    }

    /// Positions of the tokens' texts.
    pub fn tokens(&self) -> Vec<Range<usize>> {
        let value = self.value("tokenizer.ggml.tokens");
        let mut reader = Reader { bytes: &self.bytes, at: value.start + 4 };
        let count = reader.number(8);
        (0..count)
            .map(|_| {
                let len = reader.number(8);
                reader.at += len;
                reader.at - len..reader.at
            })
            .collect()
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn number(&mut self, size: usize) -> usize {
        let bytes = &self.bytes[self.at..self.at + size];
        self.at += size;
        bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    }

    fn string(&mut self) -> Vec<u8> {
        let len = self.number(8);
        self.at += len;
        self.bytes[self.at - len..self.at].to_vec()
    }

    fn skip(&mut self, kind: usize) {
        match kind {
            0 | 1 | 7 => self.at += 1,
            2 | 3 => self.at += 2,
            4..=6 => self.at += 4,
            10..=12 => self.at += 8,
            8 => drop(self.string()),
            9 => {
                let (kind, count) = (self.number(4), self.number(8));
                (0..count).for_each(|_| self.skip(kind));
            }
            _ => panic!("type {kind}"),
        }
    }
}
