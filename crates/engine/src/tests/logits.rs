//! The host's logits callback: it sees each position once and in order, and its changes decide as without speculation.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{MODEL, Setup, TestEngine, request};
use crate::{Comparison, Event, LogitsEditor, Outcome, Request, RequestHandle, Stop};
use foredraft_base::error::{Code, Error};
use foredraft_llama::Token;
use foredraft_llama::fake::FakeModel;
use foredraft_sampling::SamplingSettings;
use foredraft_speculation::{Adaptive, DrafterKind, Settings, Verify};

const TARGET: FakeModel =
    FakeModel { seed: 5, n_words: 5, near: 2.0, far: 3.0, noise: 0.0, ends: 0, floor: f32::NEG_INFINITY };
const DRAFT: FakeModel = FakeModel { noise: 1.0, ..TARGET };
const LEN: usize = 40;

/// The calls of a callback: the tokens before each position.
type Calls = Arc<Mutex<Vec<Vec<Token>>>>;

fn prompt() -> Vec<Token> {
    (0..6).map(|n| FakeModel::FIRST + n * n % 4).collect()
}

fn engine(n_parallel: usize, n_ctx: usize) -> TestEngine {
    TestEngine::new(&Setup {
        kv_unified: n_parallel > 1,
        padding: false,
        ctx_shift: true,
        draft: Some(DRAFT),
        draft_cost: 10,
        ..Setup::plain(TARGET, n_parallel, n_ctx, 32)
    })
}

fn sampling(temperature: f32) -> SamplingSettings {
    SamplingSettings { temperature, top_k: 0, top_p: 1.0, seed: 7, ..SamplingSettings::default() }
}

fn speculation(verify: Verify, n_branches: usize) -> Settings {
    Settings {
        sources: vec![DrafterKind::Suffix, DrafterKind::Draft],
        n_max: 6,
        p_split: 0.05,
        n_branches,
        verify,
        adaptive: Adaptive::Fixed,
        ..Settings::default()
    }
}

/// A callback that notes its calls and bans the token that it finds two positions before.
fn banning() -> (LogitsEditor, Calls) {
    let calls = Calls::default();
    let noted = Arc::clone(&calls);
    let editor = LogitsEditor::new(move |_, logits, tokens: &[Token]| {
        noted.lock().push(tokens.to_vec());
        let banned = tokens[tokens.len() - 2];
        logits[usize::try_from(banned).unwrap()] = f32::NEG_INFINITY;
        Ok(())
    });
    (editor, calls)
}

fn with_callback(temperature: f32, speculative: Option<Settings>) -> (Request, Calls) {
    let (editor, calls) = banning();
    let request = request(prompt(), LEN, sampling(temperature));
    (Request { logits_editor: Some(editor), speculative, ..request }, calls)
}

fn outcome(handle: &RequestHandle) -> (Vec<Token>, Outcome) {
    let mut tokens = Vec::new();
    for (_, event) in handle.take(Duration::ZERO).0 {
        match event {
            Event::Update(update) => tokens.extend(update.tokens.iter().map(|token| token.token)),
            Event::Progress(_) | Event::Restarted { .. } => {}
            Event::Finished(outcome) => {
                tokens.extend(outcome.tokens.iter().map(|token| token.token));
                return (tokens, *outcome);
            }
        }
    }
    panic!("the request has not finished");
}

fn run(engine: &mut TestEngine, request: Request) -> (Vec<Token>, Outcome) {
    let handle = engine.submit(vec![request]);
    while !engine.scheduler.is_idle() {
        engine.step();
    }
    outcome(&handle)
}

/// Asserts that the callback saw every prefix of prompt and completion, once and in order.
fn assert_seen_once(calls: &Calls, tokens: &[Token]) {
    let whole = [prompt(), tokens.to_vec()].concat();
    let expected: Vec<Vec<Token>> = (prompt().len()..whole.len()).map(|len| whole[..len].to_vec()).collect();
    assert_eq!(*calls.lock(), expected);
}

#[test]
fn each_position_is_seen_once_and_speculation_changes_no_token() {
    for temperature in [0.0, 0.9] {
        let (plain, calls) = with_callback(temperature, None);
        let (expected, _) = run(&mut engine(1, 64), plain);
        assert_seen_once(&calls, &expected);
        assert!(expected.windows(3).all(|three| three[0] != three[2]), "the callback decides: {expected:?}");
        for (verify, n_branches) in [(Verify::Coupled, 1), (Verify::Coupled, 4), (Verify::Match, 1), (Verify::Match, 4)]
        {
            let (drafted, calls) = with_callback(temperature, Some(speculation(verify, n_branches)));
            let (tokens, outcome) = run(&mut engine(1, 64), drafted);
            assert_eq!(tokens, expected, "{verify:?} {n_branches}");
            assert_seen_once(&calls, &tokens);
            let stats = outcome.speculation.unwrap();
            assert!(stats.n_accepted > 0 && stats.n_accepted < stats.n_drafted, "{verify:?}: {stats:?}");
        }
    }
}

#[test]
fn rejection_calls_it_for_the_accepted_path_alone() {
    for n_branches in [1, 4] {
        for n_probs in [0, 3] {
            let (mut drafted, calls) = with_callback(0.9, Some(speculation(Verify::Rejection, n_branches)));
            drafted.sampling.n_probs = n_probs;
            let (tokens, outcome) = run(&mut engine(1, 64), drafted);
            assert_eq!(tokens.len(), LEN);
            assert_seen_once(&calls, &tokens);
            assert!(outcome.speculation.unwrap().n_accepted > 0);
        }
    }
}

#[test]
fn rejection_calls_it_no_more_after_a_stop_string() {
    let vocab = MODEL.vocab();
    let (plain, _) = with_callback(0.9, Some(speculation(Verify::Rejection, 1)));
    let (tokens, _) = run(&mut engine(1, 64), plain);
    for at in 5..20 {
        let (mut drafted, calls) = with_callback(0.9, Some(speculation(Verify::Rejection, 1)));
        let stop = [vocab.text(tokens[at - 1]), vocab.text(tokens[at])].concat();
        drafted.options.stop = vec![String::from_utf8(stop).unwrap()];
        let (tokens, outcome) = run(&mut engine(1, 64), drafted);
        assert!(matches!(outcome.stop, Stop::Word(_)), "{:?}", outcome.stop);
        assert_seen_once(&calls, &tokens);
    }
}

#[test]
fn slots_beside_each_other_keep_their_own_rows() {
    let (plain, _) = with_callback(0.9, None);
    let (changed, _) = run(&mut engine(1, 64), plain);
    let untouched = || request(prompt(), LEN, sampling(0.9));
    let (unchanged, _) = run(&mut engine(1, 64), untouched());
    assert_ne!(changed, unchanged);
    let mut engine = engine(3, 256);
    let (drafted, calls) = with_callback(0.9, Some(speculation(Verify::Coupled, 1)));
    let second = Request { speculative: Some(speculation(Verify::Coupled, 1)), ..untouched() };
    let handles: Vec<_> = [drafted, second, untouched()].into_iter().map(|one| engine.submit(vec![one])).collect();
    while !engine.scheduler.is_idle() {
        engine.step();
    }
    let tokens: Vec<Vec<Token>> = handles.iter().map(|handle| outcome(handle).0).collect();
    assert_eq!(tokens, [changed.clone(), unchanged.clone(), unchanged]);
    assert_seen_once(&calls, &changed);
}

#[test]
fn reported_probabilities_are_those_after_the_callback() {
    for post_sampling_probs in [false, true] {
        let only = FakeModel::FIRST + 2;
        let editor = LogitsEditor::new(move |_, logits, _: &[Token]| {
            logits.fill(f32::NEG_INFINITY);
            logits[usize::try_from(only).unwrap()] = 1.0;
            Ok(())
        });
        let mut asked = request(prompt(), 5, SamplingSettings { n_probs: 2, ..sampling(0.9) });
        (asked.logits_editor, asked.options.post_sampling_probs) = (Some(editor), post_sampling_probs);
        asked.options.prompt_probs = Some(0);
        let (mut engine, mut plain) = (engine(1, 64), asked.clone());
        let submitted = engine.submit(vec![asked]);
        while !engine.scheduler.is_idle() {
            engine.step();
        }
        let mut generated = Vec::new();
        let mut scored = None;
        for (_, event) in submitted.take(Duration::ZERO).0 {
            match event {
                Event::Update(update) => generated.extend(update.tokens),
                Event::Finished(outcome) => {
                    generated.extend(outcome.tokens.clone());
                    scored = outcome.prompt_probs.clone();
                }
                Event::Progress(_) | Event::Restarted { .. } => {}
            }
        }
        assert!(generated.iter().all(|token| token.token == only && token.probs.as_ref().unwrap().logprob == 0.0));
        plain.logits_editor = None;
        let (_, outcome) = run(&mut self::engine(1, 64), plain);
        assert!(scored.is_some() && scored == outcome.prompt_probs, "those of the prompt are the model's");
    }
}

#[test]
fn it_sees_the_context_after_a_shift() {
    let (mut long, calls) = with_callback(0.9, Some(speculation(Verify::Coupled, 1)));
    long.options.n_predict = Some(80);
    let (tokens, _) = run(&mut engine(1, 32), long);
    let (mut plain, expected) = with_callback(0.9, None);
    plain.options.n_predict = Some(80);
    assert_eq!(run(&mut engine(1, 32), plain).0, tokens);
    assert_eq!(*calls.lock(), *expected.lock());
    assert_eq!(calls.lock().len(), 80);
    assert!(calls.lock().iter().all(|seen| seen.len() <= 32));
}

#[test]
fn comparison_with_the_second_run_finds_no_difference() {
    let (mut compared, calls) = with_callback(0.9, Some(speculation(Verify::Coupled, 1)));
    compared.compare = true;
    let (tokens, outcome) = run(&mut engine(1, 64), compared);
    assert_eq!(outcome.speculation.unwrap().comparison, Some(Comparison::Done(None)));
    assert_eq!(calls.lock().len(), 2 * tokens.len());
}

/// The end of a request whose callback does this.
fn end_with(
    callback: impl Fn(&mut [f32], usize) -> Result<(), Error> + Send + Sync + 'static,
    settings: Option<Settings>,
) -> (Vec<Token>, Stop) {
    let calls = Mutex::new(0);
    let editor = LogitsEditor::new(move |_, logits, _: &[Token]| {
        *calls.lock() += 1;
        callback(logits, *calls.lock())
    });
    let mut engine = engine(1, 64);
    let asked = Request { logits_editor: Some(editor), speculative: settings, ..request(prompt(), LEN, sampling(0.9)) };
    let (tokens, outcome) = run(&mut engine, asked);
    // The engine goes on, and its cells are right.
    let (after, _) = run(&mut engine, request(prompt(), LEN, sampling(0.9)));
    assert_eq!(after, run(&mut self::engine(1, 64), request(prompt(), LEN, sampling(0.9))).0);
    (tokens, outcome.stop)
}

#[test]
fn rows_without_candidates_failures_and_panics_end_the_request() {
    let is_error = |stop: Stop, code| matches!(stop, Stop::Error(error) if error.code() == code);
    for verify in [None, Some(Verify::Coupled), Some(Verify::Rejection)] {
        let settings = || verify.map(|verify| speculation(verify, 1));
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            let fill = move |logits: &mut [f32], call| {
                if call == 9 {
                    logits.fill(bad);
                }
                Ok(())
            };
            let (tokens, stop) = end_with(fill, settings());
            assert_eq!(tokens.len(), 8, "{verify:?}");
            assert!(is_error(stop, Code::InvalidRequest));
        }
        let fail = |_: &mut [f32], call| if call == 9 { Err(Error::invalid("no")) } else { Ok(()) };
        let (tokens, stop) = end_with(fail, settings());
        assert_eq!(tokens.len(), 8);
        assert!(is_error(stop, Code::InvalidRequest));
        let cancel = |_: &mut [f32], _| Err(Error::new(Code::Cancelled, "gone"));
        assert_eq!(end_with(cancel, settings()).1, Stop::Cancelled);
        let panics = |_: &mut [f32], call| if call == 9 { panic!("a callback panics") } else { Ok(()) };
        assert!(is_error(end_with(panics, settings()).1, Code::Internal));
        // An infinite logit is certain, and NaN logits are not chosen.
        let mixed = |logits: &mut [f32], _| {
            logits.fill(f32::NAN);
            logits[usize::try_from(FakeModel::FIRST).unwrap()] = f32::INFINITY;
            Ok(())
        };
        let (tokens, stop) = end_with(mixed, settings());
        assert_eq!((tokens, stop), (vec![FakeModel::FIRST; LEN], Stop::Limit), "{verify:?}");
    }
}

#[test]
fn cancel_inside_the_callback_ends_before_the_position() {
    for verify in [None, Some(Verify::Coupled), Some(Verify::Rejection)] {
        let handle: Arc<Mutex<Option<Arc<RequestHandle>>>> = Arc::default();
        let (cancelled, n_calls) = (Arc::clone(&handle), Mutex::new(0));
        let editor = LogitsEditor::new(move |_, _, _: &[Token]| {
            *n_calls.lock() += 1;
            assert!(*n_calls.lock() <= 13, "no position is left");
            if *n_calls.lock() == 13 {
                cancelled.lock().as_ref().unwrap().cancel();
            }
            Ok(())
        });
        let mut engine = engine(1, 64);
        let speculative = verify.map(|verify| speculation(verify, 1));
        let asked = request(prompt(), LEN, sampling(0.9));
        let submitted = engine.submit(vec![Request { logits_editor: Some(editor), speculative, ..asked }]);
        *handle.lock() = Some(Arc::clone(&submitted));
        while !engine.scheduler.is_idle() {
            engine.step();
        }
        let (tokens, outcome) = outcome(&submitted);
        assert_eq!((tokens.len(), outcome.stop), (12, Stop::Cancelled), "{verify:?}");
    }
}
