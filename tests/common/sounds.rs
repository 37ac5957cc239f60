//! Files of sounds.

use serde_json::{Value, json};

use super::pictures::base64;
use super::root;

/// Samples of a tone whose height changes, with noise.
pub fn samples(seed: u32, n: usize) -> Vec<i16> {
    let mut state = seed;
    let mut next = move |at: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let tone = (at as f32 * (0.02 + seed as f32 * 0.003)).sin() * 8000.0;
        tone as i16 + (state >> 20) as i16 / 4
    };
    (0..n).map(&mut next).collect()
}

/// A WAV file: its format (1: integers, 3: floating-point numbers), and the bytes of its samples.
pub fn wav_of(format: u16, n_channels: u16, rate: u32, bits: u16, data: &[u8]) -> Vec<u8> {
    let n = u32::try_from(data.len()).expect("small");
    let block = n_channels * bits / 8;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + n).to_le_bytes().into_iter().chain(*b"WAVEfmt ").chain(16_u32.to_le_bytes()));
    file.extend(format.to_le_bytes().into_iter().chain(n_channels.to_le_bytes()).chain(rate.to_le_bytes()));
    file.extend((rate * u32::from(block)).to_le_bytes().into_iter().chain(block.to_le_bytes()));
    file.extend(bits.to_le_bytes().into_iter().chain(*b"data").chain(n.to_le_bytes()));
    file.extend(data);
    file
}

/// A WAV file of 16 bits and one channel.
pub fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    wav_of(1, 1, rate, 16, &bytes)
}

/// A FLAC file of 16 bits and one channel, which is not compressed. `n_said`: the number of samples that it says.
pub fn flac(rate: u32, samples: &[i16], n_said: u64) -> Vec<u8> {
    let crc = |bytes: &[u8], width: u32, polynomial: u32| {
        bytes.iter().fold(0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte) << (width - 8), |crc, _| {
                let shifted = crc << 1;
                (if shifted >> width & 1 == 1 { shifted ^ polynomial } else { shifted }) & ((1 << width) - 1)
            })
        })
    };
    let mut file = b"fLaC".to_vec();
    // A block that is not the last one, and one of four bytes of padding.
    file.extend([0, 0, 0, 34, 16, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
    file.extend((u64::from(rate) << 44 | 15 << 36 | n_said).to_be_bytes());
    file.extend([0; 16].into_iter().chain([0x81, 0, 0, 4, 7, 7, 7, 7]));
    for (index, block) in samples.chunks(4096).enumerate() {
        let mut frame = vec![0xff, 0xf8, 0x70, 0x08, u8::try_from(index).expect("below 128")];
        frame.extend(u16::try_from(block.len() - 1).expect("small").to_be_bytes());
        frame.push(crc(&frame, 8, 0x07) as u8);
        frame.push(2);
        block.iter().for_each(|sample| frame.extend(sample.to_be_bytes()));
        frame.extend((crc(&frame, 16, 0x8005) as u16).to_be_bytes());
        file.extend(frame);
    }
    file
}

/// An MP3 file of a quarter of a second at 22050 samples a second.
pub fn mp3() -> Vec<u8> {
    std::fs::read(root().join("tests/data/sound.mp3")).expect("the file")
}

/// The part of a message with a sound.
pub fn sound_part(file: &[u8]) -> Value {
    json!({"type": "input_audio", "input_audio": {"data": base64(file), "format": "wav"}})
}

/// The part of a message with a sound of its own.
pub fn sound(seed: u32) -> Value {
    sound_part(&wav(16_000, &samples(seed, 4000)))
}
