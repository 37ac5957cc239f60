// The header that those of a level include: the instructions, the formats of blocks, and the table of a level's functions.
//
// Each header of a level compiles alone (scripts/lint.sh), with the level's name in FOREDRAFT_LEVEL and its instructions. All that they define is
// in an anonymous namespace, because the linker keeps one copy of what has one name, and the copies of levels differ.
#pragma once

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

// The formats of blocks, and tables of their numbers. The tables for SYCL are those for C++, but for IQ1's, which has 8 numbers in 32 bits.
#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#define GGML_COMMON_IMPL_SYCL
#include "ggml-common.h"

#if !defined(FOREDRAFT_LEVEL)
#error "FOREDRAFT_LEVEL: the level's name (build/kernels.rs)"
#endif
