/* Found before GCC's own header of this name (CPATH, in .cargo/config.toml), and puts right what that gets wrong (seen in GCC 12.2).
 *
 * GCC tells its optimizer that `ldtilecfg` reads the first 8 bytes of a tile configuration, so what is written to the
 * others is removed as dead, and `tileloadd` that it reads nothing. So ggml's AMX kernels run with tiles of no size: an
 * illegal instruction in the first batch of two tokens. llama.cpp's pull request 26954 meets the same. */
#include_next <amxtileintrin.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)

#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)))

/* Keeps the compiler's writes to memory before the load of a tile from it. */
#undef _tile_loadd
#define _tile_loadd(tile, base, stride)              \
    do {                                             \
        __asm__ volatile("" ::: "memory");           \
        _tile_loadd_internal(tile, base, stride);    \
    } while (0)

#endif
