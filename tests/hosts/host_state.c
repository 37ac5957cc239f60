/* A host with another state than usual, which must change no completion and must be as before after each call.
 *   host_state MODEL floats    each rounding mode, flushed denormals, trapped exceptions: prints the completions
 *   host_state MODEL signals   signals that the host blocks: prints which threads of the library would get them
 *   host_state MODEL stops     a garbage collector's host: each real-time signal stops each thread that has called back
 *   host_state MODEL memory    the first calls of a thread that finds no memory: prints the answers
 *   host_state MODEL folder F  an isolated engine of a host that goes to folder F: saves there, is killed, and completes
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fenv.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "foredraft.h"

static char config[4096];
static const char REQUEST[] = "{\"prompt\": \"Once upon a time\", \"n_predict\": 24, \"seed\": 7, \"n_probs\": 1,"
                              " \"response_fields\": [\"content\", \"completion_probabilities\"]}";
static const char REQUEST_WITH_CALLBACK[] = "{\"prompt\": \"Once upon a time\", \"n_predict\": 24, \"seed\": 7, \"n_probs\": 1, \"logits_callback\": true,"
                                            " \"response_fields\": [\"content\", \"completion_probabilities\"]}";

static foredraft_engine *loaded(void) {
    foredraft_engine *engine = foredraft_engine_new();
    if (foredraft_load(engine, config) != 0) {
        puts(foredraft_status(engine));
        exit(1);
    }
    return engine;
}

static void print(const char *name, char *answer) {
    printf("%s %s\n", name, answer == NULL ? "NULL" : answer);
    foredraft_string_free(answer);
}

enum { NO_CHANGE, UPWARD, DOWNWARD, TOWARDZERO, FLUSHED, TRAPPED, N_CHANGES };

static void change(int to) {
    static const int MODES[] = { FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    fesetenv(FE_DFL_ENV);
    if (to <= TOWARDZERO) {
        fesetround(MODES[to]);
    } else if (to == TRAPPED) {
        feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
    }
#ifdef __x86_64__
    if (to == FLUSHED) {
        _mm_setcsr(_mm_getcsr() | 0x8040);
    }
#endif
}

static int has_changed(const fenv_t *before) {
    fenv_t now;
    fegetenv(&now);
#ifdef __x86_64__
    return now.__control_word != before->__control_word || now.__status_word != before->__status_word || now.__mxcsr != before->__mxcsr;
#else
    return memcmp(&now, before, sizeof now) != 0;
#endif
}

static void round_upwards(uint64_t id, void *unused) {
    (void) id, (void) unused;
    fesetround(FE_UPWARD);
}

static void round_row_upwards(uint64_t id, float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n_tokens, void *unused) {
    (void) id, (void) logits, (void) n_vocab, (void) tokens, (void) n_tokens, (void) unused;
    fesetround(FE_UPWARD);
}

static void floats(void) {
    int i;
    for (i = 0; i < N_CHANGES; ++i) {
        foredraft_engine *engine;
        fenv_t before;
        char *answer;
        int kept;
        change(i);
        fegetenv(&before);
        engine = loaded();
        answer = foredraft_complete(engine, REQUEST);
        foredraft_string_free(foredraft_status(engine));
        kept = !has_changed(&before);
        fesetenv(FE_DFL_ENV);
        print(kept ? "kept" : "changed", answer);
        change(i);
        answer = foredraft_complete(engine, REQUEST);
        kept = !has_changed(&before);
        fesetenv(FE_DFL_ENV);
        print(kept ? "kept" : "changed", answer);
        foredraft_engine_free(engine);
    }
    {
        foredraft_engine *engine = loaded();
        foredraft_set_update_callback(engine, round_upwards, NULL);
        print("kept", foredraft_complete(engine, REQUEST));
        foredraft_set_update_callback(engine, NULL, NULL);
        foredraft_set_logits_callback(engine, round_row_upwards, NULL);
        print("kept", foredraft_complete(engine, REQUEST_WITH_CALLBACK));
        foredraft_set_logits_callback(engine, NULL, NULL);
        foredraft_engine_free(engine);
    }
}

/* Reads the signals that a thread blocks. Returns 0 if the thread has ended. */
static int read_blocked(const char *task, unsigned long long *mask) {
    char path[300], line[300];
    FILE *file;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "SigBlk: %llx", mask);
    }
    fclose(file);
    return 1;
}

/* As `read_blocked`, of a thread that works: the C library blocks all signals, its own 32 too, until a new thread gets a core, and while
   one ends. */
static int blocked_by(const char *task, unsigned long long *mask) {
    int is_there, i;
    for (i = 0; (is_there = read_blocked(task, mask)) && (*mask >> 31 & 1) && i < 60000; ++i) {
        usleep(1000);
    }
    return is_there;
}

static void signals(void) {
    static const int HOSTS[] = { SIGUSR1, SIGALRM, SIGCHLD, SIGINT, SIGTERM, SIGPIPE, SIGXFSZ };
    static const int DELIVERED[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF, SIGPWR, SIGXCPU };
    foredraft_engine *engine = loaded();
    sigset_t mask;
    size_t i;
    DIR *tasks;
    struct dirent *task;
    int n = 0, signal;
    foredraft_string_free(foredraft_complete(engine, REQUEST));
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    for (i = 0; i < sizeof HOSTS / sizeof *HOSTS; ++i) {
        printf(sigismember(&mask, HOSTS[i]) ? "the host's thread blocks %d\n" : "", HOSTS[i]);
    }
    tasks = opendir("/proc/self/task");
    while ((task = readdir(tasks)) != NULL) {
        unsigned long long blocked = 0;
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid() || !blocked_by(task->d_name, &blocked)) {
            continue;
        }
        ++n;
        for (i = 0; i < sizeof HOSTS / sizeof *HOSTS; ++i) {
            printf(blocked >> (HOSTS[i] - 1) & 1 ? "" : "a thread gets %d\n", HOSTS[i]);
        }
        for (i = 0; i < sizeof DELIVERED / sizeof *DELIVERED; ++i) {
            printf(blocked >> (DELIVERED[i] - 1) & 1 ? "a thread blocks %d\n" : "", DELIVERED[i]);
        }
        for (signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) {
            printf(blocked >> (signal - 1) & 1 ? "a thread blocks %d\n" : "", signal);
        }
    }
    closedir(tasks);
    printf(n > 0 ? "" : "the library has no threads\n");
    /* Blocks the signal as a host does that waits for it by `sigwait`: it stays pending. */
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    kill(getpid(), SIGUSR1);
    foredraft_string_free(foredraft_complete(engine, REQUEST));
    sigpending(&mask);
    puts(sigismember(&mask, SIGUSR1) ? "pending" : "lost");
    foredraft_engine_free(engine);
}

/* The threads that have called back, as a runtime with a garbage collector keeps them. */
static pid_t known[256];
static int n_known, n_updates;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t stopped, go_on;
static volatile sig_atomic_t has_ended;

static void become_known(void) {
    static __thread int is_known;
    if (!is_known) {
        is_known = 1;
        pthread_mutex_lock(&known_lock);
        if (n_known < (int) (sizeof known / sizeof *known)) {
            known[n_known++] = gettid();
        }
        pthread_mutex_unlock(&known_lock);
    }
}

static void logged(int32_t level, const char *text, void *unused) {
    (void) level, (void) text, (void) unused;
    become_known();
}

static void updated(uint64_t id, void *unused) {
    (void) id, (void) unused;
    become_known();
    __atomic_add_fetch(&n_updates, 1, __ATOMIC_RELAXED);
}

static void stop(int signal) {
    (void) signal;
    sem_post(&stopped);
    while (sem_wait(&go_on) != 0) { }
}

static int is_alive(pid_t thread) { return syscall(SYS_tgkill, getpid(), thread, 0) == 0; }

/* Whether a thread stops by this signal; one that has ended needs no stop. */
static int stops(pid_t thread, int signal) {
    int tries;
    if (syscall(SYS_tgkill, getpid(), thread, signal) != 0) {
        return 1;
    }
    for (tries = 0; tries < 100; ++tries) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100 * 1000 * 1000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (sem_timedwait(&stopped, &until) == 0) {
            sem_post(&go_on);
            return 1;
        }
        if (!is_alive(thread)) {
            return 1;
        }
    }
    return 0;
}

/* Stops the known threads one by one, with each signal in turn, until the requests have ended. Prints a thread that does not stop. */
static void *collect(void *unused) {
    int signal = SIGRTMIN, n_stops = 0;
    (void) unused;
    while (!has_ended || n_stops <= SIGRTMAX - SIGRTMIN) {
        int i, n;
        pthread_mutex_lock(&known_lock);
        n = n_known;
        pthread_mutex_unlock(&known_lock);
        for (i = 0; i < n; ++i) {
            if (!stops(known[i], signal)) {
                printf("a thread that called back does not stop by SIGRTMIN+%d\n", signal - SIGRTMIN);
                fflush(stdout);
                _exit(0);
            }
            n_stops += is_alive(known[i]);
        }
        signal = signal < SIGRTMAX ? signal + 1 : SIGRTMIN;
        usleep(500);
    }
    return NULL;
}

/* Completions in this process and in one of their own, while a collector stops threads. */
static void collected(const char *model) {
    struct sigaction action;
    pthread_t collector;
    int signal, isolated;
    memset(&action, 0, sizeof action);
    action.sa_handler = stop;
    action.sa_flags = SA_RESTART;
    sigfillset(&action.sa_mask);
    sem_init(&stopped, 0, 0);
    sem_init(&go_on, 0, 0);
    for (signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) {
        sigaction(signal, &action, NULL);
    }
    foredraft_set_log_callback(logged, NULL);
    pthread_create(&collector, NULL, collect, NULL);
    for (isolated = 0; isolated < 2; ++isolated) {
        foredraft_engine *engine;
        int i;
        snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 2, \"n_ctx\": 256, \"log_level\": \"debug\", \"isolate\": %s}", model,
                 isolated ? "true" : "false");
        engine = loaded();
        foredraft_set_update_callback(engine, updated, NULL);
        for (i = 0; i < 10; ++i) {
            print("complete", foredraft_complete(engine, REQUEST));
        }
        foredraft_set_update_callback(engine, NULL, NULL);
        has_ended = isolated;
        if (isolated) {
            pthread_join(collector, NULL);
        }
        foredraft_engine_free(engine);
    }
    foredraft_set_log_callback(NULL, NULL);
    puts(n_updates > 0 && n_known > 2 ? "several threads called back" : "few threads called back");
}

static foredraft_engine *other;

/* Takes all memory, except for one block that the answers fit in, and calls. */
static void *without_memory(void *unused) {
    static void *blocks[1 << 16];
    char *answers[3];
    size_t n = 0, size = 1 << 20, small;
    struct rlimit before, limit;
    long pages = 0;
    int code;
    FILE *file;
    (void) unused;
    file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld", &pages) != 1) {
        exit(1);
    }
    fclose(file);
    getrlimit(RLIMIT_AS, &before);
    limit = before;
    limit.rlim_cur = (rlim_t) pages * (rlim_t) sysconf(_SC_PAGESIZE);
    setrlimit(RLIMIT_AS, &limit);
    while (size >= 16 && n < sizeof blocks / sizeof *blocks) {
        blocks[n] = malloc(size);
        if (blocks[n] == NULL) {
            size /= 2;
        } else {
            ++n;
        }
    }
    for (small = n - 1; small > 0 && malloc_usable_size(blocks[small]) < 4096; --small) { }
    free(blocks[small]);
    blocks[small] = NULL;
    code = foredraft_load(other, config);
    answers[0] = foredraft_status(other);
    answers[1] = foredraft_poll(NULL, "{\"id\": 1}");
    answers[2] = foredraft_complete(NULL, REQUEST);
    setrlimit(RLIMIT_AS, &before);
    while (n > 0) {
        free(blocks[--n]);
    }
    printf("load %d\n", code);
    print("status", answers[0]);
    print("poll", answers[1]);
    print("complete", answers[2]);
    return NULL;
}

static void memory(void) {
    pthread_t thread;
    int code;
    other = foredraft_engine_new();
    if (foredraft_load(NULL, config) != 0 || pthread_create(&thread, NULL, without_memory, NULL) != 0) {
        exit(1);
    }
    pthread_join(thread, NULL);
    code = foredraft_load(other, config);
    printf("later %d\n", code);
    print("complete", foredraft_complete(other, REQUEST));
    foredraft_engine_free(other);
    foredraft_unload(NULL);
}

static void folder(const char *model, const char *to) {
    const char *name = strrchr(model, '/');
    char from[4096], *status;
    const char *pid;
    foredraft_engine *engine;
    snprintf(from, sizeof from, "%.*s", (int) (name - model), model);
    if (chdir(from) != 0) {
        exit(1);
    }
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 1, \"n_ctx\": 256, \"log_level\": \"none\", \"isolate\": true}", name + 1);
    engine = loaded();
    print("complete", foredraft_complete(engine, REQUEST));
    if (chdir(to) != 0) {
        exit(1);
    }
    print("save", foredraft_session_save(engine, "{\"id_slot\": 0, \"filename\": \"saved\"}"));
    puts(access("saved", F_OK) == 0 ? "saved here" : "saved elsewhere");
    status = foredraft_status(engine);
    pid = strstr(status, "\"pid\":");
    if (pid != NULL && atoi(pid + 6) > 0) {
        kill(atoi(pid + 6), SIGKILL);
    }
    foredraft_string_free(status);
    print("complete", foredraft_complete(engine, REQUEST));
    print("restore", foredraft_session_load(engine, "{\"id_slot\": 0, \"filename\": \"saved\"}"));
    foredraft_engine_free(engine);
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) {
        return 2;
    }
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 2, \"n_threads_batch\": 2, \"n_ctx\": 256, \"log_level\": \"none\"}", argv[1]);
    if (strcmp(argv[2], "floats") == 0) {
        floats();
    } else if (strcmp(argv[2], "signals") == 0) {
        signals();
    } else if (strcmp(argv[2], "stops") == 0) {
        collected(argv[1]);
    } else if (argc == 4) {
        folder(argv[1], argv[3]);
    } else {
        memory();
    }
    return 0;
}
