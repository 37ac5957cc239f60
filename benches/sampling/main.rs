//! `make bench`: the cost of sampling from a large vocabulary, compared with llama.cpp's samplers.
//!
//!     cargo bench --bench sampling [-- RUNS]
//!
//! llama.cpp's side is what `common_sampler_sample` does on the CPU: fill a list with all logits, apply the chain, accept. This library's side
//! is `pick` and `accept`. Both sides are interleaved, and each figure is the median of RUNS (301) single tokens on changing rows, so that
//! other load affects both. Only stages that llama.cpp has are measured. Below, the cost of a grammar's masks (`masks`).
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "benchmarks may panic, and they call C functions"
)]

use std::ffi::CString;
use std::hint::black_box;
use std::time::{Duration, Instant};

mod masks;
#[path = "../../tests/common/vocabulary.rs"]
mod vocabulary;

use foredraft::llama::{Model, ModelParams, Token, TokenData};
use foredraft::sampling::{MirostatVersion, Sampler, SamplingSettings, Stage};
use llama_cpp_sys_2 as sys;

/// The vocabulary's size: Llama 3's.
const N_VOCAB: usize = 128_256;
/// The number of different rows.
const N_ROWS: usize = 8;
/// The number of tokens before the sampled one.
const N_HISTORY: usize = 512;

/// A vocabulary for llama.cpp's samplers.
struct Raw(*mut sys::llama_model);

impl Raw {
    fn load(file: &str) -> Raw {
        let path = CString::new(file).expect("no NUL");
        // SAFETY: the path is a C string, and the parameters are llama.cpp's defaults.
        let model = unsafe {
            let mut params = sys::llama_model_default_params();
            params.vocab_only = true;
            sys::llama_model_load_from_file(path.as_ptr(), params)
        };
        assert!(!model.is_null(), "{file} loads");
        Raw(model)
    }

    fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is loaded.
        unsafe { sys::llama_model_get_vocab(self.0) }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { sys::llama_model_free(self.0) }
    }
}

/// llama.cpp's sampler chain. Dropping it frees it.
struct Theirs(*mut sys::llama_sampler);

impl Theirs {
    /// # Safety
    /// `vocab` is null, or lives as long as the chain.
    unsafe fn new(settings: &SamplingSettings, vocab: *const sys::llama_vocab, history: &[Token]) -> Theirs {
        let n = N_VOCAB as i32;
        let keep = settings.min_keep;
        // SAFETY: the chain owns the added samplers.
        unsafe {
            let chain = sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params());
            if settings.temperature <= 0.0 {
                sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_greedy());
                return Theirs(chain);
            }
            for stage in &settings.stages {
                let sampler = match stage {
                    Stage::Penalties => sys::llama_sampler_init_penalties(
                        n,
                        settings.repeat_last_n,
                        settings.repeat_penalty,
                        settings.frequency_penalty,
                        settings.presence_penalty,
                    ),
                    Stage::Dry => {
                        let dry = &settings.dry;
                        sys::llama_sampler_init_dry(
                            vocab,
                            dry.multiplier,
                            dry.base,
                            dry.allowed_length,
                            dry.penalty_last_n,
                            std::ptr::null_mut(),
                            0,
                        )
                    }
                    Stage::TopNSigma => sys::llama_sampler_init_top_n_sigma(settings.top_n_sigma),
                    Stage::TopK => sys::llama_sampler_init_top_k(settings.top_k),
                    Stage::TypicalP => sys::llama_sampler_init_typical(settings.typical_p, keep),
                    Stage::TopP => sys::llama_sampler_init_top_p(settings.top_p, keep),
                    Stage::MinP => sys::llama_sampler_init_min_p(settings.min_p, keep),
                    Stage::Xtc => {
                        sys::llama_sampler_init_xtc(settings.xtc_probability, settings.xtc_threshold, keep, 1)
                    }
                    _ => sys::llama_sampler_init_temp_ext(
                        settings.temperature,
                        settings.dynatemp_range,
                        settings.dynatemp_exponent,
                    ),
                };
                sys::llama_sampler_chain_add(chain, sampler);
            }
            let (tau, eta) = (settings.mirostat_tau, settings.mirostat_eta);
            let last = match settings.mirostat {
                MirostatVersion::Off => sys::llama_sampler_init_dist(1),
                MirostatVersion::V1 => sys::llama_sampler_init_mirostat(n, 1, tau, eta, 100),
                MirostatVersion::V2 => sys::llama_sampler_init_mirostat_v2(1, tau, eta),
            };
            sys::llama_sampler_chain_add(chain, last);
            history.iter().for_each(|token| sys::llama_sampler_accept(chain, *token));
            Theirs(chain)
        }
    }

    /// Samples one token as `common_sampler_sample` does.
    fn sample(&self, logits: &[f32], list: &mut Vec<TokenData>) -> Token {
        list.resize(logits.len(), TokenData { id: 0, logit: 0.0, p: 0.0 });
        for ((id, item), logit) in (0..).zip(list.iter_mut()).zip(logits) {
            *item = TokenData { id, logit: *logit, p: 0.0 };
        }
        let mut array = sys::llama_token_data_array {
            data: list.as_mut_ptr().cast(),
            size: list.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: the array is valid for its size, and `selected` is below the number of remaining candidates.
        unsafe {
            sys::llama_sampler_apply(self.0, &mut array);
            let token = (*array.data.add(usize::try_from(array.selected).expect("a choice"))).id;
            sys::llama_sampler_accept(self.0, token);
            token
        }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { sys::llama_sampler_free(self.0) }
    }
}

/// Logits like those of a large model: a broad distribution of improbable tokens, and a few probable ones.
fn rows() -> Vec<Vec<f32>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut unit = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    };
    let mut row = || {
        let mut normal = || (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
        let mut row: Vec<f32> = (0..N_VOCAB).map(|_| (2.2 * normal() - 1.5) as f32).collect();
        for rank in 1..400 {
            let place = (unit() * N_VOCAB as f64) as usize;
            if let Some(logit) = row.get_mut(place) {
                *logit = (19.0 - 1.9 * f64::from(rank).ln() + 0.5 * unit()) as f32;
            }
        }
        row
    };
    (0..N_ROWS).map(|_| row()).collect()
}

/// Name, settings, and the required speed-up.
fn cases() -> Vec<(&'static str, SamplingSettings, f64)> {
    let off = SamplingSettings {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        repeat_penalty: 1.0,
        stages: vec![
            Stage::Penalties,
            Stage::Dry,
            Stage::TopNSigma,
            Stage::TopK,
            Stage::TypicalP,
            Stage::TopP,
            Stage::MinP,
            Stage::Xtc,
            Stage::Temperature,
        ],
        ..SamplingSettings::default()
    };
    let only = |stages: &[Stage], settings: SamplingSettings| SamplingSettings { stages: stages.to_vec(), ..settings };
    let usual = SamplingSettings { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..off.clone() };
    let mut dry = off.dry.clone();
    (dry.multiplier, dry.sequence_breakers) = (0.8, Vec::new());
    vec![
        ("greedy", SamplingSettings { temperature: 0.0, ..off.clone() }, 3.0),
        ("default chain", usual.clone(), 1.0),
        ("default chain, penalties", SamplingSettings { repeat_penalty: 1.1, ..usual.clone() }, 1.0),
        ("default chain, DRY", SamplingSettings { dry: dry.clone(), ..usual.clone() }, 1.0),
        ("temperature alone", only(&[Stage::Temperature], SamplingSettings { temperature: 0.8, ..off.clone() }), 1.0),
        ("temperature 1", only(&[], off.clone()), 1.0),
        ("dynamic temperature", SamplingSettings { dynatemp_range: 0.3, temperature: 0.8, ..off.clone() }, 1.0),
        ("penalties", only(&[Stage::Penalties], SamplingSettings { repeat_penalty: 1.1, ..off.clone() }), 1.0),
        ("DRY", only(&[Stage::Dry], SamplingSettings { dry, ..off.clone() }), 1.0),
        ("top_k 40", only(&[Stage::TopK], SamplingSettings { top_k: 40, ..off.clone() }), 1.0),
        ("top_k 1000", only(&[Stage::TopK], SamplingSettings { top_k: 1000, ..off.clone() }), 1.0),
        ("top_k 20000", only(&[Stage::TopK], SamplingSettings { top_k: 20_000, ..off.clone() }), 1.0),
        ("top_p 0.95", only(&[Stage::TopP], SamplingSettings { top_p: 0.95, ..off.clone() }), 1.0),
        ("top_p 0.999", only(&[Stage::TopP], SamplingSettings { top_p: 0.999, ..off.clone() }), 1.0),
        (
            "min_p first",
            only(
                &[Stage::MinP, Stage::TopP, Stage::Temperature],
                SamplingSettings { min_p: 0.05, top_p: 0.95, temperature: 0.8, ..off.clone() },
            ),
            1.0,
        ),
        ("typ_p 0.9", only(&[Stage::TypicalP], SamplingSettings { typical_p: 0.9, ..off.clone() }), 1.0),
        ("top_n_sigma 1", only(&[Stage::TopNSigma], SamplingSettings { top_n_sigma: 1.0, ..off.clone() }), 1.0),
        ("xtc", only(&[Stage::Xtc], SamplingSettings { xtc_probability: 1.0, xtc_threshold: 0.1, ..off.clone() }), 1.0),
        ("mirostat 1", only(&[], SamplingSettings { mirostat: MirostatVersion::V1, ..off.clone() }), 1.0),
        ("mirostat 2", only(&[], SamplingSettings { mirostat: MirostatVersion::V2, ..off }), 1.0),
    ]
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}

fn main() {
    let runs = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(301_usize);
    let words = (259..N_VOCAB).map(|i| format!("\u{2581}w{i}"));
    let file = vocabulary::sentence_piece(words).write("sampling-vocabulary");
    let params = ModelParams { vocab_only: true, ..ModelParams::new(&file) };
    let model = Model::load(&params, |_| true).expect("the vocabulary loads");
    let vocab = Raw::load(&file);
    let mut rows = rows();
    let history: Vec<Token> = (0..N_HISTORY).map(|i| (i * i * 31 % 1999) as Token).collect();
    println!("## Sampling: microseconds a token, {N_VOCAB} tokens, medians of {runs}\n");
    println!("| chain | ours | llama.cpp | times faster | goal |\n| --- | ---: | ---: | ---: | --- |");
    let mut list = Vec::new();
    for (name, settings, goal) in cases() {
        let mut ours = Sampler::new(&settings, &model, None).expect("valid settings");
        // SAFETY: `vocab` lives until the end of the function.
        let theirs = unsafe { Theirs::new(&settings, vocab.vocab(), &history) };
        let mut text = history.clone();
        let (mut our_times, mut their_times) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
        for run in 0..runs + 5 {
            let Some(row) = rows.get_mut(run % N_ROWS) else { continue };
            // Both find the row in the processor's caches, as after a decode.
            black_box(row.iter().sum::<f32>());
            let start = Instant::now();
            let token = ours.sample(row, &text, run).expect("a token");
            ours.accept(token).expect("no grammar");
            let our_time = start.elapsed();
            black_box(row.iter().sum::<f32>());
            let start = Instant::now();
            black_box(theirs.sample(row, &mut list));
            let their_time = start.elapsed();
            text.push(token);
            if run >= 5 {
                our_times.push(our_time);
                their_times.push(their_time);
            }
        }
        let (our_time, their_time) = (median(&mut our_times), median(&mut their_times));
        let ratio = their_time / our_time;
        let met = if ratio >= goal { "met" } else { "NOT MET" };
        println!("| {name} | {our_time:.1} | {their_time:.1} | {ratio:.2} | {goal} {met} |");
    }
    masks::run();
}
