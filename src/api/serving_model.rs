//! The model that answers a request: the target, or, in a preview, the draft model.

use std::collections::BTreeMap;
use std::sync::Arc;

use once_cell::sync::OnceCell;

use super::request::BiasTarget;
use super::{ChatTemplate, CompletionRequest};
use crate::error::{Code, Error, Result};
use crate::llama::{Model, Token, Vocab};
use crate::session;

/// Whatever a request says of the model, or wants of its vocabulary, is about this one. It holds no server: long
/// prompts are made after the call has returned.
#[derive(Clone)]
pub(super) struct ServingModel {
    pub(super) model: Arc<Model>,
    /// The name that answers give it.
    pub(super) name: String,
    /// Tokens that one request's context may hold.
    pub(super) n_ctx: usize,
    pub(super) ctx_shift: bool,
    pub(super) templates: Arc<ByTools>,
    /// `init`'s chat template.
    pub(super) chat_template: Option<String>,
    /// Whose chat template a model without one has.
    pub(super) target: Arc<Model>,
}

/// The chat templates, parsed when they are first needed.
#[derive(Default)]
pub(super) struct Templates {
    pub(super) target: Arc<ByTools>,
    pub(super) draft: Arc<ByTools>,
}

/// The usual one, and that for requests with tools.
pub(super) type ByTools = [OnceCell<ChatTemplate>; 2];

impl ServingModel {
    pub(super) fn vocab(&self) -> &Vocab {
        self.model.vocab()
    }

    /// `init`'s chat template, or the model's, which may have another one `with_tools`; a draft model without one has the target's.
    ///
    /// # Errors
    /// There is none, or it cannot be parsed.
    pub(super) fn template(&self, with_tools: bool) -> Result<&ChatTemplate> {
        let [usual, for_tools] = self.templates.as_ref();
        if with_tools
            && self.chat_template.is_none()
            && let Some(source) = self.model.tool_template()
        {
            return for_tools.get_or_try_init(|| ChatTemplate::parse(&source));
        }
        usual.get_or_try_init(|| {
            let own = self.chat_template.clone().or_else(|| self.model.chat_template());
            let source = own
                .or_else(|| self.target.chat_template())
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
        } else if too_long && !self.ctx_shift {
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
