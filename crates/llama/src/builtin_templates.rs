//! The chat templates that llama.cpp has in C++, each with a name.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use llama_cpp_sys_2 as sys;

use super::guard::ErrorBuffer;
use foredraft_base::error::{Error, Result};
use foredraft_native::foredraft_guarded_chat_template;

/// The names, in llama.cpp's order.
pub fn template_names() -> Vec<&'static str> {
    // SAFETY: a list of no pointers is not written; the count is returned.
    let count = unsafe { sys::llama_chat_builtin_templates(ptr::null_mut(), 0) };
    let mut names: Vec<*const c_char> = vec![ptr::null(); usize::try_from(count).unwrap_or(0)];
    // SAFETY: llama.cpp writes at most as many pointers to static strings as the list has.
    unsafe { sys::llama_chat_builtin_templates(names.as_mut_ptr(), names.len()) };
    let names = names.into_iter().filter(|name| !name.is_null());
    // SAFETY: static strings, as above.
    names.filter_map(|name| unsafe { CStr::from_ptr(name) }.to_str().ok()).collect()
}

/// The prompt of messages, each with its role and content. `begins_answer`: with the beginning of the assistant's turn.
///
/// # Errors
/// No template has this name, or a text contains NUL or is too long.
pub fn apply_template(name: &str, messages: &[[String; 2]], begins_answer: bool) -> Result<String> {
    let refused = |why: &str| Error::invalid(format!("chat_template: {name}: {why}"));
    let c_text = |text: &str| CString::new(text).map_err(|_| refused("a role or content contains NUL"));
    let given = c_text(name)?;
    let texts = messages.iter().map(|[role, content]| Ok([c_text(role)?, c_text(content)?]));
    let texts = texts.collect::<Result<Vec<_>>>()?;
    let chat = texts.iter().map(|[role, content]| (role.as_ptr(), content.as_ptr()));
    let chat: Vec<_> = chat.map(|(role, content)| sys::llama_chat_message { role, content }).collect();
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let mut why = ErrorBuffer::new();
        let capacity = i32::try_from(buffer.len()).map_err(|_| refused("the prompt is over 2 GiB"))?;
        // SAFETY: the strings end with NUL and live until after the call, and the buffer has `capacity` bytes. The guard catches exceptions.
        let length = unsafe {
            foredraft_guarded_chat_template(
                given.as_ptr(),
                chat.as_ptr(),
                chat.len(),
                begins_answer,
                buffer.as_mut_ptr().cast::<c_char>(),
                capacity,
                why.ptr(),
                why.size(),
            )
        };
        match usize::try_from(length) {
            Ok(length) if length <= buffer.len() => {
                buffer.truncate(length);
                return String::from_utf8(buffer).map_err(|_| refused("the prompt is not UTF-8"));
            }
            Ok(length) => buffer = vec![0_u8; length],
            Err(_) if length == i32::MIN => return Err(why.error("the messages cannot be rendered")),
            Err(_) => return Err(refused("llama.cpp has no such template")),
        }
    }
}
