//! The values that a request gets for absent fields.

use std::hash::{BuildHasher, RandomState};

use super::speculative::SpeculativeOptions;
use crate::api::wire::fields::Fields;
use crate::error::Result;

/// The defaults that a load sets.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestDefaults {
    /// The number of tokens that a truncated prompt keeps. `None`: the whole prompt.
    pub n_keep: Option<usize>,
    /// The minimum length of a chunk of the prompt that is reused from another position in the cache, by shifting it. 0: off.
    pub n_cache_reuse: usize,
    /// The seed. `None`: drawn for each request.
    pub seed: Option<u32>,
    /// The settings of speculation.
    pub speculative: SpeculativeOptions,
    /// Infill prompts have the suffix before the prefix.
    pub spm_infill: bool,
    /// The number of beams of `get_completion`; other functions ignore it, as in the old server. 0: no beam search.
    pub n_beams: usize,
}

impl Default for RequestDefaults {
    /// The defaults of a load without these keys.
    fn default() -> Self {
        RequestDefaults {
            n_keep: Some(0),
            n_cache_reuse: 0,
            seed: None,
            speculative: SpeculativeOptions::default(),
            spm_infill: false,
            n_beams: 0,
        }
    }
}

/// Reads `seed`. `Some(None)`: -1, or 4294967295, which llama.cpp treats as -1; the seed is drawn.
pub fn read_seed(fields: &mut Fields) -> Result<Option<Option<u32>>> {
    let seed: Option<i64> = fields.int("seed", -1..=i64::from(u32::MAX))?;
    Ok(seed.map(|seed| u32::try_from(seed).ok().filter(|seed| *seed != u32::MAX)))
}

/// Draws an unpredictable seed. The standard library takes the keys of its hash maps from the operating system and varies them from
/// call to call, so hashing a constant gives a random number without another crate. Never 4294967295, which means "draw one".
pub fn draw_seed() -> u32 {
    let random = RandomState::new().hash_one(0u64);
    u32::try_from(random % u64::from(u32::MAX)).unwrap_or(0)
}

/// Draws an unpredictable number from 0 to `i64::MAX`, see [`draw_seed`].
pub fn draw_id_seed() -> u64 {
    RandomState::new().hash_one(0u64) >> 1
}
