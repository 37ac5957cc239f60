//! Completions: from the JSON of a request to the engine's queue, and from the engine's events to the answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use foredraft_base::work::Work;
use once_cell::sync::OnceCell;
use serde_json::Value;

use super::chat::messages;
use super::{chat, constraint, decision};
use crate::api::loaded::local_engine::LoadedEngine as _;
use crate::api::loaded::local_engine::LocalEngine;
use crate::api::loaded::registry::{CompletionRecord, RequestRecord};
use crate::api::prompts::{
    InfillBudget, PreparedPrompt, PreparedTexts, PromptInterrupt, PromptSource, ServedModel, ServingModel,
};
use crate::api::wire::request::{
    CompletionRequest, RequestArguments, UsedValues, generation_settings, identity, parse_request,
};
use crate::engine::{self, Phase, Prepared, Request, RequestOptions};
use crate::error::{Code, Error, Result};
use crate::sampling::SamplingSettings;
use crate::speculative;
use crate::speculative::DrafterKind;
use foredraft_base::prompt_fit;

impl LocalEngine {
    /// Parses a request and submits it to the engine. `is_awaited`: the caller waits for the final response. `announce` gets the record
    /// before the engine has the request. A long prompt is tokenized afterwards, on another thread, unless the caller waits, or the
    /// request asks for the tokens first.
    ///
    /// # Errors
    /// The request is invalid, or the queue is full.
    pub fn enqueue(
        &self,
        request: &[u8],
        arguments: RequestArguments,
        is_awaited: bool,
        announce: &dyn Fn(&Arc<RequestRecord>),
    ) -> Result<Arc<RequestRecord>> {
        let worker = self.worker()?;
        let object = parse_request(request)?;
        let mut request = CompletionRequest::from_object(&object, self.defaults(), arguments)?;
        if !request.speculative.draft_only {
            request.warnings.extend(self.models().self_check.warnings());
        }
        let identity = request.options.place().map_or(0, |_| identity(&object, &request));
        request.log(object);
        let serving = if request.speculative.draft_only { self.draft_only()? } else { self.target() };
        // Also of an encoder, which generates nothing.
        request.set_decision_model(serving.decision().as_deref(), false)?;
        if !worker.generates() {
            return Err(Error::invalid("the model generates no text"));
        }
        request.options.slot.map_or(Ok(()), |slot| self.validate_slot(slot))?;
        request.validate_sessions()?;
        let elapsed = request.options.elapsed;
        let interrupt =
            PromptInterrupt::new(&serving, request.options.timeout.map(|timeout| timeout.saturating_sub(elapsed)));
        let work = interrupt.work();
        let prepared = request.compile_schema(&work);
        let prepared = prepared.and_then(|()| chat::prepare(&mut request, &serving, &interrupt, &work));
        let explained = |error| interrupt.explained_for(error, "the schemas were compiled");
        let chat = prepared.map_err(explained)?;
        let common = Request { identity, ..self.common_request(&request, &serving, &work).map_err(explained)? };
        request.lora = Some(common.lora.iter().copied().enumerate().collect());
        let bias_of = |token| common.sampling.logit_bias.binary_search_by_key(&token, |(token, _)| *token);
        let is_banned = |token| {
            let bias = bias_of(token).ok().and_then(|index| common.sampling.logit_bias.get(index));
            bias.is_some_and(|(_, bias)| *bias == f32::NEG_INFINITY)
        };
        let mut ends = serving.vocab().eog_tokens().peekable();
        let used = UsedValues {
            streams: !is_awaited,
            ignores_eos: ends.peek().is_some() && ends.all(is_banned),
            bans_as_null: request.translation.bans_as_null,
        };
        // Checked first, because `n_cmpl` can be large.
        worker.check_room(request.n_completions(), request.options.is_preparation())?;
        let model = serving.served();
        let mut completions = completion_records(&mut request, &common.sampling, used, &model);
        let source = self.prompt_source(&mut request, &serving, &common, interrupt);
        let mut requests = engine_requests(&request, &serving, &common, completions.len());
        let chat_len = chat.as_ref().map_or(0, |chat| chat.prompt_len);
        let is_prepared = is_awaited || request.translation.is_prepared_first || source.is_short(chat_len);
        let n_cmpl = request.n_cmpl;
        if is_prepared {
            let PreparedTexts { prompts, questions, prediction } = source.prepare()?;
            let prompts = for_each_completion(prompts, n_cmpl);
            let questions = decision::questions(&request.questions, questions, &serving);
            for ((completion, request), prompt) in completions.iter_mut().zip(&mut requests).zip(prompts) {
                request.prompt = Arc::clone(&prompt.tokens);
                request.media = Arc::clone(&prompt.media);
                request.questions = request.questions.take().or(questions.clone());
                if let Some(settings) = &mut request.speculative {
                    settings.prediction.clone_from(&prediction);
                }
                completion.expected_cached = (!is_awaited).then(|| self.expected_cached(request, serving.n_ctx));
                completion.prompt = OnceCell::with_value(prompt);
            }
        }
        let reservation = worker.reserve(requests, is_prepared)?;
        let messages = messages(&request, chat.as_ref().map(|chat| &chat.reader), completions.len());
        let handle = Arc::clone(reservation.handle());
        let record = Arc::new(RequestRecord::new(handle, is_awaited, request, model, completions, messages));
        announce(&record);
        let superseded = record.request.options.place().and_then(|place| self.preparations.supersede(place, &record));
        superseded.map(|superseded| worker.cancel(&superseded));
        reservation.send()?;
        if !is_prepared {
            let handle = Arc::clone(&record.handle);
            source.interrupt.end_with(Arc::new(move || handle.phase() == Phase::Finished));
            let (prepared, sender) = (Arc::clone(&record), worker.prepared_sender());
            self.preparer.start(Arc::clone(&record.handle), move || {
                let prompts = prepare(&source, n_cmpl, &prepared);
                // The worker ends it at its own deadline, which is a moment later: as timed out, not as failed.
                if !(prompts.is_err() && source.interrupt.is_overdue()) {
                    sender.send(&prepared.handle, prompts);
                }
            });
        }
        Ok(record)
    }

    /// Moves what the prompts need out of the request.
    fn prompt_source(
        &self,
        request: &mut CompletionRequest,
        serving: &ServingModel,
        common: &Request,
        interrupt: PromptInterrupt,
    ) -> PromptSource {
        // Chats leave room for the choices.
        let questions = || common.questions.iter().flat_map(|questions| questions.iter());
        let longest = questions().flat_map(|question| &question.choices).map(Vec::len).max();
        PromptSource {
            has_results: request.has_results(),
            infill_budget: InfillBudget {
                n_ctx: serving.n_ctx,
                n_batch: self.config().context.n_batch as usize,
                n_predict: longest.or(request.options.n_predict),
                spm: self.defaults().spm_infill,
            },
            interrupt,
            n_keep: request.options.n_keep,
            has_grammar: request.grammar.is_some(),
            questions: Arc::clone(&request.questions),
            prediction: request.prediction.take().filter(|_| common.speculative.is_some()),
            inputs: request.take_inputs(),
            serving: serving.clone(),
        }
    }

    /// How many tokens of a request's prompt are cached before it has a slot: an estimate from the free slot with the longest common
    /// prefix.
    fn expected_cached(&self, request: &Request, n_ctx: usize) -> usize {
        let Request { prompt, options, lora, draft_only, .. } = request;
        let n_keep = prompt_fit::effective_n_keep(options.n_keep, prompt.len(), n_ctx);
        let dropped = prompt_fit::prompt_truncation(prompt.len(), n_keep, n_ctx);
        let mut prompt = prompt.to_vec();
        if let Some(range) = dropped {
            prompt.drain(range);
        }
        let is_usable = |(index, slot): &(usize, engine::SlotStatus)| {
            options.cache_prompt
                && options.n_beams <= 1
                && options.slot.is_none_or(|only| only == *index)
                && slot.lora == *lora
                // The status does not include the draft model's slots.
                && !draft_only
        };
        let slots = self.engine_status().slots.into_iter().enumerate().filter(is_usable);
        let caches = slots.filter_map(|(_, slot)| slot.cache);
        let common = caches.map(|cache| prompt_fit::common_prefix(&cache, &prompt)).max().unwrap_or(0);
        common.min(prompt.len().saturating_sub(1))
    }

    /// The engine's request, as far as all completions share it: without prompt and seed. `work` counts the steps.
    fn common_request(&self, request: &CompletionRequest, serving: &ServingModel, work: &Work) -> Result<Request> {
        let logit_bias = serving.logit_bias(request)?;
        let sampling = SamplingSettings { logit_bias, ..request.sampling.clone() };
        let preserved_tokens = constraint::preserved_tokens(request, serving)?;
        let post_sampling_probs = request.options.post_sampling_probs && sampling.n_probs > 0;
        Ok(Request {
            prompt: Arc::default(),
            media: Arc::default(),
            prefix: Arc::default(),
            identity: 0,
            sampling,
            logits_editor: request
                .logits_callback
                .then(|| self.logits_editor(request.isolated.host_number))
                .transpose()?,
            questions: request
                .choices
                .as_ref()
                .map(|choices| decision::choices(choices, request, serving))
                .transpose()?,
            speculative: self.speculation(request)?,
            constraint: constraint::compile(request, serving, &preserved_tokens, work)?,
            lora: serving.lora_scales(request.lora.as_deref())?,
            draft_only: request.speculative.draft_only,
            compare: request.speculative.compare,
            options: RequestOptions { post_sampling_probs, preserved_tokens, ..request.options.clone() },
        })
    }

    /// The settings of speculation, without the predicted output, which is tokenized with the prompts.
    fn speculation(&self, request: &CompletionRequest) -> Result<Option<speculative::Settings>> {
        let Some(mut settings) = request.speculative.settings.clone() else { return Ok(None) };
        // As part of `auto`.
        if request.grammar.is_some() && settings.sources == speculative::Settings::default().sources {
            settings.sources.insert(0, DrafterKind::Grammar);
        }
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

/// Tokenizes the prompts of a queued request, on a thread of the preparer.
fn prepare(source: &PromptSource, n_cmpl: usize, record: &RequestRecord) -> Result<Prepared> {
    // If a bug panics here, the request ends with an error instead of waiting forever.
    let prepared = catch_unwind(AssertUnwindSafe(|| source.prepare()));
    let panicked = |_| Err(Error::new(Code::Internal, "a bug in the library: the preparation of the prompt panicked"));
    let PreparedTexts { prompts, questions, prediction } = prepared.unwrap_or_else(panicked)?;
    let questions = decision::questions(&source.questions, questions, &source.serving);
    let prompts = for_each_completion(prompts, n_cmpl);
    let tokens = prompts.iter().map(|prompt| Arc::clone(&prompt.tokens)).collect();
    let media = prompts.iter().map(|prompt| Arc::clone(&prompt.media)).collect();
    record.set_prompts(prompts);
    Ok(Prepared { prompts: tokens, media, questions, prediction })
}

/// The prompt of each completion, in the order of [`completion_records`].
fn for_each_completion(prompts: Vec<PreparedPrompt>, n_cmpl: usize) -> Vec<Arc<PreparedPrompt>> {
    let copies = |prompt| std::iter::repeat_n(Arc::new(prompt), n_cmpl);
    prompts.into_iter().flat_map(copies).collect()
}

/// The completions of a request, `n_cmpl` of each prompt, without their prompts. Each has `sampling` with a seed of its own.
pub fn completion_records(
    request: &mut CompletionRequest,
    sampling: &SamplingSettings,
    used: UsedValues,
    model: &ServedModel,
) -> Vec<CompletionRecord> {
    let n_ctx = u32::try_from(model.n_ctx).unwrap_or(u32::MAX);
    let given: Vec<Arc<Value>> = request.inputs.all.iter_mut().map(|input| Arc::new(input.given.take())).collect();
    let record = |number: usize| {
        let sampling = SamplingSettings { seed: request.seed(number), ..sampling.clone() };
        CompletionRecord {
            is_copy: !number.is_multiple_of(request.n_cmpl),
            prompt: OnceCell::new(),
            expected_cached: None,
            given: given.get(number / request.n_cmpl).map(Arc::clone).unwrap_or_default(),
            settings: generation_settings(request, &sampling, used, n_ctx, &model.name),
        }
    };
    (0..request.n_completions()).map(record).collect()
}

/// The engine's requests for the `n` completions of a request, without their prompts.
fn engine_requests(request: &CompletionRequest, serving: &ServingModel, common: &Request, n: usize) -> Vec<Request> {
    let of_completion = |number: usize| {
        // As in llama-server, further completions run in any free slot, and copy the cells of the first one's.
        let is_first = number.is_multiple_of(request.n_cmpl);
        let options = RequestOptions {
            slot: common.options.slot.filter(|_| is_first),
            session_load: common.options.session_load.clone().filter(|_| is_first),
            ..common.options.clone()
        };
        let sampling = SamplingSettings { seed: request.seed(number), ..common.sampling.clone() };
        // A token that is not in the vocabulary is of another model.
        let prefix = request.isolated.prefixes.get(number);
        let prefix = prefix.filter(|tokens| tokens.iter().all(|token| serving.vocab().contains(*token)));
        let prefix = prefix.map_or_else(Arc::default, |tokens| Arc::from(tokens.as_slice()));
        Request { prefix, sampling, options, ..common.clone() }
    };
    (0..n).map(of_completion).collect()
}
