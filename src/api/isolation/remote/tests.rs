//! Everything that an engine's process can send, right and wrong: nothing panics, no callback gets a row of another vocabulary, each request
//! ends, and a process that breaks the protocol is given up.

use std::fs::File;
use std::os::unix::net::UnixStream;

use serde_json::json;

use super::*;
use crate::api::isolation::connection::Connection;
use crate::api::isolation::protocol::LogitsRow;
use crate::api::isolation::shared::HostNotice;
use crate::api::loaded::calls::PollCommand;
use crate::api::loaded::registry::RequestRegistry;
use crate::api::prompts::ServedModel;
use crate::api::tests::mutations::{Mutator, run};
use crate::llama::TokenPieces;

/// The tokens of the vocabulary.
const N_VOCAB: usize = 5;

/// An engine whose process is this test, and has sent its model.
struct Host {
    engine: RemoteEngine,
    requests: RequestRegistry,
    supervisor: Supervisor,
    connection: Arc<Connection>,
    sent: Receiver<Frame>,
    notices: Receiver<HostNotice>,
}

impl Host {
    fn new() -> Host {
        let (notices, noticed) = crossbeam_channel::unbounded();
        let (wake, _) = crossbeam_channel::bounded(1);
        let load = LoadRequest::parse(br#"{"model": "m.gguf", "isolate": true}"#).expect("valid");
        let shared = Arc::new(RemoteShared::new(notices, wake, load));
        let logits = Arc::<Hook<LogitsCallback>>::default();
        logits.set(Some(Box::new(|_, _, _| Ok(()))));
        let engine = RemoteEngine {
            shared: Arc::clone(&shared),
            logits,
            threads: Mutex::default(),
            asked_status: Mutex::default(),
            _following: Arc::<HostPauses>::default().follow(Arc::default()),
        };
        let pauses = File::open("/dev/null").expect("it is there");
        let supervisor =
            Supervisor::new(shared, IsolationSettings::default(), pauses, crossbeam_channel::unbounded().0);
        let (frames, sent) = crossbeam_channel::unbounded();
        let (stream, _) = UnixStream::pair().expect("a pair");
        let connection = Arc::new(Connection::new(frames, stream));
        let mut pieces = TokenPieces::default();
        (0..N_VOCAB).for_each(|token| assert!(pieces.push(&[b'a' + token as u8])));
        let model = ServedModel { name: "m".to_owned(), n_ctx: 64, pieces: Arc::new(pieces), decision: None };
        let mut host =
            Host { engine, requests: RequestRegistry::default(), supervisor, connection, sent, notices: noticed };
        host.serve(&bytes(&model.frame(0))).expect("a model");
        host
    }

    /// Serves a process that sends these bytes and dies.
    fn serve(&mut self, bytes: &[u8]) -> Result<()> {
        let result = self.supervisor.serve(&self.connection, &mut &bytes[..], 1);
        self.engine.shared.disconnect();
        self.engine.shared.process_died("it ended");
        result
    }

    fn submit(&self, request: &Value) -> u64 {
        let text = request.to_string();
        let announce = |record: &Arc<RequestRecord>| self.requests.add(Arc::clone(record));
        let record = self.engine.begin(text.as_bytes(), RequestArguments::default(), false, &announce);
        record.expect("valid").handle.id()
    }

    fn poll(&self, id: u64) -> Value {
        let command = json!({"id": id}).as_object().cloned().expect("an object");
        let command = PollCommand::read(&command, Vec::new()).expect("valid");
        self.requests.poll(command, |_| Ok(())).expect("it is known")
    }

    /// The rows for the host's callback.
    fn rows(&self) -> Vec<LogitsRow> {
        let row = |notice| match notice {
            HostNotice::Logits(_, _, row) => Some(row),
            _ => None,
        };
        self.notices.try_iter().filter_map(row).collect()
    }
}

fn bytes(frame: &Frame) -> Vec<u8> {
    encoded(frame.kind as u8, frame.number, &frame.text)
}

fn encoded(kind: u8, number: u64, text: &[u8]) -> Vec<u8> {
    let len = u32::try_from(text.len()).expect("short");
    [&len.to_le_bytes()[..], &[kind], &number.to_le_bytes(), text].concat()
}

fn event(id: u64, event: &Value) -> Frame {
    Frame::new(FrameKind::Event, id, event.to_string())
}

fn requests() -> [Value; 3] {
    [
        json!({"prompt": "a", "n_probs": 1, "return_tokens": true, "logits_callback": true, "seed": 1}),
        json!({"messages": [{"role": "user", "content": "a"}], "return_progress": true, "tag": 1}),
        json!({"prompts": ["a", "b"], "choices": ["a", "b"]}),
    ]
}

fn token(token: i64) -> Value {
    let probs = json!({"token": token, "logprob": -0.5, "top": [[token, -0.5]]});
    json!({"token": token, "source": "Target", "start": 0, "probs": probs})
}

fn timings() -> Value {
    let time = json!({"secs": 0, "nanos": 5});
    json!({"prompt_n": 1, "prompt": time, "predicted_n": 1, "predicted": time, "cache_n": 0, "draft": [1, 1], "n_preempted": 0, "n_begun": 0})
}

fn update(index: u64, tokens: &[i64], text: &str) -> Value {
    let tokens: Vec<Value> = tokens.iter().map(|id| token(*id)).collect();
    let call = json!({"index": 0, "begun": ["f", ""], "arguments": "{"});
    let delta = json!({"content": text, "reasoning": "", "calls": [call]});
    json!({"Completion": {"index": index, "event": {"Update": {"text": text, "tokens": tokens, "timings": timings()}},
        "message": {"delta": delta, "warnings": ["w"]}}})
}

fn end(index: u64) -> Value {
    let time = json!({"secs": 0, "nanos": 5});
    let speculation = json!({"n_drafted": 1, "n_accepted": 1, "n_steps": 1, "accepted_per_position": [1],
        "by_source": {"Draft": [1, 1]}, "t_draft": time, "t_verify": time, "n_max_final": 1, "disabled": null,
        "comparison": {"Done": {"index": 0, "logit_gap": 0.5}}});
    let outcome = json!({"stop": {"Word": "b"}, "text": "b", "tokens": [token(1)], "text_end": 1, "slot": 0,
        "prompt": {"n_total": 1, "n_prompt": 1, "n_cached": 0, "truncated": false},
        "prompt_probs": {"first": 0, "others": [{"token": 1, "logprob": -1.0, "top": [[1, -1.0]]}]},
        "n_predicted": 2, "n_cached": 2, "truncated": false, "timings": timings(), "speculation": speculation,
        "seed_position": 0, "decisions": [{"choice": 0, "logprobs": [0, 0], "probs": [0.5, 0.5], "n_tokens": 0}],
        "session_load": {"n_tokens": 1, "n_draft": 0, "seed": {"seed": 1, "origin": -1}},
        "session_save": {"Ok": {"n_tokens": 1, "n_draft": 0, "n_bytes": 9}}});
    json!({"Completion": {"index": index, "event": {"Finished": outcome}, "message": null}})
}

/// The events of a request, as an engine sends them.
fn events(n_completions: u64) -> Vec<Value> {
    let prompt = json!({"tokens": [0, 1, 2], "text": "abc", "n_dropped": 0, "warnings": []});
    let progress = json!({"Progress": {"total": 3, "cached": 1, "processed": 2, "time": {"secs": 0, "nanos": 1}}});
    let all = |value: &Value| (0..n_completions).map(|_| value.clone()).collect::<Vec<Value>>();
    let mut events = vec![
        json!({"Accepted": {"settings": all(&json!({"seed": 1})), "warnings": []}}),
        json!({"Prepared": all(&prompt)}),
    ];
    for index in 0..n_completions {
        events.push(json!({"Completion": {"index": index, "event": progress, "message": null}}));
        events.push(update(index, &[0], "a"));
        events.push(end(index));
    }
    events
}

#[test]
fn mutations_of_frames_are_taken_or_refused() {
    let words = [
        "a",
        "",
        "Target",
        "Draft",
        "Accepted",
        "Refused",
        "Prepared",
        "Completion",
        "Update",
        "Finished",
        "Restarted",
        "index",
        "tokens",
        "token",
        "start",
        "Cancelled",
        "Eos",
        "Error",
        "secs",
        "nanos",
        "calls",
        "begun",
        "\u{1F600}",
    ];
    run("frames of an engine's process", |mutator| {
        let mut host = Host::new();
        let ids: Vec<u64> = requests().iter().map(|request| host.submit(request)).collect();
        // Two processes, the first of which dies, or breaks the protocol.
        for _ in 0..2 {
            let mut stream = Vec::new();
            for (id, n_completions) in ids.iter().zip([1, 1, 2]) {
                for value in events(n_completions) {
                    stream.extend(mutated(mutator, *id, &value, &words));
                }
            }
            let row = LogitsRow::frame(3, ids[0], &[0, 1], &[0.5; N_VOCAB]);
            let text = if mutator.below(2) == 0 { row.text } else { mutator.bytes(&[row.text], &["\u{7f}", "a"]) };
            stream.extend(encoded(FrameKind::Logits as u8, 3, &text));
            stream.extend(bytes(&Frame::new(FrameKind::Log, 3, "a line")));
            let _ = host.serve(&stream);
        }
        for row in host.rows() {
            assert_eq!((row.request, row.logits.len()), (ids[0], N_VOCAB));
            assert!(row.tokens.iter().all(|token| (0..N_VOCAB as i32).contains(token)));
        }
        host.engine.shared.end_all(None);
        for id in ids {
            let answer = host.poll(id);
            assert_eq!(answer["finished"], true, "{answer}");
        }
        assert!(host.engine.shared.unfinished().is_empty());
        drop(host.sent);
    });
}

/// A frame of an event, often changed.
fn mutated(mutator: &mut Mutator, id: u64, value: &Value, words: &[&str]) -> Vec<u8> {
    let text = match mutator.below(16) {
        0 => mutator.document(value, words).to_string(),
        1 => mutator.text(&[value.to_string().into_bytes()], words),
        2 => return Vec::new(),
        _ => value.to_string(),
    };
    let number = *mutator.of(&[id, id, id, id, id, id, id, id, 0, u64::MAX]);
    let kind = if mutator.below(64) == 0 { mutator.below(20) as u8 } else { FrameKind::Event as u8 };
    encoded(kind, number, text.as_bytes())
}

#[test]
fn events_become_the_updates_of_polls() {
    let mut host = Host::new();
    let ids: Vec<u64> = requests().iter().map(|request| host.submit(request)).collect();
    let stream = |n_events: usize| -> Vec<u8> {
        let of = |(id, n_completions): (&u64, u64)| {
            let frames: Vec<Frame> =
                events(n_completions).iter().take(n_events).map(|value| event(*id, value)).collect();
            frames
        };
        ids.iter().zip([1, 1, 2]).flat_map(of).flat_map(|frame| bytes(&frame)).collect()
    };
    // The first process dies after the first token, and the second one begins again.
    host.serve(&stream(4)).expect("valid frames");
    host.serve(&stream(usize::MAX)).expect("valid frames");
    let updates = host.poll(ids[0])["completion_updates"].as_array().cloned().expect("updates");
    let content: String = updates.iter().filter_map(|update| update["content"].as_str()).collect();
    assert_eq!(content, "ab", "{updates:?}");
    let tokens: Vec<&Value> = updates.iter().filter_map(|update| update["tokens"].as_array()).flatten().collect();
    assert_eq!(tokens, [0, 1], "{updates:?}");
    let restarts = updates.iter().filter(|update| update.get("engine").is_some()).count();
    assert_eq!((restarts, &updates.last().expect("an end")["stop"]), (1, &json!(true)));
    let chat = host.poll(ids[1])["completion_updates"].as_array().cloned().expect("updates");
    let is_empty = |update: &&Value| update["content"] == "" && update["delta"] == json!({}) && update["stop"] == false;
    let others = chat.iter().filter(|update| update.get("engine").is_none() && update.get("prompt_progress").is_none());
    assert_eq!(others.filter(is_empty).count(), 0, "what arrives again is no update: {chat:?}");
    let message = &chat.last().expect("an end")["message"];
    assert_eq!((&message["content"], &message["tool_calls"][0]["function"]["name"]), (&json!("a"), &json!("f")));
    for id in ids {
        assert_eq!(host.poll(id)["finished"], true);
    }
}

/// Each of these ended or corrupted the host, or was obeyed.
#[test]
fn what_no_engine_sends_is_refused() {
    let changed = |pointer: &str, wrong: Value| {
        let mut value = end(0);
        *value.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = wrong;
        value
    };
    let outcome = "/Completion/event/Finished";
    let at = |field: &str, wrong: Value| changed(&format!("{outcome}/{field}"), wrong);
    let events = [
        json!({"Completion": {"index": 1_u64 << 62, "event": {"Update": {"text": "a", "tokens": [], "timings": timings()}}, "message": null}}),
        update(1, &[0], "a"),
        update(0, &[-7], "a"),
        update(0, &[5], "a"),
        json!({"Completion": {"index": 0, "event": {"Restarted": {"cause": "a"}}, "message": null}}),
        json!({"Prepared": []}),
        json!({"Prepared": [{"tokens": [99], "text": null, "n_dropped": 0, "warnings": []}]}),
        json!({"Accepted": {"settings": [], "warnings": []}}),
        at("prompt_probs/first", json!(-1)),
        at("tokens/0/probs/top/0/0", json!(5)),
        json!("Accepted"),
        json!(7),
    ];
    let mut wrong: Vec<(FrameKind, Vec<u8>)> =
        events.iter().map(|event| (FrameKind::Event, event.to_string().into_bytes())).collect();
    wrong.push((FrameKind::Answer, b"[1]".to_vec()));
    wrong.push((FrameKind::Call, b"load\n{}".to_vec()));
    for (kind, text) in &wrong {
        let mut host = Host::new();
        let id = host.submit(&requests()[0]);
        let error = host.serve(&encoded(*kind as u8, id, text)).expect_err(&String::from_utf8_lossy(text));
        assert!(error.message().contains("broke the protocol"), "{error}");
        assert_eq!(host.poll(id)["finished"], false, "the next process continues it");
    }
    let rows: [(&[i32], &[f32]); 3] = [(&[0], &[0.5]), (&[-7], &[0.5; N_VOCAB]), (&[5], &[0.5; N_VOCAB])];
    let rows = rows.map(|(tokens, logits)| LogitsRow::frame(1, 0, tokens, logits).text);
    for mut text in rows.into_iter().chain([vec![0; 9]]) {
        let mut host = Host::new();
        let id = host.submit(&requests()[0]);
        text[..8].copy_from_slice(&id.to_le_bytes());
        assert!(host.serve(&encoded(FrameKind::Logits as u8, 1, &text)).is_err());
        assert_eq!(host.rows(), []);
    }
    // A claim of 4 GiB, and an unknown kind.
    for head in [[255, 255, 255, 255, FrameKind::Log as u8], [0, 0, 0, 0, 99]] {
        assert!(Host::new().serve(&[&head[..], &[0; 64]].concat()).is_err());
    }
}

/// One that does not use the callback, or has ended.
#[test]
fn row_of_another_request_reaches_no_callback() {
    let mut host = Host::new();
    let id = host.submit(&requests()[1]);
    let rows = [id, id + 1000].map(|id| bytes(&LogitsRow::frame(9, id, &[0], &[0.5; N_VOCAB])));
    host.serve(&rows.concat()).expect("it may have ended meanwhile");
    assert_eq!(host.rows(), []);
    let answers: Vec<Frame> = host.sent.try_iter().filter(|frame| frame.kind == FrameKind::ChangedLogits).collect();
    assert!(
        answers.len() == 2 && answers.iter().all(|frame| frame.number == 9 && frame.text.is_empty()),
        "{answers:?}"
    );
}
