//! Where the bytes of a GGUF file are: a path, a part of a file that the host has open, or the host's memory.
//!
//! llama.cpp reads a file that has no path through a `FILE *` ([`Stream`]). The stream covers exactly the part that the host
//! names, reads with `pread`, and so never moves the host's file position. Memory is read by the kernel (`process_vm_readv`),
//! which reports an address that is not mapped.

use std::ffi::{CString, OsStr, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::guard::{Why, foredraft_can_multiply};
use super::{log, shards};
use crate::atomic_write;
use crate::error::{Error, Result};

/// A GGUF file, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GgufSource {
    /// A file of the file system.
    Path(PathBuf),
    /// A part of a file that the host has open.
    Descriptor {
        /// The host's file descriptor. It stays the host's, and must stay open until the load has ended.
        fd: i32,
        /// Where the part begins, in bytes.
        offset: u64,
        /// Its length in bytes; `None`: to the end of the file.
        length: Option<u64>,
    },
    /// The host's memory, which must stay as it is until the load has ended.
    Memory {
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        length: u64,
    },
}

impl fmt::Display for GgufSource {
    /// A path, or words that name the part.
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
    /// Bytes; 1 for a file that cannot be looked at, which the load reports.
    pub fn len_estimate(&self) -> u64 {
        match self {
            GgufSource::Path(path) => std::fs::metadata(path).map_or(1, |file| file.len()),
            GgufSource::Descriptor { length: Some(length), .. } | GgufSource::Memory { length, .. } => *length,
            GgufSource::Descriptor { .. } => Stream::open("", self, false).map_or(1, |stream| stream.len()),
        }
    }
}

/// A GGUF file that was looked at and can be handed to llama.cpp, by its path or as a stream.
pub(super) struct GgufFile {
    path: CString,
    stream: Option<Stream>,
    /// Whether llama.cpp can map it.
    pub(super) can_map: bool,
    /// The formats of its weights: a bit for each `ggml_type`.
    pub(super) formats: u64,
}

impl GgufFile {
    /// Opens a file and refuses, with a readable message, what llama.cpp would refuse without one. `name`: the field.
    pub(super) fn open(name: &str, source: &GgufSource, use_mmap: bool) -> Result<GgufFile> {
        match source {
            GgufSource::Path(path) => {
                let mut formats = 0;
                for file in shards::of(path) {
                    formats |= check_file(name, &file)?;
                }
                Ok(GgufFile { path: c_path(path)?, stream: None, can_map: true, formats })
            }
            _ => {
                let can_map = use_mmap && matches!(source, GgufSource::Descriptor { .. });
                let stream = Stream::open(name, source, can_map)?;
                let formats = check_stream(&stream, name, source)?;
                Ok(GgufFile { path: CString::default(), stream: Some(stream), can_map, formats })
            }
        }
    }

    pub(super) fn path(&self) -> *const c_char {
        self.path.as_ptr()
    }

    /// NULL where there is a path.
    pub(super) fn stream(&self) -> *mut c_void {
        self.stream.as_ref().map_or(std::ptr::null_mut(), Stream::as_ptr)
    }

    pub(super) fn start(&self) -> u64 {
        self.stream.as_ref().map_or(0, Stream::start)
    }
}

/// Refuses what is no model, with a readable message; the formats of its weights.
fn check_stream(stream: &Stream, name: &str, source: &GgufSource) -> Result<u64> {
    let refuse = |why: &str| Err(Error::model(format!("{name}: {source}: {why}")));
    let mut magic = [0_u8; 4];
    match stream.read_at(0, &mut magic) {
        4 if &magic == b"GGUF" => {}
        4 => return refuse("is not a GGUF file"),
        _ if stream.len() < 4 => return refuse("is empty or truncated"),
        _ => return refuse("cannot be read"),
    }
    check_weights(std::ptr::null(), stream.as_ptr(), stream.start(), stream.len()).or_else(|why| refuse(&why))
}

/// Refuses a missing or foreign file with a readable message; the formats of its weights. `name`: the field that names the file.
fn check_file(name: &str, path: &Path) -> Result<u64> {
    let refuse = |why: &str| Err(Error::model(format!("{name}: {}: {why}", path.display())));
    let mut file = atomic_write::open(path).map_err(|error| Error::model(error.within(name).message()))?;
    let mut magic = [0_u8; 4];
    match std::io::Read::read_exact(&mut file, &mut magic) {
        Ok(()) if &magic == b"GGUF" => {}
        Ok(()) => return refuse("is not a GGUF file"),
        Err(_) => return refuse("is empty or truncated"),
    }
    check_weights(c_path(path)?.as_ptr(), std::ptr::null_mut(), 0, 0).or_else(|why| refuse(&why))
}

/// Refuses weights that cannot be multiplied with; the formats of those that can.
fn check_weights(
    path: *const c_char,
    stream: *mut c_void,
    start: u64,
    length: u64,
) -> std::result::Result<u64, String> {
    let (mut why, mut formats) = (Why::new(), 0);
    // SAFETY: the path ends with NUL, or the stream is open; exceptions end in the guard. What it logs the loader will log again.
    let (can, _) = log::collecting(|| unsafe {
        foredraft_can_multiply(path, stream, start, length, &raw mut formats, why.ptr(), why.size())
    });
    if can { Ok(formats) } else { Err(why.message()) }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| Error::invalid(format!("the path {path:?} contains NUL")))
}

/// A `FILE *` over a [`GgufSource`] that is no path. Closed when it is dropped; the host's descriptor stays open.
pub(super) struct Stream {
    file: NonNull<c_void>,
    start: u64,
    len: u64,
}

unsafe extern "C" {
    fn foredraft_stream_open(
        fd: i32,
        start: u64,
        length: *mut u64,
        mapped: bool,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut c_void;
    fn foredraft_stream_close(file: *mut c_void);
    fn foredraft_stream_read(file: *mut c_void, at: u64, to: *mut u8, size: usize) -> usize;
}

/// A length that reaches to the end of the file.
const TO_THE_END: u64 = u64::MAX;

impl Stream {
    /// Opens it. `mapped`: llama.cpp may map the file, which needs a descriptor of its own and ignores the part's end.
    ///
    /// # Errors
    /// `name`, the field, and what is wrong: no open descriptor, no regular file, a part beyond its end, no such streams on
    /// this platform. A path is none.
    pub(super) fn open(name: &str, source: &GgufSource, mapped: bool) -> Result<Stream> {
        let (fd, start, length) = match source {
            GgufSource::Path(path) => return Err(Error::invalid(format!("{name}: {} is a path", path.display()))),
            GgufSource::Descriptor { fd, offset, length } => (*fd, *offset, length.unwrap_or(TO_THE_END)),
            GgufSource::Memory { address, length } => (-1, *address, *length),
        };
        let (mut why, mut len) = (Why::new(), length);
        // SAFETY: `len` and the buffer live during the call. A number that is no descriptor is refused there; memory is not
        // touched before it is read.
        let file = unsafe { foredraft_stream_open(fd, start, &raw mut len, mapped, why.ptr(), why.size()) };
        let file = NonNull::new(file).ok_or_else(|| Error::invalid(format!("{name}: {source}: {}", why.message())))?;
        Ok(Stream { file, start: if mapped { start } else { 0 }, len })
    }

    /// Bytes of the part.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Where the part begins in the stream: not 0 only where the whole file may be mapped.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Reads from byte `at` of the part. Fewer bytes than asked for: its end, or they cannot be read.
    pub(super) fn read_at(&self, at: u64, to: &mut [u8]) -> usize {
        let size = usize::try_from(self.len.saturating_sub(at)).map_or(to.len(), |left| left.min(to.len()));
        // SAFETY: the stream is open, and `to` has room for `size` bytes.
        unsafe { foredraft_stream_read(self.file.as_ptr(), self.start + at, to.as_mut_ptr(), size) }
    }

    /// For the guarded calls.
    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.file.as_ptr()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was opened and is closed once.
        unsafe { foredraft_stream_close(self.file.as_ptr()) }
    }
}
