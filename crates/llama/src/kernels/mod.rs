//! Kernels: the functions that replace ggml's on CPUs.
//!
//! Exact speculation needs logits that do not depend on the batch, and speculation pays only if a few tokens take little longer than one. ggml
//! has neither on CPUs, so this module computes what takes the time of a forward pass itself: products of weights with tokens, and attention.
//! It also replaces the barrier at which the threads of a graph wait.
//!
//! | file | has |
//! | --- | --- |
//! | `seam.h`, `seam.cpp` | what is taken over from ggml, by including ggml's headers; passes operations to the chosen level |
//! | `linked.h` | which files the linker has put in the place of others' functions |
//! | `native.h` | the functions that Rust calls |
//! | `table.h`, `level.h`, `level.cpp` | the functions of a level, and what its headers include; compiled once for each level of instructions |
//! | `vectors.h`, `vectors_neon.h` | a level's vectors |
//! | `layout.h` | how blocks of weights lie in memory: as in a file, or in panels |
//! | `formats.h` | how each format of weights is unpacked |
//! | `pairs.h` | pairs of tokens, for AArch64's I8MM |
//! | `quantized.h`, `floats.h` | products of rows of weights, quantized and floats, with tokens |
//! | `attention.h` | attention: scores, weights and sums of a few rows |
//! | `matmul.h`, `attend.h` | the operations, divided among threads |
//! | `delta_net.h` | the gated delta net, the recurrence of hybrid models |
//! | `copies.h`, `copies.cpp` | copies of floats: states of recurrent layers, and inputs of short convolutions |
//! | `states.h`, `states.cpp`, `graph.h` | gated delta nets that read and write their states in the cache |
//! | `panels.cpp` | weights in panels: the type of buffers that ggml sees |
//! | `making.cpp` | makes panels, during a load or after it, while the model is in use |
//! | `smaller.h` | rounds the weights of a draft model to fewer bits, for its panels |
//! | `layouts.rs`, `layout_cost.cpp` | which layout each type of weights gets, by measuring both |
//! | `order.cpp` | the order in which attention sums a cache's cells |
//! | `barrier.c` | the barrier |
//! | `pause.h` | where the threads of a graph stop while the host pauses the engine |
//! | `output_rows.h` | which rows of the output weights a decode computes |
//! | `elementary.cpp` | the C library's `sinf`, `expf` and others, with the same bits everywhere |
//! | `rounding.cpp`, `rope.cpp`, `rounding.cmake` | make ggml's own operations on AArch64 round as on x86-64 |
//! | `attention_cost.cpp` | measures ggml's attention, where ours is not used |
//!
//! **From the file to a product**, for weights in Q4_K:
//!
//! 1. A load asks `layouts.rs`, which has measured both layouts, whether Q4_K gets panels (`foredraft_load_begin`). If so, llama.cpp gets `panels()` as
//!    the type of buffers of the tensor, because `offer_panels` has put it in ggml's list.
//! 2. llama.cpp reads the file and calls the buffer's `set_tensor` (`panels.cpp`), which calls the level's `make_panels` (`layout.h`): word by word, the
//!    rows of a panel lie beside each other.
//! 3. A graph reaches its MUL_MAT. ggml asks our type for traits, and their `compute_forward` (`seam.cpp`) passes it to the level's `multiply` (`matmul.h`).
//! 4. Each thread rounds its part of the tokens to whole numbers (`pack` in `quantized.h`), waits at the barrier, and takes chunks of rows.
//! 5. `unpack` (`quantized.h`, `formats.h`) makes registers of a block of `LANES` rows; each has four weights of every row. For every token of a tile,
//!    `dot_8` (`vectors.h`) multiplies them with four numbers of the token.
//! 6. The exact sum of a block is scaled and added to the result of row and token by one fma, block after block.
//!
//! **How a result is defined.** A kernel's result is defined without regard to its vectors: integers are exact in any order, and the sums
//! of floats have one order (`matmul.h` and `attention.h` say which). So a result has the same bits in any batch, with any number of
//! threads, in any cells of a cache, and at every level, and levels differ in speed alone.
//!
//! **How kernels get into ggml.** ggml's own hook calls products and attention, in every program. The linker replaces the rest, in the
//! shared library and in this package's own programs (`seam.h` lists both, [`Replacements`] says which are in place). On macOS, and with
//! MSVC, ggml's are used. Only `level.cpp` and ggml's own kernels are compiled for more than any processor of the target, and neither runs
//! before [`use_level`] has found the instructions that they need (on x86-64 AVX2, on AArch64 none).

pub(super) mod layouts;

pub use layouts::{LayoutCost, LayoutReason, SMALLER, WeightLayout};

#[cfg(any(own_kernels, own_barrier))]
use crate::backend::levels::level;
use foredraft_native as native;

/// Whether this library's products and attention are used in place of ggml's.
#[must_use]
pub fn are_used() -> bool {
    cfg!(own_kernels) && level().is_some_and(|level| level.index() >= 0)
}

/// The functions that the linker has replaced in this program. In a Rust program that depends on this crate it has replaced none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replacements {
    /// ggml's barrier, by one in which threads sleep.
    pub barrier: bool,
    /// llama.cpp's attention mask also has the order of a cache's cells, so attention does not depend on where llama.cpp has put them.
    pub cell_order: bool,
    /// The C library's functions of floats, and on AArch64 ggml's roundings, so that results have the same bits everywhere.
    pub math: bool,
}

/// Finds out what the linker has replaced.
#[must_use]
pub fn replacements() -> Replacements {
    #[cfg(own_kernels)]
    // SAFETY: both read values that are written when the program starts.
    let (cell_order, math) = unsafe { (native::foredraft_order_is_linked(), native::foredraft_math_is_linked()) };
    #[cfg(not(own_kernels))]
    let (cell_order, math) = (false, false);
    #[cfg(own_barrier)]
    // SAFETY: compares the addresses of functions.
    let barrier = unsafe { native::foredraft_barrier_is_linked() };
    #[cfg(not(own_barrier))]
    let barrier = false;
    Replacements { barrier, cell_order, math }
}

/// How often this library's kernels were called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelCalls {
    /// Attention, in graphs that this thread started.
    pub attentions: u64,
    /// Products, in graphs that this thread started.
    pub products: u64,
    /// The products of these with weights in panels.
    pub panel_products: u64,
    /// Gated delta nets, in graphs that this thread started.
    pub delta_nets: u64,
    /// The delta nets of these that read and wrote states in the cache.
    pub states_in_place: u64,
    /// Copies of floats, in graphs that this thread started.
    pub copies: u64,
    /// Waits at a barrier of several threads, of all threads.
    pub barriers: u64,
    /// Attention masks with the order of cells, of all threads.
    pub masks: u64,
}

/// Counts the calls of each replacement.
#[must_use]
pub fn calls() -> KernelCalls {
    #[cfg(own_kernels)]
    // SAFETY: reads counters of the calling thread, and an atomic one.
    let (attentions, products, panel_products, delta_nets, copies, states_in_place, masks) = unsafe {
        (
            native::foredraft_attentions(),
            native::foredraft_products(),
            native::foredraft_panel_products(),
            native::foredraft_delta_nets(),
            native::foredraft_copies(),
            native::foredraft_states_in_place(),
            native::foredraft_masks(),
        )
    };
    #[cfg(not(own_kernels))]
    let (attentions, products, panel_products, delta_nets, copies, states_in_place, masks) = (0, 0, 0, 0, 0, 0, 0);
    #[cfg(own_barrier)]
    // SAFETY: reads an atomic counter.
    let barriers = unsafe { native::foredraft_barriers() };
    #[cfg(not(own_barrier))]
    let barriers = 0;
    KernelCalls { attentions, products, panel_products, delta_nets, states_in_place, copies, barriers, masks }
}

/// Whether this library multiplies weights of a `ggml_type`.
pub(super) fn multiplies(format: u32) -> bool {
    #[cfg(own_kernels)]
    // SAFETY: compares a number with a table.
    let multiplies = are_used() && unsafe { native::foredraft_kernels_multiply(format.cast_signed()) };
    #[cfg(not(own_kernels))]
    let multiplies = format == u32::MAX;
    multiplies
}

/// The number of waits in which a thread of this process slept in the barrier.
#[must_use]
pub fn barrier_sleeps() -> u64 {
    #[cfg(own_barrier)]
    // SAFETY: reads an atomic counter.
    let sleeps = unsafe { native::foredraft_barrier_sleeps() };
    #[cfg(not(own_barrier))]
    let sleeps = 0;
    sleeps
}
