// ggml does not check what malloc, calloc and realloc return, and would write to NULL. Inside a guarded call they throw instead, as C++'s `new`
// does; the guard makes an error of that. Only in the shared library and in foredraft-engine: see `wrap_allocation` in build/link.rs of the library.
#include <cstddef>
#include <new>

extern "C" {

bool foredraft_is_guarded();

void * __real_malloc(std::size_t size);
void * __real_calloc(std::size_t n, std::size_t size);
void * __real_realloc(void * memory, std::size_t size);

static void * checked(void * memory, bool is_empty) {
    if (memory == nullptr && !is_empty && foredraft_is_guarded()) {
        throw std::bad_alloc();
    }
    return memory;
}

void * __wrap_malloc(std::size_t size) {
    return checked(__real_malloc(size), size == 0);
}

void * __wrap_calloc(std::size_t n, std::size_t size) {
    return checked(__real_calloc(n, size), n == 0 || size == 0);
}

void * __wrap_realloc(void * memory, std::size_t size) {
    return checked(__real_realloc(memory, size), size == 0);
}

}
