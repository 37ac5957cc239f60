//! The context of the MTP layers and the drafter on it, with calls that the engine never makes.

use std::sync::Arc;

use foredraft::engine::drafters::Head;
use foredraft::llama::{
    Batch, Context, ContextParams, DecodeError, DevicePlacement, Interrupt, Model, ModelParams, ThreadPool, Token,
};
use foredraft::sampling::{self, Sampler};
use foredraft::speculative::{DecodedTokens, Draft, DraftRequest, Drafter, DrafterKind, Settings, StopPolicy};
use foredraft_base::HiddenStates;

use crate::common;
use crate::common::tiny_models::{self, MtpInput};

/// A target's context and the context of its MTP layers.
fn contexts(path: &str) -> (Context, Context) {
    let threads = Arc::new(ThreadPool::new(1).expect("threads"));
    let params = ModelParams { mtp: true, ..ModelParams::new(path) };
    let model = Arc::new(Model::load(&params, |_| true).expect("it loads"));
    let interrupt = Arc::new(Interrupt::default());
    let target = Context::new(&model, &context_params(), &threads, &interrupt).expect("it fits");
    (target, Context::mtp(&model, &context_params(), &threads, &interrupt).expect("it fits"))
}

fn context_params() -> ContextParams {
    ContextParams {
        n_ctx: Some(256),
        n_batch: 64,
        n_ubatch: 32,
        n_seq_max: 2,
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    }
}

/// `fit` chooses by such estimates.
#[test]
fn estimate_of_an_mtp_context_is_what_it_takes() {
    for path in [tiny_models::mtp(MtpInput::Token, 0.4), tiny_models::mtp_layers()] {
        let (_, layers) = contexts(&path);
        let mut taken = DevicePlacement::default();
        taken.add_context(&layers);
        let measured = ModelParams { mtp: true, only_measures: true, ..ModelParams::new(&path) };
        let measured = Model::load(&measured, |_| true).expect("it loads");
        let mut estimate = DevicePlacement::default();
        estimate.add_mtp_estimate(&measured, &context_params()).expect("llama.cpp takes the parameters");
        assert_eq!(estimate, taken);
        assert!(taken.devices().iter().any(|on| on.kv_cache > 0 && on.compute > 0), "{taken:?}");
    }
}

/// On most of these calls llama.cpp reads out of bounds, asserts, or returns stale values.
#[test]
fn mtp_context_refuses_invalid_calls() {
    for path in [tiny_models::mtp(MtpInput::Token, 0.4), tiny_models::mtp_layers()] {
        let (mut target, mut layers) = contexts(&path);
        let (n_layers, n_hidden) = (target.model().n_mtp_layers(), layers.n_hidden());
        assert_eq!(n_hidden, 32);
        let batch = |count: usize, states: usize| {
            let mut batch = Batch::new();
            for position in 0..count {
                batch.push(300, position, 0, position % 2 == 1);
            }
            batch.push_hidden(&vec![0.5; states]);
            batch
        };
        for (count, states) in [(1, 0), (1, 31), (1, 33), (3, 32), (0, 0), (0, 32), (65, 65 * 32)] {
            assert!(matches!(layers.decode(&batch(count, states)), Err(DecodeError::Failed(_))), "{count} {states}");
        }
        assert!(matches!(target.decode(&batch(2, 64)), Err(DecodeError::Failed(_))), "a target takes no hidden states");
        assert!(layers.hidden(0).is_none() && target.hidden(0).is_none(), "nothing has been decoded");
        layers.decode(&batch(4, 4 * 32)).expect("decoded");
        let there: Vec<bool> = [0, 1, 2, 3, 4, usize::MAX].iter().map(|at| layers.hidden(*at).is_some()).collect();
        assert_eq!(there, [false, true, false, true, false, false], "only tokens with logits have hidden states");
        assert_ne!(layers.hidden(1).map(<[f32]>::to_vec), layers.hidden(3).map(<[f32]>::to_vec));
        for layer in [n_layers, n_layers + 1, usize::MAX] {
            assert!(!layers.set_mtp_layer(layer) && !target.set_mtp_layer(0));
        }
        for layer in 0..n_layers {
            layers.truncate(0, 0);
            assert!(layers.set_mtp_layer(layer));
            layers.decode(&batch(4, 4 * 32)).expect("decoded");
        }

        target.decode(&batch(4, 0)).expect("decoded");
        assert!(target.hidden(1).is_none(), "hidden states were not requested");
        target.keep_hidden(true);
        assert!(target.hidden(1).is_none(), "they were not requested for the last decode either");
        target.truncate(0, 0);
        target.decode(&batch(40, 0)).expect("decoded");
        let there = [0, 1, 39, 40, usize::MAX].map(|at| target.hidden(at).is_some());
        assert_eq!(there, [true, true, true, false, false], "all tokens have hidden states");
        let before: Vec<f32> = target.logits(39).expect("logits").to_vec();
        target.keep_hidden(false);
        assert!(target.hidden(0).is_some(), "hidden states of the last decode stay available");
        target.truncate(0, 0);
        target.decode(&batch(40, 0)).expect("decoded");
        assert!(target.hidden(0).is_none());
        assert_eq!(target.logits(39).expect("logits"), before, "the logits are the same, to the last bit");
        assert!(
            matches!(target.decode(&batch(40, 0)), Err(DecodeError::Failed(_))),
            "the positions are already occupied"
        );
        assert!(target.hidden(0).is_none());
        assert_eq!(
            layers.test_moves(),
            n_layers == 1,
            "{path}: llama.cpp cannot move cells if every layer has a sliding window"
        );
        assert!(layers.decode(&batch(4, 4 * 32)).is_ok(), "the context still works");
        target.truncate(0, 0);
        target.test_hidden().expect("hidden states are available");
    }
    let plain = Arc::new(Model::load(&ModelParams::new(common::model("draft")), |_| true).expect("it loads"));
    let threads = Arc::new(ThreadPool::new(1).expect("threads"));
    let why = Context::mtp(&plain, &ContextParams::default(), &threads, &Arc::new(Interrupt::default()));
    assert!(why.expect_err("the model has no MTP layers").message().contains("no layers"));
    // A model loaded without its MTP layers.
    let model =
        Arc::new(Model::load(&ModelParams::new(tiny_models::mtp(MtpInput::Token, 0.4)), |_| true).expect("it loads"));
    assert!(Context::mtp(&model, &ContextParams::default(), &threads, &Arc::new(Interrupt::default())).is_err());
}

/// Makes random calls in random order, with valid and invalid arguments.
#[test]
fn mtp_drafter_survives_calls_in_any_order() {
    for path in [tiny_models::mtp(MtpInput::Token, 0.4), tiny_models::mtp_layers()] {
        let (mut target, layers) = contexts(&path);
        let vocab = Arc::clone(target.model());
        let mut drafter = Head::new(layers, 2, DrafterKind::Mtp, true);
        let sampler = Sampler::new(&sampling::SamplingSettings::default(), &*vocab, None).expect("a sampler");
        let settings = Settings::default();
        let mut random = 1_u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % n.max(1)
        };
        let mut contexts: [Vec<Token>; 2] = Default::default();
        let mut drafted = 0;
        for step in 0..3000 {
            let slot = below(3);
            let context = &mut contexts[slot % 2];
            match below(9) {
                0 => drafter.begin(slot, &sampler, &settings),
                1 => drafter.shift(slot, below(60), below(60)),
                2 => drafter.end(slot, context, below(5)),
                3 => drafter.verified(slot, below(9), below(9)),
                4 => drafter.reuse(slot, context, below(9)),
                5 => context.truncate(below(context.len() + 1)),
                6 => context.extend((0..below(40)).map(|_| 300 + below(1000) as Token)),
                7 => {
                    // Decode with the target, and report it to the drafter correctly or not.
                    let count = 1 + below(60);
                    target.truncate(0, 0);
                    target.keep_hidden(below(4) > 0);
                    let mut batch = Batch::new();
                    for position in 0..count {
                        batch.push(300 + below(9) as Token, position, 0, true);
                    }
                    target.decode(&batch).expect("decoded");
                    context.truncate(300);
                    let from = if below(3) > 0 { context.len().saturating_sub(count) } else { below(400) };
                    let first = if below(3) > 0 { 0 } else { below(70) };
                    let (tokens, draft) = (&context[..], &[301, 302][..below(3)]);
                    drafter.decoded(slot, &mut DecodedTokens { target: &mut target, first, tokens, from, draft });
                }
                _ => {
                    let mut drafts = [Draft::default(), Draft::default()];
                    let mut asks: Vec<DraftRequest> = contexts
                        .iter()
                        .zip(&mut drafts)
                        .enumerate()
                        .map(|(slot, (tokens, draft))| DraftRequest {
                            slot,
                            tokens,
                            sampler: &sampler,
                            generated: 0,
                            position: below(1000),
                            n_max: below(70),
                            branches: (1, 1.0),
                            p_min: 0.0,
                            stop_policy: StopPolicy::All,
                            draft,
                            drawing: None,
                        })
                        .collect();
                    drafter.draft(&mut asks);
                    drafted += drafts.iter().map(|draft| draft.tokens.len()).sum::<usize>();
                }
            }
            for why in [0, 1].into_iter().filter_map(|slot| drafter.disabled(slot)) {
                assert!(why.starts_with("the request is longer than the layers' context"), "{step}: {why}");
            }
        }
        assert!(drafted > 50, "{drafted}");
    }
}
