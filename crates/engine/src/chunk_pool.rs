//! Byte strings that hold their equal parts once. Each is cut into chunks where its own bytes say so, so strings with the same part have
//! the same chunks of it, wherever it begins: the states of two sequences with the same first tokens have the rows of each layer in common.

use std::collections::HashMap;
use std::sync::Arc;

use memchr::memchr_iter;
use xxhash_rust::xxh3::xxh3_64;

/// The least and the most bytes of a chunk, except for the last of a string.
const LEAST: usize = 1 << 12;
const MOST: usize = 1 << 15;
/// The last byte of a chunk, which is found at once.
const LAST_BYTE: u8 = 0x5a;
/// One of so many of these bytes, as a power of two, is where a chunk can end.
const PLACES: u32 = 3;
/// Bytes of a chunk beside its own: its counts, its entry, what the allocator adds.
const CHUNK_BYTES: usize = 96;

/// The hash of a chunk, and its bytes.
type HashedChunk = (u64, Arc<[u8]>);

/// A string of a [`ChunkPool`], which counts it until it is removed.
#[derive(Debug)]
pub(super) struct ChunkedBytes(Vec<HashedChunk>);

/// Chunks of strings, each once.
#[derive(Debug, Default)]
pub(super) struct ChunkPool {
    /// Each with the number of its uses.
    chunks: HashMap<u64, (Arc<[u8]>, usize)>,
    n_bytes: usize,
}

impl ChunkPool {
    /// The bytes that all strings take together.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The most bytes that `n` strings of `len` bytes together take.
    pub(super) fn most_bytes(len: usize, n: usize) -> usize {
        let n_chunks = if len > 0 { len / LEAST + n } else { 0 };
        len + n_chunks * (CHUNK_BYTES + size_of::<HashedChunk>())
    }

    /// Adds a copy of a string.
    pub(super) fn add(&mut self, mut bytes: &[u8]) -> ChunkedBytes {
        let mut chunks = Vec::new();
        while let Some((chunk, rest)) =
            bytes.split_at_checked(first_chunk(bytes)).filter(|(chunk, _)| !chunk.is_empty())
        {
            bytes = rest;
            let hash = xxh3_64(chunk);
            let (known, n_uses) = self.chunks.entry(hash).or_insert_with(|| {
                self.n_bytes += chunk.len() + CHUNK_BYTES;
                (Arc::from(chunk), 0)
            });
            let chunk = if **known == *chunk {
                *n_uses += 1;
                Arc::clone(known)
            } else {
                // A chunk with the hash of another one is not shared.
                self.n_bytes += chunk.len() + CHUNK_BYTES;
                Arc::from(chunk)
            };
            chunks.push((hash, chunk));
        }
        chunks.shrink_to_fit();
        self.n_bytes += chunks.len() * size_of::<HashedChunk>();
        ChunkedBytes(chunks)
    }

    /// Removes a string. Its bytes stay readable until it is dropped.
    pub(super) fn remove(&mut self, ChunkedBytes(chunks): &ChunkedBytes) {
        self.n_bytes -= chunks.len() * size_of::<HashedChunk>();
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

impl ChunkedBytes {
    /// A copy of the string.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.iter().map(|(_, chunk)| chunk.len()).sum());
        self.0.iter().for_each(|(_, chunk)| bytes.extend_from_slice(chunk));
        bytes
    }
}

/// The length of the first chunk of a string: it ends behind eight bytes of which the last one and a hash have certain values.
fn first_chunk(bytes: &[u8]) -> usize {
    let most = bytes.len().min(MOST);
    let ends = |end: &usize| {
        let last = bytes.get(..*end).and_then(|text| text.last_chunk()).map_or(0, |last| u64::from_le_bytes(*last));
        last.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES) == 0
    };
    let found = memchr_iter(LAST_BYTE, bytes.get(LEAST..most).unwrap_or(&[])).map(|at| LEAST + at + 1).find(ends);
    found.unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foredraft_llama::fake::mix;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        (0..).flat_map(|at| mix(seed * 1_000_003 + at).to_le_bytes()).take(len).collect()
    }

    #[test]
    fn strings_are_what_they_were() {
        let mut pool = ChunkPool::default();
        let all = [0, 1, 2, LEAST - 1, LEAST, LEAST + 1, MOST, MOST + 1, 100_001];
        let all: Vec<Vec<u8>> = all.map(|len| noise(len as u64, len)).into_iter().chain([vec![0; 50_000]]).collect();
        let added: Vec<ChunkedBytes> = all.iter().map(|bytes| pool.add(bytes)).collect();
        for (bytes, added) in all.iter().zip(&added) {
            assert_eq!(added.to_vec(), *bytes);
            assert!(added.0.iter().all(|(_, chunk)| (1..=MOST).contains(&chunk.len())));
        }
        added.iter().for_each(|added| pool.remove(added));
        assert_eq!((pool.n_bytes(), pool.chunks.len()), (0, 0));
    }

    #[test]
    fn common_parts_are_held_once_wherever_they_are() {
        let world = noise(1, 400_000);
        let mut pool = ChunkPool::default();
        let first = pool.add(&world);
        let alone = pool.n_bytes();
        assert!(alone < 440_000 && alone <= ChunkPool::most_bytes(world.len(), 1), "{alone}");
        let mut others: Vec<ChunkedBytes> = Vec::new();
        for seed in 2..102 {
            let own = noise(seed, 2 * (seed as usize));
            others.push(pool.add(&[&own, &world[..200_000], &own, &world[200_000..]].concat()));
        }
        let each = (pool.n_bytes() - alone) / 100;
        assert!(each < 25_000, "{each} bytes more for each string with 400 KB in common");
        pool.remove(&first);
        let other = others.pop().unwrap();
        assert!(other.to_vec().ends_with(&world[200_000..]));
        pool.remove(&other);
        others.iter().for_each(|other| pool.remove(other));
        assert_eq!((pool.n_bytes(), pool.chunks.len()), (0, 0), "to the byte");
    }

    #[test]
    fn other_chunks_with_the_same_hash_are_not_shared() {
        let (one, other) = (noise(1, 500), noise(2, 500));
        let mut pool = ChunkPool::default();
        pool.chunks.insert(xxh3_64(&other), (Arc::from(one.as_slice()), 1));
        let added = pool.add(&other);
        assert_eq!(added.to_vec(), other);
        pool.remove(&added);
        assert_eq!((pool.n_bytes(), pool.chunks.len()), (0, 1));
    }
}
