//! While nothing runs or waits, the engine's thread measures what a load left, until the slots are used for the first time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::{Setup, THREADS, TestEngine, request};
use crate::measure::IdleMeasuring;
use crate::report::StepReport;
use crate::request::{Command, JobClaim, SessionJob, SessionWork, Submission};
use crate::request_handle::Expected;
use crate::slots::SlotPool;
use crate::worker::Worker;
use crate::{Phase, Request, RequestHandle, Shared, SlotStatus, WorkerHandle};
use foredraft_llama::fake::{FakeModel, Fault};
use foredraft_llama::{Rollback, Token};
use foredraft_sampling::SamplingSettings;
use foredraft_speculation::{Adaptive, DrafterKind, Settings};

const FAKE_MODEL: FakeModel =
    FakeModel { seed: 3, n_words: 4, near: 4.0, far: 0.5, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };

/// An engine whose thread is the test's.
struct IdleEngine {
    worker: Worker,
    sender: Sender<Command>,
}

impl IdleEngine {
    /// After a load that has measured the first `n_at_load` sizes.
    fn new(setup: &Setup, n_at_load: usize) -> IdleEngine {
        IdleEngine::with(setup, IdleMeasuring::new(&SIZES, n_at_load, Vec::new()))
    }

    fn with(setup: &Setup, measuring: IdleMeasuring) -> IdleEngine {
        let TestEngine { scheduler, interrupt, .. } = TestEngine::new(setup);
        let (sender, commands) = crossbeam_channel::unbounded();
        let shared = Shared {
            interrupt,
            threads: Arc::clone(&THREADS),
            stopping: AtomicBool::new(false),
            closed: Mutex::new(false),
            is_interruptible: Mutex::new(false),
            slots: Mutex::new(vec![SlotStatus::default(); setup.n_parallel]),
            queue_order: Mutex::default(),
            conversations: Mutex::default(),
        };
        let worker = Worker {
            commands,
            scheduler: Some(Box::new(scheduler)),
            draft_only: None,
            embedder: None,
            measuring,
            shared: Arc::new(shared),
            notify: Arc::new(|_| ()),
            postponed: [].into(),
            report: StepReport::default(),
            changed: Vec::new(),
        };
        IdleEngine { worker, sender }
    }

    /// Takes a step, after which all slots must be as before it. Returns the tokens of the batches that it measured.
    fn step(&mut self) -> Vec<usize> {
        let before = self.n_decodes();
        self.worker.step();
        let context = &self.pool().context;
        assert!(self.pool().slots.iter().all(|slot| context.fake().tokens(slot.cache.id()).is_empty()));
        assert!(!*self.worker.shared.is_interruptible.lock());
        let n = self.n_decodes() - before;
        vec![context.fake().physical_batches().iter().sum(); n]
    }

    /// Runs a request to its end. Returns the tokens of its context.
    fn complete(&mut self) -> Vec<Token> {
        let prompt: Vec<Token> = (0..10).map(|n| FakeModel::FIRST + n % 3).collect();
        let sampling = SamplingSettings { temperature: 0.0, ..SamplingSettings::default() };
        let speculative =
            Settings { sources: vec![DrafterKind::Suffix], adaptive: Adaptive::Auto, ..Settings::default() };
        let request = Request { speculative: Some(speculative), ..request(prompt, 30, sampling) };
        let handle = RequestHandle::new(1, vec![Expected::new(10, true)], Arc::default());
        let sink = handle.sinks().next().unwrap();
        let submission = Submission::new(request, crate::PromptState::Known, sink, None);
        self.sender.send(Command::Submit(Box::new(submission))).unwrap();
        while handle.phase() != Phase::Finished {
            self.worker.step();
        }
        self.pool().slots[0].cache.to_vec()
    }

    fn n_decodes(&self) -> usize {
        self.pool().context.fake().n_decodes()
    }

    fn pool(&self) -> &SlotPool {
        &self.worker.scheduler.as_ref().unwrap().pool
    }
}

const SIZES: [usize; 4] = [1, 2, 4, 8];

fn setup() -> Setup {
    Setup { padding: false, ..Setup::plain(FAKE_MODEL, 1, 64, 32) }
}

#[test]
fn an_idle_engine_measures_one_size_after_the_other_and_leaves_no_cells() {
    let mut engine = IdleEngine::new(&setup(), 0);
    let measured: Vec<Vec<usize>> = SIZES.map(|_| engine.step()).into();
    assert_eq!(measured, SIZES.map(|n| vec![n; 3]));
    let costs = &engine.pool().drafters.controller.costs;
    for n in 1..=8 {
        assert!((costs.v(n) - (1.0 + (n - 1) as f64 / 8.0)).abs() < 1e-6, "v({n}) = {}", costs.v(n));
    }
    assert!(engine.worker.measuring.is_done(), "so the thread sleeps until a command comes");
}

#[test]
fn sizes_that_a_load_measured_are_replaced_as_soon_as_so_many_are_known() {
    let mut engine = IdleEngine::new(&setup(), 2);
    let costs = &mut engine.worker.scheduler.as_mut().unwrap().pool.drafters.controller.costs;
    // In a layout of the weights in which two tokens cost more.
    costs.become_cheaper();
    SIZES.iter().zip([200, 300]).for_each(|(n, micros)| costs.record_target(*n, Duration::from_micros(micros)));
    let v_of_2 = |engine: &IdleEngine| engine.pool().drafters.controller.costs.v(2);
    assert_eq!(engine.step(), [1; 3]);
    assert!((v_of_2(&engine) - 1.5).abs() < 1e-6, "one size alone says nothing of two tokens");
    assert_eq!(engine.step(), [2; 3]);
    assert!((v_of_2(&engine) - 1.125).abs() < 1e-6);
    assert_eq!([engine.step(), engine.step()], [vec![4; 3], vec![8; 3]]);
}

#[test]
fn the_first_request_ends_the_measurements_and_has_the_same_completion() {
    let alone = IdleEngine::with(&setup(), IdleMeasuring::none()).complete();
    for rollback in [Rollback::Anywhere, Rollback::Recent(3), Rollback::Never] {
        for n_steps in 0..=SIZES.len() {
            let mut engine = IdleEngine::new(&Setup { rollback, ..setup() }, 0);
            (0..n_steps).for_each(|_| _ = engine.step());
            assert_eq!(engine.complete(), alone, "{rollback:?}, after {n_steps} sizes");
            assert!(engine.worker.measuring.is_done());
        }
    }
    assert_eq!(alone.len(), 39, "all but the last token");
}

#[test]
fn an_interrupted_size_is_measured_again_and_a_failure_ends_the_measurements() {
    for rollback in [Rollback::Anywhere, Rollback::Recent(3)] {
        let target_faults = [(1, Fault::Aborted(0)), (4, Fault::Failed(0))].into();
        let mut engine = IdleEngine::new(&Setup { rollback, target_faults, ..setup() }, 0);
        assert_eq!(engine.step(), [1; 2], "the second decode is interrupted");
        assert_eq!(engine.step(), [1; 3], "the third one fails");
        assert!(engine.worker.measuring.is_done());
        assert_eq!(engine.complete().len(), 39);
    }
}

#[test]
fn a_session_ends_the_measurements_and_other_commands_do_not() {
    let mut engine = IdleEngine::new(&setup(), 0);
    engine.sender.send(Command::ForgetAnswers).unwrap();
    assert_eq!(engine.step(), [1; 3]);
    let (reply, answer) = crossbeam_channel::bounded(1);
    let job = SessionJob { slot: 0, after: 0, work: SessionWork::Erase(reply), claim: JobClaim::default() };
    engine.sender.send(Command::Session(job)).unwrap();
    assert_eq!(engine.step(), [0; 0]);
    assert!(engine.worker.measuring.is_done() && answer.recv().unwrap().is_ok());
}

#[test]
fn a_paused_engine_measures_nothing() {
    let mut engine = IdleEngine::new(&setup(), 0);
    let shared = Arc::clone(&engine.worker.shared);
    shared.interrupt.gate().set(1);
    for _ in 0..3 {
        // So that the step does not wait for the end of the pause.
        engine.sender.send(Command::Wake).unwrap();
        assert_eq!(engine.step(), [0; 0]);
    }
    shared.interrupt.gate().set(0);
    assert_eq!(engine.step(), [1; 3]);
}

#[test]
fn a_command_interrupts_the_decode_that_is_measured_and_no_other() {
    let engine = IdleEngine::new(&setup(), 0);
    let (shared, context) = (Arc::clone(&engine.worker.shared), &engine.pool().context);
    let handle = WorkerHandle {
        commands: engine.sender.clone(),
        shared: Arc::clone(&shared),
        thread: Mutex::new(None),
        counts: Arc::default(),
        preparations: Arc::default(),
        caches: Arc::default(),
        embedding_limits: None,
        n_slots: 1,
        max_queue: 1,
        media: Arc::default(),
    };
    // A decode of a paused engine sleeps until it is interrupted.
    shared.interrupt.gate().set(1);
    for (is_measuring, patience) in [(true, Duration::from_secs(600)), (false, Duration::from_millis(200))] {
        shared.set_interruptible(is_measuring);
        handle.forget_answers().unwrap();
        let begin = Instant::now();
        shared.interrupt.limit_pause(Some(begin + patience));
        context.wait_while_paused();
        assert_eq!(begin.elapsed() < patience, is_measuring);
        shared.interrupt.clear();
    }
}
