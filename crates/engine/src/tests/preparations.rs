//! Preparations of requests that may come: what the requests then find, and that their outputs stay the same.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::reference::reference_output;
use super::{Setup, TestEngine, output, request};
use crate::{PREPARATION, Phase, PreparedPlace, Request, RequestHandle};
use foredraft_llama::fake::{FakeModel, mix};
use foredraft_llama::{Rollback, Token};
use foredraft_sampling as sampling;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 7, n_words: 5, near: 4.0, far: 0.5, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };

fn words(seed: u64, length: u64) -> Vec<Token> {
    (0..length).map(|at| FakeModel::FIRST + (mix(seed * 10_000 + at) % 5) as Token).collect()
}

/// A turn of a conversation, drafted if the seed is even.
fn turn(name: &str, tokens: &[Token], seed: u64, n_predict: usize) -> Request {
    let sampling = sampling::SamplingSettings { temperature: 0.9, seed: seed as u32, ..Default::default() };
    let mut request = request(tokens.to_vec(), n_predict, sampling);
    request.options.conversation = Some(Arc::from(name));
    let sources = vec![DrafterKind::Draft, DrafterKind::Suffix];
    let settings = Settings { sources, adaptive: Adaptive::Fixed, n_max: 3, ..Settings::default() };
    let mut hasher = DefaultHasher::new();
    (tokens, seed).hash(&mut hasher);
    Request { speculative: seed.is_multiple_of(2).then_some(settings), identity: hasher.finish(), ..request }
}

/// The preparation of a request.
fn preparation(mut request: Request, begins: bool) -> Request {
    request.options.priority = PREPARATION;
    request.options.ends_when_full = true;
    request.options.n_predict = request.options.n_predict.filter(|_| begins).or(Some(0));
    request
}

fn setup(n_parallel: usize, n_ctx: usize) -> Setup {
    Setup { draft: Some(FAKE_MODEL), draft_cost: 5, ..Setup::plain(FAKE_MODEL, n_parallel, n_ctx, 32) }
}

fn run_until_idle(engine: &mut TestEngine) {
    for step in 0.. {
        if engine.scheduler.is_idle() {
            return;
        }
        assert!(step < 20_000, "the engine must end all requests");
        engine.step();
    }
}

/// Steps until a request has so many tokens.
fn steps_until(engine: &mut TestEngine, handle: &RequestHandle, n_tokens: usize) -> usize {
    let mut n = 0;
    for step in 1.. {
        engine.step();
        for (_, event) in handle.take(std::time::Duration::ZERO).0 {
            n += match event {
                crate::Event::Update(update) => update.tokens.len(),
                crate::Event::Finished(outcome) => outcome.tokens.len(),
                _ => 0,
            };
        }
        if n >= n_tokens {
            return step;
        }
        assert!(step < 1000 && handle.phase() != Phase::Finished, "the request must generate");
    }
    unreachable!()
}

#[test]
fn the_first_token_comes_within_two_decodes_however_long_the_prompt() {
    for length in [50, 700, 4000] {
        let setup = setup(2, 4200);
        let prompt = words(1, length);
        let asked = turn("a", &prompt, 3, 8);
        let mut engine = TestEngine::new(&setup);
        let handle = engine.submit(vec![asked.clone()]);
        let unprepared = steps_until(&mut engine, &handle, 1);
        assert!(unprepared >= length.div_ceil(32) as usize, "{length}: not prepared: {unprepared}");

        // The last words of the prompt were not known.
        let mut engine = TestEngine::new(&setup);
        engine.submit(vec![preparation(turn("a", &prompt[..prompt.len() - 20], 3, 8), false)]);
        run_until_idle(&mut engine);
        let handle = engine.submit(vec![asked.clone()]);
        assert_eq!(steps_until(&mut engine, &handle, 1), 1, "{length}: prepared");

        // All of it was known.
        let mut engine = TestEngine::new(&setup);
        engine.submit(vec![preparation(asked.clone(), true)]);
        run_until_idle(&mut engine);
        let handle = engine.submit(vec![asked.clone()]);
        assert_eq!(steps_until(&mut engine, &handle, 8), 1, "{length}: begun, all tokens");

        // The answer is being begun, and ends at the next step.
        let mut engine = TestEngine::new(&setup);
        let begun = engine.submit(vec![preparation(asked.clone(), true)]);
        steps_until(&mut engine, &begun, 3);
        begun.cancel();
        let handle = engine.submit(vec![asked.clone()]);
        assert_eq!(steps_until(&mut engine, &handle, 4), 1, "{length}: begun, three tokens and another one");
    }
}

/// Turns of five conversations on few slots. Each is prepared, begun or not, with its prompt or a part of it, beside other requests.
fn talk(setup: &Setup, n_turns: u64) -> usize {
    let mut engine = TestEngine::new(setup);
    let mut conversations: Vec<Vec<Token>> = (0..5).map(|name| words(name, 30 + name)).collect();
    let mut n_taken_over = 0;
    for round in 0..n_turns {
        let random = mix(round + 31) as usize;
        let name = random % 5;
        conversations[name].extend(words(round + 50, 6));
        let tokens = conversations[name].clone();
        let asked = turn(&format!("character {name}"), &tokens, round, 1 + random / 8 % 9);
        let mut others = Vec::new();
        let mut prepared: Option<Arc<RequestHandle>> = None;
        for number in 0..1 + random / 64 % 3 {
            let known = if mix(round * 7 + number as u64).is_multiple_of(3) { tokens.len() - 3 } else { tokens.len() };
            let part = turn(&format!("character {name}"), &tokens[..known], round, 1 + random / 512 % 9);
            if let Some(earlier) = prepared.take() {
                earlier.cancel();
            }
            prepared = Some(engine.submit(vec![preparation(part, !random.is_multiple_of(4))]));
            (0..random / 4096 % 7).for_each(|_| engine.step());
            if (random / 32768).is_multiple_of(2) {
                let other = (name + 1 + number) % 5;
                let request = turn(&format!("character {other}"), &conversations[other], round + 900, 4);
                others.push((engine.submit(vec![request.clone()]), request));
                (0..random / 65536 % 5).for_each(|_| engine.step());
            }
        }
        prepared.iter().for_each(|prepared| _ = prepared.cancel());
        // As the interface does, which knows that the preparation has ended.
        engine.scheduler.end_cancelled();
        let place = PreparedPlace::Conversation(asked.options.conversation.clone().expect("a name"));
        let begun = engine.scheduler.pool.begun.take(&place, asked.identity);
        n_taken_over += begun.len();
        engine.scheduler.pool.begun.keep(crate::begun::BegunAnswer {
            place,
            identity: asked.identity,
            tokens: begun.to_vec(),
        });
        let handle = engine.submit(vec![asked.clone()]);
        run_until_idle(&mut engine);
        for (handle, request) in others.into_iter().chain([(handle, asked)]) {
            let (found, outcome) = output(&handle);
            let expected = reference_output(setup, &request);
            assert_eq!((&found, outcome.stop), (&expected.tokens, expected.stop), "round {round}, conversation {name}");
        }
        if conversations[name].len() > 150 {
            conversations[name].truncate(40); // it rewinds
        }
    }
    n_taken_over
}

#[test]
fn prepared_turns_have_the_outputs_of_a_fresh_engine() {
    let setups = [
        setup(2, 250),
        setup(1, 250),
        Setup { kv_unified: true, ..setup(2, 250) },
        Setup { rollback: Rollback::Recent(6), padding: false, ..setup(2, 250) },
        Setup { rollback: Rollback::Never, padding: false, ..setup(2, 250) },
        Setup { cache_ram: 0, ..setup(1, 250) },
        Setup { ctx_shift: true, n_ctx: 60, ..setup(2, 250) },
    ];
    for (number, setup) in setups.iter().enumerate() {
        let n_taken_over = talk(setup, 120);
        assert!(n_taken_over > 30, "setup {number}: the test needs begun answers: {n_taken_over}");
    }
}

#[test]
fn a_begun_answer_is_dropped_for_another_prompt_seed_or_conversation() {
    let setup = setup(1, 250);
    let asked = turn("a", &words(1, 40), 3, 6);
    let mut longer = asked.options.clone();
    longer.n_predict = Some(12);
    let others = [
        turn("a", &words(2, 40), 3, 6),
        turn("a", &words(1, 40), 5, 6),
        turn("b", &words(1, 40), 3, 6),
        Request { options: longer, ..asked.clone() },
        asked.clone(),
    ];
    let steps = others.map(|other| {
        let mut engine = TestEngine::new(&setup);
        engine.submit(vec![preparation(asked.clone(), true)]);
        run_until_idle(&mut engine);
        let handle = engine.submit(vec![other.clone()]);
        let mut n_steps = 0;
        while handle.phase() != Phase::Finished {
            engine.step();
            n_steps += 1;
        }
        assert_eq!(output(&handle).0, reference_output(&setup, &other).tokens);
        let place = other.options.place().expect("a place");
        assert!(engine.scheduler.pool.begun.take(&place, asked.identity).is_empty());
        n_steps
    });
    assert_eq!(steps[4], 1, "the same answer ends at once");
    assert!(steps[3] > 1 && steps[..3].iter().all(|other| *other > steps[3]), "a longer one goes on: {steps:?}");
}

#[test]
fn a_preparation_is_decoded_only_while_no_request_is() {
    let mut engine = TestEngine::new(&setup(2, 400));
    let prepared = engine.submit(vec![preparation(turn("a", &words(1, 300), 1, 5), true)]);
    engine.step();
    let slot = engine.scheduler.pool.slots.iter().position(|slot| slot.task.is_some()).expect("it runs");
    let n_cached = engine.scheduler.pool.slots[slot].cache.len();
    assert!((1..300).contains(&n_cached));
    assert!(engine.scheduler.only_prepares(), "a command interrupts its decode");
    let asked = engine.submit(vec![turn("b", &words(2, 20), 1, 10)]);
    while asked.phase() != Phase::Finished {
        engine.step();
        assert_eq!(engine.scheduler.pool.slots[slot].cache.len(), n_cached, "it waits");
        assert!(asked.phase() == Phase::Finished || !engine.scheduler.only_prepares());
    }
    run_until_idle(&mut engine);
    assert_eq!(output(&prepared).1.n_predicted, 5);
}

#[test]
fn a_preparation_makes_way_for_every_request_and_goes_on_from_its_conversation() {
    let mut engine = TestEngine::new(&setup(1, 250));
    let prepared = engine.submit(vec![preparation(turn("a", &words(1, 100), 1, 20), true)]);
    steps_until(&mut engine, &prepared, 3);
    let mut lowest = turn("b", &words(2, 30), 1, 2);
    lowest.options.priority = -10;
    let lowest = engine.submit(vec![lowest]);
    engine.step();
    assert_eq!((lowest.phase(), engine.scheduler.queue_order.as_slice()), (Phase::Generating, &[prepared.id()][..]));
    assert_eq!(engine.scheduler.pool.conversations.memory().n, 1, "its cells went to memory");
    while lowest.phase() != Phase::Finished {
        engine.step();
    }
    engine.scheduler.prepare();
    assert!(engine.scheduler.pool.slots[0].cache.len() >= 102, "nothing is decoded again");
    run_until_idle(&mut engine);
    assert_eq!(output(&prepared).1.n_predicted, 20);
}
