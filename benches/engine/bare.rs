//! The loop that plain decoding is compared with: only `llama_decode` and an argmax.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;

use super::host::Result;

/// A model, a context and a thread pool of llama.cpp.
pub struct Bare {
    model: NonNull<sys::llama_model>,
    context: NonNull<sys::llama_context>,
    threads: NonNull<sys::ggml_threadpool>,
    n_vocab: usize,
}

impl Bare {
    /// Loads `model` with a context of `n_ctx` tokens and a pool of `n_threads`.
    pub fn load(model: &Path, n_ctx: u32, n_threads: i32) -> Result<Bare> {
        let path = CString::new(model.to_string_lossy().as_bytes())?;
        // SAFETY: llama.cpp's documented order of calls, with valid arguments. Pointers are checked for NULL.
        unsafe {
            sys::llama_log_set(Some(silent), std::ptr::null_mut());
            sys::llama_backend_init();
            let model = NonNull::new(sys::llama_model_load_from_file(path.as_ptr(), sys::llama_model_default_params()))
                .ok_or("the model cannot be loaded")?;
            let mut params = sys::llama_context_default_params();
            params.n_ctx = n_ctx;
            params.n_threads = n_threads;
            params.n_threads_batch = n_threads;
            let context =
                NonNull::new(sys::llama_init_from_model(model.as_ptr(), params)).ok_or("no context can be made")?;
            let mut pool = sys::ggml_threadpool_params_default(n_threads);
            let threads = NonNull::new(sys::ggml_threadpool_new(&mut pool)).ok_or("no thread pool can be made")?;
            sys::llama_attach_threadpool(context.as_ptr(), threads.as_ptr(), threads.as_ptr());
            let n_vocab = sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(model.as_ptr()));
            Ok(Bare { model, context, threads, n_vocab: usize::try_from(n_vocab)? })
        }
    }

    /// Decodes `prompt`, and then `n` tokens one by one: each the most probable token that does not end the generation. Returns the
    /// tokens, and the time from the first to the last.
    pub fn generate(&mut self, prompt: &[i32], n: usize) -> Result<(Vec<i32>, Duration)> {
        // SAFETY: the context is alive, batches contain tokens of the vocabulary, and the row of logits of a batch's last token has
        // `n_vocab` floats.
        unsafe {
            let vocab = sys::llama_model_get_vocab(self.model.as_ptr());
            sys::llama_memory_clear(sys::llama_get_memory(self.context.as_ptr()), true);
            let mut batch = prompt.to_vec();
            let (mut tokens, mut start) = (Vec::with_capacity(n), Instant::now());
            loop {
                let size = i32::try_from(batch.len())?;
                if sys::llama_decode(self.context.as_ptr(), sys::llama_batch_get_one(batch.as_mut_ptr(), size)) != 0 {
                    return Err("llama_decode failed".into());
                }
                let logits = sys::llama_get_logits_ith(self.context.as_ptr(), -1);
                let logits = std::slice::from_raw_parts(logits, self.n_vocab);
                let mut best = (0, f32::NEG_INFINITY);
                for (token, &logit) in (0..).zip(logits) {
                    if logit > best.1 && !sys::llama_vocab_is_eog(vocab, token) {
                        best = (token, logit);
                    }
                }
                tokens.push(best.0);
                if tokens.len() == 1 {
                    start = Instant::now();
                }
                if tokens.len() == n {
                    return Ok((tokens, start.elapsed()));
                }
                batch = vec![best.0];
            }
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: all three are alive, and this value is the only owner.
        unsafe {
            sys::llama_free(self.context.as_ptr());
            sys::ggml_threadpool_free(self.threads.as_ptr());
            sys::llama_model_free(self.model.as_ptr());
        }
    }
}

unsafe extern "C" fn silent(_: sys::ggml_log_level, _: *const std::ffi::c_char, _: *mut std::ffi::c_void) {}
