//! Decides which calls a forked process may make.
//!
//! A forked child has one thread. A lock that another thread held at the moment of the fork stays locked there, and a wait for another
//! thread never ends. So the library counts its own threads and the calls that are inside it. If there were any on other threads when the
//! process was forked, the child is *cut off*: the C interface answers every call with an error, and takes no lock for that. A child that was
//! forked at any other time has the whole library.
//!
//! It also tells when the threads that were started have begun. A thread takes memory when it begins, and the C library ends the process if
//! there is none. So a load waits for its threads at its end ([`wait_for_starts`]): a host that takes the memory afterwards meets none of them.
//! (The threads of ggml's pool take none when they begin.)

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::thread_state::{SignalsBlocked, StandardFloats};

/// The threads of the library that have not ended.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Those of them that have not begun. A thread that holds the lock is counted in [`THREADS`] or in [`CALLS`], so a child that inherits it
/// locked is cut off.
static STARTING: Mutex<usize> = Mutex::new(0);
static BEGUN: Condvar = Condvar::new();
/// The longest wait for threads to begin. A thread of idle priority may get no core for seconds.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// The calls of the C interface that have not returned, of all threads.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Why every function fails in a process that is cut off.
pub const REASON: &str = "this process was forked from one that had a model loaded or was inside a call, and has none of its threads: \
                          fork before loading";

static IS_CUT_OFF: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The calls of this thread that have not returned: more than one if a callback calls the library.
    static OWN_CALLS: Cell<usize> = const { Cell::new(0) };
    /// Whether [`make_thread_locals`] has run.
    static HAS_LOCALS: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread of the library, with its own [state](crate::thread_state), which it hands on to threads that it starts. (Scoped threads
/// need not be counted, because the thread that waits for them is.)
///
/// # Errors
/// As [`Builder::spawn`].
pub fn spawn<R: Send + 'static>(name: &str, work: impl FnOnce() -> R + Send + 'static) -> io::Result<JoinHandle<R>> {
    start(Builder::new().name(name.into()), work)
}

/// As [`spawn`], with a stack of that many bytes.
///
/// # Errors
/// As [`Builder::spawn`].
pub fn spawn_with_stack<R: Send + 'static>(
    name: &str,
    stack: usize,
    work: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    start(Builder::new().name(name.into()).stack_size(stack), work)
}

/// Runs `work` on a thread with a stack of that many bytes, and waits for it. The inner error: `work` panicked.
///
/// # Errors
/// As [`Builder::spawn`].
pub fn run_with_stack<R: Send>(
    name: &str,
    stack: usize,
    work: impl FnOnce() -> R + Send,
) -> io::Result<std::thread::Result<R>> {
    std::thread::scope(|scope| {
        let blocked = SignalsBlocked::new();
        let builder = Builder::new().name(name.into()).stack_size(stack);
        let thread = builder.spawn_scoped(scope, counted(work))?;
        drop(blocked);
        Ok(thread.join())
    })
}

fn start<R: Send + 'static>(builder: Builder, work: impl FnOnce() -> R + Send + 'static) -> io::Result<JoinHandle<R>> {
    let _blocked = SignalsBlocked::new();
    builder.spawn(counted(work))
}

/// The work of a thread that is counted from now until it has ended, and has its own floating-point state.
fn counted<R>(work: impl FnOnce() -> R) -> impl FnOnce() -> R {
    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            THREADS.fetch_sub(1, Ordering::AcqRel);
        }
    }
    struct Starting;
    impl Drop for Starting {
        fn drop(&mut self) {
            *STARTING.lock() -= 1;
            BEGUN.notify_all();
        }
    }
    THREADS.fetch_add(1, Ordering::AcqRel);
    *STARTING.lock() += 1;
    let (running, starting) = (Running, Starting);
    move || {
        let _running = running;
        let _floats = StandardFloats::new();
        make_thread_locals();
        drop(starting);
        work()
    }
}

/// Makes the values with destructors that every thread has as soon as it waits for a lock or a channel: the C library ends the process if it
/// has no memory to register them.
pub fn make_thread_locals() {
    if HAS_LOCALS.replace(true) {
        return;
    }
    // Neither waits, but both make what a wait needs.
    Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::ZERO);
    let (_sender, receiver) = crossbeam_channel::bounded::<()>(0);
    let _ = receiver.recv_timeout(Duration::ZERO);
}

/// Waits until all threads that were started have begun, or for 5 seconds. Threads need nothing of the caller for that, so it may hold locks.
/// One wait at the end of a load costs less than one at each start, and calls that must not wait can start threads.
pub fn wait_for_starts() {
    BEGUN.wait_while_for(&mut STARTING.lock(), |starting| *starting > 0, START_PATIENCE);
}

/// A call of the C interface, until it is dropped.
#[derive(Debug)]
pub struct HostCall(());

impl HostCall {
    /// A call of this thread begins.
    pub fn begin() -> HostCall {
        OWN_CALLS.with(|own| own.set(own.get() + 1));
        CALLS.fetch_add(1, Ordering::AcqRel);
        HostCall(())
    }
}

impl Drop for HostCall {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::AcqRel);
        OWN_CALLS.with(|own| own.set(own.get() - 1));
    }
}

/// The system calls this in a child that was just forked.
pub fn after_fork() {
    let own = OWN_CALLS.with(Cell::get);
    if THREADS.load(Ordering::Acquire) > 0 || CALLS.load(Ordering::Acquire) > own {
        IS_CUT_OFF.store(true, Ordering::Release);
    }
}

/// Whether this process must not use what its parent had.
pub fn is_cut_off() -> bool {
    IS_CUT_OFF.load(Ordering::Acquire)
}
