//! From prompts and messages to tokens.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use super::infill::{self, Room};
use super::overflow::{self, Fitted};
use super::pieces::of_pieces;
use super::registry::PreparedPrompt;
use super::request::{Chat, Input, Inputs, Overflow, Prompt};
use super::serving_model::ServingModel;
use super::{ChatTemplate, RenderInput, Rendered};
use crate::error::{Code, Error, Result};
use crate::llama::Token;
use crate::speculative::Predicted;

/// Bytes of text that are tokenized in the call that queues them, which takes a fraction of a millisecond.
const SHORT: usize = 4 << 10;

/// What a request's prompts are made of. It may be used on another thread, and later.
pub(super) struct PromptSource {
    pub(super) serving: ServingModel,
    pub(super) inputs: Inputs,
    /// Text that the answer will probably repeat.
    pub(super) prediction: Option<String>,
    pub(super) room: Room,
    pub(super) n_keep: Option<usize>,
    /// Whether the engine gets several texts, which are all refused if one would be.
    pub(super) has_results: bool,
}

impl PromptSource {
    /// Whether [`PromptSource::prepare`] takes no time worth mentioning.
    pub(super) fn is_short(&self) -> bool {
        let prediction = self.prediction.as_ref().map_or(0, String::len);
        self.inputs.all.iter().map(|input| input.prompt.text_len()).fold(prediction, usize::saturating_add) <= SHORT
    }

    /// Renders and tokenizes the prompts, one for each input, and the predicted output.
    ///
    /// # Errors
    /// The template refuses the messages, a token is none of the vocabulary, or a prompt is empty or does not fit.
    pub(super) fn prepare(&self) -> Result<(Vec<PreparedPrompt>, Option<Arc<Predicted>>)> {
        let prompts = self.inputs.all.iter().enumerate().map(|(place, input)| {
            let name = if self.inputs.listed { format!("prompts[{place}]") } else { "prompt".to_owned() };
            let prompt = self.prompt(&name, input)?;
            if self.has_results {
                self.serving.check_prompt(&name, &prompt.tokens, self.n_keep)?;
            }
            Ok(prompt)
        });
        let prompts = prompts.collect::<Result<_>>()?;
        let prediction = self.prediction.as_ref().map(|text| {
            let tokens = self.serving.vocab().tokenize(text.as_bytes(), false, true)?;
            Ok(Arc::new(Predicted::from(tokens)))
        });
        Ok((prompts, prediction.transpose()?))
    }

    /// One prompt, which messages call `name`.
    fn prompt(&self, name: &str, input: &Input) -> Result<PreparedPrompt> {
        let (vocab, parse_special) = (self.serving.vocab(), self.inputs.parse_special);
        let whole = |(tokens, text): (Vec<Token>, Option<Value>)| Fitted {
            prompt: (tokens, text),
            n_dropped: 0,
            warning: None,
        };
        let fitted = match &input.prompt {
            Prompt::Text(pieces) => whole((of_pieces(vocab, name, pieces, true, parse_special)?, None)),
            Prompt::Infill(infill) => {
                let tokens = infill::tokens(vocab, infill, parse_special, &self.room)?;
                let text = String::from_utf8_lossy(&vocab.detokenize(&tokens, true)?).into();
                whole((tokens, Some(text)))
            }
            Prompt::Messages(chat) if self.inputs.on_overflow == Overflow::DropTurns => overflow::drop_turns(
                &chat.messages,
                self.room.n_predict,
                self.serving.n_ctx,
                |messages| self.chat(chat, messages),
                |(tokens, _)| tokens.len(),
            )?,
            Prompt::Messages(chat) => whole(self.chat(chat, &chat.messages)?),
        };
        let Fitted { prompt: (tokens, text), n_dropped, warning } = fitted;
        if self.inputs.on_overflow == Overflow::Error && tokens.len() >= self.serving.n_ctx {
            let (n, n_ctx) = (tokens.len(), self.serving.n_ctx);
            let message = format!("{name}: {n} tokens do not fit into the context of {n_ctx} (on_overflow is error)");
            return Err(Error::new(Code::ContextFull, message));
        }
        Ok(PreparedPrompt { tokens: tokens.into(), text, n_dropped, warning })
    }

    /// The tokens of messages of a chat, and their text.
    fn chat(&self, chat: &Chat, messages: &[Value]) -> Result<(Vec<Token>, Option<Value>)> {
        let vocab = self.serving.vocab();
        let Rendered { text, tainted } =
            with_template(&self.serving, chat, messages, |template, input| match self.inputs.parse_special {
                true => Ok(Rendered { text: template.render(input)?, tainted: Vec::new() }),
                false => template.render_tainted(input, vocab.specials()),
            })?;
        let mut tokens = vocab.tokenize_tainted(text.as_bytes(), &tainted)?;
        // A template that writes BOS itself must not get another.
        let bos = vocab.bos().filter(|_| vocab.adds_bos());
        if bos.is_some() && tokens.first().copied() == bos && tokens.get(1).copied() == bos {
            tokens.remove(0);
        }
        Ok((tokens, Some(text.into())))
    }
}

/// The text of messages.
pub(super) fn render(serving: &ServingModel, chat: &Chat) -> Result<String> {
    with_template(serving, chat, &chat.messages, |template, input| template.render(input))
}

/// Renders messages of a chat by the request's template, `init`'s or the model's.
fn with_template<R>(
    serving: &ServingModel,
    chat: &Chat,
    messages: &[Value],
    render: impl FnOnce(&ChatTemplate, &RenderInput) -> Result<R>,
) -> Result<R> {
    let own;
    let template = match &chat.chat_template {
        Some(source) => {
            own = ChatTemplate::parse(source)?;
            &own
        }
        None => serving.template(!chat.tools.is_empty())?,
    };
    let vocab = serving.vocab();
    let name = |token: Option<Token>| {
        token.map_or(String::new(), |token| String::from_utf8_lossy(vocab.piece(token)).into_owned())
    };
    let tools = Value::from(chat.tools.clone());
    let input = RenderInput {
        messages,
        add_generation_prompt: chat.add_generation_prompt,
        bos_token: &name(vocab.bos()),
        eos_token: &name(vocab.eos()),
        tools: (!chat.tools.is_empty()).then_some(&tools),
        kwargs: &chat.chat_template_kwargs,
        now: SystemTime::now(),
    };
    render(template, &input)
}
