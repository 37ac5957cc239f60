//! llama.cpp's file format (`common_ngram_cache_save` and `_load`): no header; repeated to the end of the file: 4 × i32 tokens
//! (unused ones -1), i32 n > 0, n × (i32 token, i32 count > 0); little-endian. As in llama.cpp, the first of equal keys
//! counts, and the first of equal tokens after a key.
//!
//! Files are written in sorted order: n-grams as arrays of numbers (a prefix before its extensions), tokens by id. Equal
//! caches give equal files.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;

use super::cache::Cache;
use super::key::{LONGEST, NONE, NgramKey};
use super::pool::TokenCount;
use foredraft_base::atomic_write;
use foredraft_base::error::{Error, Result};
use foredraft_base::memory::ask_for;

/// Size of an n-gram and its n.
const HEADER_BYTES: u64 = 20;
/// Size of a token and its count.
const PAIR_BYTES: u64 = 8;
/// Size of the read and write buffers.
const BUFFER: usize = 1 << 16;
/// For more tokens after one n-gram than this, the memory for sorting them is checked first.
const CHECK_MEMORY_ABOVE: usize = 1 << 16;

impl Cache {
    /// Reads a file. Its tokens must be below `n_vocab`, if given.
    ///
    /// # Errors
    /// `not_found`; `resource_exhausted`: it does not fit into memory; or `invalid_request`: it is not a file, cannot be read, or
    /// is damaged. The message has the file's path and, for damage, the byte offset.
    pub fn load(path: &Path, n_vocab: Option<usize>) -> Result<Cache> {
        let file = atomic_write::open(path)?;
        ask_for(BUFFER, &path.display().to_string())?;
        let length = file.metadata().map_err(|error| atomic_write::failed(path, &error))?.len();
        CacheFileReader { input: BufReader::with_capacity(BUFFER, file), offset: 0, length, path, n_vocab }.cache()
    }

    /// Parses the bytes of a file. `path` is used only in error messages.
    ///
    /// # Errors
    /// As [`Cache::load`].
    pub fn parse(bytes: &[u8], path: &Path, n_vocab: Option<usize>) -> Result<Cache> {
        CacheFileReader { input: bytes, offset: 0, length: bytes.len() as u64, path, n_vocab }.cache()
    }

    /// Writes a file atomically. Equal caches give equal bytes.
    ///
    /// # Errors
    /// `not_found`: the folder does not exist; `invalid_request`: the file cannot be written. An existing file is left
    /// unchanged.
    pub fn save(&self, path: &Path) -> Result<()> {
        atomic_write::write(path, |file: &mut File| {
            ask_for(BUFFER, "").map_err(|_| ErrorKind::OutOfMemory)?;
            let mut out = std::io::BufWriter::with_capacity(BUFFER, file);
            self.write(&mut out)?;
            out.flush()
        })
    }

    /// Writes the bytes of a file.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let mut order = Vec::new();
        order.try_reserve_exact(self.records().len()).map_err(|_| ErrorKind::OutOfMemory)?;
        order.extend(self.records().iter().map(|record| (record.key, record)));
        order.sort_unstable_by_key(|(key, _)| *key);
        for (_, record) in order {
            let part = self.counts_of(record);
            for token in record.key.0 {
                out.write_all(&token.to_le_bytes())?;
            }
            let n = u32::try_from(1 + part.others.len()).map_err(|_| ErrorKind::InvalidData)?;
            out.write_all(&n.to_le_bytes())?;
            for pair in part.by_id() {
                out.write_all(&pair.token.to_le_bytes())?;
                out.write_all(&pair.count.to_le_bytes())?;
            }
        }
        Ok(())
    }
}

/// Reads record after record. Allocates memory for data that was read, never for sizes that the file claims.
struct CacheFileReader<'a, R> {
    input: R,
    /// Offset of the current record.
    offset: u64,
    /// Length of the file.
    length: u64,
    path: &'a Path,
    n_vocab: Option<usize>,
}

impl<R: BufRead> CacheFileReader<'_, R> {
    fn cache(mut self) -> Result<Cache> {
        let mut cache = Cache::new();
        let mut counts = Vec::new();
        while let Some(key) = self.next(&mut counts)? {
            // Nearly all n-grams have one token. A stable sort, so that the first of equal tokens stays.
            if counts.len() > 1 {
                if counts.len() > CHECK_MEMORY_ABOVE {
                    // The memory that the sort needs.
                    ask_for(counts.len().saturating_mul(size_of::<TokenCount>()), "").map_err(|_| self.full())?;
                }
                counts.sort_by_key(|pair| pair.token);
                counts.dedup_by_key(|pair| pair.token);
            }
            cache.append(key, &counts).ok_or_else(|| self.full())?;
        }
        cache.index_appended().ok_or_else(|| self.full())?;
        Ok(cache)
    }

    fn full(&self) -> Error {
        let at = self.offset;
        Error::exhausted(format!("{}: byte {at}: not enough memory for the n-grams", self.path.display()))
    }

    fn error(&self, at: u64, what: &str) -> Error {
        Error::invalid(format!("{}: byte {}: {what}", self.path.display(), self.offset + at))
    }

    /// Reads the next n-gram and its counts (at least one). `None` at the end.
    #[inline]
    fn next(&mut self, counts: &mut Vec<TokenCount>) -> Result<Option<NgramKey>> {
        let left = self.length - self.offset;
        if left == 0 {
            return self.end();
        }
        if left < HEADER_BYTES {
            return Err(self.error(0, &format!("the file ends within an n-gram, after {left} bytes of it")));
        }
        let [a, b, c, d, n] = self.numbers(0)?;
        let key = self.key([a, b, c, d])?;
        let available = (left - HEADER_BYTES) / PAIR_BYTES;
        let n = match u64::try_from(n) {
            Ok(n) if (1..=available).contains(&n) => n,
            _ => {
                let what = format!("an n-gram followed by {n} tokens, where the file has room for 1 to {available}");
                return Err(self.error(16, &what));
            }
        };
        counts.clear();
        for at in (0..n).map(|i| HEADER_BYTES + PAIR_BYTES * i) {
            let [token, count] = self.numbers(at)?;
            self.check(at, token)?;
            let count = u32::try_from(count).ok().filter(|count| *count > 0);
            let count = count.ok_or_else(|| self.error(at + 4, "a count that is not positive"))?;
            if counts.len() == counts.capacity() {
                counts.try_reserve(1).map_err(|_| self.full())?;
            }
            counts.push(TokenCount { token, count });
        }
        self.offset += HEADER_BYTES + PAIR_BYTES * n;
        Ok(Some(key))
    }

    fn key(&self, tokens: [i32; LONGEST]) -> Result<NgramKey> {
        let size = tokens.iter().take_while(|token| **token != NONE).count();
        let (used, unused) = tokens.split_at(size);
        if size == 0 || unused.iter().any(|token| *token != NONE) {
            return Err(self.error(0, &format!("{tokens:?} is not an n-gram: expected 1 to 4 tokens, then -1")));
        }
        for (token, at) in used.iter().zip((0..).step_by(4)) {
            self.check(at, *token)?;
        }
        Ok(NgramKey(tokens))
    }

    #[inline]
    fn check(&self, at: u64, token: i32) -> Result<()> {
        match usize::try_from(token) {
            Err(_) => Err(self.error(at, &format!("{token} is not a token"))),
            Ok(id) => match self.n_vocab {
                Some(n_vocab) if id >= n_vocab => {
                    Err(self.error(at, &format!("token {token} is outside the vocabulary of {n_vocab}")))
                }
                _ => Ok(()),
            },
        }
    }

    /// Reads the next numbers, at offset `at` of the record.
    #[inline]
    fn numbers<const N: usize>(&mut self, at: u64) -> Result<[i32; N]> {
        let size = N * size_of::<i32>();
        // They are nearly always all in the buffer.
        if let Ok(Some(bytes)) = self.input.fill_buf().map(|buffer| buffer.get(..size)) {
            let numbers = numbers(bytes);
            self.input.consume(size);
            return Ok(numbers);
        }
        let mut bytes = [[0; 4]; N];
        match self.input.read_exact(bytes.as_flattened_mut()) {
            Ok(()) => Ok(numbers(bytes.as_flattened())),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(self.error(at, "the file ends here: it was changed while it was being read"))
            }
            Err(error) => Err(self.error(at, &format!("cannot be read: {error}"))),
        }
    }

    /// Checks that the file does not continue.
    fn end(&mut self) -> Result<Option<NgramKey>> {
        match self.input.fill_buf() {
            Ok([]) => Ok(None),
            Ok(_) => Err(self.error(0, "the file continues: it was changed while it was being read")),
            Err(error) => Err(self.error(0, &format!("cannot be read: {error}"))),
        }
    }
}

/// Decodes little-endian numbers.
#[inline]
fn numbers<const N: usize>(bytes: &[u8]) -> [i32; N] {
    let mut numbers = [0; N];
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        *number = i32::from_le_bytes(*bytes);
    }
    numbers
}

#[cfg(test)]
mod tests;
