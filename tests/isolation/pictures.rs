//! Pictures and sounds of an isolated engine: they reach its process, and a death in the encoder changes nothing.

use std::time::Duration;

use foredraft::api::Function;
use serde_json::{Value, json};

use crate::common::pictures::{HEIGHT, WIDTH, base64, bmp, chat, pixels, rgb8};
use crate::common::sounds::{samples, sound, sound_part, wav};
use crate::common::tiny_models::{projectors, qwen_vl, sliding_window};
use crate::common::{Endpoint, complete, model, start as start_local, with};
use crate::process::{call, drain, kill, pid, start, submit};

fn init(model: &str, mmproj: &str) -> Value {
    json!({"model": model, "model_draft": null, "mmproj": mmproj, "n_ctx": 512, "n_batch": 64, "n_ubatch": 64})
}

fn tokens(updates: &[Value]) -> Value {
    updates.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect()
}

#[test]
fn pictures_reach_the_process_in_each_form() {
    let drafting = json!({"model_draft": model("draft"), "speculative": {"type": "draft", "adaptive": false}});
    for init in [
        init(&sliding_window(), &projectors::gemma3()),
        init(&qwen_vl("2"), &projectors::qwen("2")),
        with(&init(&model("target"), &model("vision")), drafting),
    ] {
        let alone = with(&init, json!({"model_draft": null, "speculative": null}));
        let expected = complete(&start_local(alone), Endpoint::Foredraft, &chat(&[rgb8(5)]));
        let engine = start(init.clone());
        assert_eq!(engine.status()["mmproj"]["vision"], true);
        let (rgb, file) = (pixels(5), bmp(WIDTH, HEIGHT, &pixels(5)));
        let rgba: Vec<u8> = rgb.chunks(3).flat_map(|pixel| [pixel[0], pixel[1], pixel[2], 77]).collect();
        let path = std::env::temp_dir().join(format!("foredraft-isolated-picture-{}.bmp", std::process::id()));
        let raw = |format: &str, pixels: &[u8]| {
            let address = pixels.as_ptr() as u64;
            json!({"type": "image", "width": WIDTH, "height": HEIGHT, "format": format, "address": address})
        };
        let url = |url: String| json!({"type": "image_url", "image_url": {"url": url}});
        std::fs::write(&path, &file).expect("the file");
        let mut answers = Vec::new();
        for picture in [
            rgb8(5),
            raw("rgb8", &rgb),
            raw("rgba8", &rgba),
            url(format!("data:image/bmp;base64,{}", base64(&file))),
            url(path.to_string_lossy().into_owned()),
        ] {
            let request = chat(std::slice::from_ref(&picture));
            let answer = complete(&engine, Endpoint::Foredraft, &request);
            assert_eq!(answer["tokens"], expected["tokens"], "{picture}");
            assert_eq!(answer["tokens_evaluated"], expected["tokens_evaluated"], "{picture}");
            assert!(init["model_draft"].is_null() || !answer["speculative"]["by_type"]["draft"].is_null(), "{answer}");
            let shown = call(&engine, Function::ApplyTemplate, &request);
            assert_eq!(shown["prompt"].to_string().matches("<__media__>").count(), 1, "{shown}");
            assert_eq!(shown["n_tokens"], expected["tokens_evaluated"], "{shown}");
            let messages = json!({"messages": request["messages"]});
            assert_eq!(call(&engine, Function::Tokenize, &messages)["length"], shown["n_tokens"], "{picture}");
            let asked = with(&messages, json!({"questions": {"red": {"type": "noul", "instructions": "It is red."}}}));
            answers.push(call(&engine, Function::Decide, &asked)["answers"].to_string());
        }
        assert!(answers.windows(2).all(|two| two[0] == two[1]), "{answers:?}");
        // The host's process reads the picture during the submit.
        let id = submit(&engine, &chat(&[url(path.to_string_lossy().into_owned())]));
        std::fs::remove_file(&path).expect("the file");
        assert_eq!(tokens(&drain(&engine, id)), expected["tokens"]);
        for (picture, expected) in [
            (url(path.to_string_lossy().into_owned()), "messages[1].content[1]: cannot be read"),
            (with(&raw("rgb8", &rgb), json!({"address": 4096})), "messages[1].content[1]: address"),
        ] {
            let request = chat(std::slice::from_ref(&picture)).to_string();
            let error = engine.call(Function::Submit, Ok(request.as_bytes())).expect_err("it cannot be read");
            assert!(error.message().contains(expected), "{}", error.message());
        }
    }
}

#[test]
fn sounds_reach_the_process() {
    let init = init(&sliding_window(), &projectors::ultravox());
    let file = wav(16_000, &samples(2, 4000));
    let request = chat(&[sound_part(&file)]);
    let expected = complete(&start_local(init.clone()), Endpoint::Foredraft, &request);
    let engine = start(init);
    assert_eq!(engine.status()["mmproj"]["audio"], true);
    assert_eq!(complete(&engine, Endpoint::Foredraft, &request)["tokens"], expected["tokens"]);
    let path = std::env::temp_dir().join(format!("foredraft-isolated-sound-{}.wav", std::process::id()));
    std::fs::write(&path, &file).expect("the file");
    // The host's process reads the sound during the submit.
    let id = submit(&engine, &chat(&[json!({"type": "input_audio", "input_audio": {"path": path}})]));
    std::fs::remove_file(&path).expect("the file");
    kill(pid(&engine), "KILL");
    assert_eq!(tokens(&drain(&engine, id)), expected["tokens"]);
}

#[test]
fn saved_states_with_pictures_and_sounds_go_on_after_deaths() {
    let folder = std::env::temp_dir().join(format!("foredraft-isolated-states-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (init, parts) in [
        (init(&sliding_window(), &projectors::pictures_and_sounds()), [rgb8(1), sound(2)]),
        (init(&qwen_vl("2"), &projectors::qwen("2")), [rgb8(1), rgb8(2)]),
    ] {
        let request = with(&chat(&parts), json!({"cache_prompt": true, "n_predict": 8}));
        let expected = complete(&start_local(init.clone()), Endpoint::Foredraft, &request)["tokens"].clone();
        let disk = json!({"cache_dir": folder.join("conversations"), "cache_ram_mb": 0});
        let engine = start(with(&init, disk));
        let named =
            with(&request, json!({"conversation": "a", "session_save": folder.join("request"), "n_predict": 1}));
        assert_eq!(complete(&engine, Endpoint::Foredraft, &named)["tokens"][0], expected[0]);
        let file = |name: &str| json!({"id_slot": 0, "filename": folder.join(name)});
        call(&engine, Function::SessionSave, &file("slot"));
        call(
            &engine,
            Function::Conversation,
            &json!({"action": "save", "conversation": "a", "filename": folder.join("talk")}),
        );
        // The conversation goes to the disk.
        complete(&engine, Endpoint::Foredraft, &json!({"prompt": "Tom", "n_predict": 2, "conversation": "b"}));
        let place = || {
            call(&engine, Function::Conversation, &json!({"action": "list", "conversation": "a"}))["conversations"][0]["place"].clone()
        };
        while place() != "disk" {
            std::thread::sleep(Duration::from_millis(5));
        }
        for name in ["slot", "request", "talk", "on disk"] {
            kill(pid(&engine), "KILL");
            let more = match name {
                "slot" => {
                    call(&engine, Function::SessionLoad, &file("slot"));
                    json!({"id_slot": 0})
                }
                "request" => json!({"session_load": folder.join("request")}),
                "talk" => {
                    let load = json!({"action": "load", "conversation": "c", "filename": folder.join("talk")});
                    call(&engine, Function::Conversation, &load);
                    json!({"conversation": "c"})
                }
                _ => json!({"conversation": "a"}),
            };
            let answer = complete(&engine, Endpoint::Foredraft, &with(&request, more));
            assert_eq!(answer["tokens"], expected, "{name}");
            assert!(answer["timings"]["cache_n"].as_u64() > Some(5), "{name}: {}", answer["timings"]);
        }
    }
    std::fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn a_death_in_the_encoder_changes_nothing() {
    let init = with(&init(&sliding_window(), &projectors::lfm2()), json!({"n_ctx": 2048, "image_min_tokens": 256}));
    let request = chat(&[rgb8(1), rgb8(2), rgb8(3)]);
    let expected = complete(&start_local(init.clone()), Endpoint::Foredraft, &request)["tokens"].clone();
    let engine = start(init);
    // The encoder waits while the engine is paused.
    engine.pause().expect("it pauses");
    let id = submit(&engine, &request);
    std::thread::sleep(Duration::from_millis(100));
    kill(pid(&engine), "KILL");
    engine.resume().expect("it is paused");
    assert_eq!(tokens(&drain(&engine, id)), expected);
    for (delay, signal) in [(0, "KILL"), (2, "SEGV"), (8, "ABRT"), (20, "KILL"), (50, "KILL"), (120, "SEGV")] {
        let process = pid(&engine);
        let id = submit(&engine, &request);
        std::thread::sleep(Duration::from_millis(delay));
        kill(process, signal);
        assert_eq!(tokens(&drain(&engine, id)), expected, "{signal} after {delay} ms");
    }
    assert!(engine.status()["isolation"]["n_restarts"].as_u64() > Some(0));
}
