// Catches C++ exceptions, and turns failed assertions of ggml into exceptions.
#pragma once

#include "ggml.h"
#include "gguf.h"

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>

namespace guard {

// The number of guarded calls on this thread's stack.
inline thread_local int depth = 0;

// A message of ggml without the folder of the source file that it begins with, which is that of the machine where the library was built.
inline const char * without_folder(const char * message) {
    const char * end = std::strstr(message, ": ");
    const char * name = message;
    for (const char * at = message; end != nullptr && at < end; ++at) {
        name = *at == '/' || *at == '\\' ? at + 1 : name;
    }
    return name;
}

// Inside a guarded call, a failed assertion becomes an exception. Elsewhere (on a compute thread) it ends the process.
inline void on_abort(const char * message) {
    if (depth > 0) {
        throw std::runtime_error(without_folder(message));
    }
    std::fprintf(stderr, "%s\n", message);
}

struct Inside {
    Inside() { static const ggml_abort_callback_t before = ggml_set_abort_callback(on_abort); (void) before; ++depth; }
    ~Inside() { --depth; }
};

// Makes what this thread needs to throw, and a block that a later registration of a destructor can have. The system's libraries make it at the
// first throw, and end the process if there is no memory, which is what most exceptions are about. Returns false without memory.
inline bool can_throw() noexcept {
    constexpr size_t NEEDED = 8 << 10;
    static thread_local bool is_ready = false;
    if (!is_ready) {
        void * volatile block = std::malloc(NEEDED);
        std::free(block);
        is_ready = block != nullptr && abi::__cxa_get_globals() != nullptr;
    }
    return is_ready;
}

// Calls `call`. If it throws, writes the message to `why` and returns `failed`.
template <class R, class F>
R guarded(R failed, char * why, size_t why_size, F call) noexcept {
    if (!can_throw()) {
        std::snprintf(why, why_size, "std::bad_alloc");
        return failed;
    }
    try {
        Inside inside;
        return call();
    } catch (const std::exception & e) {
        std::snprintf(why, why_size, "%s", e.what());
    } catch (...) {
        std::snprintf(why, why_size, "an exception that is not a std::exception");
    }
    return failed;
}

// Seeks in a stream. Returns false on failure.
bool seek_to(void * stream, uint64_t at);

// The head of a GGUF file: of the file at `path`, or, if `stream` is not NULL, of the part of it from byte `start`. NULL if it cannot be read.
using Head = std::unique_ptr<gguf_context, decltype(&gguf_free)>;
Head read_head(const char * path, void * stream, uint64_t start);

}  // namespace guard
