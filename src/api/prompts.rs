//! From prompts and messages to tokens.

use std::time::SystemTime;

use serde_json::Value;

use super::infill::{self, Room};
use super::request::{Chat, Input, Piece, Prompt};
use super::serving_model::ServingModel;
use super::{ChatTemplate, RenderInput};
use crate::error::{Error, Result};
use crate::llama::{Token, Vocab};

/// The tokens of a prompt, which messages call `name`, and the prompt as the answer shows it.
pub(super) fn tokens(serving: &ServingModel, name: &str, input: &Input, room: &Room) -> Result<(Vec<Token>, Value)> {
    let vocab = serving.vocab();
    match &input.prompt {
        Prompt::Text(pieces) => Ok((whole(vocab, name, pieces)?, input.given.clone())),
        Prompt::Infill(infill) => {
            let tokens = infill::tokens(vocab, infill, room)?;
            let text = vocab.detokenize(&tokens, true)?;
            Ok((tokens, String::from_utf8_lossy(&text).into()))
        }
        Prompt::Messages(chat) => {
            let text = render(serving, chat)?;
            let mut tokens = whole(vocab, name, &[Piece::Text(text.clone())])?;
            // A template that writes BOS itself must not get another.
            let bos = vocab.bos().filter(|_| vocab.adds_bos());
            if bos.is_some() && tokens.first().copied() == bos && tokens.get(1).copied() == bos {
                tokens.remove(0);
            }
            Ok((tokens, text.into()))
        }
    }
}

/// A text from its beginning: BOS as the model wants it, and names of special tokens are those tokens.
fn whole(vocab: &Vocab, name: &str, pieces: &[Piece]) -> Result<Vec<Token>> {
    of_pieces(vocab, name, pieces, true, true)
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

/// The text of messages, by the request's template, `init`'s or the model's.
pub(super) fn render(serving: &ServingModel, chat: &Chat) -> Result<String> {
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
    template.render(&RenderInput {
        messages: &chat.messages,
        add_generation_prompt: chat.add_generation_prompt,
        bos_token: &name(vocab.bos()),
        eos_token: &name(vocab.eos()),
        tools: (!chat.tools.is_empty()).then_some(&tools),
        kwargs: &chat.chat_template_kwargs,
        now: SystemTime::now(),
    })
}
