/* Calls the host's callbacks, so that an interpreter may end while its callback is set.
 *
 * CPython takes down a thread that enters it while it is finalizing: before version 3.14 by pthread_exit, which unwinds the
 * thread. Rust ends the process when such an unwinding reaches its frames, so the thread stays here, until the process is
 * gone. And what ctypes made to be called is freed in the course of that, so it is not called any more. */
#define _GNU_SOURCE
#include <stdint.h>

typedef void (*update_callback)(uint64_t id, void *user);
typedef void (*log_callback)(int32_t level, const char *text, void *user);

int32_t foredraft_is_made_at_run_time(const void *code);
void foredraft_call_update(update_callback cb, int32_t made_at_run_time, uint64_t id, void *user);
void foredraft_call_log(log_callback cb, int32_t made_at_run_time, int32_t level, const char *text, void *user);

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

/* Whether no file contains it: an interpreter has made it, not a compiler. */
int32_t foredraft_is_made_at_run_time(const void *code) {
    Dl_info info;
    return dladdr(code, &info) == 0;
}

typedef int (*question)(void);

/* The first is CPython's name since 3.13. Other hosts have neither. */
static question find_question(void) {
    void *found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    return (question) (found ? found : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
}

static int interpreter_ends(void) {
    question is_finalizing = find_question();
    return is_finalizing != NULL && is_finalizing();
}
#else
#define GUARDED(call) call

/* There all threads but one have ended when a process ends. */
int32_t foredraft_is_made_at_run_time(const void *code) {
    (void) code;
    return 0;
}

static int interpreter_ends(void) {
    return 0;
}
#endif

void foredraft_call_update(update_callback cb, int32_t made_at_run_time, uint64_t id, void *user) {
    if (!made_at_run_time || !interpreter_ends()) {
        GUARDED(cb(id, user));
    }
}

void foredraft_call_log(log_callback cb, int32_t made_at_run_time, int32_t level, const char *text, void *user) {
    if (!made_at_run_time || !interpreter_ends()) {
        GUARDED(cb(level, text, user));
    }
}
