//! The source of a GGUF file: a path, a part of a file that the host has opened, or the host's memory.
//!
//! Without a path, llama.cpp reads from a `FILE *` ([`Stream`]). The stream covers exactly the host's part of the file, and reads with
//! `pread`, so it does not change the host's file position. Memory is read by the kernel (`process_vm_readv`), which returns an error
//! for an address that is not mapped.

use std::ffi::{CString, OsStr, c_char, c_void};
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::shards;
use crate::guard::text;
use crate::guard::{ErrorBuffer, WeightsOfFormat};
use crate::kernels::layouts::WeightsOfType;
use crate::{Token, kernels, log};
use foredraft_base::atomic_write;
use foredraft_base::error::{Code, Error, Result};
use foredraft_native::{
    FOREDRAFT_DRAFT_KIND_ASSISTANT, FOREDRAFT_DRAFT_KIND_DFLASH, FOREDRAFT_DRAFT_KIND_DSPARK,
    FOREDRAFT_DRAFT_KIND_EAGLE3, FOREDRAFT_DRAFT_KIND_MODEL, FOREDRAFT_DRAFT_KIND_MTP, FOREDRAFT_N_FORMATS,
    FOREDRAFT_ROLE_ADAPTER, FOREDRAFT_ROLE_DRAFT, FOREDRAFT_ROLE_PROJECTOR, FOREDRAFT_ROLE_TARGET,
    foredraft_check_head, foredraft_draft_kind, foredraft_requantized_open, foredraft_role, foredraft_stream_close,
    foredraft_stream_open, foredraft_stream_read,
};
use llama_cpp_sys_2 as sys;

/// The source of a GGUF file, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GgufSource {
    /// A file of the file system.
    Path(PathBuf),
    /// A part of a file that the host has opened.
    Descriptor {
        /// The host's file descriptor. The host owns it, and must keep it open until the load has ended.
        fd: i32,
        /// The start of the part, in bytes.
        offset: u64,
        /// Its length in bytes; `None`: to the end of the file.
        length: Option<u64>,
    },
    /// The host's memory, which must not change until the load has ended.
    Memory {
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        length: u64,
    },
}

impl fmt::Display for GgufSource {
    /// The path, or a description of the part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufSource::Path(path) => write!(f, "{}", path.display()),
            GgufSource::Descriptor { fd, offset: 0, length: None } => write!(f, "file descriptor {fd}"),
            GgufSource::Descriptor { fd, offset, length: None } => write!(f, "file descriptor {fd} from byte {offset}"),
            GgufSource::Descriptor { fd, offset, length: Some(length) } => {
                write!(f, "{length} bytes of file descriptor {fd} from byte {offset}")
            }
            GgufSource::Memory { address, length } => write!(f, "{length} bytes of memory at {address:#x}"),
        }
    }
}

impl From<PathBuf> for GgufSource {
    fn from(path: PathBuf) -> Self {
        GgufSource::Path(path)
    }
}

impl From<String> for GgufSource {
    fn from(path: String) -> Self {
        GgufSource::Path(path.into())
    }
}

impl<T: AsRef<OsStr> + ?Sized> From<&T> for GgufSource {
    fn from(path: &T) -> Self {
        GgufSource::Path(path.into())
    }
}

impl GgufSource {
    /// The size in bytes. 1 if it cannot be read; the load reports that.
    pub fn len_estimate(&self) -> u64 {
        match self {
            GgufSource::Path(path) => std::fs::metadata(path).map_or(1, |file| file.len()),
            GgufSource::Descriptor { length: Some(length), .. } | GgufSource::Memory { length, .. } => *length,
            GgufSource::Descriptor { .. } => Stream::open("", self, false).map_or(1, |stream| stream.len()),
        }
    }
}

impl GgufSource {
    /// The paths of what llama.cpp maps; empty for memory.
    pub(crate) fn mapped_files(&self) -> Vec<PathBuf> {
        match self {
            GgufSource::Path(path) => shards::of(path),
            GgufSource::Descriptor { fd, .. } => vec![format!("/proc/self/fd/{fd}").into()],
            GgufSource::Memory { .. } => Vec::new(),
        }
    }
}

/// The host's purpose for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Role {
    Target = FOREDRAFT_ROLE_TARGET as i32,
    Draft = FOREDRAFT_ROLE_DRAFT as i32,
    Adapter = FOREDRAFT_ROLE_ADAPTER as i32,
    Projector = FOREDRAFT_ROLE_PROJECTOR as i32,
}

foredraft_base::words! {
    /// How a model file drafts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    #[repr(i32)]
    pub enum DraftKind {
        /// A model by itself.
        #[default]
        Model = FOREDRAFT_DRAFT_KIND_MODEL as i32 => "model",
        /// Layers for multi-token prediction in a file of their own.
        Mtp = FOREDRAFT_DRAFT_KIND_MTP as i32 => "mtp",
        /// EAGLE-3 (arXiv 2503.01840): a layer that reads the inputs of three of the target's layers.
        Eagle3 = FOREDRAFT_DRAFT_KIND_EAGLE3 as i32 => "eagle3",
        /// DFlash: predicts a block of tokens in one pass, from the inputs of the target's layers.
        Dflash = FOREDRAFT_DRAFT_KIND_DFLASH as i32 => "dflash",
        /// DSpark: DFlash with a head that conditions each token of the block on the one before.
        Dspark = FOREDRAFT_DRAFT_KIND_DSPARK as i32 => "dspark",
        /// An assistant of Gemma 4: layers that read the target's KV cache and its hidden states.
        Assistant = FOREDRAFT_DRAFT_KIND_ASSISTANT as i32 => "assistant",
    }
}

impl DraftKind {
    /// Whether it predicts a block of tokens in one pass.
    pub fn drafts_blocks(self) -> bool {
        matches!(self, DraftKind::Dflash | DraftKind::Dspark)
    }

    /// Whether it is a kind of multi-token prediction, which drafts with the target's hidden states after the last layer.
    pub fn reads_hidden(self) -> bool {
        matches!(self, DraftKind::Mtp | DraftKind::Assistant)
    }

    /// Whether such a file drafts with hidden states of its target, and so for no other.
    pub fn is_head(self) -> bool {
        self != DraftKind::Model
    }
}

foredraft_base::words! {
    /// The type that a load gives to the weights of a model. Weights that take no more bits stay as in the file, and so do vectors, matrices in
    /// F32 and draft heads.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum WeightType {
        /// Each as in the file.
        #[default]
        AsInFile => "file",
        /// 8.5 bits for each weight.
        Q8_0 => "q8_0",
        /// 4.5 bits for each weight.
        Q4_0 => "q4_0",
        /// As in the file until panels are made of them, which then have fewer bits where a measurement finds that faster.
        Measured => "measured",
    }
}

impl WeightType {
    /// ggml's type. `None`: that of the file.
    pub(crate) fn format(self) -> Option<sys::ggml_type> {
        match self {
            WeightType::AsInFile | WeightType::Measured => None,
            WeightType::Q8_0 => Some(sys::GGML_TYPE_Q8_0),
            WeightType::Q4_0 => Some(sys::GGML_TYPE_Q4_0),
        }
    }
}

/// The values of metadata that the host gives. The last one has an empty key, or there is none.
type Overrides = [sys::llama_model_kv_override];

/// A GGUF file that has been checked, for llama.cpp: a path or a stream.
pub(crate) struct GgufFile {
    path: CString,
    stream: Option<Stream>,
    /// The stream that `stream` reads, if it has other weights.
    _source: Option<Stream>,
    /// Whether llama.cpp can map it.
    pub(crate) can_map: bool,
    /// The formats of its weights.
    pub(crate) formats: WeightFormats,
    /// How it drafts.
    pub(crate) kind: DraftKind,
    /// The tokens that it calls control tokens, ascending.
    pub(crate) control_tokens: Vec<Token>,
    /// The type of the weights that llama.cpp reads.
    pub(crate) weights: WeightType,
    role: Role,
}

impl GgufFile {
    /// Opens and validates a file, with better messages than llama.cpp's. `name`: the field of the file.
    pub(crate) fn open(
        name: &str,
        source: &GgufSource,
        use_mmap: bool,
        role: Role,
        overrides: &Overrides,
    ) -> Result<GgufFile> {
        let mut check = HeadCheck::new(role, overrides);
        match source {
            GgufSource::Path(path) => {
                for file in shards::of(path) {
                    check_file(name, &file, &mut check)?;
                }
                Ok(GgufFile::checked(c_path(path)?, None, true, check))
            }
            _ => {
                let can_map = use_mmap && matches!(source, GgufSource::Descriptor { .. });
                let stream = Stream::open(name, source, can_map)?;
                check_stream(&stream, name, source, &mut check)?;
                Ok(GgufFile::checked(CString::default(), Some(stream), can_map, check))
            }
        }
    }

    fn checked(path: CString, stream: Option<Stream>, can_map: bool, check: HeadCheck) -> GgufFile {
        let HeadCheck { formats, kind, control_tokens, role, .. } = check;
        let (kind, weights) = (kind.unwrap_or_default(), WeightType::AsInFile);
        GgufFile { path, stream, _source: None, can_map, formats, kind, control_tokens, weights, role }
    }

    /// The file with its larger weights in a smaller type. They are quantized while llama.cpp reads them. A draft head stays as it is, and
    /// so does a file without larger weights. `name`: the field of the file, `source` and `overrides`: those that it was opened with.
    pub(crate) fn with_weights(
        self,
        weights: WeightType,
        name: &str,
        source: &GgufSource,
        overrides: &Overrides,
    ) -> Result<GgufFile> {
        let Some(format) = weights.format().filter(|_| !self.kind.is_head()) else { return Ok(self) };
        let paths = match source {
            GgufSource::Path(path) => shards::of(path).iter().map(|file| c_path(file)).collect::<Result<_>>()?,
            _ => Vec::new(),
        };
        let opened = Stream::requantized(&paths, self.stream.as_ref(), format);
        let Some(stream) = opened.map_err(|why| Error::model(format!("{name}: {source}: {why}")))? else {
            return Ok(self);
        };
        let mut check = HeadCheck::new(self.role, overrides);
        check_stream(&stream, name, source, &mut check)?;
        let (path, formats) = (CString::default(), check.formats);
        Ok(GgufFile { path, stream: Some(stream), _source: self.stream, can_map: false, formats, weights, ..self })
    }

    pub(crate) fn path(&self) -> *const c_char {
        self.path.as_ptr()
    }

    /// NULL if there is a path.
    pub(crate) fn stream(&self) -> *mut c_void {
        self.stream.as_ref().map_or(std::ptr::null_mut(), Stream::as_ptr)
    }

    pub(crate) fn start(&self) -> u64 {
        self.stream.as_ref().map_or(0, Stream::start)
    }

    /// The length of the stream, or 0.
    pub(crate) fn len(&self) -> u64 {
        self.stream.as_ref().map_or(0, Stream::len)
    }
}

/// The settings for the check of a model's files, and the formats of the weights so far.
struct HeadCheck<'a> {
    role: Role,
    overrides: &'a Overrides,
    formats: WeightFormats,
    /// As the first file says.
    kind: Option<DraftKind>,
    /// The tokens that the first file calls control tokens, ascending. The others have no vocabulary.
    control_tokens: Vec<Token>,
}

impl<'a> HeadCheck<'a> {
    fn new(role: Role, overrides: &'a Overrides) -> HeadCheck<'a> {
        HeadCheck { role, overrides, formats: WeightFormats::default(), kind: None, control_tokens: Vec::new() }
    }
}

/// Adds a token to the `Vec<Token>` at `tokens`.
unsafe extern "C" fn add_token(tokens: *mut c_void, token: Token) {
    // SAFETY: `check_head` passes its list, which nothing else uses during the call.
    unsafe { &mut *tokens.cast::<Vec<Token>>() }.push(token);
}

/// Validates a stream in advance, and adds the formats of its weights.
fn check_stream(stream: &Stream, name: &str, source: &GgufSource, check: &mut HeadCheck) -> Result<()> {
    let refuse = |why: &str| Err(Error::model(format!("{name}: {source}: {why}")));
    let mut head = [0_u8; HEAD];
    let n_read = stream.read_at(0, &mut head);
    if n_read < 4 && stream.len() >= 4 {
        return refuse("cannot be read");
    }
    check_format(head.get(..n_read).unwrap_or_default()).or_else(refuse)?;
    // SAFETY: the stream is open.
    let checked = unsafe { check_head(std::ptr::null(), stream.as_ptr(), stream.start(), stream.len(), check) };
    checked.or_else(|why| refuse(&why))
}

/// The bytes of a file by which its format is recognized.
const HEAD: usize = 64;

/// Checks that the first bytes of a file are those of a GGUF file. The error says what the file is instead.
fn check_format(head: &[u8]) -> std::result::Result<(), &'static str> {
    let text = head.trim_ascii_start();
    Err(if head.starts_with(b"GGUF") {
        return Ok(());
    } else if head.len() < 4 {
        "is empty or truncated"
    } else if text.starts_with(b"version https://git-lfs") {
        "is not a GGUF file, but a pointer of Git LFS: \"git lfs pull\" in its repository downloads the file"
    } else if text.starts_with(b"<") {
        "is not a GGUF file, but a web page: download the file itself, whose address on Hugging Face has /resolve/, not /blob/"
    } else if head.get(8) == Some(&b'{') {
        "is not a GGUF file, but a safetensors file: llama.cpp's convert_hf_to_gguf.py converts it"
    } else {
        "is not a GGUF file"
    })
}

/// The error for a file that does not exist. If the path is an address or the name of a repository, it names the program that downloads it.
fn with_program(path: &Path, error: Error) -> Error {
    let Some(given) = path.to_str() else { return error };
    let is_name = |text: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_allowed)
    };
    let is_repository = given.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name));
    let is_remote = ["hf:", "http://", "https://"].iter().any(|prefix| given.starts_with(prefix));
    if !is_remote && (!is_repository || given.ends_with(".gguf")) {
        return error;
    }
    let message =
        format!("{}; \"foredraft-get {given}\" downloads the model, and prints the path to load", error.message());
    Error::file(path, &ErrorKind::NotFound.into(), message)
}

/// Validates a file in advance, and adds the formats of its weights. `name`: the field of the file.
fn check_file(name: &str, path: &Path, check: &mut HeadCheck) -> Result<()> {
    let refuse = |why: &str| Err(Error::model(format!("{name}: {}: {why}", path.display())));
    let mut file = atomic_write::open(path).map_err(|error| {
        let error = if error.missing_file().is_some() { with_program(path, error) } else { error };
        error.within(name).with_code(Code::ModelError)
    })?;
    let mut head = Vec::new();
    if file.by_ref().take(HEAD as u64).read_to_end(&mut head).is_err() {
        return refuse("cannot be read");
    }
    check_format(&head).or_else(refuse)?;
    let length = file.metadata().map_or(u64::MAX, |file| file.len());
    let path = c_path(path)?;
    // SAFETY: the path is NUL-terminated.
    let checked = unsafe { check_head(path.as_ptr(), std::ptr::null_mut(), 0, length, check) };
    checked.or_else(|why| refuse(&why))
}

/// The weights of each `ggml_type`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightFormats([WeightsOfFormat; N_FORMATS]);

/// head.cpp asserts that ggml has no more.
const N_FORMATS: usize = FOREDRAFT_N_FORMATS as usize;

impl Default for WeightFormats {
    fn default() -> Self {
        WeightFormats([WeightsOfFormat { n: 0, bytes: 0, has_output_embeddings: false }; N_FORMATS])
    }
}

impl WeightFormats {
    /// The names of the types that this library's kernels do not multiply, and their numbers.
    pub(crate) fn fallback(&self) -> Vec<(String, u32)> {
        (0..)
            .zip(self.0)
            .filter(|(format, of)| of.n > 0 && !kernels::multiplies(*format))
            // SAFETY: the types come from a file that ggml has read, so it knows their names, which are static strings.
            .map(|(format, of)| (unsafe { text(sys::ggml_type_name(format)) }, of.n))
            .collect()
    }

    /// The types that the files have.
    pub(crate) fn all(&self) -> Vec<WeightsOfType> {
        let present = (0..).zip(self.0).filter(|(_, of)| of.n > 0);
        let of_type = |(format, of): (u32, WeightsOfFormat)| WeightsOfType {
            format,
            bytes: of.bytes,
            has_output_embeddings: of.has_output_embeddings,
        };
        present.map(of_type).collect()
    }
}

/// Checks the head of a file of `length` bytes, and adds the formats of its weights.
///
/// # Safety
/// `path` is NUL-terminated, or it is NULL and `stream` is open.
unsafe fn check_head(
    path: *const c_char,
    stream: *mut c_void,
    start: u64,
    length: u64,
    check: &mut HeadCheck,
) -> std::result::Result<(), String> {
    let mut why = ErrorBuffer::new();
    let overrides = if check.overrides.is_empty() { std::ptr::null() } else { check.overrides.as_ptr() };
    let (role, formats) = (check.role as foredraft_role, check.formats.0.as_mut_ptr());
    let (mut kind, control_tokens) = (0, &raw mut check.control_tokens);
    // SAFETY: by the caller the path or the stream is valid, and the overrides end with an empty key. The guard catches exceptions. Its log
    // lines are dropped, because the loader repeats them.
    let (can, _) = log::collecting(|| unsafe {
        foredraft_check_head(
            path,
            stream,
            start,
            length,
            role,
            overrides,
            formats,
            &raw mut kind,
            Some(add_token),
            control_tokens.cast(),
            why.ptr(),
            why.size(),
        )
    });
    let kind =
        DraftKind::WORDS.into_iter().map(|(_, known)| known).find(|known| *known as foredraft_draft_kind == kind);
    check.kind = check.kind.or(kind);
    if can { Ok(()) } else { Err(why.message()) }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| Error::invalid(format!("the path {path:?} contains NUL")))
}

/// A `FILE *` that reads a [`GgufSource`] without a path. It is closed when dropped; the host's descriptor stays open.
pub(crate) struct Stream {
    file: NonNull<c_void>,
    start: u64,
    len: u64,
}

/// A length that means: to the end of the file.
const TO_THE_END: u64 = u64::MAX;

impl Stream {
    /// Opens it. `mapped`: llama.cpp can map the file. For this the file is opened again, and the stream does not end with the part.
    ///
    /// # Errors
    /// The descriptor is not open or not a regular file, the part is beyond its end, the platform has no such streams, or the source is
    /// a path. `name`: the field, for the message.
    pub(crate) fn open(name: &str, source: &GgufSource, mapped: bool) -> Result<Stream> {
        let (fd, start, length) = match source {
            GgufSource::Path(path) => return Err(Error::invalid(format!("{name}: {} is a path", path.display()))),
            GgufSource::Descriptor { fd, offset, length } => (*fd, *offset, length.unwrap_or(TO_THE_END)),
            GgufSource::Memory { address, length } => (-1, *address, *length),
        };
        let (mut why, mut len) = (ErrorBuffer::new(), length);
        // SAFETY: `len` and the buffer outlive the call. It validates the descriptor, and does not access the memory.
        let file = unsafe { foredraft_stream_open(fd, start, &raw mut len, mapped, why.ptr(), why.size()) };
        let file = NonNull::new(file).ok_or_else(|| Error::invalid(format!("{name}: {source}: {}", why.message())))?;
        Ok(Stream { file, start: if mapped { start } else { 0 }, len })
    }

    /// Opens a file with its larger weights in the format `to`; `None`: it has none, or the platform has no such streams. The file is that
    /// at `paths`, or `stream`, which must then outlive this one.
    fn requantized(
        paths: &[CString],
        stream: Option<&Stream>,
        to: sys::ggml_type,
    ) -> std::result::Result<Option<Stream>, String> {
        let paths: Vec<*const c_char> = paths.iter().map(|path| path.as_ptr()).collect();
        let (source, start) = stream.map_or((std::ptr::null_mut(), 0), |stream| (stream.as_ptr(), stream.start));
        let (mut why, mut len) = (ErrorBuffer::new(), 0);
        // SAFETY: the paths are NUL-terminated, and the stream is open if there are none. `len` and the buffer outlive the call, and the
        // guard catches exceptions.
        let file = unsafe {
            foredraft_requantized_open(
                paths.as_ptr(),
                paths.len(),
                source,
                start,
                to,
                &raw mut len,
                why.ptr(),
                why.size(),
            )
        };
        match NonNull::new(file) {
            Some(file) => Ok(Some(Stream { file, start: 0, len })),
            None if why.message().is_empty() => Ok(None),
            None => Err(why.message()),
        }
    }

    /// The length of the part in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The start of the part in the stream. It is 0 unless the file can be mapped.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Reads from byte `at` of the part, and returns the number of bytes. It is less than requested at the end and after an error.
    pub(crate) fn read_at(&self, at: u64, to: &mut [u8]) -> usize {
        let size = usize::try_from(self.len.saturating_sub(at)).map_or(to.len(), |left| left.min(to.len()));
        // SAFETY: the stream is open, and `to` has at least `size` bytes.
        unsafe { foredraft_stream_read(self.file.as_ptr(), self.start + at, to.as_mut_ptr(), size) }
    }

    /// The pointer for guarded calls.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.file.as_ptr()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open, and only closed here.
        unsafe { foredraft_stream_close(self.file.as_ptr()) }
    }
}

#[cfg(test)]
mod tests;
