//! Random scenarios: an engine's configuration, requests and session copies with the steps in which they happen.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::{MODEL, Setup, request};
use crate::{LogitsEditor, Request, RequestOptions};
use foredraft_base::error::Result;
use foredraft_grammar::Grammar;
use foredraft_llama::fake::{FakeModel, Fault, mix};
use foredraft_llama::{Rollback, Token};
use foredraft_sampling as sampling;
use foredraft_sampling::MirostatVersion;
use foredraft_speculation as speculative;
use foredraft_speculation::{Adaptive, DrafterKind, Verify};

/// A configuration, and everything that happens to the engine.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) setup: Setup,
    /// The seed of the tokens that prompts begin with.
    base: u64,
    pub(super) requests: Vec<PlannedRequest>,
    pub(super) sessions: Vec<SessionCopy>,
}

/// A request, and the steps in which it is submitted and cancelled.
#[derive(Debug, Clone)]
pub(super) struct PlannedRequest {
    pub(super) step: usize,
    /// The number of steps after which it is cancelled.
    pub(super) cancel: Option<usize>,
    n_texts: usize,
    prompt: Prompt,
    n_predict: usize,
    n_keep: Option<usize>,
    slot: Option<usize>,
    cache_prompt: bool,
    n_cache_reuse: usize,
    adapted: bool,
    stops: bool,
    edits: bool,
    seed: u32,
    sampling: Sampling,
    grammar: bool,
    speculative: Option<Speculation>,
    compare: bool,
    priority: i32,
}

/// The first `base` common tokens, without `skipped` of them in the middle, followed by the prompt's `own`.
#[derive(Debug, Clone)]
struct Prompt {
    base: u64,
    skipped: u64,
    own: String,
}

#[derive(Debug, Clone, Copy)]
enum Sampling {
    Greedy,
    Plain { temperature: f32, top_k: i32 },
    Penalties,
    Dry,
    Mirostat(MirostatVersion),
}

#[derive(Debug, Clone)]
struct Speculation {
    sources: Vec<DrafterKind>,
    n_max: usize,
    n_min: usize,
    p_min: f32,
    n_branches: usize,
    p_split: f32,
    verify: Verify,
    adaptive: Adaptive,
    prediction: String,
}

/// Saves a slot's session, or loads the one saved last.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionCopy {
    pub(super) step: usize,
    pub(super) slot: usize,
    pub(super) saves: bool,
}

const WORDS: u32 = 5;

/// The tokens of a string, one for each letter.
fn tokens(words: &str) -> impl Iterator<Item = Token> + '_ {
    words.bytes().map(|word| FakeModel::FIRST + Token::from(word - b'a'))
}

/// A logits callback that bans one of the words, by the last tokens.
fn ban_a_word(_id: u64, logits: &mut [f32], tokens: &[Token]) -> Result<()> {
    let hash = tokens.iter().rev().take(3).fold(0, |hash, token| mix(hash ^ u64::from(token.unsigned_abs())));
    let banned = FakeModel::FIRST + (hash % u64::from(WORDS)) as Token;
    logits[usize::try_from(banned).unwrap()] = f32::NEG_INFINITY;
    Ok(())
}

impl PlannedRequest {
    /// The engine's requests for its completions.
    pub(super) fn requests(&self, scenario: &Scenario) -> Vec<Request> {
        let word = |at| FakeModel::FIRST + (mix(scenario.base ^ at) % u64::from(WORDS)) as Token;
        let skipped = 4..4 + self.prompt.skipped;
        let base = (0..self.prompt.base).filter(|at| !skipped.contains(at)).map(word);
        let prompt: Vec<Token> = base.chain(tokens(&self.prompt.own)).collect();
        let sampling = self.sampling.settings();
        let one = |index: usize| {
            let sampling = sampling::SamplingSettings { seed: self.seed + index as u32, ..sampling.clone() };
            let plain = request(prompt.clone(), self.n_predict, sampling);
            Request {
                logits_editor: self.edits.then(|| LogitsEditor::new(ban_a_word)),
                lora: if self.adapted { vec![0.5] } else { Vec::new() },
                constraint: self
                    .grammar
                    .then(|| Grammar::new(&MODEL, GRAMMAR, &foredraft_base::work::Work::unlimited()).unwrap().into()),
                speculative: self.speculative.as_ref().map(Speculation::settings),
                compare: self.compare,
                options: RequestOptions {
                    cuts_begun_stop: false,
                    special: false,
                    n_keep: self.n_keep,
                    priority: self.priority,
                    slot: self.slot.filter(|slot| *slot < scenario.setup.n_parallel),
                    cache_prompt: self.cache_prompt,
                    n_cache_reuse: self.n_cache_reuse,
                    stop: if self.stops { vec![" said\"".into(), "ing y".into(), "oo".repeat(4)] } else { Vec::new() },
                    ..plain.options
                },
                ..plain
            }
        };
        (0..self.n_texts).map(one).collect()
    }
}

/// A grammar that forbids some likely outputs of the fake models.
const GRAMMAR: &str = r#"root ::= ("oo" | " y" " y"? | "ing" ("oo" | " said"))*"#;

impl Sampling {
    fn settings(self) -> sampling::SamplingSettings {
        let plain =
            sampling::SamplingSettings { repeat_penalty: 1.0, top_p: 1.0, ..sampling::SamplingSettings::default() };
        match self {
            Sampling::Greedy => sampling::SamplingSettings { temperature: 0.0, ..plain },
            Sampling::Plain { temperature, top_k } => sampling::SamplingSettings { temperature, top_k, ..plain },
            Sampling::Penalties => sampling::SamplingSettings {
                repeat_penalty: 1.3,
                presence_penalty: 0.2,
                frequency_penalty: 0.1,
                repeat_last_n: 12,
                ..plain
            },
            Sampling::Dry => {
                let mut settings = sampling::SamplingSettings { temperature: 0.6, ..plain };
                settings.dry.multiplier = 0.8;
                settings
            }
            Sampling::Mirostat(mirostat) => sampling::SamplingSettings { mirostat, mirostat_tau: 1.5, ..plain },
        }
    }
}

impl Speculation {
    fn settings(&self) -> speculative::Settings {
        speculative::Settings {
            sources: self.sources.clone(),
            n_max: self.n_max,
            n_min: self.n_min,
            p_min: self.p_min,
            n_branches: self.n_branches,
            p_split: self.p_split,
            verify: self.verify,
            adaptive: self.adaptive,
            prediction: Some(Arc::new(tokens(&self.prediction).collect::<Vec<_>>().into())),
            ..speculative::Settings::default()
        }
    }
}

fn model() -> BoxedStrategy<FakeModel> {
    (any::<u64>(), select(vec![0.0, 2.0, 4.0]), select(vec![0.3, 2.0]), select(vec![0, 8, 60]))
        .prop_map(|(seed, near, far, ends)| FakeModel {
            seed,
            n_words: WORDS,
            near,
            far,
            noise: 0.0,
            ends,
            floor: -20.0,
        })
        .boxed()
}

fn faults(most: usize) -> BoxedStrategy<BTreeMap<usize, Fault>> {
    // The first decodes are of prompts.
    let number = prop_oneof![0..6_usize, 0..120_usize];
    let fault = prop_oneof![
        Just(Fault::Full),
        (0..4_usize).prop_map(Fault::Aborted),
        (0..4_usize).prop_map(Fault::Aborted),
        (0..4_usize).prop_map(Fault::Failed),
    ];
    prop_oneof![3 => Just(BTreeMap::new()), 2 => btree_map(number.boxed(), fault.boxed(), 0..most)].boxed()
}

fn rollback() -> BoxedStrategy<Rollback> {
    prop_oneof![
        3 => Just(Rollback::Anywhere),
        3 => (1..=9_usize).prop_map(Rollback::Recent),
        1 => Just(Rollback::Never),
    ]
    .boxed()
}

prop_compose! {
    fn setup()(
        n_parallel in 1..=3_usize,
        kv_unified in any::<bool>(),
        n_ctx in 12..=48_usize,
        n_ubatch in select(vec![3, 8, 32]),
        // More than the tokens by which a slot may lag behind.
        max_invariant_tokens in select(vec![17, 22, 62]),
        (padding, ctx_shift, rollback) in (any::<bool>(), prop::bool::weighted(0.8), rollback()),
        target in model(),
        noise in option::weighted(0.85, select(vec![0.0_f32, 0.5, 1.5, 4.0])),
        target_faults in faults(4),
        draft_faults in faults(6),
        draft_cost in select(vec![1_u32, 10, 60]),
        // None of the words, all but one, or all.
        draft_scores in option::of(select(vec![16_usize, 304, 320])),
    ) -> Setup {
        let draft = noise.map(|noise| FakeModel { noise, ..target });
        let rollback = match rollback {
            // llama.cpp's limit.
            Rollback::Recent(n) => Rollback::Recent(n.min(n_ubatch - 2)),
            other => other,
        };
        let padding = padding && rollback.is_unlimited();
        Setup {
            n_parallel, kv_unified, n_ctx, n_ubatch, max_invariant_tokens, padding, rollback, ctx_shift, target, target_faults, draft, draft_faults, draft_cost,
            draft_vocab: None, draft_scores, cache_ram: 1 << 20, cache_dir: None, cache_dir_limit: None,
        }
    }
}

prop_compose! {
    fn speculation()(
        sources in prop_oneof![
            Just(vec![DrafterKind::Draft]),
            subsequence(vec![
                DrafterKind::Suffix, DrafterKind::Prediction, DrafterKind::NgramCache, DrafterKind::Draft,
            ], 1..=4),
        ],
        n_max in 1..=16_usize,
        n_min in prop_oneof![4 => Just(0), 1 => 0..4_usize],
        p_min in select(vec![0.0_f32, 0.0, 0.2, 0.5]),
        n_branches in prop_oneof![Just(1), 2..=8_usize],
        p_split in select(vec![0.0_f32, 0.1, 0.3]),
        verify in prop_oneof![
            4 => Just(Verify::Coupled),
            3 => Just(Verify::Match),
            1 => select(vec![Verify::Rejection, Verify::Block]),
        ],
        adaptive in select(vec![Adaptive::Auto, Adaptive::Heuristic, Adaptive::Fixed]),
        prediction in "[a-e]{0,20}",
    ) -> Speculation {
        Speculation { sources, n_max, n_min, p_min, n_branches, p_split, verify, adaptive, prediction }
    }
}

fn sampling() -> BoxedStrategy<Sampling> {
    let plain = (select(vec![0.3_f32, 1.0, 1.5]), select(vec![0, 3]))
        .prop_map(|(temperature, top_k)| Sampling::Plain { temperature, top_k });
    prop_oneof![
        3 => Just(Sampling::Greedy),
        3 => plain,
        1 => Just(Sampling::Penalties),
        1 => Just(Sampling::Dry),
        1 => select(vec![MirostatVersion::V1, MirostatVersion::V2]).prop_map(Sampling::Mirostat),
    ]
    .boxed()
}

prop_compose! {
    fn planned()(
        (step, cancel) in (prop_oneof![2 => Just(0), 1 => 0..5_usize, 2 => 0..40_usize], option::weighted(0.25, 0..30_usize)),
        n_texts in prop_oneof![4 => Just(1), 1 => 2..=3_usize],
        // Half of them begin with the same 20 tokens, so that slots copy from each other.
        prompt in (prop_oneof![0..40_u64, Just(20)], prop_oneof![4 => Just(0), 1 => 0..10_u64], "[a-e]{1,12}"),
        n_predict in 0..50_usize,
        n_keep in prop_oneof![3 => Just(Some(0)), 1 => Just(None), 2 => (0..60_usize).prop_map(Some)],
        slot in option::weighted(0.2, 0..3_usize),
        (cache_prompt, n_cache_reuse) in (prop::bool::weighted(0.8), select(vec![0, 0, 1, 3])),
        (adapted, stops, edits) in (prop::bool::weighted(0.2), prop::bool::weighted(0.2), prop::bool::weighted(0.3)),
        (seed, sampling) in (0..1000_u32, sampling()),
        grammar in prop::bool::weighted(0.1),
        speculative in option::weighted(0.8, speculation().boxed()),
        (compare, priority) in (prop::bool::weighted(0.1), prop_oneof![Just(0), -10..=10_i32]),
    ) -> PlannedRequest {
        let (base, skipped, own) = prompt;
        let prompt = Prompt { base, skipped, own };
        PlannedRequest {
            step, cancel, n_texts, prompt, n_predict, n_keep, slot, cache_prompt, n_cache_reuse, adapted, stops, edits, seed,
            sampling, grammar, speculative, compare, priority,
        }
    }
}

prop_compose! {
    pub(super) fn scenarios()(
        setup in setup().boxed(),
        base in any::<u64>(),
        requests in vec(planned().boxed(), 1..6),
        sessions in prop_oneof![3 => Just(Vec::new()), 1 => vec((1..60_usize, 0..3_usize, any::<bool>()), 1..6)],
    ) -> Scenario {
        let n_parallel = setup.n_parallel;
        let copy = |(step, slot, saves)| SessionCopy { step, slot: slot % n_parallel, saves };
        Scenario { setup, base, requests, sessions: sessions.into_iter().map(copy).collect() }
    }
}
