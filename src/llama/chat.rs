//! llama.cpp's chat formats: what a template's model writes for reasoning and tool calls, the grammar for it, and the parser.
//!
//! `chat.cpp` calls llama.cpp. Requests and answers are JSON texts, which only the callers of this module read. llama.cpp recurses with
//! the nesting of templates, schemas and completions, so every call runs on a thread with a large stack, and callers limit the nesting.

use std::ffi::{CString, c_char};
use std::ptr::NonNull;

use super::guard::ErrorBuffer;
use crate::error::{Code, Error, Result};
use foredraft_base::stack;

/// The stack size of the thread for a call that reads a template, in bytes. The memory is only reserved; it is used only where something
/// nests deeply.
const TEMPLATE_STACK: usize = 256 << 20;
/// The same for parsing a completion of at most [`MAX_NESTING`] levels.
const PARSE_STACK: usize = 32 << 20;
/// The maximum nesting of brackets in a completion that is parsed. A level takes up to 8 KiB of stack.
const MAX_NESTING: usize = 1000;
/// The prefix of error messages.
const NAME: &str = "chat format";

#[repr(C)]
struct RawTemplate([u8; 0]);

#[repr(C)]
struct RawParser([u8; 0]);

unsafe extern "C" {
    fn foredraft_chat_text_free(text: *mut c_char);
    fn foredraft_chat_template_new(
        source: *const c_char,
        length: usize,
        bos: *const c_char,
        eos: *const c_char,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut RawTemplate;
    fn foredraft_chat_template_free(parsed: *mut RawTemplate);
    fn foredraft_chat_capabilities(
        of: *const RawTemplate,
        length: *mut usize,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut c_char;
    fn foredraft_chat_apply(
        of: *const RawTemplate,
        request: *const c_char,
        request_length: usize,
        length: *mut usize,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut c_char;
    fn foredraft_chat_generic(
        request: *const c_char,
        request_length: usize,
        length: *mut usize,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut c_char;
    fn foredraft_chat_parser_new(
        serialized: *const c_char,
        length: usize,
        format: i32,
        prefix: *const c_char,
        prefix_length: usize,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut RawParser;
    fn foredraft_chat_parser_free(parser: *mut RawParser);
    fn foredraft_chat_parse(
        parser: *const RawParser,
        text: *const c_char,
        text_length: usize,
        length: *mut usize,
        why: *mut c_char,
        why_size: usize,
    ) -> *mut c_char;
}

/// A chat template, parsed by llama.cpp to find out its format. llama.cpp's template engine has limits here (`template_budget.h`).
#[derive(Debug)]
pub struct FormatTemplate(NonNull<RawTemplate>);

// SAFETY: llama.cpp executes a parsed template without changing it ("shared between threads", in jinja/runtime.h), and the pointer is owned.
unsafe impl Send for FormatTemplate {}
// SAFETY: as above.
unsafe impl Sync for FormatTemplate {}

impl FormatTemplate {
    /// Parses a template, and renders it to find out what it supports. `bos` and `eos` are the texts of these tokens, or "". The source must be
    /// one that the renderer has accepted, because llama.cpp does not limit its nesting.
    ///
    /// # Errors
    /// `invalid_request`: llama.cpp cannot parse it, or it exceeds a limit.
    pub fn parse(source: &str, bos: &str, eos: &str) -> Result<FormatTemplate> {
        let token = |text: &str| CString::new(text.replace('\0', "")).map_err(|_| failure("a NUL in a token"));
        let (bos, eos) = (token(bos)?, token(eos)?);
        stack::with(TEMPLATE_STACK, NAME, || {
            let mut why = ErrorBuffer::new();
            // SAFETY: the texts outlive the call, and exceptions are caught.
            let parsed = unsafe {
                foredraft_chat_template_new(
                    source.as_ptr().cast(),
                    source.len(),
                    bos.as_ptr(),
                    eos.as_ptr(),
                    why.ptr(),
                    why.size(),
                )
            };
            NonNull::new(parsed).map(FormatTemplate).ok_or_else(|| failure(&why.message()))
        })
    }

    /// What the template can show, as JSON: `{"tools", "tool_calls", "parallel"}`.
    ///
    /// # Errors
    /// llama.cpp fails.
    pub fn capabilities(&self) -> Result<String> {
        answer(|length, why| {
            // SAFETY: the template is owned, and exceptions are caught.
            unsafe { foredraft_chat_capabilities(self.0.as_ptr(), length, why.ptr(), why.size()) }
        })
    }

    /// The format of the answer to a request (see `foredraft_chat_apply` in `chat.cpp`), both as JSON.
    ///
    /// # Errors
    /// `invalid_request`: the template fails, exceeds a limit, or llama.cpp cannot find out its format.
    pub fn apply(&self, request: &str) -> Result<String> {
        stack::with(TEMPLATE_STACK, NAME, || {
            answer(|length, why| {
                // SAFETY: the template is owned, the text outlives the call, and exceptions are caught.
                unsafe {
                    foredraft_chat_apply(
                        self.0.as_ptr(),
                        request.as_ptr().cast(),
                        request.len(),
                        length,
                        why.ptr(),
                        why.size(),
                    )
                }
            })
        })
    }
}

impl Drop for FormatTemplate {
    fn drop(&mut self) {
        // SAFETY: it is owned, and not used any more.
        unsafe { foredraft_chat_template_free(self.0.as_ptr()) };
    }
}

/// The format of calls for templates that cannot show tools (see `foredraft_chat_generic` in `chat.cpp`), as JSON.
///
/// # Errors
/// `invalid_request`: llama.cpp cannot convert a tool's schema.
pub fn generic_chat_format(request: &str) -> Result<String> {
    stack::with(TEMPLATE_STACK, NAME, || {
        answer(|length, why| {
            // SAFETY: the text outlives the call, and exceptions are caught.
            unsafe { foredraft_chat_generic(request.as_ptr().cast(), request.len(), length, why.ptr(), why.size()) }
        })
    })
}

/// A parser for the completions of a format.
#[derive(Debug)]
pub struct CompletionParser(NonNull<RawParser>);

// SAFETY: parsing does not change the parser, and the pointer is owned.
unsafe impl Send for CompletionParser {}
// SAFETY: as above.
unsafe impl Sync for CompletionParser {}

impl CompletionParser {
    /// A parser from llama.cpp's serialization, for texts that begin after `prefix`, the end of the prompt. Without a serialization the
    /// whole text is the content.
    ///
    /// # Errors
    /// `invalid_request`: it is not a serialization of a parser.
    pub fn new(serialized: &str, format: i32, prefix: &str) -> Result<CompletionParser> {
        stack::with(PARSE_STACK, NAME, || {
            let mut why = ErrorBuffer::new();
            // SAFETY: the texts outlive the call, and exceptions are caught.
            let parser = unsafe {
                foredraft_chat_parser_new(
                    serialized.as_ptr().cast(),
                    serialized.len(),
                    format,
                    prefix.as_ptr().cast(),
                    prefix.len(),
                    why.ptr(),
                    why.size(),
                )
            };
            NonNull::new(parser).map(CompletionParser).ok_or_else(|| failure(&why.message()))
        })
    }

    /// Parses a completion, or its beginning, to a message as JSON (see `foredraft_chat_parse` in `chat.cpp`).
    ///
    /// # Errors
    /// `invalid_request`: the text nests brackets too deeply, or llama.cpp fails.
    pub fn parse(&self, text: &str) -> Result<String> {
        if nesting(text) > MAX_NESTING {
            return Err(failure(&format!("the completion nests brackets more than {MAX_NESTING} times")));
        }
        stack::with(PARSE_STACK, NAME, || {
            answer(|length, why| {
                // SAFETY: the parser is owned, the text outlives the call, and exceptions are caught.
                unsafe {
                    foredraft_chat_parse(
                        self.0.as_ptr(),
                        text.as_ptr().cast(),
                        text.len(),
                        length,
                        why.ptr(),
                        why.size(),
                    )
                }
            })
        })
    }
}

impl Drop for CompletionParser {
    fn drop(&mut self) {
        // SAFETY: it is owned, and not used any more.
        unsafe { foredraft_chat_parser_free(self.0.as_ptr()) };
    }
}

/// The most brackets, braces and parentheses that are open at one place of a text, those in strings included.
fn nesting(text: &str) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' | b'(' => {
                depth += 1;
                most = depth.max(most);
            }
            b']' | b'}' | b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// Calls a function that returns a text with its length, or NULL and a message.
fn answer(call: impl FnOnce(&mut usize, &mut ErrorBuffer) -> *mut c_char) -> Result<String> {
    let (mut length, mut why) = (0, ErrorBuffer::new());
    let text = call(&mut length, &mut why);
    if text.is_null() {
        return Err(failure(&why.message()));
    }
    // SAFETY: the function returned `length` bytes that are owned here until they are freed below.
    let copy = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) }.to_vec();
    // SAFETY: it was allocated by the function, and is not used any more.
    unsafe { foredraft_chat_text_free(text) };
    String::from_utf8(copy).map_err(|_| Error::new(Code::Internal, format!("{NAME}: not UTF-8")))
}

fn failure(why: &str) -> Error {
    Error::invalid(format!("{NAME}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    #[test]
    fn formats_are_found_and_completions_parsed() {
        let template = FormatTemplate::parse(CHATML, "", "").unwrap();
        assert_eq!(template.capabilities().unwrap(), r#"{"tools":false,"tool_calls":false,"parallel":false}"#);
        let format = template.apply(r#"{"messages": [{"role": "user", "content": "hi"}]}"#).unwrap();
        assert!(format.contains(r#""generation_prompt":"<|im_start|>assistant\n""#), "{format}");
        let parser = CompletionParser::new("", 0, "").unwrap();
        let message = parser.parse("Hello \"you\"\n").unwrap();
        assert!(
            message.starts_with(r#"{"matches":true,"ends":false,"end":12,"covered":12,"content":"Hello \"you\"\n""#),
            "{message}"
        );
    }

    #[test]
    fn bad_input_is_an_error() {
        for source in ["", "{% if %}", "{{ undefined_function() }}"] {
            let used = FormatTemplate::parse(source, "", "").and_then(|template| template.apply(r#"{"messages": []}"#));
            assert!(used.is_err(), "{source}");
        }
        let template = FormatTemplate::parse(CHATML, "", "").unwrap();
        for request in ["", "{", "[]", "{}", r#"{"messages": 1}"#, r#"{"messages": [1]}"#] {
            assert!(template.apply(request).is_err(), "{request}");
        }
        for serialized in ["{", "[]", "{}", "nonsense"] {
            assert!(CompletionParser::new(serialized, 0, "").is_err(), "{serialized}");
        }
        assert!(CompletionParser::new("", 1000, "").is_err());
    }

    /// Without limits each of these takes hours, all memory or the stack.
    #[test]
    fn a_template_that_works_too_much_is_refused() {
        let double = "{% set ns = namespace(x='a', y=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}";
        let tree = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
        let sources = [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
            "{% for a in range(3000) %}{% for b in range(3000) %}{% for c in range(3000) %}{{ a }}{% endfor %}{% endfor %}{% endfor %}".to_owned(),
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
            double.to_owned(),
            format!("{tree}{{{{ ns.x }}}}"),
            format!("{tree}{{{{ ns.x | tojson }}}}"),
            format!("{tree}{{{{ ns.x | string }}}}"),
            format!("{tree}{{{{ ns.x ~ '' }}}}"),
            format!("{tree}{{{{ ns.x | lower }}}}"),
            format!("{tree}{{% if ns.x == ns.x %}}a{{% endif %}}"),
            format!("{tree}{{% if 2 in ns.x %}}a{{% endif %}}"),
            "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns | string }}".to_owned(),
            "{% set ns = namespace(x=[1]) %}{% for i in range(2000000) %}{% set ns.x = [ns.x] %}{% endfor %}".to_owned(),
            "{{ 'a' * 1000000000000 }}".to_owned(),
            "{{ range(1000000000000) }}".to_owned(),
            "{{ range(-1000000000000, 0) }}".to_owned(),
            "{{ 'a\nb' | indent(1000000000000) }}".to_owned(),
            "{% set x = 'a' * 100000 %}{{ x | replace('', x) }}".to_owned(),
            "{% set x = 'a' * 100000 %}{{ x | replace('a', x) }}".to_owned(),
            "{% set x = 'ab' * 1000000 %}{{ x.split('a') | length }}".to_owned(),
            "{% set x = 'a' * 1000000 %}{% for i in range(10000000) %}{% if x == 'b' %}a{% endif %}{% endfor %}".to_owned(),
            "{% set x = range(100000) %}{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}".to_owned(),
        ];
        for source in sources {
            let found = FormatTemplate::parse(&source, "", "")
                .and_then(|template| template.apply(r#"{"messages": [{"role": "user", "content": "hi"}]}"#));
            let error = found.expect_err(&source);
            assert!(error.message().contains("exceeds the limits"), "{source}: {}", error.message());
        }
        // The next call has its own budget.
        assert!(
            FormatTemplate::parse(CHATML, "", "")
                .unwrap()
                .apply(r#"{"messages": [{"role": "user", "content": "hi"}]}"#)
                .is_ok()
        );
    }

    #[test]
    fn deep_nesting_is_refused() {
        let request = r#"{"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"a": {}}, "required": ["a"]}}}]}"#;
        let format = generic_chat_format(request).unwrap();
        let format: serde_json::Value = serde_json::from_str(&format).unwrap();
        let parser = CompletionParser::new(format["parser"].as_str().unwrap(), 2, "").unwrap();
        let call = |depth| format!(r#"{{"name": "f", "arguments": {{"a": {}"#, "[".repeat(depth));
        assert!(parser.parse(&call(MAX_NESTING - 2)).unwrap().contains("[[[["));
        let error = parser.parse(&call(1 << 20)).unwrap_err();
        assert_eq!(error.message(), "chat format: the completion nests brackets more than 1000 times");
    }
}
