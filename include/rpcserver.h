/* The old JSON-RPC server's header, under its old name: a host that includes it compiles unchanged.
 *
 * Made by cbindgen from src/ffi; do not edit: `make header` makes it again.
 *
 * The old server's strings were freed with free(), which still works. What it did not have (speculative_*, detokenize, ...)
 * is declared in the same style. All of these are calls on the default engine of foredraft.h, whose functions new code uses:
 * they carry a prefix, take any number of engines, and are strict where these tolerate what the old server tolerated.
 * A library built without the cargo feature `rpcserver` has none of them. docs/migration.md compares the two.
 */

#ifndef RPCSERVER_H
#define RPCSERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "foredraft.h"

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * As `foredraft_load` of the default engine.
 *
 * Returns 0, or a `foredraft_code`.
 */
FOREDRAFT_API int32_t init(const char *cmd);

/**
 * As `foredraft_load_async` of the default engine.
 */
FOREDRAFT_API void init_async(const char *cmd);

/**
 * As `foredraft_status` of the default engine. `model`, `model_alias` and `model_draft` are strings at any time.
 */
FOREDRAFT_API const char *poll_system_status(void);

/**
 * As `foredraft_unload` of the default engine.
 */
FOREDRAFT_API void deinit(void);

/**
 * Releases a string that a function of this library returned; NULL is fine. `free` does, too.
 */
FOREDRAFT_API void free_string(const char *s);

/**
 * As `foredraft_version`.
 */
FOREDRAFT_API const char *version(void);

/**
 * As `foredraft_set_log_callback`.
 */
FOREDRAFT_API void set_log_callback(foredraft_log_callback cb, void *user);

/**
 * As `foredraft_set_update_callback` of the default engine.
 */
FOREDRAFT_API void set_update_callback(foredraft_update_callback cb, void *user);

/**
 * As `foredraft_tokenize` of the default engine.
 */
FOREDRAFT_API const char *tokenize(const char *req);

/**
 * As `foredraft_detokenize` of the default engine.
 */
FOREDRAFT_API const char *detokenize(const char *req);

/**
 * As `foredraft_apply_template` of the default engine.
 */
FOREDRAFT_API const char *apply_template(const char *req);

/**
 * As `foredraft_embed` of the default engine.
 */
FOREDRAFT_API const char *get_embedding(const char *req);

/**
 * Generates, and returns the final response. No speculation unless the request asks for it.
 */
FOREDRAFT_API const char *get_completion(const char *req);

/**
 * Queues a request and returns its `id` and `prompt_stats`. No speculation unless the request asks for it.
 */
FOREDRAFT_API const char *async_completion_init(const char *req);

/**
 * Takes the updates of a request since the last poll, as `foredraft_poll`. NULL, `""`, `{}` and what is no JSON object mean the
 * newest request of `async_completion_init`; when there is none, `completion_updates` is empty and `state` says what the
 * library is doing.
 */
FOREDRAFT_API const char *async_completion_poll(const char *cmd);

/**
 * Ends a request, as `foredraft_cancel`. Without a number it is the newest one of `async_completion_init`; `cancelled` is false
 * when there is none or it has ended.
 */
FOREDRAFT_API const char *async_completion_cancel(const char *cmd);

/**
 * As `get_completion`, with speculation unless the request turns it off.
 */
FOREDRAFT_API const char *speculative_completion(const char *req);

/**
 * As `async_completion_init`, with speculation unless the request turns it off.
 */
FOREDRAFT_API const char *speculative_completion_init(const char *req);

/**
 * As `async_completion_poll`; without a number it is the newest request of `speculative_completion_init`.
 */
FOREDRAFT_API const char *speculative_completion_poll(const char *cmd);

/**
 * As `async_completion_cancel`; without a number it is the newest request of `speculative_completion_init`.
 */
FOREDRAFT_API const char *speculative_completion_cancel(const char *cmd);

/**
 * As `foredraft_lookup_create` of the default engine.
 */
FOREDRAFT_API const char *lookup_create(const char *req);

/**
 * As `foredraft_lookup_merge` of the default engine.
 */
FOREDRAFT_API const char *lookup_merge(const char *req);

/**
 * As `foredraft_lookup_stats` of the default engine.
 */
FOREDRAFT_API const char *lookup_stats(const char *req);

/**
 * As `foredraft_lookup_cache` of the default engine.
 */
FOREDRAFT_API const char *lookup_cache(const char *req);

/**
 * As `foredraft_session_save` of the default engine.
 */
FOREDRAFT_API const char *session_save(const char *req);

/**
 * As `foredraft_session_load` of the default engine.
 */
FOREDRAFT_API const char *session_load(const char *req);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* RPCSERVER_H */
