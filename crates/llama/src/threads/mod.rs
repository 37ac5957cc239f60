//! ggml's thread pool, shared by all contexts of an engine.

pub(super) mod cores;
pub(super) mod governor;
pub(super) mod interrupt;
pub mod large_stack;
pub(super) mod pacing;
pub(super) mod pause;
pub(super) mod placement;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use self::governor::{DecodeKind, DecodeTime, Governor};
use self::pacing::{FrameBudget, Pacer};
use self::placement::ThreadSettings;
use crate::backend::devices;
use crate::guard::ErrorBuffer;
use crate::log::{self, Level};
use crate::platform::cpus::ThreadPriority;
use crate::platform::{INHERITS_IDLE, n_cores_online, thread_cpu_time};
use crate::{Interrupt, backend};
use foredraft_base::error::{Error, Result};
use foredraft_host::forks;
use foredraft_native::foredraft_threadpool_new;

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);

/// The time between two checks of the interrupt during a pause.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The threads of decodes. Without a pool, ggml starts and ends threads in every decode, which is a large part of the time of a small
/// draft model. With a pool for each context, idle threads that poll would compete for the cores. So all contexts of an engine share one
/// pool, or one for each of their different [`ThreadSettings`]. The number of threads in use adapts to the load of the machine: see
/// `Governor`.
#[derive(Debug)]
pub struct ThreadPool {
    /// Not empty.
    all: Vec<PlacedPool>,
    /// A pool without threads, for decodes on the calling thread.
    one: RawPool,
    /// The number of threads, including the calling thread.
    n_threads: i32,
    governor: Mutex<Governor>,
    /// The governor's current number of threads.
    limit: AtomicI32,
    /// An exception escaped a decode, and the other threads wait for the one that threw. They never end, and another graph would make them
    /// access freed memory.
    is_broken: AtomicBool,
    /// How often the pools were made anew.
    n_renewals: AtomicUsize,
    /// Some settings differ from those of the calling thread.
    is_placed: bool,
    /// Delays decodes so that they fit the host's frame budget.
    pacer: Option<Mutex<Pacer>>,
}

/// The threads for decodes with the same settings.
#[derive(Debug)]
struct PlacedPool {
    requested: ThreadSettings,
    /// The settings that the system allows.
    settings: ThreadSettings,
    pool: RawPool,
}

/// ggml's thread pool, which contexts use, one thread at a time. Not NULL.
#[derive(Debug)]
struct RawPool {
    ptr: AtomicPtr<sys::ggml_threadpool>,
    free: Free,
}

impl RawPool {
    /// Creates a pool whose first thread is the calling one. ggml applies the settings to that thread, too.
    fn new(n_threads: i32, settings: &ThreadSettings) -> Result<RawPool> {
        // The functions belong to the CPU backend.
        // SAFETY: the names are NUL-terminated, and ggml-cpu documents the types `New` and `Free` of these procedures.
        unsafe {
            let cpu = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
            if cpu.is_null() {
                return Err(Error::model("no CPU backend is loaded"));
            }
            let registry = sys::ggml_backend_dev_backend_reg(cpu);
            let new = sys::ggml_backend_reg_get_proc_address(registry, c"ggml_threadpool_new".as_ptr());
            let free = sys::ggml_backend_reg_get_proc_address(registry, c"ggml_threadpool_free".as_ptr());
            if new.is_null() || free.is_null() {
                return Err(Error::model("the CPU backend has no thread pools"));
            }
            let new = std::mem::transmute::<*mut std::ffi::c_void, New>(new);
            let free = std::mem::transmute::<*mut std::ffi::c_void, Free>(free);
            let mut params = sys::ggml_threadpool_params_default(n_threads);
            params.poll = settings.poll;
            params.strict_cpu = settings.strict;
            params.prio = match settings.priority {
                ThreadPriority::Low => sys::GGML_SCHED_PRIO_LOW,
                // ggml has no such priority. The threads inherit it from the calling one, where the system lets them.
                ThreadPriority::Idle if INHERITS_IDLE => sys::GGML_SCHED_PRIO_NORMAL,
                ThreadPriority::Idle => sys::GGML_SCHED_PRIO_LOW,
                ThreadPriority::Normal => sys::GGML_SCHED_PRIO_NORMAL,
                ThreadPriority::Medium => sys::GGML_SCHED_PRIO_MEDIUM,
                ThreadPriority::High => sys::GGML_SCHED_PRIO_HIGH,
                ThreadPriority::Realtime => sys::GGML_SCHED_PRIO_REALTIME,
            };
            for cpu in settings.cpus.iter() {
                if let Some(used) = params.cpumask.get_mut(cpu) {
                    *used = true;
                }
            }
            // It asserts that all threads can be started.
            let mut why = ErrorBuffer::new();
            let ptr = NonNull::new(foredraft_threadpool_new(Some(new), &raw mut params, why.ptr(), why.size()));
            let refused =
                || Error::exhausted(format!("n_threads: cannot start {n_threads} threads: {}", why.message()));
            Ok(RawPool { ptr: AtomicPtr::new(ptr.ok_or_else(refused)?.as_ptr()), free })
        }
    }

    fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.ptr.load(Ordering::Relaxed)
    }
}

impl PlacedPool {
    /// Creates a pool on a new thread, because the pool's threads inherit the name of that thread, and because it gets the settings, too.
    fn new(n_threads: i32, requested: ThreadSettings) -> Result<PlacedPool> {
        forks::spawn("foredraft-cpu", move || PlacedPool::on_this_thread(n_threads, requested)).map_or_else(
            |error| Err(Error::exhausted(format!("n_threads: cannot start a thread: {error}"))),
            |thread| thread.join().unwrap_or_else(|_| Err(Error::exhausted("n_threads: cannot start the threads"))),
        )
    }

    fn on_this_thread(n_threads: i32, requested: ThreadSettings) -> Result<PlacedPool> {
        let mut settings = requested;
        let (has_priority, has_cpus) = placement::try_on_this_thread(&settings);
        if !has_cpus {
            let cpus = settings.cpus;
            return Err(Error::invalid(format!("cpu_mask, cpu_range: this process cannot use any of the CPUs {cpus}")));
        }
        if !has_priority {
            let priority = settings.priority;
            let why = format!("prio: the system refuses the priority {priority:?}, so threads have the normal one");
            log::write(Level::Warn, &why);
            settings.priority = ThreadPriority::Normal;
        }
        Ok(PlacedPool { requested, settings, pool: RawPool::new(n_threads, &settings)? })
    }
}

impl ThreadPool {
    /// Creates a pool of `n_threads`, including the calling thread. The threads are named `foredraft-cpu`.
    ///
    /// # Errors
    /// The threads cannot be started, or there is no CPU backend.
    pub fn new(n_threads: i32) -> Result<ThreadPool> {
        ThreadPool::with_settings(n_threads, &[], None)
    }

    /// Creates a pool for decodes with these settings. A frame budget delays decodes. If the system refuses a priority, threads keep the
    /// normal one, with a warning in the log.
    ///
    /// # Errors
    /// As [`ThreadPool::new`], or this process cannot use any of the CPUs.
    pub fn with_settings(
        n_threads: i32,
        settings: &[ThreadSettings],
        budget: Option<FrameBudget>,
    ) -> Result<ThreadPool> {
        backend::start();
        let n_threads = n_threads.max(1);
        let mut all: Vec<PlacedPool> = Vec::new();
        let default = [ThreadSettings::default()];
        for settings in if settings.is_empty() { &default } else { settings } {
            if !all.iter().any(|pool| pool.requested == *settings) {
                all.push(PlacedPool::new(n_threads, *settings)?);
            }
        }
        Ok(ThreadPool {
            is_placed: all.iter().any(|placed| !placed.settings.is_plain()),
            all,
            // Its only thread is the calling one, which gets its settings from `place_caller`.
            one: RawPool::new(1, &ThreadSettings::default())?,
            n_threads,
            governor: Mutex::new(Governor::new(n_threads)),
            limit: AtomicI32::new(n_threads),
            is_broken: AtomicBool::new(false),
            n_renewals: AtomicUsize::new(0),
            pacer: budget.map(|budget| Mutex::new(Pacer::new(budget))),
        })
    }

    /// The index of these settings in the pool, for [`ThreadPool::of_settings`].
    pub(super) fn number_of(&self, settings: &ThreadSettings) -> usize {
        self.all.iter().position(|placed| placed.requested == *settings).unwrap_or(0)
    }

    /// Applies the settings of the next decode to the calling thread.
    pub(super) fn place_caller(&self, number: usize) {
        if self.is_placed
            && let Some(placed) = self.all.get(number)
        {
            placement::place(placed.settings.of_caller(self.n_threads));
        }
    }

    /// Lets the threads sleep that poll for the next graph. Only the thread that decodes may call this, between decodes.
    pub fn rest(&self) {
        if self.is_broken() {
            return;
        }
        for placed in &self.all {
            // SAFETY: the pool is alive, and no graph is computed. The next graph wakes its threads.
            unsafe { sys::ggml_threadpool_pause(placed.pool.as_ptr()) };
        }
    }

    /// The host's frame budget.
    pub(super) fn frame_budget(&self) -> Option<FrameBudget> {
        self.pacer.as_ref().map(|pacer| pacer.lock().budget())
    }

    /// Waits until a decode of this kind fits the frame budget, or until an interrupt.
    pub(super) fn wait_for_budget(&self, kind: DecodeKind, interrupt: &Interrupt) {
        let Some(pacer) = &self.pacer else { return };
        let start = Instant::now();
        let wait = pacer.lock().wait(kind, start, thread_cpu_time());
        sleep_from(start, wait, || interrupt.stops_now());
        if !wait.is_zero() {
            pacing::paused(start.elapsed());
        }
    }

    /// Charges the frame budget for processor time of other work than decodes, and waits while it is used up, or until `stops`.
    pub(super) fn pace(&self, ran: Duration, stops: impl Fn() -> bool) {
        if let Some(pacer) = &self.pacer {
            let start = Instant::now();
            let wait = pacer.lock().charge(ran, start);
            sleep_from(start, wait, stops);
        }
    }

    /// Applies the priority and the CPUs of the engine's first threads to the calling thread, which starts others.
    pub(super) fn place_starter(&self) {
        if let Some(placed) = self.all.first().filter(|placed| !placed.settings.is_plain()) {
            placement::place(ThreadSettings { strict: false, ..placed.settings }.of_caller(1));
        }
    }

    /// Charges the frame budget for a decode of this kind with elapsed time `wall` and the calling thread's CPU time `ran`. The charge is
    /// the CPU time, because the rest is the host's. While a GPU computes, the thread sleeps, so with a GPU the charge is the elapsed time.
    pub(super) fn charge_budget(&self, kind: DecodeKind, wall: Duration, ran: Option<Duration>) {
        if let Some(pacer) = &self.pacer {
            let busy = ran.filter(|_| !devices::supports_offload()).unwrap_or(wall);
            pacer.lock().decoded(kind, busy, thread_cpu_time());
        }
    }

    /// The number of threads that decodes use now: all threads, or fewer while other programs use the cores.
    pub fn n_threads_now(&self) -> i32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Records the elapsed time (`wall`) of a decode with `n_threads`, and the CPU time of the calling thread (`ran`). `kind`: the context
    /// and the size of the batch. Decodes that are limited to fewer threads are ignored.
    pub(super) fn record_decode(&self, n_threads: i32, kind: DecodeKind, wall: Duration, ran: Duration) {
        if n_threads < self.n_threads {
            return;
        }
        let mut governor = self.governor.lock();
        governor.record(DecodeTime { kind, wall, ran }, Instant::now());
        self.limit.store(governor.n_threads(), Ordering::Relaxed);
    }

    /// The pool for decodes with this number of threads and the first settings.
    pub(super) fn of(&self, n_threads: i32) -> *mut sys::ggml_threadpool {
        self.of_settings(n_threads, 0)
    }

    /// The pool for decodes with this number of threads and the settings of this index.
    pub(super) fn of_settings(&self, n_threads: i32, number: usize) -> *mut sys::ggml_threadpool {
        let all = self.all.get(number).map_or(&self.one, |placed| &placed.pool);
        if n_threads == 1 { self.one.as_ptr() } else { all.as_ptr() }
    }

    /// Marks the pool as unusable.
    pub(super) fn set_broken(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// Starts other threads in place of those that a broken pool has lost, which are leaked. Only the thread that decodes may call this,
    /// between decodes.
    ///
    /// # Errors
    /// They cannot be started.
    pub(super) fn renew(&self) -> Result<()> {
        if self.is_broken() {
            for placed in &self.all {
                let new = PlacedPool::new(self.n_threads, placed.requested)?;
                placed.pool.ptr.store(new.pool.as_ptr(), Ordering::Relaxed);
            }
            self.n_renewals.fetch_add(1, Ordering::Relaxed);
            self.is_broken.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Changes whenever the pools are made anew.
    pub(super) fn n_renewals(&self) -> usize {
        self.n_renewals.load(Ordering::Relaxed)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }
}

/// Sleeps until `wait` after `start`, or until `stops`.
fn sleep_from(start: Instant, wait: Duration, stops: impl Fn() -> bool) {
    loop {
        let left = wait.saturating_sub(start.elapsed());
        if left.is_zero() || stops() {
            return;
        }
        std::thread::sleep(left.min(CHECK_INTERVAL));
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for pool in self.all.iter().map(|placed| &placed.pool).chain([&self.one]) {
            // A broken pool is leaked: freeing it would wait for its threads forever.
            if !self.is_broken() {
                // SAFETY: contexts hold an `Arc` of the pool, so there are none.
                unsafe { (pool.free)(pool.as_ptr()) }
            }
        }
    }
}

/// Proves that as many threads can run at once as llama.cpp starts while it loads a model: one for each core, to convert weights for AMX.
/// It ends the process if it cannot start one of them.
///
/// # Errors
/// The system refuses them ([`Code::ResourceExhausted`](foredraft_base::error::Code::ResourceExhausted)).
pub(super) fn prove_threads() -> Result<()> {
    let n_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).max(n_cores_online());
    let gate = Mutex::new(());
    let waiting = gate.lock();
    std::thread::scope(|scope| {
        // Each thread waits at the gate, so that all of them exist at once.
        let started = (0..n_threads).try_for_each(|_| {
            // As large as the threads of C++.
            let thread = std::thread::Builder::new().stack_size(STACK_OF_C_THREADS);
            thread.spawn_scoped(scope, || drop(gate.lock())).map(drop)
        });
        drop(waiting);
        started.map_err(|error| {
            Error::exhausted(format!("cannot start the {n_threads} threads that a load needs: {error}"))
        })
    })
}

/// The default stack of a thread on Linux.
const STACK_OF_C_THREADS: usize = 8 << 20;
