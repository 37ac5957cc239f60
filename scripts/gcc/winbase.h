/* Found before mingw-w64's own header of this name (CPATH, in .cargo/config.toml), for ggml on Windows. */
#include_next <winbase.h>

#ifndef FOREDRAFT_WINBASE_H
#define FOREDRAFT_WINBASE_H

/* Declarations that ggml needs and mingw-w64 lacks (seen in version 10). The values are those of Windows' own processthreadsapi.h. */
#ifndef THREAD_POWER_THROTTLING_CURRENT_VERSION
#define THREAD_POWER_THROTTLING_CURRENT_VERSION 1
#define THREAD_POWER_THROTTLING_EXECUTION_SPEED 0x1
#define THREAD_POWER_THROTTLING_VALID_FLAGS 0x1

typedef struct _THREAD_POWER_THROTTLING_STATE {
    ULONG Version;
    ULONG ControlMask;
    ULONG StateMask;
} THREAD_POWER_THROTTLING_STATE;
#endif

/* Lets crates/native/kernels/barrier.c replace ggml's barrier. ggml-cpu.c calls the barrier that it defines; unless the definition is weak, the
 * assembler resolves these calls before the linker sees them. */
#if !defined(__cplusplus) && !defined(FOREDRAFT_OWN_BARRIER)
struct ggml_threadpool;
void ggml_barrier(struct ggml_threadpool *) __attribute__((weak, noipa));
#endif

#endif
