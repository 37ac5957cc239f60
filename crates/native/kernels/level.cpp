// The kernels of one level of instructions. build/kernels.rs compiles this file once for each level, with the level's name as FOREDRAFT_LEVEL and its
// instructions.
//
// It instantiates no templates of the standard library: the linker keeps one copy of each, perhaps this file's, and other code would then run
// instructions that the processor lacks. tests/kernels.rs looks for such functions.
#include "attend.h"
#include "delta_net.h"
#include "smaller.h"

namespace foredraft::FOREDRAFT_LEVEL {

constexpr Kernels with(bool (*multiply)(const ggml_compute_params *, const ggml_tensor *)) {
    return { multiplies, can_multiply, multiply_size, multiply, LANES, has_panels, make_panels, make_blocks, blocks_of_panels, can_attend,
        attention_size, attend, can_delta_net, delta_net };
}

extern const Kernels KERNELS;
const Kernels KERNELS = with(multiply_without_amx);
#if defined(FOREDRAFT_AVX512_VNNI) && defined(FOREDRAFT_AMX)
extern const Kernels KERNELS_WITH_AMX;
const Kernels KERNELS_WITH_AMX = with(multiply_with_amx);
#endif

}  // namespace foredraft::FOREDRAFT_LEVEL
