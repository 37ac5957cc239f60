//! The C functions of the contract, as far as this version serves them.
#![allow(dead_code)] // each test file uses a part

/// Functions of a JSON document that returns one.
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
/// Those that take NULL and the empty text for `{}`.
pub const COMMANDS: [&str; 4] = [
    "async_completion_poll",
    "async_completion_cancel",
    "speculative_completion_poll",
    "speculative_completion_cancel",
];
/// Those that need no model.
pub const WITHOUT_MODEL: [&str; 3] = ["lookup_create", "lookup_merge", "lookup_stats"];
/// All other functions.
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
