//! The model that generates a request's completions: the target, or the draft model in draft-only mode.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use foredraft_jinja::StopSignal;
use once_cell::sync::OnceCell;

use crate::api::prompts::chat_format::{KnownTemplate, RequestTemplates};
use crate::api::wire::fields::show;
use crate::api::wire::request::{AskedQuestion, BiasTarget, Choices, CompletionRequest, Piece};
use crate::error::{Code, Error, Result};
use crate::llama::{MediaCache, Model, Token, TokenPieces, Vocab};
use foredraft_base::prompt_fit;

/// The chat template of models that have none, as in llama-server.
const FALLBACK_TEMPLATE: &str = "chatml";

/// The model, with what depends on it: vocabulary, chat templates, LoRA adapters. It does not refer to the engine, because long prompts are
/// prepared after the submitting call has returned.
#[derive(Clone)]
pub struct ServingModel {
    pub model: Arc<Model>,
    /// The name in answers.
    pub name: String,
    /// The context length of one request, in tokens.
    pub n_ctx: usize,
    pub ctx_shift: bool,
    pub templates: Arc<TemplatesByTools>,
    /// The load's chat template.
    pub chat_template: Option<String>,
    /// The pictures and sounds that the model takes. `None`: it takes none.
    pub media: Option<Arc<MediaCache>>,
    /// The engine is being unloaded.
    pub stopping: Arc<AtomicBool>,
    /// The target. A draft model without a chat template uses the target's.
    pub target: Arc<Model>,
}

/// The tokens of a question between its state and its answer, and those of each answer.
pub type QuestionTokens = (Vec<Token>, Vec<Vec<Token>>);

/// The text around a question.
#[derive(Debug, Default)]
pub struct QuestionFrame {
    /// Between the state and the question.
    pub before: &'static str,
    /// Between the question and its answer: of the chat template.
    pub text: String,
    /// The template's marks in it that are no control tokens.
    pub marks: Vec<Token>,
}

/// The models' chat templates: the target's parsed at load, the draft model's on first use.
#[derive(Default)]
pub struct ChatTemplates {
    pub target: Arc<TemplatesByTools>,
    pub draft: Arc<TemplatesByTools>,
}

/// A model's chat template for requests without tools, and for requests with tools.
#[derive(Default)]
pub struct TemplatesByTools {
    own: [OnceCell<Result<Arc<KnownTemplate>>>; 2],
    of_requests: RequestTemplates,
}

/// A model that generates, as its answers need to know it.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedModel {
    /// Its name in answers.
    pub name: String,
    /// The context length of one request, in tokens.
    pub n_ctx: usize,
    pub pieces: Arc<TokenPieces>,
    /// The type of a native decision model, as its file has it.
    pub decision: Option<String>,
}

impl ServingModel {
    /// The model, as answers need to know it.
    pub fn served(&self) -> ServedModel {
        let pieces = Arc::clone(self.vocab().pieces());
        ServedModel { name: self.name.clone(), n_ctx: self.n_ctx, pieces, decision: self.decision() }
    }

    /// The type of a native decision model, as its file has it.
    pub fn decision(&self) -> Option<String> {
        self.model.metadata_of_kind("decision.type")
    }

    pub fn vocab(&self) -> &Vocab {
        self.model.vocab()
    }

    /// Tokenizes pieces, which are strings and token ids, and concatenates the tokens. Error messages call the pieces `name`. With
    /// `add_special`, the special tokens at the beginning of a text (BOS) are added if the first piece is text.
    ///
    /// # Errors
    /// A text is too long, or a token is not in the vocabulary.
    pub fn tokenize(&self, name: &str, pieces: &[Piece], add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        let vocab = self.vocab();
        let mut tokens = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Text(text) => {
                    let (text, add_special) = (text.as_bytes(), add_special && index == 0);
                    tokens.extend(match parse_special {
                        true => vocab.tokenize(text, add_special, true)?,
                        false => vocab.tokenize_data(text, add_special)?,
                    });
                }
                Piece::Token(token) if vocab.contains(*token) => tokens.push(*token),
                Piece::Token(token) => {
                    return Err(Error::invalid(format!(
                        "{name}[{index}]: token {token} is not in the vocabulary of {} tokens",
                        vocab.n_tokens()
                    )));
                }
            }
        }
        Ok(tokens)
    }

    /// The tokens of each choice, as the model would continue a text with it: without a space before its first word that is not in it.
    ///
    /// # Errors
    /// The vocabulary has no tokens for a choice.
    pub fn choice_tokens(&self, choices: &Choices) -> Result<Vec<Vec<Token>>> {
        let tokens = |(index, text): (usize, &str)| {
            let refused = || {
                let text = show(&text.into());
                Error::invalid(format!("choices[{index}]: the vocabulary has no tokens for {text}"))
            };
            self.continuation(text)?.ok().filter(|tokens| !tokens.is_empty()).ok_or_else(refused)
        };
        choices.texts().enumerate().map(tokens).collect()
    }

    /// The tokens of a text that continues another one; `Err`: tokens that do not spell it, because the vocabulary has none that do.
    ///
    /// # Errors
    /// The text is too long.
    fn continuation(&self, text: &str) -> Result<std::result::Result<Vec<Token>, Vec<Token>>> {
        // Vocabularies that put a space before a text put none after a newline.
        const BEFORE: &[u8] = b"\n";
        let vocab = self.vocab();
        let spells = |tokens: &[Token]| tokens.iter().flat_map(|token| vocab.text(*token)).eq(text.as_bytes());
        let alone = vocab.tokenize_data(text.as_bytes(), false)?;
        if spells(&alone) {
            return Ok(Ok(alone));
        }
        let after = vocab.tokenize_data(&[BEFORE, text.as_bytes()].concat(), false)?;
        let before = vocab.tokenize_data(BEFORE, false)?;
        let Some(rest) = after.strip_prefix(before.as_slice()) else { return Ok(Err(alone)) };
        Ok(if spells(rest) { Ok(rest.to_vec()) } else { Err(alone) })
    }

    /// The tokens of a question between its state and its answer, which `after` precedes, and those of each answer.
    ///
    /// # Errors
    /// A text is too long, or the vocabulary has no tokens for an answer.
    pub fn question_tokens(&self, asked: &AskedQuestion, after: &QuestionFrame) -> Result<QuestionTokens> {
        let text = format!("{}{}", after.before, asked.text());
        let mut tokens = self.continuation(&text)?.unwrap_or_else(|tokens| tokens);
        tokens.extend(self.vocab().tokenize_tainted_alone(after.text.as_bytes(), &[], &after.marks)?);
        let label = |label: &str| {
            let refused = || Error::invalid(format!("{}: the vocabulary has no tokens for {label}", asked.name()));
            self.continuation(label)?.ok().ok_or_else(refused)
        };
        Ok((tokens, asked.labels().map(label).collect::<Result<_>>()?))
    }

    /// The chat template: the request's, else the load's, else the model's, else the target's, else ChatML. A model can have a separate one
    /// for requests with tools.
    ///
    /// # Errors
    /// It cannot be parsed, or `interrupt` ended the search for its format.
    pub fn template(
        &self,
        requested: Option<&str>,
        with_tools: bool,
        interrupt: &StopSignal,
    ) -> Result<Arc<KnownTemplate>> {
        let find = |source: &str| {
            let tokens = [self.vocab().bos(), self.vocab().eos()].map(|token| self.token_text(token));
            KnownTemplate::find(source, &tokens, interrupt)
        };
        if let Some(source) = requested {
            return self.templates.of_requests.get(source, || find(source));
        }
        let [default, for_tools] = &self.templates.own;
        let tool_template = self.own_tool_template(with_tools);
        let own = if tool_template.is_some() { for_tools } else { default };
        let found = own.get_or_try_init(|| {
            let source = tool_template.unwrap_or_else(|| self.default_template());
            match find(&source).map(Arc::new) {
                Err(error) if error.code() == Code::Cancelled => Err(error),
                found => Ok(found),
            }
        });
        found?.clone()
    }

    /// Finds the model's own templates, so that no chat has to wait until another one has found them.
    ///
    /// # Errors
    /// `interrupt` ended it. A chat reports what is wrong with a template.
    pub fn find_templates(&self, interrupt: &StopSignal) -> Result<()> {
        let found = [false, true].map(|with_tools| self.template(None, with_tools, interrupt));
        found.into_iter().try_for_each(|found| match found {
            Err(error) if error.code() == Code::Cancelled => Err(error),
            _ => Ok(()),
        })
    }

    /// The text of a token, or "".
    pub fn token_text(&self, token: Option<Token>) -> String {
        token.map_or(String::new(), |token| String::from_utf8_lossy(self.vocab().piece(token)).into_owned())
    }

    /// The model's separate template for requests with tools.
    fn own_tool_template(&self, with_tools: bool) -> Option<String> {
        (with_tools && self.chat_template.is_none()).then(|| self.model.tool_template())?
    }

    fn default_template(&self) -> String {
        self.given_template().unwrap_or_else(|| FALLBACK_TEMPLATE.to_owned())
    }

    /// The load's template, else the model's, else the target's.
    fn given_template(&self) -> Option<String> {
        let own = self.chat_template.clone().or_else(|| self.model.chat_template());
        own.or_else(|| self.target.chat_template())
    }

    /// A warning if [`ServingModel::template`] is ChatML because there is no other.
    pub fn fallback_warning(&self, with_tools: bool) -> Option<String> {
        let has_template = self.own_tool_template(with_tools).or_else(|| self.given_template()).is_some();
        (!has_template)
            .then(|| "messages: the model has no chat template, so ChatML is used; set chat_template".to_owned())
    }

    /// The scale of each LoRA adapter: the load's, or the `requested` ones, which turn off all others.
    ///
    /// # Errors
    /// There is no such adapter.
    pub fn lora_scales(&self, requested: Option<&[(usize, f32)]>) -> Result<Vec<f32>> {
        let mut scales = self.model.lora_scales();
        let Some(requested) = requested else { return Ok(scales) };
        scales.fill(0.0);
        let n = scales.len();
        for (index, (id, scale)) in requested.iter().enumerate() {
            let current = scales.get_mut(*id);
            *current.ok_or_else(|| {
                Error::invalid(format!("lora[{index}].id: there is no adapter {id}, {n} are loaded"))
            })? = *scale;
        }
        Ok(scales)
    }

    /// Refuses a prompt that the engine would refuse.
    ///
    /// # Errors
    /// The prompt is empty, or does not fit and may not be truncated.
    pub fn validate_prompt(&self, name: &str, prompt: &[Token], n_keep: Option<usize>) -> Result<()> {
        let n_ctx = self.n_ctx;
        let too_long = prompt_fit::prompt_truncation(
            prompt.len(),
            prompt_fit::effective_n_keep(n_keep, prompt.len(), n_ctx),
            n_ctx,
        )
        .is_some();
        if prompt.is_empty() {
            Err(Error::invalid(format!("{name}: has no tokens, and the model adds no BOS")))
        } else if too_long && !self.ctx_shift {
            let n = prompt.len();
            let message = format!("{name}: {n} tokens do not fit into the context of {n_ctx}, and ctx_shift is false");
            Err(Error::context_full(message, n, n_ctx))
        } else {
            Ok(())
        }
    }

    /// The logit biases, sorted by token, one entry for each. The bias of a text applies to each of its tokens, as in llama-server.
    /// Tokens that the model's metadata suppresses are always banned.
    ///
    /// # Errors
    /// A token is not in the vocabulary.
    pub fn logit_bias(&self, request: &CompletionRequest) -> Result<Vec<(Token, f32)>> {
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
                    return Err(Error::invalid(format!(
                        "logit_bias: token {token} is not in the vocabulary of {n} tokens"
                    )));
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
