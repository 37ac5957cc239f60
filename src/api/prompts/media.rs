//! The pictures and sounds of a chat in its prompt.

use std::sync::Arc;

use serde_json::Value;

use crate::api::prompts::chat::Rendered;
use crate::api::prompts::{PromptInterrupt, ServingModel};
use crate::api::wire::request::{
    ChatInput, MediaKind, MediaSource, from_base64, is_mark, mark_of, marks_in, media_file,
};
use crate::error::{Error, Result};
use crate::llama::{Bitmap, EncodedMedia, MediaCache, NumberedMedia, StopSignal, Token, Vocab};

/// The text that stands for a picture or a sound where a prompt is shown, as in llama.cpp.
pub const MEDIA: &str = "<__media__>";

/// The pictures and sounds of a chat, cut and numbered.
#[derive(Default)]
pub(super) struct ChatMedia {
    cache: Option<Arc<MediaCache>>,
    numbered: Vec<NumberedMedia>,
}

impl ChatMedia {
    /// Reads the pictures and sounds of a chat.
    ///
    /// # Errors
    /// The model takes none, or one cannot be read.
    pub(super) fn read(serving: &ServingModel, chat: &ChatInput, interrupt: &PromptInterrupt) -> Result<ChatMedia> {
        let Some(first) = chat.media.first() else { return Ok(ChatMedia::default()) };
        let without = || {
            let message = format!(
                "{}: expected text, because the model takes no {} (load its projector with mmproj)",
                first.name,
                first.source.kind()
            );
            Error::invalid(message)
        };
        let cache = serving.media.clone().ok_or_else(without)?;
        if !of_messages(chat, &chat.messages).into_iter().eq(0..chat.media.len()) {
            return Err(Error::invalid("messages: expected no U+FDEF in the text beside pictures or sounds"));
        }
        let numbered = chat.media.iter().map(|given| {
            interrupt.check()?;
            number(&given.source, &cache, &interrupt.for_template()).map_err(|error| error.within(&given.name))
        });
        let numbered = numbered.collect::<Result<_>>()?;
        Ok(ChatMedia { cache: Some(cache), numbered })
    }

    /// The tokens of a rendered prompt, with those of its pictures and sounds in the places of their marks.
    ///
    /// # Errors
    /// The template left out one or showed one twice; and those of the tokenizer.
    pub(super) fn tokenize(&self, vocab: &Vocab, rendered: &Rendered, expected: &[usize]) -> Result<Vec<Token>> {
        let Rendered { text, tainted, marks } = rendered;
        if self.numbered.is_empty() {
            return vocab.tokenize_tainted(text.as_bytes(), tainted, marks);
        }
        let found = marks_in(text);
        if !found.iter().map(|(_, number)| *number).eq(expected.iter().copied()) {
            return Err(Error::invalid(
                "messages: the chat template leaves out a picture or a sound, or changes their order",
            ));
        }
        let mut parts: Vec<Vec<Token>> = Vec::new();
        let (mut from, mut rest) = (0, tainted.as_slice());
        for (range, number) in
            found.iter().map(|(range, number)| (range.clone(), Some(*number))).chain([(text.len()..text.len(), None)])
        {
            let (before, after) = rest.split_at(rest.partition_point(|end| *end <= range.start));
            let own: Vec<usize> =
                before.iter().filter_map(|end| end.checked_sub(from)).filter(|end| *end > 0).collect();
            let part = text.get(from..range.start).unwrap_or_default();
            parts.push(vocab.tokenize_tainted_alone(part.as_bytes(), &own, marks)?);
            parts.extend(number.and_then(|number| self.numbered.get(number)).map(|medium| medium.tokens().collect()));
            (from, rest) = (range.end, after);
        }
        vocab.with_ends(parts.concat())
    }

    /// The rows of the pictures and sounds that are in a text.
    ///
    /// # Errors
    /// The encoder fails, or `interrupt` ended it.
    pub(super) fn encode(&self, text: &str, interrupt: &PromptInterrupt) -> Result<Arc<[Arc<EncodedMedia>]>> {
        let Some(cache) = &self.cache else { return Ok(Arc::default()) };
        let shown = marks_in(text).into_iter().filter_map(|(_, number)| self.numbered.get(number));
        shown
            .map(|medium| {
                interrupt.check()?;
                cache.encode(medium, &interrupt.for_template())
            })
            .collect()
    }
}

/// The numbers of the pictures and sounds in messages, which may lack the oldest ones of the chat.
pub(super) fn of_messages(chat: &ChatInput, messages: &[Value]) -> Vec<usize> {
    if chat.media.is_empty() {
        return Vec::new();
    }
    let parts = messages.iter().filter_map(|message| message.get("content")?.as_array()).flatten();
    let texts = parts.filter_map(|part| part.get("text")?.as_str()).filter(|text| is_mark(text));
    texts.flat_map(marks_in).map(|(_, number)| number).collect()
}

/// A prompt as it is shown.
pub(super) fn shown(mut text: String, chat: &ChatInput) -> String {
    for number in 0..chat.media.len() {
        text = text.replace(&mark_of(number), MEDIA);
    }
    text
}

fn number(source: &MediaSource, cache: &MediaCache, stops: &StopSignal) -> Result<NumberedMedia> {
    let decoded = |text: &str| from_base64(text).ok_or_else(|| Error::invalid("expected base64, got other characters"));
    match source {
        MediaSource::Path(kind, path) => cache.number_file(&media_file(path)?, *kind == MediaKind::Sounds, stops),
        MediaSource::File(kind, base64) => cache.number_file(&decoded(base64)?, *kind == MediaKind::Sounds, stops),
        MediaSource::Pixels { width, height, bytes_per_pixel, base64 } => {
            cache.number(&Bitmap::from_pixels(*width, *height, *bytes_per_pixel, decoded(base64)?)?)
        }
        MediaSource::Copied(bitmap) => cache.number(bitmap),
    }
}
