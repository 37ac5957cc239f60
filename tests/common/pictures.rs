//! Pictures of random pixels, and chats about them.

use serde_json::{Value, json};

pub const WIDTH: u32 = 40;
pub const HEIGHT: u32 = 24;

/// The pixels of a picture, 3 bytes each.
pub fn pixels(seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..WIDTH * HEIGHT * 3).map(|_| next()).collect()
}

/// A BMP file of 24 bits.
pub fn bmp(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    let row = (width * 3).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    file.extend((54 + row * height).to_le_bytes());
    file.extend([0; 4]);
    for number in [54, 40, width, height, 1 | 24 << 16, 0, row * height, 0, 0, 0, 0_u32] {
        file.extend(number.to_le_bytes());
    }
    for line in rgb.chunks((width * 3) as usize).rev() {
        line.chunks(3).for_each(|pixel| file.extend([pixel[2], pixel[1], pixel[0]]));
        file.resize(file.len() + (row - width * 3) as usize, 0);
    }
    file
}

/// A PNG file with these data, without checksums.
pub fn png_of(width: u32, height: u32, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let head: Vec<u8> = width.to_be_bytes().into_iter().chain(height.to_be_bytes()).chain([8, 2, 0, 0, 0]).collect();
    for (kind, data) in [(b"IHDR", head.as_slice()), (b"IDAT", data), (b"IEND", &[])] {
        file.extend(u32::try_from(data.len()).expect("small").to_be_bytes());
        file.extend(kind.iter().chain(data).chain(&[0; 4]));
    }
    file
}

/// A PNG file whose data are not compressed.
pub fn png(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    let lines: Vec<u8> = rgb.chunks((width * 3) as usize).flat_map(|line| [&[0], line].concat()).collect();
    let mut data = vec![0x78, 1];
    let mut parts = lines.chunks(1000).peekable();
    while let Some(part) = parts.next() {
        let length = u16::try_from(part.len()).expect("small");
        data.push(u8::from(parts.peek().is_none()));
        data.extend(length.to_le_bytes().into_iter().chain((!length).to_le_bytes()));
        data.extend(part);
    }
    data.extend([0; 4]);
    png_of(width, height, &data)
}

/// The base64 of some bytes.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|group| {
        let number = group.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        (0..4).map(
            move |at| if at > group.len() { '=' } else { char::from(DIGITS[(number >> (18 - 6 * at)) as usize % 64]) },
        )
    });
    digits.collect()
}

/// The part of a message with a picture.
pub fn rgb8(seed: u32) -> Value {
    json!({"type": "image", "width": WIDTH, "height": HEIGHT, "format": "rgb8", "base64": base64(&pixels(seed))})
}

/// A chat about pictures.
pub fn chat(pictures: &[Value]) -> Value {
    let mut parts = vec![json!({"type": "text", "text": "What is in"})];
    for picture in pictures {
        parts.extend([picture.clone(), json!({"type": "text", "text": "and what is left of it?"})]);
    }
    json!({"messages": [{"role": "system", "content": "You are kind."}, {"role": "user", "content": parts}], "return_tokens": true,
        "n_predict": 24, "temperature": 0.0, "repeat_penalty": 1.0, "ignore_eos": true, "cache_prompt": false})
}
