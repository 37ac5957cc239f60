//! Tests at load that prompts can be reused and drafts verified with a model of an architecture that is not known to allow it.
//!
//! llama.cpp knows more than a hundred architectures, and has faults in some: a prompt that is decoded in two parts can give other logits
//! than the same prompt at once. A short prompt is decoded at once, in two parts, and with a wrong draft that is removed again. The model
//! does without reuse or drafts if they give other logits. The result is kept for the process.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::session::Sequence;
use foredraft_llama::{Batch, Context, Token};
use serde::Serialize;

/// The architectures with which `scripts/check.sh architectures` has found no difference, sorted.
const KNOWN: &[&str] = &[
    "afmoe",
    "apertus",
    "arcee",
    "arctic",
    "arwkv7",
    "baichuan",
    "bailingmoe",
    "bailingmoe2",
    "bailingmoe3",
    "bitnet",
    "bloom",
    "chatglm",
    "codeshell",
    "cohere2",
    "cohere2moe",
    "command-r",
    "dbrx",
    "deci",
    "deepseek",
    "deepseek2",
    "deepseek2-ocr",
    "dots1",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone",
    "exaone-moe",
    "exaone4",
    "falcon",
    "falcon-h1",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "glm4",
    "glm4moe",
    "gpt-oss",
    "gpt2",
    "gptneox",
    "granite",
    "granite_swa",
    "granitehybrid",
    "granitemoe",
    "grok",
    "grovemoe",
    "hrm_text",
    "hunyuan-dense",
    "hunyuan-moe",
    "hunyuan_vl",
    "hy_v3",
    "internlm2",
    "jais",
    "jais2",
    "jamba",
    "kimi-k3",
    "kimi-linear",
    "laguna",
    "lfm2",
    "lfm2moe",
    "llama",
    "llama-embed",
    "llama4",
    "maincoder",
    "mamba",
    "mamba2",
    "maple",
    "mellum",
    "mimo2",
    "minicpm",
    "minicpm3",
    "minimax-01",
    "minimax-m2",
    "mistral3",
    "mistral4",
    "mpt",
    "muse-glimmer",
    "nanbeige",
    "nemotron",
    "nemotron_h",
    "nemotron_h_moe",
    "olmo",
    "olmo2",
    "olmoe",
    "openelm",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "phi2",
    "phi3",
    "phimoe",
    "plamo",
    "plamo2",
    "plamo3",
    "pockettts",
    "qwen",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen3vl",
    "qwen3vlmoe",
    "refact",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "spark2_5",
    "stablelm",
    "starcoder",
    "starcoder2",
    "step35",
    "talkie",
    "xverse",
];

/// The length of the prompt, where it is divided, and the length of the wrong draft.
const PROMPT: usize = 24;
const DIVIDED: usize = 13;
const DRAFT: usize = 3;
/// The largest difference of logits that counts as rounding, relative to their spread. Other numbers of tokens in a batch change the last
/// bits of some kernels' results; the faults that were found differ by more than a third of the spread.
const ROUNDING: f64 = 0.02;

/// The result of the check of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SelfCheck {
    /// The architecture is known, so nothing was tested.
    #[serde(rename = "known")]
    pub is_known: bool,
    /// A prompt that is partly in the cache gives the logits of the whole one.
    #[serde(rename = "cache_prompt")]
    pub reuses_prompts: bool,
    /// A rejected draft leaves no traces.
    #[serde(rename = "speculative")]
    pub verifies_drafts: bool,
}

impl Default for SelfCheck {
    fn default() -> SelfCheck {
        SelfCheck { is_known: true, reuses_prompts: true, verifies_drafts: true }
    }
}

impl SelfCheck {
    /// Why drafts are off, if they are.
    pub(super) fn without_drafts(self) -> Option<String> {
        let why = "a rejected draft changes the completions of this model, so there are none (a fault of llama.cpp's with this architecture)";
        (!self.verifies_drafts).then(|| why.to_owned())
    }

    /// The warnings about what is off.
    pub fn warnings(self) -> Vec<String> {
        let reuse = "cache_prompt: not used, because a prompt that is partly in the cache gives another completion with this model (a fault of \
                     llama.cpp's with this architecture)";
        let reuse = (!self.reuses_prompts).then(|| reuse.to_owned());
        let drafts = self.without_drafts().map(|why| format!("speculative: not used, because {why}"));
        reuse.into_iter().chain(drafts).collect()
    }
}

/// The results of this process: by the model's files and the parameters of its context.
static RESULTS: Mutex<Option<HashMap<String, SelfCheck>>> = Mutex::new(None);

/// Tests a context, which is empty afterwards, unless its architecture is known or the same was tested before.
pub(super) fn self_check(context: &mut Context) -> SelfCheck {
    let architecture = context.model().metadata("general.architecture").unwrap_or_default();
    if KNOWN.binary_search(&architecture.as_str()).is_ok() {
        return SelfCheck::default();
    }
    let key = format!("{:?} {:?}", context.model().identity(), context.layout());
    if let Some(known) = RESULTS.lock().as_ref().and_then(|results| results.get(&key)) {
        return *known;
    }
    let Some(found) = test(context) else { return SelfCheck { is_known: false, ..SelfCheck::default() } };
    RESULTS.lock().get_or_insert_default().insert(key, found);
    found
}

/// `None`: the prompt cannot be decoded, so there is nothing to compare.
fn test(context: &mut Context) -> Option<SelfCheck> {
    let most = context.n_ubatch().min(context.n_batch()).min(context.n_ctx());
    if most < PROMPT {
        return None;
    }
    let n_tokens = context.model().vocab().n_tokens();
    let token = |index: usize| Token::try_from((index * 7919 + 311) % n_tokens.max(1)).unwrap_or(0);
    let prompt: Vec<Token> = (0..PROMPT).map(token).collect();
    let wrong: Vec<Token> = (PROMPT..PROMPT + DRAFT.min(context.rollback().max_tokens().max(1))).map(token).collect();
    let (before, after) = prompt.split_at(DIVIDED);
    let mut trial = CheckedSequence { sequence: Sequence::new(0, None), context };
    let whole = trial.decode(&prompt)?;
    trial.restart();
    trial.decode(before)?;
    let divided = trial.decode(after);
    trial.restart();
    trial.decode(before)?;
    let drafted = trial.draft(after, &wrong);
    trial.restart();
    let is_same = |other: Option<Vec<f32>>| other.is_some_and(|other| difference(&whole, &other) <= ROUNDING);
    let reuses_prompts = is_same(divided);
    Some(SelfCheck { is_known: false, reuses_prompts, verifies_drafts: is_same(drafted) })
}

/// The difference of logits, relative to their spread. NaN and infinite logits are left out, as masked tokens have them.
fn difference(a: &[f32], b: &[f32]) -> f64 {
    let pairs = || a.iter().zip(b).map(|(a, b)| (f64::from(*a), f64::from(*b))).filter(|(a, _)| a.is_finite());
    let n = pairs().count().max(1) as f64;
    let mean = pairs().map(|(a, _)| a).sum::<f64>() / n;
    let spread = pairs().map(|(a, _)| (a - mean).powi(2)).sum::<f64>();
    let difference = pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>();
    if difference == 0.0 { 0.0 } else { (difference / spread).sqrt() }
}

struct CheckedSequence<'a> {
    context: &'a mut Context,
    sequence: Sequence,
}

impl CheckedSequence<'_> {
    fn restart(&mut self) {
        self.sequence.clear(self.context);
    }

    /// Decodes more tokens, and returns the logits after the last one.
    fn decode(&mut self, tokens: &[Token]) -> Option<Vec<f32>> {
        let mut batch = Batch::new();
        let first = self.sequence.next();
        for (offset, token) in tokens.iter().enumerate() {
            batch.push(*token, first + offset, self.sequence.id(), offset + 1 == tokens.len());
        }
        self.context.decode(&batch).ok()?;
        self.sequence.push(tokens);
        self.context.logits(tokens.len().checked_sub(1)?).map(|logits| logits.to_vec())
    }

    /// As [`CheckedSequence::decode`], with a wrong draft after the first token, as a step of the engine decodes and removes it.
    fn draft(&mut self, tokens: &[Token], wrong: &[Token]) -> Option<Vec<f32>> {
        let (first, _) = tokens.split_first()?;
        let known = self.sequence.len();
        self.sequence.mark(self.context);
        self.decode(&[&[*first], wrong].concat())?;
        let left = self.sequence.cut(self.context, known + 1);
        self.decode(tokens.get(left.checked_sub(known)?..)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_architectures_are_sorted() {
        assert!(KNOWN.is_sorted());
    }

    #[test]
    fn difference_is_relative_to_the_spread() {
        let logits = [1.0, -1.0, 3.0, f32::NEG_INFINITY];
        assert_eq!(difference(&logits, &logits), 0.0);
        assert!(difference(&logits, &[1.0, -1.0, 3.0001, f32::NEG_INFINITY]) < ROUNDING);
        assert!(difference(&logits, &[1.0, -0.5, 3.0, f32::NEG_INFINITY]) > ROUNDING);
        assert!(difference(&logits, &[1.0, f32::NAN, 3.0, 0.0]).is_nan(), "which is not within rounding");
        assert_eq!(difference(&[f32::NAN; 4], &logits), 0.0, "nothing to compare");
    }
}
