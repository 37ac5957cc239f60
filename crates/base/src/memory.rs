//! Lack of memory as an error, where the caller's input decides how much is needed.
//!
//! Rust ends the process when an allocation fails. Small allocations hardly ever fail, and nothing can be done about them. A large input is
//! another matter: before the work with it begins, [`ask_for`] tries to allocate all that the work will need, and frees it again.

use crate::error::{Error, Result};

/// Below this size nothing is asked, in bytes.
const SMALL: usize = 32 << 10;

/// Fails if there is no memory for a block of `size` bytes. `what` needs it: the beginning of the message.
///
/// Another thread may take the memory afterwards, so this makes an error of nearly all failures, not of all.
///
/// # Errors
/// [`Code::ResourceExhausted`](crate::error::Code::ResourceExhausted).
pub fn ask_for(size: usize, what: &str) -> Result<()> {
    if size < SMALL {
        return Ok(());
    }
    let mut block = Vec::<u8>::new();
    let reserved = block.try_reserve_exact(size);
    // The compiler may remove an allocation that is not used, and take it for successful.
    std::hint::black_box(&mut block);
    reserved.map_err(|_| lacking(size, what))
}

/// `length` copies of `value`.
///
/// # Errors
/// [`Code::ResourceExhausted`](crate::error::Code::ResourceExhausted): there is no memory for them.
pub fn filled<T: Clone>(length: usize, value: T, what: &str) -> Result<Vec<T>> {
    let mut filled = Vec::new();
    filled.try_reserve_exact(length).map_err(|_| lacking(length.saturating_mul(size_of::<T>()), what))?;
    filled.resize(length, value);
    Ok(filled)
}

fn lacking(size: usize, what: &str) -> Error {
    Error::exhausted(format!("{what}: there is no memory for {size} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        assert_eq!(ask_for(1 << 20, "a"), Ok(()));
        assert_eq!(ask_for(usize::MAX, "a").map_err(|error| error.code().as_str()), Err("resource_exhausted"));
        assert_eq!(ask_for(1 << 62, "a").map_err(|error| error.code().as_str()), Err("resource_exhausted"));
        assert_eq!(filled(3, 7_u16, "a"), Ok(vec![7; 3]));
        let error = filled(1 << 60, 7_u16, "the text").expect_err("no such memory");
        assert_eq!(error.message(), "the text: there is no memory for 2305843009213693952 bytes");
    }
}
