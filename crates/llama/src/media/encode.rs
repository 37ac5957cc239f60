//! Pauses and stops of an encoder of pictures or sounds, which has threads of its own.

use std::ptr::{NonNull, from_ref};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::platform::thread_cpu_time;
use crate::{PauseGate, ThreadPool, kernels};
use foredraft_base::work::StopSignal;
use foredraft_native::{self as native, foredraft_interrupt};

/// When the threads of an encode sleep, and when they stop. They find its first field as those of a decode find an [`Interrupt`](crate::Interrupt)'s.
#[repr(C)]
pub(super) struct EncodeInterrupt<'a> {
    native: foredraft_interrupt,
    pauses: &'a PauseGate,
    /// The engine's threads, whose frame budget counts.
    threads: &'a ThreadPool,
    stops: &'a StopSignal,
    is_stopped: AtomicBool,
    /// The processor time of the thread that encodes for which the frame budget is charged.
    charged: Mutex<Option<Duration>>,
}

/// The word that kernels read where they must not sleep: threads that wait for them would not leave the processor.
static NEVER_PAUSED: AtomicU32 = AtomicU32::new(0);

impl<'a> EncodeInterrupt<'a> {
    pub(super) fn new(pauses: &'a PauseGate, threads: &'a ThreadPool, stops: &'a StopSignal) -> EncodeInterrupt<'a> {
        let sleeps_inside = kernels::replacements().barrier;
        let n_pauses = if sleeps_inside { pauses.n_pauses() } else { NonNull::from(&NEVER_PAUSED) };
        EncodeInterrupt {
            native: foredraft_interrupt {
                n_pauses: n_pauses.as_ptr().cast(),
                wait: Some(EncodeInterrupt::wait),
                stops: Some(EncodeInterrupt::stops),
                output_rows: std::ptr::null(),
                reads_smaller: false,
            },
            pauses,
            threads,
            stops,
            is_stopped: AtomicBool::new(false),
            charged: Mutex::default(),
        }
    }

    /// Runs an encode, which gets the interrupt, on this thread.
    pub(super) fn during<R>(&self, encode: impl FnOnce(*const foredraft_interrupt) -> R) -> R {
        struct Ending;
        impl Drop for Ending {
            fn drop(&mut self) {
                set(std::ptr::null());
            }
        }
        *self.charged.lock() = thread_cpu_time();
        set(from_ref(self).cast());
        let _ending = Ending;
        encode(from_ref(self).cast())
    }

    /// Sleeps while the engine is paused. Returns whether the encode must stop.
    pub(super) fn asks(&self) -> bool {
        self.pauses.wait_while(|| !(self.stops)());
        if !self.is_stopped() && (self.stops)() {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
        self.is_stopped()
    }

    /// Whether the encode has been stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// # Safety
    /// `this` is the first field of an `EncodeInterrupt` that is alive during the call.
    unsafe extern "C" fn wait(this: *const foredraft_interrupt) {
        // SAFETY: guaranteed by the caller. Any thread may look at the value.
        let this = unsafe { &*this.cast::<EncodeInterrupt<'_>>() };
        this.pauses.wait_while(|| !(this.stops)());
    }

    /// Called after each node of the graph, by one thread.
    ///
    /// # Safety
    /// As for `wait`.
    unsafe extern "C" fn stops(this: *const foredraft_interrupt) -> bool {
        // SAFETY: as above.
        let this = unsafe { &*this.cast::<EncodeInterrupt<'_>>() };
        let ran = thread_cpu_time();
        if let Some((before, now)) = std::mem::replace(&mut *this.charged.lock(), ran).zip(ran) {
            this.threads.pace(now.saturating_sub(before), || this.asks());
        }
        this.asks()
    }
}

fn set(interrupt: *const foredraft_interrupt) {
    #[cfg(own_barrier)]
    // SAFETY: sets a value of this thread, which `during` removes before the interrupt ends.
    unsafe {
        native::foredraft_set_encode_interrupt(interrupt);
    }
    #[cfg(not(own_barrier))]
    let _ = interrupt;
}
