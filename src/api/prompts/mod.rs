//! Prompts and messages to tokens, and completions to messages. Nothing here knows an engine.

pub mod chat;
pub mod chat_format;
mod infill;
mod interrupt;
mod marked_prompts;
mod media;
mod native_decision;
mod serving_model;

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

pub use self::infill::InfillBudget;
pub use self::interrupt::PromptInterrupt;
pub use self::marked_prompts::marked_prompts;
pub use self::media::MEDIA;
use self::media::{ChatMedia, shown};
use self::native_decision::DecisionSubject;
use self::serving_model::QuestionFrame;
pub use self::serving_model::{ChatTemplates, QuestionTokens, ServedModel, ServingModel, TemplatesByTools};
use crate::api::prompts::chat::{
    ChatTemplate, FittedChat, RenderInput, Rendered, add_to_system, drop_turns, without_dropped,
};
use crate::api::wire::request::{
    AskedQuestion, ChatInput, DecisionModel, Input, Inputs, Overflow, Prompt, QUESTION_MARK, ShownSchema,
};
use crate::error::{Error, Result};
use crate::llama::{EncodedMedia, Token, Vocab, Vocabulary as _};
use crate::speculative::Predicted;
use foredraft_base::prompt_fit;

/// Prompts up to this many bytes are tokenized by the caller's thread, which takes a fraction of a millisecond.
const MAX_INLINE: usize = 4 << 10;
/// The same for prompts with the text of a template, which takes some milliseconds.
const MAX_INLINE_CHAT: usize = 32 << 10;
/// The longest text that `add_generation_prompt` adds, in bytes. Those of models have a hundredth of it.
const MAX_GENERATION_PROMPT: usize = 8 << 10;
/// The variable in which templates that have a place for the schema of the answer look for it: Cohere's.
const RESPONSE_FORMAT: &str = "response_format";

/// A prompt after tokenization.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PreparedPrompt {
    #[serde(serialize_with = "write_tokens", deserialize_with = "read_tokens")]
    pub tokens: Arc<[Token]>,
    /// The text, if the request did not contain it (messages and infill).
    pub text: Option<Value>,
    /// The number of messages that were dropped.
    pub n_dropped: usize,
    pub warnings: Vec<String>,
    /// The pictures and sounds whose rows are among the tokens.
    #[serde(skip)]
    pub media: Arc<[Arc<EncodedMedia>]>,
}

fn write_tokens<S: Serializer>(tokens: &Arc<[Token]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tokens.iter())
}

fn read_tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[Token]>, D::Error> {
    Vec::<Token>::deserialize(deserializer).map(Arc::from)
}

impl PreparedPrompt {
    /// A prompt from which nothing was dropped.
    fn whole(tokens: Vec<Token>, text: Option<Value>) -> PreparedPrompt {
        PreparedPrompt { tokens: tokens.into(), text, n_dropped: 0, warnings: Vec::new(), media: Arc::default() }
    }
}

/// Everything needed to tokenize the prompts of a request, possibly later and on another thread.
pub struct PromptSource {
    pub serving: ServingModel,
    pub inputs: Inputs,
    /// The questions about the prompts, which end where a question begins.
    pub questions: Arc<[AskedQuestion]>,
    /// The predicted output, used as a draft.
    pub prediction: Option<String>,
    pub infill_budget: InfillBudget,
    /// When to stop rendering.
    pub interrupt: PromptInterrupt,
    pub n_keep: Option<usize>,
    /// The completions have a grammar, which needs the tree of the vocabulary's tokens.
    pub has_grammar: bool,
    /// The request has several completions. If the engine would refuse one, all are refused.
    pub has_results: bool,
}

impl PromptSource {
    /// Whether the prompts are short enough for the caller's thread, and the tree of tokens is not missing. `chat_len`: the length of a chat's prompt in bytes.
    pub fn is_short(&self, chat_len: usize) -> bool {
        let has_media = |input: &Input| matches!(&input.prompt, Prompt::Messages(chat) if !chat.media.is_empty());
        if self.serving.media.is_some() && self.inputs.all.iter().any(has_media) {
            return false;
        }
        let prediction = self.prediction.as_ref().map_or(0, String::len);
        let questions = self.questions.iter().map(AskedQuestion::len_estimate);
        // A native decision model reads the state with each question.
        let times = if self.decision_model().is_some() { self.questions.len() } else { 1 };
        let inputs = self.inputs.all.iter().map(|input| input.prompt.text_len().saturating_mul(times));
        let is_short = inputs.chain(questions).fold(prediction, usize::saturating_add) <= MAX_INLINE;
        is_short && chat_len <= MAX_INLINE_CHAT && (!self.has_grammar || self.serving.model.has_token_tree())
    }

    /// Renders and tokenizes the prompts, one for each input, and the predicted output, and makes the tree of tokens for a grammar, for which
    /// the engine's thread would wait.
    ///
    /// # Errors
    /// The template rejects the messages, a token is not in the vocabulary, or a prompt is empty or does not fit.
    pub fn prepare(&self) -> Result<PreparedTexts> {
        if let Some(model) = self.decision_model() {
            return self.decision(model);
        }
        let _tree = self.has_grammar.then(|| self.serving.model.token_tree());
        let mut frame = QuestionFrame { before: "\n\n", text: "\n".to_owned(), marks: Vec::new() };
        let prompts = self.inputs.all.iter().enumerate().map(|(index, input)| {
            let name = if self.inputs.listed { format!("prompts[{index}]") } else { "prompt".to_owned() };
            self.interrupt.check()?;
            let prompt = self.prompt(&name, input, &mut frame)?;
            if self.has_results {
                self.serving.validate_prompt(&name, &prompt.tokens, self.n_keep)?;
            }
            Ok(prompt)
        });
        let prompts = prompts.collect::<Result<_>>()?;
        let questions = self.questions.iter().map(|asked| {
            self.interrupt.check()?;
            self.serving.question_tokens(asked, &frame)
        });
        let questions = questions.collect::<Result<_>>()?;
        let prediction = self.prediction.as_ref().map(|text| {
            let tokens = self.serving.vocab().tokenize(text.as_bytes(), false, true)?;
            Ok(Arc::new(Predicted::from(tokens)))
        });
        Ok(PreparedTexts { prompts, questions, prediction: prediction.transpose()? })
    }

    /// The native decision model that answers the questions in its own form.
    fn decision_model(&self) -> Option<DecisionModel> {
        self.questions.first().and_then(AskedQuestion::model)
    }

    /// Prepares the questions to a native decision model: what their prompts have in common is the prompt.
    fn decision(&self, model: DecisionModel) -> Result<PreparedTexts> {
        let subject = DecisionSubject::of(&self.inputs)?;
        let prompts = native_decision::prompts(model, &self.questions, &subject, &self.serving, &self.interrupt)?;
        let text = self.serving.vocab().detokenize(&prompts.common, true)?;
        let prompt = PreparedPrompt::whole(prompts.common, Some(String::from_utf8_lossy(&text).into()));
        Ok(PreparedTexts { prompts: vec![prompt], questions: prompts.questions, prediction: None })
    }

    /// Tokenizes one prompt. Error messages call it `name`. `frame` becomes that of messages.
    fn prompt(&self, name: &str, input: &Input, frame: &mut QuestionFrame) -> Result<PreparedPrompt> {
        let parse_special = self.inputs.parse_special;
        let mut prompt = match &input.prompt {
            Prompt::Text(pieces) => {
                PreparedPrompt::whole(self.serving.tokenize(name, pieces, true, parse_special)?, None)
            }
            Prompt::Infill(infill) => {
                let tokens = infill::tokenize(&self.serving, infill, parse_special, &self.infill_budget)?;
                let text = self.serving.vocab().detokenize(&tokens, true)?;
                PreparedPrompt::whole(tokens, Some(String::from_utf8_lossy(&text).into()))
            }
            Prompt::Messages(chat) => self.chat(chat, frame)?,
        };
        let (n, n_ctx) = (prompt.tokens.len(), self.serving.n_ctx);
        if self.inputs.on_overflow == Overflow::Error && n >= n_ctx {
            let message = format!("{name}: {n} tokens do not fit into the context of {n_ctx} (on_overflow is error)");
            return Err(Error::context_full(message, n, n_ctx));
        }
        let n_keep = prompt_fit::effective_n_keep(self.n_keep, n, n_ctx);
        if let Some(left_out) = prompt_fit::prompt_truncation(n, n_keep, n_ctx).filter(|_| self.serving.ctx_shift) {
            let n_left_out = left_out.len();
            let what = match left_out.start {
                0 => format!("the first {n_left_out} of {n} tokens are left out"),
                kept => format!("{n_left_out} of {n} tokens are left out after the first {kept}"),
            };
            prompt.warnings.push(format!(
                "{name}: {what}, because the context has {n_ctx} (on_overflow \"error\" refuses such prompts)"
            ));
        }
        Ok(prompt)
    }

    /// Renders and tokenizes a chat, if the request asks for that without the oldest turns that do not fit. With questions, the prompt ends where
    /// one begins, and `frame` gets what surrounds it.
    fn chat(&self, chat: &ChatInput, frame: &mut QuestionFrame) -> Result<PreparedPrompt> {
        let numbered = ChatMedia::read(&self.serving, chat, &self.interrupt)?;
        let asks = !self.questions.is_empty();
        let tokenized = |messages: &[Value]| {
            let (mut rendered, mut after) = (self.render(chat, messages)?, QuestionFrame::default());
            if asks {
                (rendered, after) = before_question(rendered)?;
            }
            let tokens = numbered.tokenize(self.serving.vocab(), &rendered, &media::of_messages(chat, messages))?;
            Ok((tokens, rendered.text, after))
        };
        let FittedChat { prompt: (tokens, text, after), dropped, warning } = match self.inputs.on_overflow {
            Overflow::DropTurns if !asks => {
                let (n_predict, n_ctx) = (self.infill_budget.n_predict, self.serving.n_ctx);
                drop_turns(&chat.messages, n_predict, n_ctx, tokenized, |(tokens, ..)| tokens.len())?
            }
            _ => FittedChat { prompt: tokenized(&chat.messages)?, dropped: Vec::new(), warning: None },
        };
        *frame = after;
        let vanished = match asks {
            true => Vec::new(),
            false => vanished(&self.serving, chat, &dropped, &self.interrupt, &text)?,
        };
        let warnings = warning.into_iter().chain(vanished).collect();
        let (media, text) = (numbered.encode(&text, &self.interrupt)?, Some(shown(text, chat).into()));
        Ok(PreparedPrompt { tokens: tokens.into(), text, n_dropped: dropped.len(), warnings, media })
    }

    /// Renders messages, and what continues them.
    fn render(&self, chat: &ChatInput, messages: &[Value]) -> Result<Rendered> {
        let vocab = self.serving.vocab();
        let rendered = with_schema(&self.serving, chat, messages, &self.interrupt, |template, input| {
            match self.inputs.parse_special {
                true => Ok(Rendered { text: template.render(input)?, ..Rendered::default() }),
                false => template.render_tainted(input, vocab.specials()),
            }
        })?;
        let Rendered { mut text, mut tainted, marks } = rendered;
        if let Some(turn) = &chat.continued {
            let ends = |range: &Range<usize>| {
                let data = turn.text.get(range.clone()).unwrap_or_default();
                data.char_indices().map(|(at, c)| range.start + at + c.len_utf8()).collect::<Vec<_>>()
            };
            if !self.inputs.parse_special {
                tainted.extend(turn.data.iter().flat_map(ends).map(|end| text.len() + end));
            }
            text.push_str(&turn.text);
        }
        Ok(without_added_tokens(Rendered { text, tainted, marks }, vocab))
    }
}

/// The texts of a request as tokens.
pub struct PreparedTexts {
    /// One for each input.
    pub prompts: Vec<PreparedPrompt>,
    /// One for each question.
    pub questions: Vec<QuestionTokens>,
    /// The predicted output.
    pub prediction: Option<Arc<Predicted>>,
}

/// Divides a prompt where its question is put: into the part before it, and the text after it.
fn before_question(rendered: Rendered) -> Result<(Rendered, QuestionFrame)> {
    let Rendered { mut text, mut tainted, marks } = rendered;
    let refused = || Error::invalid("questions: the chat template leaves out the end of the last message");
    let at = text.rfind(QUESTION_MARK).ok_or_else(refused)?;
    let after = text.split_off(at).split_off(QUESTION_MARK.len());
    tainted.retain(|end| *end <= at);
    let frame = QuestionFrame { before: "", text: after, marks: marks.clone() };
    Ok((Rendered { text, tainted, marks }, frame))
}

/// Renders messages. Returns the prompt, its tokens if they are wanted, and warnings.
pub fn render(
    serving: &ServingModel,
    chat: &ChatInput,
    wants_tokens: bool,
) -> Result<(String, Option<Vec<Token>>, Vec<String>)> {
    let interrupt = PromptInterrupt::new(serving, None);
    let vocab = serving.vocab();
    let rendered = with_schema(serving, chat, &chat.messages, &interrupt, |template, input| {
        template.render_tainted(input, vocab.specials())
    })?;
    let rendered = without_added_tokens(rendered, vocab);
    let media = ChatMedia::read(serving, chat, &interrupt)?;
    let tokens = || media.tokenize(vocab, &rendered, &media::of_messages(chat, &chat.messages));
    let tokens = wants_tokens.then(tokens).transpose()?;
    let text = rendered.text;
    let fallback = chat.chat_template.is_none().then(|| serving.fallback_warning(!chat.tools.is_empty())).flatten();
    let warnings = fallback.into_iter().chain(vanished(serving, chat, &[], &interrupt, &text)?).collect();
    Ok((shown(text, chat), tokens, warnings))
}

/// Renders messages, to know that the template stays within its limits.
pub fn check_template(
    serving: &ServingModel,
    chat: &ChatInput,
    interrupt: &PromptInterrupt,
) -> Result<CheckedTemplate> {
    with_template(serving, chat, &chat.messages, interrupt, |template, input| {
        let prompt = template.render(input)?;
        let prompt_len = prompt.len();
        let other = template.render(&RenderInput { add_generation_prompt: !input.add_generation_prompt, ..*input });
        let generation_prompt = other.ok().and_then(|other| {
            let (with, without) = if input.add_generation_prompt { (prompt, other) } else { (other, prompt) };
            let added = with.strip_prefix(&without).filter(|added| added.len() <= MAX_GENERATION_PROMPT);
            added.map(str::to_owned)
        });
        Ok(CheckedTemplate { prompt_len, generation_prompt })
    })
}

/// The findings of rendering a request's messages once.
pub struct CheckedTemplate {
    /// The length of the prompt in bytes.
    pub prompt_len: usize,
    /// The text that `add_generation_prompt` adds to the prompt; `None`: it changes the prompt otherwise.
    pub generation_prompt: Option<String>,
}

/// Warnings about messages that are in no part of the prompt, and about roles that the template does not know.
fn vanished(
    serving: &ServingModel,
    chat: &ChatInput,
    dropped: &[usize],
    interrupt: &PromptInterrupt,
    prompt: &str,
) -> Result<Vec<String>> {
    let kept = without_dropped(&chat.messages, dropped);
    let (names, messages): (Vec<usize>, Vec<Value>) = kept.map(|(index, message)| (index, message.clone())).unzip();
    with_template(serving, chat, &messages, interrupt, |template, input| {
        let vanished = template.warning_of_vanished(input, &names, prompt);
        Ok(template.warning_of_roles(input, &names).into_iter().chain(vanished).collect())
    })
}

/// The prompt without the BOS at its beginning and the EOS at its end that the tokenizer adds, as in llama-server. So its text has the
/// same tokens when a host sends it as `prompt`.
fn without_added_tokens(rendered: Rendered, vocab: &Vocab) -> Rendered {
    let Rendered { mut text, mut tainted, marks } = rendered;
    let piece = |token: Option<Token>| token.map_or("".into(), |token| String::from_utf8_lossy(vocab.piece(token)));
    let bos = piece(vocab.bos().filter(|_| vocab.adds_bos()));
    // Text that comes from a message is not the template's BOS.
    let is_added = |from: usize, to: usize| !tainted.iter().any(|at| (from + 1..=to).contains(at));
    if !bos.is_empty() && text.starts_with(&*bos) && is_added(0, bos.len()) {
        text.drain(..bos.len());
        tainted.iter_mut().for_each(|at| *at -= bos.len());
    }
    let eos = piece(vocab.eos().filter(|_| vocab.adds_eos()));
    let is_added = |from: usize, to: usize| !tainted.iter().any(|at| (from + 1..=to).contains(at));
    if !eos.is_empty() && text.ends_with(&*eos) && is_added(text.len() - eos.len(), text.len()) {
        text.truncate(text.len() - eos.len());
    }
    Rendered { text, tainted, marks }
}

/// As [`with_template`], and the model sees the schema of its answer: in the template's own place, or in the system message.
fn with_schema<R>(
    serving: &ServingModel,
    chat: &ChatInput,
    messages: &[Value],
    interrupt: &PromptInterrupt,
    render: impl FnOnce(&ChatTemplate, &RenderInput) -> Result<R>,
) -> Result<R> {
    with_template(serving, chat, messages, interrupt, |template, input| match &chat.shown_schema {
        None => render(template, input),
        Some(ShownSchema::Schema(schema)) if template.uses(RESPONSE_FORMAT) => {
            let mut kwargs = input.kwargs.clone();
            kwargs.entry(RESPONSE_FORMAT).or_insert_with(|| json!({"type": "json_object", "schema": schema}));
            render(template, &RenderInput { kwargs: &kwargs, ..*input })
        }
        Some(ShownSchema::Schema(schema)) => {
            let messages =
                add_to_system(messages, &format!("Write your answer as JSON that follows this schema:\n{schema}"));
            render(template, &RenderInput { messages: &messages, ..*input })
        }
        Some(ShownSchema::Text(text)) => {
            render(template, &RenderInput { messages: &add_to_system(messages, text), ..*input })
        }
    })
}

/// Calls `render` with the chat template: the request's, else that of the serving model.
fn with_template<R>(
    serving: &ServingModel,
    chat: &ChatInput,
    messages: &[Value],
    interrupt: &PromptInterrupt,
    render: impl FnOnce(&ChatTemplate, &RenderInput) -> Result<R>,
) -> Result<R> {
    let vocab = serving.vocab();
    let asked = interrupt.for_template();
    let known = interrupt.template(serving, chat)?;
    let tools = Value::from(chat.tools.clone());
    let input = RenderInput {
        messages,
        add_generation_prompt: chat.add_generation_prompt,
        bos_token: &serving.token_text(vocab.bos()),
        eos_token: &serving.token_text(vocab.eos()),
        tools: (!chat.tools.is_empty()).then_some(&tools),
        kwargs: &chat.chat_template_kwargs,
        now: SystemTime::now(),
        interrupt: Some(&asked),
    };
    render(&known.template, &input).map_err(|error| interrupt.explained(error))
}
