//! Which weights a load puts elsewhere than their layer: the experts of layers on the CPU, and what patterns of the host name.

use std::ffi::CString;

use llama_cpp_sys_2 as sys;

use crate::guard::{self, ErrorBuffer};
use crate::params::ModelParams;
use foredraft_base::error::{Code, Error, Result};
use foredraft_native::foredraft_check_pattern;

/// The longest pattern. llama.cpp reads it with a parser that recurses.
const MAX_PATTERN: usize = 256;
/// The most repetitions in a pattern. llama.cpp matches by backtracking: with more, a name of 64 bytes could take minutes.
const MAX_REPETITIONS: usize = 4;
/// The names of a layer's experts, as in llama.cpp's `LLM_FFN_EXPS_REGEX`.
const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";

/// The overrides of a load, in llama.cpp's form.
pub(super) struct TensorPlacement {
    /// Ends with an empty one.
    list: Vec<sys::llama_model_tensor_buft_override>,
    /// The texts that the list points to.
    _patterns: Vec<CString>,
}

impl TensorPlacement {
    /// `key`: the load's field that names patterns and devices.
    ///
    /// # Errors
    /// A pattern contains NUL, or a device does not exist.
    pub(super) fn of(key: &str, params: &ModelParams) -> Result<TensorPlacement> {
        let experts = experts_of(params.n_cpu_moe).map(|pattern| (pattern, "CPU"));
        let named = params.override_tensor.iter().map(|(pattern, device)| (pattern.clone(), device.as_str()));
        let (mut list, mut patterns) = (Vec::new(), Vec::new());
        for (pattern, device) in named.chain(experts) {
            let c_pattern = c_pattern(key, &pattern)?;
            list.push(sys::llama_model_tensor_buft_override {
                pattern: c_pattern.as_ptr(),
                buft: buffer_type(key, device)?,
            });
            patterns.push(c_pattern);
        }
        list.push(sys::llama_model_tensor_buft_override { pattern: std::ptr::null(), buft: std::ptr::null_mut() });
        Ok(TensorPlacement { list, _patterns: patterns })
    }

    /// For llama.cpp, valid as long as this is. NULL: nothing is put elsewhere.
    pub(super) fn as_ptr(&self) -> *const sys::llama_model_tensor_buft_override {
        if self.list.len() > 1 { self.list.as_ptr() } else { std::ptr::null() }
    }
}

fn c_pattern(key: &str, pattern: &str) -> Result<CString> {
    CString::new(pattern).map_err(|_| Error::invalid(format!("{key}: expected a pattern without NUL, got {pattern:?}")))
}

/// Refuses a pattern of `key` that llama.cpp cannot read, or that could take long to match.
///
/// # Errors
/// It is empty, too long, no regular expression, or has too many or nested repetitions; [`Code::ResourceExhausted`]: memory is lacking.
pub fn check_tensor_pattern(key: &str, pattern: &str) -> Result<()> {
    let refuse = |why: String| Err(Error::invalid(format!("{key}: {why}, in the pattern {pattern:?}")));
    if pattern.is_empty() || pattern.len() > MAX_PATTERN {
        return Err(Error::invalid(format!("{key}: expected a pattern of 1 to {MAX_PATTERN} bytes")));
    }
    let repeats = |text: &str| text.starts_with(['*', '+', '{']);
    let n = pattern.char_indices().filter(|(at, _)| repeats(&pattern[*at..])).count();
    if n > MAX_REPETITIONS {
        return refuse(format!("expected at most {MAX_REPETITIONS} repetitions (*, +, {{), got {n}"));
    }
    if pattern.match_indices(')').any(|(at, _)| repeats(&pattern[at + 1..])) {
        return refuse("expected no repetition of a group".to_owned());
    }
    let (c_pattern, mut why) = (c_pattern(key, pattern)?, ErrorBuffer::new());
    // SAFETY: the pattern ends with NUL, and the buffer has the size. The guard catches exceptions.
    if unsafe { foredraft_check_pattern(c_pattern.as_ptr(), why.ptr(), why.size()) } {
        return Ok(());
    }
    let error = why.error(key);
    if error.code() == Code::ResourceExhausted {
        return Err(error);
    }
    refuse(format!("expected a regular expression ({})", why.message()))
}

/// The pattern of the experts of the first layers. `None`: of none.
fn experts_of(n_layers: u32) -> Option<String> {
    let first: Vec<String> = (0..n_layers.min(ModelParams::ALL_LAYERS)).map(|layer| layer.to_string()).collect();
    match n_layers {
        0 => None,
        ModelParams::ALL_LAYERS => Some(EXPERTS.to_owned()),
        _ => Some(format!(r"blk\.({}){EXPERTS}", first.join("|"))),
    }
}

/// The buffers of a device, by its name or by theirs.
fn buffer_type(key: &str, name: &str) -> Result<sys::ggml_backend_buffer_type_t> {
    let mut names = Vec::new();
    // SAFETY: indices are below the count, and devices and their types of buffers live as long as the process, as do their names.
    unsafe {
        for index in 0..sys::ggml_backend_dev_count() {
            let device = sys::ggml_backend_dev_get(index);
            let buffers = sys::ggml_backend_dev_buffer_type(device);
            if buffers.is_null() {
                continue;
            }
            let known = guard::text(sys::ggml_backend_dev_name(device));
            if known == name || guard::text(sys::ggml_backend_buft_name(buffers)) == name {
                return Ok(buffers);
            }
            names.push(known);
        }
    }
    Err(Error::invalid(format!("{key}: there is no device {name:?}, but {}", names.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_could_take_long_are_refused() {
        for fine in [r"blk\.(1[0-9]|2[0-3])\.ffn_.*_exps\.", ".*=.*", r"\.ffn_(up|down)_exps", "attn?", "a{2,3}b*c+"] {
            assert!(check_tensor_pattern("override_tensor", fine).is_ok(), "{fine}");
        }
        for bad in ["", "(a*)*", "(a|a)+b", "(a){9}", ".*.*.*.*.*x", &"a".repeat(257)] {
            assert!(check_tensor_pattern("override_tensor", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn experts_are_those_of_the_first_layers() {
        assert_eq!(experts_of(0), None);
        assert_eq!(experts_of(2).unwrap(), r"blk\.(0|1)\.ffn_(up|down|gate|gate_up)_(ch|)exps");
        assert_eq!(experts_of(ModelParams::ALL_LAYERS).unwrap(), EXPERTS);
    }
}
