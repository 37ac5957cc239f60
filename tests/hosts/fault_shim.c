/* A library to preload. While armed, it lets every call of pthread_create from the FAULT_AT-th on fail, or the FAULT_AT-th call of what FAULT
 * names: a large allocation ("memory"), read, write, rename, mmap, open, fread or fsync. With FAULT=all-memory, every allocation after SIGUSR2, with
 * FAULT=one-memory the FAULT_AT-th, with FAULT=large-memory the FAULT_AT-th large one. With FAULT=marker, a recv of the text FAULT_MARKER ends the process.
 * With FAULT=held, opening a model waits while the file FAULT_HOLD exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile int armed;
static int calls;

void fault_arm(int on);
void fault_arm(int on) {
    armed = on;
    __atomic_store_n(&calls, 0, __ATOMIC_SEQ_CST);
}

int fault_count(void);
int fault_count(void) {
    return __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
}

/* Whether the next call is the one that fails, or a later one if `sticky`. */
static int fails(const char *what, int sticky) {
    const char *fault = getenv("FAULT"), *at = getenv("FAULT_AT");
    int call;
    if (!armed || fault == NULL || at == NULL || strcmp(fault, what) != 0) {
        return 0;
    }
    call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    return sticky ? call >= atoi(at) : call == atoi(at);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **) &real = dlsym(RTLD_NEXT, "pthread_create");
    return fails("pthread_create", 1) ? EAGAIN : real(thread, attributes, start, argument);
}

static void arm_by_signal(int signal) {
    (void) signal;
    armed = 1;
}

__attribute__((constructor)) static void listen_for_signal(void) {
    const char *fault = getenv("FAULT");
    if (fault != NULL && strstr(fault, "-memory") != NULL) {
        signal(SIGUSR2, arm_by_signal);
    }
}

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);

/* Large allocations are llama.cpp's, nearly all of them. */
static int lacks(size_t size) {
    return (size >= 16384 && (fails("memory", 0) || fails("large-memory", 0))) || fails("all-memory", 1) || fails("one-memory", 0);
}

void *malloc(size_t size) {
    return lacks(size) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
    return lacks(n * size) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *memory, size_t size) {
    return lacks(size) ? NULL : __libc_realloc(memory, size);
}

/* Defines a function that fails with an error number and a result, or calls the real one. */
#define FAILING(kind, result, name, parameters, arguments, error, failure) \
    result name parameters { \
        static result (*real) parameters; \
        if (real == NULL) { \
            *(void **) &real = dlsym(RTLD_NEXT, #name); \
        } \
        if (fails(kind, 0)) { \
            errno = error; \
            return failure; \
        } \
        return real arguments; \
    }

FAILING("read", ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), EIO, -1)
FAILING("read", ssize_t, pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at), EIO, -1)
FAILING("write", ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), ENOSPC, -1)
FAILING("rename", int, rename, (const char *from, const char *to), (from, to), EACCES, -1)
FAILING("fsync", int, fsync, (int fd), (fd), EIO, -1)
FAILING("mmap", void *, mmap64, (void *at, size_t size, int access, int flags, int fd, off64_t from), (at, size, access, flags, fd, from), ENOMEM, MAP_FAILED)
FAILING("mmap", void *, mmap, (void *at, size_t size, int access, int flags, int fd, off_t from), (at, size, access, flags, fd, from), ENOMEM, MAP_FAILED)
FAILING("open", FILE *, fopen, (const char *path, const char *how), (path, how), EMFILE, NULL)
FAILING("open", FILE *, fopen64, (const char *path, const char *how), (path, how), EMFILE, NULL)
FAILING("fread", size_t, fread, (void *to, size_t size, size_t n, FILE *file), (to, size, n, file), EIO, 0)

#define FAULT_MARKER "this ends the process"

ssize_t recv(int socket, void *to, size_t size, int flags) {
    static ssize_t (*real)(int, void *, size_t, int);
    const char *fault = getenv("FAULT");
    ssize_t n;
    if (real == NULL) {
        *(void **) &real = dlsym(RTLD_NEXT, "recv");
    }
    n = real(socket, to, size, flags);
    if (n > 0 && fault != NULL && strcmp(fault, "marker") == 0 && memmem(to, (size_t) n, FAULT_MARKER, strlen(FAULT_MARKER)) != NULL) {
        abort();
    }
    return n;
}

/* A second file, FAULT_HOLD with ".reached", exists while a process waits here. */
static void hold(const char *path) {
    const char *fault = getenv("FAULT"), *file = getenv("FAULT_HOLD");
    char reached[4096];
    int ms;
    if (fault == NULL || file == NULL || strcmp(fault, "held") != 0 || strstr(path, ".gguf") == NULL || access(file, F_OK) != 0) {
        return;
    }
    snprintf(reached, sizeof reached, "%s.reached", file);
    close(creat(reached, 0600));
    /* At most a minute: a host that waits for this process would wait forever. */
    for (ms = 0; ms < 60000 && access(file, F_OK) == 0; ++ms) {
        usleep(1000);
    }
    unlink(reached);
}

int open64(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    va_list more;
    mode_t mode;
    if (real == NULL) {
        *(void **) &real = dlsym(RTLD_NEXT, "open64");
    }
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
    hold(path);
    if (fails("open", 0)) {
        errno = EMFILE;
        return -1;
    }
    return real(path, flags, mode);
}
