//! The memory that an encoded picture will take, from its file. mtmd's reader allocates what a header says, so it is read here before.

use super::inflated;

/// The most scans of a JPEG file. Each costs the time of a whole picture, and encoders write about ten.
const MAX_SCANS: usize = 100;

/// The width and height that the header of a PNG, JPEG, GIF or BMP file says. `None`: it is none of these, or its header is damaged.
pub(super) fn size(file: &[u8]) -> Option<(u32, u32)> {
    match file {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => {
            (file.get(12..16)? == b"IHDR").then_some(())?;
            Some((big_endian(file, 16, 4)?, big_endian(file, 20, 4)?))
        }
        [0xff, 0xd8, ..] => of_jpeg(file),
        [b'G', b'I', b'F', b'8', ..] => Some((little_endian(file, 6, 2)?, little_endian(file, 8, 2)?)),
        [b'B', b'M', ..] => match little_endian(file, 14, 4)? {
            12 => Some((little_endian(file, 18, 2)?, little_endian(file, 20, 2)?)),
            // A negative height means that the rows begin at the top.
            _ => Some((little_endian(file, 18, 4)?, little_endian(file, 22, 4)?.cast_signed().unsigned_abs())),
        },
        _ => None,
    }
}

/// Whether reading the file takes no more than the size in its header says: the data of a PNG end with the pixels, and a JPEG has few scans.
pub(super) fn is_as_large_as_its_pixels(file: &[u8]) -> bool {
    match file {
        [0x89, b'P', ..] => png_data(file).is_some_and(|(data, most)| inflated::fits(&data, most)),
        // In the data of a scan, a zero follows 0xff.
        [0xff, 0xd8, ..] => file.windows(2).filter(|bytes| *bytes == [0xff, 0xda]).count() <= MAX_SCANS,
        _ => true,
    }
}

/// The data of a PNG file, and the most bytes that they inflate to.
fn png_data(file: &[u8]) -> Option<(Vec<u8>, u64)> {
    let (width, height) = size(file)?;
    let channels = match file.get(25)? {
        2 => 3,
        4 => 2,
        6 => 4,
        _ => 1,
    };
    // Interlaced pictures have up to two lines for one, each with its filter and with bits that fill its last byte.
    let line = (u64::from(width) * channels * u64::from(*file.get(24)?)).div_ceil(8);
    let most = (line + 8) * u64::from(height) + 4096;
    let (mut data, mut rest) = (Vec::new(), file.get(8..)?);
    while let Some(length) = big_endian(rest, 0, 4).filter(|_| rest.get(4..8).is_some_and(|kind| kind != b"IEND")) {
        let end = usize::try_from(length).ok()?.checked_add(8)?;
        if rest.get(4..8)? == b"IDAT" {
            data.extend_from_slice(rest.get(8..end)?);
        }
        rest = rest.get(end + 4..).unwrap_or(&[]);
    }
    Some((data, most))
}

/// The size in the first frame header (SOF). All segments before it have a length.
fn of_jpeg(file: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        (*file.get(at)? == 0xff).then_some(())?;
        let kind = *file.get(at + 1)?;
        match kind {
            // A marker may be preceded by any number of these bytes.
            0xff => at += 1,
            0xc0..=0xc2 => return Some((big_endian(file, at + 7, 2)?, big_endian(file, at + 5, 2)?)),
            0xc4 | 0xdb | 0xdd | 0xe0..=0xef | 0xfe => {
                at += 2 + big_endian(file, at + 2, 2).filter(|n| *n >= 2)? as usize
            }
            _ => return None,
        }
    }
}

fn big_endian(file: &[u8], at: usize, n: usize) -> Option<u32> {
    Some(file.get(at..at + n)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

fn little_endian(file: &[u8], at: usize, n: usize) -> Option<u32> {
    Some(file.get(at..at + n)?.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}
