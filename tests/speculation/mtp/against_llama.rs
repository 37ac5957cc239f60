//! The MTP drafter makes the same drafts as llama.cpp's own `draft-mtp`, called through the crate's binding.

use crate::common::Endpoint::Foredraft;
use crate::common::tiny_models::MtpInput;
use crate::common::{complete, start, tiny_models};
use llama_cpp_sys_2 as sys;
use serde_json::json;

const N_MAX: usize = 3;

/// llama.cpp's target context, MTP context and speculation.
struct LlamaCpp {
    model: *mut sys::llama_model,
    target: *mut sys::llama_context,
    layers: *mut sys::llama_context,
    speculative: *mut sys::llama_rs_mtp_speculative,
    n_vocab: usize,
}

impl LlamaCpp {
    fn load(path: &str) -> LlamaCpp {
        let path = std::ffi::CString::new(path).expect("no NUL");
        // SAFETY: calls in the order that llama.cpp documents; all pointers live until `drop`.
        unsafe {
            sys::llama_backend_init();
            let params = sys::llama_model_params { load_mtp: true, ..sys::llama_model_default_params() };
            let model = sys::llama_model_load_from_file(path.as_ptr(), params);
            assert!(!model.is_null());
            let context = |ctx_type| {
                let (n_ctx, n_batch, n_threads) = (1024, 512, 1);
                let params = sys::llama_context_params {
                    ctx_type,
                    n_ctx,
                    n_batch,
                    n_threads,
                    n_threads_batch: 1,
                    swa_full: true,
                    ..sys::llama_context_default_params()
                };
                let context = sys::llama_init_from_model(model, params);
                assert!(!context.is_null());
                context
            };
            let target = context(sys::LLAMA_CONTEXT_TYPE_DEFAULT);
            let layers = context(sys::LLAMA_CONTEXT_TYPE_MTP);
            let speculative = sys::llama_rs_mtp_speculative_init(target, layers, N_MAX as i32, 0, 0.0);
            assert!(!speculative.is_null());
            let n_vocab = sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(model)) as usize;
            LlamaCpp { model, target, layers, speculative, n_vocab }
        }
    }

    /// Decodes `tokens` in both contexts at position `from`. Returns the target's greedy token after each.
    fn decode(&mut self, tokens: &[i32], from: usize) -> Vec<i32> {
        let mut tokens = tokens.to_vec();
        let count = tokens.len();
        let mut positions: Vec<i32> = (from..from + count).map(|at| at as i32).collect();
        // Logits as in llama-server: for the prompt's last token, and for every drafted one.
        let output = |index| i8::from(count <= 1 + N_MAX || index + 1 == count);
        let (mut counts, mut outputs, mut zero) = (vec![1; count], (0..count).map(output).collect::<Vec<_>>(), 0);
        let mut ids = vec![&raw mut zero; count];
        let batch = sys::llama_batch {
            n_tokens: count as i32,
            token: tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: positions.as_mut_ptr(),
            n_seq_id: counts.as_mut_ptr(),
            seq_id: ids.as_mut_ptr(),
            logits: outputs.as_mut_ptr(),
        };
        // SAFETY: the lists have the given lengths, and a row of logits has the vocabulary's.
        unsafe {
            for context in [self.target, self.layers] {
                assert!(sys::llama_memory_seq_rm(sys::llama_get_memory(context), 0, from as i32, -1));
            }
            assert_eq!(sys::llama_decode(self.target, batch), 0);
            assert_eq!(sys::llama_rs_mtp_speculative_process(self.speculative, &raw const batch), 0);
            let row =
                |index| std::slice::from_raw_parts(sys::llama_get_logits_ith(self.target, index as i32), self.n_vocab);
            (0..count).filter(|index| output(*index) != 0).map(|index| largest(row(index))).collect()
        }
    }

    fn draft(&mut self, context: &[i32]) -> Vec<i32> {
        let (last, before) = context.split_last().expect("a token");
        let (mut draft, mut count) = ([0; N_MAX], 0);
        // SAFETY: as above.
        let status = unsafe {
            // As in llama-server, rejected tokens are removed.
            assert!(sys::llama_memory_seq_rm(sys::llama_get_memory(self.layers), 0, before.len() as i32, -1));
            sys::llama_rs_mtp_speculative_draft(
                self.speculative,
                before.len() as i32,
                *last,
                before.as_ptr(),
                before.len(),
                draft.as_mut_ptr(),
                draft.len(),
                &raw mut count,
            )
        };
        assert_eq!(status, 0);
        draft[..count].to_vec()
    }

    /// Generates greedily. Returns the tokens, and the drafted and accepted tokens of each step.
    fn write(&mut self, prompt: &[i32], n_predict: usize) -> (Vec<i32>, Vec<(usize, usize)>) {
        let mut context = prompt.to_vec();
        // SAFETY: as above.
        assert_eq!(unsafe { sys::llama_rs_mtp_speculative_begin(self.speculative, prompt.as_ptr(), prompt.len()) }, 0);
        let sampled = self.decode(prompt, 0);
        context.extend(sampled.last());
        let mut steps = Vec::new();
        while context.len() < prompt.len() + n_predict {
            let mut draft = self.draft(&context);
            draft.truncate(prompt.len() + n_predict - context.len() - 1);
            let last = context.len() - 1;
            let sampled = self.decode(&[&context[last..], &draft].concat(), last);
            let accepted = sampled.iter().zip(&draft).take_while(|(sampled, drafted)| sampled == drafted).count();
            // SAFETY: as above.
            let status = unsafe { sys::llama_rs_mtp_speculative_accept(self.speculative, accepted as u16) };
            assert_eq!(status, 0);
            context.extend(&sampled[..=accepted]);
            steps.push((draft.len(), accepted));
        }
        (context.split_off(prompt.len()), steps)
    }
}

/// The index of the first largest value.
fn largest(logits: &[f32]) -> i32 {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best as i32
}

impl Drop for LlamaCpp {
    fn drop(&mut self) {
        // SAFETY: freed in this order, no object refers to one that is gone.
        unsafe {
            sys::llama_rs_mtp_speculative_free(self.speculative);
            sys::llama_free(self.layers);
            sys::llama_free(self.target);
            sys::llama_model_free(self.model);
        }
    }
}

#[test]
fn drafts_match_llama_cpp() {
    let models = [
        tiny_models::mtp(MtpInput::Token, 0.4),
        tiny_models::mtp(MtpInput::Hidden, 0.2),
        tiny_models::mtp(MtpInput::Random, 0.4),
        tiny_models::mtp_layers(),
    ];
    for model in models {
        let speculative = json!({"type": "mtp", "adaptive": false, "n_max": N_MAX});
        let engine = start(json!({"model": model, "model_draft": null, "n_ctx": 1024, "speculative": speculative}));
        let mut theirs = LlamaCpp::load(&model);
        for seed in 0..5 {
            let prompt: Vec<i32> =
                (0..20 + 8 * seed).map(|index| 300 + (seed * 7919 + index * index * 31) % 1000).collect();
            let (expected, steps) = theirs.write(&prompt, 100);
            let request = json!({
                "prompt": prompt, "n_predict": 100, "temperature": 0, "repeat_penalty": 1, "ignore_eos": true, "return_tokens": true, "cache_prompt": false,
            });
            let answer = complete(&engine, Foredraft, &request);
            assert_eq!(answer["tokens"], json!(expected), "{model}");
            let (drafted, accepted) = steps.iter().fold((0, 0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
            let report = &answer["speculative"];
            assert_eq!(report["n_accepted"], accepted, "{model}: {report}");
            assert_eq!(report["n_drafted"], drafted, "{model}: {report}");
        }
    }
}
