/* foredraft: llama.cpp in your process, with speculative decoding. JSON in, JSON out.
 *
 * Made by cbindgen from src/ffi; do not edit: `make header` makes it again.
 *
 * Engines      Every function takes the engine that it is about; NULL is the process's default engine, which the old
 *              names of rpcserver.h use. A handle that was freed or never made is an error (invalid_engine), not a crash.
 * Threads      Every function may be called from any thread, at any time, in any order, from several threads at once.
 *              Those that wait (foredraft_load, foredraft_complete, a poll with a timeout_ms, ...) hold no other caller
 *              up; loading, unloading and freeing wait for calls that are being answered.
 * Stack        A call needs up to 128 KiB of the calling thread's: most of it is for loading, for llama.cpp.
 * Strings in   NUL-terminated UTF-8 JSON, read before the call returns. Anything that is not what it should be, NULL
 *              where an object is needed, too, is answered with an error object, never with a crash.
 * Strings out  NUL-terminated UTF-8 JSON, never NULL, allocated with malloc and owned by the caller, who releases them
 *              with foredraft_string_free (or free). foredraft_version() alone returns a string that is not to be released.
 * Success      {"success": true, ...}
 * Failure      {"success": false, "status": 400, "error": "what is wrong", "code": "invalid_request"}
 *
 * A completion, printed while it is written:
 *
 *     foredraft_engine *engine = foredraft_engine_new();
 *     foredraft_load(engine, "{\"model\": \"model.gguf\", \"model_draft\": \"draft.gguf\"}");  -> FOREDRAFT_OK
 *     reply = foredraft_submit(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 200}");
 *     "id" of reply names the request: command = {"id": that, "timeout_ms": 1000}; foredraft_string_free(reply);
 *     do {
 *         reply = foredraft_poll(engine, command);
 *         print "content" of each of "completion_updates"; note "finished"; foredraft_string_free(reply);
 *     } while (!finished);
 *     foredraft_engine_free(engine);
 *
 * examples/ has it in C, C++, Python and Node.
 */

#ifndef FOREDRAFT_H
#define FOREDRAFT_H

#include <stddef.h>
#include <stdint.h>
#define FOREDRAFT_VERSION_MAJOR 0
#define FOREDRAFT_VERSION_MINOR 2
#define FOREDRAFT_VERSION_PATCH 0

/* Before every function. */
#ifndef FOREDRAFT_API
#if defined(_WIN32)
#define FOREDRAFT_API __declspec(dllimport)
#elif defined(__GNUC__)
#define FOREDRAFT_API __attribute__((visibility("default")))
#else
#define FOREDRAFT_API
#endif
#endif

/**
 * Counts changes of the C interface that a host must be compiled anew for. `foredraft_abi_version` returns the
 * library's own number: a host that loads the library at run time compares the two.
 */
#define FOREDRAFT_ABI_VERSION 1

/**
 * What `foredraft_load` returns. All but the first are also the `code` of error objects, where they are words:
 * `"model_error"` for `FOREDRAFT_MODEL_ERROR`, and so on. New ones may be added; numbers are never reused.
 */
typedef enum {
    /**
     * Success.
     */
    FOREDRAFT_OK = 0,
    /**
     * A model file cannot be loaded, or a decode failed.
     */
    FOREDRAFT_MODEL_ERROR = 1,
    /**
     * Not JSON, not UTF-8, or NULL where a document is needed.
     */
    FOREDRAFT_INVALID_JSON = 2,
    /**
     * A key or value is wrong.
     */
    FOREDRAFT_INVALID_REQUEST = 3,
    /**
     * A later load or unload took its place.
     */
    FOREDRAFT_CANCELLED = 4,
    /**
     * Called from inside a callback, where it would wait for itself.
     */
    FOREDRAFT_WOULD_DEADLOCK = 5,
    /**
     * A defect of the library.
     */
    FOREDRAFT_INTERNAL = 6,
    /**
     * No such request or file.
     */
    FOREDRAFT_NOT_FOUND = 7,
    /**
     * No model is loaded; or this process was forked from one that has a model loaded.
     */
    FOREDRAFT_NOT_INITIALIZED = 8,
    /**
     * A model is being loaded.
     */
    FOREDRAFT_LOADING = 9,
    /**
     * The prompt does not fit into the context and may not be shortened.
     */
    FOREDRAFT_CONTEXT_FULL = 10,
    /**
     * As many requests wait as `max_queue` allows.
     */
    FOREDRAFT_QUEUE_FULL = 11,
    /**
     * The engine handle was freed, or is none of this library's.
     */
    FOREDRAFT_INVALID_ENGINE = 12
} foredraft_code;

/**
 * `init_success` of `foredraft_status`.
 */
typedef enum {
    /**
     * The last load failed; `error` says why.
     */
    FOREDRAFT_INIT_FAILED = -1,
    /**
     * Nothing is loaded, or a load runs: `state` says which.
     */
    FOREDRAFT_INIT_NOT_READY = 0,
    /**
     * Requests are served.
     */
    FOREDRAFT_INIT_READY = 1
} foredraft_init_state;

/**
 * The `level` that a log callback gets.
 */
typedef enum {
    /**
     * Details for debugging.
     */
    FOREDRAFT_LOG_DEBUG = 1,
    /**
     * What happens.
     */
    FOREDRAFT_LOG_INFO = 2,
    /**
     * Something that a person should know.
     */
    FOREDRAFT_LOG_WARNING = 3,
    /**
     * Something failed.
     */
    FOREDRAFT_LOG_ERROR = 4
} foredraft_log_level;

/**
 * An engine. A handle points to nothing: it is a number of pointer type that the library looks up. NULL is the
 * process's default engine.
 */
typedef struct foredraft_engine foredraft_engine;

/**
 * Gets log lines: `text` is UTF-8 and valid during the call, `user` is the pointer that was set with the callback.
 */
typedef void (*foredraft_log_callback)(int32_t level, const char *text, void *user);

/**
 * Gets the number of a request that has a new update or has finished, and the pointer that was set with the callback.
 */
typedef void (*foredraft_update_callback)(uint64_t id, void *user);

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * Makes an engine without a model. Engines are independent of each other: models, threads, slots, n-gram caches,
 * callbacks. Engines that load the same file with the same settings share it in memory.
 *
 * The handle is a number, never NULL and never given out twice, that only this copy of the library knows. Release it with
 * `foredraft_engine_free`.
 */
FOREDRAFT_API foredraft_engine *foredraft_engine_new(void);

/**
 * Unloads the engine as `foredraft_unload` does, and releases it: every later use of the handle is `invalid_engine`. NULL
 * is ignored: the default engine stays.
 */
FOREDRAFT_API void foredraft_engine_free(foredraft_engine *engine);

/**
 * Loads the model or models and starts the engine. Waits until that is done.
 *
 * `config` is a JSON object of llama.cpp's parameter names (`{"model": "target.gguf", "model_draft": "draft.gguf",
 * "n_ctx": 4096, "n_gpu_layers": 99}`; docs/reference.md has all, and an unknown one is only a warning in the status),
 * or a command line in llama.cpp's own flags (`-m target.gguf -md draft.gguf -c 4096 -ngl 99`); it is not kept. When a
 * model is loaded already, or being loaded, that ends first, as by `foredraft_unload`.
 *
 * A model can also be in an open file or in memory (`{"model": {"fd": 5, "offset": 4096, "length": 98000000}}`), which must
 * stay there until the load has ended.
 *
 * Returns a `foredraft_code`: FOREDRAFT_OK, or why not; `foredraft_status` has the sentence that says why.
 */
FOREDRAFT_API int32_t foredraft_load(foredraft_engine *engine, const char *config);

/**
 * The same on another thread: returns at once, and `foredraft_status` tells how it goes. `config` may be freed as soon as
 * this returns.
 */
FOREDRAFT_API void foredraft_load_async(foredraft_engine *engine, const char *config);

/**
 * Cancels what runs, or aborts the load that runs, joins the threads, those of `foredraft_load_async` among them, and frees
 * the models. Harmless at any time and any number of times; a load may follow. From inside a callback it only begins to, and
 * returns at once; a later `foredraft_unload` waits for the rest. A host that exits without it is stopped in the same way, for
 * 5 seconds at most, and is not called back any more.
 */
FOREDRAFT_API void foredraft_unload(foredraft_engine *engine);

/**
 * What the engine is doing, as JSON: `init_success` (a `foredraft_init_state`), `state`, `progress`, `error`, the models,
 * slots, queue, the draft's compatibility, devices, and in `lookups` how far the lookup functions that run are (`function`,
 * `step`, `progress` 0..1). Never waits for a load or a decode. The caller owns the returned string.
 */
FOREDRAFT_API char *foredraft_status(foredraft_engine *engine);

/**
 * The library's version. A static string, not to be freed.
 */
FOREDRAFT_API const char *foredraft_version(void);

/**
 * FOREDRAFT_ABI_VERSION as it was when the library was built.
 */
FOREDRAFT_API uint32_t foredraft_abi_version(void);

/**
 * Releases a string that a function of this library returned; NULL is fine.
 */
FOREDRAFT_API void foredraft_string_free(char *s);

/**
 * Generates, and returns the final response; with `prompts` or `n_cmpl` the `results`, one for each text. Speculates unless
 * the request turns it off: with the default `verify`, and with `match`, the text is the same. Waits until the request has
 * finished. The caller owns the returned string, as with all functions below.
 */
FOREDRAFT_API char *foredraft_complete(foredraft_engine *engine, const char *request);

/**
 * Queues a request and returns its `id` and `prompt_stats`. A long prompt (over 4 KiB) is tokenized after the call has
 * returned; `prompt_stats` is `pending` then, and what is wrong with the prompt ends the request.
 */
FOREDRAFT_API char *foredraft_submit(foredraft_engine *engine, const char *request);

/**
 * Takes the updates of a request since the last poll: `{"id": 7, "timeout_ms": 0}`. `finished` is true once the last one
 * was handed out. Waits for an update up to `timeout_ms`; 0 never waits. `{"ids": [7, 8]}` polls several at once and waits for
 * the first update of any: `results` has the answer for each, an error object where there is no such request.
 */
FOREDRAFT_API char *foredraft_poll(foredraft_engine *engine, const char *command);

/**
 * Ends a request, `{"id": 7}`, or several, `{"ids": [7, 8]}`, within one decode; the last update of each says so.
 */
FOREDRAFT_API char *foredraft_cancel(foredraft_engine *engine, const char *command);

/**
 * The tokens of a text. Request: `text` (or `content`; token ids may be mixed in), `add_special` (true), `parse_special`
 * (true), `with_pieces` (false: then `tokens` has ids and pieces). Answer: `tokens` (pieces as strings), `length`, `ids`,
 * `pieces`.
 */
FOREDRAFT_API char *foredraft_tokenize(foredraft_engine *engine, const char *request);

/**
 * The text of tokens. Request: `tokens` (ids), `special` (true). Answer: `content`.
 */
FOREDRAFT_API char *foredraft_detokenize(foredraft_engine *engine, const char *request);

/**
 * Renders messages with the model's chat template. Request: `messages`, `add_generation_prompt` (true), `chat_template`,
 * `tools`, `chat_template_kwargs`. Answer: `prompt`.
 */
FOREDRAFT_API char *foredraft_apply_template(foredraft_engine *engine, const char *request);

/**
 * The embedding of a text; the engine must have been loaded with `"embedding": true`. Request: `content` (or `prompt`),
 * `embd_normalize` (2: Euclidean). Answer: `embedding`. Waits for the engine.
 */
FOREDRAFT_API char *foredraft_embed(foredraft_engine *engine, const char *request);

/**
 * Saves what a slot holds. Request: `id_slot` (0), `filename`. Answer: `n_saved`, `n_saved_draft` (tokens), `n_written`
 * (bytes). The file is replaced whole, or not at all.
 */
FOREDRAFT_API char *foredraft_session_save(foredraft_engine *engine, const char *request);

/**
 * Puts a saved session into a slot, in place of what it holds, so that the next request there evaluates only what is new.
 * Request: `id_slot` (0), `filename`. Answer: `n_restored`, `n_restored_draft` (tokens), `seed`, `seed_position`. A file that is
 * damaged, of another version or of another model is an error, and the slot stays as it was.
 */
FOREDRAFT_API char *foredraft_session_load(foredraft_engine *engine, const char *request);

/**
 * Works on an n-gram cache of the engine while it serves. Request: `action` (`load`, `save`, `merge`, `clear`, `stats`),
 * `cache` (`static`, `dynamic`), `filename` (for the first three). Answer: how much the cache knows then. Clearing the dynamic
 * cache makes the drafter `suffix` forget earlier answers as well.
 */
FOREDRAFT_API char *foredraft_lookup_cache(foredraft_engine *engine, const char *request);

/**
 * Makes an n-gram cache of a text, in llama.cpp's format. Request: `text`, `file` (a path) or `tokens` (ids); `output` (a
 * path); `ngram_min`, `ngram_max` (2, 2; 1 to 4). Answer: `n_tokens`, `n_ngrams`, `ngrams_by_size`, `n_continuations`,
 * `n_observations`, `size` (bytes of the file), `memory` (bytes that it takes when loaded), `t_ms`.
 *
 * `text` and `file` need a loaded model, to tokenize; `tokens` need none. Works on the calling thread and holds no other
 * call up; the status tells in `lookups` how far it is, and a load or unload of the engine stops it (`cancelled`). The file is
 * replaced whole or stays as it was.
 */
FOREDRAFT_API char *foredraft_lookup_create(foredraft_engine *engine, const char *request);

/**
 * Adds n-gram caches up. Request: `inputs` (paths), `output` (a path, also of an input). Answer: as for `lookup_create`,
 * with `n_inputs`. Needs no model.
 */
FOREDRAFT_API char *foredraft_lookup_merge(foredraft_engine *engine, const char *request);

/**
 * How well a text is drafted from n-gram caches, as llama.cpp's `llama-lookup-stats` finds out. Request: `text`, `file` or
 * `tokens`; `n_draft` (3), `n_ctx` (the model's, or 4096), `lookup_cache_static`, `lookup_cache_dynamic` (paths), `plot` (a path:
 * an SVG of the acceptance by n-gram size and position is written there). Answer: `n_predict`, `n_drafted`, `n_accept`,
 * `accept_rate`, `t_draft_flat_ms`, `t_draft_ms`, `us_per_token`, `tokens_per_second`; `by_level`; `by_size` (of n-grams of 1 to
 * 4) and `by_static`, each by position in the draft. Models, threads and files as with `lookup_create`.
 */
FOREDRAFT_API char *foredraft_lookup_stats(foredraft_engine *engine, const char *request);

/**
 * Takes the log lines of the library, llama.cpp's among them, instead of stderr; NULL restores stderr. One callback for all
 * engines. `level` is a `foredraft_log_level`; lines below `log_level` of the newest load that had one are dropped. `text` is
 * UTF-8 and valid during the call. Called from any thread. When this function returns, the former callback runs no more
 * (unless this is called from inside a callback).
 */
FOREDRAFT_API void foredraft_set_log_callback(foredraft_log_callback cb, void *user);

/**
 * Called from the engine's thread when the request `id` has a new update or has finished, so that an event loop can
 * sleep until then; NULL ends that. It may call every function of the library that does not wait for an engine: not
 * `foredraft_complete`, `_embed`, `_session_save`, `_session_load`, nor a poll with `timeout_ms`, which then answer
 * `would_deadlock`, and not `foredraft_load`, which returns FOREDRAFT_WOULD_DEADLOCK. When this function returns, the former
 * callback runs no more (unless this is called from inside a callback).
 */
FOREDRAFT_API void foredraft_set_update_callback(foredraft_engine *engine, foredraft_update_callback cb, void *user);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* FOREDRAFT_H */
