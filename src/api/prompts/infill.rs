//! Fill-in-the-middle prompts, assembled as in llama-server's `/infill`, with the model's FIM tokens. If the model has repository
//! tokens, the prompt is at repository level (<https://arxiv.org/abs/2409.12186>).
//!
//! ```text
//! [REP]myproject
//! [SEP]name                      for each of input_extra,
//! text                           or a "snippet" line between them, for models without [SEP]
//! [SEP]filename
//! [BOS][PRE]prefix, prompt[SUF]suffix[MID]
//! ```
//!
//! `spm_infill` puts the suffix before the prefix. Prefix and suffix share one batch, 3 : 1, and are cut at the end that is farther
//! from the gap. The files get the rest of the context; the first files are cut first.

use super::serving_model::ServingModel;
use crate::api::wire::request::Infill;
use crate::error::{Error, Result};
use crate::llama::Token;

/// Separates files, for models without a separator token.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// llama-server's names of the repository and of the file with the gap.
const PROJECT: &str = "myproject\n";
const FILE: &str = "filename\n";

/// How many tokens the parts of a prompt may have, and their order.
pub struct InfillBudget {
    pub n_ctx: usize,
    pub n_batch: usize,
    pub n_predict: Option<usize>,
    /// The suffix comes before the prefix.
    pub spm: bool,
}

impl InfillBudget {
    /// Tokens for prefix and suffix: a batch, but at most three quarters of the context. (llama-server does not limit it.)
    fn prefix_and_suffix(&self) -> usize {
        self.n_batch.min(self.n_ctx / 4 * 3)
    }

    /// Tokens for the files: the rest, less twice `n_predict`, or less an eighth of the context if there is no limit.
    fn extra(&self) -> usize {
        let answer = self.n_predict.map_or(self.n_ctx / 8, |n_predict| n_predict.saturating_mul(2));
        self.n_ctx.saturating_sub(self.prefix_and_suffix()).saturating_sub(answer)
    }
}

/// Tokenizes an infill prompt. Control tokens are parsed only in its `prompt`, and only with `parse_special`.
///
/// # Errors
/// The model has no FIM tokens, or a token is not in the vocabulary.
pub(super) fn tokenize(
    serving: &ServingModel,
    infill: &Infill,
    parse_special: bool,
    budget: &InfillBudget,
) -> Result<Vec<Token>> {
    let vocab = serving.vocab();
    let fim = vocab.fim().ok_or_else(|| {
        Error::invalid("input_prefix: the model has no fill-in-the-middle tokens (prefix, suffix and middle)")
    })?;
    let plain = |text: &str| vocab.tokenize(text.as_bytes(), false, false);

    let mut extra: Vec<Token> = Vec::new();
    if let Some(repository) = fim.repository {
        extra.push(repository);
        extra.extend(plain(PROJECT)?);
    }
    for file in &infill.extra {
        match fim.separator {
            Some(separator) => {
                extra.push(separator);
                extra.extend(plain(&format!("{}\n", file.filename))?);
            }
            None => extra.extend(plain(SNIPPET)?),
        }
        extra.extend(plain(&file.text)?);
    }
    if let Some(separator) = fim.separator {
        extra.push(separator);
        extra.extend(plain(FILE)?);
    }

    let prompt = serving.tokenize("prompt", &infill.prompt, false, parse_special)?;
    let prefix = serving.tokenize("input_prefix", &infill.prefix, false, false)?;
    let suffix = serving.tokenize("input_suffix", &infill.suffix, false, false)?;
    let quarter = budget.prefix_and_suffix() / 4;
    let prefix = [&[fim.prefix], last(&prefix, 3 * quarter), &prompt].concat();
    let n_suffix = suffix.len().min(quarter.saturating_sub(2 + prompt.len()));
    let suffix = [&[fim.suffix], suffix.get(..n_suffix).unwrap_or(&suffix)].concat();

    let mut all = last(&extra, budget.extra()).to_vec();
    all.extend(vocab.bos().filter(|_| vocab.adds_bos()));
    all.extend(if budget.spm { [suffix, prefix] } else { [prefix, suffix] }.concat());
    all.push(fim.middle);
    Ok(all)
}

fn last(tokens: &[Token], n: usize) -> &[Token] {
    tokens.get(tokens.len().saturating_sub(n)..).unwrap_or(tokens)
}
