//! Pictures and sounds in the messages of a request.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};

/// A picture or a sound in a message of the user, for a model with a projector (`mmproj`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostMedia<'a> {
    /// The file of a picture: PNG, JPEG, GIF or BMP.
    Picture(&'a Path),
    /// The pixels of a picture, row by row from the top: red, green and blue bytes.
    Rgb8 {
        /// The pixels of a row.
        width: u32,
        /// The number of rows.
        height: u32,
        /// `width * height * 3` bytes.
        pixels: &'a [u8],
    },
    /// The file of a sound: WAV, MP3 or FLAC.
    Sound(&'a Path),
}

impl HostMedia<'_> {
    /// The part of a message.
    pub(super) fn part(&self) -> Value {
        match self {
            HostMedia::Picture(path) => json!({"type": "image_url", "image_url": {"url": path.to_string_lossy()}}),
            HostMedia::Rgb8 { width, height, pixels } => {
                let base64 = STANDARD_NO_PAD.encode(pixels);
                json!({"type": "image", "width": width, "height": height, "format": "rgb8", "base64": base64})
            }
            HostMedia::Sound(path) => json!({"type": "input_audio", "input_audio": {"path": path.to_string_lossy()}}),
        }
    }
}
