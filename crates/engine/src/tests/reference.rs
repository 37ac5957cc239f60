//! The expected output: a naive loop over the fake model that generates one token at a time.

use super::{MODEL, Setup};
use crate::{Request, Stop};
use foredraft_base::error::{Code, Error};
use foredraft_llama::Token;
use foredraft_llama::fake::FakeModel;
use foredraft_sampling::Sampler;

/// An output, and why it ended.
#[derive(Debug)]
pub(super) struct ReferenceOutput {
    pub(super) tokens: Vec<Token>,
    pub(super) text: Vec<u8>,
    pub(super) stop: Stop,
}

/// The output of a request without speculation, faults and other requests.
pub(super) fn reference_output(setup: &Setup, request: &Request) -> ReferenceOutput {
    let (vocab, n_ctx, total) = (MODEL.vocab(), setup.n_ctx, request.prompt.len());
    let mut output = ReferenceOutput { tokens: Vec::new(), text: Vec::new(), stop: Stop::Limit };
    let mut seen = request.prompt.to_vec();
    let keep = request.options.n_keep.unwrap_or(total).min(n_ctx - 4);
    // A prompt that does not fit drops half of what `n_keep` does not cover, repeatedly.
    while seen.len() >= n_ctx {
        if !setup.ctx_shift {
            output.stop = Stop::Error(Error::new(Code::ContextFull, "does not fit"));
            return output;
        }
        seen.drain(keep..keep + ((n_ctx - keep) / 2).max(1));
    }
    // From here on BOS is kept as well.
    let keep = (keep + usize::from(vocab.adds_bos())).min(n_ctx - 4);
    let mut sampler = Sampler::new(&request.sampling, &**MODEL, request.constraint.clone()).unwrap();
    while request.options.n_predict.is_none_or(|n_predict| output.tokens.len() < n_predict) {
        if seen.len() >= n_ctx {
            // The newest token has not been decoded yet.
            let gone = (seen.len() - 1).saturating_sub(keep) / 2;
            if !setup.ctx_shift || gone == 0 {
                return output;
            }
            seen.drain(keep..keep + gone);
        }
        let hashes: Vec<u64> = seen.iter().map(|token| FakeModel::token_hash(*token, &request.lora)).collect();
        let mut row = setup.target.logits(&hashes, vocab.n_tokens(), vocab.eos().unwrap());
        if let Some(editor) = &request.logits_editor {
            editor.edit(0, &mut row, &seen).unwrap();
        }
        let token = match sampler.sample(&mut row, &seen, output.tokens.len()) {
            Ok(token) => token,
            Err(error) => {
                output.stop = Stop::Error(error);
                return output;
            }
        };
        sampler.accept(token).unwrap();
        seen.push(token);
        output.tokens.push(token);
        if vocab.is_eog(token) {
            output.stop = Stop::Eos;
            return output;
        }
        output.text.extend(vocab.text(token));
        let found = |stop: &String| output.text.windows(stop.len()).position(|window| window == stop.as_bytes());
        if let Some((end, stop)) = request.options.stop.iter().filter_map(|stop| Some((found(stop)?, stop))).min() {
            output.text.truncate(end);
            output.stop = Stop::Word(stop.clone());
            return output;
        }
    }
    output
}
