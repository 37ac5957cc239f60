// Replaces ggml's barrier on Linux and Windows by one in which threads sleep after spinning (build/kernels.rs says how it is replaced).
//
// The threads of a graph wait for each other after each operation, hundreds of times per token. ggml's threads spin without limit. If two
// threads share a core, one wastes its time slice while the other could do the work that it waits for. This barrier spins for longer
// than a wake-up takes, then sleeps until the last thread wakes it (futex, WaitOnAddress).
//
// A thread also sleeps here while the host has paused the engine (pause.h). The functions that find a graph's engine are here, too.
#if defined(_WIN32)
// For scripts/gcc/winbase.h: the barrier of this file is not weak.
#define FOREDRAFT_OWN_BARRIER
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml-cpu-impl.h"
#include "graph.h"
#include "output_rows.h"

// `struct ggml_threadpool`, and what it is made of. It is private to ggml-cpu.c; build/kernels.rs copies the lines from there.
#include "ggml_threadpool.h"

// The same type as ggml's, which seam.h declares for C++.
__typeof__(ggml_barrier) foredraft_barrier;

// The limits of the time that a thread spins before it sleeps. The longest time exceeds a wake-up, also in a virtual machine. Otherwise each
// thread that wakes up late would make the next one sleep, and two threads with a core each would alternate sleeping.
#define LONGEST_SPIN_NS 200000
#define SHORTEST_SPIN_NS 2000
// When spins are shorter, one in this many waits spins for the longest time, to test whether that is enough again.
#define PROBE_EVERY 16
// The number of rounds of spinning between two reads of the clock. A round is a `pause`: about 40 cycles on AMD's processors, 140 on Intel's.
#define ROUNDS 32

// The current spinning time. Each sleep halves it, because a wait for a thread without a core will happen again; short waits restore it.
// Shared by all pools, because it depends on the load of the machine.
static atomic_int spin_ns = LONGEST_SPIN_NS;
// The number of waits with shorter spins.
static atomic_uint n_short_waits = 0;
// The number of threads that sleep or are about to.
static GGML_CACHE_ALIGN atomic_int n_sleeping = 0;
// The number of barriers of several threads. Only the last thread to arrive writes it.
static atomic_uint_least64_t n_barriers = 0;
// The number of waits with a sleep. It shows the engine whether its threads have cores.
static atomic_uint_least64_t n_sleeps = 0;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

#if defined(_WIN32)
static int64_t now_ns(void) {
    LARGE_INTEGER frequency, count;
    QueryPerformanceFrequency(&frequency);
    QueryPerformanceCounter(&count);
    const int64_t seconds = count.QuadPart / frequency.QuadPart, rest = count.QuadPart % frequency.QuadPart;
    return seconds * 1000000000 + rest * 1000000000 / frequency.QuadPart;
}

// Sleeps until a wake-up, unless the counter has another value than `n`. It may also return for no reason.
static void sleep_while(atomic_int * counter, int n) { WaitOnAddress((volatile void *) counter, &n, sizeof n, INFINITE); }

static void wake_all(atomic_int * counter) { WakeByAddressAll((void *) counter); }
#else
static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t) time.tv_sec * 1000000000 + time.tv_nsec;
}

// Sleeps until a wake-up, unless the counter has another value than `n`. It may also return for no reason.
static void sleep_while(atomic_int * counter, int n) { syscall(SYS_futex, counter, FUTEX_WAIT_PRIVATE, n, NULL, NULL, 0); }

static void wake_all(atomic_int * counter) { syscall(SYS_futex, counter, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }
#endif

// Spins until the barrier is passed, for at most `limit_ns`. Returns whether it was passed.
static bool spin(const atomic_int * n_barrier_passed, int n_passed, int64_t limit_ns) {
    int64_t end = 0;
    while (true) {
        for (int round = 0; round < ROUNDS; ++round) {
            if (atomic_load_explicit(n_barrier_passed, memory_order_relaxed) != n_passed) {
                return true;
            }
            relax();
        }
        const int64_t now = now_ns();
        if (end == 0) {
            end = now + limit_ns;
        } else if (now >= end) {
            return false;
        }
    }
}

// The interrupt of the engine whose graph the pool computes. NULL: none.
static const struct foredraft_interrupt * interrupt_of(const struct ggml_threadpool * pool) {
    const struct ggml_cplan * plan = pool->cplan;
    const bool has = plan != NULL && __atomic_load_n(&plan->abort_callback, __ATOMIC_ACQUIRE) == foredraft_interrupted;
    return has ? plan->abort_callback_data : NULL;
}

// The interrupt of the encoder's graphs that this thread computes. NULL: none.
static _Thread_local const struct foredraft_interrupt * of_encode = NULL;

// Declared in ../native.h, which includes llama.h.
void foredraft_set_encode_interrupt(const struct foredraft_interrupt * interrupt) { of_encode = interrupt; }

// Gives the plan of an encoder's graph its interrupt, for all threads of the pool. mtmd hides its backends, so their callback cannot be set.
static void complete_plan(const struct ggml_threadpool * pool) {
    struct ggml_cplan * plan = pool->cplan;
    if (of_encode != NULL && plan != NULL && plan->abort_callback == NULL) {
        plan->abort_callback_data = (void *) of_encode;
        __atomic_store_n(&plan->abort_callback, foredraft_interrupted, __ATOMIC_RELEASE);
    }
}

bool foredraft_interrupted(void * interrupt) {
    const struct foredraft_interrupt * of_engine = interrupt;
    return of_engine->stops(of_engine);
}

const uint32_t * foredraft_pauses_of(const struct ggml_threadpool * pool) {
    static const uint32_t never = 0;
    const struct foredraft_interrupt * interrupt = interrupt_of(pool);
    return interrupt == NULL ? &never : interrupt->n_pauses;
}

const struct foredraft_output_rows * foredraft_output_rows_of(const struct ggml_threadpool * pool) {
    const struct foredraft_interrupt * interrupt = interrupt_of(pool);
    return interrupt == NULL ? NULL : __atomic_load_n(&interrupt->output_rows, __ATOMIC_RELAXED);
}

bool foredraft_reads_smaller(const struct ggml_threadpool * pool) {
    const struct foredraft_interrupt * interrupt = interrupt_of(pool);
    return interrupt != NULL && __atomic_load_n(&interrupt->reads_smaller, __ATOMIC_RELAXED);
}

void foredraft_wait_while_paused(const struct ggml_threadpool * pool) {
    const struct foredraft_interrupt * interrupt = interrupt_of(pool);
    if (interrupt != NULL && __atomic_load_n(interrupt->n_pauses, __ATOMIC_RELAXED) != 0) {
        interrupt->wait(interrupt);
    }
}

static _Thread_local const struct foredraft_interrupt * of_load = NULL;

void foredraft_set_load_interrupt(const struct foredraft_interrupt * interrupt) { of_load = interrupt; }

const struct foredraft_interrupt * foredraft_load_interrupt(void) { return of_load; }

bool foredraft_plan_is_reference(const struct ggml_threadpool * pool) { return pool->cplan != NULL && pool->cplan->use_ref; }

const struct ggml_cgraph * foredraft_graph_of(struct ggml_threadpool * pool, int * run) {
    *run = atomic_load_explicit(&pool->n_graph, memory_order_relaxed);
    return pool->cgraph;
}

uint64_t foredraft_barriers(void) { return atomic_load_explicit(&n_barriers, memory_order_relaxed); }

uint64_t foredraft_barrier_sleeps(void) { return atomic_load_explicit(&n_sleeps, memory_order_relaxed); }

void foredraft_barrier(struct ggml_threadpool * tp) {
    complete_plan(tp);
    // A thread waits here only before it arrives: afterwards the graph may end at any time, and its plan with it. Arrived ones sleep soon.
    foredraft_wait_while_paused(tp);
    const int n_threads = atomic_load_explicit(&tp->n_graph, memory_order_relaxed) & GGML_THREADPOOL_N_THREADS_MASK;
    if (n_threads == 1) {
        return;
    }
    const int n_passed = atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed);
    if (atomic_fetch_add(&tp->n_barrier, 1) == n_threads - 1) {
        atomic_store_explicit(&tp->n_barrier, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&n_barriers, 1, memory_order_relaxed);
        atomic_fetch_add(&tp->n_barrier_passed, 1);
        // Either this sees a thread that is about to sleep, or that thread sees the new count and does not sleep: both are
        // sequentially consistent.
        if (atomic_load(&n_sleeping) > 0) {
            wake_all(&tp->n_barrier_passed);
        }
        return;
    }
    const int usual = atomic_load_explicit(&spin_ns, memory_order_relaxed);
    const bool is_probe = usual < LONGEST_SPIN_NS && atomic_fetch_add_explicit(&n_short_waits, 1, memory_order_relaxed) % PROBE_EVERY == 0;
    if (spin(&tp->n_barrier_passed, n_passed, is_probe ? LONGEST_SPIN_NS : usual)) {
        if (usual < LONGEST_SPIN_NS) {
            const int longer = is_probe ? LONGEST_SPIN_NS : usual + usual / 8;
            atomic_store_explicit(&spin_ns, longer < LONGEST_SPIN_NS ? longer : LONGEST_SPIN_NS, memory_order_relaxed);
        }
#if defined(__SANITIZE_THREAD__)
        // The thread sanitizer knows no fences. ggml does the same.
        atomic_fetch_add(&tp->n_barrier_passed, 0);
#else
        atomic_thread_fence(memory_order_seq_cst);
#endif
        return;
    }
    const int shorter = usual / 2 > SHORTEST_SPIN_NS ? usual / 2 : SHORTEST_SPIN_NS;
    atomic_store_explicit(&spin_ns, shorter, memory_order_relaxed);
    atomic_fetch_add_explicit(&n_sleeps, 1, memory_order_relaxed);
    atomic_fetch_add(&n_sleeping, 1);
    while (atomic_load(&tp->n_barrier_passed) == n_passed) {
        sleep_while(&tp->n_barrier_passed, n_passed);
    }
    atomic_fetch_sub(&n_sleeping, 1);
}

#if defined(_WIN32)
// ggml's own is weak there. Its name is the second name of ours, so that both have one address.
void ggml_barrier(struct ggml_threadpool * tp) __attribute__((alias("foredraft_barrier")));
#endif
