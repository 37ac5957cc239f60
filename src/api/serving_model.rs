//! The model that answers a request: the target, or, in a preview, the draft model.

use std::collections::BTreeMap;
use std::sync::Arc;

use once_cell::sync::OnceCell;

use super::request::BiasTarget;
use super::{ChatTemplate, CompletionRequest, Server};
use crate::error::{Code, Error, Result};
use crate::llama::{Model, Token, Vocab};
use crate::session;

/// Whatever a request says of the model, or wants of its vocabulary, is about this one.
pub(super) struct ServingModel<'a> {
    pub(super) model: &'a Arc<Model>,
    /// The name that answers give it.
    pub(super) name: String,
    /// Tokens that one request's context may hold.
    pub(super) n_ctx: usize,
    templates: &'a ByTools,
    server: &'a Server,
}

impl Server {
    /// The target.
    pub(super) fn target(&self) -> ServingModel<'_> {
        let models = self.models();
        let templates = &self.templates.target;
        ServingModel { model: &models.target, name: self.alias(), n_ctx: models.n_ctx, templates, server: self }
    }

    /// The draft model, as it answers alone.
    ///
    /// # Errors
    /// There is none, or none that shares the target's vocabulary.
    pub(super) fn draft_only(&self) -> Result<ServingModel<'_>> {
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
        let name = params.path.to_string_lossy().into_owned();
        Ok(ServingModel { model, name, n_ctx: report.n_ctx, templates: &self.templates.draft, server: self })
    }

    /// The one or the other.
    ///
    /// # Errors
    /// As [`Server::preview`].
    pub(super) fn serving(&self, draft_only: bool) -> Result<ServingModel<'_>> {
        if draft_only { self.draft_only() } else { Ok(self.target()) }
    }
}

/// The chat templates, parsed when they are first needed.
#[derive(Default)]
pub(super) struct Templates {
    target: ByTools,
    draft: ByTools,
}

/// The usual one, and that for requests with tools.
type ByTools = [OnceCell<ChatTemplate>; 2];

impl<'a> ServingModel<'a> {
    pub(super) fn vocab(&self) -> &'a Vocab {
        self.model.vocab()
    }

    /// `init`'s chat template, or the model's, which may have another one `with_tools`; a draft model without one has the target's.
    ///
    /// # Errors
    /// There is none, or it cannot be parsed.
    pub(super) fn template(&self, with_tools: bool) -> Result<&'a ChatTemplate> {
        let [usual, for_tools] = self.templates;
        if with_tools
            && self.server.chat_template().is_none()
            && let Some(source) = self.model.tool_template()
        {
            return for_tools.get_or_try_init(|| ChatTemplate::parse(&source));
        }
        usual.get_or_try_init(|| {
            let own = self.server.chat_template().or_else(|| self.model.chat_template());
            let source = own
                .or_else(|| self.server.models().target.chat_template())
                .ok_or_else(|| Error::invalid("messages: the model has no chat template; give chat_template"))?;
            ChatTemplate::parse(&source)
        })
    }

    /// The scale of each LoRA adapter: `init`'s, or those asked for, which turn off all others.
    ///
    /// # Errors
    /// There is no such adapter.
    pub(super) fn lora_scales(&self, asked: Option<&[(usize, f32)]>) -> Result<Vec<f32>> {
        let mut scales = self.model.lora_scales();
        let Some(asked) = asked else { return Ok(scales) };
        scales.fill(0.0);
        let n = scales.len();
        for (index, (id, scale)) in asked.iter().enumerate() {
            let place = scales.get_mut(*id);
            *place.ok_or_else(|| {
                Error::invalid(format!("lora[{index}].id: there is no adapter {id}, init loaded {n}"))
            })? = *scale;
        }
        Ok(scales)
    }

    /// What the engine would refuse: a request for several texts shall have all of them or none.
    ///
    /// # Errors
    /// The prompt is empty, or does not fit and may not be shortened.
    pub(super) fn check_prompt(&self, name: &str, prompt: &[Token], n_keep: Option<usize>) -> Result<()> {
        let n_ctx = self.n_ctx;
        let too_long =
            session::prompt_truncation(prompt.len(), session::effective_n_keep(n_keep, prompt.len(), n_ctx), n_ctx)
                .is_some();
        if prompt.is_empty() {
            Err(Error::invalid(format!("{name}: has no tokens, and the model begins texts with none")))
        } else if too_long && !self.server.config().ctx_shift {
            let n = prompt.len();
            let message = format!("{name}: {n} tokens do not fit into the context of {n_ctx}, which may not shift");
            Err(Error::new(Code::ContextFull, message))
        } else {
            Ok(())
        }
    }

    /// Biases by token, one entry each, sorted. A text's bias goes to each of its tokens, as in llama-server; and what the model
    /// is not to say is banned, whatever the request wants.
    ///
    /// # Errors
    /// A token is none of the vocabulary.
    pub(super) fn logit_bias(&self, request: &CompletionRequest) -> Result<Vec<(Token, f32)>> {
        let vocab = self.vocab();
        let mut biases = BTreeMap::new();
        if request.ignore_eos {
            biases.extend(vocab.eog_tokens().map(|token| (token, f32::NEG_INFINITY)));
        }
        for entry in &request.logit_bias {
            match &entry.target {
                BiasTarget::Token(token) if vocab.contains(*token) => {
                    biases.insert(*token, entry.bias);
                }
                BiasTarget::Token(token) => {
                    let n = vocab.n_tokens();
                    return Err(Error::invalid(format!("logit_bias: {token} is not in the vocabulary of {n} tokens")));
                }
                BiasTarget::Text(text) => {
                    let tokens = vocab.tokenize(text.as_bytes(), false, false)?;
                    biases.extend(tokens.into_iter().map(|token| (token, entry.bias)));
                }
            }
        }
        biases.extend(vocab.suppressed_tokens().iter().map(|token| (*token, f32::NEG_INFINITY)));
        Ok(biases.into_iter().collect())
    }
}
