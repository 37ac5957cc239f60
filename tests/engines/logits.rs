//! The logits callback: its arguments, its effect with and without speculation, and a host that does whatever it can inside it.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::c_functions::ENGINE_FUNCTIONS;
use crate::library::{Engine, Handle, LIBRARY, exclusive, with_draft};

/// The calls of a callback: the request, the size of the vocabulary, and the tokens before the position.
type Calls = Mutex<Vec<(u64, usize, Vec<i32>)>>;

/// Notes the call in the [`Calls`] at `user`, and bans the token two positions before.
unsafe extern "C" fn ban(
    id: u64,
    logits: *mut f32,
    n_vocab: i32,
    tokens: *const i32,
    n_tokens: i32,
    user: *mut c_void,
) {
    let (n_vocab, n_tokens) = (usize::try_from(n_vocab).unwrap(), usize::try_from(n_tokens).unwrap());
    // SAFETY: the library passes arrays of these lengths, and the `user` of the tests, which outlives the engine's use of it.
    let (logits, tokens, calls) = unsafe {
        let logits = std::slice::from_raw_parts_mut(logits, n_vocab);
        (logits, std::slice::from_raw_parts(tokens, n_tokens), &*user.cast::<Calls>())
    };
    calls.lock().unwrap().push((id, n_vocab, tokens.to_vec()));
    logits[usize::try_from(tokens[n_tokens - 2]).unwrap()] = f32::NEG_INFINITY;
}

fn noted(calls: &Calls) -> Vec<(u64, usize, Vec<i32>)> {
    std::mem::take(&mut *calls.lock().unwrap())
}

fn ids(list: &Value) -> Vec<i32> {
    list.as_array().expect("tokens").iter().map(|id| i32::try_from(id.as_i64().expect("an id")).unwrap()).collect()
}

fn request(more: Value) -> Value {
    let mut request = json!({"prompt": "Once upon a time", "n_predict": 40, "seed": 7, "repeat_penalty": 1.0,
        "return_tokens": true, "logits_callback": true});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn completed(engine: &Engine, more: Value) -> Value {
    let answer = engine.call("complete", &request(more));
    assert_eq!(answer["success"], true, "{answer}");
    answer
}

#[test]
fn callback_sees_each_position_once_and_speculation_changes_no_token() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", with_draft());
    let calls = Calls::default();
    engine.set_logits_callback(Some(ban), &raw const calls as usize);
    let info = engine.call("model_info", &json!({}));
    let prompt = ids(&engine.call("tokenize", &json!({"text": "Once upon a time"}))["ids"]);
    for temperature in [0.0, 0.8] {
        let expected = completed(&engine, json!({"temperature": temperature, "speculative": false}));
        let tokens = ids(&expected["tokens"]);
        assert!(tokens.windows(3).all(|three| three[0] != three[2]), "{tokens:?}");
        let unchanged = completed(&engine, json!({"temperature": temperature, "logits_callback": false}));
        assert_ne!(expected["content"], unchanged["content"]);
        let whole = [prompt.clone(), tokens.clone()].concat();
        let prefixes: Vec<Vec<i32>> = (prompt.len()..whole.len()).map(|len| whole[..len].to_vec()).collect();
        for speculative in [
            json!(false),
            json!({"adaptive": false, "n_max": 5}),
            json!({"adaptive": false, "n_max": 5, "verify": "match"}),
            json!({"adaptive": false, "n_max": 8, "n_branches": 3, "p_split": 0.1}),
            json!({"type": ["suffix", "ngram-cache"]}),
        ] {
            noted(&calls);
            let answer = completed(&engine, json!({"temperature": temperature, "speculative": speculative}));
            assert_eq!(answer["content"], expected["content"], "{speculative}");
            let noted = noted(&calls);
            assert!(noted.iter().all(|(id, n_vocab, _)| answer["id"] == *id && info["n_vocab"] == *n_vocab));
            let seen: Vec<Vec<i32>> = noted.into_iter().map(|(.., tokens)| tokens).collect();
            assert_eq!(seen, prefixes, "{speculative}");
            if speculative["type"].is_null() && speculative.is_object() {
                assert!(answer["speculative"]["n_accepted"].as_u64() > Some(0), "{answer}");
            }
        }
    }
}

#[test]
fn callback_works_with_chats_grammars_several_completions_and_the_draft_model_alone() {
    let _guard = exclusive();
    let mut more = with_draft();
    more["n_parallel"] = json!(2);
    let engine = Engine::loaded("target", more);
    let calls = Calls::default();
    engine.set_logits_callback(Some(ban), &raw const calls as usize);
    let chat = json!({"prompt": null, "messages": [{"role": "user", "content": "Tell me a story."}]});
    let grammar = json!({"grammar": "root ::= [a-z ]{20,60} \".\"", "temperature": 0});
    let draft = json!({"speculative": {"model": "draft"}});
    for one in [chat, grammar, draft, json!({"n_probs": 2, "post_sampling_probs": true}), json!({"mirostat": 2})] {
        noted(&calls);
        let answer = completed(&engine, one.clone());
        let tokens = ids(&answer["tokens"]);
        let noted = noted(&calls);
        assert_eq!(noted.len(), tokens.len(), "{one}: {answer}");
        assert!(tokens.windows(3).all(|three| three[0] != three[2]), "{one}: {tokens:?}");
        let last = &noted.last().unwrap().2;
        assert!(last.ends_with(&tokens[..tokens.len() - 1]), "{one}");
    }
    noted(&calls);
    let answer = completed(&engine, json!({"n_cmpl": 2, "n_predict": 12, "ignore_eos": true}));
    let mut by_length = BTreeMap::<usize, usize>::new();
    noted(&calls).iter().for_each(|(.., tokens)| *by_length.entry(tokens.len()).or_default() += 1);
    assert_eq!(by_length.into_values().collect::<Vec<_>>(), [2; 12], "{answer}");
}

#[test]
fn requests_without_a_callback_beams_and_choices_are_refused() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", json!({}));
    let refused = |more: Value| {
        let answer = engine.call("submit", &request(more));
        assert_eq!(answer["code"], "invalid_request", "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    };
    assert_eq!(refused(json!({})), "logits_callback: no callback is set; call foredraft_set_logits_callback first");
    let calls = Calls::default();
    engine.set_logits_callback(Some(ban), &raw const calls as usize);
    assert_eq!(refused(json!({"n_beams": 3})), "logits_callback: not available with n_beams");
    assert_eq!(refused(json!({"choices": ["a", "b"]})), "logits_callback: not available with choices");
    assert!(refused(json!({"logits_callback": "yes"})).starts_with("logits_callback: expected"));
    let answer = completed(&engine, json!({"speculative": {"verify": "block"}}));
    assert_eq!(answer["speculative"]["verify"], "rejection");
    let warned = answer["warnings"].to_string();
    assert!(warned.contains("speculative.verify: rejection instead of block"), "{warned}");
    engine.set_logits_callback(None, 0);
    assert!(refused(json!({})).contains("no callback is set"));
    LIBRARY.set_logits_callback(usize::MAX as Handle, Some(ban), 0); // no such engine
}

/// The data of `act`, at `user`.
struct Host {
    engine: Handle,
    calls: AtomicUsize,
    /// The call in which it acts.
    at: usize,
    act: fn(&Host, u64, &mut [f32]),
    answers: Mutex<Vec<(String, Value)>>,
}

unsafe extern "C" fn act(id: u64, logits: *mut f32, n_vocab: i32, _: *const i32, _: i32, user: *mut c_void) {
    // SAFETY: as in `ban`.
    let (logits, host) =
        unsafe { (std::slice::from_raw_parts_mut(logits, usize::try_from(n_vocab).unwrap()), &*user.cast::<Host>()) };
    if host.calls.fetch_add(1, Ordering::SeqCst) + 1 == host.at {
        (host.act)(host, id, logits);
    }
}

/// Runs a request whose callback acts in its 9th call. Returns its text, its end, and the host.
fn acting(speculative: bool, action: fn(&Host, u64, &mut [f32])) -> (String, Value, Host) {
    let engine = Engine::loaded("target", with_draft());
    let (calls, answers) = (AtomicUsize::new(0), Mutex::default());
    let host = Host { engine: engine.handle, calls, at: 9, act: action, answers };
    engine.set_logits_callback(Some(act), &raw const host as usize);
    let speculative = if speculative { json!({"adaptive": false, "n_max": 6}) } else { json!(false) };
    let id = engine.submit(&request(json!({"speculative": speculative, "ignore_eos": true, "temperature": 0})));
    let (text, last) = engine.drain(id);
    (text, last, host)
}

#[test]
fn callback_may_call_every_function() {
    let _guard = exclusive();
    let call_all = |host: &Host, id: u64, _: &mut [f32]| {
        let mut answers = Vec::new();
        for name in ENGINE_FUNCTIONS {
            let short = name.trim_start_matches("foredraft_");
            let document = json!({"prompt": "a", "content": "a", "text": "a", "tokens": [1], "n_predict": 1, "id": id, "timeout_ms": 500});
            if short != "cancel" {
                answers.push((short.to_owned(), LIBRARY.call(host.engine, short, &document)));
            }
        }
        answers.push(("status".to_owned(), LIBRARY.status(host.engine)));
        answers.push(("load".to_owned(), json!(LIBRARY.load(host.engine, &json!({"model": "/nowhere.gguf"})))));
        *host.answers.lock().unwrap() = answers;
    };
    for speculative in [false, true] {
        let (_, last, host) = acting(speculative, call_all);
        assert_eq!(last["stop_type"], "limit", "{last}");
        let answers = host.answers.into_inner().unwrap();
        assert!(answers.len() > 10);
        for (name, answer) in answers {
            let waits = [
                "complete",
                "decide",
                "embed",
                "rerank",
                "session_save",
                "session_load",
                "session_erase",
                "conversation",
                "poll",
            ]
            .contains(&name.as_str());
            match name.as_str() {
                "load" => assert_eq!(answer, 5),
                _ if waits => assert_eq!(answer["code"], "would_deadlock", "{name}: {answer}"),
                _ => assert_ne!(answer["code"], "would_deadlock", "{name}: {answer}"),
            }
        }
    }
}

#[test]
fn callback_may_cancel_be_replaced_and_end_its_engine() {
    let _guard = exclusive();
    for speculative in [false, true] {
        let (unchanged, ..) = acting(speculative, |_, _, _| {});
        let (text, last, host) = acting(speculative, |host, id, _| {
            LIBRARY.call(host.engine, "cancel", &json!({"id": id}));
        });
        assert_eq!((&last["stop_type"], &last["tokens_predicted"]), (&json!("cancelled"), &json!(8)), "{last}");
        assert!(unchanged.starts_with(&text) && !text.is_empty());
        assert_eq!(host.calls.into_inner(), 9, "it is called no more");
        // The callback removes itself: the position's token is chosen, and the next one cannot be.
        let (_, last, _) = acting(speculative, |host, _, _| LIBRARY.set_logits_callback(host.engine, None, 0));
        assert_eq!((&last["stop_type"], &last["tokens_predicted"]), (&json!("error"), &json!(9)), "{last}");
        assert_eq!(last["error"], "logits_callback: the callback was removed while the request ran");
        // The callback is set again, and acts no more.
        let (text, last, _) = acting(speculative, |host, _, _| {
            LIBRARY.set_logits_callback(host.engine, Some(act), host as *const Host as usize);
        });
        assert_eq!((&last["stop_type"], text), (&json!("limit"), unchanged.clone()), "{last}");
        let (_, last, _) = acting(speculative, |host, _, _| LIBRARY.unload(host.engine));
        assert_eq!(last["stop_type"], "cancelled", "{last}");
    }
}

#[test]
fn rows_that_are_no_numbers_end_the_request_alone() {
    let _guard = exclusive();
    for speculative in [false, true] {
        let (unchanged, ..) = acting(speculative, |_, _, _| {});
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            let fill = if bad.is_nan() {
                |_: &Host, _: u64, logits: &mut [f32]| logits.fill(f32::NAN)
            } else {
                |_: &Host, _: u64, logits: &mut [f32]| logits.fill(f32::NEG_INFINITY)
            };
            let (text, last, _) = acting(speculative, fill);
            assert_eq!((&last["stop_type"], &last["code"]), (&json!("error"), &json!("invalid_request")), "{last}");
            assert!(unchanged.starts_with(&text) && last["tokens_predicted"] == 8, "{last}");
        }
        let (_, last, _) = acting(speculative, |_, _, logits| logits.fill(f32::INFINITY));
        assert_eq!(last["stop_type"], "limit", "{last}");
    }
}

static ENTERED: AtomicBool = AtomicBool::new(false);
static MAY_LEAVE: AtomicBool = AtomicBool::new(false);
static LEFT: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn slow(_: u64, _: *mut f32, _: i32, _: *const i32, _: i32, _: *mut c_void) {
    ENTERED.store(true, Ordering::SeqCst);
    while !MAY_LEAVE.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    LEFT.store(true, Ordering::SeqCst);
}

#[test]
fn removing_a_callback_waits_for_it_and_cancels_do_not() {
    let _guard = exclusive();
    let engine = Engine::loaded("target", json!({}));
    engine.set_logits_callback(Some(slow), 0);
    let id = engine.submit(&request(json!({"ignore_eos": true, "n_predict": 500})));
    while !ENTERED.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // None of these waits for it.
    engine.call("poll", &json!({"id": id}));
    engine.status();
    assert_eq!(engine.call("cancel", &json!({"id": id}))["cancelled"], true);
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| {
            engine.set_logits_callback(None, 0);
            LEFT.load(Ordering::SeqCst)
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!removing.is_finished(), "the callback runs");
        MAY_LEAVE.store(true, Ordering::SeqCst);
        assert!(removing.join().expect("it returns"), "the callback still ran");
    });
    let (_, last) = engine.drain(id);
    assert!(last["stop_type"] == "error" || last["stop_type"] == "cancelled", "{last}");
}
