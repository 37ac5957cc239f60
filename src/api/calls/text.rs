//! `tokenize`, `detokenize`, `model_info`, `apply_template`, `embed`.

use foredraft_base::memory::ask_for;
use serde_json::{Map, Value, json};

use crate::api::LocalEngine;
use crate::api::fields::{Fields, int_in, parse_object, unexpected};
use crate::api::function::Function;
use crate::api::prompts;
use crate::api::request::{ChatInput, Piece, pieces};
use crate::api::response::success;
use crate::engine::{EmbeddedText, Embedding};
use crate::error::{Code, Error, Result};
use crate::host;
use crate::llama::Token;

/// The memory of one token in the answer of `tokenize`: its id and its piece as values, twice, and as text.
const ANSWERED: usize = 1024;

impl LocalEngine {
    /// `tokenize`: the tokens of `text` (or `content`), which can contain token ids like a prompt. With `with_pieces`, `tokens` has
    /// llama-server's form, with id and piece.
    ///
    /// # Errors
    /// The request is invalid, or the text is too long.
    pub fn tokenize(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let (name, text) = text(&mut fields, "text", "content")?;
        let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
        let add_special = fields.flag("add_special")?.unwrap_or(true);
        let parse_special = fields.flag("parse_special")?.unwrap_or(true);
        let serving = self.target();
        let vocab = serving.vocab();
        let ids = serving.tokenize(name, &text, add_special, parse_special)?;
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
        Ok(success(json!({"tokens": tokens, "length": ids.len(), "ids": ids, "pieces": pieces}), fields.finish()))
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
        let mut answer = json!({"content": String::from_utf8_lossy(&text)});
        if std::str::from_utf8(&text).is_err()
            && let Value::Object(answer) = &mut answer
        {
            answer.insert("bytes".into(), text.into());
        }
        Ok(success(answer, fields.finish()))
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

    /// `apply_template`: the prompt rendered from `messages`.
    ///
    /// # Errors
    /// The request is invalid, or the template rejects it.
    pub fn apply_template(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let chat = ChatInput::read(&mut fields)?
            .ok_or_else(|| Error::invalid("messages: expected an array of messages, got nothing"))?;
        let (prompt, of_template) = prompts::render(&self.target(), &chat)?;
        let mut warnings = fields.finish();
        warnings.extend(of_template);
        Ok(success(json!({"prompt": prompt}), warnings))
    }

    /// `embed`: the pooled embedding of `content` (or `prompt`, or `input`), which can contain token ids; or those of all texts of
    /// an array `input`. Waits for the engine.
    ///
    /// # Errors
    /// The request is invalid, the text is too long, or the engine was not loaded with `embedding`.
    pub fn embed(&self, request: &[u8]) -> Result<Value> {
        if host::inside() {
            return Err(Error::would_deadlock(Function::Embed.name()));
        }
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let inputs = embedded(&mut fields)?;
        let normalize: i32 = fields.int("embd_normalize", -1..=100)?.unwrap_or(2);
        let truncate = fields.flag("truncate")?.unwrap_or(false);
        let serving = self.target();
        let tokenized = inputs.texts.iter().map(|(name, text)| {
            let tokens = serving.tokenize(name, text, true, true)?;
            if tokens.is_empty() { Err(Error::invalid(format!("{name}: has no tokens"))) } else { Ok(tokens) }
        });
        let tokenized: Vec<Vec<Token>> = tokenized.collect::<Result<_>>()?;
        let worker = self.worker()?;
        if !self.config().embedding {
            return Err(Error::invalid("embed: the model was not loaded with \"embedding\": true"));
        }
        let (mut data, mut n_all) = (Vec::new(), 0);
        for ((name, _), tokens) in inputs.texts.iter().zip(tokenized) {
            let embedded = worker.embed(EmbeddedText { tokens, truncate });
            let Embedding { mut values, n_tokens } = embedded.map_err(|error| match error.code() {
                Code::ContextFull => error.within(name),
                _ => error.within("embed"),
            })?;
            normalize_embedding(&mut values, normalize);
            n_all += n_tokens;
            data.push(values.into_iter().map(f64::from).collect::<Vec<f64>>());
        }
        let answer = if inputs.is_list {
            let data: Vec<Value> =
                (0..).zip(data).map(|(index, it): (usize, _)| json!({"index": index, "embedding": it})).collect();
            json!({"data": data, "usage": {"prompt_tokens": n_all, "total_tokens": n_all}})
        } else {
            json!({"embedding": data.pop().unwrap_or_default(), "tokens_evaluated": n_all})
        };
        Ok(success(answer, fields.finish()))
    }
}

/// The texts of a request for embeddings, each with its name for messages.
struct EmbeddedTexts {
    texts: Vec<(String, Vec<Piece>)>,
    /// They were given as an array, so the answer is one, too.
    is_list: bool,
}

/// Reads `input`: a text, an array of token ids, or an array of several of these. Without it, reads `content` or `prompt`, one text.
fn embedded(fields: &mut Fields) -> Result<EmbeddedTexts> {
    const INPUT: &str = "input";
    let Some(input) = fields.get(INPUT) else {
        let (name, text) = text(fields, "content", "prompt")?;
        if text.iter().filter(|piece| matches!(piece, Piece::Text(_))).count() > 1 {
            fields.warn(format!(
                "{name}: its parts are one text with one embedding; an array input has one for each text"
            ));
        }
        return Ok(EmbeddedTexts { texts: vec![(name.to_owned(), text)], is_list: false });
    };
    if let Some(other) = ["content", "prompt"].into_iter().find(|other| fields.is_given(other)) {
        return Err(Error::invalid(format!("{INPUT}: expected either {INPUT} or {other}, got both")));
    }
    let list = input.as_array().filter(|items| !items.iter().all(Value::is_number));
    let Some(items) = list else {
        return Ok(EmbeddedTexts { texts: vec![(INPUT.to_owned(), pieces(INPUT, input)?)], is_list: false });
    };
    let texts = items.iter().enumerate().map(|(index, item)| {
        let name = format!("{INPUT}[{index}]");
        let text = pieces(&name, item)?;
        Ok((name, text))
    });
    Ok(EmbeddedTexts { texts: texts.collect::<Result<_>>()?, is_list: true })
}

/// Reads the text from the field `name`, else from `other`. Returns the field's name, too.
fn text(fields: &mut Fields, name: &'static str, other: &'static str) -> Result<(&'static str, Vec<Piece>)> {
    fields.warn_of_other_names(name, &[other]);
    let second = fields.get(other).map(|value| (other, value));
    match fields.get(name).map(|value| (name, value)).or(second) {
        Some((name, value)) => Ok((name, pieces(name, value)?)),
        None => Err(unexpected(name, "a string", &Value::Null)),
    }
}

/// Scales the embedding as llama-server's `embd_normalize`: -1 not at all; 0 maximum absolute value 32760; 1 taxicab norm;
/// 2 Euclidean norm; p the p-norm.
fn normalize_embedding(embedding: &mut [f32], normalize: i32) {
    let magnitudes = embedding.iter().map(|x| f64::from(x.abs()));
    let norm = match normalize {
        -1 => 1.0,
        0 => magnitudes.fold(0.0, f64::max) / 32760.0,
        1 => magnitudes.sum(),
        2 => magnitudes.map(|x| x * x).sum::<f64>().sqrt(),
        p => magnitudes.map(|x| x.powi(p)).sum::<f64>().powf(1.0 / f64::from(p)),
    };
    if norm > 0.0 {
        embedding.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::normalize_embedding;

    #[test]
    fn embeddings_are_normalized_as_in_llama_server() {
        for (normalize, expected) in [
            (-1, [3.0, -4.0]),
            (0, [24570.0, -32760.0]),
            (1, [3.0 / 7.0, -4.0 / 7.0]),
            (2, [0.6, -0.8]),
            (3, [3.0 / 91.0_f32.cbrt(), -4.0 / 91.0_f32.cbrt()]),
        ] {
            let mut embedding = [3.0, -4.0];
            normalize_embedding(&mut embedding, normalize);
            for (x, y) in embedding.iter().zip(expected) {
                assert!((x - y).abs() < 1e-5 * y.abs(), "{normalize}: {embedding:?}");
            }
        }
        let mut zero = [0.0, 0.0];
        normalize_embedding(&mut zero, 2);
        assert_eq!(zero, [0.0, 0.0]);
    }
}
