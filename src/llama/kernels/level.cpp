// The kernels of one level of instructions. build/kernels.rs compiles this file once for each level, with the level's name as FOREDRAFT_LEVEL and its
// instructions.
//
// It instantiates no templates of the standard library: the linker keeps one copy of each, perhaps this file's, and other code would then run
// instructions that the processor lacks. tests/kernels.rs looks for such functions.
#include "attention.h"
#include "delta_net.h"

namespace foredraft::FOREDRAFT_LEVEL {

extern const Kernels KERNELS;
const Kernels KERNELS = { multiplies, can_multiply, multiply_size, multiply, LANES, has_panels, make_panels, blocks_of_panels, can_attend,
    attention_size, attend, can_delta_net, delta_net };

}  // namespace foredraft::FOREDRAFT_LEVEL
