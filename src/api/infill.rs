//! Fill-in-the-middle prompts, put together as llama-server's `/infill` does: with the model's tokens for it, at
//! repository level (<https://arxiv.org/abs/2409.12186>) as far as it has those.
//!
//! ```text
//! [REP]myproject
//! [SEP]name                      for each of input_extra,
//! text                           or a line that says "snippet" between them
//! [SEP]filename
//! [BOS][PRE]prefix, prompt[SUF]suffix[MID]
//! ```
//!
//! `spm_infill` puts the suffix before the prefix. These two share a batch, 3 : 1, and lose what is farthest from the gap;
//! the files get the rest of the context, the last one first.

use super::pieces::of_pieces;
use super::request::Infill;
use crate::error::{Error, Result};
use crate::llama::{Token, Vocab};

/// Before a file, for models without a separator token.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// llama-server's names for the repository and for the file with the gap.
const PROJECT: &str = "myproject\n";
const FILE: &str = "filename\n";

/// How much room a prompt has, and its order.
pub(super) struct Room {
    pub(super) n_ctx: usize,
    pub(super) n_batch: usize,
    pub(super) n_predict: Option<usize>,
    /// Suffix before prefix.
    pub(super) spm: bool,
}

impl Room {
    /// Tokens for prefix and suffix: a batch. llama-server does not look whether the context has room for that.
    fn around(&self) -> usize {
        self.n_batch.min(self.n_ctx / 4 * 3)
    }

    /// Tokens for the files: what is left, less twice the answer, or an eighth of the context where it has no limit.
    fn extra(&self) -> usize {
        let answer = self.n_predict.map_or(self.n_ctx / 8, |n_predict| n_predict.saturating_mul(2));
        self.n_ctx.saturating_sub(self.around()).saturating_sub(answer)
    }
}

/// The tokens of an infill prompt. Control tokens are parsed in its `prompt` alone, and only with `parse_special`.
///
/// # Errors
/// The model has no tokens for it, or a token is none of the vocabulary.
pub(super) fn tokens(vocab: &Vocab, infill: &Infill, parse_special: bool, room: &Room) -> Result<Vec<Token>> {
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

    let prompt = of_pieces(vocab, "prompt", &infill.prompt, false, parse_special)?;
    let prefix = of_pieces(vocab, "input_prefix", &infill.prefix, false, false)?;
    let suffix = of_pieces(vocab, "input_suffix", &infill.suffix, false, false)?;
    let quarter = room.around() / 4;
    let prefix = [&[fim.prefix], last(&prefix, 3 * quarter), &prompt].concat();
    let n_suffix = suffix.len().min(quarter.saturating_sub(2 + prompt.len()));
    let suffix = [&[fim.suffix], suffix.get(..n_suffix).unwrap_or(&suffix)].concat();

    let mut all = last(&extra, room.extra()).to_vec();
    all.extend(vocab.bos().filter(|_| vocab.adds_bos()));
    all.extend(if room.spm { [suffix, prefix] } else { [prefix, suffix] }.concat());
    all.push(fim.middle);
    Ok(all)
}

fn last(tokens: &[Token], n: usize) -> &[Token] {
    tokens.get(tokens.len().saturating_sub(n)..).unwrap_or(tokens)
}
