//! The keys of a load about pictures and sounds.

use super::model::source;
use crate::api::wire::fields::Fields;
use crate::error::{Error, Result};
use crate::llama::{GgufSource, WeightType};

/// The default and the maximum of `image_cache_mb`.
const CACHE_MB: usize = 256;
const MAX_CACHE_MB: i64 = 1 << 24;
/// The most tokens of a picture that can be asked for.
const MAX_TOKENS: i64 = 1 << 20;

/// How an engine encodes pictures and sounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectorSettings {
    /// The mmproj file.
    pub source: GgufSource,
    /// The type of the weights of its layers.
    pub weights: WeightType,
    /// The fewest and the most tokens of a picture. `None`: as the file says.
    pub min_tokens: Option<i32>,
    pub max_tokens: Option<i32>,
    /// The most bytes of encoded pictures and sounds in memory.
    pub cache: usize,
}

impl ProjectorSettings {
    /// Reads the keys. `None`: there is no projector.
    ///
    /// # Errors
    /// A field has the wrong type, or is out of range.
    pub(super) fn read(fields: &mut Fields) -> Result<Option<ProjectorSettings>> {
        let source = source(fields, "mmproj")?;
        let [file, q8_0, ..] = WeightType::WORDS;
        let weights = fields.word("mmproj_weights", &[file, q8_0])?.unwrap_or_default();
        let min_tokens = fields.int("image_min_tokens", 1..=MAX_TOKENS)?;
        let max_tokens = fields.int("image_max_tokens", 1..=MAX_TOKENS)?;
        let cache = fields.int("image_cache_mb", 0..=MAX_CACHE_MB)?.unwrap_or(CACHE_MB) << 20;
        let Some(source) = source else { return Ok(None) };
        if min_tokens.zip(max_tokens).is_some_and(|(least, most)| least > most) {
            return Err(Error::invalid("image_min_tokens: expected at most image_max_tokens"));
        }
        Ok(Some(ProjectorSettings { source, weights, min_tokens, max_tokens, cache }))
    }
}
