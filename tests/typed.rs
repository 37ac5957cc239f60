//! The interface for hosts in Rust: typed configurations, requests and answers, and streams for threads and tasks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use foredraft::{Code, Config, DecisionAnswer, Engine, EngineLoad, Error, Media, Message, Question, Request, StopType};
use futures_core::Stream;
use serde_json::json;

use common::model;
use common::pictures::{HEIGHT, WIDTH, pixels};
use common::sounds::{samples, wav};
use common::tiny_models::{projectors, sliding_window};

fn config() -> Config {
    Config::new(model("target")).model_draft(model("draft")).n_ctx(512).n_parallel(2)
}

fn story() -> Request {
    Request::prompt("Once upon a time").n_predict(40).temperature(0.0)
}

/// Wakes the thread that polls a task.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a task whenever it is woken, and never without that.
fn block_on<F: Future>(task: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut task, mut context) = (pin!(task), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park_timeout(std::time::Duration::from_secs(60));
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *stream).poll_next(context)).await
}

#[test]
fn pictures_and_sounds_come_before_the_text_of_a_message() {
    let load =
        Config::new(sliding_window()).n_ctx(512).set("n_ubatch", 64).set("mmproj", projectors::pictures_and_sounds());
    let engine = Engine::load(&load).expect("an engine");
    let path = std::env::temp_dir().join(format!("foredraft-typed-sound-{}.wav", std::process::id()));
    std::fs::write(&path, wav(16_000, &samples(1, 4000))).expect("the file");
    let rgb = pixels(1);
    let media = [Media::Rgb8 { width: WIDTH, height: HEIGHT, pixels: &rgb }, Media::Sound(&path)];
    let ask = |media: &[Media]| {
        let request = Request::messages([&Message::user("What is it?")]).media(media).n_predict(8).temperature(0.0);
        engine.complete(&request).expect("an answer")
    };
    let n = |media: &[Media]| ask(media).fields["tokens_evaluated"].as_u64().expect("a number");
    let (all, picture, none) = (n(&media), n(&media[..1]), n(&[]));
    assert!(all > picture + 20 && picture > none, "{all} {picture} {none}");
    let twice = Request::messages([&Message::user("What is it?")]).media(&media[1..]).media(&media[..1]);
    let answer = engine.complete(&twice.n_predict(8).temperature(0.0)).expect("an answer");
    assert_eq!(answer.content, ask(&media).content);
    let missing = Request::messages([&Message::user("What is it?")]).media(&[Media::Picture("/no/such.png".as_ref())]);
    assert_eq!(engine.complete(&missing).expect_err("it is missing").code(), Code::NotFound);
    std::fs::remove_file(path).expect("the file");
}

#[test]
fn completions_and_streams_have_the_same_text() {
    let engine = Engine::load(&config()).expect("it loads");
    // Adaptive lengths depend on measured times.
    let drafted = story().set("speculative", json!({"adaptive": false}));
    let whole = engine.complete(&drafted).expect("a completion");
    assert_eq!((whole.tokens_predicted, whole.stop_type), (40, Some(StopType::Limit)));
    assert!(whole.speculative.as_ref().is_some_and(|report| report.n_accepted > 0), "{whole:?}");
    assert!(whole.fields.contains_key("timings"));

    let mut stream = engine.stream(&story()).expect("it is queued");
    let text: String = stream.by_ref().map(|update| update.expect("an update").content).collect();
    assert_eq!(text, whole.content);
    let end = stream.finish().expect("a completion");
    assert_eq!((end.content, end.tokens_predicted), (text, 40));

    let task = async {
        let mut stream = engine.stream(&story()).expect("it is queued");
        let mut text = String::new();
        while let Some(update) = next(&mut stream).await {
            text += &update.expect("an update").content;
        }
        text
    };
    assert_eq!(block_on(task), whole.content);

    let plain = engine.complete(&story().speculative(false)).expect("a completion");
    assert_eq!((plain.content, plain.tokens_predicted), (whole.content, 40));
}

#[test]
fn loads_can_be_waited_for_by_threads_and_tasks_or_dropped() {
    let mut load = EngineLoad::begin(&config()).expect("it begins");
    assert!((0.0..=1.0).contains(&load.progress()));
    let engine = block_on(&mut load).expect("it loads");
    drop(load);
    let expected = engine.complete(&story()).expect("a completion").content;
    let other = EngineLoad::begin(&config()).expect("it begins");
    while !other.is_finished() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(other.progress(), 1.0);
    let other = other.finish().expect("it loads");
    assert_eq!(other.complete(&story()).expect("a completion").content, expected);
    other.reload(&Config::new(model("draft")).n_ctx(256)).expect("it loads");
    assert_ne!(other.complete(&story()).expect("a completion").content, expected);
    let missing = block_on(EngineLoad::begin(&Config::new("nowhere.gguf")).expect("it begins"));
    assert_eq!(missing.err().map(|error| error.code()), Some(Code::ModelError));
    drop(EngineLoad::begin(&config()).expect("it begins"));
}

#[test]
fn tokens_and_sessions_go_there_and_back() {
    let engine = Engine::load(&config()).expect("it loads");
    let tokens = engine.tokenize("Tom had a red hat.").expect("tokens");
    assert!(engine.detokenize(&tokens).expect("a text").ends_with("Tom had a red hat."));
    let whole = engine.complete(&story().set("id_slot", 0)).expect("a completion");
    let path = std::env::temp_dir().join(format!("foredraft-typed-{}.session", std::process::id()));
    let path = path.to_str().expect("a path");
    let n_saved = engine.save_session(path, 0).expect("it is saved");
    assert!(n_saved >= whole.tokens_predicted);
    engine.erase_session(0).expect("it is erased");
    assert_eq!(engine.load_session(path, 0).expect("it is loaded"), n_saved);
    std::fs::remove_file(path).expect("it is removed");
    let error = engine.rerank("Who has a hat?", ["Tom."]).expect_err("it has no classifier");
    assert_eq!(error.code(), Code::InvalidRequest);
}

#[test]
fn a_prepared_turn_has_the_completion_of_one_alone() {
    let engine = Engine::load(&config()).expect("it loads");
    let turn = story().set("seed", 1).conversation("cat");
    let alone = engine.complete(&turn).expect("a completion");
    assert!(engine.prepare(&turn, true).expect("a number") > 0);
    assert_eq!(engine.complete(&turn).expect("a completion").content, alone.content);
    let error = engine.prepare(&story(), false).expect_err("it has no conversation");
    assert!(error.message().starts_with("conversation: "), "{error}");
}

#[test]
fn conversations_are_forked_rewound_saved_and_dropped() {
    let engine = Engine::load(&config()).expect("it loads");
    engine.complete(&story().conversation("Mia")).expect("a completion");
    let fork = engine.fork_conversation("Mia", "Tom").expect("a fork");
    assert_eq!((&*fork.place, fork.n_turns, fork.running), ("memory", 1, false));
    assert_eq!(engine.rewind_conversation("Tom", 1).expect("rewound").n_tokens, fork.n_tokens);
    assert!(engine.pin_conversation("Tom", true).expect("pinned").pinned);
    let path = std::env::temp_dir().join(format!("foredraft-typed-{}.conversation", std::process::id()));
    let path = path.to_str().expect("a path");
    engine.save_conversation("Tom", path).expect("saved");
    assert_eq!(engine.load_conversation("Eve", path).expect("loaded").n_tokens, fork.n_tokens);
    std::fs::remove_file(path).expect("it is removed");
    let names = |all: Vec<foredraft::ConversationInfo>| all.into_iter().map(|one| one.conversation).collect::<Vec<_>>();
    assert_eq!(names(engine.conversations().expect("a list")), ["Eve", "Mia", "Tom"]);
    engine.drop_conversation("Tom").expect("dropped");
    assert_eq!(engine.drop_conversation("Tom").expect_err("it is gone").code(), Code::NotFound);
}

#[test]
fn decisions_have_the_types_of_their_questions() {
    let engine = Engine::load(&config()).expect("it loads");
    let state = json!({"story": "Tom had a red kite."});
    let thing = || Question::choice("What did Tom have?", [("kite", ""), ("hat", "on a head")]);
    let questions = [
        ("thing", thing()),
        ("size", Question::score("How large is it?", ["small", "large"])),
        ("red", Question::noul("It is red.")),
    ];
    let answers = engine.decide(&state, questions).expect("answers");
    let DecisionAnswer::Choice { choice, probabilities, .. } = &answers["thing"] else { panic!("{answers:?}") };
    assert!(probabilities[choice] >= 0.5 && (probabilities.values().sum::<f64>() - 1.0).abs() < 1e-12);
    let DecisionAnswer::Score { score, probabilities, .. } = &answers["size"] else { panic!("{answers:?}") };
    assert!((score - probabilities["1"]).abs() < 1e-12);
    assert!(matches!(answers["red"], DecisionAnswer::Noul { noul } if (0.0..=1.0).contains(&noul)));
    let alone = engine.decide(&state, [("thing", thing())]).expect("an answer");
    assert_eq!(alone["thing"], answers["thing"]);
    let empty = engine.decide(&state, []).expect_err("no question");
    assert!(empty.message().starts_with("questions: expected 1 to 800 questions"), "{empty}");
}

#[test]
fn fields_that_are_left_out_leave_requests_whole() {
    let isolated = config().isolate(true).set("isolate_path", env!("CARGO_BIN_EXE_foredraft-engine"));
    for config in [config(), isolated] {
        let engine = Engine::load(&config).expect("it loads");
        let expected = engine.complete(&story()).expect("a completion").content;
        for name in ["content", "timings/prompt_n"] {
            let request = story().set("response_fields", vec![name]);
            let stream = engine.stream(&request).expect("it is queued");
            let end = stream.finish().expect("a completion");
            assert_eq!((end.content.as_str(), end.stop_type), (expected.as_str(), None), "{name}");
            let whole = engine.complete(&request).expect("a completion");
            assert_eq!(whole.content, if name == "content" { expected.as_str() } else { "" });
            assert!(whole.id > end.id && !whole.fields.contains_key("model"), "{whole:?}");
        }
    }
}

#[test]
fn several_tasks_stream_at_once() {
    let engine = Engine::load(&config()).expect("it loads");
    let texts = |engine: &Engine| {
        let mut streams: Vec<_> =
            (0..3).map(|seed| engine.stream(&story().set("seed", seed)).expect("queued")).collect();
        let mut texts = vec![String::new(); streams.len()];
        block_on(async {
            for (stream, text) in streams.iter_mut().zip(&mut texts) {
                while let Some(update) = next(stream).await {
                    *text += &update.expect("an update").content;
                }
            }
        });
        texts
    };
    let expected = engine.complete(&story()).expect("a completion").content;
    assert!(texts(&engine).iter().all(|text| *text == expected));
}

#[test]
fn messages_are_answered_with_a_message() {
    let engine = Engine::load(&config()).expect("it loads");
    let conversation = [Message::system("You tell stories."), Message::user("Tell me a story about a fox.")];
    let answer = engine.complete(&Request::messages(&conversation).n_predict(20).temperature(0.0)).expect("an answer");
    let message = answer.message.expect("a message");
    assert_eq!((message.role.as_str(), message.content.as_deref()), ("assistant", Some(answer.content.as_str())));
    assert_eq!(answer.usage.expect("numbers").completion_tokens, answer.tokens_predicted);
    // The answer is part of the next request.
    let longer = [conversation.as_slice(), &[message, Message::user("Go on.")]].concat();
    assert!(engine.complete(&Request::messages(&longer).n_predict(4)).is_ok());
}

#[test]
fn several_completions_are_results() {
    let engine = Engine::load(&config()).expect("it loads");
    let request = story().set("prompts", json!(["Tom had", "Nora saw"])).set("prompt", json!(null));
    let whole = engine.complete(&request).expect("completions");
    assert_eq!((whole.results.len(), whole.stop_type), (2, None));
    let streamed = engine.stream(&request).expect("queued").finish().expect("completions");
    let texts = |completion: &foredraft::FinalResponse| {
        completion.results.iter().map(|result| result.content.clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts(&streamed), texts(&whole));
    assert!(texts(&whole).iter().all(|text| !text.is_empty()));
}

#[test]
fn failures_are_errors_with_a_code() {
    let code = |error: Error| error.code();
    assert_eq!(Engine::load(&Config::new("/nowhere.gguf")).map(|_| ()).map_err(code), Err(Code::ModelError));
    assert_eq!(Engine::load(&config().set("n_ctx", "many")).map(|_| ()).map_err(code), Err(Code::InvalidRequest));
    let engine = Engine::load(&config()).expect("it loads");
    // As strict as the functions of C: the old server clamped these.
    for wrong in [story().set("top_k", 40.7), story().set("top_p", 1.5), story().set("n_predict", "many")] {
        assert_eq!(engine.complete(&wrong).map(|_| ()).map_err(code), Err(Code::InvalidRequest));
        assert_eq!(engine.stream(&wrong).map(|_| ()).map_err(code), Err(Code::InvalidRequest));
    }
    assert_eq!(engine.embed("a").map(|_| ()).map_err(code), Err(Code::InvalidRequest));
    let answer = engine.complete(&story().set("temprature", 1)).expect("unknown keys are warnings");
    assert!(answer.warnings[0].contains("temperature"), "{:?}", answer.warnings);
}

#[test]
fn a_dropped_stream_cancels_its_request() {
    let engine = Engine::load(&config().n_parallel(1)).expect("it loads");
    let endless = || Request::prompt("Once").n_predict(1_000_000).set("ignore_eos", true);
    let mut stream = engine.stream(&endless()).expect("it is queued");
    assert!(stream.next().is_some());
    drop(stream);
    // The only slot is free again.
    assert_eq!(engine.complete(&story().n_predict(2)).expect("a completion").tokens_predicted, 2);
    let stream = engine.stream(&endless()).expect("it is queued");
    stream.cancel().expect("cancelled");
    assert_eq!(stream.finish().expect("an end").stop_type, Some(StopType::Cancelled));
    let stream = engine.stream(&endless()).expect("it is queued");
    engine.cancel_all().expect("cancelled");
    assert_eq!(stream.finish().expect("an end").stop_type, Some(StopType::Cancelled));
    // A stream keeps its engine.
    let stream = engine.stream(&story()).expect("it is queued");
    drop(engine);
    assert_eq!(stream.finish().expect("an end").tokens_predicted, 40);
}

#[test]
fn a_closure_changes_logits() {
    let engine = Engine::load(&config()).expect("it loads");
    let request = story().n_predict(5).logits_callback(true).set("ignore_eos", true).set("return_tokens", true);
    assert_eq!(engine.complete(&request).expect_err("no callback").code(), Code::InvalidRequest);
    engine.set_logits_callback(Some(Box::new(|_, logits, _| {
        logits.fill(f32::NEG_INFINITY);
        logits[70] = 1.0;
        Ok(())
    })));
    assert_eq!(engine.complete(&request).expect("a completion").fields["tokens"], json!([70, 70, 70, 70, 70]));
    engine.set_logits_callback(Some(Box::new(|_, _, tokens| panic!("{} tokens are too many", tokens.len()))));
    let error = engine.complete(&request).expect_err("the callback panics");
    assert_eq!((error.code(), error.message()), (Code::Internal, "logits_callback: the callback panicked"));
    engine.set_logits_callback(None);
    assert_eq!(engine.complete(&story()).expect("a completion").tokens_predicted, 40);
}

#[test]
fn text_becomes_tokens() {
    let engine = Engine::load(&config()).expect("it loads");
    let tokens = engine.tokenize("Once upon a time").expect("tokens");
    assert_eq!(engine.complete(&story()).expect("a completion").fields["tokens_evaluated"], tokens.len());
    let embedder = Engine::load(&Config::new(model("target")).set("embedding", true)).expect("it loads");
    let one = embedder.embed("Once").expect("an embedding");
    assert!(one.len() > 8);
    let of_tokens = embedder.embed_tokens("Once").expect("embeddings");
    assert_eq!(of_tokens.len(), embedder.tokenize("Once").expect("tokens").len());
    assert!(of_tokens.iter().all(|vector| vector.len() == one.len()));
}

#[test]
#[cfg(target_os = "linux")]
fn isolated_engines_answer_the_same() {
    let isolated = config().isolate(true).set("isolate_path", env!("CARGO_BIN_EXE_foredraft-engine"));
    let [here, there] = [config(), isolated].map(|config| Engine::load(&config).expect("it loads"));
    assert_eq!(there.status()["isolation"]["state"], "running", "{}", there.status());
    let expected = here.complete(&story()).expect("a completion");
    assert_eq!(there.complete(&story()).expect("a completion").content, expected.content);
    let task = async {
        let mut stream = there.stream(&story()).expect("it is queued");
        let mut text = String::new();
        while let Some(update) = next(&mut stream).await {
            text += &update.expect("an update").content;
        }
        text
    };
    assert_eq!(block_on(task), expected.content);
}

/// `scripts/test-features.sh` runs it. The feature's own tests are in crates/hub.
#[cfg(feature = "hub")]
#[test]
#[allow(unsafe_code, reason = "the test sets variables of the environment")]
fn hub_models_are_downloaded_before_a_load() {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut server = Command::new("python3");
    server.arg(root.join("tests/hub/server.py")).arg(root.join("models")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().expect("python3 is installed");
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).expect("the server prints its address");
    let home = root.join("target/hub-typed");
    let _ = std::fs::remove_dir_all(&home);
    // SAFETY: no other test of this program reads or writes the environment while it runs alone.
    unsafe {
        std::env::set_var("HF_ENDPOINT", address.trim());
        std::env::set_var("HF_HOME", &home);
    }
    let config = Config::new("hf:stories/target").model_draft("hf:stories/draft").n_ctx(512);
    let engine = Engine::load(&config).expect("it is downloaded and loads");
    assert!(engine.status()["model"].as_str().is_some_and(|path| path.starts_with(home.to_str().unwrap())));
    assert_eq!(
        engine.complete(&story()).unwrap().content,
        Engine::load(&self::config()).unwrap().complete(&story()).unwrap().content
    );
    let error = Engine::load(&Config::new("hf:tiny/model:Q5_K_M")).map(drop).expect_err("there is no such file");
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("tiny-Q4_K_M.gguf"), "{error}");
    server.kill().unwrap();
    server.wait().unwrap();
}
