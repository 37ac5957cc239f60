// What both parts of the peer share: exceptions that end here, times, and quiet logs. Every function of the peer's C interface returns 0,
// or 1 after an exception, whose text peer_error() has. Times are taken here, so that calls from Rust cost nothing in them: of
// generation by the wall clock, of n-gram caches, which use one thread, the processor's.
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

// The text of this thread's last exception.
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

// The processor time of this thread where the system tells: a busy machine does not lengthen it.
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
