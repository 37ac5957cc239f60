//! From a request's document to texts in the engine's queue.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::fields::parse_object;
use super::infill::Room;
use super::registry::{Record, Text};
use super::request::{CompletionRequest, generation_settings};
use super::serving_model::ServingModel;
use super::{Endpoint, Server, prompts, session};
use crate::engine::{Options, Request};
use crate::error::{Error, Result};
use crate::grammar::Grammar;
use crate::llama::Token;
use crate::llama::log::{self, Level};
use crate::sampling;
use crate::speculative::{self, DrafterKind};

/// A prompt's tokens, and the prompt as the answer shows it.
type Prompt = (Arc<[Token]>, Value);

impl Server {
    /// Parses a request, makes tokens of its prompts and hands it to the engine. `awaited`: the caller waits for all of it.
    pub(super) fn enqueue(&self, family: Endpoint, request: &[u8], awaited: bool) -> Result<Arc<Record>> {
        let engine = self.engine()?;
        let object = parse_object(request)?;
        let mut request = CompletionRequest::from_object(&object, family, self.defaults())?;
        if request.reply.debug {
            log::always(Level::Info, &format!("request: {}", Value::Object(object)));
        }
        let serving = self.serving(request.speculative.draft_only)?;
        if !engine.generates() {
            return Err(Error::invalid("the model generates no text"));
        }
        request.options.slot.map_or(Ok(()), |slot| self.check_slot(slot))?;
        session::check(&request)?;
        let alike = self.without_prompt(&request, &serving)?;
        request.lora = Some(alike.lora.iter().copied().enumerate().collect());
        // Before anything is made so many times.
        engine.check_room(request.inputs.all.len().saturating_mul(request.n_cmpl))?;
        let prompts = self.prompts(&request, &serving)?;
        let (texts, requests) = texts(&request, &serving, &alike, prompts).into_iter().unzip();
        let record = |handle: &_| Record {
            handle: Arc::clone(handle),
            family,
            awaited,
            texts,
            has_results: request.has_results(),
            model: serving.name,
            n_ctx: serving.n_ctx,
            draft_only: alike.draft_only,
            n_keep: request.options.n_keep,
            with_probs: alike.sampling.n_probs > 0,
            post_sampling_probs: request.options.post_sampling_probs,
            reply: request.reply,
            speculation: alike.speculative.map(|settings| (request.speculative.kind(), settings.verify)),
            compare: alike.compare,
            not_speculating: request.speculative.disabled.map(str::to_owned),
            warnings: request.warnings,
        };
        engine.submit(requests, |handle| self.remember(record(handle)))
    }

    /// What all texts of a request have in common.
    fn without_prompt(&self, request: &CompletionRequest, serving: &ServingModel) -> Result<Request> {
        let logit_bias = serving.logit_bias(request)?;
        let sampling = sampling::SamplingSettings { logit_bias, ..request.sampling.clone() };
        let post_sampling_probs = request.options.post_sampling_probs && sampling.n_probs > 0;
        Ok(Request {
            prompt: Arc::default(),
            prompt_of: None,
            sampling,
            speculative: self.speculation(request)?,
            grammar: request.grammar.as_ref().map(|text| Grammar::new(serving.model, text)).transpose()?,
            lora: serving.lora_scales(request.lora.as_deref())?,
            draft_only: request.speculative.draft_only,
            compare: request.speculative.compare,
            options: Options { post_sampling_probs, ..request.options.clone() },
        })
    }

    fn prompts(&self, request: &CompletionRequest, serving: &ServingModel) -> Result<Vec<Prompt>> {
        let room = Room {
            n_ctx: serving.n_ctx,
            n_batch: self.config().context.n_batch as usize,
            n_predict: request.options.n_predict,
            spm: self.defaults().spm_infill,
        };
        let prompt = |(place, input)| {
            let name = if request.inputs.listed { format!("prompts[{place}]") } else { "prompt".to_owned() };
            let (tokens, shown) = prompts::tokens(serving, &name, input, &room)?;
            if request.has_results() {
                serving.check_prompt(&name, &tokens, request.options.n_keep)?;
            }
            Ok((tokens.into(), shown))
        };
        request.inputs.all.iter().enumerate().map(prompt).collect()
    }

    /// How the engine is to speculate, with the predicted output in tokens.
    fn speculation(&self, request: &CompletionRequest) -> Result<Option<speculative::Settings>> {
        let Some(mut settings) = request.speculative.settings.clone() else { return Ok(None) };
        let vocab = self.models().target.vocab();
        if let Some(text) = &request.prediction {
            let tokens = vocab.tokenize(text.as_bytes(), false, true)?;
            settings.prediction = Some(Arc::new(tokens.into()));
            settings.sources.insert(0, DrafterKind::Prediction);
        }
        let file = |name, path: &Option<PathBuf>| {
            path.as_ref().map(|path| self.cache_files.get(name, path, vocab.n_tokens())).transpose()
        };
        let (fixed, dynamic) = request.speculative.caches();
        settings.lookup_static = file("speculative.lookup_cache_static", &fixed)?;
        settings.lookup_dynamic = file("speculative.lookup_cache_dynamic", &dynamic)?;
        Ok(Some(settings))
    }
}

/// Each text as the answers need it and as the engine does: `n_cmpl` of each prompt.
fn texts(
    request: &CompletionRequest,
    serving: &ServingModel,
    alike: &Request,
    prompts: Vec<Prompt>,
) -> Vec<(Text, Request)> {
    let n_ctx = u32::try_from(serving.n_ctx).unwrap_or(0);
    let mut texts = Vec::new();
    for (place, (prompt, shown_prompt)) in prompts.into_iter().enumerate() {
        let leader = texts.len();
        for copy in 0..request.n_cmpl {
            let sampling = sampling::SamplingSettings { seed: request.seed(place, copy), ..alike.sampling.clone() };
            // As llama-server: the further texts run where there is room. They copy the first one's slot.
            let is_first = copy == 0;
            let options = Options {
                slot: alike.options.slot.filter(|_| is_first),
                session_load: alike.options.session_load.clone().filter(|_| is_first),
                ..alike.options.clone()
            };
            let text = Text {
                prompt: Arc::clone(&prompt),
                shown_prompt: shown_prompt.clone(),
                lora: alike.lora.clone(),
                reuses: options.cache_prompt && options.n_beams <= 1,
                slot: options.slot,
                settings: generation_settings(request, &sampling, n_ctx, &serving.name),
            };
            let prompt_of = (!is_first && options.cache_prompt).then_some(leader);
            texts.push((text, Request { prompt: Arc::clone(&prompt), prompt_of, sampling, options, ..alike.clone() }));
        }
    }
    texts
}
