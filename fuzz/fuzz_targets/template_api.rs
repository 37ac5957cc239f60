//! Renders any text as a chat template through the C interface: `foredraft_apply_template` of the library that `FOREDRAFT_LIBRARY` names, with
//! tools and messages of every form. The library has no counters of coverage. So this target parses and renders the same text with its own
//! copy of the renderer, whose counters guide the search.
#![no_main]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::LazyLock;

use foredraft_jinja::{RenderLimits, Run, Template, TemplateResult, Value};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value as Json, json};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The library, with a model that is loaded for its vocabulary.
struct Library {
    apply_template: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_char,
    string_free: unsafe extern "C" fn(*mut c_char),
}

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let path = std::env::var("FOREDRAFT_LIBRARY").expect("FOREDRAFT_LIBRARY names libforedraft.so");
    let path = CString::new(path).expect("a path");
    // SAFETY: the strings end with NUL, and the functions have these types in foredraft.h.
    unsafe {
        let library = dlopen(path.as_ptr(), 2);
        let find = |name: &CStr| {
            let found = dlsym(library, name.as_ptr());
            assert!(!found.is_null(), "{name:?}");
            found
        };
        let load: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int =
            std::mem::transmute(find(c"foredraft_load"));
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/stories-draft.gguf");
        let config =
            CString::new(json!({"model": model, "vocab_only": true, "log_level": "none"}).to_string()).expect("JSON");
        assert_eq!(load(std::ptr::null_mut(), config.as_ptr()), 0);
        Library {
            apply_template: std::mem::transmute(find(c"foredraft_apply_template")),
            string_free: std::mem::transmute(find(c"foredraft_string_free")),
        }
    }
});

static REQUEST: LazyLock<Json> = LazyLock::new(|| {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, null]}"}});
    json!({
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "ß\u{1f600}"}]},
            {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "12"},
            {"role": "user", "content": "Hi"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d",
            "parameters": {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}}}],
        "chat_template_kwargs": {"l": (0..300).collect::<Vec<i32>>(), "d": {"a": 1, "b": {"c": "x"}}},
    })
});

/// The value of a template for JSON.
fn value(run: &Run, json: &Json) -> TemplateResult<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::Int(number.as_i64().unwrap_or(0).into()),
        Json::String(text) => run.text(text)?,
        Json::Array(items) => run.list(items.iter().map(|item| value(run, item)).collect::<Result<_, _>>()?)?,
        Json::Object(map) => {
            let pairs = map.iter().map(|(key, item)| Ok((run.text(key)?, value(run, item)?)));
            run.dict(pairs.collect::<TemplateResult<Vec<_>>>()?)?
        }
    })
}

/// Renders with this target's own copy of the renderer, as deeply as libFuzzer's stack allows.
fn render(source: &str) {
    let Ok(template) = Template::parse(source) else { return };
    let run = Run::new(RenderLimits { steps: 20_000, memory: 1 << 20, output: 1 << 20, depth: 200, interrupt: None, mark: None });
    let variable = |name| Ok((name, value(&run, &REQUEST[name])?));
    let Ok(mut variables) = ["messages", "tools"].into_iter().map(variable).collect::<TemplateResult<Vec<_>>>() else {
        return;
    };
    for name in ["l", "d"] {
        variables.push((name, value(&run, &REQUEST["chat_template_kwargs"][name]).expect("it fits")));
    }
    let _ = template.render(&run, variables, 0);
    assert_eq!(run.memory(), 0, "every value is freed");
}

fuzz_target!(|bytes: &[u8]| {
    let source = String::from_utf8_lossy(bytes);
    render(&source);
    let mut request = REQUEST.clone();
    request["chat_template"] = source.into();
    let request = CString::new(request.to_string()).expect("JSON escapes NUL");
    // SAFETY: the request ends with NUL; the answer does so too, and is released once.
    unsafe {
        let answer = (LIBRARY.apply_template)(std::ptr::null_mut(), request.as_ptr());
        let parsed: Json = serde_json::from_slice(CStr::from_ptr(answer).to_bytes()).expect("JSON");
        assert!(parsed["success"] == true || parsed["code"] == "invalid_request", "{parsed}");
        (LIBRARY.string_free)(answer);
    }
});
