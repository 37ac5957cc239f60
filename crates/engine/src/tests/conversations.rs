//! Conversations: more than there are slots, in random order. Each output is that of a fresh engine.

use std::sync::Arc;
use std::time::Duration;

use super::reference::reference_output;
use super::{Setup, TestEngine, output, request};
use crate::conversation_actions::{ConversationAction, ConversationEntry, ConversationJob, ConversationPlace, Rewind};
use crate::scheduler::NextWork;
use crate::{Phase, Request};
use foredraft_base::error::{Code, Result};
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

/// Does something with conversations between two steps.
fn call(engine: &mut TestEngine, name: Option<&str>, action: ConversationAction) -> Result<Vec<ConversationEntry>> {
    let (reply, answer) = crossbeam_channel::bounded(1);
    let job = ConversationJob { name: name.map(str::to_owned), action, reply };
    engine.scheduler.conversation_jobs.push_back(job);
    loop {
        engine.scheduler.serve_conversations();
        match answer.try_recv() {
            Ok(answer) => return answer.map(|answer| answer.conversations),
            Err(_) => engine.scheduler.pool.conversations.disk.as_mut().expect("it waits for the disk").wait(),
        }
    }
}

/// Forks, rewinds, pins or drops a conversation, as the host's tokens.
fn change(engine: &mut TestEngine, conversations: &mut [Vec<Token>], seed: u64) {
    let (from, to) = ((mix(seed) % 12) as usize, (mix(seed + 1) % 12) as usize);
    let name = format!("character {from}");
    let rewind = |seed| Rewind::Token((mix(seed) % 60) as usize);
    let action = match mix(seed + 2) % 6 {
        0 | 1 => ConversationAction::Fork(format!("character {to}")),
        2 => ConversationAction::Rewind(rewind(seed + 3)),
        3 => ConversationAction::Rewind(Rewind::Turn((mix(seed + 3) % 4) as usize)),
        4 => ConversationAction::Pin(mix(seed + 3).is_multiple_of(2)),
        _ => ConversationAction::Drop,
    };
    // It may be gone, or be busy.
    let Ok(after) = call(engine, Some(&name), action.clone()) else { return };
    match action {
        ConversationAction::Fork(_) => conversations[to] = conversations[from].clone(),
        // The state of a hybrid model may be shorter than the host's tokens.
        ConversationAction::Rewind(Rewind::Turn(1..)) => {
            assert!(conversations[from].len() >= after[0].n_tokens);
            conversations[from].truncate(after[0].n_tokens.max(20));
        }
        _ => {}
    }
}

/// Runs turns of 12 conversations in random order, two at a time. Returns the share of the prompts' tokens that was cached.
fn run(setup: &Setup, n_turns: usize, changes: bool) -> f64 {
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
        let mut n_steps = 0;
        while !engine.scheduler.is_idle() {
            engine.step();
            n_steps += 1;
            if changes && n_steps == 3 {
                let mut unused = conversations.clone(); // of those that run, the host's tokens stay
                change(&mut engine, &mut unused, round * 77);
            }
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
        if changes {
            change(&mut engine, &mut conversations, round * 31);
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
        let cached = run(setup, 80, false);
        assert!(cached > 0.6 || setup.n_ctx == 60, "setup {number}: {cached} of the prompts was cached");
    }
}

#[test]
fn forked_and_rewound_conversations_have_the_outputs_of_a_fresh_engine() {
    let setups = [
        two_slots(),
        Setup { kv_unified: true, ..two_slots() },
        Setup { rollback: Rollback::Recent(6), padding: false, ..two_slots() },
        Setup { rollback: Rollback::Never, padding: false, ..two_slots() },
        Setup { ctx_shift: true, n_ctx: 60, ..two_slots() },
        Setup { cache_ram: 40_000, ..two_slots() },
    ];
    for (number, setup) in setups.iter().enumerate() {
        let cached = run(setup, 80, true);
        assert!(
            cached > 0.3 || setup.n_ctx == 60 || setup.cache_ram == 40_000,
            "setup {number}: {cached} of the prompts was cached"
        );
    }
}

#[test]
fn conversations_are_listed_forked_rewound_pinned_and_dropped() {
    let setup = Setup { draft: None, cache_ram: 200_000, ..two_slots() };
    let mut engine = TestEngine::new(&setup);
    let prompt = |name: u64| words(name, 60).collect::<Vec<_>>();
    let ask = |engine: &mut TestEngine, name: &str, prompt: &[Token]| {
        let handle = engine.submit(vec![turn(name, prompt, 1)]);
        while !engine.scheduler.is_idle() {
            engine.step();
        }
        let (tokens, outcome) = output(&handle);
        (tokens, outcome.prompt.n_cached)
    };
    let (first, _) = ask(&mut engine, "a", &prompt(1));
    let longer = [prompt(1), first.clone(), vec![FakeModel::FIRST]].concat();
    ask(&mut engine, "a", &longer);
    ask(&mut engine, "b", &prompt(2));
    ask(&mut engine, "c", &prompt(3));
    let places = |engine: &mut TestEngine| -> Vec<(String, ConversationPlace, usize)> {
        let all = call(engine, None, ConversationAction::List).unwrap();
        all.into_iter().map(|info| (info.name, info.place, info.n_turns)).collect()
    };
    use ConversationPlace::{Memory, Slot};
    let expected =
        [("a", Memory, 2), ("b", Slot(0), 1), ("c", Slot(1), 1)].map(|(name, at, n)| (name.to_owned(), at, n));
    assert_eq!(places(&mut engine), expected);
    // A fork of a state in memory, and one of a slot's.
    for (from, to) in [("a", "d"), ("b", "e")] {
        let fork = call(&mut engine, Some(from), ConversationAction::Fork(to.into())).unwrap();
        assert_eq!((&*fork[0].name, fork[0].place), (to, Memory));
    }
    let rewound = call(&mut engine, Some("d"), ConversationAction::Rewind(Rewind::Turn(1))).unwrap();
    assert_eq!((rewound[0].n_tokens, rewound[0].n_turns), (64, 1));
    let (_, cached) = ask(&mut engine, "d", &longer);
    assert_eq!(cached, 64, "the last generated token is decoded again");
    let (_, cached) = ask(&mut engine, "a", &longer);
    assert_eq!(cached, longer.len() - 1, "the first one is not rewound");
    let rewound = call(&mut engine, Some("a"), ConversationAction::Rewind(Rewind::Token(10))).unwrap();
    assert_eq!((rewound[0].n_tokens, rewound[0].n_turns), (10, 0), "in a slot");
    for (name, action, code) in [
        ("a", ConversationAction::Rewind(Rewind::Token(11)), Code::InvalidRequest),
        ("a", ConversationAction::Rewind(Rewind::Turn(1)), Code::InvalidRequest),
        ("a", ConversationAction::Fork("a".into()), Code::InvalidRequest),
        ("z", ConversationAction::Fork("a".into()), Code::NotFound),
        ("z", ConversationAction::Drop, Code::NotFound),
    ] {
        assert_eq!(call(&mut engine, Some(name), action).unwrap_err().code(), code);
    }
    assert!(call(&mut engine, Some("e"), ConversationAction::Pin(true)).unwrap()[0].is_pinned);
    for number in 10..60 {
        ask(&mut engine, &number.to_string(), &prompt(number));
    }
    assert!(call(&mut engine, Some("e"), ConversationAction::List).is_ok(), "it is pinned");
    assert_eq!(call(&mut engine, Some("c"), ConversationAction::List).unwrap_err().code(), Code::NotFound);
    call(&mut engine, Some("e"), ConversationAction::Drop).unwrap();
    assert!(call(&mut engine, Some("e"), ConversationAction::List).is_err());
    // While a request runs, its state can be forked and dropped, not rewound.
    let handle = engine.submit(vec![turn("f", &prompt(7), 1)]);
    (0..4).for_each(|_| engine.step());
    let running = call(&mut engine, Some("f"), ConversationAction::List).unwrap();
    assert!(running[0].is_running && running[0].n_tokens > 0, "{running:?}");
    assert!(call(&mut engine, Some("f"), ConversationAction::Rewind(Rewind::Token(0))).is_err());
    assert!(call(&mut engine, Some("f"), ConversationAction::Fork("g".into())).unwrap()[0].n_tokens > 0);
    assert!(call(&mut engine, Some("g"), ConversationAction::Fork("f".into())).is_err());
    call(&mut engine, Some("f"), ConversationAction::Drop).unwrap();
    while !engine.scheduler.is_idle() {
        engine.step();
    }
    assert_eq!(output(&handle).0.len(), 5);
    assert!(call(&mut engine, Some("f"), ConversationAction::List).is_err());
    let rewound = call(&mut engine, Some("g"), ConversationAction::Rewind(Rewind::Token(0))).unwrap();
    assert_eq!((rewound[0].n_tokens, call(&mut engine, Some("g"), ConversationAction::List).is_err()), (0, true));
}

#[test]
fn a_fork_without_room_is_an_error() {
    let mut engine = TestEngine::new(&Setup { cache_ram: 100, ..two_slots() });
    engine.submit(vec![turn("a", &words(1, 60).collect::<Vec<_>>(), 1)]);
    while !engine.scheduler.is_idle() {
        engine.step();
    }
    let error = call(&mut engine, Some("a"), ConversationAction::Fork("b".into())).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(call(&mut engine, Some("b"), ConversationAction::List).is_err());
}

#[test]
fn conversations_beyond_the_limit_are_decoded_again() {
    let all = run(&two_slots(), 80, false);
    let few = run(&Setup { cache_ram: 40_000, ..two_slots() }, 80, false);
    let none = run(&Setup { cache_ram: 0, ..two_slots() }, 80, false);
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

/// An empty folder for the conversations of a test.
fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("foredraft-conversations-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn conversations_on_disk_have_the_outputs_of_a_fresh_engine() {
    for (number, setup) in [
        Setup { cache_ram: 20_000, ..two_slots() },
        Setup { cache_ram: 0, rollback: Rollback::Never, padding: false, ..two_slots() },
        Setup { cache_ram: 20_000, kv_unified: true, ..two_slots() },
    ]
    .into_iter()
    .enumerate()
    {
        let kept = run(&Setup { cache_dir: Some(folder(&format!("many-{number}"))), ..setup.clone() }, 60, false);
        let without = run(&setup, 60, false);
        assert!(kept > without + 0.1, "setup {number}: {kept} of the prompts was cached, {without} without a folder");
        run(&Setup { cache_dir: Some(folder(&format!("changes-{number}"))), ..setup }, 60, true);
    }
}

/// Answers a request of a conversation. Returns the output and the tokens of the prompt that were cached.
fn ask(engine: &mut TestEngine, setup: &Setup, name: &str, prompt: &[Token]) -> usize {
    let turn = turn(name, prompt, 1);
    let handle = engine.submit(vec![turn.clone()]);
    while !engine.scheduler.is_idle() {
        engine.step();
    }
    let (tokens, outcome) = output(&handle);
    assert_eq!(tokens, reference_output(setup, &turn).tokens);
    outcome.prompt.n_cached
}

#[test]
fn damaged_and_foreign_files_are_decoded_again() {
    let folder = folder("damaged");
    let setup = Setup { cache_ram: 0, cache_dir: Some(folder.clone()), draft: None, n_parallel: 1, ..two_slots() };
    let prompt = |name: u64| words(name, 60).collect::<Vec<_>>();
    let mut engine = TestEngine::new(&setup);
    let files = || -> Vec<_> { std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect() };
    ask(&mut engine, &setup, "a", &prompt(1));
    ask(&mut engine, &setup, "b", &prompt(2));
    let file = files()[0].clone();
    let whole = std::fs::read(&file).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 150 + 1) {
        // "a" is on disk, and is damaged there.
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&file, &damaged).unwrap();
        let _ = call(&mut engine, None, ConversationAction::List);
        assert_eq!(ask(&mut engine, &setup, "a", &prompt(1)), 0, "byte {at}");
        ask(&mut engine, &setup, "b", &prompt(2));
    }
    assert_eq!(ask(&mut engine, &setup, "a", &prompt(1)), 59, "the whole file is of use");
    // The file of another conversation.
    let other = files().into_iter().find(|path| *path != file).unwrap();
    ask(&mut engine, &setup, "b", &prompt(2));
    std::fs::copy(&other, &file).unwrap();
    assert_eq!(ask(&mut engine, &setup, "a", &prompt(1)), 0);
    // A folder that cannot be written.
    std::fs::remove_dir_all(&folder).unwrap();
    ask(&mut engine, &setup, "b", &prompt(2));
    assert_eq!(ask(&mut engine, &setup, "a", &prompt(1)), 0);
}

#[test]
fn later_engines_find_conversations_on_disk() {
    let folder = folder("later");
    let setup = Setup { cache_dir: Some(folder.clone()), ..two_slots() };
    let prompt = |name: u64| words(name, 60).collect::<Vec<_>>();
    let mut engine = TestEngine::new(&setup);
    for name in 0..5 {
        ask(&mut engine, &setup, &name.to_string(), &prompt(name));
    }
    crate::conversations::write_all(&mut engine.scheduler.pool);
    let mut engine = TestEngine::new(&setup);
    let one = call(&mut engine, Some("1"), ConversationAction::Fork("6".into())).unwrap();
    assert_eq!(one[0].place, ConversationPlace::Memory);
    let rewound = call(&mut engine, Some("2"), ConversationAction::Rewind(Rewind::Token(40))).unwrap();
    assert_eq!((rewound[0].place, rewound[0].n_tokens), (ConversationPlace::Disk, 40));
    call(&mut engine, Some("3"), ConversationAction::Drop).unwrap();
    let cached = [0, 1, 2, 3, 4].map(|name| ask(&mut engine, &setup, &name.to_string(), &prompt(name)));
    assert_eq!(cached, [59, 59, 40, 0, 59]);
    assert_eq!(ask(&mut engine, &setup, "6", &prompt(1)), 59);
}

#[test]
fn steps_go_on_while_the_disk_is_busy() {
    let setup = Setup { cache_ram: 0, cache_dir: Some(folder("busy")), draft: None, ..two_slots() };
    let prompt = |name: u64| words(name, 60).collect::<Vec<_>>();
    let mut engine = TestEngine::new(&setup);
    for name in 0..4 {
        ask(&mut engine, &setup, &name.to_string(), &prompt(name));
    }
    // The disk writes or reads something until the test lets it.
    let (release, held) = crossbeam_channel::bounded::<()>(1);
    let hold = |engine: &mut TestEngine, held: crossbeam_channel::Receiver<()>| {
        engine.scheduler.pool.conversations.disk.as_mut().unwrap().begin(None, move |_| {
            let _ = held.recv();
            None
        });
    };
    hold(&mut engine, held.clone());
    let mut long = turn("3", &prompt(3), 1);
    long.options.n_predict = Some(30);
    let (long, from_disk) = (engine.submit(vec![long]), engine.submit(vec![turn("0", &prompt(0), 1)]));
    while long.phase() != Phase::Finished {
        engine.advance_beside_disk();
        assert_eq!(from_disk.phase(), Phase::Queued, "its file is not read yet");
    }
    assert_eq!(engine.scheduler.next_work(), NextWork::AfterCommand, "the engine sleeps until the disk is ready");
    // An action waits, too; the step does not.
    let (reply, answer) = crossbeam_channel::bounded(1);
    let action = ConversationAction::Fork("4".into());
    engine.scheduler.conversation_jobs.push_back(ConversationJob { name: Some("1".into()), action, reply });
    engine.advance_beside_disk();
    assert!(answer.is_empty());
    release.send(()).unwrap();
    while !engine.scheduler.is_idle() {
        engine.step();
    }
    assert!(answer.recv().unwrap().is_ok());
    assert_eq!(output(&from_disk).1.prompt.n_cached, 59);
    // A cancelled request leaves nothing that was read for it.
    hold(&mut engine, held);
    let cancelled = engine.submit(vec![turn("1", &prompt(1), 1)]);
    engine.advance_beside_disk();
    cancelled.cancel();
    release.send(()).unwrap();
    engine.step();
    engine.step();
    assert!(engine.scheduler.is_idle() && engine.scheduler.pool.conversations.get("1").is_none());
}

#[test]
fn files_unused_for_longest_make_room() {
    let folder = folder("limit");
    let files = || -> Vec<_> {
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect()
    };
    let prompt = |name: u64| words(name, 60).collect::<Vec<_>>();
    let open = |limit| {
        let dir = Some(folder.clone());
        Setup { cache_ram: 0, cache_dir: dir, cache_dir_limit: limit, draft: None, n_parallel: 1, ..two_slots() }
    };
    // Each turn writes the conversation that had the slot. The clock of the file system may be slow, so the test sets the times.
    let mut time = std::time::SystemTime::UNIX_EPOCH;
    let mut old: Vec<std::path::PathBuf> = Vec::new();
    let mut next = |engine: &mut TestEngine, setup: &Setup, name: u64| {
        let cached = ask(engine, setup, &name.to_string(), &prompt(name));
        engine.scheduler.pool.conversations.disk.as_mut().unwrap().wait();
        for (path, _) in files() {
            let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            if !old.contains(&path) || file.metadata().unwrap().modified().unwrap() > time + Duration::from_secs(1000) {
                time += Duration::from_secs(1);
                file.set_modified(time).unwrap();
            }
        }
        old = files().into_iter().map(|(path, _)| path).collect();
        cached
    };
    let setup = open(None);
    let mut engine = TestEngine::new(&setup);
    for name in [1, 2] {
        next(&mut engine, &setup, name);
    }
    let size = files()[0].1;
    let limit = size * 7 / 2; // three of them, which differ by a few bytes
    let setup = open(Some(limit));
    let mut engine = TestEngine::new(&setup);
    for name in [2, 3, 4] {
        let cached = next(&mut engine, &setup, name);
        assert!(cached < 20, "conversation {name}: {cached} tokens, by chance those of the one before");
    }
    // 1, 2 and 3 are on disk, and 4 has the slot.
    assert_eq!(next(&mut engine, &setup, 1), 59);
    // Now 4 is there, too, and made room by 2, since 1 was read last.
    assert_eq!(files().len(), 3);
    assert!(call(&mut engine, Some("3"), ConversationAction::Pin(true)).unwrap()[0].is_pinned);
    let on_disk = |engine: &TestEngine, name: u64| {
        engine.scheduler.pool.conversations.disk.as_ref().unwrap().files.find(&name.to_string()).is_some()
    };
    assert_eq!([1, 2, 3, 4].map(|name| on_disk(&engine, name)), [true, false, true, true]);
    for name in 5..15 {
        next(&mut engine, &setup, name);
        let total: u64 = files().iter().map(|(_, n_bytes)| n_bytes).sum();
        assert!(total <= limit, "{total} of {limit} bytes");
    }
    assert_eq!([1, 3, 4, 13].map(|name| on_disk(&engine, name)), [false, true, false, true], "3 is pinned");
    // A file that is larger than the limit leaves the others alone.
    let setup = open(Some(size / 2));
    let mut engine = TestEngine::new(&setup);
    next(&mut engine, &setup, 20);
    next(&mut engine, &setup, 21);
    assert_eq!(files().len(), 3);
    assert!(next(&mut engine, &setup, 20) < 20);
}

/// Folders in which no user can make a file: one of the system's, and one that a file has replaced.
#[test]
fn a_folder_that_cannot_be_written_costs_no_request() {
    let gone = folder("gone");
    let setups = [std::path::PathBuf::from("/proc/self"), gone.clone()].map(|dir| Setup {
        cache_ram: 0,
        cache_dir: Some(dir),
        draft: None,
        n_parallel: 1,
        ..two_slots()
    });
    let mut engines = setups.each_ref().map(TestEngine::new);
    std::fs::remove_dir_all(&gone).unwrap();
    std::fs::write(&gone, "a file").unwrap();
    for (engine, setup) in engines.iter_mut().zip(&setups) {
        for turn in 0..6 {
            // Each displaces the other one, whose state no place takes.
            let name = turn % 2;
            let prompt: Vec<Token> = words(name, 60).collect();
            assert!(ask(engine, setup, &name.to_string(), &prompt) < 20);
            engine.scheduler.pool.conversations.disk.as_mut().unwrap().wait();
        }
        for action in [ConversationAction::Pin(true), ConversationAction::Drop] {
            let missing = call(engine, Some("0"), action).unwrap_err();
            assert_eq!(missing.code(), Code::NotFound, "{missing}");
        }
        assert_eq!(call(engine, None, ConversationAction::List).unwrap().len(), 1, "the one in the slot");
    }
}

#[test]
fn a_folder_with_a_hundred_thousand_files_stays_within_its_limit() {
    let folder = folder("full");
    let other = |number: usize| folder.join(format!("{number:016x}-{number:032x}.conversation"));
    for number in 0..100_000 {
        std::fs::write(other(number), "of another model").unwrap();
    }
    std::fs::write(folder.join("notes.txt"), "the host's").unwrap();
    let limit = 1 << 20;
    let dir = Some(folder.clone());
    let setup =
        Setup { cache_ram: 0, cache_dir: dir, cache_dir_limit: Some(limit), draft: None, n_parallel: 1, ..two_slots() };
    let mut engine = TestEngine::new(&setup);
    for (name, cached) in [(1, None), (2, None), (1, Some(59)), (2, Some(59))] {
        let prompt: Vec<Token> = words(name, 60).collect();
        let found = ask(&mut engine, &setup, &name.to_string(), &prompt);
        assert!(cached.map_or(found < 20, |cached| found == cached), "{name}: {found} tokens");
    }
    engine.scheduler.pool.conversations.disk.as_mut().unwrap().wait();
    let lengths = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(lengths.sum::<u64>() <= limit + 10, "but for the host's file");
    assert!(folder.join("notes.txt").exists());
    let files = std::sync::Arc::clone(&engine.scheduler.pool.conversations.disk.as_ref().unwrap().files);
    assert_eq!(files.list().len(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
}
