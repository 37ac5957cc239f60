//! Sampling allocates nothing once its buffers have grown.

use crate::counting::allocations;
use foredraft::llama::{Model, ModelParams, Token};
use foredraft::sampling::{self, DrySettings, MirostatVersion, Sampler, SamplingSettings};

#[test]
fn sampling_allocates_nothing() {
    assert!(allocations(|| vec![0_u8; 100]) > 0, "the counter works");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-target.gguf");
    let params = ModelParams { vocab_only: true, ..ModelParams::new(file) };
    let model = Model::load(&params, |_| true).expect("the model loads");
    let n = model.vocab().n_tokens();
    let off = SamplingSettings { top_k: 0, top_p: 1.0, ..SamplingSettings::default() };
    let dry = DrySettings { multiplier: 0.8, ..off.dry.clone() };
    let everything = SamplingSettings {
        dry,
        tfs_z: 0.98,
        typical_p: 0.98,
        min_p: 0.01,
        xtc_probability: 0.5,
        top_n_sigma: 3.0,
        dynatemp_range: 0.1,
        repeat_last_n: -1,
        logit_bias: vec![(3, 1.0), (5, f32::NEG_INFINITY)],
        ..SamplingSettings::default()
    };
    let kinds = [
        ("default", SamplingSettings::default()),
        ("greedy", SamplingSettings { temperature: 0.0, ..SamplingSettings::default() }),
        ("whole vocabulary", off.clone()),
        ("top_p alone", SamplingSettings { top_p: 0.95, ..off.clone() }),
        ("min_p alone", SamplingSettings { min_p: 0.05, ..off.clone() }),
        ("typ_p alone", SamplingSettings { typical_p: 0.9, ..off.clone() }),
        ("tfs_z alone", SamplingSettings { tfs_z: 0.9, ..off.clone() }),
        ("xtc alone", SamplingSettings { xtc_probability: 1.0, ..off.clone() }),
        ("mirostat 1", SamplingSettings { mirostat: MirostatVersion::V1, ..SamplingSettings::default() }),
        ("mirostat 2", SamplingSettings { mirostat: MirostatVersion::V2, ..SamplingSettings::default() }),
        (
            "adaptive_p",
            SamplingSettings {
                adaptive_target: 0.4,
                stages: vec![foredraft::sampling::Stage::AdaptiveP],
                ..off.clone()
            },
        ),
        ("everything", everything),
    ];
    for (name, settings) in kinds {
        let mut sampler = Sampler::new(&settings, &model, None).expect("valid settings");
        let mut draft = sampler.for_draft(false);
        let mut row: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1009) as f32 / 60.0).collect();
        let mut history: Vec<Token> = (0..500).map(|i| (i * 31) % n as Token).collect();
        history.reserve(100);
        let mut step = |position: usize, history: &mut Vec<Token>| {
            let token = sampler.sample(&mut row, history, position).expect("a token");
            sampler.accept(token).expect("no grammar");
            let drafted = draft.sample(&mut row, history, position).expect("a token");
            draft.accept(drafted).expect("no grammar");
            draft.sync_from(&sampler);
            let left = sampler.distribution(&mut row, history, position).map(<[_]>::len).expect("a distribution");
            history.push(token);
            left + sampling::probability(&row, token).to_bits() as usize
        };
        // DRY's buffer grows with the longest history, by doubling.
        step(0, &mut history.repeat(2));
        let count = allocations(|| (1..50).map(|position| step(position, &mut history)).fold(0, usize::wrapping_add));
        assert_eq!(count, 0, "{name}: in 49 tokens");
    }
}
