//! The pixels of a picture, or the samples of a sound.

use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::header;
use crate::guard::ErrorBuffer;
use crate::sources::gguf_source::{GgufSource, Stream};
use crate::{backend, log};
use foredraft_base::error::{Error, Result};
use foredraft_base::memory;
use foredraft_native::{foredraft_media_read, foredraft_picture_new};

/// The most pixels of a picture.
pub const MAX_PIXELS: u64 = 64_000_000;
/// The most that one side may be longer than the other. Encoders scale the longer one to a few hundred pixels, and the other must not vanish.
const MAX_RATIO: u64 = 200;
/// The largest sample of a sound, which others have from -1 to 1.
const MAX_SAMPLE: f32 = 1000.0;

/// A picture of red, green and blue bytes, or a sound of floating-point numbers (mtmd's word for both).
#[derive(Debug)]
pub struct Bitmap(NonNull<sys::mtmd_bitmap>);

// SAFETY: a bitmap is plain memory, and does not change.
unsafe impl Send for Bitmap {}
// SAFETY: as above.
unsafe impl Sync for Bitmap {}

impl Bitmap {
    /// Reads a PNG, JPEG, GIF (its first picture) or BMP file.
    ///
    /// # Errors
    /// It is none of these, damaged or too large, or there is no memory.
    pub fn from_file(file: &[u8]) -> Result<Bitmap> {
        backend::start();
        let size = header::size(file);
        let (width, height) = size.ok_or_else(|| Error::invalid("expected a PNG, JPEG, GIF or BMP file"))?;
        check_size(width, height)?;
        if !header::is_as_large_as_its_pixels(file) {
            return Err(Error::invalid("the picture is damaged: its data are not those of its size"));
        }
        // A picture needs no projector.
        let bitmap = Bitmap::read("picture", std::ptr::null(), file)?;
        check_size(bitmap.width(), bitmap.height()).map(|()| bitmap)
    }

    /// Reads the file of a sound whose length was checked, for a projector that takes sounds.
    ///
    /// # Errors
    /// It is damaged or has almost no samples or impossible ones, or there is no memory.
    pub(super) fn from_sound(projector: *const sys::mtmd_context, file: &[u8]) -> Result<Bitmap> {
        let bitmap = Bitmap::read("sound", projector, file)?;
        let samples = bitmap.bytes().chunks_exact(size_of::<f32>());
        if samples.len() < 2 {
            return Err(Error::invalid("the sound is empty"));
        }
        let mut samples = samples.filter_map(|bytes| bytes.try_into().ok().map(f32::from_ne_bytes));
        // Encoders square them.
        match samples.find(|sample| sample.is_nan() || sample.abs() > MAX_SAMPLE) {
            Some(sample) => Err(Error::invalid(format!("a sample is {sample}: expected about -1 to 1"))),
            None => Ok(bitmap),
        }
    }

    fn read(what: &str, projector: *const sys::mtmd_context, file: &[u8]) -> Result<Bitmap> {
        let mut why = ErrorBuffer::new();
        // SAFETY: the projector is alive or null, and the file is read during the call. The guard catches exceptions.
        let read = || unsafe { foredraft_media_read(projector, file.as_ptr(), file.len(), why.ptr(), why.size()) };
        let bitmap = NonNull::new(log::collecting(read).0).map(Bitmap);
        bitmap.ok_or_else(|| Error::invalid(format!("the {what} is damaged {}", why.message()).trim_end()))
    }

    /// Copies the pixels of a picture in the host's memory, `bytes_per_pixel` each: red, green, blue, and what is left out.
    ///
    /// # Errors
    /// The memory cannot be read; and those of [`Bitmap::from_pixels`].
    pub fn from_memory(width: u32, height: u32, bytes_per_pixel: u32, address: u64) -> Result<Bitmap> {
        check_size(width, height)?;
        let length = u64::from(width) * u64::from(height) * u64::from(bytes_per_pixel);
        let source = GgufSource::Memory { address, length };
        let mut pixels = memory::filled(usize::try_from(length).unwrap_or(usize::MAX), 0, "a picture")?;
        if address == 0 || Stream::open("address", &source, false)?.read_at(0, &mut pixels) != pixels.len() {
            return Err(Error::invalid(format!("address: there are no {length} bytes at {address:#x}")));
        }
        Bitmap::from_pixels(width, height, bytes_per_pixel, pixels)
    }

    /// A picture of `bytes_per_pixel` bytes for each pixel, in rows from the top: red, green, blue, and what is left out.
    ///
    /// # Errors
    /// The size is out of range, `pixels` has another length, or there is no memory.
    pub fn from_pixels(width: u32, height: u32, bytes_per_pixel: u32, mut pixels: Vec<u8>) -> Result<Bitmap> {
        check_size(width, height)?;
        let expected = u64::from(width) * u64::from(height) * u64::from(bytes_per_pixel);
        if bytes_per_pixel < 3 || pixels.len() as u64 != expected {
            let got = pixels.len();
            return Err(Error::invalid(format!("expected {expected} bytes for {width} x {height} pixels, got {got}")));
        }
        if bytes_per_pixel > 3 {
            pixels = pixels.chunks(bytes_per_pixel as usize).flat_map(|pixel| pixel.iter().take(3)).copied().collect();
        }
        let mut why = ErrorBuffer::new();
        // SAFETY: there are 3 bytes for each pixel, which are read during the call. The guard catches exceptions.
        let ptr = unsafe { foredraft_picture_new(width, height, pixels.as_ptr(), why.ptr(), why.size()) };
        NonNull::new(ptr).map(Bitmap).ok_or_else(|| why.error("the picture cannot be copied"))
    }

    /// Whether it is a sound.
    pub fn is_sound(&self) -> bool {
        // SAFETY: the bitmap is alive, also below.
        unsafe { sys::mtmd_bitmap_is_audio(self.0.as_ptr()) }
    }

    /// The width in pixels, or the number of samples.
    pub fn width(&self) -> u32 {
        // SAFETY: see above.
        unsafe { sys::mtmd_bitmap_get_nx(self.0.as_ptr()) }
    }

    /// The height in pixels, or 1.
    pub fn height(&self) -> u32 {
        // SAFETY: see above.
        unsafe { sys::mtmd_bitmap_get_ny(self.0.as_ptr()) }
    }

    /// The pixels, 3 bytes each, or the samples.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bitmap is alive, and its bytes do not change while it is.
        unsafe {
            let (data, len) =
                (sys::mtmd_bitmap_get_data(self.0.as_ptr()), sys::mtmd_bitmap_get_n_bytes(self.0.as_ptr()));
            if data.is_null() { &[] } else { std::slice::from_raw_parts(data, len) }
        }
    }

    pub(super) fn as_ptr(&self) -> *const sys::mtmd_bitmap {
        self.0.as_ptr()
    }
}

impl PartialEq for Bitmap {
    fn eq(&self, other: &Bitmap) -> bool {
        (self.width(), self.height(), self.bytes()) == (other.width(), other.height(), other.bytes())
    }
}

impl Drop for Bitmap {
    fn drop(&mut self) {
        // SAFETY: the bitmap is alive, and only freed here.
        unsafe { sys::mtmd_bitmap_free(self.0.as_ptr()) }
    }
}

/// Refuses a size that no picture has, or that needs too much memory.
///
/// # Errors
/// It is out of range.
fn check_size(width: u32, height: u32) -> Result<()> {
    let (short, long) = (u64::from(width.min(height)), u64::from(width.max(height)));
    if short == 0 || short * long > MAX_PIXELS {
        return Err(Error::invalid(format!("{width} x {height} pixels: expected 1 to {MAX_PIXELS} pixels")));
    }
    if long > short * MAX_RATIO {
        let message =
            format!("{width} x {height} pixels: expected sides of which none is over {MAX_RATIO} times the other");
        return Err(Error::invalid(message));
    }
    Ok(())
}
