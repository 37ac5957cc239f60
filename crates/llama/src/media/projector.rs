//! The encoder of an mmproj file, and what it makes of a picture or a sound.

use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use super::bitmap::Bitmap;
use super::encode::EncodeInterrupt;
use super::sound_file;
use crate::guard::ErrorBuffer;
use crate::model::identity::sample_source;
use crate::sources::gguf_source::{GgufFile, GgufSource, Role, WeightType};
use crate::{Model, PauseGate, RowPlace, ThreadPool, Token, log};
use foredraft_base::error::{Code, Error, Result};
use foredraft_base::work::StopSignal;
use foredraft_host::forks;
use foredraft_native::{foredraft_media_chunks, foredraft_media_encode, foredraft_projector_load};

/// The stack of the thread that encodes, in bytes.
const ENCODE_STACK: usize = 1 << 20;

/// The settings of a [`Projector`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectorParams {
    /// The mmproj file.
    pub source: GgufSource,
    /// The type of the weights of its layers, if they are larger in the file.
    pub weights: WeightType,
    /// The threads of an encode.
    pub n_threads: i32,
    /// The fewest tokens of a picture, for encoders whose number depends on its size. `None`: as the file says.
    pub min_tokens: Option<i32>,
    /// The most tokens of a picture.
    pub max_tokens: Option<i32>,
}

/// The encoder of an mmproj file, for the model that it was made for.
#[derive(Debug)]
pub struct Projector {
    ptr: NonNull<sys::mtmd_context>,
    /// An encode uses the memory of the context.
    encoding: Mutex<()>,
    model: Arc<Model>,
    /// See [`Projector::identity`].
    identity: String,
    weights: WeightType,
}

// SAFETY: only an encode changes the context, and `encoding` lets one run at a time. mtmd's other functions that are called here only read it.
unsafe impl Send for Projector {}
// SAFETY: as above.
unsafe impl Sync for Projector {}

/// A piece of a picture or a sound in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MediaPiece {
    /// Tokens of the model's own tags.
    Tokens(Vec<Token>),
    /// Rows of embeddings.
    Rows(MediaRows),
}

/// The rows of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaRows {
    /// Their number.
    pub n: usize,
    /// The place of each, if positions are four numbers (M-RoPE); or empty.
    pub places: Vec<RowPlace>,
    /// By how many positions they advance.
    pub n_positions: usize,
    /// Whether each attends to all of them, so that they are decoded together.
    pub is_non_causal: bool,
}

impl MediaRows {
    /// Whether all have the position of the first one: those of a picture, with M-RoPE.
    pub fn share_a_position(&self) -> bool {
        self.places.last().is_some_and(|last| last.t == 0)
    }
}

/// A picture or a sound that is scaled and cut for an encoder.
#[derive(Debug)]
pub struct CutMedia {
    chunks: NonNull<sys::mtmd_input_chunks>,
    pieces: Vec<MediaPiece>,
}

// SAFETY: the chunks do not change.
unsafe impl Send for CutMedia {}
// SAFETY: as above.
unsafe impl Sync for CutMedia {}

impl Projector {
    /// Loads an mmproj file for `model`.
    ///
    /// # Errors
    /// The file does not exist, is no mmproj, cannot be loaded, or belongs to another model.
    pub fn load(model: &Arc<Model>, params: &ProjectorParams) -> Result<Projector> {
        let ProjectorParams { source, weights, .. } = params;
        let file = GgufFile::open("mmproj", source, false, Role::Projector, &[])?;
        let file = file.with_weights(*weights, "mmproj", source, &[])?;
        let (min_tokens, max_tokens) = (params.min_tokens.unwrap_or(0), params.max_tokens.unwrap_or(0));
        let mut why = ErrorBuffer::new();
        // SAFETY: the path ends with NUL or the stream is open, and the model outlives the context. The guard catches exceptions.
        let (ptr, errors) = log::collecting(|| unsafe {
            let (path, stream, start, length) = (file.path(), file.stream(), file.start(), file.len());
            let (model, n, why_size) = (model.as_ptr(), params.n_threads, why.size());
            foredraft_projector_load(path, stream, start, length, model, n, min_tokens, max_tokens, why.ptr(), why_size)
        });
        let refused = || {
            let reasons: Vec<&str> = errors.iter().map(|error| reason(error)).collect();
            let reasons = format!("{} {}", reasons.join("; "), why.message());
            Error::model(format!("mmproj: {source}: {}", reasons.trim()))
        };
        let ptr = NonNull::new(ptr).ok_or_else(refused)?;
        let mut identity = format!("{} {min_tokens} {max_tokens} ", sample_source(source));
        if file.weights != WeightType::AsInFile {
            identity += file.weights.as_str();
        }
        let weights = file.weights;
        Ok(Projector { ptr, encoding: Mutex::new(()), model: Arc::clone(model), identity, weights })
    }

    /// A text that differs for projectors that make other rows of the same picture or sound: a checksum of samples of the file, and the settings.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// The type that the load gave to the weights of its layers.
    pub fn weight_type(&self) -> WeightType {
        self.weights
    }

    /// Whether it encodes pictures.
    pub fn has_vision(&self) -> bool {
        // SAFETY: the context is alive, also below.
        unsafe { sys::mtmd_support_vision(self.ptr.as_ptr()) }
    }

    /// Whether it encodes sounds.
    pub fn has_audio(&self) -> bool {
        // SAFETY: see above.
        unsafe { sys::mtmd_support_audio(self.ptr.as_ptr()) }
    }

    /// Whether rows have positions of four numbers (M-RoPE).
    pub fn uses_mrope(&self) -> bool {
        // SAFETY: see above.
        unsafe { sys::mtmd_decode_use_mrope(self.ptr.as_ptr()) }
    }

    /// Whether each row of a picture attends to all rows of its piece, so that they are decoded together.
    pub fn is_non_causal(&self) -> bool {
        // SAFETY: see above. Without a chunk, the answer is that for pictures.
        unsafe { sys::mtmd_decode_use_non_causal(self.ptr.as_ptr(), std::ptr::null()) }
    }

    /// The numbers of a row.
    pub fn n_embd(&self) -> usize {
        self.model.n_embd_input()
    }

    /// Reads a WAV, MP3 or FLAC file, in one channel with the rate that the encoder takes.
    ///
    /// # Errors
    /// There is no encoder of sounds; the file is none of these, damaged, empty or too long; or there is no memory.
    pub fn sound(&self, file: &[u8]) -> Result<Bitmap> {
        if !self.has_audio() {
            return Err(Error::invalid("the mmproj file has no encoder of sounds"));
        }
        Bitmap::from_sound(self.ptr.as_ptr(), &sound_file::checked(file)?)
    }

    /// Scales and cuts a picture or a sound. Any number of threads may do so at a time.
    ///
    /// # Errors
    /// There is no encoder for it, the encoder cannot take it, or there is no memory.
    pub fn cut(&self, bitmap: &Bitmap) -> Result<CutMedia> {
        if !bitmap.is_sound() && !self.has_vision() {
            return Err(Error::invalid("the mmproj file has no encoder of pictures"));
        }
        let mut why = ErrorBuffer::new();
        // SAFETY: both are alive during the call, which only reads them. The guard catches exceptions.
        let (chunks, errors) = log::collecting(|| unsafe {
            foredraft_media_chunks(self.ptr.as_ptr(), bitmap.as_ptr(), why.ptr(), why.size())
        });
        let refused = || why.error(&format!("cannot be prepared for the encoder: {}", errors.join("; ")));
        let chunks = NonNull::new(chunks).ok_or_else(refused)?;
        let mut medium = CutMedia { chunks, pieces: Vec::new() };
        for chunk in medium.chunks() {
            medium.pieces.push(self.piece(chunk)?);
        }
        Ok(medium)
    }

    /// The kind of a chunk.
    fn piece(&self, chunk: *const sys::mtmd_input_chunk) -> Result<MediaPiece> {
        let mut n = 0;
        // SAFETY: the chunk is alive. Its tokens belong to it, and are copied at once.
        let tokens = unsafe {
            if sys::mtmd_input_chunk_get_type(chunk) != sys::MTMD_INPUT_CHUNK_TYPE_TEXT {
                return self.rows(chunk).map(MediaPiece::Rows);
            }
            let tokens = sys::mtmd_input_chunk_get_tokens_text(chunk, &raw mut n);
            if n == 0 { &[] } else { std::slice::from_raw_parts(tokens, n) }
        };
        // mtmd puts -1 where the vocabulary lacks a tag.
        if tokens.iter().any(|token| !self.model.vocab().contains(*token)) {
            return Err(Error::model(
                "the model's vocabulary lacks the tags that the mmproj file's encoder puts around pictures or sounds",
            ));
        }
        Ok(MediaPiece::Tokens(tokens.to_vec()))
    }

    /// The rows of a chunk.
    fn rows(&self, chunk: *const sys::mtmd_input_chunk) -> Result<MediaRows> {
        // SAFETY: the projector and the chunk are alive, and its rows are as many as its tokens.
        unsafe {
            let (n, n_positions) = (sys::mtmd_input_chunk_get_n_tokens(chunk), sys::mtmd_input_chunk_get_n_pos(chunk));
            let is_non_causal = sys::mtmd_decode_use_non_causal(self.ptr.as_ptr(), chunk);
            let n_positions = usize::try_from(n_positions).unwrap_or(0);
            let rows = MediaRows { n, places: Vec::new(), n_positions, is_non_causal };
            if !self.uses_mrope() {
                return Ok(rows);
            }
            if sys::mtmd_input_chunk_get_type(chunk) == sys::MTMD_INPUT_CHUNK_TYPE_AUDIO {
                let places = (0..i32::try_from(n).unwrap_or(0)).map(|at| RowPlace { t: at, y: at, x: at });
                return Ok(MediaRows { places: places.collect(), ..rows });
            }
            let medium = sys::mtmd_input_chunk_get_tokens_image(chunk);
            let place = |at: usize| {
                let found = sys::mtmd_image_tokens_get_decoder_pos(medium, 1, at);
                // Others (HunyuanVL) also count the pictures before this one.
                let (is_known, y, x) =
                    ((found.t, found.z) == (1, 0), i32::try_from(found.y).ok()?, i32::try_from(found.x).ok()?);
                is_known.then_some(RowPlace { t: 0, y: y - 1, x: x - 1 })
            };
            let places = if medium.is_null() { None } else { (0..n).map(place).collect() };
            let unknown =
                || Error::model("the mmproj file's encoder gives rows positions of a kind that is not available yet");
            Ok(MediaRows { places: places.ok_or_else(unknown)?, ..rows })
        }
    }

    /// Encodes a picture or a sound: the rows of all its pieces, one after the other. Another encode is waited for. The encoder sleeps while `pauses`
    /// is closed, and has the priority, the CPUs and the frame budget of `threads`. `stops` is asked after each operation.
    ///
    /// Each piece is a graph. mtmd's batches are for pieces of one size and for four kinds of encoders (`support_batch`), and save nothing that counts:
    /// the products of one piece have hundreds of rows already.
    ///
    /// # Errors
    /// [`Code::Cancelled`]: `stops` was true. The encoder fails, or there is no memory.
    pub fn encode(
        &self,
        medium: &CutMedia,
        pauses: &PauseGate,
        threads: &ThreadPool,
        stops: &StopSignal,
    ) -> Result<Vec<f32>> {
        // On a thread of its own, because threads that mtmd starts inherit the priority.
        let encode = || {
            threads.place_starter();
            self.encode_here(medium, &EncodeInterrupt::new(pauses, threads, stops))
        };
        forks::run_with_stack("foredraft-see", ENCODE_STACK, encode)
            .map_err(|error| Error::exhausted(format!("no thread for the encoder of pictures and sounds: {error}")))?
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn encode_here(&self, medium: &CutMedia, interrupt: &EncodeInterrupt<'_>) -> Result<Vec<f32>> {
        let mut rows = Vec::new();
        for (chunk, piece) in medium.chunks().zip(&medium.pieces) {
            let MediaPiece::Rows(MediaRows { n, .. }) = piece else { continue };
            let _alone = self.encoding.lock();
            let mut why = ErrorBuffer::new();
            // SAFETY: the projector and the chunk are alive, no other thread encodes, and the rows are copied before the next encode. Their
            // number is that of the chunk's tokens, with the numbers of an input of the model each. The guard catches exceptions.
            let (encoded, errors) = log::collecting(|| unsafe {
                if interrupt.asks() {
                    return None;
                }
                let ptr = self.ptr.as_ptr();
                let encode = |interrupt| foredraft_media_encode(ptr, chunk, interrupt, why.ptr(), why.size());
                let encoded = interrupt.during(encode);
                (!encoded.is_null()).then(|| std::slice::from_raw_parts(encoded, n * self.n_embd()))
            });
            if interrupt.is_stopped() {
                return Err(Error::new(Code::Cancelled, "the encoding of a picture or a sound was interrupted"));
            }
            rows.extend_from_slice(
                encoded.ok_or_else(|| why.error(&format!("the encoder failed: {}", errors.join("; "))))?,
            );
        }
        Ok(rows)
    }
}

impl Drop for Projector {
    fn drop(&mut self) {
        // SAFETY: the context is alive, only freed here, and freed before the model.
        unsafe { sys::mtmd_free(self.ptr.as_ptr()) }
    }
}

impl CutMedia {
    /// The pieces in the order of the prompt.
    pub fn pieces(&self) -> &[MediaPiece] {
        &self.pieces
    }

    /// The number of rows of all pieces.
    pub(super) fn n_rows(&self) -> usize {
        self.pieces.iter().map(|piece| if let MediaPiece::Rows(rows) = piece { rows.n } else { 0 }).sum()
    }

    fn chunks(&self) -> impl Iterator<Item = *const sys::mtmd_input_chunk> + use<> {
        let chunks = self.chunks;
        // SAFETY: the chunks are alive while it is, whose methods use the iterator.
        (0..unsafe { sys::mtmd_input_chunks_size(chunks.as_ptr()) })
            .map(move |at| unsafe { sys::mtmd_input_chunks_get(chunks.as_ptr(), at) })
    }
}

impl Drop for CutMedia {
    fn drop(&mut self) {
        // SAFETY: the chunks are alive, and only freed here.
        unsafe { sys::mtmd_input_chunks_free(self.chunks.as_ptr()) }
    }
}

/// A line of mtmd's log without the names of its functions and its hint.
fn reason(line: &str) -> &str {
    let line = line.rsplit_once("error: ").map_or(line, |(_, reason)| reason);
    line.split_once('\n').map_or(line, |(first, _)| first)
}
