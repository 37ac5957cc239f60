//! ggml's thread pool: made once, shared by the target's and the draft's context.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_2 as sys;

use super::backend;
use super::guard::{Why, foredraft_threadpool_new};
use crate::error::{Error, Result};

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);

/// Threads that evaluate graphs. Without an attached pool ggml starts and ends its threads at every evaluation,
/// which is a large part of a small draft's step; with a pool for each context their idle threads, which poll
/// for work, fight for the cores. So there is one.
#[derive(Debug)]
pub struct ThreadPool {
    ptr: NonNull<sys::ggml_threadpool>,
    free: Free,
    /// Its threads wait for one that has left a graph by an exception. They never end, and would go on with memory that
    /// is gone if there were another graph.
    is_broken: AtomicBool,
}

// SAFETY: the pool is only handed to contexts, which one thread uses at a time; the pool itself may be moved.
unsafe impl Send for ThreadPool {}
// SAFETY: no method touches the pool through a shared reference except to pass its address on.
unsafe impl Sync for ThreadPool {}

impl ThreadPool {
    /// A pool of `n_threads`, the calling one counted.
    ///
    /// # Errors
    /// The system gives no more threads, or there is no CPU backend.
    pub fn new(n_threads: i32) -> Result<ThreadPool> {
        backend::start();
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
            let mut params = sys::ggml_threadpool_params_default(n_threads.max(1));
            // It asserts that the system gives it so many.
            let mut why = Why::new();
            let ptr = NonNull::new(foredraft_threadpool_new(new, &raw mut params, why.ptr(), why.size()));
            let refused =
                || Error::model(format!("n_threads: no {n_threads} threads could be made: {}", why.message()));
            Ok(ThreadPool { ptr: ptr.ok_or_else(refused)?, free, is_broken: AtomicBool::new(false) })
        }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.ptr.as_ptr()
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
        // To free a broken one would wait for its threads.
        if !self.is_broken() {
            // SAFETY: contexts hold an `Arc` of the pool they are attached to, so none uses it any more.
            unsafe { (self.free)(self.ptr.as_ptr()) }
        }
    }
}
