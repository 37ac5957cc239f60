//! What the script alone says: one token after the other, with nothing but the list of those that it sees.

use super::{MODEL, Setup};
use crate::engine::{Request, Stop};
use crate::error::{Code, Error};
use crate::llama::Token;
use crate::llama::fake::FakeModel;
use crate::sampling::Sampler;

/// A text, and why it ends.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) tokens: Vec<Token>,
    pub(super) text: Vec<u8>,
    pub(super) stop: Stop,
}

/// What becomes of a request that nothing disturbs.
pub(super) fn tell(setup: &Setup, request: &Request) -> Told {
    let (vocab, n_ctx, total) = (MODEL.vocab(), setup.n_ctx, request.prompt.len());
    let mut told = Told { tokens: Vec::new(), text: Vec::new(), stop: Stop::Limit };
    let mut seen = request.prompt.to_vec();
    let keep = request.options.n_keep.unwrap_or(total).min(n_ctx - 4);
    // A prompt leaves out half of what is not kept as often as it must.
    while seen.len() >= n_ctx {
        if !setup.ctx_shift {
            told.stop = Stop::Error(Error::new(Code::ContextFull, "does not fit"));
            return told;
        }
        seen.drain(keep..keep + ((n_ctx - keep) / 2).max(1));
    }
    // From then on BOS counts among what is kept.
    let keep = (keep + usize::from(vocab.adds_bos())).min(n_ctx - 4);
    let mut sampler = Sampler::new(&request.sampling, vocab, request.grammar.clone()).unwrap();
    while request.options.n_predict.is_none_or(|n_predict| told.tokens.len() < n_predict) {
        if seen.len() >= n_ctx {
            // The newest token is not in the context yet.
            let gone = (seen.len() - 1).saturating_sub(keep) / 2;
            if !setup.ctx_shift || gone == 0 {
                return told;
            }
            seen.drain(keep..keep + gone);
        }
        let sights: Vec<u64> = seen.iter().map(|token| FakeModel::sight(*token, &request.lora)).collect();
        let mut row = setup.target.logits(&sights, vocab.n_tokens(), vocab.eos().unwrap());
        let token = match sampler.sample(&mut row, &seen, told.tokens.len()) {
            Ok(token) => token,
            Err(error) => {
                told.stop = Stop::Error(error);
                return told;
            }
        };
        sampler.accept(token).unwrap();
        seen.push(token);
        told.tokens.push(token);
        if vocab.is_eog(token) {
            told.stop = Stop::Eos;
            return told;
        }
        told.text.extend(vocab.text(token));
        let found = |stop: &String| told.text.windows(stop.len()).position(|window| window == stop.as_bytes());
        if let Some((end, stop)) = request.options.stop.iter().filter_map(|stop| Some((found(stop)?, stop))).min() {
            told.text.truncate(end);
            told.stop = Stop::Word(stop.clone());
            return told;
        }
    }
    told
}
