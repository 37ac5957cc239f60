//! From a request's document to texts in the engine's queue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use once_cell::sync::OnceCell;
use serde_json::{Map, Value};

use super::fields::parse_object;
use super::infill::Room;
use super::prompts::PromptSource;
use super::registry::{PreparedPrompt, Record, Reported, Text};
use super::request::{CompletionRequest, generation_settings, tolerate};
use super::serving_model::{ByTools, ServingModel};
use super::{Endpoint, Server, session};
use crate::engine::{Prepared, Request, RequestOptions};
use crate::error::{Code, Error, Result};
use crate::grammar::Grammar;
use crate::llama::Model;
use crate::llama::log::{self, Level};
use crate::sampling;
use crate::speculative::{self, DrafterKind, Predicted};

impl Server {
    /// Parses a request and hands it to the engine. Long prompts become tokens after it was queued, on another thread, unless
    /// it is `awaited`: then the caller waits for all of it.
    pub(super) fn enqueue(&self, family: Endpoint, request: &[u8], awaited: bool) -> Result<Arc<Record>> {
        let engine = self.engine()?;
        let mut object = parse_object(request)?;
        let tolerated =
            if family.is_old() { tolerate(&mut object, self.target().vocab().n_tokens()) } else { Vec::new() };
        if family == Endpoint::Completion && awaited {
            self.add_default_beams(&mut object);
        }
        let mut request = CompletionRequest::from_object(&object, family, self.defaults())?;
        request.warnings.splice(..0, tolerated);
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
        let (texts, mut requests): (Vec<Text>, Vec<Request>) =
            texts(&mut request, &serving, &alike).into_iter().unzip();
        let source = self.prompt_source(&mut request, &serving, &alike);
        let is_prepared = awaited || source.is_short();
        let n_cmpl = request.n_cmpl;
        let record = |handle: &_| Record {
            handle: Arc::clone(handle),
            family,
            awaited,
            texts,
            is_prepared,
            has_results: source.has_results,
            model: serving.name.clone(),
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
            reported: Reported::default(),
        };
        if is_prepared {
            let (prompts, prediction) = source.prepare()?;
            let prompts = for_each_text(prompts, n_cmpl);
            for (request, prompt) in requests.iter_mut().zip(&prompts) {
                request.prompt = Arc::clone(&prompt.tokens);
                if let Some(settings) = &mut request.speculative {
                    settings.prediction.clone_from(&prediction);
                }
            }
            return engine.submit(requests, |handle| {
                let record = record(handle);
                record.set_prompts(prompts);
                self.remember(record)
            });
        }
        let record = engine.submit_unprepared(requests, |handle| self.remember(record(handle)))?;
        let (prepared, sender) = (Arc::clone(&record), engine.prepared_sender());
        self.preparer.start(Arc::clone(&record.handle), move || {
            sender.send(&prepared.handle, prepare(&source, n_cmpl, &prepared));
        });
        Ok(record)
    }

    /// The model that answers unless the request says otherwise.
    pub(super) fn target(&self) -> ServingModel {
        let models = self.models();
        self.serving_model(&models.target, self.alias(), models.n_ctx, &self.templates.target)
    }

    /// The draft model, as it answers alone.
    ///
    /// # Errors
    /// There is none, or none that shares the target's vocabulary.
    fn draft_only(&self) -> Result<ServingModel> {
        let refused = |why: &str| Error::invalid(format!("speculative.model: {why}"));
        let (models, config) = (self.models(), self.config());
        let ((Some(model), Some(report)), Some((params, _))) = ((&models.draft, &models.compatibility), &config.draft)
        else {
            return Err(refused("there is no draft model; init takes one as model_draft"));
        };
        if let Some(why) = &report.reason {
            return Err(refused(&format!("the draft model is not used: {why}")));
        }
        if report.translates {
            return Err(refused("the draft model's vocabulary is not the target's, so it drafts and does not answer"));
        }
        let name = params.source.to_string();
        Ok(self.serving_model(model, name, report.n_ctx, &self.templates.draft))
    }

    fn serving(&self, draft_only: bool) -> Result<ServingModel> {
        if draft_only { self.draft_only() } else { Ok(self.target()) }
    }

    fn serving_model(&self, model: &Arc<Model>, name: String, n_ctx: usize, templates: &Arc<ByTools>) -> ServingModel {
        ServingModel {
            model: Arc::clone(model),
            name,
            n_ctx,
            ctx_shift: self.config().ctx_shift,
            templates: Arc::clone(templates),
            chat_template: self.chat_template(),
            target: Arc::clone(&self.models().target),
        }
    }

    /// What the prompts are made of. The request keeps the rest.
    fn prompt_source(&self, request: &mut CompletionRequest, serving: &ServingModel, alike: &Request) -> PromptSource {
        PromptSource {
            has_results: request.has_results(),
            room: Room {
                n_ctx: serving.n_ctx,
                n_batch: self.config().context.n_batch as usize,
                n_predict: request.options.n_predict,
                spm: self.defaults().spm_infill,
            },
            n_keep: request.options.n_keep,
            prediction: request.prediction.take().filter(|_| alike.speculative.is_some()),
            inputs: request.take_inputs(),
            serving: serving.clone(),
        }
    }

    /// `init`'s `n_beams`, which the old server used in `get_completion` alone, where the request says nothing about beams or a
    /// grammar.
    fn add_default_beams(&self, object: &mut Map<String, Value>) {
        let beams = self.defaults().n_beams;
        let says = ["n_beams", "grammar", "json_schema"].iter().any(|key| object.contains_key(*key));
        if beams > 1 && !says {
            object.insert("n_beams".to_owned(), beams.into());
        }
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
            grammar: request.grammar.as_ref().map(|text| Grammar::new(&serving.model, text)).transpose()?,
            lora: serving.lora_scales(request.lora.as_deref())?,
            draft_only: request.speculative.draft_only,
            compare: request.speculative.compare,
            options: RequestOptions { post_sampling_probs, ..request.options.clone() },
        })
    }

    /// How the engine is to speculate. The predicted output follows with the prompts.
    fn speculation(&self, request: &CompletionRequest) -> Result<Option<speculative::Settings>> {
        let Some(mut settings) = request.speculative.settings.clone() else { return Ok(None) };
        if request.prediction.is_some() {
            settings.sources.insert(0, DrafterKind::Prediction);
        }
        let n_tokens = self.models().target.vocab().n_tokens();
        let file = |name, path: &Option<PathBuf>| {
            path.as_ref().map(|path| self.cache_files.get(name, path, n_tokens)).transpose()
        };
        let (fixed, dynamic) = request.speculative.caches();
        settings.lookup_static = file("speculative.lookup_cache_static", &fixed)?;
        settings.lookup_dynamic = file("speculative.lookup_cache_dynamic", &dynamic)?;
        Ok(Some(settings))
    }
}

/// Makes the prompts of a request that is queued, on the thread for that.
fn prepare(source: &PromptSource, n_cmpl: usize, record: &Record) -> Result<Prepared> {
    // A defect must end the request, not leave it waiting.
    let prepared = catch_unwind(AssertUnwindSafe(|| source.prepare()));
    let panicked =
        |_| Err(Error::new(Code::Internal, "a defect of the library: the preparation of the prompt panicked"));
    let (prompts, prediction): (_, Option<Arc<Predicted>>) = prepared.unwrap_or_else(panicked)?;
    let prompts = for_each_text(prompts, n_cmpl);
    let tokens = prompts.iter().map(|prompt| Arc::clone(&prompt.tokens)).collect();
    record.set_prompts(prompts);
    Ok(Prepared { prompts: tokens, prediction })
}

/// The prompt of each text, in the order of [`texts`].
fn for_each_text(prompts: Vec<PreparedPrompt>, n_cmpl: usize) -> Vec<Arc<PreparedPrompt>> {
    let copies = |prompt| std::iter::repeat_n(Arc::new(prompt), n_cmpl);
    prompts.into_iter().flat_map(copies).collect()
}

/// Each text as the answers need it and as the engine does, without the prompts: `n_cmpl` of each prompt.
fn texts(request: &mut CompletionRequest, serving: &ServingModel, alike: &Request) -> Vec<(Text, Request)> {
    let n_ctx = u32::try_from(serving.n_ctx).unwrap_or(0);
    let mut texts = Vec::new();
    for place in 0..request.inputs.all.len() {
        let given = request.inputs.all.get_mut(place).map(|input| Arc::new(input.given.take())).unwrap_or_default();
        let leader = texts.len();
        for copy in 0..request.n_cmpl {
            let sampling = sampling::SamplingSettings { seed: request.seed(place, copy), ..alike.sampling.clone() };
            // As llama-server: the further texts run where there is room. They copy the first one's slot.
            let is_first = copy == 0;
            let options = RequestOptions {
                slot: alike.options.slot.filter(|_| is_first),
                session_load: alike.options.session_load.clone().filter(|_| is_first),
                ..alike.options.clone()
            };
            let text = Text {
                prompt: OnceCell::new(),
                given: Arc::clone(&given),
                lora: alike.lora.clone(),
                reuses: options.cache_prompt && options.n_beams <= 1,
                slot: options.slot,
                settings: generation_settings(request, &sampling, n_ctx, &serving.name),
            };
            let prompt_of = (!is_first && options.cache_prompt).then_some(leader);
            texts.push((text, Request { prompt_of, sampling, options, ..alike.clone() }));
        }
    }
    texts
}
