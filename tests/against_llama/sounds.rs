//! Sounds give the rows, tokens and logits that llama.cpp's mtmd gives with the same files.

use std::sync::Arc;

use foredraft::api::Function;
use foredraft::llama::{MediaCache, PauseGate, StopSignal};
use serde_json::{Value, json};

use super::pictures::{
    Medium, call, greedy_of_mtmd, load, logits, logits_of_mtmd, of_kind, projector, refused, threads, tokens_of,
    with_eyes,
};
use crate::common::Endpoint::Foredraft;
use crate::common::mutations::damage;
use crate::common::pictures::{HEIGHT, WIDTH, bmp, chat, pixels, rgb8};
use crate::common::sounds::{flac, mp3, samples, sound, sound_part, wav, wav_of};
use crate::common::tiny_models::{delta_net, hybrid, projectors, qwen_vl, sliding_window};
use crate::common::{complete, drain, n, start, submit, with};

/// Models with a projector each.
fn kinds() -> [(String, String); 5] {
    [
        (sliding_window(), projectors::ultravox()),
        (sliding_window(), projectors::voxtral()),
        (sliding_window(), projectors::pictures_and_sounds()),
        (qwen_vl("2"), projectors::ultravox()),
        (delta_net(), projectors::ultravox()),
    ]
}

/// A file of each format.
fn files() -> [(&'static str, Vec<u8>); 6] {
    let tone = samples(3, 9000);
    let floats: Vec<u8> = tone.iter().flat_map(|sample| (f32::from(*sample) / 32768.0).to_le_bytes()).collect();
    let stereo: Vec<u8> =
        tone.iter().flat_map(|sample| [sample.to_le_bytes(), (-sample / 3).to_le_bytes()].concat()).collect();
    let mut tagged = b"ID3\x04\0\0\0\0\0\x05abcde".to_vec();
    tagged.extend(mp3());
    [
        ("16 bits", wav(16_000, &tone)),
        ("floats of another rate", wav_of(3, 1, 44_100, 32, &floats)),
        ("two channels", wav_of(1, 2, 8_000, 16, &stereo)),
        ("FLAC", flac(22_050, &tone, 9000)),
        ("MP3", mp3()),
        ("MP3 with a tag", tagged),
    ]
}

#[test]
fn logits_after_a_sound_are_those_of_mtmd() {
    for (path, mmproj) in kinds() {
        let model = load(&path);
        let projector = projector(&model, &mmproj);
        let n_vocab = model.vocab().n_tokens();
        let cut = |file: &[u8]| {
            let bitmap = projector.sound(file).expect("a sound");
            projector.cut(&bitmap).expect("it is cut")
        };
        let mut all = Vec::new();
        // One kind hears all files.
        let n_files = if mmproj.contains("voxtral") { 6 } else { 2 };
        for (name, file) in files().into_iter().take(n_files) {
            let expected = logits_of_mtmd(&path, &mmproj, &Medium::Sound(&file), n_vocab);
            for step in [64, 3] {
                let found = logits(&model, &projector, &cut(&file), step);
                let are_same = found.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits());
                assert!(are_same, "{mmproj}, {name}, step {step}");
            }
            all.push(expected);
        }
        assert!(n_files < 6 || all[4] == all[5], "a tag is no sound");
        let all = &all[..n_files.min(5)];
        assert!((0..all.len()).all(|at| (0..at).all(|other| all[at] != all[other])), "{mmproj}: the sounds are heard");
    }
}

#[test]
fn chats_with_a_sound_have_the_tokens_of_mtmd() {
    for kind in kinds() {
        let (path, mmproj) = &kind;
        let model = load(path);
        let n_vocab = model.vocab().n_tokens();
        let engine = of_kind(&kind, json!({}));
        let sees = mmproj.contains("pictures");
        let status = engine.status();
        assert_eq!((&status["mmproj"]["vision"], &status["mmproj"]["audio"]), (&json!(sees), &json!(true)));
        // More than half a minute is cut into pieces.
        for file in [files()[0].1.clone(), mp3(), wav(8_000, &samples(5, 300_000))] {
            let request = chat(&[sound_part(&file)]);
            let shown = call(&engine, Function::ApplyTemplate, &request);
            let rendered = shown["prompt"].as_str().expect("a text").to_owned();
            assert_eq!(rendered.matches("<__media__>").count(), 1, "{rendered}");
            let answer = complete(&engine, Foredraft, &request);
            let (_, expected) = greedy_of_mtmd(path, mmproj, (&rendered, true), &Medium::Sound(&file), n_vocab, 24);
            // The answer has no end before its time.
            let n_same = expected.iter().position(|token| model.vocab().is_eog(*token)).unwrap_or(expected.len());
            assert!(n_same > 8, "{mmproj}: {expected:?}");
            let found = answer["tokens"].as_array().expect("tokens");
            assert_eq!(json!(found[..n_same]), json!(expected[..n_same]), "{mmproj}");
            assert_eq!(shown["n_tokens"], answer["tokens_evaluated"], "{shown}");
            assert_eq!(answer["prompt_stats"]["total_prompt_tokens"], answer["tokens_evaluated"], "{answer}");
        }
    }
}

#[test]
fn a_sound_gives_the_same_new_cached_drafted_and_saved() {
    let folder = std::env::temp_dir().join(format!("foredraft-saved-sounds-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let [ultravox, _, both, four_numbers, _] = kinds();
    for (index, kind) in [ultravox, both, four_numbers, (hybrid(), projectors::ultravox())].into_iter().enumerate() {
        let fresh = |more: Value| of_kind(&kind, more);
        let parts = if kind.1.contains("pictures") { [sound(1), rgb8(2)] } else { [sound(1), sound(2)] };
        let request = with(&chat(&parts), json!({"temperature": 0.9, "seed": 3, "repeat_penalty": 1.2}));
        let expected = complete(&fresh(json!({"image_cache_mb": 0})), Foredraft, &request)["tokens"].clone();
        let engine = fresh(json!({"n_parallel": 2}));
        let cached = with(&request, json!({"cache_prompt": true}));
        for (what, request) in [
            ("new", &request),
            ("its rows in memory", &request),
            ("in the slot", &cached),
            ("drafted", &with(&cached, json!({"speculative": {"type": "auto", "adaptive": false, "n_max": 4}}))),
            ("compared", &with(&request, json!({"speculative": {"compare": true}}))),
        ] {
            let answer = complete(&engine, Foredraft, request);
            assert_eq!(answer["tokens"], expected, "{kind:?}: {what}");
            if what == "in the slot" {
                assert!(n(&answer["timings"]["cache_n"]) > 25, "{kind:?}: {}", answer["timings"]);
            }
        }
        let beside = json!({"prompt": "Tom had a red hat. Mia", "n_predict": 60, "seed": 1, "ignore_eos": true});
        let beside = submit(&engine, Foredraft, &beside);
        let id = submit(&engine, Foredraft, &request);
        assert_eq!(tokens_of(&drain(&engine, Foredraft, id)), expected, "{kind:?}: beside another slot");
        drain(&engine, Foredraft, beside);
        let other =
            with(&chat(&[parts[0].clone(), sound(4)]), json!({"temperature": 0.9, "seed": 3, "cache_prompt": true}));
        let alone = complete(&fresh(json!({})), Foredraft, &other);
        assert_eq!(
            complete(&engine, Foredraft, &other)["tokens"],
            alone["tokens"],
            "{kind:?}: the first is in the slot"
        );
        // A saved state goes on in another engine.
        let file = json!({"id_slot": 0, "filename": folder.join(index.to_string())});
        let first = fresh(json!({}));
        complete(&first, Foredraft, &with(&cached, json!({"n_predict": 1})));
        call(&first, Function::SessionSave, &file);
        let second = fresh(json!({}));
        complete(&second, Foredraft, &chat(&[sound(9)]));
        call(&second, Function::SessionLoad, &file);
        let answer = complete(&second, Foredraft, &cached);
        assert_eq!(answer["tokens"], expected, "{kind:?}: saved");
        assert!(n(&answer["timings"]["cache_n"]) > 25, "{kind:?}: {}", answer["timings"]);
    }
    std::fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn sounds_that_cannot_be_heard_are_errors() {
    let engine = with_eyes(&projectors::ultravox(), json!({}));
    let part = "messages[1].content[1]";
    let tone = samples(1, 400);
    let floats = |all: &[f32]| all.iter().flat_map(|sample| sample.to_le_bytes()).collect::<Vec<u8>>();
    let mut long = wav(16_000, &tone);
    // The header says that there are more bytes than the file has, and a second one how many samples there are.
    long[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    let fact: Vec<u8> = b"fact\x04\0\0\0\xff\xff\xff\xff".iter().copied().chain(long[36..].iter().copied()).collect();
    let fact = [&long[..36], fact.as_slice()].concat();
    let mut xing = mp3();
    xing[60..72].copy_from_slice(b"Xing\0\0\0\x01\xff\xff\xff\xff");
    let eight_hours = flac(44_100, &tone, 8 * 3600 * 44_100);
    let fast = flac(192_000, &tone, 600 * 192_000 + 1);
    let input = |value: Value| json!({"type": "input_audio", "input_audio": value});
    let cases = [
        (input(json!({})), format!("{part}.input_audio: expected either data or path")),
        (input(json!("x.wav")), format!("{part}.input_audio: expected an object")),
        (input(json!({"data": "AAAA", "path": "/x"})), format!("{part}.input_audio: expected either")),
        (input(json!({"data": 1})), format!("{part}.input_audio.data")),
        (input(json!({"data": "*"})), format!("{part}: expected base64")),
        (input(json!({"data": "", "format": "ogg"})), format!("{part}.input_audio.format")),
        (input(json!({"path": "https://example.com/a.wav"})), format!("{part}.input_audio.path")),
        (input(json!({"path": "/no/such/file.wav"})), format!("{part}: cannot be read")),
        (sound_part(b""), format!("{part}.input_audio: expected either")),
        (sound_part(b"RIFF"), format!("{part}: expected a WAV, MP3 or FLAC file")),
        (sound_part(&bmp(1, 1, &[1, 2, 3])), format!("{part}: expected a WAV")),
        (sound_part(&wav(16_000, &[])), format!("{part}: the sound is empty")),
        (sound_part(&wav(16_000, &tone[..1])), format!("{part}: the sound is empty")),
        (sound_part(&wav(0, &tone)), format!("{part}: 0 samples a second")),
        (sound_part(&wav(200_000, &tone)), format!("{part}: 200000 samples a second")),
        (sound_part(&wav_of(1, 9, 16_000, 16, &[0; 18])), format!("{part}: 16000 samples a second in 9 channels")),
        (sound_part(&wav(1_000, &samples(1, 600_001))), "(600 seconds): expected at most 600 seconds".to_owned()),
        (sound_part(&flac(16_000, &tone, 0)), format!("{part}: the sound is empty")),
        (sound_part(&eight_hours), "(28800 seconds)".to_owned()),
        (sound_part(&fast), "expected at most 600 seconds".to_owned()),
        (sound_part(&xing), "expected at most 600 seconds".to_owned()),
        (sound_part(&wav_of(3, 1, 16_000, 32, &floats(&[0.1, f32::NAN, 0.2]))), format!("{part}: a sample is NaN")),
        (sound_part(&wav_of(3, 1, 16_000, 32, &floats(&[0.1, f32::INFINITY]))), format!("{part}: a sample is inf")),
        (sound_part(&wav_of(3, 1, 16_000, 32, &floats(&[-2e9, 0.0]))), format!("{part}: a sample is -2000000000")),
        (rgb8(1), format!("{part}: the mmproj file has no encoder of pictures")),
    ];
    for (given, expected) in cases {
        let message = refused(&engine, &chat(std::slice::from_ref(&given)));
        assert!(message.contains(&expected), "{expected}: {message}");
    }
    let expected = complete(&engine, Foredraft, &chat(&[sound_part(&wav(16_000, &tone))]))["tokens"].clone();
    for file in [&long, &fact] {
        assert_eq!(
            complete(&engine, Foredraft, &chat(&[sound_part(file)]))["tokens"],
            expected,
            "what is there counts"
        );
    }
    let path = std::env::temp_dir().join(format!("foredraft-sound-{}.wav", std::process::id()));
    std::fs::write(&path, &long).expect("the file");
    for path in [path.to_string_lossy().into_owned(), format!("file://{}", path.display())] {
        let answer = complete(&engine, Foredraft, &chat(&[input(json!({"path": path, "format": "wav"}))]));
        assert_eq!(answer["tokens"], expected, "{path}");
    }
    std::fs::remove_file(path).expect("the file");
    let in_system = json!({"messages": [{"role": "system", "content": [sound(1)]}, {"role": "user", "content": "a"}]});
    assert!(refused(&engine, &in_system).contains("sounds are in user messages only"));
    let deaf = start(json!({}));
    assert!(refused(&deaf, &chat(&[sound(1)])).contains("takes no sounds (load its projector with mmproj)"));
    let message = refused(&engine, &with(&chat(&[sound(1)]), json!({"prompt_logprobs": 1})));
    assert!(message.contains("sounds"), "{message}");
}

#[test]
fn files_whose_rows_are_in_memory_are_not_read_again() {
    let model = load(&sliding_window());
    let stop: StopSignal = Arc::new(|| false);
    let pauses = Arc::new(PauseGate::default());
    let cache =
        |most: usize| MediaCache::new(projector(&model, &projectors::pictures_and_sounds()), most, &pauses, &threads());
    let tone = wav(16_000, &samples(1, 4000));
    let picture = bmp(WIDTH, HEIGHT, &pixels(1));
    let (kept, none) = (cache(1 << 20), cache(0));
    for (file, is_sound) in [(&tone, true), (&picture, false)] {
        let numbers = |cache: &MediaCache| cache.number_file(file, is_sound, &stop).expect("numbers");
        let new = numbers(&kept);
        assert!(!new.is_encoded());
        let rows = kept.encode(&new, &stop).expect("rows");
        let again = numbers(&kept);
        assert!(again.is_encoded());
        assert!(again.tokens().eq(new.tokens()));
        assert!(Arc::ptr_eq(&kept.encode(&again, &stop).expect("rows"), &rows));
        assert!(kept.number_file(file, !is_sound, &stop).is_err(), "the file is of the other kind");
        none.encode(&numbers(&none), &stop).expect("rows");
        assert!(!numbers(&none).is_encoded());
    }
    let stopped: StopSignal = Arc::new(|| true);
    for (file, is_sound) in [(&tone, true), (&picture, false)] {
        let error = none.number_file(file, is_sound, &stopped).expect_err("it is stopped before its spectrum is made");
        assert_eq!(error.code().as_str(), "cancelled");
    }
    // What was numbered goes on when others have taken its memory.
    let small = cache(4000);
    let first = small.number_file(&tone, true, &stop).expect("numbers");
    let rows = small.encode(&first, &stop).expect("rows");
    let again = small.number_file(&tone, true, &stop).expect("numbers");
    assert!(again.is_encoded());
    let other = small.number_file(&wav(16_000, &samples(2, 4000)), true, &stop).expect("numbers");
    small.encode(&other, &stop).expect("rows");
    assert!(!small.number_file(&tone, true, &stop).expect("numbers").is_encoded());
    assert!(Arc::ptr_eq(&small.encode(&again, &stop).expect("rows"), &rows));
}

#[test]
fn damaged_files_of_sounds_end_as_errors_or_sounds() {
    let model = load(&sliding_window());
    let projector = projector(&model, &projectors::ultravox());
    let tone = samples(1, 300);
    let files = [(wav(16_000, &tone), 60), (flac(16_000, &tone, 300), 80), (mp3(), 200), (mp3(), 2000)];
    let mut n_heard = 0;
    damage("files of sounds", &files, 8_000, |damaged| {
        if let Ok(bitmap) = projector.sound(damaged) {
            assert!(bitmap.is_sound() && bitmap.bytes().len() <= 600 * 16_000 * 4);
            n_heard += 1;
        }
    });
    assert!(n_heard > 0);
}
