//! The sampling settings of a request, already validated: every number is within its range.

use foredraft_base::Token;

/// The stages a sampler chain can have, in the names of the `samplers` field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// `penalties`: repeat, presence and frequency penalties over the last `repeat_last_n` tokens.
    Penalties,
    /// `dry`: the "don't repeat yourself" penalty on continuing a repeated sequence.
    Dry,
    /// `top_n_sigma`: keep logits within n standard deviations of the largest.
    TopNSigma,
    /// `top_k`.
    TopK,
    /// `tfs_z`: tail free sampling.
    TfsZ,
    /// `typ_p`: locally typical sampling.
    TypicalP,
    /// `top_p`: nucleus sampling.
    TopP,
    /// `min_p`.
    MinP,
    /// `xtc`: exclude top choices.
    Xtc,
    /// `temperature`, with `dynatemp_*`.
    Temperature,
    /// `adaptive_p`: always runs last, wherever the request lists it.
    AdaptiveP,
}

/// The version of mirostat that replaces the truncating stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MirostatVersion {
    /// No mirostat: the chain as given.
    Off,
    /// Mirostat 1.0 (arXiv 2007.14966).
    V1,
    /// Mirostat 2.0.
    V2,
}

/// The `dry_*` fields.
#[derive(Debug, Clone, PartialEq)]
pub struct DrySettings {
    /// Strength; 0 turns it off.
    pub multiplier: f32,
    /// Base of the exponential.
    pub base: f32,
    /// Repetitions up to this length are not penalized.
    pub allowed_length: i32,
    /// Window in tokens; -1 is the whole context, 0 turns DRY off.
    pub penalty_last_n: i32,
    /// A repetition never extends across one of these strings.
    pub sequence_breakers: Vec<String>,
}

/// All settings that determine how a token is sampled from logits.
///
/// `Default` has the old server's values; samplers that the old server did not have are off.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingSettings {
    /// At or below 0: greedy, always the most probable token.
    pub temperature: f32,
    /// Half-width of the dynamic temperature's range; 0 turns it off.
    pub dynatemp_range: f32,
    /// Exponent of the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Keep the k most probable; 0 or less keeps all.
    pub top_k: i32,
    /// Keep the fewest most probable tokens whose probabilities sum to this; 1 turns it off.
    pub top_p: f32,
    /// Keep tokens at least this times as probable as the most probable one; 0 turns it off.
    pub min_p: f32,
    /// Tail free sampling's z; 1 turns it off.
    pub tfs_z: f32,
    /// Locally typical sampling's p; 1 turns it off.
    pub typical_p: f32,
    /// Top-n-sigma's n; 0 or less turns it off.
    pub top_n_sigma: f32,
    /// Probability that XTC applies at a position; 0 turns it off.
    pub xtc_probability: f32,
    /// Minimum probability of a "top choice" for XTC; above 0.5 turns it off.
    pub xtc_threshold: f32,
    /// DRY.
    pub dry: DrySettings,
    /// Window of the penalties in tokens, prompt included; 0 turns them off, -1 is the whole context.
    pub repeat_last_n: i32,
    /// Divides (or multiplies, where negative) the logits of tokens in the window; 1 turns it off.
    pub repeat_penalty: f32,
    /// Subtracted once from the logit of each token in the window.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in the window.
    pub frequency_penalty: f32,
    /// Whether the newline token is penalized like other tokens.
    pub penalize_nl: bool,
    /// Mirostat.
    pub mirostat: MirostatVersion,
    /// Mirostat's target surprise in bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// Adaptive-p's target probability; negative turns it off.
    pub adaptive_target: f32,
    /// Decay of adaptive-p's moving average: it covers about the last 1 / (1 - decay) tokens.
    pub adaptive_decay: f32,
    /// The order of the stages; a stage left out is not applied.
    pub stages: Vec<Stage>,
    /// Truncating stages leave at least this many candidates.
    pub min_keep: usize,
    /// The seed in use. A request's -1 has already been replaced by a random seed.
    pub seed: u32,
    /// Added to the logits before all stages; `-inf` bans a token. At most one entry per token, sorted by token.
    pub logit_bias: Vec<(Token, f32)>,
    /// Number of alternatives reported with each token; 0 reports none.
    pub n_probs: usize,
}

impl SamplingSettings {
    /// Whether a sampler has a state that depends on the logits of earlier tokens: that of mirostat or adaptive-p.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.mirostat != MirostatVersion::Off || self.adaptive_target >= 0.0
    }
}

impl Default for SamplingSettings {
    fn default() -> Self {
        SamplingSettings {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.0,
            tfs_z: 1.0,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dry: DrySettings {
                multiplier: 0.0,
                base: 1.75,
                allowed_length: 2,
                penalty_last_n: -1,
                sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            },
            repeat_last_n: 64,
            repeat_penalty: 1.1,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalize_nl: true,
            mirostat: MirostatVersion::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            stages: vec![
                Stage::Penalties,
                Stage::Dry,
                Stage::TopNSigma,
                Stage::TopK,
                Stage::TfsZ,
                Stage::TypicalP,
                Stage::TopP,
                Stage::MinP,
                Stage::Xtc,
                Stage::Temperature,
            ],
            min_keep: 0,
            seed: 0,
            logit_bias: Vec::new(),
            n_probs: 0,
        }
    }
}
