//! How long the data of a PNG file are when they are inflated. mtmd's reader keeps all that a file inflates to, up to 4 GiB of a file of 4 MB, so
//! it is measured here before.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{TINFL_FLAG_IGNORE_ADLER32, TINFL_FLAG_PARSE_ZLIB_HEADER};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// As much of the output as matches refer to.
const WINDOW: usize = 1 << 15;

/// Whether what this zlib stream inflates to has at most `most` bytes. A stream that is damaged has not.
pub(super) fn fits(stream: &[u8], most: u64) -> bool {
    let (mut inflater, mut window) = (Box::<DecompressorOxide>::default(), vec![0; WINDOW]);
    let (mut rest, mut length) = (stream, 0);
    // As mtmd's reader, which compares no checksum.
    let flags = TINFL_FLAG_PARSE_ZLIB_HEADER | TINFL_FLAG_IGNORE_ADLER32;
    while length <= most {
        let (status, n_read, n_written) = decompress(&mut inflater, rest, &mut window, length as usize % WINDOW, flags);
        length += n_written as u64;
        rest = rest.get(n_read..).unwrap_or(&[]);
        if status != TINFLStatus::HasMoreOutput {
            return status == TINFLStatus::Done && length <= most;
        }
    }
    false
}
