//! Session files: saved sequences of target and draft, with the properties that a context must share to restore them.
//!
//! Little-endian. A header of 48 bytes: [`MAGIC`], format (u32), number of sections (u32), size of the file (u64), 8 zero bytes,
//! checksum of the 40 bytes before (u64). Then the sections, each preceded by its length (u64) and checksum (u64): a [`SessionHead`] as JSON, and the
//! states that llama.cpp wrote, of the target and of the draft if there is one, each followed by those of its checkpoints. The checksums are
//! XXH3's. The whole file is verified before any of it is used. They detect damage, and do not prevent deliberate forgery.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use foredraft_base::atomic_write;
use foredraft_base::error::{Error, Result};
use foredraft_base::{RowSpan, SavedMedia, Snapshot};
use foredraft_llama::{Token, llama_version};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 16] = b"foredraft state\n";
const FORMAT: u32 = 3;
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
    /// The pictures and sounds in the target's sequence.
    pub media: Vec<SavedMedia>,
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

/// A conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRecord {
    /// Its name.
    pub name: String,
    /// The number of tokens at the end of each of its turns, ascending.
    pub turns: Vec<usize>,
    /// Whether its state is not dropped to make room for others.
    pub is_pinned: bool,
    /// Whether the cells of its state may depend on tokens that are not in it. Not used while a slot has the state.
    pub is_moved: bool,
    /// The tokens of its state that are left after a rewind. Not used while a slot has the state.
    pub n_tokens: usize,
}

impl ConversationRecord {
    /// Drops the turns that end after `n_tokens`.
    pub fn keep_turns(&mut self, n_tokens: usize) {
        self.turns.retain(|end| *end <= n_tokens);
    }

    /// A turn has ended, with `n_tokens` in all.
    pub fn end_turn(&mut self, n_tokens: usize) {
        self.keep_turns(n_tokens);
        if self.turns.last() < Some(&n_tokens) {
            self.turns.push(n_tokens);
        }
    }
}

/// The parts of a file beside the states.
#[derive(Serialize, Deserialize)]
struct SessionHead {
    /// The versions of the library and of llama.cpp that wrote the file. Only the same versions can restore its states.
    writer: String,
    seed: Option<SeedOrigin>,
    lora: Vec<f32>,
    target: SnapshotHead,
    draft: Option<SnapshotHead>,
    /// The conversation to which the sequences belong, if it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    conversation: Option<ConversationRecord>,
    #[serde(rename = "pictures", default, skip_serializing_if = "Vec::is_empty")]
    media: Vec<SavedMedia>,
}

/// The parts of a snapshot beside its states.
#[derive(Serialize, Deserialize)]
struct SnapshotHead {
    identity: Vec<(String, String)>,
    tokens: Vec<Token>,
    blocks: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    spans: Vec<RowSpan>,
    /// The numbers of tokens of the checkpoints, ascending.
    checkpoints: Vec<usize>,
}

impl SnapshotHead {
    fn of(snapshot: &Snapshot) -> SnapshotHead {
        let checkpoints = snapshot.checkpoints.iter().map(|(place, _)| *place).collect();
        let (identity, tokens) = (snapshot.identity.clone(), snapshot.tokens.clone());
        SnapshotHead { identity, tokens, blocks: snapshot.blocks, spans: snapshot.spans.to_vec(), checkpoints }
    }

    /// Whether a sequence can have these tokens, rows of these pictures, and checkpoints.
    fn is_possible(&self, media: &[SavedMedia]) -> bool {
        let is_known = |token: &Token| *token >= 0 || media.iter().any(|medium| medium.has(*token));
        let spans = self.spans.iter().try_fold(0, |end, span| {
            let rows = self.tokens.get(span.start..span.start.checked_add(span.rows)?)?;
            let fits =
                end <= span.start && (1..=span.rows).contains(&span.positions) && rows.iter().all(|row| *row < 0);
            fits.then_some(span.start + span.rows)
        });
        let ascends = std::iter::once(&0).chain(&self.checkpoints).is_sorted_by(|before, after| before < after);
        let reaches = self.checkpoints.last().is_none_or(|last| *last <= self.tokens.len());
        !self.tokens.is_empty()
            && media.iter().all(SavedMedia::is_possible)
            && self.tokens.iter().all(is_known)
            && spans.is_some()
            && ascends
            && reaches
    }
}

fn writer() -> String {
    format!("foredraft {}, llama.cpp {}", env!("CARGO_PKG_VERSION"), llama_version())
}

impl Session {
    /// Writes the file atomically. Returns its size in bytes.
    ///
    /// # Errors
    /// The folder is missing, full or not writable; an existing file at `path` is unchanged.
    pub fn write(&self, path: &Path) -> Result<u64> {
        self.write_of(None, path, |_| Ok(()))
    }

    /// As [`Session::write`], the session of a conversation. `make_room` is called before with the bytes of the file.
    ///
    /// # Errors
    /// As [`Session::write`]; or `make_room` failed.
    pub fn write_of(
        &self,
        conversation: Option<&ConversationRecord>,
        path: &Path,
        make_room: impl FnOnce(u64) -> Result<()>,
    ) -> Result<u64> {
        let snapshots = || std::iter::once(&self.target).chain(&self.draft);
        let head = SessionHead {
            writer: writer(),
            seed: self.seed,
            lora: self.lora.clone(),
            target: SnapshotHead::of(&self.target),
            draft: self.draft.as_ref().map(SnapshotHead::of),
            conversation: conversation.cloned(),
            media: self.media.clone(),
        };
        let end = |span: &RowSpan| span.start.saturating_add(span.rows);
        if self.target.spans.last().map(end) > Some(self.target.tokens.len()) {
            return Err(Error::invalid("the sequence ends within a picture or a sound"));
        }
        let head = serde_json::to_vec(&head).map_err(|error| atomic_write::failed(path, &error.into()))?;
        let mut sections = vec![head.as_slice()];
        for snapshot in snapshots() {
            sections.push(&snapshot.state);
            sections.extend(snapshot.checkpoints.iter().map(|(_, state)| state.as_slice()));
        }
        let size = HEADER + sections.iter().map(|section| 16 + section.len()).sum::<usize>();
        make_room(size as u64)?;
        atomic_write::write(path, |file| write_sections(file, size as u64, &sections))?;
        Ok(size as u64)
    }

    /// Reads and verifies a file.
    ///
    /// # Errors
    /// The file is missing, not a session file, of another version, or damaged, or does not fit into memory. The message has the byte
    /// offset.
    pub fn read(path: &Path) -> Result<Session> {
        Ok(Session::read_of(path)?.0)
    }

    /// As [`Session::read`], with the conversation that the session is of.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub fn read_of(path: &Path) -> Result<(Session, Option<ConversationRecord>)> {
        let (mut reader, n_sections, head) = SessionReader::open(path)?;
        let target = reader.snapshot("target", head.target)?;
        let draft = head.draft.map(|draft| reader.snapshot("draft", draft)).transpose()?;
        if reader.n_sections != n_sections {
            return Err(reader.error(20, &format!("{n_sections} sections")));
        }
        if reader.at != reader.size {
            return Err(reader.error(reader.at, "the file continues after its last section"));
        }
        let session = Session { target, draft, seed: head.seed, lora: head.lora, media: head.media };
        Ok((session, head.conversation))
    }

    /// Reads only of which conversation a file is.
    ///
    /// # Errors
    /// As [`Session::read`], as far as the beginning of the file is concerned.
    pub fn conversation_of(path: &Path) -> Result<Option<ConversationRecord>> {
        Ok(SessionReader::open(path)?.2.conversation)
    }
}

/// Writes a file of `size` bytes with these sections.
fn write_sections(file: &mut impl Write, size: u64, sections: &[&[u8]]) -> io::Result<()> {
    let mut header = Vec::with_capacity(HEADER);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&FORMAT.to_le_bytes());
    header.extend_from_slice(&u32::try_from(sections.len()).unwrap_or(u32::MAX).to_le_bytes());
    header.extend_from_slice(&size.to_le_bytes());
    header.extend_from_slice(&[0; 8]);
    header.extend_from_slice(&xxh3_64(&header).to_le_bytes());
    file.write_all(&header)?;
    for section in sections {
        file.write_all(&(section.len() as u64).to_le_bytes())?;
        file.write_all(&xxh3_64(section).to_le_bytes())?;
        file.write_all(section)?;
    }
    Ok(())
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
    /// Opens a file, and reads its number of sections and the first one.
    fn open(path: &Path) -> Result<(SessionReader<'_>, u32, SessionHead)> {
        let unreadable =
            |error: io::Error| Error::file(path, &error, format!("{}: cannot be read: {error}", path.display()));
        // Checked before opening, because opening a pipe would wait for a writer.
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{}: is not a file", path.display())));
        }
        let file = BufReader::new(File::open(path).map_err(unreadable)?);
        let mut reader = SessionReader { file, path, at: 0, size: metadata.len(), n_sections: 0 };
        let n_sections = reader.header()?;
        let start = reader.at;
        let head = reader.section("the description")?;
        let head: SessionHead =
            serde_json::from_slice(&head).map_err(|error| reader.error(start, &format!("the description: {error}")))?;
        let known = writer();
        if head.writer != known {
            return Err(reader.error(start, &format!("the file was written by {}; this is {known}", head.writer)));
        }
        let draft_is_possible = head.draft.as_ref().is_none_or(|draft| draft.is_possible(&[]));
        if !head.target.is_possible(&head.media) || !draft_is_possible {
            return Err(reader.error(start, "the tokens or checkpoints are invalid"));
        }
        Ok((reader, n_sections, head))
    }

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

    /// Reads the header; returns the number of sections.
    fn header(&mut self) -> Result<u32> {
        let header = self.bytes((HEADER as u64).min(self.size), 0, "the header")?;
        if !header.starts_with(MAGIC) {
            return Err(self.error(0, "this is not a session file"));
        }
        let number = |at: usize| header.get(at..)?.first_chunk().copied().map(u64::from_le_bytes);
        let (Some(counts), Some(size), Some(checksum)) = (number(16), number(24), number(HEADER - 8)) else {
            return Err(self.error(self.size, "the file ends within its header"));
        };
        let (format, sections) = (counts as u32, (counts >> 32) as u32);
        if format != FORMAT {
            return Err(self.error(16, &format!("the file has format {format}, where this version reads {FORMAT}")));
        }
        if header.get(..HEADER - 8).map(xxh3_64) != Some(checksum) {
            return Err(self.error(16, "the header is damaged: wrong checksum"));
        }
        if size != self.size {
            return Err(self.error(24, &format!("the file was written with {size} bytes and has {}", self.size)));
        }
        Ok(sections)
    }

    fn section(&mut self, what: &str) -> Result<Vec<u8>> {
        let start = self.at;
        let head = self.bytes(16, start, what)?;
        let ([len, checksum], _) = head.as_chunks::<8>() else { return Err(self.error(start, what)) };
        let section = self.bytes(u64::from_le_bytes(*len), start, what)?;
        if xxh3_64(&section) != u64::from_le_bytes(*checksum) {
            return Err(self.error(start, &format!("{what}, up to byte {}, is damaged: wrong checksum", self.at)));
        }
        self.n_sections += 1;
        Ok(section)
    }

    fn snapshot(&mut self, owner: &str, head: SnapshotHead) -> Result<Snapshot> {
        let SnapshotHead { identity, tokens, blocks, spans, checkpoints } = head;
        let state = self.section(&format!("the {owner}'s state"))?;
        let checkpoint = |place| Ok((place, Arc::new(self.section(&format!("a checkpoint of the {owner}"))?)));
        let checkpoints = checkpoints.into_iter().map(checkpoint).collect::<Result<_>>()?;
        Ok(Snapshot { identity, tokens, blocks, spans: Arc::new(spans), state, checkpoints })
    }
}

#[cfg(test)]
mod tests;
