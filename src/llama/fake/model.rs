//! What a scripted model says.

use crate::llama::Token;

/// How a script speaks: every row of its logits, as a function of what is seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FakeModel {
    /// Texts differ with it.
    pub(crate) seed: u64,
    /// It says the tokens from [`FakeModel::FIRST`] on, so many.
    pub(crate) n_words: u32,
    /// How much logits depend on the last two tokens alone: a text repeats itself the more.
    pub(crate) near: f32,
    /// How much they depend on all tokens.
    pub(crate) far: f32,
    /// What a draft's logits have of their own.
    pub(crate) noise: f32,
    /// One in so many rows ends the text; 0: none does.
    pub(crate) ends: u64,
    /// The logit of all other tokens.
    pub(crate) floor: f32,
}

impl FakeModel {
    /// Where its words begin. In the shipped models' vocabulary these and the following ones are pieces of ASCII text.
    pub(crate) const FIRST: Token = 300;

    /// What is seen of a token that was evaluated with these LoRA scales.
    pub(crate) fn token_hash(token: Token, scales: &[f32]) -> u64 {
        let adapted = scales.iter().fold(1, |hash, scale| mix(hash ^ u64::from(scale.to_bits())));
        mix(adapted ^ u64::from(token.unsigned_abs()))
    }

    /// The logits behind these tokens; `end` ends a text.
    pub(crate) fn logits(&self, seen: &[u64], n_vocab: usize, end: Token) -> Vec<f32> {
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
pub(crate) fn mix(hash: u64) -> u64 {
    let hash = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
