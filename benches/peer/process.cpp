// What the benchmarks ask of the process and of this thread.
#include "peer.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

extern "C" {

const char * peer_error() { return last_error.c_str(); }

// Bytes that malloc has given out in this process (the Rust side's too); 0 where the C library does not tell.
uint64_t peer_heap() {
#if defined(__GLIBC__)
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

// Seconds of work by this thread since some moment.
double peer_work() { return Work::total(); }

} // extern "C"
