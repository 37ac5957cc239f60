//! Session files: saved sequences of target and draft, with the properties that a context must share to restore them.
//!
//! Little-endian. A header of 48 bytes: [`MAGIC`], format (u32), number of sections (u32), size of the file (u64), 8 zero bytes,
//! checksum of the 40 bytes before (u64). Then the sections, each preceded by its length (u64) and checksum (u64): one with the
//! writer, the seed and the adapters; those of the target; those of the draft if there is one. They are: the required
//! properties, the tokens, llama.cpp's state, the numbers of tokens of the checkpoints (u64), and the state of each checkpoint.
//! Files of format 1 have no checkpoints. The whole file is verified before any of it is used. The checksums detect damage; they
//! do not prevent deliberate forgery.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use foredraft_base::Snapshot;
use foredraft_base::atomic_write;
use foredraft_base::checksum::Checksum;
use foredraft_base::error::{Error, Result};
use foredraft_llama::{Token, llama_version};

const MAGIC: &[u8; 16] = b"foredraft state\n";
const FORMAT: u32 = 2;
/// The format without checkpoints, which is read, too.
const OLD_FORMAT: u32 = 1;
const HEADER: usize = 48;

/// The contents of a session file.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// The target's sequence.
    pub target: Snapshot,
    /// The draft's sequence, if it had tokens.
    pub draft: Option<Snapshot>,
    /// The seed of the last request, if there was one, and its RNG counter.
    pub seed: Option<SeedOrigin>,
    /// The scale of each LoRA adapter that the target's sequence was decoded with.
    pub lora: Vec<f32>,
}

/// A seed, and the token index at which its RNG counter is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedOrigin {
    /// The seed.
    pub seed: u32,
    /// The index in the context of the token with the RNG counter 0; negative if it was shifted out.
    pub origin: i64,
}

impl SeedOrigin {
    /// The RNG counter of the token that follows `len` others.
    pub fn position(self, len: usize) -> usize {
        let len = i64::try_from(len).unwrap_or(i64::MAX);
        usize::try_from(len.saturating_sub(self.origin)).unwrap_or(0)
    }

    /// The origin with which the token that follows `len` others has the RNG counter `position`.
    pub fn new(seed: u32, len: usize, position: usize) -> SeedOrigin {
        let signed = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        SeedOrigin { seed, origin: signed(len).saturating_sub(signed(position)) }
    }
}

/// The versions of the library and of llama.cpp that wrote a file. Only the same versions can restore its states.
fn writer() -> String {
    format!("foredraft {}, llama.cpp {}", env!("CARGO_PKG_VERSION"), llama_version())
}

impl Session {
    /// Writes the file atomically. Returns its size in bytes.
    ///
    /// # Errors
    /// The folder is missing, full or not writable; an existing file at `path` is unchanged.
    pub fn write(&self, path: &Path) -> Result<u64> {
        let mut size = 0;
        atomic_write::write(path, |file| {
            size = self.write_to(file)?;
            Ok(())
        })?;
        Ok(size)
    }

    fn write_to(&self, file: &mut File) -> io::Result<u64> {
        let about = self.about();
        let snapshots = || std::iter::once(&self.target).chain(&self.draft);
        let heads: Vec<[Vec<u8>; 3]> = snapshots().map(heads).collect();
        let mut sections = vec![about.as_slice()];
        for (snapshot, [identity, tokens, places]) in snapshots().zip(&heads) {
            sections.extend([identity.as_slice(), tokens, &snapshot.state, places]);
            sections.extend(snapshot.checkpoints.iter().map(|(_, state)| state.as_slice()));
        }
        write_sections(file, FORMAT, &sections)
    }

    /// The section about the file.
    fn about(&self) -> Vec<u8> {
        let mut about = Vec::new();
        put_text(&mut about, &writer());
        about.extend_from_slice(&u32::from(self.seed.is_some()).to_le_bytes());
        about.extend_from_slice(&self.seed.map_or(0, |seed| seed.seed).to_le_bytes());
        about.extend_from_slice(&self.seed.map_or(0, |seed| seed.origin).to_le_bytes());
        about.extend(self.lora.iter().flat_map(|scale| scale.to_le_bytes()));
        about
    }

    /// Reads and verifies a file.
    ///
    /// # Errors
    /// The file is missing, not a session file, of another version, or damaged, or does not fit into memory. The message has the byte
    /// offset.
    pub fn read(path: &Path) -> Result<Session> {
        let unreadable =
            |error: io::Error| Error::file(path, &error, format!("{}: cannot be read: {error}", path.display()));
        // Checked before opening, because opening a pipe would wait for a writer.
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{}: is not a file", path.display())));
        }
        let file = BufReader::new(File::open(path).map_err(unreadable)?);
        let mut reader = SessionReader { file, path, at: 0, size: metadata.len(), n_sections: 0 };
        let (format, n_sections) = reader.header()?;
        let about = reader.section("the description of the writer")?;
        let (seed, lora) = reader.about(&about)?;
        let target = reader.snapshot("target", format)?;
        let draft = if reader.n_sections < n_sections { Some(reader.snapshot("draft", format)?) } else { None };
        if reader.n_sections != n_sections {
            return Err(reader.error(20, &format!("{n_sections} sections")));
        }
        if reader.at != reader.size {
            return Err(reader.error(reader.at, "the file continues after its last section"));
        }
        Ok(Session { target, draft, seed, lora })
    }
}

/// The small sections of a snapshot: its properties, its tokens, and the numbers of tokens of its checkpoints.
fn heads(snapshot: &Snapshot) -> [Vec<u8>; 3] {
    let mut identity = Vec::new();
    for (name, value) in &snapshot.identity {
        put_text(&mut identity, name);
        put_text(&mut identity, value);
    }
    let mut tokens = (snapshot.blocks as u64).to_le_bytes().to_vec();
    tokens.extend(snapshot.tokens.iter().flat_map(|token| token.to_le_bytes()));
    let places = snapshot.checkpoints.iter().flat_map(|(len, _)| (*len as u64).to_le_bytes()).collect();
    [identity, tokens, places]
}

/// Writes a file of these sections. Returns its size.
fn write_sections(file: &mut impl Write, format: u32, sections: &[&[u8]]) -> io::Result<u64> {
    let size = HEADER + sections.iter().map(|section| 16 + section.len()).sum::<usize>();
    let mut header = Vec::with_capacity(HEADER);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&format.to_le_bytes());
    header.extend_from_slice(&u32::try_from(sections.len()).unwrap_or(u32::MAX).to_le_bytes());
    header.extend_from_slice(&(size as u64).to_le_bytes());
    header.extend_from_slice(&[0; 8]);
    header.extend_from_slice(&Checksum::of(&header).to_le_bytes());
    file.write_all(&header)?;
    for section in sections {
        file.write_all(&(section.len() as u64).to_le_bytes())?;
        file.write_all(&Checksum::of(section).to_le_bytes())?;
        file.write_all(section)?;
    }
    Ok(size as u64)
}

fn put_text(section: &mut Vec<u8>, text: &str) {
    section.extend_from_slice(&(text.len() as u64).to_le_bytes());
    section.extend_from_slice(text.as_bytes());
}

struct SessionReader<'a> {
    file: BufReader<File>,
    path: &'a Path,
    at: u64,
    size: u64,
    /// The sections that were read.
    n_sections: u32,
}

impl SessionReader<'_> {
    fn error(&self, at: u64, what: &str) -> Error {
        Error::invalid(format!("{}: byte {at}: {what}", self.path.display()))
    }

    /// Reads `count` bytes; `count` was read at the offset `start`.
    fn bytes(&mut self, count: u64, start: u64, what: &str) -> Result<Vec<u8>> {
        if count > self.size - self.at {
            let there = self.size - self.at;
            return Err(self.error(start, &format!("{what}: {count} bytes long, but {there} are left in the file")));
        }
        let mut bytes = Vec::new();
        let reserved = usize::try_from(count).is_ok_and(|count| bytes.try_reserve_exact(count).is_ok());
        if !reserved {
            let (path, at) = (self.path.display(), self.at);
            return Err(Error::exhausted(format!("{path}: byte {at}: {what}: {count} bytes do not fit into memory")));
        }
        let read = (&mut self.file).take(count).read_to_end(&mut bytes);
        if read.as_ref().ok() != Some(&bytes.len()) || bytes.len() as u64 != count {
            let why = read.err().map_or_else(|| "the file has become shorter".into(), |error| error.to_string());
            return Err(self.error(self.at, &format!("{what}: {why}")));
        }
        self.at += count;
        Ok(bytes)
    }

    /// Reads the header; returns the format and the number of sections.
    fn header(&mut self) -> Result<(u32, u32)> {
        let header = self.bytes((HEADER as u64).min(self.size), 0, "the header")?;
        let mut fields = ByteReader { bytes: &header };
        if fields.take(MAGIC.len()) != Some(MAGIC.as_slice()) {
            return Err(self.error(0, "this is not a session file"));
        }
        let whole = (fields.u32(), fields.u32(), fields.u64(), fields.take(8), fields.u64());
        let (Some(format), Some(sections), Some(size), Some(_), Some(checksum)) = whole else {
            return Err(self.error(self.size, "the file ends within its header"));
        };
        if ![OLD_FORMAT, FORMAT].contains(&format) {
            let known = format!("the file has format {format}, where this version reads {OLD_FORMAT} and {FORMAT}");
            return Err(self.error(16, &known));
        }
        if Checksum::of(header.get(..HEADER - 8).unwrap_or(&[])) != checksum {
            return Err(self.error(16, "the header is damaged: wrong checksum"));
        }
        if size != self.size {
            return Err(self.error(24, &format!("the file was written with {size} bytes and has {}", self.size)));
        }
        Ok((format, sections))
    }

    fn section(&mut self, what: &str) -> Result<Vec<u8>> {
        let start = self.at;
        let head = self.bytes(16, start, what)?;
        let mut fields = ByteReader { bytes: &head };
        let (len, checksum) = (fields.u64().unwrap_or(0), fields.u64().unwrap_or(0));
        let section = self.bytes(len, start, what)?;
        if Checksum::of(&section) != checksum {
            return Err(self.error(start, &format!("{what}, up to byte {}, is damaged: wrong checksum", self.at)));
        }
        self.n_sections += 1;
        Ok(section)
    }

    fn about(&self, section: &[u8]) -> Result<(Option<SeedOrigin>, Vec<f32>)> {
        let start = HEADER as u64 + 16;
        let mut fields = ByteReader { bytes: section };
        let known = writer();
        match fields.text() {
            Some(text) if text == known => {}
            Some(text) => return Err(self.error(start, &format!("the file was written by {text}; this is {known}"))),
            None => return Err(self.error(start, "invalid description of the writer")),
        }
        let (Some(has_seed), Some(seed), Some(origin)) = (fields.u32(), fields.u32(), fields.u64()) else {
            return Err(self.error(start, "the description of the writer is too short"));
        };
        let seed = (has_seed == 1).then_some(SeedOrigin { seed, origin: origin.cast_signed() });
        let (scales, _) = fields.bytes.as_chunks::<4>();
        Ok((seed, scales.iter().map(|scale| f32::from_le_bytes(*scale)).collect()))
    }

    fn snapshot(&mut self, owner: &str, format: u32) -> Result<Snapshot> {
        let start = self.at;
        let section = self.section(&format!("the description of the {owner}"))?;
        let mut fields = ByteReader { bytes: &section };
        let mut identity = Vec::new();
        while !fields.bytes.is_empty() {
            let pair = fields.text().zip(fields.text());
            identity.push(pair.ok_or_else(|| self.error(start, &format!("invalid description of the {owner}")))?);
        }
        let start = self.at;
        let section = self.section(&format!("the {owner}'s tokens"))?;
        let mut fields = ByteReader { bytes: &section };
        let blocks = fields.u64().and_then(|blocks| usize::try_from(blocks).ok());
        let (tokens, rest) = fields.bytes.as_chunks::<4>();
        let (Some(blocks), [], false) = (blocks, rest, tokens.is_empty()) else {
            return Err(self.error(start, &format!("the {owner}'s tokens are invalid")));
        };
        let tokens: Vec<Token> = tokens.iter().map(|bytes| Token::from_le_bytes(*bytes)).collect();
        let state = self.section(&format!("the {owner}'s state"))?;
        let checkpoints = if format == OLD_FORMAT { Vec::new() } else { self.checkpoints(owner, tokens.len())? };
        Ok(Snapshot { identity, tokens, blocks, state, checkpoints })
    }

    fn checkpoints(&mut self, owner: &str, n_tokens: usize) -> Result<Vec<(usize, Arc<Vec<u8>>)>> {
        let start = self.at;
        let section = self.section(&format!("the {owner}'s checkpoints"))?;
        let (places, rest) = section.as_chunks();
        let places: Vec<usize> =
            places.iter().map(|place| usize::try_from(u64::from_le_bytes(*place)).unwrap_or(usize::MAX)).collect();
        let ascends = std::iter::once(&0).chain(&places).is_sorted_by(|before, after| before < after);
        if !rest.is_empty() || !ascends || places.last().is_some_and(|last| *last > n_tokens) {
            return Err(self.error(start, &format!("the {owner}'s checkpoints are invalid")));
        }
        let state = |place| Ok((place, Arc::new(self.section(&format!("a checkpoint of the {owner}"))?)));
        places.into_iter().map(state).collect()
    }
}

/// Reads values from bytes.
struct ByteReader<'a> {
    bytes: &'a [u8],
}

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.u64()?).ok()?;
        String::from_utf8(self.take(len)?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests;
