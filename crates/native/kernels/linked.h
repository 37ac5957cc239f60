// Which files are part of this program because the linker has put their functions in the place of others': each says so when the program starts.
#pragma once

#include <atomic>
#include <cstdint>

namespace foredraft {

struct Linked {
    bool order = false, elementary = false, rounding = false;
};
inline Linked linked;

// The attention masks that order.cpp has filled.
inline std::atomic<uint64_t> n_masks { 0 };

}  // namespace foredraft
