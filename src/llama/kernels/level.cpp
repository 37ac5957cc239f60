// The kernels of one level of instructions. build.rs compiles this file once for each level, with the level's name as FOREDRAFT_LEVEL and its
// instructions.
//
// It instantiates no templates of the standard library: the linker keeps one copy of each, perhaps this file's, and other code would then run
// instructions that the processor lacks. tests/kernels.rs looks for such functions.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(FOREDRAFT_NEON)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include "table.h"

// The formats of blocks, and the tables of 4-bit numbers.
#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

namespace foredraft::FOREDRAFT_LEVEL {

namespace {

#include "vectors.h"

#include "layout.h"

#include "formats.h"

#include "pairs.h"

#include "quantized.h"

#include "floats.h"

#include "matmul.h"

#include "attention.h"

}  // namespace

extern const Kernels KERNELS;
const Kernels KERNELS
    = { multiplies, can_multiply, multiply_size, multiply, LANES, has_panels, make_panels, blocks_of_panels, can_attend, attention_size, attend };

}  // namespace foredraft::FOREDRAFT_LEVEL
