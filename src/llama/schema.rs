//! llama.cpp's converter from JSON schemas to grammars.

use std::ffi::{CStr, CString};
use std::ptr;

use llama_cpp_sys_2 as sys;

use crate::error::{Error, Result};
use foredraft_base::stack;

/// The stack size, in bytes. The converter recurses with the schema's depth, and its regular expressions with the length of names.
const STACK: usize = 32 << 20;

/// Converts a schema, a JSON text, to a grammar. The schema must have been validated: the converter's error message is not available,
/// and it ignores some unsupported keywords.
///
/// # Errors
/// `invalid_request`: the converter refuses the schema.
pub fn schema_to_grammar(schema: &str) -> Result<String> {
    let refused = || Error::invalid("json_schema: llama.cpp cannot convert it to a grammar");
    let schema = CString::new(schema).map_err(|_| refused())?;
    let convert = || {
        let mut grammar = ptr::null_mut();
        // SAFETY: `schema` is NUL-terminated, `grammar` is writable, and the crate's wrapper catches exceptions.
        let status = unsafe { sys::llama_rs_json_schema_to_grammar(schema.as_ptr(), true, &mut grammar) };
        if status != sys::LLAMA_RS_STATUS_OK || grammar.is_null() {
            return Err(refused());
        }
        // SAFETY: on success it is a NUL-terminated text. It is owned here, and freed once, below.
        let text = unsafe { CStr::from_ptr(grammar) }.to_string_lossy().into_owned();
        // SAFETY: as above. The wrapper has allocated it.
        unsafe { sys::llama_rs_string_free(grammar) };
        Ok(text)
    };
    stack::with(STACK, "json_schema", convert)
}
