//! The memory of a parsed JSON document, estimated from its text.
//!
//! A value takes many times the memory of its text: `[1],` has 4 bytes, and an array with one number takes 376. So a document of some
//! megabytes could take gigabytes. Ordinary documents are long because of their strings, which take what their text takes.

use foredraft_base::memory::ask_for;
use serde_json::Value;

use crate::error::{Error, Result};

/// The maximum memory of the values of a document, without the bytes of its strings.
const MAX_MEMORY: usize = 512 << 20;
/// An array grows by doubling, so values take up to twice their memory.
const GROWTH: usize = 2;
/// A string exists a few times on its way: as JSON, as a value, in the request, and as tokens of four bytes.
const COPIES: usize = 16;
/// A value in an array or an object.
const VALUE: usize = size_of::<Value>();
/// The allocation of an array. It has space for four values at first.
const ARRAY: usize = 4 * VALUE + 16;
/// The allocations of an object.
const OBJECT: usize = 384;
/// The allocation of a string.
const STRING: usize = 32;
/// The memory of a key beside its string.
const KEY: usize = 40;

/// Refuses a JSON text whose values would take more memory than a document may, or than there is.
///
/// # Errors
/// They would.
pub fn check_memory(text: &str) -> Result<()> {
    let memory = memory(text.as_bytes());
    if memory <= MAX_MEMORY {
        return ask_for(GROWTH * memory + COPIES.saturating_mul(text.len()), "the document");
    }
    Err(Error::invalid(format!(
        "the document has too many values: they would take about {} MiB of memory, where {} MiB are allowed",
        memory >> 20,
        MAX_MEMORY >> 20
    )))
}

/// The memory that the values of a JSON text take, about. For text that is not JSON, a number without meaning.
fn memory(text: &[u8]) -> usize {
    let mut memory = VALUE;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        memory = memory.saturating_add(match byte {
            b',' => VALUE,
            b'[' => ARRAY,
            b'{' => OBJECT,
            b':' => KEY,
            b'"' => {
                skip_string(&mut bytes);
                STRING
            }
            _ => 0,
        });
    }
    memory
}

/// Skips the rest of a string, with its closing quote.
fn skip_string(bytes: &mut std::slice::Iter<u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_outside_of_strings() {
        for (text, expected) in [
            ("{}", VALUE + OBJECT),
            (r#"{"a": [1, 2]}"#, VALUE + OBJECT + STRING + KEY + ARRAY + VALUE),
            (r#""[,:{\"[,""#, VALUE + STRING),
            (r#"["\\", "]"]"#, VALUE + ARRAY + VALUE + 2 * STRING),
            (r#""not closed ["#, VALUE + STRING),
            (r#""\"#, VALUE + STRING),
            ("", VALUE),
        ] {
            assert_eq!(memory(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn long_texts_are_accepted_and_many_values_refused() {
        let text = format!(r#"{{"prompt": "{}"}}"#, "[1],".repeat(10_000_000));
        assert_eq!(check_memory(&text), Ok(()));
        let tokens = format!("[{}1]", "12345,".repeat(4_000_000));
        assert_eq!(check_memory(&tokens), Ok(()));
        for part in ["[1],", "{\"a\":1},", "[[[]]],", "\"a\",", "1,"] {
            let text = format!("[{}1]", part.repeat((20 << 20) / part.len()));
            let error = check_memory(&text).expect_err(part);
            assert!(error.message().starts_with("the document has too many values: "), "{error}");
        }
    }
}
