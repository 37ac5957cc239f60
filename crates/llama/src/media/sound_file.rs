//! The files of sounds. mtmd's reader allocates what headers say and reads any of its formats in any file, so what it gets is written anew here:
//! one format, with a length that was checked, and nothing beside the sound.

use std::ops::RangeInclusive;

use foredraft_base::error::{Error, Result};

/// The longest sound in seconds.
const MAX_SECONDS: u64 = 600;
/// The most samples of all channels together: those of the longest sound in two channels at 96 kHz.
const MAX_SAMPLES: u64 = MAX_SECONDS * 2 * 96_000;
/// The samples of a second in a channel.
const RATES: RangeInclusive<u64> = 1_000..=192_000;
const CHANNELS: RangeInclusive<u64> = 1..=8;

/// The file of a sound without what is not its sound: a WAV, FLAC or MP3 file.
///
/// # Errors
/// It is none of these, is empty, or is too long.
pub(super) fn checked(file: &[u8]) -> Result<Vec<u8>> {
    let file = without_tags(file);
    let found = match file {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => wav(file),
        [b'f', b'L', b'a', b'C', ..] => flac(file),
        _ => mp3(file),
    };
    let (written, length) = found.ok_or_else(|| Error::invalid("expected a WAV, MP3 or FLAC file"))?;
    length.check()?;
    Ok(written)
}

/// The length of a sound.
struct SoundLength {
    /// The samples of a channel.
    n_samples: u64,
    rate: u64,
    n_channels: u64,
}

impl SoundLength {
    fn check(&self) -> Result<()> {
        let SoundLength { n_samples, rate, n_channels } = *self;
        if n_samples == 0 {
            return Err(Error::invalid("the sound is empty"));
        }
        if !RATES.contains(&rate) || !CHANNELS.contains(&n_channels) {
            let ((slow, fast), most) = (RATES.into_inner(), CHANNELS.end());
            return Err(Error::invalid(format!(
                "{rate} samples a second in {n_channels} channels: expected {slow} to {fast} in 1 to {most}"
            )));
        }
        if n_samples > MAX_SECONDS * rate || n_samples * n_channels > MAX_SAMPLES {
            let seconds = n_samples / rate;
            return Err(Error::invalid(format!(
                "{n_samples} samples in each of {n_channels} channels ({seconds} seconds): expected at most {MAX_SECONDS} seconds and {MAX_SAMPLES} samples"
            )));
        }
        Ok(())
    }
}

/// The file after its ID3 tags.
fn without_tags(mut file: &[u8]) -> &[u8] {
    while let [b'I', b'D', b'3', _, _, flags, sizes @ ..] = file {
        let Some((size, _)) = sizes.split_first_chunk::<4>() else { break };
        let footer = if flags & 0x10 == 0 { 0 } else { 10 };
        let size = size.iter().fold(0, |size, byte| size << 7 | usize::from(byte & 0x7f)) + footer;
        file = file.get(10 + size..).unwrap_or(&[]);
    }
    file
}

/// The first format and data of a WAV file, in samples of integers, of floats, or in A-law or u-law.
fn wav(file: &[u8]) -> Option<(Vec<u8>, SoundLength)> {
    const OF_SUBFORMAT: u64 = 0xfffe;
    let (mut rest, mut format) = (file.get(12..)?, None);
    loop {
        let (id, size) = (rest.get(..4)?, usize::try_from(number(rest.get(4..8)?.iter().rev())).ok()?);
        let all = rest.get(8..)?;
        let body = all.get(..size).unwrap_or(all);
        match id {
            b"fmt " => format = Some(body),
            b"data" => {
                let little_endian = |at: usize, n: usize| Some(number(format?.get(at..at + n)?.iter().rev()));
                let (tag, n_channels, rate) = (little_endian(0, 2)?, little_endian(2, 2)?, little_endian(4, 4)?);
                let (block, bits) = (little_endian(12, 2)?, little_endian(14, 2)?);
                let tag = if tag == OF_SUBFORMAT { little_endian(24, 2)? } else { tag };
                let is_known = matches!((tag, bits), (1, 8 | 16 | 24 | 32) | (3, 32 | 64) | (6 | 7, 8));
                (is_known && block > 0 && block * 8 == n_channels * bits).then_some(())?;
                let n = u32::try_from(body.len()).ok()?;
                let mut written = Vec::with_capacity(body.len() + 44);
                written.extend(b"RIFF".iter().chain(&n.saturating_add(36).to_le_bytes()).chain(b"WAVEfmt "));
                written.extend(16_u32.to_le_bytes().into_iter().chain(u16::try_from(tag).ok()?.to_le_bytes()));
                written.extend(format?.get(2..16)?.iter().chain(b"data").chain(&n.to_le_bytes()).chain(body));
                return Some((written, SoundLength { n_samples: u64::from(n) / block, rate, n_channels }));
            }
            _ => {}
        }
        rest = all.get(size + size % 2..)?;
    }
}

/// The description and the frames of a FLAC file.
fn flac(file: &[u8]) -> Option<(Vec<u8>, SoundLength)> {
    const DESCRIPTION: [u8; 4] = [0, 0, 0, 34];
    const LAST: u8 = 0x80;
    let described = file.get(8..42)?;
    let mut rest = file.get(4..)?;
    ([rest.first()? & !LAST, 0, 0, *rest.get(3)?] == DESCRIPTION).then_some(())?;
    loop {
        let (is_last, size) = (rest.first()? & LAST != 0, number(rest.get(1..4)?));
        rest = rest.get(4 + usize::try_from(size).ok()?..)?;
        if is_last {
            break;
        }
    }
    let properties = number(described.get(10..18)?);
    let (rate, n_channels) = (properties >> 44, (properties >> 41 & 7) + 1);
    let length = SoundLength { n_samples: properties & 0xf_ffff_ffff, rate, n_channels };
    let head = [b"fLaC", [LAST, 0, 0, 34].as_slice(), described];
    Some(([head.concat().as_slice(), rest].concat(), length))
}

/// A frame of an MP3 file.
#[derive(Clone, Copy)]
struct Mp3Frame {
    /// The bits that all frames of a sound share: the version, layer and rate.
    shared: [u8; 2],
    n_bytes: usize,
    n_samples: u64,
    rate: u64,
}

impl Mp3Frame {
    /// The frame that begins with these bytes. `None`: none of layer 3 does.
    fn read(bytes: &[u8]) -> Option<Mp3Frame> {
        const KILOBITS: [[u64; 14]; 2] = [
            [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
            [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
        ];
        const RATES: [u64; 3] = [44_100, 48_000, 32_000];
        let [0xff, first, second, ..] = bytes else { return None };
        // 2.5, reserved, 2, 1.
        let (version, layer) = (first >> 3 & 3, first >> 1 & 3);
        (first & 0xe0 == 0xe0 && version != 1 && layer == 1).then_some(())?;
        let is_first = version == 3;
        let kilobits = KILOBITS.get(usize::from(!is_first))?.get(usize::from(second >> 4).checked_sub(1)?)?;
        let rate = RATES.get(usize::from(second >> 2 & 3))? >> [2, 0, 1, 0].get(usize::from(version))?;
        let n_samples = if is_first { 1152 } else { 576 };
        let n_bytes = n_samples * kilobits * 125 / rate + u64::from(second >> 1 & 1);
        let n_bytes = usize::try_from(n_bytes).ok().filter(|n| *n <= bytes.len())?;
        Some(Mp3Frame { shared: [first & 0xfe, second & 0xc], n_bytes, n_samples, rate })
    }
}

/// The frames of an MP3 file that are like its first one.
fn mp3(file: &[u8]) -> Option<(Vec<u8>, SoundLength)> {
    let (mut written, mut rest) = (Vec::new(), file);
    let (mut first, mut n_frames, mut is_in_step) = (None, 0, false);
    while let Some(at) = rest.iter().position(|byte| *byte == 0xff) {
        is_in_step &= at == 0;
        rest = rest.get(at..)?;
        let is_like =
            |frame: &Mp3Frame, other: Option<Mp3Frame>| other.is_none_or(|other| other.shared == frame.shared);
        let frame = Mp3Frame::read(rest).filter(|frame| is_like(frame, first));
        // After other bytes, a frame has to be followed by one.
        let frame = frame.filter(|frame| {
            let next = rest.get(frame.n_bytes..).unwrap_or(&[]);
            is_in_step || next.is_empty() || Mp3Frame::read(next).is_some_and(|next| is_like(frame, Some(next)))
        });
        is_in_step = frame.is_some();
        if let Some(frame) = frame {
            written.extend_from_slice(rest.get(..frame.n_bytes)?);
            n_frames += 1;
            first = first.or(Some(frame));
        }
        rest = rest.get(frame.map_or(1, |frame| frame.n_bytes)..)?;
    }
    let Mp3Frame { n_samples, rate, n_bytes, .. } = first?;
    // The first frame may say how many there are.
    let head = written.get(..n_bytes)?;
    let words = head.windows(12).filter(|bytes| bytes.starts_with(b"Xing") || bytes.starts_with(b"Info"));
    let said = words.filter_map(|bytes| Some(number(bytes.get(8..)?))).max().unwrap_or(0);
    Some((written, SoundLength { n_samples: said.max(n_frames) * n_samples, rate, n_channels: 2 }))
}

/// The number with these bytes, of which the first one is the highest.
fn number<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    bytes.into_iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
