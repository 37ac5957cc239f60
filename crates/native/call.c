/* Calls the host's callbacks so that an interpreter can end while its callback is set.
 *
 * CPython kills a thread that enters it during finalization; before version 3.14 with pthread_exit, which unwinds the thread. Rust
 * aborts the process if such an unwinding reaches its frames. So the thread is kept here until the process ends. And ctypes frees
 * its generated functions during finalization, so they are not called any more. */
#define _GNU_SOURCE
#include "call.h"

#ifndef _WIN32
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

static void stay(void *unused) {
    (void) unused;
    for (;;) {
        pause();
    }
}

#define GUARDED(call)                  \
    do {                               \
        pthread_cleanup_push(stay, 0); \
        call;                          \
        pthread_cleanup_pop(0);        \
    } while (0)

int32_t foredraft_is_made_at_run_time(const void *code) {
    Dl_info info;
    return dladdr(code, &info) == 0;
}

typedef int (*finalizing_function)(void);

/* The first is CPython's name since 3.13. Other hosts have neither function. */
static finalizing_function find_finalizing_function(void) {
    void *found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    return (finalizing_function) (found ? found : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
}

static int interpreter_is_finalizing(void) {
    finalizing_function is_finalizing = find_finalizing_function();
    return is_finalizing != NULL && is_finalizing();
}
#else
#define GUARDED(call) call

/* On Windows, all other threads have ended when a process ends. */
int32_t foredraft_is_made_at_run_time(const void *code) {
    (void) code;
    return 0;
}

static int interpreter_is_finalizing(void) {
    return 0;
}
#endif

void foredraft_call_update(foredraft_call_update_cb cb, int32_t made_at_run_time, uint64_t id, void *user) {
    if (!made_at_run_time || !interpreter_is_finalizing()) {
        GUARDED(cb(id, user));
    }
}

int32_t foredraft_call_logits(foredraft_call_logits_cb cb, int32_t made_at_run_time, uint64_t id, float *logits, int32_t n_vocab,
                              const int32_t *tokens, int32_t n_tokens, void *user) {
    if (made_at_run_time && interpreter_is_finalizing()) {
        return 0;
    }
    GUARDED(cb(id, logits, n_vocab, tokens, n_tokens, user));
    return 1;
}

void foredraft_call_log(foredraft_call_log_cb cb, int32_t made_at_run_time, int32_t level, const char *text, void *user) {
    if (!made_at_run_time || !interpreter_is_finalizing()) {
        GUARDED(cb(level, text, user));
    }
}
