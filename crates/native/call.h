/* The functions of call.c that Rust calls. build/bindings.rs declares them for Rust. */
#ifndef FOREDRAFT_CALL_H
#define FOREDRAFT_CALL_H

#include <stdint.h>

typedef void (*foredraft_call_update_cb)(uint64_t id, void *user);
typedef void (*foredraft_call_logits_cb)(uint64_t id, float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n_tokens, void *user);
typedef void (*foredraft_call_log_cb)(int32_t level, const char *text, void *user);

/* Whether the function is in no file: then an interpreter has generated it. */
int32_t foredraft_is_made_at_run_time(const void *code);

/* Call a callback, but not that of an interpreter that is finalizing. If the host ends the thread inside the callback, they keep it from unwinding
 * into Rust. */
void foredraft_call_update(foredraft_call_update_cb cb, int32_t made_at_run_time, uint64_t id, void *user);
/* Returns whether it has called the callback. */
int32_t foredraft_call_logits(foredraft_call_logits_cb cb, int32_t made_at_run_time, uint64_t id, float *logits, int32_t n_vocab,
                              const int32_t *tokens, int32_t n_tokens, void *user);
void foredraft_call_log(foredraft_call_log_cb cb, int32_t made_at_run_time, int32_t level, const char *text, void *user);

#endif
