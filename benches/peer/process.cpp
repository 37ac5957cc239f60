// Measurements of the process and of the calling thread.
#include "peer.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

extern "C" {

const char * peer_error() { return last_error.c_str(); }

// The size of malloc's allocations in this process, including Rust's, in bytes. 0: unknown.
uint64_t peer_heap() {
#if defined(__GLIBC__)
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

// The CPU time of this thread in seconds.
double peer_work() { return Work::total(); }

} // extern "C"
