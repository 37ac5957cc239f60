// Replaces ggml's barrier on Linux by one in which threads sleep after spinning (the linker replaces it: see build.rs).
//
// The threads of a graph wait for each other after each operation, hundreds of times per token. ggml's threads spin without limit. If two
// threads share a core, one wastes its time slice while the other could do the work that it waits for. This barrier spins for about the
// cost of a sleep and a wake-up, then sleeps until the last thread wakes it (futex).
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ggml.h"

// The types of the fields of `struct ggml_threadpool`. The struct is private to ggml-cpu.c; build.rs copies it from there.
typedef pthread_cond_t ggml_cond_t;
typedef pthread_mutex_t ggml_mutex_t;
#define GGML_CACHE_ALIGN __attribute__((aligned(64)))
#include "ggml_threadpool.h"

// These bits of `n_graph` are the number of the graph's threads.
#define THREADS_MASK 0xffffU

// The number of rounds of spinning before a thread sleeps. A round is a `pause`: about 40 cycles on AMD's processors, 140 on Intel's.
#define MAX_ROUNDS 2048
#define MIN_ROUNDS 16
// The increase of the rounds after a wait without sleep.
#define RECOVERY 8

// The current number of rounds. Each sleep halves it, because a wait for a thread without a core will happen again; short waits
// increase it. Shared by all pools, because it depends on the load of the machine.
static atomic_int rounds = MAX_ROUNDS;
// The number of threads that sleep or are about to.
static GGML_CACHE_ALIGN atomic_int n_sleeping = 0;
// For benchmarks: spin without limit, like ggml.
static atomic_bool always_spins = false;
// The number of waits with a sleep. It shows the engine whether its threads have cores.
static atomic_uint_least64_t n_sleeps = 0;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
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
    const int most = atomic_load_explicit(&rounds, memory_order_relaxed);
    for (int round = 0; spins || round < most; ++round) {
        if (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) != n_passed) {
            if (most < MAX_ROUNDS && !spins) {
                atomic_store_explicit(&rounds, most + RECOVERY < MAX_ROUNDS ? most + RECOVERY : MAX_ROUNDS, memory_order_relaxed);
            }
            atomic_thread_fence(memory_order_seq_cst);
            return;
        }
        relax();
    }
    atomic_store_explicit(&rounds, most / 2 > MIN_ROUNDS ? most / 2 : MIN_ROUNDS, memory_order_relaxed);
    atomic_fetch_add_explicit(&n_sleeps, 1, memory_order_relaxed);
    atomic_fetch_add(&n_sleeping, 1);
    while (atomic_load(&tp->n_barrier_passed) == n_passed) {
        syscall(SYS_futex, &tp->n_barrier_passed, FUTEX_WAIT_PRIVATE, n_passed, NULL, NULL, 0);
    }
    atomic_fetch_sub(&n_sleeping, 1);
}
