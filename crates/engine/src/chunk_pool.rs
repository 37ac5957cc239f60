//! Byte strings that hold their equal parts once. Each is cut into chunks where its own bytes say so, so strings with the same part have
//! the same chunks of it, wherever it begins: the states of two sequences with the same first tokens have the rows of each layer in common.
//! A string is cut from its end, so that what is left of it can give back the memory of each chunk at once.

use std::collections::HashMap;
use std::sync::Arc;

use memchr::memrchr_iter;
use xxhash_rust::xxh3::xxh3_64;

/// The least and the most bytes of a chunk, except for the first of a string.
const LEAST: usize = 1 << 12;
const MOST: usize = 1 << 15;
/// The first byte of a chunk, which is found at once.
const FIRST_BYTE: u8 = 0x5a;
/// One of so many of these bytes, as a power of two, is where a chunk can begin.
const PLACES: u32 = 3;
/// Bytes of a chunk beside its own: its counts, its entry, what the allocator adds.
const CHUNK_BYTES: usize = 96;

/// The hash of a chunk, and its bytes.
type HashedChunk = (u64, Arc<[u8]>);

/// The chunks at the end of a string, from the last one on. A [`ChunkPool`] counts them until they are removed.
#[derive(Debug)]
pub(super) struct ChunkedEnd(Vec<HashedChunk>);

/// Chunks of strings, each once.
#[derive(Debug, Default)]
pub(super) struct ChunkPool {
    /// Each with the number of its uses.
    chunks: HashMap<u64, (Arc<[u8]>, usize)>,
    n_bytes: usize,
}

impl ChunkPool {
    /// The bytes that all chunks take together.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The most bytes that `n` strings of `len` bytes together take, whole, in chunks, or while one of them is cut.
    pub(super) fn most_bytes(len: usize, n: usize) -> usize {
        let n_chunks = if len > 0 { len / LEAST + n } else { 0 };
        len + len.min(MOST) + n_chunks * (CHUNK_BYTES + size_of::<HashedChunk>())
    }

    /// Moves the last chunk of a string, which is not empty, to those behind it. Returns its length.
    pub(super) fn move_end(&mut self, bytes: &mut Vec<u8>, ChunkedEnd(chunks): &mut ChunkedEnd) -> usize {
        let start = start_of_last_chunk(bytes);
        let chunk = bytes.get(start..).unwrap_or(&[]);
        let (hash, len) = (xxh3_64(chunk), chunk.len());
        let (known, n_uses) = self.chunks.entry(hash).or_insert_with(|| {
            self.n_bytes += len + CHUNK_BYTES;
            (Arc::from(chunk), 0)
        });
        let chunk = if **known == *chunk {
            *n_uses += 1;
            Arc::clone(known)
        } else {
            // A chunk with the hash of another one is not shared.
            self.n_bytes += len + CHUNK_BYTES;
            Arc::from(chunk)
        };
        chunks.push((hash, chunk));
        bytes.truncate(start);
        bytes.shrink_to_fit();
        len
    }

    /// Removes chunks. Their bytes stay readable until they are dropped.
    pub(super) fn remove(&mut self, ChunkedEnd(chunks): &ChunkedEnd) {
        for (hash, chunk) in chunks {
            if let Some((known, n_uses)) = self.chunks.get_mut(hash)
                && Arc::ptr_eq(known, chunk)
            {
                *n_uses -= 1;
                if *n_uses > 0 {
                    continue;
                }
                self.chunks.remove(hash);
            }
            self.n_bytes -= chunk.len() + CHUNK_BYTES;
        }
        if self.chunks.capacity() / 4 > self.chunks.len() {
            self.chunks.shrink_to_fit();
        }
    }
}

impl ChunkedEnd {
    /// None yet of a string of so many bytes, for whose chunks there is room.
    pub(super) fn of(len: usize) -> ChunkedEnd {
        ChunkedEnd(Vec::with_capacity(len.div_ceil(LEAST)))
    }

    /// Gives back the memory for further chunks. Returns the bytes of the list.
    pub(super) fn close(&mut self) -> usize {
        self.0.shrink_to_fit();
        self.0.capacity() * size_of::<HashedChunk>()
    }

    /// Appends a copy of the chunks to the beginning of their string.
    pub(super) fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.reserve_exact(self.0.iter().map(|(_, chunk)| chunk.len()).sum());
        self.0.iter().rev().for_each(|(_, chunk)| bytes.extend_from_slice(chunk));
    }
}

/// Where the last chunk of a string starts: at eight bytes of which the first one and a hash have certain values.
fn start_of_last_chunk(bytes: &[u8]) -> usize {
    let (first, last) = (bytes.len().saturating_sub(MOST), (bytes.len() + 1).saturating_sub(LEAST));
    let starts = |start: &usize| {
        let found = bytes.get(*start..).and_then(<[u8]>::first_chunk).map_or(0, |found| u64::from_le_bytes(*found));
        found.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES) == 0
    };
    let range = bytes.get(first..last).unwrap_or(&[]);
    memrchr_iter(FIRST_BYTE, range).map(|at| first + at).find(starts).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foredraft_llama::fake::mix;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        (0..).flat_map(|at| mix(seed * 1_000_003 + at).to_le_bytes()).take(len).collect()
    }

    /// Cuts a string into its chunks.
    fn add(pool: &mut ChunkPool, bytes: &[u8]) -> ChunkedEnd {
        let (mut left, mut chunks) = (bytes.to_vec(), ChunkedEnd::of(bytes.len()));
        let room = chunks.0.capacity();
        while !left.is_empty() {
            let before = left.len();
            assert_eq!(pool.move_end(&mut left, &mut chunks), before - left.len());
            let mut whole = left.clone();
            chunks.append_to(&mut whole);
            assert!(whole == bytes && left.capacity() == left.len(), "at each moment");
        }
        assert!(chunks.0.capacity() == room && chunks.close() <= room * size_of::<HashedChunk>());
        chunks
    }

    fn whole(chunks: &ChunkedEnd) -> Vec<u8> {
        let mut bytes = Vec::new();
        chunks.append_to(&mut bytes);
        bytes
    }

    #[test]
    fn strings_are_what_they_were() {
        let mut pool = ChunkPool::default();
        let all = [0, 1, 2, LEAST - 1, LEAST, LEAST + 1, MOST, MOST + 1, 100_001];
        let all: Vec<Vec<u8>> = all.map(|len| noise(len as u64, len)).into_iter().chain([vec![0; 50_000]]).collect();
        let added: Vec<ChunkedEnd> = all.iter().map(|bytes| add(&mut pool, bytes)).collect();
        for (bytes, added) in all.iter().zip(&added) {
            assert_eq!(whole(added), *bytes);
            assert!(added.0.iter().all(|(_, chunk)| (1..=MOST).contains(&chunk.len())));
        }
        added.iter().for_each(|added| pool.remove(added));
        assert_eq!((pool.n_bytes(), pool.chunks.len()), (0, 0));
    }

    #[test]
    fn common_parts_are_held_once_wherever_they_are() {
        let world = noise(1, 400_000);
        let mut pool = ChunkPool::default();
        let first = add(&mut pool, &world);
        let alone = pool.n_bytes();
        assert!(alone < 440_000 && alone <= ChunkPool::most_bytes(world.len(), 1), "{alone}");
        let mut others: Vec<ChunkedEnd> = Vec::new();
        for seed in 2..102 {
            let own = noise(seed, 2 * (seed as usize));
            others.push(add(&mut pool, &[&own, &world[..200_000], &own, &world[200_000..]].concat()));
        }
        let each = (pool.n_bytes() - alone) / 100;
        assert!(each < 25_000, "{each} bytes more for each string with 400 KB in common");
        pool.remove(&first);
        let other = others.pop().unwrap();
        assert!(whole(&other).ends_with(&world[200_000..]));
        pool.remove(&other);
        others.iter().for_each(|other| pool.remove(other));
        assert_eq!((pool.n_bytes(), pool.chunks.len()), (0, 0), "to the byte");
    }

    #[test]
    fn other_chunks_with_the_same_hash_are_not_shared() {
        let (one, other) = (noise(1, 500), noise(2, 500));
        let mut pool = ChunkPool::default();
        pool.chunks.insert(xxh3_64(&other), (Arc::from(one.as_slice()), 1));
        let added = add(&mut pool, &other);
        assert_eq!(whole(&added), other);
        pool.remove(&added);
        assert_eq!((pool.n_bytes(), pool.chunks.len()), (0, 1));
    }
}
