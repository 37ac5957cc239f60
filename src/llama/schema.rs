//! llama.cpp's converter of JSON schemas to grammars.

use std::ffi::{CStr, CString};
use std::ptr;

use llama_cpp_sys_2 as sys;

use crate::error::{Error, Result};
use crate::stack;

/// The converter recurses with the schema's depth, and its regular expressions with the length of names.
const STACK: usize = 32 << 20;

/// The grammar of what `schema`, a JSON text, allows. It must have been checked: the converter's own message is lost,
/// and what it does not support it may ignore.
///
/// # Errors
/// `invalid_request`: the converter refuses the schema.
pub fn schema_to_grammar(schema: &str) -> Result<String> {
    let refused = || Error::invalid("json_schema: llama.cpp cannot make a grammar of it");
    let schema = CString::new(schema).map_err(|_| refused())?;
    let convert = || {
        let mut grammar = ptr::null_mut();
        // SAFETY: `schema` is NUL-terminated, `grammar` is writable, and the crate's wrapper catches exceptions.
        let status = unsafe { sys::llama_rs_json_schema_to_grammar(schema.as_ptr(), true, &mut grammar) };
        if status != sys::LLAMA_RS_STATUS_OK || grammar.is_null() {
            return Err(refused());
        }
        // SAFETY: on success it is a NUL-terminated text, which is ours until it is freed below, once.
        let text = unsafe { CStr::from_ptr(grammar) }.to_string_lossy().into_owned();
        // SAFETY: as above; the wrapper's own allocation.
        unsafe { sys::llama_rs_string_free(grammar) };
        Ok(text)
    };
    stack::with(STACK, "json_schema", convert)
}
