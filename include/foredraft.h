/* foredraft: llama.cpp in your process, with speculative decoding. JSON in, JSON out.
 *
 * Made by cbindgen from src/ffi; do not edit: `make header` makes it again.
 *
 * Threads      Every function may be called from any thread, at any time, in any order, from several threads at once.
 *              Those that wait (init, get_completion, a poll with a timeout_ms, ...) hold no other caller up; init and
 *              deinit wait for calls that are being answered.
 * Stack        A call needs up to 128 KiB of the calling thread's: most of it is init's, for llama.cpp.
 * Strings in   NUL-terminated UTF-8 JSON, read before the call returns. Anything that is not what it should be, NULL
 *              where an object is needed, too, is answered with an error object, never with a crash.
 * Strings out  NUL-terminated UTF-8 JSON, never NULL, allocated with malloc and owned by the caller, who releases them
 *              with free_string (or free). version() alone returns a string that is not to be released.
 * Success      {"success": true, ...}
 * Failure      {"success": false, "status": 400, "error": "what is wrong", "code": "invalid_request"}
 *
 * An answer, printed while it is written:
 *
 *     init("{\"model\": \"model.gguf\", \"model_draft\": \"draft.gguf\"}");  // 0: loaded
 *     reply = speculative_completion_init("{\"prompt\": \"Once upon a time\", \"n_predict\": 200}");
 *     // "id" of reply names the request: poll = {"id": that, "timeout_ms": 1000}; free_string(reply);
 *     do {
 *         reply = speculative_completion_poll(poll);
 *         // print "content" of each of "completion_updates"; note "finished"; free_string(reply);
 *     } while (!finished);
 *     deinit();
 *
 * examples/ has it in C, C++, Python and Node.
 */

#ifndef FOREDRAFT_H
#define FOREDRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Loads the model or models and starts the engine. Waits until that is done.
 *
 * `cmd` is a JSON object of llama.cpp's parameter names (`{"model": "target.gguf", "model_draft": "draft.gguf",
 * "n_ctx": 4096, "n_gpu_layers": 99}`; docs/reference.md has all, and an unknown one is only a warning in the status),
 * or a command line in llama.cpp's own flags (`-m target.gguf -md draft.gguf -c 4096 -ngl 99`); it is not kept. When a
 * model is loaded already, or being loaded, that ends first, as by `deinit`.
 *
 * Returns 0, or: 1 the model cannot be loaded; 2 not JSON, not UTF-8 or NULL; 3 a key or value is wrong; 4 a later
 * `init` or `deinit` took its place; 5 called from inside a callback, where it would wait for itself; 6 a defect of
 * the library; 7 a file that it names is not there (a model's or an adapter's: 1); 8 this process was forked from one
 * that has a model loaded. `poll_system_status` has the sentence that says why.
 */
int32_t init(const char *cmd);

/**
 * The same on another thread: returns at once, and `poll_system_status` tells how it goes. `cmd` may be freed as soon
 * as this returns.
 */
void init_async(const char *cmd);

/**
 * What the library is doing, as JSON: `init_success` (1 ready, 0 not yet, -1 failed), `state`, `progress`, `error`,
 * the models, slots, queue, the draft's compatibility, devices, and in `lookups` how far the lookup functions that run are
 * (`function`, `step`, `progress` 0..1). Never waits for a load or an evaluation.
 * The caller owns the returned string and releases it with `free_string` or `free`.
 */
const char *poll_system_status(void);

/**
 * Cancels what runs, or aborts the load that runs, joins the threads, those of `init_async` among them, and frees the
 * models. Harmless at any time and any number of times; `init` may follow. From inside a callback it only begins to,
 * and returns at once; a later `deinit` waits for the rest. A host that exits without it is stopped in the same way, for
 * 5 seconds at most, and is not called back any more.
 */
void deinit(void);

/**
 * Releases a string that a function of this library returned; NULL is fine.
 */
void free_string(const char *s);

/**
 * The library's version. A static string, not to be freed.
 */
const char *version(void);

/**
 * Takes the library's log lines, llama.cpp's among them, instead of stderr; NULL restores stderr. `level` is 1 debug,
 * 2 info, 3 warning, 4 error; lines below `log_level` of `init` are dropped. `text` is UTF-8 and valid during the call.
 * Called from any thread. When this function returns, the former callback runs no more (unless this is called from
 * inside a callback).
 */
void set_log_callback(void (*cb)(int32_t level, const char *text, void *user), void *user);

/**
 * Called from the engine's thread when the request `id` has a new update or has finished, so that an event loop can
 * sleep until then; NULL ends that. It may call every function of the library that does not wait for the engine: not
 * `get_completion`, `speculative_completion`, `get_embedding`, `session_save`, `session_load`, nor a poll with `timeout_ms`, which
 * then answer `would_deadlock`, and not `init`, which returns 5. When this function returns, the former callback runs no more
 * (unless this is called from inside a callback).
 */
void set_update_callback(void (*cb)(uint64_t id, void *user), void *user);

/**
 * The tokens of a text. Request: `text` (or `content`; token ids may be mixed in), `add_special` (true),
 * `parse_special` (true), `with_pieces` (false: then `tokens` has ids and pieces).
 * Answer: `tokens` (pieces as strings), `length`, `ids`, `pieces`. The caller owns the returned string.
 */
const char *tokenize(const char *req);

/**
 * The text of tokens. Request: `tokens` (ids), `special` (true). Answer: `content`. The caller owns the returned string.
 */
const char *detokenize(const char *req);

/**
 * Renders messages with the model's chat template. Request: `messages`, `add_generation_prompt` (true),
 * `chat_template`, `tools`, `chat_template_kwargs`. Answer: `prompt`. The caller owns the returned string.
 */
const char *apply_template(const char *req);

/**
 * The embedding of a text; `init` must have been called with `"embedding": true`. Request: `content` (or `prompt`),
 * `embd_normalize` (2: Euclidean). Answer: `embedding`. Waits for the engine. The caller owns the returned string.
 */
const char *get_embedding(const char *req);

/**
 * Generates, and returns the final response; with `prompts` or `n_cmpl` the `results`, one for each text. Waits until the
 * request has finished. The caller owns the returned string.
 */
const char *get_completion(const char *req);

/**
 * Queues a request and returns its `id` and `prompt_stats`. The caller owns the returned string.
 */
const char *async_completion_init(const char *req);

/**
 * Takes the updates of a request since the last poll: `{"id": 7, "timeout_ms": 0}`. `finished` is true once the last
 * one was handed out. Waits for an update up to `timeout_ms`; 0 never waits. NULL or `{}`: the newest request of
 * `async_completion_init`. The caller owns the returned string.
 */
const char *async_completion_poll(const char *cmd);

/**
 * Ends a request, `{"id": 7}`, within one evaluation; its last update says so. NULL or `{}`: the newest request of
 * `async_completion_init`. The caller owns the returned string.
 */
const char *async_completion_cancel(const char *cmd);

/**
 * As `get_completion`, with speculation unless the request turns it off. With the default `verify`, and with `match`, the
 * text is the same.
 */
const char *speculative_completion(const char *req);

/**
 * As `async_completion_init`, with speculation unless the request turns it off.
 */
const char *speculative_completion_init(const char *req);

/**
 * As `async_completion_poll`; with NULL or `{}` the newest request of `speculative_completion_init` is meant.
 */
const char *speculative_completion_poll(const char *cmd);

/**
 * As `async_completion_cancel`; with NULL or `{}` the newest request of `speculative_completion_init` is meant.
 */
const char *speculative_completion_cancel(const char *cmd);

/**
 * Makes an n-gram cache of a text, in llama.cpp's format. Request: `text`, `file` (a path) or `tokens` (ids); `output` (a
 * path); `ngram_min`, `ngram_max` (2, 2; 1 to 4). Answer: `n_tokens`, `n_ngrams`, `ngrams_by_size`, `n_continuations`,
 * `n_observations`, `size` (bytes of the file), `memory` (bytes that it takes when loaded), `t_ms`.
 *
 * `text` and `file` need a loaded model, to tokenize; `tokens` need none. Works on the calling thread and holds no other
 * call up; `poll_system_status` tells in `lookups` how far it is, and a `deinit` or `init` stops it (`cancelled`). The file
 * is replaced whole or stays as it was. The caller owns the returned string.
 */
const char *lookup_create(const char *req);

/**
 * Adds n-gram caches up. Request: `inputs` (paths), `output` (a path, also of an input). Answer: as `lookup_create`, with
 * `n_inputs`. Needs no model. The caller owns the returned string.
 */
const char *lookup_merge(const char *req);

/**
 * How well a text is drafted from n-gram caches, as llama.cpp's `llama-lookup-stats` finds out. Request: `text`, `file` or
 * `tokens`; `n_draft` (3), `n_ctx` (the model's, or 4096), `lookup_cache_static`, `lookup_cache_dynamic` (paths), `plot` (a path: an
 * SVG of the acceptance by n-gram size and position is written there). Answer: `n_predict`, `n_drafted`, `n_accept`,
 * `accept_rate`, `t_draft_flat_ms`, `t_draft_ms`, `us_per_token`, `tokens_per_second`; `by_level`; `by_size` (of n-grams of 1 to
 * 4) and `by_static`, each by position in the draft.
 *
 * Models, threads and files as with `lookup_create`. The caller owns the returned string.
 */
const char *lookup_stats(const char *req);

/**
 * Works on an n-gram cache of the engine while it serves. Request: `action` (`load`, `save`, `merge`, `clear`, `stats`), `cache`
 * (`static`, `dynamic`), `filename` (for the first three). Answer: how much the cache knows then. Clearing the dynamic cache
 * makes the drafter `suffix` forget earlier answers as well. The caller owns the returned string.
 */
const char *lookup_cache(const char *req);

/**
 * Saves what a slot holds. Request: `id_slot` (0), `filename`. Answer: `n_saved`, `n_saved_draft` (tokens), `n_written`
 * (bytes). The file is replaced whole, or not at all. The caller owns the returned string.
 */
const char *session_save(const char *req);

/**
 * Puts a saved session into a slot, in place of what it holds, so that the next request there evaluates only what is
 * new. Request: `id_slot` (0), `filename`. Answer: `n_restored`, `n_restored_draft` (tokens), `seed`, `seed_position`. A
 * file that is damaged, of another version or of another model is an error, and the slot stays as it was. The caller
 * owns the returned string.
 */
const char *session_load(const char *req);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREDRAFT_H */
