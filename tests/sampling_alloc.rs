//! Sampling allocates nothing, once its buffers have grown to what a text needs.

mod counting;

use counting::allocations;
use foredraft::llama::{Model, ModelParams, Token};
use foredraft::sampling::{self, Dry, Mirostat, Sampler, Settings};

#[test]
fn sampling_allocates_nothing() {
    assert!(allocations(|| vec![0_u8; 100]) > 0, "the count works");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-target.gguf");
    let params = ModelParams { vocab_only: true, ..ModelParams::new(file) };
    let model = Model::load(&params, |_| true).expect("the model loads");
    let (vocab, n) = (model.vocab(), model.vocab().n_tokens());
    let off = Settings { top_k: 0, top_p: 1.0, ..Settings::default() };
    let dry = Dry { multiplier: 0.8, ..off.dry.clone() };
    let everything = Settings {
        dry,
        tfs_z: 0.98,
        typical_p: 0.98,
        min_p: 0.01,
        xtc_probability: 0.5,
        top_n_sigma: 3.0,
        dynatemp_range: 0.1,
        repeat_last_n: -1,
        logit_bias: vec![(3, 1.0), (5, f32::NEG_INFINITY)],
        ..Settings::default()
    };
    let kinds = [
        ("default", Settings::default()),
        ("greedy", Settings { temperature: 0.0, ..Settings::default() }),
        ("whole vocabulary", off.clone()),
        ("top_p alone", Settings { top_p: 0.95, ..off.clone() }),
        ("min_p alone", Settings { min_p: 0.05, ..off.clone() }),
        ("typ_p alone", Settings { typical_p: 0.9, ..off.clone() }),
        ("tfs_z alone", Settings { tfs_z: 0.9, ..off.clone() }),
        ("xtc alone", Settings { xtc_probability: 1.0, ..off.clone() }),
        ("mirostat 1", Settings { mirostat: Mirostat::V1, ..Settings::default() }),
        ("mirostat 2", Settings { mirostat: Mirostat::V2, ..Settings::default() }),
        (
            "adaptive_p",
            Settings { adaptive_target: 0.4, stages: vec![foredraft::sampling::Stage::AdaptiveP], ..off.clone() },
        ),
        ("everything", everything),
    ];
    for (name, settings) in kinds {
        let mut sampler = Sampler::new(&settings, vocab, None).expect("valid settings");
        let mut draft = sampler.for_draft(false);
        let mut row: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1009) as f32 / 60.0).collect();
        let mut history: Vec<Token> = (0..500).map(|i| (i * 31) % n as Token).collect();
        history.reserve(100);
        let mut step = |position: usize, history: &mut Vec<Token>| {
            let token = sampler.pick(&mut row, history, position).expect("a token");
            sampler.accept(token).expect("no grammar");
            let drafted = draft.pick(&mut row, history, position).expect("a token");
            draft.accept(drafted).expect("no grammar");
            draft.sync_from(&sampler);
            let left = sampler.distribution(&mut row, history, position).map(<[_]>::len).expect("a distribution");
            history.push(token);
            left + sampling::probability(&row, token).to_bits() as usize
        };
        // DRY's memory follows the longest text so far, doubling when it must.
        step(0, &mut history.repeat(2));
        let count = allocations(|| (1..50).map(|position| step(position, &mut history)).fold(0, usize::wrapping_add));
        assert_eq!(count, 0, "{name}: in 49 tokens");
    }
}
