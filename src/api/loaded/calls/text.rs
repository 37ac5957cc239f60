//! `tokenize`, `detokenize`, `model_info`, `apply_template`.

use foredraft_base::memory::ask_for;
use serde_json::{Map, Value, json};

use crate::api::loaded::local_engine::LocalEngine;
use crate::api::prompts;
use crate::api::wire::answer::{success, with_fields};
use crate::api::wire::fields::{Fields, int_in, parse_object, unexpected};
use crate::api::wire::request::{ChatInput, Piece, pieces};
use crate::error::{Error, Result};
use crate::llama::Token;

/// The memory of one token in the answer of `tokenize`: its id and its piece as values, twice, and as text.
const ANSWERED: usize = 1024;

impl LocalEngine {
    /// `tokenize`: the tokens of `text` (or `content`), which can contain token ids like a prompt, or of the prompt of `messages`. With
    /// `with_pieces`, `tokens` has llama-server's form, with id and piece.
    ///
    /// # Errors
    /// The request is invalid, or the text is too long.
    pub fn tokenize(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
        let serving = self.target();
        let vocab = serving.vocab();
        let (ids, of_template) = if fields.is_given("messages") {
            if fields.is_given("text") || fields.is_given("content") {
                return Err(Error::invalid("messages: expected either text or messages, got both"));
            }
            let (_, ids, warnings) = prompts::render(&serving, &messages(&mut fields)?, true)?;
            (ids.unwrap_or_default(), warnings)
        } else {
            let (name, text) = text(&mut fields, "text", "content")?;
            let add_special = fields.flag("add_special")?.unwrap_or(true);
            let parse_special = fields.flag("parse_special")?.unwrap_or(true);
            (serving.tokenize(name, &text, add_special, parse_special)?, Vec::new())
        };
        ask_for(ids.len().saturating_mul(if with_pieces { 2 * ANSWERED } else { ANSWERED }), "tokenize: the answer")?;
        let strings: Vec<String> =
            ids.iter().map(|id| String::from_utf8_lossy(vocab.piece(*id)).into_owned()).collect();
        let pieces: Vec<Value> = ids
            .iter()
            .map(|id| {
                let piece = vocab.piece(*id);
                std::str::from_utf8(piece).map_or_else(|_| Value::from(piece), Value::from)
            })
            .collect();
        let tokens: Vec<Value> = match with_pieces {
            true => ids.iter().zip(&pieces).map(|(id, piece)| json!({"id": id, "piece": piece})).collect(),
            false => strings.into_iter().map(Value::from).collect(),
        };
        let answer = json!({"tokens": tokens, "length": ids.len(), "ids": ids, "pieces": pieces});
        Ok(success(answer, fields.finish().into_iter().chain(of_template).collect()))
    }

    /// `detokenize`: the text of `tokens`; where they are not whole characters, its `bytes` too.
    ///
    /// # Errors
    /// The request is invalid, or an id is not in the vocabulary.
    pub fn detokenize(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let token = |name: &str, value: &Value| int_in::<Token>(name, value, 0..=i64::from(Token::MAX));
        let tokens = fields
            .list("tokens", "an array of token ids", token)?
            .ok_or_else(|| Error::invalid("tokens: expected an array of token ids, got nothing"))?;
        let special = fields.flag("special")?.unwrap_or(true);
        let text = self.models().target.vocab().detokenize(&tokens, special)?;
        let answer = json!({"content": String::from_utf8_lossy(&text)});
        let bytes = std::str::from_utf8(&text).is_err().then(|| ("bytes", text.into()));
        Ok(success(with_fields(answer, bytes), fields.finish()))
    }

    /// `model_info`: what the target's file says, or with `"model": "draft"` the draft model's.
    ///
    /// # Errors
    /// The request is invalid, or there is no draft model.
    pub fn model_info(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let is_draft = fields.word("model", &[("target", false), ("draft", true)])?.unwrap_or(false);
        let models = self.models();
        let model = match (is_draft, &models.draft) {
            (false, _) => &models.target,
            (true, Some(draft)) => draft,
            (true, None) => return Err(Error::invalid("model: there is no draft model; load one with model_draft")),
        };
        let vocab = model.vocab();
        let metadata: Map<String, Value> =
            model.all_metadata().into_iter().map(|(key, value)| (key, value.into())).collect();
        let answer = json!({
            "description": model.description(),
            "size": model.size(),
            "n_params": model.n_params(),
            "n_ctx_train": model.n_ctx_train(),
            "n_embd": model.n_embd(),
            "n_layer": model.n_layer(),
            "n_vocab": vocab.n_tokens(),
            "vocab_type": vocab.kind().as_str(),
            "bos": vocab.bos(),
            "eos": vocab.eos(),
            "eot": vocab.eot(),
            "newline": vocab.newline(),
            "eog": vocab.eog_tokens().collect::<Vec<_>>(),
            "add_bos": vocab.adds_bos(),
            "add_eos": vocab.adds_eos(),
            "chat_template": model.chat_template(),
            "metadata": metadata,
        });
        Ok(success(answer, fields.finish()))
    }

    /// `apply_template`: the prompt rendered from `messages`; with pictures, the number of its tokens too.
    ///
    /// # Errors
    /// The request is invalid, or the template rejects it.
    pub fn apply_template(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let chat = messages(&mut fields)?;
        let (prompt, tokens, of_template) = prompts::render(&self.target(), &chat, !chat.media.is_empty())?;
        let mut warnings = fields.finish();
        warnings.extend(of_template);
        let n_tokens = tokens.map(|tokens| ("n_tokens", tokens.len().into()));
        Ok(success(with_fields(json!({"prompt": prompt}), n_tokens), warnings))
    }
}

fn messages(fields: &mut Fields) -> Result<ChatInput> {
    let absent = || Error::invalid("messages: expected an array of messages, got nothing");
    ChatInput::read(fields, None)?.ok_or_else(absent)
}

/// Reads the text from the field `name`, else from `other`. Returns the field's name, too.
pub(super) fn text(fields: &mut Fields, name: &'static str, other: &'static str) -> Result<(&'static str, Vec<Piece>)> {
    fields.warn_of_other_names(name, &[other]);
    let second = fields.get(other).map(|value| (other, value));
    match fields.get(name).map(|value| (name, value)).or(second) {
        Some((name, value)) => Ok((name, pieces(name, value)?)),
        None => Err(unexpected(name, "a string", &Value::Null)),
    }
}
