//! Conversations of an engine whose process is killed: the next turn of each has the text of a fresh engine, and files are whole.

use std::thread;
use std::time::Duration;

use foredraft::api::{Function, JsonEngine};
use serde_json::{Value, json};

use crate::common::{Endpoint, complete, start as start_local, with};
use crate::process::{call, drain, kill, pid, start, submit};
use crate::toolchain::folder;

#[test]
fn conversations_survive_deaths_and_files_are_whole() {
    let disk = folder("isolation").join(format!("conversations-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&disk);
    let init = json!({"n_ctx": 512, "n_parallel": 1, "cache_ram_mb": 0});
    let fresh = start_local(init.clone());
    let engine = start(with(&init, json!({"cache_dir": disk})));
    let mut prompts: Vec<String> = (0..4).map(|name| format!("Once upon a time there were {name} children.")).collect();
    let mut n_cached = 0;
    for round in 0..40_usize {
        let name = round * 7 % 4;
        let request = json!({"prompt": prompts[name], "n_predict": 6, "seed": round, "ignore_eos": true, "speculative": round % 2 == 0,
            "conversation": format!("character {name}")});
        let id = submit(&engine, &request);
        // While another conversation's state is written or a prompt decoded, or later.
        if round % 3 == 0 {
            thread::sleep(Duration::from_millis(round as u64 % 20));
            kill(pid(&engine), "KILL");
        }
        let updates = drain(&engine, id);
        let text: String = updates.iter().filter_map(|update| update["content"].as_str()).collect();
        let alone = with(&request, json!({"conversation": null, "speculative": false, "cache_prompt": false}));
        assert_eq!(json!(text), complete(&fresh, Endpoint::Foredraft, &alone)["content"], "round {round}");
        n_cached += updates.last().expect("an end")["timings"]["cache_n"].as_u64().expect("a number");
        prompts[name] += &text;
    }
    assert!(engine.status()["isolation"]["n_restarts"].as_u64() > Some(5));
    assert!(n_cached > 300, "{n_cached}: states come from disk, also after a death");
    let listed = call(&engine, Function::Conversation, &json!({"action": "list"}));
    let names: Vec<&Value> =
        listed["conversations"].as_array().expect("a list").iter().map(|one| &one["conversation"]).collect();
    assert_eq!(json!(names), json!(["character 0", "character 1", "character 2", "character 3"]), "{listed}");
    // Whole: a load reads and checks all of it.
    let files = std::fs::read_dir(&disk).expect("the folder").map(|entry| entry.expect("an entry").path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "conversation")).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let loaded = call(
            &engine,
            Function::Conversation,
            &json!({"action": "load", "conversation": "other", "filename": file}),
        );
        assert!(loaded["n_tokens"].as_u64() > Some(5), "{loaded}");
    }
}

/// Each call is killed while the process is stopped, so before its end, and at some moment.
#[test]
fn saves_loads_and_decisions_survive_deaths_and_files_are_whole() {
    let file = folder("isolation").join(format!("saved-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let init = json!({"n_ctx": 512, "n_parallel": 1});
    let (fresh, engine) = (start_local(init.clone()), start(init));
    let request = json!({"prompt": "Once upon a time there was a girl.", "n_predict": 6, "seed": 5, "ignore_eos": true, "conversation": "a"});
    let asked =
        json!({"state": "Tom had a red kite.", "questions": {"kite": {"type": "noul", "instructions": "It is red."}}});
    let expected = complete(&fresh, Endpoint::Foredraft, &request)["content"].clone();
    let decide = |engine: &JsonEngine| call(engine, Function::Decide, &asked)["answers"].clone();
    let decided = decide(&fresh);
    let save = json!({"action": "save", "conversation": "a", "filename": file});
    let load = |to: &str| json!({"action": "load", "conversation": to, "filename": file});
    assert_eq!(call(&engine, Function::Complete, &request)["content"], expected);
    call(&engine, Function::Conversation, &save);
    for round in 0..24_u64 {
        assert_eq!(call(&engine, Function::Complete, &request)["content"], expected, "round {round}");
        let (process, is_stopped) = (pid(&engine), round % 2 == 0);
        if is_stopped {
            kill(process, "STOP");
        }
        let action = match round % 6 / 2 {
            0 => (Function::Conversation, save.clone()),
            1 => (Function::Conversation, load("b")),
            _ => (Function::Decide, asked.clone()),
        };
        let answer = thread::scope(|scope| {
            let waiting = scope.spawn(|| engine.call(action.0, Ok(action.1.to_string().as_bytes())));
            thread::sleep(Duration::from_micros(300 * round));
            kill(process, "KILL");
            waiting.join().expect("an answer")
        });
        let answer = answer.expect("an answer of the process");
        match action.0 {
            Function::Decide => assert_eq!(answer["answers"], decided),
            // The conversation died with the process.
            _ => assert!(answer["success"] == true || answer["code"] == "not_found", "round {round}: {answer}"),
        }
        // The file is whole, old or new.
        let name = format!("of round {round}");
        call(&fresh, Function::Conversation, &load(&name));
        let again = with(&request, json!({"conversation": name}));
        let answer = complete(&fresh, Endpoint::Foredraft, &again);
        assert_eq!(answer["content"], expected);
        assert!(answer["timings"]["cache_n"].as_u64() > Some(5), "{answer}");
    }
    assert!(engine.status()["isolation"]["n_restarts"].as_u64() >= Some(12));
    let _ = std::fs::remove_file(&file);
}
