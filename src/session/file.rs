//! Session files: sequences copied out of their contexts, with everything needed to refuse them elsewhere.
//!
//! Little-endian throughout. 48 bytes of header: [`MAGIC`], format (u32), sections (u32), bytes in the file (u64), 8 bytes
//! of zeros, checksum of the 40 bytes before (u64). Then the sections, each with its length (u64) and checksum (u64)
//! before it: one about the writer, the seed and the adapters, then three for the target, and three for the draft if there is one: what
//! it fits, its tokens, llama.cpp's state. All of it is checked before anything of it is used. The checksums are there to
//! find damage; they do not stop whoever forges a file on purpose.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use super::Snapshot;
use crate::atomic_write;
use crate::checksum::Checksum;
use crate::error::{Code, Error, Result};
use crate::llama::{Token, llama_version};

const MAGIC: &[u8; 16] = b"foredraft state\n";
const FORMAT: u32 = 1;
const HEADER: usize = 48;
/// Sections of a snapshot.
const PER_SNAPSHOT: u32 = 3;

/// What a session file holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// The target's sequence.
    pub target: Snapshot,
    /// The draft's, if it had tokens.
    pub draft: Option<Snapshot>,
    /// The seed of the last request, if there was one, and how far its noise was used up.
    pub seed: Option<SeedOrigin>,
    /// The scale of each LoRA adapter that the target's sequence was evaluated with.
    pub lora: Vec<f32>,
}

/// Noise is a function of seed and position; this is where positions are counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedOrigin {
    /// The seed.
    pub seed: u32,
    /// The place in the context whose token had the position 0; negative when it was shifted out.
    pub origin: i64,
}

impl SeedOrigin {
    /// The position of the token that follows `len` others.
    pub fn position(self, len: usize) -> usize {
        let len = i64::try_from(len).unwrap_or(i64::MAX);
        usize::try_from(len.saturating_sub(self.origin)).unwrap_or(0)
    }

    /// The origin at which the token that follows `len` others has that position.
    pub fn new(seed: u32, len: usize, position: usize) -> SeedOrigin {
        let signed = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        SeedOrigin { seed, origin: signed(len).saturating_sub(signed(position)) }
    }
}

/// The library and the llama.cpp that wrote a file; states are only put back by the same.
fn writer() -> String {
    format!("foredraft {}, llama.cpp {}", env!("CARGO_PKG_VERSION"), llama_version())
}

impl Session {
    /// Writes the file, whole or not at all: beside its place, and then moved there. Returns its size in bytes.
    ///
    /// # Errors
    /// The folder is missing, full or not writable; what was at `path` is then as it was.
    pub fn write(&self, path: &Path) -> Result<u64> {
        let mut size = 0;
        atomic_write::write(path, |file| {
            size = self.write_to(file)?;
            Ok(())
        })?;
        Ok(size)
    }

    fn write_to(&self, file: &mut File) -> io::Result<u64> {
        let small = self.small_sections();
        let states = std::iter::once(&self.target).chain(&self.draft).map(|snapshot| snapshot.state.as_slice());
        // A state follows the small sections of its snapshot.
        let mut sections: Vec<&[u8]> = small.iter().map(Vec::as_slice).collect();
        for (index, state) in states.enumerate() {
            sections.insert((3 + 3 * index).min(sections.len()), state);
        }
        let size = HEADER + sections.iter().map(|section| 16 + section.len()).sum::<usize>();
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&FORMAT.to_le_bytes());
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

    /// All sections but the states, in their order.
    fn small_sections(&self) -> Vec<Vec<u8>> {
        let mut about = Vec::new();
        put_text(&mut about, &writer());
        about.extend_from_slice(&u32::from(self.seed.is_some()).to_le_bytes());
        about.extend_from_slice(&self.seed.map_or(0, |seed| seed.seed).to_le_bytes());
        about.extend_from_slice(&self.seed.map_or(0, |seed| seed.origin).to_le_bytes());
        about.extend(self.lora.iter().flat_map(|scale| scale.to_le_bytes()));
        let mut sections = vec![about];
        for snapshot in std::iter::once(&self.target).chain(&self.draft) {
            let mut identity = Vec::new();
            for (name, value) in &snapshot.identity {
                put_text(&mut identity, name);
                put_text(&mut identity, value);
            }
            let mut tokens = (snapshot.blocks as u64).to_le_bytes().to_vec();
            tokens.extend(snapshot.tokens.iter().flat_map(|token| token.to_le_bytes()));
            sections.extend([identity, tokens]);
        }
        sections
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// There is none, it is no session file, of another version, or damaged; the message names the bytes at fault.
    pub fn read(path: &Path) -> Result<Session> {
        let refuse = |error: io::Error| {
            let code = if error.kind() == io::ErrorKind::NotFound { Code::NotFound } else { Code::InvalidRequest };
            Error::new(code, format!("{}: cannot be read: {error}", path.display()))
        };
        // Asked before it is opened: opening a pipe would wait for a writer.
        let metadata = fs::metadata(path).map_err(refuse)?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{}: is not a file", path.display())));
        }
        let file = BufReader::new(File::open(path).map_err(refuse)?);
        let mut reader = Reader { file, path, at: 0, size: metadata.len() };
        let n_snapshots = reader.header()?;
        let about = reader.section("the description of the writer")?;
        let (seed, lora) = reader.about(&about)?;
        let target = reader.snapshot("target")?;
        let draft = if n_snapshots > 1 { Some(reader.snapshot("draft")?) } else { None };
        if reader.at != reader.size {
            return Err(reader.wrong(reader.at, "there are more bytes than sections"));
        }
        Ok(Session { target, draft, seed, lora })
    }
}

fn put_text(section: &mut Vec<u8>, text: &str) {
    section.extend_from_slice(&(text.len() as u64).to_le_bytes());
    section.extend_from_slice(text.as_bytes());
}

struct Reader<'a> {
    file: BufReader<File>,
    path: &'a Path,
    at: u64,
    size: u64,
}

impl Reader<'_> {
    fn wrong(&self, at: u64, what: &str) -> Error {
        Error::invalid(format!("{}: byte {at}: {what}", self.path.display()))
    }

    /// `count` bytes, a number that was read at `start`.
    fn bytes(&mut self, count: u64, start: u64, what: &str) -> Result<Vec<u8>> {
        if count > self.size - self.at {
            let there = self.size - self.at;
            return Err(self.wrong(start, &format!("{what}: {count} bytes long, but {there} are left in the file")));
        }
        let mut bytes = Vec::new();
        let room = usize::try_from(count).is_ok_and(|count| bytes.try_reserve_exact(count).is_ok());
        if !room {
            return Err(self.wrong(self.at, &format!("{what}: {count} bytes do not fit into memory")));
        }
        let read = (&mut self.file).take(count).read_to_end(&mut bytes);
        if read.as_ref().ok() != Some(&bytes.len()) || bytes.len() as u64 != count {
            let why = read.err().map_or_else(|| "the file has become shorter".into(), |error| error.to_string());
            return Err(self.wrong(self.at, &format!("{what}: {why}")));
        }
        self.at += count;
        Ok(bytes)
    }

    /// How many snapshots follow.
    fn header(&mut self) -> Result<u32> {
        let header = self.bytes((HEADER as u64).min(self.size), 0, "the header")?;
        let mut fields = Fields { bytes: &header };
        if fields.take(MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(self.wrong(0, "this is not a session file"));
        }
        let whole = (fields.u32(), fields.u32(), fields.u64(), fields.take(8), fields.u64());
        let (Some(format), Some(sections), Some(size), Some(_), Some(checksum)) = whole else {
            return Err(self.wrong(self.size, "the file ends within its header"));
        };
        if format != FORMAT {
            return Err(self.wrong(16, &format!("the file has format {format}, where this version reads {FORMAT}")));
        }
        if Checksum::of(header.get(..HEADER - 8).unwrap_or(&[])) != checksum {
            return Err(self.wrong(16, "the header is damaged: its checksum is another"));
        }
        if size != self.size {
            return Err(self.wrong(24, &format!("the file was written with {size} bytes and has {}", self.size)));
        }
        match sections.checked_sub(1).map(|sections| (sections / PER_SNAPSHOT, sections % PER_SNAPSHOT)) {
            Some((snapshots @ 1..=2, 0)) => Ok(snapshots),
            _ => Err(self.wrong(20, &format!("{sections} sections"))),
        }
    }

    fn section(&mut self, what: &str) -> Result<Vec<u8>> {
        let start = self.at;
        let head = self.bytes(16, start, what)?;
        let mut fields = Fields { bytes: &head };
        let (len, checksum) = (fields.u64().unwrap_or(0), fields.u64().unwrap_or(0));
        let section = self.bytes(len, start, what)?;
        if Checksum::of(&section) != checksum {
            return Err(
                self.wrong(start, &format!("{what}, up to byte {}, is damaged: its checksum is another", self.at))
            );
        }
        Ok(section)
    }

    fn about(&self, section: &[u8]) -> Result<(Option<SeedOrigin>, Vec<f32>)> {
        let start = HEADER as u64 + 16;
        let mut fields = Fields { bytes: section };
        let known = writer();
        match fields.text() {
            Some(text) if text == known => {}
            Some(text) => return Err(self.wrong(start, &format!("the file was written by {text}; this is {known}"))),
            None => return Err(self.wrong(start, "the description of the writer is none")),
        }
        let (Some(has_seed), Some(seed), Some(origin)) = (fields.u32(), fields.u32(), fields.u64()) else {
            return Err(self.wrong(start, "the description of the writer is too short"));
        };
        let seed = (has_seed == 1).then_some(SeedOrigin { seed, origin: origin.cast_signed() });
        let (scales, _) = fields.bytes.as_chunks::<4>();
        Ok((seed, scales.iter().map(|scale| f32::from_le_bytes(*scale)).collect()))
    }

    fn snapshot(&mut self, whose: &str) -> Result<Snapshot> {
        let start = self.at;
        let section = self.section(&format!("the description of the {whose}"))?;
        let mut fields = Fields { bytes: &section };
        let mut identity = Vec::new();
        while !fields.bytes.is_empty() {
            let pair = fields.text().zip(fields.text());
            identity.push(pair.ok_or_else(|| self.wrong(start, &format!("the description of the {whose} is none")))?);
        }
        let start = self.at;
        let section = self.section(&format!("the {whose}'s tokens"))?;
        let mut fields = Fields { bytes: &section };
        let blocks = fields.u64().and_then(|blocks| usize::try_from(blocks).ok());
        let (tokens, rest) = fields.bytes.as_chunks::<4>();
        let (Some(blocks), [], false) = (blocks, rest, tokens.is_empty()) else {
            return Err(self.wrong(start, &format!("the {whose}'s tokens are none")));
        };
        let tokens = tokens.iter().map(|bytes| Token::from_le_bytes(*bytes)).collect();
        let state = self.section(&format!("the {whose}'s state"))?;
        Ok(Snapshot { identity, tokens, blocks, state })
    }
}

/// Values one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
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
#[path = "file_tests.rs"]
mod tests;
