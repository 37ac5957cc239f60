//! The logits of a fake model.

use crate::Token;

/// A model whose rows of logits are a function of the tokens that are seen.
#[derive(Debug, Clone, Copy)]
pub struct FakeModel {
    /// Different seeds give different outputs.
    pub seed: u64,
    /// The number of tokens that it generates, from [`FakeModel::FIRST`] on.
    pub n_words: u32,
    /// How much logits depend on the last two tokens; the larger, the more repetitive the output.
    pub near: f32,
    /// How much they depend on all tokens.
    pub far: f32,
    /// How much a draft's logits differ from its target's.
    pub noise: f32,
    /// One in this many rows ends the output; 0 means that none does.
    pub ends: u64,
    /// The logit of all other tokens.
    pub floor: f32,
}

impl FakeModel {
    /// The first token that it generates. In the shipped vocabulary, this and the following tokens are pieces of ASCII text.
    pub const FIRST: Token = 300;

    /// The hash that later tokens see of a token decoded with these LoRA scales.
    pub fn token_hash(token: Token, scales: &[f32]) -> u64 {
        let adapted = scales.iter().fold(1, |hash, scale| mix(hash ^ u64::from(scale.to_bits())));
        mix(adapted ^ u64::from(token.unsigned_abs()))
    }

    /// The logits after tokens with these hashes; `end` is the token that ends the output.
    pub fn logits(&self, seen: &[u64], n_vocab: usize, end: Token) -> Vec<f32> {
        let hash = |seen: &[u64], domain| seen.iter().fold(mix(self.seed ^ domain), |hash, token| mix(hash ^ token));
        let (near, far) = (hash(&seen[seen.len().saturating_sub(2)..], 1), hash(seen, 2));
        let part = |hash, word| (mix(hash ^ word) >> 40) as f32 / (1 << 24) as f32;
        let mut row = vec![self.floor; n_vocab];
        for word in 0..self.n_words {
            let (at, word) = (FakeModel::FIRST as usize + word as usize, u64::from(word) + 10);
            row[at] = self.near * part(near, word) + self.far * part(far, word) + self.noise * part(mix(far), word);
        }
        if self.ends > 0 && mix(far ^ 7).is_multiple_of(self.ends) {
            row[end as usize] = self.near + self.far;
        }
        row
    }
}

/// SplitMix64's next number.
pub fn mix(hash: u64) -> u64 {
    let hash = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
