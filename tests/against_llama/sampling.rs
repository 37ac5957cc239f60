//! Compares our stages with llama.cpp's samplers: the same distribution for thousands of random chains, over a real
//! vocabulary with DRY's sequence breakers.

use std::ffi::CString;

use foredraft::llama::{Model, ModelParams, Token, TokenData};
use foredraft::sampling::{MirostatVersion, Sampler, SamplingSettings, Stage};
use llama_cpp_sys_2 as sys;

const STAGES: [Stage; 9] = [
    Stage::Penalties,
    Stage::Dry,
    Stage::TopNSigma,
    Stage::TopK,
    Stage::TypicalP,
    Stage::TopP,
    Stage::MinP,
    Stage::Xtc,
    Stage::Temperature,
];

/// A random generator for test data (xorshift64*).
struct Rng(u64);

impl Rng {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    fn between(&mut self, low: f64, high: f64) -> f32 {
        (low + (high - low) * self.unit()) as f32
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn coin(&mut self) -> bool {
        self.unit() < 0.4
    }
}

/// Random settings. XTC always applies if it is on, because the two sides have different random number generators.
fn any_settings(rng: &mut Rng) -> SamplingSettings {
    let mut settings = SamplingSettings {
        temperature: if rng.coin() { rng.between(0.3, 2.0) } else { 1.0 },
        top_k: if rng.coin() { 1 + rng.below(60) as i32 } else { 0 },
        top_p: if rng.coin() { rng.between(0.1, 0.99) } else { 1.0 },
        min_p: if rng.coin() { rng.between(0.001, 0.3) } else { 0.0 },
        typical_p: if rng.coin() { rng.between(0.1, 0.99) } else { 1.0 },
        top_n_sigma: if rng.coin() { rng.between(0.3, 4.0) } else { -1.0 },
        repeat_penalty: if rng.coin() { rng.between(0.8, 2.0) } else { 1.0 },
        min_keep: rng.below(5).saturating_sub(1),
        repeat_last_n: 1 + rng.below(90) as i32,
        ..SamplingSettings::default()
    };
    if rng.coin() {
        settings.dynatemp_range = rng.between(0.1, 0.25);
        settings.dynatemp_exponent = rng.between(0.3, 2.0);
    }
    if rng.coin() {
        (settings.xtc_probability, settings.xtc_threshold) = (1.0, rng.between(0.01, 0.4));
    }
    if rng.coin() {
        settings.presence_penalty = rng.between(-1.0, 2.0);
        settings.frequency_penalty = rng.between(-0.5, 1.0);
    }
    if rng.coin() {
        settings.dry.multiplier = rng.between(0.1, 1.5);
        settings.dry.base = rng.between(1.0, 2.5);
        settings.dry.allowed_length = rng.below(5) as i32;
        settings.dry.penalty_last_n = 1 + rng.below(90) as i32;
        if rng.coin() {
            settings.dry.sequence_breakers = [" there was", "<|im_end|>", ". ", "aa"].map(String::from).to_vec();
        }
    }
    let mut stages = STAGES.to_vec();
    if rng.coin() {
        for i in (1..stages.len()).rev() {
            stages.swap(i, rng.below(i + 1));
        }
        stages.truncate(1 + rng.below(STAGES.len()));
    }
    // After a stage that makes probabilities 0, llama.cpp's typical sampling gives NaN.
    let before_typical = stages.iter().take_while(|stage| **stage != Stage::TypicalP);
    let zeros = before_typical.into_iter().any(|stage| match stage {
        Stage::TopNSigma => settings.top_n_sigma > 0.0,
        Stage::Dry => settings.dry.multiplier > 0.0,
        Stage::Temperature => settings.temperature < 1.0 || settings.dynatemp_range > 0.0,
        _ => false,
    });
    if zeros {
        settings.typical_p = 1.0;
    }
    settings.stages = stages;
    if rng.below(6) == 0 {
        // With mirostat llama.cpp applies no other stage.
        settings.mirostat = if rng.coin() { MirostatVersion::V1 } else { MirostatVersion::V2 };
        settings.mirostat_tau = rng.between(0.5, 5.0);
        settings.stages.clear();
        settings.dynatemp_range = 0.0;
    }
    settings
}

/// A model loaded with llama.cpp's API, for its samplers.
struct LlamaSampler(*mut sys::llama_model);

impl LlamaSampler {
    fn load(file: &str) -> LlamaSampler {
        let path = CString::new(file).expect("no NUL");
        // SAFETY: the path is NUL-terminated, and the parameters are llama.cpp's defaults.
        let model = unsafe {
            let mut params = sys::llama_model_default_params();
            params.vocab_only = true;
            sys::llama_model_load_from_file(path.as_ptr(), params)
        };
        assert!(!model.is_null(), "{file} loads");
        LlamaSampler(model)
    }

    /// The candidates after llama.cpp's chain, with probabilities.
    fn distribution(&self, settings: &SamplingSettings, logits: &[f32], history: &[Token]) -> Vec<TokenData> {
        let mut items: Vec<TokenData> =
            (0..).zip(logits).map(|(id, logit)| TokenData { id, logit: *logit, p: 0.0 }).collect();
        let n = items.len() as i32;
        // SAFETY: the chain owns the samplers added to it and is freed at the end. The list is valid for its size, and
        // llama.cpp only shortens and reorders it.
        unsafe {
            let chain = sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params());
            let mut stages = settings.stages.clone();
            if settings.mirostat != MirostatVersion::Off {
                stages.push(Stage::Temperature);
            }
            for stage in stages {
                sys::llama_sampler_chain_add(chain, self.sampler(stage, settings, n));
            }
            let (tau, eta) = (settings.mirostat_tau, settings.mirostat_eta);
            let last = match settings.mirostat {
                MirostatVersion::Off => sys::llama_sampler_init_dist(1),
                MirostatVersion::V1 => sys::llama_sampler_init_mirostat(n, 1, tau, eta, 100),
                MirostatVersion::V2 => sys::llama_sampler_init_mirostat_v2(1, tau, eta),
            };
            sys::llama_sampler_chain_add(chain, last);
            for token in history {
                sys::llama_sampler_accept(chain, *token);
            }
            let mut list = sys::llama_token_data_array {
                data: items.as_mut_ptr().cast(),
                size: items.len(),
                selected: -1,
                sorted: false,
            };
            sys::llama_sampler_apply(chain, &mut list);
            let left = std::slice::from_raw_parts(list.data.cast::<TokenData>(), list.size).to_vec();
            sys::llama_sampler_free(chain);
            left
        }
    }

    /// # Safety
    /// The caller owns the result and adds it to a chain.
    unsafe fn sampler(&self, stage: Stage, settings: &SamplingSettings, n: i32) -> *mut sys::llama_sampler {
        let keep = settings.min_keep;
        // SAFETY: the vocabulary lives as long as the model, and strings are copied before this returns.
        unsafe {
            match stage {
                Stage::Penalties => sys::llama_sampler_init_penalties(
                    n,
                    settings.repeat_last_n,
                    settings.repeat_penalty,
                    settings.frequency_penalty,
                    settings.presence_penalty,
                ),
                Stage::Dry => {
                    let dry = &settings.dry;
                    let breakers: Vec<CString> =
                        dry.sequence_breakers.iter().map(|text| CString::new(text.as_str()).expect("no NUL")).collect();
                    let mut pointers: Vec<_> = breakers.iter().map(|text| text.as_ptr()).collect();
                    sys::llama_sampler_init_dry(
                        sys::llama_model_get_vocab(self.0),
                        dry.multiplier,
                        dry.base,
                        dry.allowed_length,
                        dry.penalty_last_n,
                        pointers.as_mut_ptr(),
                        pointers.len(),
                    )
                }
                Stage::TopNSigma => sys::llama_sampler_init_top_n_sigma(settings.top_n_sigma),
                Stage::TopK => sys::llama_sampler_init_top_k(settings.top_k),
                Stage::TypicalP => sys::llama_sampler_init_typical(settings.typical_p, keep),
                Stage::TopP => sys::llama_sampler_init_top_p(settings.top_p, keep),
                Stage::MinP => sys::llama_sampler_init_min_p(settings.min_p, keep),
                Stage::Xtc => sys::llama_sampler_init_xtc(settings.xtc_probability, settings.xtc_threshold, keep, 1),
                Stage::Temperature | Stage::TfsZ | Stage::AdaptiveP => sys::llama_sampler_init_temp_ext(
                    settings.temperature,
                    settings.dynatemp_range,
                    settings.dynatemp_exponent,
                ),
            }
        }
    }
}

impl Drop for LlamaSampler {
    fn drop(&mut self) {
        // SAFETY: this value owns the model, and all samplers have been freed.
        unsafe { sys::llama_model_free(self.0) }
    }
}

/// Random logits that resemble a model's.
fn any_logits(rng: &mut Rng, n: usize) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..n).map(|_| (2.0 * rng.normal()) as f32).collect();
    for _ in 0..1 + rng.below(8) {
        let likely = rng.below(n);
        if let Some(logit) = logits.get_mut(likely) {
            *logit += rng.between(4.0, 10.0);
        }
    }
    logits
}

#[test]
fn random_chains_match_llama_cpp() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-target.gguf");
    let params = ModelParams { vocab_only: true, ..ModelParams::new(file) };
    let model = Model::load(&params, |_| true).expect("the model loads");
    let (vocab, theirs) = (model.vocab(), LlamaSampler::load(file));
    let text = "Once there was a cat. There was: a dog, and there was a \"bird\".\nOnce there was a cat, and there was";
    let text = vocab.tokenize(text.as_bytes(), false, false).expect("a text");
    let mut rng = Rng(88_172_645_463_325_252);
    let mut truncated = 0;
    for case in 0..3000 {
        let (settings, mut logits) = (any_settings(&mut rng), any_logits(&mut rng, vocab.n_tokens()));
        // The end of a real text, or a few tokens in random order.
        let history: Vec<Token> = if rng.coin() {
            (0..rng.below(90)).map(|_| *text.get(rng.below(5)).expect("a token")).collect()
        } else {
            text.iter().copied().take(1 + rng.below(text.len())).collect()
        };
        let expected = theirs.distribution(&settings, &logits, &history);
        let mut sampler = Sampler::new(&settings, &model, None).expect("valid settings");
        let left = sampler.distribution(&mut logits, &history, case).expect("a distribution");
        let mut found = vec![0.0; logits.len()];
        left.iter().for_each(|item| found[item.id as usize] = item.p);
        truncated += usize::from(left.len() < logits.len() / 2);
        let mut sum = 0.0;
        for item in &expected {
            let p = found[item.id as usize];
            sum += p;
            let close = (p - item.p).abs() <= 2e-6 + 2e-4 * item.p;
            assert!(close, "case {case}, token {}: {p}, llama.cpp {}\n{settings:?}", item.id, item.p);
        }
        assert!(sum > 0.999, "case {case}: llama.cpp removed tokens of probability {} here\n{settings:?}", 1.0 - sum);
    }
    assert!(truncated > 1000, "only {truncated} chains truncated anything");
}

#[test]
fn adaptive_p_matches_llama_cpp() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-target.gguf");
    let params = ModelParams { vocab_only: true, ..ModelParams::new(file) };
    let model = Model::load(&params, |_| true).expect("the model loads");
    let vocab = model.vocab();
    let mut rng = Rng(2_463_534_242);
    for case in 0..40 {
        let (target, decay) = (rng.between(0.0, 1.0), rng.between(0.0, 1.0));
        let settings = SamplingSettings {
            adaptive_target: target,
            adaptive_decay: decay,
            top_k: 50,
            // Adaptive-p runs last, wherever it is listed.
            stages: vec![Stage::AdaptiveP, Stage::TopK],
            ..SamplingSettings::default()
        };
        let mut sampler = Sampler::new(&settings, &model, None).expect("valid settings");
        // SAFETY: the chain owns its samplers and is freed below.
        let chain = unsafe {
            let chain = sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params());
            sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_top_k(50));
            sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_adaptive_p(target, decay, case));
            chain
        };
        for position in 0..40 {
            let mut logits = any_logits(&mut rng, vocab.n_tokens());
            let mut items: Vec<TokenData> =
                (0..).zip(&logits).map(|(id, logit)| TokenData { id, logit: *logit, p: 0.0 }).collect();
            let size = items.len();
            let mut list =
                sys::llama_token_data_array { data: items.as_mut_ptr().cast(), size, selected: -1, sorted: false };
            // SAFETY: the list is valid for its size, and llama.cpp only shortens and reorders it.
            let (left, token) = unsafe {
                sys::llama_sampler_apply(chain, &mut list);
                let left = std::slice::from_raw_parts(list.data.cast::<TokenData>(), list.size).to_vec();
                let token = left[usize::try_from(list.selected).expect("a choice")].id;
                sys::llama_sampler_accept(chain, token);
                (left, token)
            };
            // Neither `sample` nor `distribution` changes the state that `accept` updates.
            for _ in 0..rng.below(3) {
                sampler.sample(&mut logits, &[], position).expect("a token");
            }
            let found = sampler.distribution(&mut logits, &[], position).expect("a distribution");
            for item in &left {
                let p = found.iter().find(|other| other.id == item.id).map_or(0.0, |other| other.p);
                let close = (p - item.p).abs() <= 1e-5 + 1e-3 * item.p;
                assert!(close, "{case} {position}: token {}: {p}, llama.cpp {}", item.id, item.p);
            }
            // A draft sampler may sample and accept any tokens.
            let mut draft = sampler.for_draft(false);
            let other = draft.sample(&mut logits, &[], position + 1).expect("a token");
            draft.accept(other).expect("no grammar");
            draft.sync_from(&sampler);
            let pairs = |sampler: &mut Sampler, logits: &mut [f32]| -> Vec<(Token, f32)> {
                let left = sampler.distribution(logits, &[], position).expect("a distribution");
                left.iter().map(|item| (item.id, item.p)).collect()
            };
            assert_eq!(pairs(&mut draft, &mut logits), pairs(&mut sampler, &mut logits));
            sampler.accept(token).expect("no grammar");
        }
        // SAFETY: this value is the only owner.
        unsafe { sys::llama_sampler_free(chain) };
    }
}
