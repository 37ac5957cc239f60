//! Stops a decode from another thread, or at a deadline, and makes it sleep while the host pauses the engine.

use std::cell::{RefCell, UnsafeCell};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, from_ref, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;

use crate::{PauseGate, kernels};
use foredraft_native::{self as native, foredraft_interrupt, foredraft_output_rows};

/// The state behind llama.cpp's abort callback, which runs between the nodes of a graph. Any thread can raise it; the thread that
/// decodes clears it.
///
/// By the first field the threads of a decode find the engine's pauses, and the rows of the output weights that they compute.
#[derive(Debug)]
#[repr(C)]
pub struct Interrupt {
    native: UnsafeCell<foredraft_interrupt>,
    raised: AtomicBool,
    /// Decodes run to their end, even if the interrupt is raised.
    held: AtomicBool,
    /// The deadline of decodes in nanoseconds after `start`. `u64::MAX`: none.
    deadline: AtomicU64,
    /// The time at which a paused decode stops, because a request that waits for it must end. In the same unit.
    pause_deadline: AtomicU64,
    start: Instant,
    gate: Arc<PauseGate>,
}

// SAFETY: of `native`, `n_pauses` points into the gate or to a static value, which outlive this value, and is atomic; `output_rows` and `reads_smaller`
// are accessed atomically; the others are never written.
unsafe impl Send for Interrupt {}
// SAFETY: as above.
unsafe impl Sync for Interrupt {}

/// The word that kernels read where they must not stop.
static NEVER_PAUSED: AtomicU32 = AtomicU32::new(0);

impl Default for Interrupt {
    fn default() -> Self {
        Interrupt::new(Arc::default())
    }
}

impl Interrupt {
    /// An interrupt of an engine with these pauses.
    #[must_use]
    pub fn new(gate: Arc<PauseGate>) -> Interrupt {
        // Threads that wait in ggml's barrier for those that sleep would not leave the processor. So the decode runs to its end.
        let stops_inside = kernels::replacements().barrier;
        Interrupt {
            native: UnsafeCell::new(foredraft_interrupt {
                n_pauses: if stops_inside { gate.n_pauses() } else { NonNull::from(&NEVER_PAUSED) }.as_ptr().cast(),
                wait: Some(Interrupt::wait_in_decode),
                stops: Some(Interrupt::stops_decode),
                output_rows: null(),
                reads_smaller: false,
            }),
            raised: AtomicBool::new(false),
            held: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
            pause_deadline: AtomicU64::new(u64::MAX),
            start: Instant::now(),
            gate,
        }
    }

    /// An interrupt with the pauses of the engine whose load runs on this thread, for work that goes on after the load. Outside of a load
    /// it has no pauses.
    #[must_use]
    pub fn after_load() -> Interrupt {
        Interrupt::new(GATE_OF_LOAD.with_borrow(|gate| gate.as_deref().cloned()).unwrap_or_default())
    }

    /// The engine's pauses.
    #[must_use]
    pub fn gate(&self) -> &PauseGate {
        &self.gate
    }

    /// Stops the running decode, or the next one. A decode that is paused goes on to the place where it stops.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.gate.notify();
    }

    /// Clears the interrupt, so that decodes run again. The caller has to check the reason afterwards, so that none is missed. Pauses have
    /// no limit any more.
    pub fn clear(&self) {
        self.pause_deadline.store(u64::MAX, Ordering::SeqCst);
        self.raised.store(false, Ordering::SeqCst);
    }

    /// Raises the interrupt at this time if a decode is paused then. The first of several times counts. A thread that is asleep already has
    /// to be [notified](PauseGate::notify).
    pub fn limit_pause(&self, deadline: Option<Instant>) {
        let nanos = deadline.map_or(u64::MAX, |deadline| nanos(deadline.saturating_duration_since(self.start)));
        self.pause_deadline.fetch_min(nanos, Ordering::SeqCst);
    }

    /// Sets the time at which decodes stop, also those that are paused. `None`: no deadline.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        let nanos = deadline.map_or(u64::MAX, |deadline| nanos(deadline.saturating_duration_since(self.start)));
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    /// While held, decodes run to their end.
    pub(crate) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Says what graphs read that are computed until the next call: these rows of the output weights, which must be valid until then (`None`: all),
    /// and panels of fewer bits than in the file, where there are such. All of these must be made.
    pub(crate) fn restrict_weights(&self, rows: Option<&foredraft_output_rows>, reads_smaller: bool) {
        let rows = rows.map_or(null_mut(), |rows| from_ref(rows).cast_mut());
        // SAFETY: the fields are aligned, live as long as this value, and are accessed atomically alone.
        let (of_rows, of_smaller) = unsafe {
            let native = self.native.get();
            (
                AtomicPtr::from_ptr((&raw mut (*native).output_rows).cast()),
                AtomicBool::from_ptr(&raw mut (*native).reads_smaller),
            )
        };
        of_rows.store(rows, Ordering::Relaxed);
        of_smaller.store(reads_smaller, Ordering::Relaxed);
    }

    /// Whether the running decode must stop.
    pub(crate) fn stops_now(&self) -> bool {
        !self.held.load(Ordering::Relaxed) && self.is_raised_or_late()
    }

    fn is_raised_or_late(&self) -> bool {
        self.raised.load(Ordering::SeqCst) || self.time_until(&self.deadline).is_some_and(|left| left.is_zero())
    }

    /// The time until a deadline. `None`: there is none.
    fn time_until(&self, deadline: &AtomicU64) -> Option<Duration> {
        let deadline = deadline.load(Ordering::SeqCst);
        (deadline != u64::MAX).then(|| Duration::from_nanos(deadline).saturating_sub(self.start.elapsed()))
    }

    /// Sleeps while the engine is paused, until the interrupt is raised or a deadline has come.
    pub(crate) fn wait_while_paused(&self) {
        loop {
            let events = self.gate.events();
            if !self.gate.is_closed() || self.is_raised_or_late() {
                return;
            }
            let pause_left = self.time_until(&self.pause_deadline);
            if pause_left.is_some_and(|left| left.is_zero()) {
                return self.raise();
            }
            let left = self.time_until(&self.deadline).into_iter().chain(pause_left).min();
            self.gate.wait(events, left);
        }
    }

    /// llama.cpp's abort callback; its data is an `Interrupt`.
    pub(crate) fn callback() -> sys::ggml_abort_callback {
        #[cfg(own_barrier)]
        return Some(native::foredraft_interrupted);
        #[cfg(not(own_barrier))]
        return Some(Interrupt::callback_in_rust);
    }

    /// # Safety
    /// `data` points to an `Interrupt` that is alive during the call.
    #[cfg_attr(own_barrier, allow(dead_code))]
    unsafe extern "C" fn callback_in_rust(data: *mut c_void) -> bool {
        // SAFETY: guaranteed by the caller.
        unsafe { Interrupt::stops_decode(data.cast()) }
    }

    /// # Safety
    /// `this` is the first field of an `Interrupt` that is alive during the call.
    unsafe extern "C" fn stops_decode(this: *const foredraft_interrupt) -> bool {
        // SAFETY: guaranteed by the caller. All fields are atomic or never written.
        unsafe { &*this.cast::<Interrupt>() }.stops_now()
    }

    /// # Safety
    /// `this` is the first field of an `Interrupt` that is alive during the call.
    unsafe extern "C" fn wait_in_decode(this: *const foredraft_interrupt) {
        // SAFETY: guaranteed by the caller. All fields are atomic or never written.
        unsafe { &*this.cast::<Interrupt>() }.wait_while_paused();
    }

    /// The data of [`Interrupt::callback`].
    pub(crate) fn as_callback_data(&self) -> *mut c_void {
        from_ref(self).cast_mut().cast()
    }
}

/// Lets the threads of this thread's load of a model sleep while the host pauses the engine, until it is dropped.
#[derive(Debug)]
pub struct PausableLoad<'a>(PhantomData<&'a Interrupt>);

impl PausableLoad<'_> {
    /// A load of the engine with this interrupt begins.
    #[must_use]
    pub fn begin(interrupt: &Interrupt) -> PausableLoad<'_> {
        set_load_interrupt(interrupt);
        set_gate_of_load(Some(Arc::clone(&interrupt.gate)));
        PausableLoad(PhantomData)
    }
}

thread_local! {
    /// The gate of the load that runs on this thread. [`PausableLoad`] drops it: a thread takes memory for a value that it has to drop itself, and
    /// the one that makes panels begins after the load has returned.
    static GATE_OF_LOAD: RefCell<Option<ManuallyDrop<Arc<PauseGate>>>> = const { RefCell::new(None) };
}

fn set_gate_of_load(gate: Option<Arc<PauseGate>>) {
    let before = GATE_OF_LOAD.replace(gate.map(ManuallyDrop::new));
    drop(before.map(ManuallyDrop::into_inner));
}

impl Drop for PausableLoad<'_> {
    fn drop(&mut self) {
        set_gate_of_load(None);
        set_load_interrupt(null());
    }
}

fn set_load_interrupt(interrupt: *const Interrupt) {
    #[cfg(own_barrier)]
    // SAFETY: sets a value of this thread. The interrupt outlives it: `PausableLoad` borrows it, and removes the value.
    unsafe {
        native::foredraft_set_load_interrupt(interrupt.cast());
    }
    #[cfg(not(own_barrier))]
    let _ = interrupt;
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_when_raised_or_late() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.stops_now());
        interrupt.raise();
        assert!(interrupt.stops_now());
        interrupt.clear();
        assert!(!interrupt.stops_now());
        interrupt.set_deadline(Some(interrupt.start));
        assert!(interrupt.stops_now());
        interrupt.set_deadline(Some(Instant::now() + Duration::from_secs(3600)));
        assert!(!interrupt.stops_now());
        interrupt.hold(true);
        interrupt.raise();
        assert!(!interrupt.stops_now(), "held");
        interrupt.hold(false);
        assert!(interrupt.stops_now(), "an interrupt raised while held takes effect afterwards");
        interrupt.clear();
        interrupt.set_deadline(None);
        assert!(!interrupt.stops_now());
    }

    #[test]
    fn a_paused_thread_goes_on_after_the_pause_or_when_it_must_stop() {
        let gate = Arc::new(PauseGate::default());
        let interrupt = Arc::new(Interrupt::new(Arc::clone(&gate)));
        let waiting = || {
            let interrupt = Arc::clone(&interrupt);
            let thread = std::thread::spawn(move || interrupt.wait_while_paused());
            std::thread::sleep(Duration::from_millis(10));
            thread
        };
        gate.set(1);
        let thread = waiting();
        assert!(!thread.is_finished(), "the pause has not ended");
        gate.set(0);
        thread.join().expect("it ends");
        gate.set(1);
        let thread = waiting();
        interrupt.raise();
        thread.join().expect("it ends");
        interrupt.clear();
        let begin = Instant::now();
        interrupt.set_deadline(Some(begin + Duration::from_millis(20)));
        waiting().join().expect("it ends");
        assert!(begin.elapsed() >= Duration::from_millis(20));
        interrupt.set_deadline(None);
        assert!(!interrupt.stops_now());
        let thread = waiting();
        interrupt.limit_pause(Some(begin));
        gate.notify();
        thread.join().expect("it ends");
        assert!(interrupt.stops_now(), "the decode must stop, too");
        interrupt.clear();
        let thread = waiting();
        assert!(!thread.is_finished(), "the limit is gone");
        gate.set(0);
        thread.join().expect("it ends");
    }
}
