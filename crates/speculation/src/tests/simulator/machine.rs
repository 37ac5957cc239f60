//! The costs of decodes on several machines.

use std::ops::Range;
use std::time::Duration;

use super::slowdown;
use crate::{BatchSplit, Costs, DraftPasses, SequencePadding, sizes_to_measure};

/// A machine with a target and a draft model.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) name: &'static str,
    /// Milliseconds for one token of the target with an empty context.
    one: f64,
    /// v(n), interpolated and extrapolated linearly from these points.
    v: &'static [(usize, f64)],
    /// The additional cost of each thousand tokens of context, in `one`: for each slot of a physical batch, and for each token.
    of_depth: (f64, f64),
    /// The number of context tokens before each prompt.
    depth: usize,
    /// The cost of drafting a token for one slot with an empty context, in `one`; the additional fraction for each further slot; and the
    /// additional cost for each thousand tokens of context.
    draft: (f64, f64, f64),
    /// The passes that the draft model needs. One for a block costs [`BLOCK`] times what one for a token costs.
    pub(super) passes: DraftPasses,
    /// The additional cost of a physical batch of another size than the last one, in `one`.
    change: f64,
    pub(super) memory: Memory,
    /// v(n) while sizes are measured, where it differs: weights are still as in the file.
    measured: Option<&'static [(usize, f64)]>,
    /// The seconds for which the engine measures before its first request. At least one size is measured.
    measuring: f64,
    /// How many times as long all takes in a part of a run, and that part.
    slower: (f64, Range<f64>),
}

/// How the target's memory returns to the tokens before a rejected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// It removes them.
    Cells,
    /// It keeps the states after so many tokens, the most that it can remove.
    States(usize),
    /// It returns to a copy of the state before the step. Accepted tokens are decoded again.
    Copied,
}

/// The time for which an idle engine measures.
pub(super) const MEASURING: f64 = 1.6;

/// Measured with llama-bench: 750 M parameters, Q8_0, two cores with AVX-512 and AMX (`speculation.md`); larger sizes and depths with
/// the 830 M model.
const AMX: &[(usize, f64)] = &[
    (1, 1.0),
    (2, 1.14),
    (3, 1.29),
    (4, 1.46),
    (5, 2.08),
    (8, 2.26),
    (12, 3.08),
    (16, 4.03),
    (24, 5.4),
    (32, 6.4),
    (64, 11.5),
    (128, 22.0),
];
/// Four-bit weights: two tokens cost more than four.
const FOUR_BITS: &[(usize, f64)] = &[
    (1, 1.0),
    (2, 1.48),
    (3, 1.91),
    (4, 1.32),
    (5, 1.8),
    (8, 2.47),
    (12, 3.66),
    (16, 4.05),
    (32, 7.6),
    (64, 14.5),
    (128, 28.0),
];
/// Without AVX-512, each further token costs nearly half of the first.
const STEEP: &[(usize, f64)] = &[(1, 1.0), (2, 1.5), (4, 2.4), (8, 4.1), (16, 7.6), (64, 28.0), (128, 56.0)];
/// A GPU reads the weights once for many tokens.
const FLAT: &[(usize, f64)] = &[(1, 1.0), (8, 1.05), (16, 1.1), (32, 1.2), (64, 1.4), (128, 1.9)];

/// The 830 M model, Q8_0, two cores with AVX-512 VNNI and this library's kernels, which unpack weights once for 16 tokens. 1 to 16, 64 and 128
/// tokens are measured, and what depth costs in all (`benches/measure/depth.py`); 32 tokens and the parts of depth for slot and token are estimates.
const VNNI: &[(usize, f64)] = &[(1, 1.0), (4, 1.07), (8, 1.5), (16, 2.3), (32, 3.6), (64, 6.05), (128, 12.1)];

/// The cost of a pass for 16 tokens of a small model, relative to one for a single token.
const BLOCK: f64 = 1.8;

const VNNI_CORES: Machine = Machine {
    name: "vnni",
    one: 32.0,
    v: VNNI,
    of_depth: (0.12, 0.08),
    depth: 0,
    draft: (0.1, 0.07, 0.075),
    passes: DraftPasses::PerToken,
    change: 0.01,
    memory: Memory::Cells,
    measured: None,
    measuring: MEASURING,
    slower: (1.0, 0.0..0.0),
};

const AMX_CORES: Machine = Machine {
    name: "amx",
    one: 35.0,
    v: AMX,
    of_depth: (0.25, 0.12),
    depth: 0,
    draft: (0.095, 0.2, 0.12),
    passes: DraftPasses::PerToken,
    change: 0.01,
    memory: Memory::Cells,
    measured: None,
    measuring: MEASURING,
    slower: (1.0, 0.0..0.0),
};

pub(super) const MACHINES: &[Machine] = &[
    VNNI_CORES,
    Machine { name: "vnni-2048", depth: 2048, ..VNNI_CORES },
    AMX_CORES,
    Machine { name: "amx-2048", depth: 2048, ..AMX_CORES },
    Machine {
        name: "four-bits",
        one: 22.0,
        v: FOUR_BITS,
        of_depth: (0.3, 0.15),
        depth: 0,
        draft: (0.15, 0.2, 0.18),
        passes: DraftPasses::PerToken,
        change: 0.015,
        memory: Memory::Cells,
        measured: None,
        measuring: MEASURING,
        slower: (1.0, 0.0..0.0),
    },
    Machine {
        name: "steep",
        one: 60.0,
        v: STEEP,
        of_depth: (0.1, 0.08),
        depth: 0,
        draft: (0.12, 0.35, 0.05),
        passes: DraftPasses::PerToken,
        change: 0.005,
        memory: Memory::Cells,
        measured: None,
        measuring: MEASURING,
        slower: (1.0, 0.0..0.0),
    },
    Machine {
        name: "flat",
        one: 8.0,
        v: FLAT,
        of_depth: (0.02, 0.005),
        depth: 0,
        draft: (0.25, 0.02, 0.01),
        passes: DraftPasses::PerToken,
        change: 0.02,
        memory: Memory::Cells,
        measured: None,
        measuring: MEASURING,
        slower: (1.0, 0.0..0.0),
    },
];

/// Random weights in the shapes of Qwen3.5 0.8B and LFM2 700M. Here two tokens cost 1.3 to 1.7 times as much as one, and four 1.8 to 2.6 times.
const HYBRID: &[(usize, f64)] = &[(1, 1.0), (2, 1.3), (4, 1.8), (8, 3.0), (16, 5.0), (64, 18.0)];
const STEEP_HYBRID: &[(usize, f64)] = &[(1, 1.0), (2, 1.7), (4, 2.6), (8, 4.4), (16, 8.0), (64, 29.0)];

/// The same LFM2 with weights in panels, and what its load measured: one token, the first size, as slower than two. Sizes from 8 on are estimates.
const LFM2: &[(usize, f64)] = &[(1, 1.0), (2, 1.1), (4, 1.3), (8, 1.8), (16, 2.7), (64, 9.0)];
const LFM2_IN_LOAD: &[(usize, f64)] = &[(1, 1.5), (2, 1.15), (4, 1.4), (8, 2.1), (16, 4.0), (64, 14.0)];

/// The machines of hybrids: both slopes with both ways to return to an earlier state, and one whose load measured wrong costs.
pub(super) fn hybrids() -> Vec<Machine> {
    let hybrid = |name, v, memory| Machine { name, v, memory, ..VNNI_CORES };
    vec![
        hybrid("hybrid", HYBRID, Memory::States(8)),
        hybrid("hybrid, copied", HYBRID, Memory::Copied),
        hybrid("steep hybrid", STEEP_HYBRID, Memory::States(8)),
        hybrid("steep hybrid, copied", STEEP_HYBRID, Memory::Copied),
        Machine { measured: Some(LFM2_IN_LOAD), ..hybrid("misjudged hybrid", LFM2, Memory::States(8)) },
    ]
}

/// The pair of 1.5 B and 0.5 B parameters in Q4_K_M, two cores with AVX-512 VNNI and our kernels (`benches/measure/tasks.py` with `--lengths`), with
/// weights in panels. The costs with the file's layout, in which sizes are measured, are estimates from single products, and so is what depth costs.
const PAIR: &[(usize, f64)] =
    &[(1, 1.0), (2, 1.04), (4, 1.17), (5, 1.3), (8, 1.48), (9, 1.8), (12, 2.3), (16, 2.4), (64, 8.0), (128, 16.0)];
const PAIR_IN_FILE: &[(usize, f64)] = &[(1, 1.05), (2, 1.3), (4, 1.55), (8, 2.3), (16, 4.0), (64, 14.0)];

/// A pair whose draft model costs much.
pub(super) fn pairs() -> Vec<Machine> {
    let pair = Machine { name: "pair", one: 45.0, v: PAIR, draft: (0.31, 0.1, 0.075), ..VNNI_CORES };
    vec![pair.clone(), Machine { name: "pair, measured in the file's layout", measured: Some(PAIR_IN_FILE), ..pair }]
}

/// The same pair on two cores of Zen 3 with AVX2 and memory of 12 to 16 GB/s: the points for 1, 4 and 8 tokens and the draft's are from there, the
/// larger ones extrapolated. The memory's bandwidth falls by a third for the middle third of the tokens, as beside other programs.
const PAIR_ON_ZEN3: &[(usize, f64)] = &[(1, 1.0), (4, 1.89), (8, 3.143), (16, 5.7), (64, 21.0), (128, 42.0)];

/// The pair where several tokens cost much, and costs change after they were measured: in the middle of a run, or before it.
pub(super) fn pairs_on_busy_memory() -> Vec<Machine> {
    let pair = |name, part| {
        let draft = (0.157, 0.3, 0.05);
        Machine { name, one: 70.0, v: PAIR_ON_ZEN3, draft, slower: (1.5, part), ..VNNI_CORES }
    };
    vec![pair("pair on zen3, busy", 1.0 / 3.0..2.0 / 3.0), pair("pair on zen3, busy after the load", 0.0..1.0)]
}

impl Machine {
    /// How many times as long all takes after this part of a run's tokens.
    pub(super) fn slowdown(&self, part: f64) -> f64 {
        let (slower, range) = &self.slower;
        if range.contains(&part) { *slower } else { 1.0 }
    }

    /// The same machine with a model that drafts a block in one pass.
    pub(super) fn with_blocks(&self) -> Machine {
        Machine { passes: DraftPasses::PerBlock, ..self.clone() }
    }

    /// The same machine with an engine that measures for so many seconds before its first request.
    pub(super) fn measuring_for(&self, measuring: f64) -> Machine {
        Machine { measuring, ..self.clone() }
    }

    pub(super) fn split(&self) -> BatchSplit {
        BatchSplit::Rectangles { n_ubatch: 512, padding: SequencePadding::Never }
    }

    /// The longest draft that can be rejected.
    pub(super) fn most_removable(&self) -> usize {
        if let Memory::States(n) = self.memory { n } else { usize::MAX }
    }

    /// The context of a request with so many tokens.
    pub(super) fn depth(&self, n_tokens: usize) -> usize {
        self.depth + n_tokens
    }

    fn v(&self, n: usize) -> f64 {
        between(self.v, n)
    }

    /// The seconds for a batch with this number of tokens of each slot, at these depths.
    pub(super) fn target(&self, n_tokens: &[usize], depth: impl Fn(usize) -> usize) -> f64 {
        let (mut cost, mut sizes, mut before) = (0.0, 0, None);
        self.split().for_each(
            |slot| n_tokens[slot],
            n_tokens.len(),
            |n| {
                cost += self.v(n) + if before.is_some_and(|before| before != n) { self.change } else { 0.0 };
                (before, sizes) = (Some(n), sizes + 1);
            },
        );
        for (slot, n) in n_tokens.iter().enumerate().filter(|(_, n)| **n > 0) {
            let thousands = (self.depth + depth(slot)) as f64 / 1000.0;
            cost += thousands * (self.of_depth.0 + self.of_depth.1 * *n as f64);
        }
        cost * self.one / 1e3 * slowdown()
    }

    /// The seconds for a pass of drafting.
    pub(super) fn draft(&self, n_slots: usize) -> f64 {
        self.draft_at(n_slots, self.depth + 200)
    }

    fn draft_at(&self, n_slots: usize, depth: usize) -> f64 {
        let (one, slot, of_depth) = self.draft;
        let of_rows = one * (1.0 + slot * (n_slots as f64 - 1.0));
        let rows = if self.passes == DraftPasses::PerBlock { BLOCK } else { 1.0 };
        (rows * of_rows + of_depth * depth as f64 / 1000.0 * n_slots as f64) * self.one / 1e3 * slowdown()
    }

    /// The seconds for the tokens that the draft must catch up with.
    pub(super) fn draft_prompt(&self, n: usize) -> f64 {
        0.12 * n as f64 * self.draft.0 * self.one / 1e3 * slowdown()
    }

    /// Measures as the engine does before the first request, with an empty context.
    pub(super) fn measure(&self, n_slots: usize, costs: &mut Costs, noise: &mut Noise) {
        if self.passes == DraftPasses::PerBlock {
            costs.draft_blocks();
        }
        if self.measured.is_some() {
            costs.become_cheaper();
        }
        let mut passed = 0.0;
        for n in sizes_to_measure(n_slots) {
            // The faster of two.
            let time =
                between(self.measured.unwrap_or(self.v), n) * self.one / 1e3 * noise.factor().min(noise.factor());
            costs.record_target(n, Duration::from_secs_f64(time));
            passed += 2.0 * time;
            if passed > self.measuring {
                break;
            }
        }
        for n in [1, n_slots] {
            let time = self.draft_at(n, 0) * noise.factor().min(noise.factor());
            costs.record_drafts(|_| n, 1, 0, Duration::from_secs_f64(time));
        }
    }
}

/// v(n) of these points.
fn between(v: &[(usize, f64)], n: usize) -> f64 {
    let after = v.iter().position(|(size, _)| *size >= n).unwrap_or(v.len() - 1).max(1);
    let ((n0, v0), (n1, v1)) = (v[after - 1], v[after]);
    v0 + (v1 - v0) * (n as f64 - n0 as f64) / (n1 - n0) as f64
}

/// Measurement noise: a few percent, and occasionally much more; or none.
pub(super) struct Noise(Option<u64>);

impl Noise {
    pub(super) const NONE: Noise = Noise(None);

    pub(super) fn new(seed: u64) -> Noise {
        Noise(Some(seed))
    }

    pub(super) fn factor(&mut self) -> f64 {
        let Some(state) = &mut self.0 else { return 1.0 };
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let chance = (*state >> 11) as f64 / (1u64 << 53) as f64;
        if chance > 0.99 { 1.5 } else { 0.97 + 0.06 * chance }
    }
}
