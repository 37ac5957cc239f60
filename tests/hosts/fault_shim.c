/* A library to preload. While armed, it lets every call of pthread_create from the FAULT_AT-th on fail, or the FAULT_AT-th large allocation. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static volatile int armed;
static int calls;

void fault_arm(int on);
void fault_arm(int on) {
    armed = on;
    __atomic_store_n(&calls, 0, __ATOMIC_SEQ_CST);
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

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);

/* Large allocations are llama.cpp's, nearly all of them. */
static int lacks(size_t size) {
    return size >= 16384 && fails("memory", 0);
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
