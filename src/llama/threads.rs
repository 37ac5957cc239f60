//! ggml's thread pool: made once, shared by all contexts of an engine.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use super::backend;
use super::governor::{Decode, Governor};
use super::guard::{Why, foredraft_threadpool_new};
use crate::error::{Error, Result};

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);

/// For how long a thread polls for the next graph before it sleeps, in ggml's unit of 131,072 pauses (2 to 6 ms): between the decodes of
/// one completion threads stay awake, and soon after it they leave the cores to the host. ggml's default is 50.
const POLL: u32 = 1;

/// Threads that decode. Without an attached pool ggml starts and ends its threads at every decode, which is a large part of a small
/// draft's step; with a pool for each context their idle threads, which poll for work, fight for the cores. So there is one for all
/// contexts of an engine, and the number of threads that take part follows what the machine has to give: see [`Governor`].
#[derive(Debug)]
pub struct ThreadPool {
    all: RawPool,
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
    fn new(n_threads: i32) -> Result<RawPool> {
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
            params.poll = POLL;
            // It asserts that the system gives it so many.
            let mut why = Why::new();
            let ptr = NonNull::new(foredraft_threadpool_new(new, &raw mut params, why.ptr(), why.size()));
            let refused =
                || Error::model(format!("n_threads: no {n_threads} threads could be made: {}", why.message()));
            Ok(RawPool { ptr: ptr.ok_or_else(refused)?, free })
        }
    }
}

impl ThreadPool {
    /// A pool of `n_threads`, the calling one counted. They bear the name `foredraft-cpu`.
    ///
    /// # Errors
    /// The system gives no more threads, or there is no CPU backend.
    pub fn new(n_threads: i32) -> Result<ThreadPool> {
        backend::start();
        let n_threads = n_threads.max(1);
        // Threads inherit the name of the one that starts them.
        let made = std::thread::Builder::new().name("foredraft-cpu".into()).spawn(move || RawPool::new(n_threads));
        let all = made.map_or_else(
            |error| Err(Error::model(format!("n_threads: no thread could be made: {error}"))),
            |thread| thread.join().unwrap_or_else(|_| Err(Error::model("n_threads: the threads could not be made"))),
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

    /// The threads that decodes use now: as many as the pool has, or fewer while other programs need the cores.
    pub fn n_threads_now(&self) -> i32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// A decode for which `n_threads` were asked has taken `wall`, of which the calling thread ran for `ran`. `kind`: its context and
    /// the size of its batch. Decodes that never use all threads tell nothing about their number.
    pub(super) fn saw(&self, n_threads: i32, kind: (usize, usize), wall: Duration, ran: Duration) {
        if n_threads < self.n_threads {
            return;
        }
        let mut governor = self.governor.lock();
        governor.saw(Decode { kind, wall, ran }, Instant::now());
        self.limit.store(governor.n_threads(), Ordering::Relaxed);
    }

    /// The pool for decodes of so many threads.
    pub(super) fn of(&self, n_threads: i32) -> *mut sys::ggml_threadpool {
        if n_threads == 1 { self.one.ptr.as_ptr() } else { self.all.ptr.as_ptr() }
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
        for pool in [&self.all, &self.one] {
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
