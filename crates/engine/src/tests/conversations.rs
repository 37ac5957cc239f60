//! Conversations: more than there are slots, in random order. Each output is that of a fresh engine.

use std::sync::Arc;

use super::reference::reference_output;
use super::{Setup, TestEngine, output, request};
use crate::Request;
use foredraft_llama::fake::{FakeModel, mix};
use foredraft_llama::{Rollback, Token};
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 5, near: 4.0, far: 0.5, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };

fn words(seed: u64, length: u64) -> impl Iterator<Item = Token> {
    (0..length).map(move |at| FakeModel::FIRST + (mix(seed * 1000 + at) % 5) as Token)
}

/// A turn of a conversation: its tokens so far.
fn turn(name: &str, tokens: &[Token], seed: u64) -> Request {
    let sampling = sampling::SamplingSettings { temperature: 0.9, seed: seed as u32, ..Default::default() };
    let mut request = request(tokens.to_vec(), 5, sampling);
    request.options.conversation = Some(Arc::from(name));
    let sources = vec![DrafterKind::Draft, DrafterKind::Suffix];
    let settings = Settings { sources, adaptive: Adaptive::Fixed, n_max: 3, ..Settings::default() };
    Request { speculative: seed.is_multiple_of(2).then_some(settings), ..request }
}

fn two_slots() -> Setup {
    Setup { draft: Some(FAKE_MODEL), draft_cost: 5, ..Setup::plain(FAKE_MODEL, 2, 250, 32) }
}

/// Runs turns of 12 conversations in random order, two at a time. Returns the share of the prompts' tokens that was cached.
fn run(setup: &Setup, n_turns: usize) -> f64 {
    let mut engine = TestEngine::new(setup);
    let mut conversations: Vec<Vec<Token>> = (0..12).map(|name| words(name, 30 + name).collect()).collect();
    let (mut n_cached, mut n_prompt) = (0, 0);
    for round in 0..n_turns as u64 {
        let first = (mix(round) % 12) as usize;
        let turns = [first, (first + 1 + (mix(round + 500) % 11) as usize) % 12].map(|name| {
            conversations[name].extend(words(round + 50, 3));
            let mut turn = turn(&format!("character {name}"), &conversations[name], round);
            // Now and then, one begins in the slot of the other, or preempts it.
            turn.options.slot = mix(round + 900).is_multiple_of(7).then_some(0);
            turn.options.priority = i32::try_from(name % 2).unwrap();
            (name, engine.submit(vec![turn.clone()]), turn)
        });
        while !engine.scheduler.is_idle() {
            engine.step();
            assert!(engine.scheduler.pool.conversations.memory().n_bytes <= setup.cache_ram, "the limit is passed");
        }
        for (name, handle, turn) in turns {
            let (tokens, outcome) = output(&handle);
            let cached = outcome.prompt.n_cached;
            assert_eq!(tokens, reference_output(setup, &turn).tokens, "round {round}, conversation {name}");
            (n_cached, n_prompt) = (n_cached + cached, n_prompt + turn.prompt.len());
            conversations[name].extend(tokens);
            if conversations[name].len() > 200 {
                conversations[name].truncate(40); // it rewinds
            }
        }
    }
    n_cached as f64 / n_prompt as f64
}

#[test]
fn conversations_have_the_outputs_of_a_fresh_engine() {
    let setups = [
        two_slots(),
        Setup { kv_unified: true, ..two_slots() },
        Setup { rollback: Rollback::Recent(6), padding: false, ..two_slots() },
        Setup { rollback: Rollback::Never, padding: false, ..two_slots() },
        Setup { ctx_shift: true, n_ctx: 60, ..two_slots() },
    ];
    for (number, setup) in setups.iter().enumerate() {
        let cached = run(setup, 80);
        assert!(cached > 0.6 || setup.n_ctx == 60, "setup {number}: {cached} of the prompts was cached");
    }
}

#[test]
fn conversations_beyond_the_limit_are_decoded_again() {
    let all = run(&two_slots(), 80);
    let few = run(&Setup { cache_ram: 40_000, ..two_slots() }, 80);
    let none = run(&Setup { cache_ram: 0, ..two_slots() }, 80);
    assert!(all > few && few > none, "{all} {few} {none}");
}

#[test]
fn a_conversation_goes_on_in_its_slot_or_from_memory() {
    let setup = Setup { draft: None, ..two_slots() };
    let mut engine = TestEngine::new(&setup);
    let mut ask = |name: u64, is_cached: bool| {
        let handle = engine.submit(vec![turn(&name.to_string(), &words(name, 60).collect::<Vec<_>>(), 1)]);
        while !engine.scheduler.is_idle() {
            engine.step();
        }
        let cached = output(&handle).1.prompt.n_cached;
        assert_eq!(cached == 59, is_cached, "conversation {name}: {cached}");
        engine.scheduler.pool.conversations.memory().n
    };
    let n_in_memory = [ask(1, false), ask(2, false), ask(1, true), ask(3, false), ask(1, true)];
    assert_eq!(n_in_memory, [0, 0, 0, 1, 1], "two slots hold two");
    assert_eq!([ask(2, true), ask(3, true), ask(1, true)], [1, 1, 1], "they change places");
}
