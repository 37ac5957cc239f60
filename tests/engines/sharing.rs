//! Engines that load the same file with the same settings share the model in memory.

#[cfg(unix)]
use std::os::fd::AsRawFd as _;
#[cfg(unix)]
use std::path::Path;
use std::sync::Arc;

use foredraft::api::JsonEngine;
use foredraft::llama::Model;
use serde_json::{Value, json};

use crate::library::{config, exclusive, with_draft};

fn engine(config: &Value) -> JsonEngine {
    let engine = JsonEngine::new();
    engine.load(config.to_string().as_bytes()).unwrap_or_else(|error| panic!("{config}: {error}"));
    engine
}

fn models(engine: &JsonEngine) -> (Arc<Model>, Option<Arc<Model>>) {
    let models = engine.with_loaded(|loaded| Ok(loaded.models().clone())).expect("loaded");
    (models.target, models.draft)
}

#[test]
fn engines_share_a_model_loaded_with_the_same_settings() {
    let _guard = exclusive();
    let both = config("target", with_draft());
    let (one, other) = (engine(&both), engine(&both));
    let ((target, draft), (same_target, same_draft)) = (models(&one), models(&other));
    assert!(Arc::ptr_eq(&target, &same_target));
    let draft = draft.expect("a draft");
    assert!(Arc::ptr_eq(&draft, &same_draft.expect("a draft")));
    // The draft of one engine is the target of another; context settings do not matter.
    let small = engine(&config("draft", json!({"n_ctx": 64, "n_parallel": 2})));
    assert!(Arc::ptr_eq(&models(&small).0, &draft));
    #[cfg(unix)]
    {
        // Through another path to the same file.
        let link = Path::new(env!("CARGO_TARGET_TMPDIR")).join("linked.gguf");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(crate::host::root().join("models/stories-draft.gguf"), &link).expect("a link");
        assert!(Arc::ptr_eq(&models(&engine(&config("draft", json!({"model": link})))).0, &draft));
        // Through two descriptors of the same file.
        let by_descriptor = || {
            let file = std::fs::File::open(crate::host::root().join("models/stories-draft.gguf")).expect("a model");
            models(&engine(&config("draft", json!({"model": {"fd": file.as_raw_fd()}})))).0
        };
        let first = by_descriptor();
        assert!(Arc::ptr_eq(&first, &by_descriptor()));
    }
    // Model settings do matter.
    for more in [json!({"use_mmap": false}), json!({"override_kv": ["general.name=str:other"]})] {
        let changed = engine(&config("draft", more.clone()));
        assert!(!Arc::ptr_eq(&models(&changed).0, &draft), "{more}");
    }
    // The model is freed with its last engine.
    let weak = Arc::downgrade(&target);
    drop((target, same_target));
    drop(one);
    assert!(weak.strong_count() > 0, "the other engine still uses it");
    other.unload();
    assert_eq!(weak.strong_count(), 0);
}

/// Windows replaces no file that is mapped.
#[test]
#[cfg(unix)]
fn changed_file_is_loaded_as_a_different_model() {
    let _guard = exclusive();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("changing.gguf");
    let copy = |name: &str| {
        let beside = path.with_extension("tmp");
        std::fs::copy(crate::host::root().join(format!("models/stories-{name}.gguf")), &beside).expect("a copy");
        std::fs::rename(&beside, &path).expect("the file is replaced atomically");
    };
    copy("draft");
    let before = engine(&config("draft", json!({"model": path})));
    copy("target");
    let after = engine(&config("draft", json!({"model": path})));
    assert_ne!(models(&before).0.n_params(), models(&after).0.n_params());
}

/// Concurrent loads of one model wait for the first of them, and `deinit` ends that wait.
#[test]
fn concurrent_loads_of_one_model_share_it() {
    let _guard = exclusive();
    let config = config("target", json!({"warmup": false}));
    let systems: Vec<JsonEngine> = std::thread::scope(|scope| {
        let loading: Vec<_> = (0..6).map(|_| scope.spawn(|| engine(&config))).collect();
        loading.into_iter().map(|thread| thread.join().expect("loaded")).collect()
    });
    let first = models(&systems[0]).0;
    assert!(systems.iter().all(|engine| Arc::ptr_eq(&models(engine).0, &first)));
    drop(systems);
    assert_eq!(Arc::strong_count(&first), 1);
    for _ in 0..5 {
        let systems: Vec<JsonEngine> = (0..4).map(|_| JsonEngine::new()).collect();
        for engine in &systems {
            engine.load_async(config.to_string().as_bytes());
        }
        systems.iter().for_each(JsonEngine::unload);
        assert!(systems.iter().all(|engine| engine.status()["state"] == "uninitialized"));
    }
}
