//! `tokenize`, `detokenize`, `apply_template`, `get_embedding`.

use serde_json::{Value, json};

use super::fields::{Fields, int_in, parse_object, unexpected};
use super::pieces::of_pieces;
use super::request::{Chat, Piece, pieces};
use super::response::success;
use super::{Server, prompts};
use crate::error::{Code, Error, Result};
use crate::host;
use crate::llama::Token;

impl Server {
    /// `tokenize`: the tokens of `text` (or `content`), which may be mixed with ids as a prompt. `with_pieces`: `tokens` in
    /// llama-server's form, with id and piece.
    ///
    /// # Errors
    /// The request is wrong, or the text too long.
    pub fn tokenize(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let (name, text) = text(&mut fields, "text", "content")?;
        let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
        let add_special = fields.flag("add_special")?.unwrap_or(true);
        let parse_special = fields.flag("parse_special")?.unwrap_or(true);
        let vocab = self.models().target.vocab();
        let ids = of_pieces(vocab, name, &text, add_special, parse_special)?;
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

    /// `detokenize`: the text of `tokens`.
    ///
    /// # Errors
    /// The request is wrong, or an id is outside the vocabulary.
    pub fn detokenize(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let token = |name: &str, value: &Value| int_in::<Token>(name, value, 0..=i64::from(Token::MAX));
        let tokens = fields
            .list("tokens", "an array of token ids", token)?
            .ok_or_else(|| Error::invalid("tokens: is missing"))?;
        let special = fields.flag("special")?.unwrap_or(true);
        let text = self.models().target.vocab().detokenize(&tokens, special)?;
        Ok(success(json!({"content": String::from_utf8_lossy(&text)}), fields.finish()))
    }

    /// `apply_template`: the prompt that `messages` are.
    ///
    /// # Errors
    /// The request is wrong, or the template refuses it.
    pub fn apply_template(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let chat = Chat::read(&mut fields)?.ok_or_else(|| Error::invalid("messages: is missing"))?;
        let prompt = prompts::render(&self.target(), &chat)?;
        Ok(success(json!({"prompt": prompt}), fields.finish()))
    }

    /// `get_embedding`: the pooled embedding of `content` (or `prompt`), which may be mixed with ids. Waits for the engine.
    ///
    /// # Errors
    /// The request is wrong, the text too long, or the server was not started for embeddings.
    pub fn get_embedding(&self, request: &[u8]) -> Result<Value> {
        if host::inside() {
            return Err(Error::would_deadlock("get_embedding"));
        }
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let (name, text) = text(&mut fields, "content", "prompt")?;
        let normalize: i32 = fields.int("embd_normalize", -1..=100)?.unwrap_or(2);
        let tokens = of_pieces(self.models().target.vocab(), name, &text, true, true)?;
        if tokens.is_empty() {
            return Err(Error::invalid(format!("{name}: has no tokens")));
        }
        let engine = self.engine()?;
        if !self.config().embedding {
            return Err(Error::invalid("get_embedding: init was not called with \"embedding\": true"));
        }
        let failed = |error: Error| match error.code() {
            Code::ContextFull => error.within(name),
            _ => error.within("get_embedding"),
        };
        let mut embedding = engine.embed(tokens).map_err(failed)?;
        scale(&mut embedding, normalize);
        let embedding: Vec<f64> = embedding.into_iter().map(f64::from).collect();
        Ok(success(json!({"embedding": embedding}), fields.finish()))
    }
}

/// The text under one of two names, with the one that it is under.
fn text(fields: &mut Fields, name: &'static str, other: &'static str) -> Result<(&'static str, Vec<Piece>)> {
    let second = fields.get(other).map(|value| (other, value));
    match fields.get(name).map(|value| (name, value)).or(second) {
        Some((name, value)) => Ok((name, pieces(name, value)?)),
        None => Err(unexpected(name, "a string", &Value::Null)),
    }
}

/// llama-server's `embd_normalize`: -1 none, 0 to the range of 16 bits by the largest, 1 taxicab, 2 Euclidean, p.
fn scale(embedding: &mut [f32], normalize: i32) {
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
    use super::scale;

    #[test]
    fn embeddings_are_scaled_as_llama_server_does() {
        for (normalize, expected) in [
            (-1, [3.0, -4.0]),
            (0, [24570.0, -32760.0]),
            (1, [3.0 / 7.0, -4.0 / 7.0]),
            (2, [0.6, -0.8]),
            (3, [3.0 / 91.0_f32.cbrt(), -4.0 / 91.0_f32.cbrt()]),
        ] {
            let mut embedding = [3.0, -4.0];
            scale(&mut embedding, normalize);
            for (x, y) in embedding.iter().zip(expected) {
                assert!((x - y).abs() < 1e-5 * y.abs(), "{normalize}: {embedding:?}");
            }
        }
        let mut zero = [0.0, 0.0];
        scale(&mut zero, 2);
        assert_eq!(zero, [0.0, 0.0]);
    }
}
