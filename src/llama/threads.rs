//! ggml's thread pool: made once, shared by all contexts of an engine.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use super::governor::{Decode, DecodeKind, Governor};
use super::guard::{Why, foredraft_threadpool_new};
use super::log::{self, Level};
use super::pacing::{self, FrameBudget, Pacer};
use super::placement::{self, ThreadPriority, ThreadSettings};
use super::{Interrupt, backend};
use crate::error::{Error, Result};

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);

/// How long a pause lasts between two looks at the interrupt.
const GLANCE: Duration = Duration::from_millis(2);

/// Threads that decode. Without an attached pool ggml starts and ends its threads at every decode, which is a large part of a small
/// draft's step; with a pool for each context their idle threads, which poll for work, fight for the cores. So there is one for all
/// contexts of an engine, and the number of threads that take part follows what the machine has to give: see `Governor`. Where decodes
/// have different [`ThreadSettings`], there is one for each.
#[derive(Debug)]
pub struct ThreadPool {
    /// At least one.
    all: Vec<PlacedPool>,
    /// Without threads of its own, for decodes by the calling thread alone.
    one: RawPool,
    /// Its threads, the calling one counted.
    n_threads: i32,
    governor: Mutex<Governor>,
    /// The threads that the governor allows.
    limit: AtomicI32,
    /// Its threads wait for one that has left a graph by an exception. They never end, and would go on with memory that
    /// is gone if there were another graph.
    is_broken: AtomicBool,
    /// Whether any settings are other than those of the calling thread.
    places: bool,
    /// Makes decodes wait so that they fit the host's frame budget.
    pacer: Option<Mutex<Pacer>>,
}

/// The threads for decodes with the same settings.
#[derive(Debug)]
struct PlacedPool {
    asked: ThreadSettings,
    /// What the system allows of them.
    settings: ThreadSettings,
    pool: RawPool,
}

/// A pool of ggml's.
#[derive(Debug)]
struct RawPool {
    ptr: NonNull<sys::ggml_threadpool>,
    free: Free,
}

// SAFETY: the pool is only handed to contexts, which one thread uses at a time; the pool itself may be moved.
unsafe impl Send for RawPool {}
// SAFETY: no method touches the pool through a shared reference except to pass its address on.
unsafe impl Sync for RawPool {}

impl RawPool {
    /// A pool whose first thread is the calling one: ggml gives it the settings, too.
    fn new(n_threads: i32, settings: &ThreadSettings) -> Result<RawPool> {
        // The functions belong to the CPU backend, which is a module of its own in portable builds.
        // SAFETY: names are NUL-terminated; ggml-cpu documents these procedures as having the types `New` and `Free`.
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
            // It asserts that the system gives it so many.
            let mut why = Why::new();
            let ptr = NonNull::new(foredraft_threadpool_new(new, &raw mut params, why.ptr(), why.size()));
            let refused =
                || Error::model(format!("n_threads: no {n_threads} threads could be made: {}", why.message()));
            Ok(RawPool { ptr: ptr.ok_or_else(refused)?, free })
        }
    }
}

impl PlacedPool {
    /// A pool, made by a thread of its own: its threads inherit that one's name, and it alone gets the settings beside them.
    fn new(n_threads: i32, asked: ThreadSettings) -> Result<PlacedPool> {
        let thread = std::thread::Builder::new().name("foredraft-cpu".into());
        thread.spawn(move || PlacedPool::on_this_thread(n_threads, asked)).map_or_else(
            |error| Err(Error::model(format!("n_threads: no thread could be made: {error}"))),
            |thread| thread.join().unwrap_or_else(|_| Err(Error::model("n_threads: the threads could not be made"))),
        )
    }

    fn on_this_thread(n_threads: i32, asked: ThreadSettings) -> Result<PlacedPool> {
        let mut settings = asked;
        let (has_priority, has_cpus) = placement::try_on_this_thread(&settings);
        if !has_cpus {
            let cpus = settings.cpus;
            return Err(Error::invalid(format!("cpu_mask, cpu_range: this process may use none of the CPUs {cpus}")));
        }
        if !has_priority {
            let priority = settings.priority;
            let why = format!("prio: the system refuses the priority {priority:?}, so threads keep the normal one");
            log::write(Level::Warn, &why);
            settings.priority = ThreadPriority::Normal;
        }
        Ok(PlacedPool { asked, settings, pool: RawPool::new(n_threads, &settings)? })
    }
}

impl ThreadPool {
    /// A pool of `n_threads`, the calling one counted. They bear the name `foredraft-cpu`.
    ///
    /// # Errors
    /// The system gives no more threads, or there is no CPU backend.
    pub fn new(n_threads: i32) -> Result<ThreadPool> {
        ThreadPool::with_settings(n_threads, &[], None)
    }

    /// The same for decodes with each of these settings, which wait as a frame budget says. Where the system refuses a priority, threads
    /// keep the normal one, and the log says so.
    ///
    /// # Errors
    /// As [`ThreadPool::new`]; none of the CPUs may be used by this process.
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
            if !all.iter().any(|made| made.asked == *settings) {
                all.push(PlacedPool::new(n_threads, *settings)?);
            }
        }
        Ok(ThreadPool {
            places: all.iter().any(|placed| !placed.settings.is_plain()),
            all,
            // It has no thread but the calling one, which `place_caller` gives its settings.
            one: RawPool::new(1, &ThreadSettings::default())?,
            n_threads,
            governor: Mutex::new(Governor::new(n_threads)),
            limit: AtomicI32::new(n_threads),
            is_broken: AtomicBool::new(false),
            pacer: budget.map(|budget| Mutex::new(Pacer::new(budget))),
        })
    }

    /// The number of these settings among those of the pool, for [`ThreadPool::of_settings`].
    pub(super) fn number_of(&self, settings: &ThreadSettings) -> usize {
        self.all.iter().position(|placed| placed.asked == *settings).unwrap_or(0)
    }

    /// Gives the calling thread the settings with which it decodes next.
    pub(super) fn place_caller(&self, number: usize) {
        if self.places
            && let Some(placed) = self.all.get(number)
        {
            placement::place(placed.settings.of_caller(self.n_threads));
        }
    }

    /// The frame budget of the host.
    pub(super) fn frame_budget(&self) -> Option<FrameBudget> {
        self.pacer.as_ref().map(|pacer| pacer.lock().budget())
    }

    /// Waits until a decode of that kind fits the frame budget, or is interrupted.
    pub(super) fn pace(&self, kind: DecodeKind, interrupt: &Interrupt) {
        let Some(pacer) = &self.pacer else { return };
        let start = Instant::now();
        let wait = pacer.lock().wait(kind, start, time_of_this_thread());
        loop {
            let left = wait.saturating_sub(start.elapsed());
            if left.is_zero() || interrupt.stops_now() {
                break;
            }
            std::thread::sleep(left.min(GLANCE));
        }
        if !wait.is_zero() {
            pacing::paused(start.elapsed());
        }
    }

    /// A decode of that kind took `wall`, of which the calling thread ran for `ran`. The budget is charged for the time on a core: what a
    /// decode waits while the host computes is the host's. While a GPU computes the thread sleeps, so there the whole time counts.
    pub(super) fn paced(&self, kind: DecodeKind, wall: Duration, ran: Option<Duration>) {
        if let Some(pacer) = &self.pacer {
            let busy = ran.filter(|_| !backend::supports_offload()).unwrap_or(wall);
            pacer.lock().decoded(kind, busy, time_of_this_thread());
        }
    }

    /// The threads that decodes use now: as many as the pool has, or fewer while other programs need the cores.
    pub fn n_threads_now(&self) -> i32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// A decode for which `n_threads` were asked has taken `wall`, of which the calling thread ran for `ran`. `kind`: its context and
    /// the size of its batch. Decodes that never use all threads tell nothing about their number.
    pub(super) fn saw(&self, n_threads: i32, kind: DecodeKind, wall: Duration, ran: Duration) {
        if n_threads < self.n_threads {
            return;
        }
        let mut governor = self.governor.lock();
        governor.saw(Decode { kind, wall, ran }, Instant::now());
        self.limit.store(governor.n_threads(), Ordering::Relaxed);
    }

    /// The pool for decodes of so many threads with the first settings.
    pub(super) fn of(&self, n_threads: i32) -> *mut sys::ggml_threadpool {
        self.of_settings(n_threads, 0)
    }

    /// The pool for decodes of so many threads with the settings of that number.
    pub(super) fn of_settings(&self, n_threads: i32, number: usize) -> *mut sys::ggml_threadpool {
        let all = self.all.get(number).map_or(&self.one, |placed| &placed.pool);
        if n_threads == 1 { self.one.ptr.as_ptr() } else { all.ptr.as_ptr() }
    }

    /// Nothing may be evaluated by it any more.
    pub(super) fn break_up(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for pool in self.all.iter().map(|placed| &placed.pool).chain([&self.one]) {
            // To free a broken one would wait for its threads.
            if !self.is_broken() {
                // SAFETY: contexts hold an `Arc` of the pool they are attached to, so none uses it any more.
                unsafe { (pool.free)(pool.ptr.as_ptr()) }
            }
        }
    }
}

/// For how long the calling thread has run; `None` where the system does not say.
pub(super) fn time_of_this_thread() -> Option<Duration> {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` may be written to.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        let seconds = u64::try_from(time.tv_sec).ok().filter(|_| result == 0)?;
        Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
    }
    #[cfg(not(unix))]
    None
}
