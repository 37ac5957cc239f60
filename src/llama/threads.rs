//! ggml's thread pool, shared by all contexts of an engine.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use super::backend;
use super::governor::{DecodeTime, Governor};
use super::guard::{Why, foredraft_threadpool_new};
use crate::error::{Error, Result};

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);

/// The time for which a thread polls for the next graph before it sleeps, in ggml's unit of 131,072 pauses (2 to 6 ms). Threads stay
/// awake between the decodes of a completion, and release the cores soon after it. ggml's default is 50.
const POLL: u32 = 1;

/// The threads of decodes. Without a pool, ggml starts and ends threads in every decode, which is a large part of the time of a small
/// draft model. With a pool for each context, idle threads that poll would compete for the cores. So all contexts of an engine share one
/// pool. The number of threads in use adapts to the load of the machine: see `Governor`.
#[derive(Debug)]
pub struct ThreadPool {
    all: RawPool,
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
}

/// ggml's thread pool.
#[derive(Debug)]
struct RawPool {
    ptr: NonNull<sys::ggml_threadpool>,
    free: Free,
}

// SAFETY: the pool is only passed to contexts, which one thread uses at a time. The pool itself can be moved.
unsafe impl Send for RawPool {}
// SAFETY: shared references are only used to pass on the pool's address.
unsafe impl Sync for RawPool {}

impl RawPool {
    fn new(n_threads: i32) -> Result<RawPool> {
        // The functions belong to the CPU backend, which is a separate module in portable builds.
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
            params.poll = POLL;
            // It asserts that all threads can be started.
            let mut why = Why::new();
            let ptr = NonNull::new(foredraft_threadpool_new(new, &raw mut params, why.ptr(), why.size()));
            let refused = || Error::model(format!("n_threads: cannot start {n_threads} threads: {}", why.message()));
            Ok(RawPool { ptr: ptr.ok_or_else(refused)?, free })
        }
    }
}

impl ThreadPool {
    /// Creates a pool of `n_threads`, including the calling thread. The threads are named `foredraft-cpu`.
    ///
    /// # Errors
    /// The threads cannot be started, or there is no CPU backend.
    pub fn new(n_threads: i32) -> Result<ThreadPool> {
        backend::start();
        let n_threads = n_threads.max(1);
        // Threads inherit the name of the thread that starts them.
        let made = std::thread::Builder::new().name("foredraft-cpu".into()).spawn(move || RawPool::new(n_threads));
        let all = made.map_or_else(
            |error| Err(Error::model(format!("n_threads: cannot start a thread: {error}"))),
            |thread| thread.join().unwrap_or_else(|_| Err(Error::model("n_threads: cannot start the threads"))),
        )?;
        Ok(ThreadPool {
            all,
            one: RawPool::new(1)?,
            n_threads,
            governor: Mutex::new(Governor::new(n_threads)),
            limit: AtomicI32::new(n_threads),
            is_broken: AtomicBool::new(false),
        })
    }

    /// The number of threads that decodes use now: all threads, or fewer while other programs use the cores.
    pub fn n_threads_now(&self) -> i32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Records the elapsed time (`wall`) of a decode with `n_threads`, and the CPU time of the calling thread (`ran`). `kind`: the context
    /// and the size of the batch. Decodes that are limited to fewer threads are ignored.
    pub(super) fn record_decode(&self, n_threads: i32, kind: (usize, usize), wall: Duration, ran: Duration) {
        if n_threads < self.n_threads {
            return;
        }
        let mut governor = self.governor.lock();
        governor.record(DecodeTime { kind, wall, ran }, Instant::now());
        self.limit.store(governor.n_threads(), Ordering::Relaxed);
    }

    /// The pool for decodes with this number of threads.
    pub(super) fn of(&self, n_threads: i32) -> *mut sys::ggml_threadpool {
        if n_threads == 1 { self.one.ptr.as_ptr() } else { self.all.ptr.as_ptr() }
    }

    /// Marks the pool as unusable.
    pub(super) fn set_broken(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for pool in [&self.all, &self.one] {
            // A broken pool is leaked: freeing it would wait for its threads forever.
            if !self.is_broken() {
                // SAFETY: contexts hold an `Arc` of the pool, so there are none.
                unsafe { (pool.free)(pool.ptr.as_ptr()) }
            }
        }
    }
}

/// The CPU time of the calling thread. `None`: unknown.
pub(super) fn thread_cpu_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is writable.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        let seconds = u64::try_from(time.tv_sec).ok().filter(|_| result == 0)?;
        Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
    }
    #[cfg(not(unix))]
    None
}
