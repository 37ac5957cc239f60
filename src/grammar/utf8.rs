//! Characters that tokens cut in two.

/// What is known of a character whose last bytes are still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Partial {
    pub(super) value: u32,
    /// Bytes to come; 0: no character has begun.
    pub(super) left: u8,
    /// The least character that is written with this many bytes.
    pub(super) least: u32,
}

/// What a byte does.
pub(super) enum Step {
    /// The character goes on.
    More(Partial),
    /// The character is complete.
    Char(u32),
    /// No UTF-8.
    Invalid,
}

impl Partial {
    /// Whether a character has begun.
    pub(super) fn is_open(self) -> bool {
        self.left > 0
    }

    /// Adds a byte. Surrogates, which a grammar may name, are taken for characters.
    pub(super) fn push(self, byte: u8) -> Step {
        let bits = u32::from(byte);
        let begin = |value, left, least| Step::More(Partial { value, left, least });
        match (self.left, byte) {
            (0, 0..=0x7F) => Step::Char(bits),
            (0, 0xC2..=0xDF) => begin(bits & 0x1F, 1, 0x80),
            (0, 0xE0..=0xEF) => begin(bits & 0x0F, 2, 0x800),
            (0, 0xF0..=0xF4) => begin(bits & 0x07, 3, 0x1_0000),
            (1.., 0x80..=0xBF) => {
                let next = Partial { value: self.value << 6 | bits & 0x3F, left: self.left - 1, ..self };
                match next.range() {
                    (low, high) if low > high => Step::Invalid,
                    (char, _) if next.left == 0 => Step::Char(char),
                    _ => Step::More(next),
                }
            }
            _ => Step::Invalid,
        }
    }

    /// The characters that it can become, both included; nothing if the first is above the last.
    pub(super) fn range(self) -> (u32, u32) {
        let bits = 6 * u32::from(self.left);
        let low = self.value << bits;
        (low.max(self.least), (low | ((1 << bits) - 1)).min(0x10_FFFF))
    }
}
