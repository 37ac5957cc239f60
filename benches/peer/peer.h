// Shared by the C++ files: catching exceptions, timing, silencing logs. Every function of the C interface returns 0, or 1 after an exception,
// whose message peer_error() returns. Times are taken in C++, so that they do not include calls from Rust: elapsed time for generation, CPU
// time for n-gram caches, which use one thread.
#pragma once

#include "common.h"
#include "log.h"

#include <chrono>
#include <cstdint>
#include <ctime>
#include <exception>
#include <stdexcept>
#include <string>

namespace peer {

// The message of this thread's last exception.
inline thread_local std::string last_error;

template <class F> int32_t guarded(F body) {
    try {
        body();
        return 0;
    } catch (const std::exception & error) {
        last_error = error.what();
    } catch (...) {
        last_error = "an exception of unknown type";
    }
    return 1;
}

inline void require(bool holds, const char * message) {
    if (!holds) throw std::runtime_error(message);
}

class Clock {
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  public:
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
};

// The CPU time of this thread if available. Other load does not increase it.
class Work {
    static double now() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
        timespec time{};
        if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
#endif
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    double start = now();

  public:
    double seconds() const { return now() - start; }
    static double total() { return now(); }
};

inline void silent(ggml_log_level, const char *, void *) {}

inline void be_silent() {
    common_log_pause(common_log_main());
    llama_log_set(silent, nullptr);
}

} // namespace peer

using namespace peer;
