// ggml's barrier for Linux, with threads that sleep where they would spin (the linker puts it in place of ggml's: see build.rs).
//
// The threads of a graph wait for each other after each of its operations, hundreds of times a token. ggml's wait by spinning, without
// end: where two threads share a core, one burns its time slice while the other one could do the work that it waits for. This barrier spins
// for longer than a wake-up takes, then sleeps until the last thread wakes it (futex).
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ggml.h"

// What `struct ggml_threadpool` is made of. The struct itself is private to ggml-cpu.c: build.rs copies it from there.
typedef pthread_cond_t ggml_cond_t;
typedef pthread_mutex_t ggml_mutex_t;
#define GGML_CACHE_ALIGN __attribute__((aligned(64)))
#include "ggml_threadpool.h"

// ggml keeps the number of a graph's threads in these bits of `n_graph`.
#define THREADS_MASK 0xffffU

// For how long a thread spins before it sleeps. The longest time is more than a wake-up takes, also in a virtual machine: else each thread
// that wakes up late would make the next one sleep, and two threads with a core each would sleep in turn for ever.
#define LONGEST_SPIN_NS 200000
#define SHORTEST_SPIN_NS 2000
// Where spins are shorter, one wait in so many spins for the longest time, to see whether that is enough again.
#define PROBE_EVERY 16
// Rounds of spinning between two looks at the clock. A round is a `pause`: some 40 cycles on AMD's processors, 140 on Intel's.
#define ROUNDS 32

// How long the next spin is. Halved by each sleep, because a thread that waited for one without a core will do so again; restored by
// waits that were short. One for all pools: it describes the machine.
static atomic_int spin_ns = LONGEST_SPIN_NS;
// Waits with shorter spins.
static atomic_uint n_short_waits = 0;
// Threads that sleep, or are about to.
static GGML_CACHE_ALIGN atomic_int n_sleeping = 0;
// For benchmarks: wait as ggml does.
static atomic_bool always_spins = false;
// Waits that ended in a sleep, so that the engine sees whether its threads have cores.
static atomic_uint_least64_t n_sleeps = 0;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t) time.tv_sec * 1000000000 + time.tv_nsec;
}

// Spins until the barrier is passed, for at most so many nanoseconds, or without end where the limit is negative.
static bool spin(const atomic_int * n_barrier_passed, int n_passed, int64_t limit_ns) {
    int64_t end = 0;
    while (true) {
        for (int round = 0; round < ROUNDS; ++round) {
            if (atomic_load_explicit(n_barrier_passed, memory_order_relaxed) != n_passed) {
                return true;
            }
            relax();
        }
        if (limit_ns < 0) {
            continue;
        }
        const int64_t now = now_ns();
        if (end == 0) {
            end = now + limit_ns;
        } else if (now >= end) {
            return false;
        }
    }
}

void foredraft_barrier_always_spins(bool spins) { atomic_store(&always_spins, spins); }

uint64_t foredraft_barrier_sleeps(void) { return atomic_load_explicit(&n_sleeps, memory_order_relaxed); }

void foredraft_barrier(struct ggml_threadpool * tp) {
    const int n_threads = atomic_load_explicit(&tp->n_graph, memory_order_relaxed) & THREADS_MASK;
    if (n_threads == 1) {
        return;
    }
    const int n_passed = atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed);
    if (atomic_fetch_add(&tp->n_barrier, 1) == n_threads - 1) {
        atomic_store_explicit(&tp->n_barrier, 0, memory_order_relaxed);
        atomic_fetch_add(&tp->n_barrier_passed, 1);
        // Either this sees a thread that is about to sleep, or that thread sees the new count and does not sleep: both are
        // sequentially consistent.
        if (atomic_load(&n_sleeping) > 0) {
            syscall(SYS_futex, &tp->n_barrier_passed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        }
        return;
    }
    const bool spins = atomic_load_explicit(&always_spins, memory_order_relaxed);
    const int usual = atomic_load_explicit(&spin_ns, memory_order_relaxed);
    const bool is_probe = usual < LONGEST_SPIN_NS
        && atomic_fetch_add_explicit(&n_short_waits, 1, memory_order_relaxed) % PROBE_EVERY == 0;
    if (spin(&tp->n_barrier_passed, n_passed, spins ? -1 : is_probe ? LONGEST_SPIN_NS : usual)) {
        if (usual < LONGEST_SPIN_NS) {
            const int longer = is_probe ? LONGEST_SPIN_NS : usual + usual / 8;
            atomic_store_explicit(&spin_ns, longer < LONGEST_SPIN_NS ? longer : LONGEST_SPIN_NS, memory_order_relaxed);
        }
        atomic_thread_fence(memory_order_seq_cst);
        return;
    }
    const int shorter = usual / 2 > SHORTEST_SPIN_NS ? usual / 2 : SHORTEST_SPIN_NS;
    atomic_store_explicit(&spin_ns, shorter, memory_order_relaxed);
    atomic_fetch_add_explicit(&n_sleeps, 1, memory_order_relaxed);
    atomic_fetch_add(&n_sleeping, 1);
    while (atomic_load(&tp->n_barrier_passed) == n_passed) {
        syscall(SYS_futex, &tp->n_barrier_passed, FUTEX_WAIT_PRIVATE, n_passed, NULL, NULL, 0);
    }
    atomic_fetch_sub(&n_sleeping, 1);
}
