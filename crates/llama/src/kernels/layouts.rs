//! Which layout weights get when a model is loaded: that of the file, in its mapped pages, or panels, which are copied; and whether panels are
//! prefetched.
//!
//! All give the same bits. Panels are faster for several tokens on every processor so far, with prefetches. For one token both depend on what
//! the processor foresees of its reads, which differs even between virtual machines with the same processor. So each type of weights is
//! measured on the machine that runs, when the first model that has much of it is loaded, and what is chosen is kept for the process.

use std::collections::HashMap;
#[cfg(own_kernels)]
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::time::Duration;
#[cfg(own_kernels)]
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

#[cfg(own_kernels)]
use crate::backend::levels::level;
use crate::guard;
#[cfg(own_kernels)]
use foredraft_host::forks;
#[cfg(own_kernels)]
use foredraft_native as native;

/// Weights of a type that are fewer bytes fit into caches, where panels are always faster.
const FITS_CACHES: u64 = 16 << 20;
/// The file's layout is chosen where one token takes less than this part of the time that panels take: several tokens take longer with it.
/// Prefetches of panels are left out where one token takes less than this part of the time that it takes with them.
const MARGIN: f64 = 0.9;
/// A choice is close where one of the two times would change it by this part of itself. It is measured again, at most so many times in all.
const CLOSE: f64 = 0.1;
const MOST_MEASUREMENTS: usize = 4;
/// The type of the panels of weights that become smaller, as `smaller.h` makes them.
pub const SMALLER: &str = "q4_0";
const SMALLER_FORMAT: u32 = sys::GGML_TYPE_Q4_0;
/// Weights become smaller if that takes at most this part of their bits: at least 5.5 bits become 4.5. A tenth less costs more accepted tokens than it
/// saves time: of a draft model in Q4_1 (5 bits) with an output in Q8_0, 34 % of the tokens are accepted if both are smaller, 45 % if only the
/// output is, and 47 % as in the file.
const MOST_OF_BITS: f64 = 0.85;
/// The width of rows whose sizes are compared: a multiple of every type's blocks.
const WIDTH: i64 = 4096;
/// Panels of a model may take this part of the available memory.
const MOST_OF_MEMORY: f64 = 0.9;

/// The layout of the weights of a type, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightLayout {
    /// ggml's name of the type.
    pub format: String,
    /// Whether they are in panels, not as in the file. Embeddings of which only rows are read stay in the file in any case.
    pub in_panels: bool,
    /// Whether their panels have the type [`SMALLER`], where these are made after the load.
    pub becomes_smaller: bool,
    /// How it was chosen.
    pub chosen_by: LayoutReason,
    /// The times of the layouts, if they were measured.
    pub cost: Option<LayoutCost>,
}

foredraft_base::words! {
    /// How the layout of a type of weights was chosen.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LayoutReason {
        /// The load's `repack` or `use_mlock`.
        Load => "load",
        /// A measurement found it faster.
        Measurement => "measurement",
        /// Panels would not fit into the available memory.
        Memory => "memory",
        /// The weights fit into caches, or it could not be measured.
        Default => "default",
    }
}

/// Microseconds of a product of weights, which no cache has, with one token on one core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayoutCost {
    /// The time with weights in panels, with prefetches.
    pub prefetched: f64,
    /// The time with weights in panels, without prefetches.
    pub foreseen: f64,
    /// The time with weights as in the file.
    pub file: f64,
}

impl LayoutCost {
    /// Whether panels are prefetched for one token, too, not for several only.
    #[must_use]
    pub fn prefetches(&self) -> bool {
        self.foreseen >= MARGIN * self.prefetched
    }

    /// The time with weights in panels, as they are read.
    #[must_use]
    pub fn panels(&self) -> f64 {
        if self.prefetches() { self.prefetched } else { self.foreseen }
    }

    /// Whether slightly other times would change a choice.
    fn is_close(&self) -> bool {
        let is_close = |ratio: f64| (ratio / MARGIN - 1.0).abs() < CLOSE;
        is_close(self.file / self.panels()) || is_close(self.foreseen / self.prefetched)
    }

    /// Measures until the choices are clear. The least times count, because other programs only add to them.
    fn measured(mut measure: impl FnMut() -> Option<LayoutCost>) -> Option<LayoutCost> {
        let mut least = measure()?;
        for _ in 1..MOST_MEASUREMENTS {
            if !least.is_close() {
                break;
            }
            let LayoutCost { prefetched, foreseen, file } = measure()?;
            least = LayoutCost {
                prefetched: least.prefetched.min(prefetched),
                foreseen: least.foreseen.min(foreseen),
                file: least.file.min(file),
            };
        }
        Some(least)
    }
}

/// The weights of a type in a model's files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightsOfType {
    /// Its `ggml_type`.
    pub(crate) format: u32,
    /// Their size.
    pub(crate) bytes: u64,
    /// Whether the token embeddings are among them and are the output weights, too, in the same tensor.
    pub(crate) has_output_embeddings: bool,
}

/// Chooses the layout of each type that can be in panels. `forced`: the host's choice. `available`: the bytes of memory that panels may
/// take. `may_shrink`: panels may have fewer bits than the file, where a measurement finds that faster.
pub(crate) fn choose(
    weights: &[WeightsOfType],
    forced: Option<bool>,
    available: Option<u64>,
    may_shrink: bool,
) -> Vec<WeightLayout> {
    let weights: Vec<&WeightsOfType> = weights.iter().filter(|of| has_panels(of.format)).collect();
    let total: u64 = weights.iter().map(|of| of.bytes).sum();
    let is_short = available.is_some_and(|available| total as f64 > MOST_OF_MEMORY * available as f64);
    let layout = |of: &WeightsOfType| {
        // SAFETY: `has_panels` knows the type, and names of types are static strings.
        let format = unsafe { guard::text(sys::ggml_type_name(of.format)) };
        let may_be_panels = forced.unwrap_or(!is_short);
        let cost = (may_be_panels && of.bytes >= FITS_CACHES).then(|| known_cost(of.format)).flatten();
        let (in_panels, chosen_by) = decide(forced, is_short, cost);
        let becomes_smaller = may_shrink && in_panels && cost.is_some_and(|cost| is_faster_smaller(of.format, cost));
        WeightLayout { format, in_panels, becomes_smaller, chosen_by, cost }
    };
    weights.into_iter().map(layout).collect()
}

/// Whether weights are put into panels, and why.
fn decide(forced: Option<bool>, is_short: bool, cost: Option<LayoutCost>) -> (bool, LayoutReason) {
    match (forced, cost) {
        (Some(forced), _) => (forced, LayoutReason::Load),
        (None, _) if is_short => (false, LayoutReason::Memory),
        (None, Some(cost)) => (cost.file >= MARGIN * cost.panels(), LayoutReason::Measurement),
        (None, None) => (true, LayoutReason::Default),
    }
}

/// Whether one token takes clearly less time for each weight with panels of fewer bits than with those of `format`, which take `cost`.
fn is_faster_smaller(format: u32, cost: LayoutCost) -> bool {
    // SAFETY: both types have panels, so ggml knows them.
    let of_row = |format| unsafe { sys::ggml_row_size(format, WIDTH) } as f64;
    let is_faster =
        |smaller: LayoutCost| smaller.panels() * of_row(SMALLER_FORMAT) < MARGIN * cost.panels() * of_row(format);
    of_row(SMALLER_FORMAT) <= MOST_OF_BITS * of_row(format) && known_cost(SMALLER_FORMAT).is_some_and(is_faster)
}

/// By level and type; `None`: it cannot be measured.
type KnownCosts = HashMap<(i32, u32), Option<LayoutCost>>;

/// The costs that were measured in this process.
static KNOWN: LazyLock<Mutex<KnownCosts>> = LazyLock::new(Mutex::default);

#[cfg(own_kernels)]
fn has_panels(format: u32) -> bool {
    // SAFETY: compares a number with a table.
    super::are_used() && unsafe { native::foredraft_has_panels(format.cast_signed()) }
}
#[cfg(not(own_kernels))]
fn has_panels(_: u32) -> bool {
    false
}

#[cfg(own_kernels)]
fn known_cost(format: u32) -> Option<LayoutCost> {
    use crate::guard::ErrorBuffer;
    let level = level()?.index();
    // Locked while it is measured, so that two loads do not disturb each other.
    *KNOWN.lock().entry((level, format)).or_insert_with(|| {
        LayoutCost::measured(|| {
            let mut costs = native::foredraft_layout_costs { prefetched: 0.0, foreseen: 0.0, file: 0.0 };
            let mut why = ErrorBuffer::new();
            // SAFETY: the costs and the buffer outlive the call, and the function catches exceptions. The model that is being loaded keeps
            // the level.
            let is_known =
                unsafe { native::foredraft_layout_cost(format.cast_signed(), &raw mut costs, why.ptr(), why.size()) };
            let native::foredraft_layout_costs { prefetched, foreseen, file } = costs;
            is_known.then_some(LayoutCost { prefetched, foreseen, file })
        })
    })
}
#[cfg(not(own_kernels))]
fn known_cost(format: u32) -> Option<LayoutCost> {
    *KNOWN.lock().entry((0, format)).or_insert(None)
}

/// The bytes of weights of all models of which panels are still to be made, so that their memory is not taken yet.
pub(crate) fn pending_bytes() -> u64 {
    #[cfg(own_kernels)]
    // SAFETY: reads an atomic value.
    let bytes = unsafe { native::foredraft_panels_left_of_all() };
    #[cfg(not(own_kernels))]
    let bytes = 0;
    bytes
}

/// Calls `load`, which loads a model on this thread, and puts its weights into panels as `layouts` says: while it loads, or, where weights
/// are read from a mapped file (`is_mapped`) and `later` is set, when [`PendingPanels::begin`] is called.
pub(crate) fn with_layouts<R>(
    weights: &[WeightsOfType],
    layouts: &[WeightLayout],
    is_mapped: bool,
    later: bool,
    load: impl FnOnce() -> R,
) -> (R, PendingPanels) {
    let formats = weights.iter().filter(|of| has_panels(of.format)).zip(layouts);
    let bits = |is_meant: fn(&WeightLayout) -> bool| {
        formats.clone().filter(|(_, layout)| is_meant(layout)).fold(0_u64, |all, (of, _)| all | 1 << of.format)
    };
    let smaller = bits(|layout| layout.becomes_smaller);
    let mut foreseen = bits(|layout| layout.cost.is_some_and(|cost| !cost.prefetches()));
    if smaller != 0 && known_cost(SMALLER_FORMAT).is_some_and(|cost| !cost.prefetches()) {
        foreseen |= 1 << SMALLER_FORMAT;
    }
    let embeddings = weights.iter().filter(|of| of.has_output_embeddings).fold(0_u64, |all, of| all | 1 << of.format);
    begin_load([bits(|layout| layout.in_panels), foreseen, smaller, embeddings], is_mapped, later);
    let result = load();
    (result, end_load())
}

#[cfg(own_kernels)]
fn begin_load([formats, foreseen, smaller, embeddings]: [u64; 4], is_mapped: bool, later: bool) {
    // SAFETY: sets values of the calling thread.
    unsafe { native::foredraft_load_begin(formats, foreseen, smaller, embeddings, is_mapped, later) }
}
#[cfg(own_kernels)]
fn end_load() -> PendingPanels {
    // SAFETY: sets values of the calling thread, and ends the threads that made panels.
    let weights = unsafe { native::foredraft_load_end() };
    PendingPanels {
        weights: NonNull::new(weights).map(|weights| Arc::new(PendingWeights(weights))),
        thread: OnceLock::new(),
        is_given_back: AtomicBool::new(false),
    }
}
#[cfg(not(own_kernels))]
fn begin_load(_: [u64; 4], _: bool, _: bool) {}
#[cfg(not(own_kernels))]
fn end_load() -> PendingPanels {
    PendingPanels {}
}

/// Weights of a loaded model that are in its mapped file until panels have been made of them. Dropped after the model was freed.
#[derive(Debug)]
pub(crate) struct PendingPanels {
    #[cfg(own_kernels)]
    weights: Option<Arc<PendingWeights>>,
    /// Makes the panels, once they are begun. `None`: it cannot be started.
    #[cfg(own_kernels)]
    thread: OnceLock<Option<JoinHandle<()>>>,
    /// See [`PendingPanels::are_made`].
    #[cfg(own_kernels)]
    is_given_back: AtomicBool,
}

#[cfg(own_kernels)]
#[derive(Debug)]
struct PendingWeights(NonNull<native::foredraft_pending_panels>);

// SAFETY: what is pending is made by one thread. To stop it, and to read what is left, are atomic operations.
#[cfg(own_kernels)]
unsafe impl Send for PendingWeights {}
// SAFETY: as above.
#[cfg(own_kernels)]
unsafe impl Sync for PendingWeights {}

#[cfg(own_kernels)]
impl Drop for PendingWeights {
    fn drop(&mut self) {
        // SAFETY: this is the last owner.
        unsafe { native::foredraft_panels_free(self.0.as_ptr()) }
    }
}

#[cfg(own_kernels)]
impl PendingPanels {
    /// Begins to make the panels, on a thread of its own, which calls `around` with that work, when there are panels of all `others`. It leaves the cores
    /// to other threads for `patience`. The model must live until [`PendingPanels::stop`]. Later calls change nothing.
    pub(crate) fn begin(
        &self,
        others: Option<&PendingPanels>,
        patience: Duration,
        around: impl FnOnce(&dyn Fn()) + Send + 'static,
    ) {
        let patience_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let Some(weights) = self.weights.clone() else { return };
        let others = others.and_then(|others| others.weights.clone());
        self.thread.get_or_init(|| {
            let make = move || {
                let others = others.as_ref().map_or(std::ptr::null(), |others| others.0.as_ptr().cast_const());
                // SAFETY: the model is alive until this thread has ended, and nothing else makes these panels. Of the others, which this closure
                // keeps, an atomic value is read.
                unsafe { native::foredraft_panels_make(weights.0.as_ptr(), others, patience_ms) }
            };
            // Without a thread the weights stay in the file.
            forks::spawn("foredraft-panel", move || around(&make)).ok()
        });
    }

    /// Waits until no panels are made any more. `wake` ends a sleep inside `around`.
    pub(crate) fn stop(&mut self, wake: impl FnOnce()) {
        if let (Some(weights), Some(Some(thread))) = (&self.weights, self.thread.take()) {
            // SAFETY: sets an atomic value.
            unsafe { native::foredraft_panels_stop(weights.0.as_ptr()) }
            wake();
            // Its panic would be a message in the log already.
            let _ = thread.join();
        }
    }

    /// Whether panels are being made.
    pub(crate) fn is_making(&self) -> bool {
        self.thread.get().is_some_and(|thread| thread.as_ref().is_some_and(|thread| !thread.is_finished()))
    }

    /// Whether weights are still read from a file at this address.
    pub(crate) fn reads(&self, address: usize) -> bool {
        // SAFETY: no thread makes panels before `begin`, and none changes the list.
        self.weights
            .as_ref()
            .is_some_and(|weights| unsafe { native::foredraft_panels_read(weights.0.as_ptr(), address) })
    }

    /// Whether drafts can read panels of fewer bits from now on, because all are made. The first time, gives back what they have read of the file.
    pub(crate) fn are_made(&self) -> bool {
        let are_made = self.bytes_left() == 0;
        if let Some(weights) = self.weights.as_ref().filter(|_| are_made && !self.is_given_back.load(Ordering::Relaxed))
        {
            self.is_given_back.store(true, Ordering::Relaxed);
            // SAFETY: the list does not change, and the pages are those of a mapped file, which are read again where they are needed.
            unsafe { native::foredraft_panels_give_back(weights.0.as_ptr()) }
        }
        are_made
    }

    /// The bytes of weights of which panels are still to be made.
    pub(crate) fn bytes_left(&self) -> u64 {
        // SAFETY: reads an atomic value.
        self.weights.as_ref().map_or(0, |weights| unsafe { native::foredraft_panels_left(weights.0.as_ptr()) })
    }
}

#[cfg(not(own_kernels))]
impl PendingPanels {
    pub(crate) fn begin(&self, _: Option<&PendingPanels>, _: Duration, _: impl FnOnce(&dyn Fn()) + Send + 'static) {}
    pub(crate) fn stop(&mut self, _: impl FnOnce()) {}
    pub(crate) fn is_making(&self) -> bool {
        false
    }
    pub(crate) fn reads(&self, _: usize) -> bool {
        false
    }
    pub(crate) fn are_made(&self) -> bool {
        true
    }
    pub(crate) fn bytes_left(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FASTER_IN_PANELS: LayoutCost = LayoutCost { prefetched: 100.0, foreseen: 220.0, file: 120.0 };
    const ABOUT_EQUAL: LayoutCost = LayoutCost { prefetched: 100.0, foreseen: 91.0, file: 91.0 };
    const FASTER_IN_FILE: LayoutCost = LayoutCost { prefetched: 100.0, foreseen: 100.0, file: 80.0 };
    const FORESEEN: LayoutCost = LayoutCost { prefetched: 100.0, foreseen: 70.0, file: 80.0 };

    #[test]
    fn the_layout_of_the_file_needs_a_clear_lead() {
        for (cost, in_panels) in
            [(FASTER_IN_PANELS, true), (ABOUT_EQUAL, true), (FASTER_IN_FILE, false), (FORESEEN, true)]
        {
            assert_eq!(decide(None, false, Some(cost)), (in_panels, LayoutReason::Measurement), "{cost:?}");
        }
        assert_eq!(decide(None, false, None), (true, LayoutReason::Default));
    }

    #[test]
    fn panels_are_prefetched_unless_one_token_is_clearly_faster_without() {
        for (cost, prefetches, panels) in
            [(FASTER_IN_PANELS, true, 100.0), (ABOUT_EQUAL, true, 100.0), (FORESEEN, false, 70.0)]
        {
            assert_eq!((cost.prefetches(), cost.panels()), (prefetches, panels), "{cost:?}");
        }
    }

    /// The part of 1,000 processes that choose otherwise than without noise, if each measures with `measured`.
    fn wrong_choices(
        exact: LayoutCost,
        measured: impl Fn(&mut dyn FnMut() -> Option<LayoutCost>) -> Option<LayoutCost>,
    ) -> f64 {
        let mut state = 1_u64;
        // Other programs add up to a seventh to the fastest of a few products.
        let mut slower = |micros: f64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            micros * (1.0 + (state >> 40) as f64 / f64::from(1 << 24) / 7.0)
        };
        let choice = |cost| (decide(None, false, Some(cost)).0, cost.prefetches());
        let mut measure = || {
            let LayoutCost { prefetched, foreseen, file } = exact;
            Some(LayoutCost { prefetched: slower(prefetched), foreseen: slower(foreseen), file: slower(file) })
        };
        (0..1000).filter(|_| measured(&mut measure).map(choice) != Some(choice(exact))).count() as f64 / 1000.0
    }

    #[test]
    fn processes_choose_the_same_layout_where_times_are_close() {
        for file in [85.0, 95.0] {
            let exact = LayoutCost { prefetched: 100.0, foreseen: 150.0, file };
            let once = wrong_choices(exact, |measure| measure());
            let now = wrong_choices(exact, |measure| LayoutCost::measured(measure));
            eprintln!("{file}: {once} of processes choose otherwise with one measurement, {now} now");
            assert!(once > 0.1 && now < once / 2.0, "{file}: {once} {now}");
        }
    }

    #[test]
    fn a_clear_choice_is_measured_once() {
        let mut n_measured = 0;
        let mut measure = |cost: LayoutCost| {
            n_measured = 0;
            LayoutCost::measured(|| {
                n_measured += 1;
                Some(cost)
            });
            n_measured
        };
        assert_eq!((measure(FASTER_IN_PANELS), measure(FORESEEN), measure(ABOUT_EQUAL)), (1, 1, MOST_MEASUREMENTS));
        assert_eq!(LayoutCost::measured(|| None), None);
    }

    #[test]
    fn the_host_decides_before_memory_and_memory_before_a_measurement() {
        for forced in [true, false] {
            assert_eq!(decide(Some(forced), true, Some(FASTER_IN_FILE)), (forced, LayoutReason::Load));
        }
        assert_eq!(decide(None, true, Some(FASTER_IN_PANELS)), (false, LayoutReason::Memory));
    }

    #[test]
    fn a_tenth_of_the_bits_is_not_worth_the_accepted_tokens() {
        crate::backend::start();
        let _level = crate::backend::levels::use_level(None).expect("this processor has a level");
        let slow = LayoutCost { prefetched: 1e9, foreseen: 1e9, file: 1e9 };
        let becomes_smaller = |format| is_faster_smaller(format, slow);
        assert!(!becomes_smaller(sys::GGML_TYPE_Q4_1) && !becomes_smaller(sys::GGML_TYPE_Q4_K));
        let can_measure = known_cost(SMALLER_FORMAT).is_some();
        assert_eq!([sys::GGML_TYPE_Q5_0, sys::GGML_TYPE_Q8_0].map(becomes_smaller), [can_measure; 2]);
    }

    #[test]
    fn large_weights_are_measured_once_and_short_memory_leaves_them_in_the_file() {
        crate::backend::start();
        let _level = crate::backend::levels::use_level(None).expect("this processor has a level");
        let (q8_0, f32) = (sys::GGML_TYPE_Q8_0, sys::GGML_TYPE_F32);
        if !has_panels(q8_0) {
            return;
        }
        let of = |bytes: u64, forced: Option<bool>, available: Option<u64>| {
            let weights = [(f32, 1 << 40), (q8_0, bytes)].map(|(format, bytes)| WeightsOfType {
                format,
                bytes,
                has_output_embeddings: false,
            });
            let mut layouts = choose(&weights, forced, available, false);
            assert_eq!(layouts.len(), 1, "floats have one layout: {layouts:?}");
            layouts.remove(0)
        };
        let large = of(FITS_CACHES, None, Some(2 * FITS_CACHES));
        assert_eq!((large.format.as_str(), large.chosen_by), ("q8_0", LayoutReason::Measurement));
        let cost = large.cost.expect("it was measured");
        assert!(
            cost.panels() > 0.0 && cost.file > 0.0 && large.in_panels == (cost.file >= MARGIN * cost.panels()),
            "{cost:?}"
        );
        assert_eq!(of(FITS_CACHES, None, None), large, "it is kept");
        let small = of(FITS_CACHES - 1, None, None);
        assert_eq!((small.in_panels, small.chosen_by, small.cost), (true, LayoutReason::Default, None));
        let short = of(FITS_CACHES, None, Some(FITS_CACHES));
        assert_eq!((short.in_panels, short.chosen_by, short.cost), (false, LayoutReason::Memory, None));
        let forced = of(FITS_CACHES, Some(true), Some(FITS_CACHES));
        assert!(forced.in_panels && forced.cost == large.cost, "the host decides the layout alone: {forced:?}");
    }
}
