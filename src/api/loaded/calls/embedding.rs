//! `embed` and `rerank`: texts to embeddings, and pairs of texts to scores.

use serde_json::{Map, Value, json};

use super::text::text;
use crate::api::loaded::local_engine::LocalEngine;
use crate::api::prompts::ServingModel;
use crate::api::wire::answer::success;
use crate::api::wire::fields::{Fields, c_text_in, parse_object, show, text_in, unexpected};
use crate::api::wire::request::{Piece, pieces};
use crate::engine::{EmbeddingLimits, WorkerHandle};
use crate::error::{Error, Result};
use crate::llama::{TextPooling, Token, Vocab};

impl LocalEngine {
    /// `embed`: the embedding of `content` (or `prompt`, or `input`), which can contain token ids; or those of all texts of an array
    /// `input`. With `of_tokens` those of each token of a text. Waits for the engine.
    ///
    /// # Errors
    /// The request is invalid, a text is empty or too long, or the engine was not loaded with `embedding`.
    pub fn embed(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let inputs = embedded(&mut fields)?;
        let normalize: i32 = fields.int("embd_normalize", -1..=100)?.unwrap_or(2);
        let truncate = fields.flag("truncate")?.unwrap_or(false);
        let of_tokens = fields.flag("of_tokens")?.unwrap_or(false);
        let (worker, limits) = self.embedder("embed")?;
        if limits.pooling == TextPooling::Rank {
            return Err(Error::invalid(
                "embed: the model has the pooling rank, so it has scores and no embeddings; rerank returns them",
            ));
        }
        let serving = self.target();
        let tokenized = inputs.texts.iter().map(|(name, text)| {
            let mut tokens = serving.tokenize(name, text, true, true)?;
            if truncate {
                cut(&mut tokens, limits.n_tokens, serving.vocab());
            }
            check_length(name, &tokens, limits)?;
            Ok(tokens)
        });
        let tokenized: Vec<Vec<Token>> = tokenized.collect::<Result<_>>()?;
        let lengths: Vec<usize> = tokenized.iter().map(Vec::len).collect();
        let n_all: usize = lengths.iter().sum();
        let embeddings = worker.embed(tokenized, of_tokens).map_err(|error| error.within("embed"))?;
        let mut data = embeddings.into_iter().zip(lengths).map(|(mut values, n_tokens)| {
            let n_vectors = if of_tokens { n_tokens.max(1) } else { 1 };
            let n_embd = (values.len() / n_vectors).max(1);
            let mut vectors = values.chunks_mut(n_embd).map(|vector| {
                normalize_embedding(vector, normalize);
                vector.iter().copied().map(f64::from).collect::<Vec<f64>>()
            });
            if of_tokens { json!(vectors.collect::<Vec<_>>()) } else { json!(vectors.next().unwrap_or_default()) }
        });
        let answer = if inputs.is_list {
            let data: Vec<Value> =
                (0..).zip(data).map(|(index, it): (usize, _)| json!({"index": index, "embedding": it})).collect();
            json!({"data": data, "usage": usage(n_all)})
        } else {
            json!({"embedding": data.next().unwrap_or_default(), "tokens_evaluated": n_all})
        };
        Ok(success(answer, fields.finish()))
    }

    /// `rerank`: how well each of the `documents` answers the `query`, the best first. Waits for the engine.
    ///
    /// # Errors
    /// The request is invalid, a document is too long, or the model has no classifier or was not loaded with `reranking`.
    pub fn rerank(&self, request: &[u8]) -> Result<Value> {
        let object = parse_object(request)?;
        let mut fields = Fields::new(&object);
        let query = fields.get("query").map(|value| text_in("query", value)).transpose()?;
        let query = query.ok_or_else(|| unexpected("query", "a string", &Value::Null))?;
        let documents = documents(&mut fields)?;
        let top_n: Option<usize> = fields.int("top_n", 1..=i64::from(i32::MAX))?;
        let truncate = fields.flag("truncate")?.unwrap_or(false);
        let (worker, limits) = self.embedder("rerank")?;
        if limits.pooling != TextPooling::Rank {
            return Err(Error::invalid(format!(
                "rerank: expected a model with a classifier, whose pooling is rank, got one with the pooling {}; load it with \
                 \"reranking\": true",
                limits.pooling.as_str()
            )));
        }
        let pairs = RerankPairs::new(self.target(), query)?;
        let tokenized = documents.iter().map(|(name, document)| {
            let mut tokens = pairs.tokenize(document)?;
            if truncate && tokens.len() > limits.n_tokens {
                tokens = pairs.tokenize_beginning(document, limits.n_tokens)?;
            }
            check_length(name, &tokens, limits)?;
            Ok(tokens)
        });
        let tokenized: Vec<Vec<Token>> = tokenized.collect::<Result<_>>()?;
        let n_all: usize = tokenized.iter().map(Vec::len).sum();
        let scores = worker.embed(tokenized, false).map_err(|error| error.within("rerank"))?;
        let scores = scores.into_iter().map(|scores| scores.first().copied().unwrap_or(f32::NAN));
        let mut ranked: Vec<(usize, f32)> = scores.enumerate().collect();
        // Equal ones stay in their order, and a NaN score is the worst.
        ranked.sort_by(|(_, one), (_, other)| one.is_nan().cmp(&other.is_nan()).then(other.total_cmp(one)));
        let best = ranked.into_iter().take(top_n.unwrap_or(usize::MAX));
        let results: Vec<Value> =
            best.map(|(index, score)| json!({"index": index, "relevance_score": f64::from(score)})).collect();
        Ok(success(json!({"results": results, "usage": usage(n_all)}), fields.finish()))
    }

    /// The engine, and the texts that it embeds. `function`: the caller, for messages.
    pub(super) fn embedder(&self, function: &str) -> Result<(&WorkerHandle, EmbeddingLimits)> {
        let worker = self.worker()?;
        let key = if function == "rerank" { "reranking" } else { "embedding" };
        let limits = worker.embedding_limits();
        let limits = limits
            .ok_or_else(|| Error::invalid(format!("{function}: the model was not loaded with \"{key}\": true")))?;
        Ok((worker, limits))
    }
}

fn usage(n_tokens: usize) -> Value {
    json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens})
}

/// Refuses a text without tokens, or with too many.
pub(super) fn check_length(name: &str, tokens: &[Token], limits: EmbeddingLimits) -> Result<()> {
    let (n, most) = (tokens.len(), limits.n_tokens);
    if tokens.is_empty() {
        return Err(Error::invalid(format!("{name}: has no tokens, and the model adds none")));
    }
    if n > most {
        let message = format!("{name}: {n} tokens, where an embedding is made of at most {most}");
        return Err(Error::context_full(message, n, most));
    }
    Ok(())
}

/// Removes the end of a text that has more than `most` tokens, but keeps a last EOS or SEP that the vocabulary adds.
fn cut(tokens: &mut Vec<Token>, most: usize, vocab: &Vocab) {
    if tokens.len() <= most {
        return;
    }
    let added = [vocab.eos().filter(|_| vocab.adds_eos()), vocab.sep().filter(|_| vocab.adds_sep())];
    let end = tokens.last().copied().filter(|last| added.contains(&Some(*last)) && most > 1);
    tokens.truncate(most);
    if let (Some(end), Some(last)) = (end, tokens.last_mut()) {
        *last = end;
    }
}

/// A query with each document as the model's classifier reads them, like llama-server.
struct RerankPairs<'a> {
    serving: ServingModel,
    query: &'a str,
    /// The model's own template.
    template: Option<String>,
    /// The template's marks that are no control tokens.
    marks: Vec<Token>,
    /// The tokens before a document, without a template.
    before: Vec<Token>,
    /// The token after a document, without a template.
    end: Option<Token>,
}

impl RerankPairs<'_> {
    fn new(serving: ServingModel, query: &str) -> Result<RerankPairs<'_>> {
        let vocab = serving.vocab();
        let template = serving.model.rerank_template();
        let sep = vocab.sep().filter(|_| vocab.adds_sep());
        let eos = vocab.eos().or(vocab.sep()).filter(|_| vocab.adds_eos());
        let bos = vocab.bos().filter(|_| vocab.adds_bos());
        let mut before: Vec<Token> = bos.into_iter().collect();
        if template.is_none() {
            before.extend(vocab.tokenize_data(query.as_bytes(), false)?);
        }
        before.extend(eos.into_iter().chain(sep));
        let marks = vocab.specials().guarded(template.as_deref().into_iter()).into_marks();
        Ok(RerankPairs { query, template, marks, before, end: eos.or(sep), serving })
    }

    fn tokenize(&self, document: &str) -> Result<Vec<Token>> {
        let vocab = self.serving.vocab();
        let Some(template) = &self.template else {
            let document = vocab.tokenize_data(document.as_bytes(), false)?;
            return Ok([&self.before, document.as_slice(), self.end.as_slice()].concat());
        };
        let (text, data) = filled(template, self.query, document);
        vocab.tokenize_tainted_alone(text.as_bytes(), &data, &self.marks)
    }

    /// The tokens with the longest beginning of the document with which they are at most `most`; or with none of it.
    fn tokenize_beginning(&self, document: &str, most: usize) -> Result<Vec<Token>> {
        let ends: Vec<usize> = document.char_indices().map(|(at, _)| at).collect();
        let (mut fitting, mut low, mut high) = (self.tokenize("")?, 0, ends.len());
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            let end = ends.get(middle).copied().unwrap_or(0);
            let tokens = self.tokenize(document.get(..end).unwrap_or_default())?;
            if tokens.len() <= most {
                (fitting, low) = (tokens, middle);
            } else {
                high = middle;
            }
        }
        Ok(fitting)
    }
}

/// The template's text with the query and the document, and the ends of their characters in it.
fn filled(template: &str, query: &str, document: &str) -> (String, Vec<usize>) {
    let (mut text, mut data, mut rest) = (String::new(), Vec::new(), template);
    let places = [("{query}", query), ("{document}", document)];
    let next = |rest: &str| places.into_iter().filter_map(|place| Some((rest.find(place.0)?, place))).min();
    while let Some((at, (name, given))) = next(rest) {
        let (before, after) = rest.split_at(at);
        text.push_str(before);
        data.extend(given.char_indices().map(|(at, c)| text.len() + at + c.len_utf8()));
        text.push_str(given);
        rest = after.strip_prefix(name).unwrap_or_default();
    }
    text.push_str(rest);
    (text, data)
}

/// Reads `documents`, each with its name for messages: strings, or objects with a `text`.
fn documents(fields: &mut Fields) -> Result<Vec<(String, String)>> {
    let read = |name: &str, value: &Value| match value {
        Value::Object(map) => Ok((name.to_owned(), document_text(name, map)?)),
        _ => Ok((name.to_owned(), c_text_in(name, value)?.to_owned())),
    };
    let documents = fields.list("documents", "an array of strings", read)?;
    match documents {
        Some(documents) if !documents.is_empty() => Ok(documents),
        Some(_) => Err(Error::invalid("documents: expected at least one, got none")),
        None => Err(unexpected("documents", "an array of strings", &Value::Null)),
    }
}

fn document_text(name: &str, document: &Map<String, Value>) -> Result<String> {
    let text = document.get("text").and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| {
        Error::invalid(format!(
            "{name}: expected a string or {{\"text\": ...}}, got {}",
            show(&document.clone().into())
        ))
    })
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
    let other = ["content", "prompt"].into_iter().find(|other| fields.is_given(other));
    let Some(input) = fields.get(INPUT) else {
        other.ok_or_else(|| unexpected(INPUT, "a string or an array of strings", &Value::Null))?;
        let (name, text) = text(fields, "content", "prompt")?;
        if text.iter().filter(|piece| matches!(piece, Piece::Text(_))).count() > 1 {
            fields.warn(format!(
                "{name}: its parts are one text with one embedding; an array input has one for each text"
            ));
        }
        return Ok(EmbeddedTexts { texts: vec![(name.to_owned(), text)], is_list: false });
    };
    if let Some(other) = other {
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
