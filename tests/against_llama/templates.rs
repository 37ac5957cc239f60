//! The named chat templates render the same prompts as llama.cpp's own.

use std::ffi::{CStr, CString};
use std::time::UNIX_EPOCH;

use foredraft::api::{ChatTemplate, RenderInput};
use llama_cpp_sys_2 as sys;
use serde_json::{Map, Value, json};

/// The names that llama.cpp knows.
fn names() -> Vec<String> {
    let mut list = [std::ptr::null(); 200];
    // SAFETY: llama.cpp writes at most as many pointers to static strings as the list has.
    let n = unsafe { sys::llama_chat_builtin_templates(list.as_mut_ptr(), list.len()) };
    let name = |pointer: &*const std::ffi::c_char| {
        // SAFETY: a static string.
        unsafe { CStr::from_ptr(*pointer) }.to_str().unwrap().to_owned()
    };
    list[..usize::try_from(n).unwrap()].iter().map(name).collect()
}

/// llama.cpp's prompt.
fn theirs(name: &str, messages: &[(&str, &str)], begins_answer: bool) -> String {
    let name = CString::new(name).unwrap();
    let texts: Vec<[CString; 2]> =
        messages.iter().map(|(role, content)| [role, content].map(|text| CString::new(*text).unwrap())).collect();
    let chat: Vec<sys::llama_chat_message> = texts
        .iter()
        .map(|[role, content]| sys::llama_chat_message { role: role.as_ptr(), content: content.as_ptr() })
        .collect();
    let mut buffer = vec![0_u8; 1 << 16];
    // SAFETY: all strings are NUL-terminated, and the buffer has the given length.
    let n = unsafe {
        sys::llama_chat_apply_template(
            name.as_ptr(),
            chat.as_ptr(),
            chat.len(),
            begins_answer,
            buffer.as_mut_ptr().cast(),
            i32::try_from(buffer.len()).unwrap(),
        )
    };
    buffer.truncate(usize::try_from(n).unwrap());
    String::from_utf8(buffer).unwrap()
}

#[test]
fn named_templates_render_as_in_llama_cpp() {
    let names = names();
    assert!(names.len() > 50, "{names:?}");
    let (engine, user, assistant) = ("system", "user", "assistant");
    let chats: &[&[(&str, &str)]] = &[
        &[(user, "Hi")],
        &[(engine, "Be brief."), (user, "Hi")],
        &[
            (engine, " Be\nbrief.\n "),
            (user, " a 'quoted' \\n \"text\" {{ x }} "),
            (assistant, " yes\n"),
            (user, "é🦀"),
        ],
        &[(user, "a"), (assistant, "b"), (user, "c"), (assistant, "d"), (user, "e")],
        &[(user, "a"), (assistant, "b")],
        &[(user, ""), (assistant, ""), (user, "c")],
        &[(assistant, "a"), (user, "b")],
        &[(user, "a"), (user, "b")],
    ];
    let templates = names.iter().map(|name| (name, ChatTemplate::parse(name, None).unwrap()));
    for (name, template) in templates {
        for (chat, begins_answer) in chats.iter().flat_map(|chat| [(chat, false), (chat, true)]) {
            let messages: Vec<Value> =
                chat.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
            let ours = template.render(&RenderInput {
                messages: &messages,
                add_generation_prompt: begins_answer,
                bos_token: "<bos>",
                eos_token: "<eos>",
                tools: None,
                kwargs: &Map::new(),
                now: UNIX_EPOCH,
                interrupt: None,
            });
            assert_eq!(ours.as_deref(), Ok(theirs(name, chat, begins_answer).as_str()), "{name} {chat:?}");
        }
    }
}
