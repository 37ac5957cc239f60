//! From prompts and messages to tokens.

use std::time::SystemTime;

use serde_json::Value;

use super::infill::{self, Room};
use super::request::{Chat, Input, Piece, Prompt};
use super::serving_model::ServingModel;
use super::{ChatTemplate, RenderInput, Rendered};
use crate::error::{Error, Result};
use crate::llama::{Token, Vocab};

/// The tokens of a prompt, which messages call `name`, and the prompt as the answer shows it.
pub(super) fn tokens(
    serving: &ServingModel,
    name: &str,
    input: &Input,
    parse_special: bool,
    room: &Room,
) -> Result<(Vec<Token>, Value)> {
    let vocab = serving.vocab();
    match &input.prompt {
        Prompt::Text(pieces) => Ok((of_pieces(vocab, name, pieces, true, parse_special)?, input.given.clone())),
        Prompt::Infill(infill) => {
            let tokens = infill::tokens(vocab, infill, parse_special, room)?;
            let text = vocab.detokenize(&tokens, true)?;
            Ok((tokens, String::from_utf8_lossy(&text).into()))
        }
        Prompt::Messages(chat) => {
            let Rendered { text, tainted } = with_template(serving, chat, |template, input| match parse_special {
                true => Ok(Rendered { text: template.render(input)?, tainted: Vec::new() }),
                false => template.render_tainted(input, vocab.specials()),
            })?;
            let mut tokens = vocab.tokenize_tainted(text.as_bytes(), &tainted)?;
            // A template that writes BOS itself must not get another.
            let bos = vocab.bos().filter(|_| vocab.adds_bos());
            if bos.is_some() && tokens.first().copied() == bos && tokens.get(1).copied() == bos {
                tokens.remove(0);
            }
            Ok((tokens, text.into()))
        }
    }
}

/// The tokens of all pieces; messages call them `name`. The special tokens at the beginning of a text go before a piece
/// that is the first one and text.
pub(super) fn of_pieces(
    vocab: &Vocab,
    name: &str,
    pieces: &[Piece],
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Text(text) => {
                tokens.extend(vocab.tokenize(text.as_bytes(), add_special && index == 0, parse_special)?)
            }
            Piece::Token(token) if vocab.contains(*token) => tokens.push(*token),
            Piece::Token(token) => {
                return Err(Error::invalid(format!(
                    "{name}[{index}]: {token} is not in the vocabulary of {} tokens",
                    vocab.n_tokens()
                )));
            }
        }
    }
    Ok(tokens)
}

/// The text of messages.
pub(super) fn render(serving: &ServingModel, chat: &Chat) -> Result<String> {
    with_template(serving, chat, |template, input| template.render(input))
}

/// Renders messages by the request's template, `init`'s or the model's.
fn with_template<R>(
    serving: &ServingModel,
    chat: &Chat,
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
        messages: &chat.messages,
        add_generation_prompt: chat.add_generation_prompt,
        bos_token: &name(vocab.bos()),
        eos_token: &name(vocab.eos()),
        tools: (!chat.tools.is_empty()).then_some(&tools),
        kwargs: &chat.chat_template_kwargs,
        now: SystemTime::now(),
    };
    render(template, &input)
}
