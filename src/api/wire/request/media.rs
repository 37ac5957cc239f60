//! The pictures and sounds in the messages of a request.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

use crate::api::wire::fields::{Fields, c_text_in, unexpected};
use crate::error::{Error, Result};
use crate::llama::Bitmap;

/// The character before and after the number of a picture or a sound, where it is in the text of a message. It is in no text that is interchanged.
const MARK: char = '\u{fdef}';
/// The most pictures and sounds of a request.
const MAX_MEDIA: usize = 32;
/// The longest side of a picture.
const MAX_SIDE: i64 = 64_000_000;
/// The largest file of a picture or a sound.
const MAX_FILE: u64 = 256 << 20;
/// The bytes of a pixel in each format.
const FORMATS: [(&str, u32); 2] = [("rgb8", 3), ("rgba8", 4)];

/// A picture or a sound in a message.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenMedia {
    /// The name of its part, for error messages.
    pub name: String,
    pub source: MediaSource,
}

/// Whether an encoder of pictures or one of sounds takes a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    Pictures,
    Sounds,
}

/// Where a picture or a sound is.
#[derive(Debug, Clone, PartialEq)]
pub enum MediaSource {
    /// A file of the file system.
    Path(MediaKind, String),
    /// A file in base64.
    File(MediaKind, String),
    /// Pixels in base64.
    Pixels { width: u32, height: u32, bytes_per_pixel: u32, base64: String },
    /// Pixels that were copied from the host's memory.
    Copied(Arc<Bitmap>),
}

impl MediaSource {
    /// The word for others like it.
    pub fn kind(&self) -> &'static str {
        match self {
            MediaSource::Path(MediaKind::Sounds, _) | MediaSource::File(MediaKind::Sounds, _) => "sounds",
            _ => "pictures",
        }
    }

    /// Whether the request has it, so that the same request has the same one.
    pub fn is_in_request(&self) -> bool {
        matches!(self, MediaSource::File(..) | MediaSource::Pixels { .. })
    }
}

/// The text that stands for the picture or the sound with this number.
pub fn mark_of(number: usize) -> String {
    format!("{MARK}{number}{MARK}")
}

/// Whether a text stands for a picture or a sound.
pub fn is_mark(text: &str) -> bool {
    text.starts_with(MARK)
}

/// Whether a text ends with a picture or a sound.
pub fn ends_with_mark(text: &str) -> bool {
    text.ends_with(MARK)
}

/// The pictures and sounds in a text, in their order: the range of each mark, and its number.
pub fn marks_in(text: &str) -> Vec<(std::ops::Range<usize>, usize)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = text.get(from..).and_then(|rest| rest.find(MARK)).map(|at| from + at) {
        let inner = start + MARK.len_utf8();
        let Some(len) = text.get(inner..).and_then(|rest| rest.find(MARK)) else { break };
        from = inner + len + MARK.len_utf8();
        match text.get(inner..inner + len).and_then(|number| number.parse().ok()) {
            Some(number) => found.push((start..from, number)),
            None => from = inner + len,
        }
    }
    found
}

/// Adds the picture or the sound of a part to `all`, and returns the part that stands for it. `None`: the part is neither.
///
/// # Errors
/// A field of it has the wrong type, or its memory cannot be read.
pub(super) fn replaced(name: &str, part: &Value, role: &str, all: &mut Vec<GivenMedia>) -> Result<Option<Value>> {
    let Some(source) = source_of(name, part)? else { return Ok(None) };
    if role != "user" {
        return Err(Error::invalid(format!(
            "{name}: expected text, because {} are in user messages only, not in those of {role}",
            source.kind()
        )));
    }
    if all.len() == MAX_MEDIA {
        return Err(Error::invalid(format!("{name}: expected at most {MAX_MEDIA} pictures and sounds in a request")));
    }
    let text = mark_of(all.len());
    all.push(GivenMedia { name: name.to_owned(), source });
    Ok(Some(json!({"type": "text", "text": text})))
}

/// Replaces the pictures and sounds in the messages of a request that only this process can read, in its memory and in files, so that another one can.
/// Returns whether there were any.
///
/// # Errors
/// One cannot be read.
pub fn embed(request: &mut Map<String, Value>) -> Result<bool> {
    let mut n = 0;
    let messages = request.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten();
    for (message, value) in messages.enumerate() {
        let parts = value.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
        for (at, part) in parts.enumerate().filter(|(_, part)| part.get("text").is_none()) {
            let name = format!("messages[{message}].content[{at}]");
            let embedded = match source_of(&name, part)? {
                Some(MediaSource::Path(kind, path)) => {
                    let file = STANDARD_NO_PAD.encode(file(&path).map_err(|error| error.within(&name))?);
                    match kind {
                        MediaKind::Pictures => {
                            json!({"type": "image_url", "image_url": {"url": format!("data:;base64,{file}")}})
                        }
                        MediaKind::Sounds => json!({"type": "input_audio", "input_audio": {"data": file}}),
                    }
                }
                Some(MediaSource::Copied(bitmap)) => {
                    let (width, height, pixels) =
                        (bitmap.width(), bitmap.height(), STANDARD_NO_PAD.encode(bitmap.bytes()));
                    json!({"type": "image", "width": width, "height": height, "format": "rgb8", "base64": pixels})
                }
                _ => continue,
            };
            n += 1;
            // The request is refused when it is read.
            if n > MAX_MEDIA {
                return Ok(true);
            }
            *part = embedded;
        }
    }
    Ok(n > 0)
}

/// Reads the file of a picture or a sound.
///
/// # Errors
/// It cannot be read, or is too large.
pub fn file(path: &str) -> Result<Vec<u8>> {
    let path = Path::new(path);
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
    read.map_err(|error| Error::file(path, &error, format!("cannot be read: {}: {error}", path.display())))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::invalid(format!("{}: expected a file of at most {MAX_FILE} bytes", path.display())));
    }
    Ok(bytes)
}

/// Where the picture or the sound of a part is. `None`: the part is neither.
fn source_of(name: &str, part: &Value) -> Result<Option<MediaSource>> {
    match part.get("type").and_then(Value::as_str) {
        Some("image_url") => of_url(name, part.get("image_url").unwrap_or(&Value::Null)).map(Some),
        Some("image") => of_pixels(name, part).map(Some),
        Some("input_audio") => of_sound(name, part.get("input_audio").unwrap_or(&Value::Null)).map(Some),
        _ => Ok(None),
    }
}

/// Reads `image_url`: `{"url": ...}` or a text, which is a data URI, a `file://` URI, or a path.
fn of_url(name: &str, value: &Value) -> Result<MediaSource> {
    let name = format!("{name}.image_url.url");
    let url = c_text_in(&name, value.get("url").unwrap_or(value))?;
    if let Some(data) = url.strip_prefix("data:") {
        let encoded = data.split_once(',').filter(|(kind, _)| kind.ends_with(";base64"));
        let refused = || {
            unexpected(&name, "a data URI with ;base64, or a path", &url.chars().take(40).collect::<String>().into())
        };
        return Ok(MediaSource::File(MediaKind::Pictures, encoded.ok_or_else(refused)?.1.to_owned()));
    }
    of_path(MediaKind::Pictures, &name, url, "a data URI or a path (nothing is downloaded)")
}

/// Reads a sound: `data`, which is a file in base64, or `path`. `format` changes nothing, because the file says what it is.
fn of_sound(name: &str, value: &Value) -> Result<MediaSource> {
    const FORMATS: [(&str, ()); 3] = [("wav", ()), ("mp3", ()), ("flac", ())];
    let name = format!("{name}.input_audio");
    let sound = value.as_object().ok_or_else(|| unexpected(&name, "an object with data or path", value))?;
    let mut fields = Fields::nested(format!("{name}."), sound);
    fields.word("format", &FORMATS)?;
    match (fields.c_text("data")?, fields.c_text("path")?) {
        (Some(base64), None) => Ok(MediaSource::File(MediaKind::Sounds, base64)),
        (None, Some(path)) => {
            of_path(MediaKind::Sounds, &format!("{name}.path"), &path, "a path (nothing is downloaded)")
        }
        _ => Err(Error::invalid(format!("{name}: expected either data or path"))),
    }
}

/// Reads a path or a `file://` URI.
fn of_path(kind: MediaKind, name: &str, url: &str, expected: &str) -> Result<MediaSource> {
    let path = url.strip_prefix("file://").unwrap_or(url);
    if path.is_empty() || path.contains("://") {
        return Err(unexpected(name, expected, &url.into()));
    }
    Ok(MediaSource::Path(kind, path.to_owned()))
}

/// Reads pixels: `width`, `height`, `format`, and `base64` or `address`.
fn of_pixels(name: &str, part: &Value) -> Result<MediaSource> {
    let none = Map::new();
    let mut fields = Fields::nested(format!("{name}."), part.as_object().unwrap_or(&none));
    let absent = |key: &str, expected: &str| Error::invalid(format!("{name}.{key}: expected {expected}, got nothing"));
    let mut side =
        |key: &'static str| fields.int(key, 1..=MAX_SIDE)?.ok_or_else(|| absent(key, "the number of pixels"));
    let (width, height) = (side("width")?, side("height")?);
    let bytes_per_pixel = fields.word("format", &FORMATS)?.ok_or_else(|| absent("format", "\"rgb8\" or \"rgba8\""))?;
    let address: Option<u64> = fields.int("address", 0..=i64::MAX)?;
    match (fields.c_text("base64")?, address) {
        (Some(base64), None) => Ok(MediaSource::Pixels { width, height, bytes_per_pixel, base64 }),
        (None, Some(address)) => {
            let bitmap = Bitmap::from_memory(width, height, bytes_per_pixel, address);
            Ok(MediaSource::Copied(Arc::new(bitmap.map_err(|error| error.within(name))?)))
        }
        _ => Err(Error::invalid(format!("{name}: expected either base64 or address"))),
    }
}

/// The bytes of a text in base64, with the letters of texts or of URLs, with or without padding. `None`: it is none.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    let engine = if text.contains(['-', '_']) { URL_SAFE_NO_PAD } else { STANDARD_NO_PAD };
    engine.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_in_both_alphabets_with_or_without_padding() {
        for text in ["-_8A", "+/8A", "+/8=", "+/8", "", "+_8=", "+/8A\n", "a"] {
            let read = from_base64(text);
            let expected: Option<&[u8]> = match text {
                "-_8A" | "+/8A" => Some(&[0xfb, 0xff, 0]),
                "+/8=" | "+/8" => Some(&[0xfb, 0xff]),
                "" => Some(&[]),
                _ => None,
            };
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }
}
