/* Calls the host's callbacks. An interpreter that is ending takes down a thread that enters it: CPython before 3.14 by
 * pthread_exit, which unwinds the thread. Rust ends the process when such an unwinding reaches its frames. So the thread
 * stays here instead, until the process is gone: it is the engine's, and the host is ending. */
#include <stdint.h>

#ifndef _WIN32
#include <pthread.h>
#include <unistd.h>

static void stay(void *unused) {
    (void) unused;
    for (;;) {
        pause();
    }
}

#define GUARDED(call) do { pthread_cleanup_push(stay, 0); call; pthread_cleanup_pop(0); } while (0)
#else
#define GUARDED(call) call
#endif

void foredraft_call_update(void (*cb)(uint64_t, void *), uint64_t id, void *user);
void foredraft_call_log(void (*cb)(int32_t, const char *, void *), int32_t level, const char *text, void *user);

void foredraft_call_update(void (*cb)(uint64_t, void *), uint64_t id, void *user) {
    GUARDED(cb(id, user));
}

void foredraft_call_log(void (*cb)(int32_t, const char *, void *), int32_t level, const char *text, void *user) {
    GUARDED(cb(level, text, user));
}
