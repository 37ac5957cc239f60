//! The names of the documented C functions: those of the old server, and the `foredraft_*` functions.
#![allow(dead_code)] // each test binary uses only some of these

/// Functions of the old server that take one JSON document and return one.
pub const FUNCTIONS: [&str; 18] = [
    "tokenize",
    "detokenize",
    "apply_template",
    "get_embedding",
    "get_completion",
    "async_completion_init",
    "async_completion_poll",
    "async_completion_cancel",
    "speculative_completion",
    "speculative_completion_init",
    "speculative_completion_poll",
    "speculative_completion_cancel",
    "lookup_create",
    "lookup_merge",
    "lookup_stats",
    "lookup_cache",
    "session_save",
    "session_load",
];
/// The [`FUNCTIONS`] for which NULL and the empty string mean `{}`.
pub const COMMANDS: [&str; 4] = [
    "async_completion_poll",
    "async_completion_cancel",
    "speculative_completion_poll",
    "speculative_completion_cancel",
];
/// The [`FUNCTIONS`] that work without a model.
pub const WITHOUT_MODEL: [&str; 3] = ["lookup_create", "lookup_merge", "lookup_stats"];
/// All other functions of the old server.
pub const OTHERS: [&str; 8] = [
    "init",
    "init_async",
    "poll_system_status",
    "deinit",
    "free_string",
    "version",
    "set_log_callback",
    "set_update_callback",
];

/// `foredraft_*` functions that take an engine and a JSON document and return a document.
pub const ENGINE_FUNCTIONS: [&str; 20] = [
    "foredraft_complete",
    "foredraft_decide",
    "foredraft_prepare",
    "foredraft_submit",
    "foredraft_poll",
    "foredraft_cancel",
    "foredraft_tokenize",
    "foredraft_detokenize",
    "foredraft_model_info",
    "foredraft_apply_template",
    "foredraft_embed",
    "foredraft_rerank",
    "foredraft_session_save",
    "foredraft_session_load",
    "foredraft_session_erase",
    "foredraft_conversation",
    "foredraft_lookup_cache",
    "foredraft_lookup_create",
    "foredraft_lookup_merge",
    "foredraft_lookup_stats",
];
/// All other `foredraft_*` functions.
pub const ENGINE_OTHERS: [&str; 15] = [
    "foredraft_engine_new",
    "foredraft_engine_free",
    "foredraft_load",
    "foredraft_load_async",
    "foredraft_unload",
    "foredraft_pause",
    "foredraft_resume",
    "foredraft_status",
    "foredraft_set_log_callback",
    "foredraft_set_update_callback",
    "foredraft_set_logits_callback",
    "foredraft_devices",
    "foredraft_version",
    "foredraft_abi_version",
    "foredraft_string_free",
];
