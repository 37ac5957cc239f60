//! Pauses of an engine: the host takes the processor for a moment, for example to draw a frame.
//!
//! The host counts its pauses in the [`PauseGate`] of the engine. While there are any, each thread of the engine sleeps at the gate as soon as it
//! looks: the threads of a decode at each barrier and between the pieces of products and attention (`kernels/pause.h`), the engine's thread
//! before each decode and between steps, a load between tensors. The threads go on where they were. A gate also ends the wait of a thread
//! that must do something during a pause, for example end a cancelled request.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::platform::{clock_ns, sleep_on, wake_all, wake_one};

/// The words that the host and the threads of an engine share. Two processes can share their memory, so nothing in it may make the reader
/// do anything but wait.
#[repr(C)]
#[derive(Debug, Default)]
struct PauseWords {
    /// The pauses that have not ended.
    n_pauses: AtomicU32,
    /// Changes when a wait may have to end. Threads sleep on it.
    events: AtomicU32,
    /// The threads that sleep or are about to.
    n_waiting: AtomicU32,
    /// Odd while the two times are written.
    version: AtomicU32,
    /// The duration of all pauses that have ended, in nanoseconds.
    paused_ns: AtomicU64,
    /// The time at which the running pause began. 0: there is none.
    since_ns: AtomicU64,
}

/// Where the threads of an engine sleep while the host pauses it.
#[derive(Debug)]
pub struct PauseGate {
    words: NonNull<PauseWords>,
    memory: GateMemory,
}

/// The owner of a gate's words.
#[derive(Debug)]
enum GateMemory {
    Own,
    /// Mapped memory that another process has, too.
    #[cfg(target_os = "linux")]
    Shared,
}

// SAFETY: the words are atomic, and live as long as the gate.
unsafe impl Send for PauseGate {}
// SAFETY: as above.
unsafe impl Sync for PauseGate {}

impl Default for PauseGate {
    fn default() -> Self {
        PauseGate { words: NonNull::from(Box::leak(Box::default())), memory: GateMemory::Own }
    }
}

impl PauseGate {
    fn words(&self) -> &PauseWords {
        // SAFETY: the words live as long as the gate, and all of them are atomic.
        unsafe { self.words.as_ref() }
    }

    /// The number of pauses, for kernels, which only read it.
    pub(crate) fn n_pauses(&self) -> NonNull<AtomicU32> {
        NonNull::from(&self.words().n_pauses)
    }

    /// Whether the engine is paused.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.words().n_pauses.load(Ordering::SeqCst) != 0
    }

    /// Sets the number of pauses. At 0 the threads go on. Only one thread at a time may call this.
    pub fn set(&self, n_pauses: u32) {
        let words = self.words();
        let before = words.n_pauses.load(Ordering::Relaxed);
        if (before == 0) != (n_pauses == 0) {
            let now = clock_ns();
            words.version.fetch_add(1, Ordering::SeqCst);
            if n_pauses == 0 {
                let since = words.since_ns.swap(0, Ordering::SeqCst);
                words.paused_ns.fetch_add(now.saturating_sub(since), Ordering::SeqCst);
            } else {
                words.since_ns.store(now.max(1), Ordering::SeqCst);
            }
            words.version.fetch_add(1, Ordering::SeqCst);
        }
        words.n_pauses.store(n_pauses, Ordering::SeqCst);
        if n_pauses == 0 && before != 0 {
            words.events.fetch_add(1, Ordering::SeqCst);
            // One wake-up is all that the host's thread pays for. The woken thread wakes the others.
            if words.n_waiting.load(Ordering::SeqCst) > 0 {
                wake_one(&words.events);
            }
        }
    }

    /// Wakes the waiting threads, so that each looks again whether it has to wait.
    pub fn notify(&self) {
        let words = self.words();
        words.events.fetch_add(1, Ordering::SeqCst);
        if words.n_waiting.load(Ordering::SeqCst) > 0 {
            wake_all(&words.events);
        }
    }

    /// The number of events so far, for [`PauseGate::wait`].
    #[must_use]
    pub fn events(&self) -> u32 {
        self.words().events.load(Ordering::SeqCst)
    }

    /// Sleeps until there is an event after `events`, which the caller read before it looked whether it has to wait. It may also return for
    /// no reason.
    pub fn wait(&self, events: u32, timeout: Option<Duration>) {
        let words = self.words();
        words.n_waiting.fetch_add(1, Ordering::SeqCst);
        sleep_on(&words.events, events, timeout);
        let others = words.n_waiting.fetch_sub(1, Ordering::SeqCst).saturating_sub(1);
        if others > 0 && !self.is_closed() {
            wake_all(&words.events);
        }
    }

    /// Sleeps while the engine is paused and `must_wait` is true, which is called again after each event. Returns whether it slept.
    pub fn wait_while(&self, mut must_wait: impl FnMut() -> bool) -> bool {
        let mut has_slept = false;
        loop {
            let events = self.events();
            if !self.is_closed() || !must_wait() {
                return has_slept;
            }
            self.wait(events, None);
            has_slept = true;
        }
    }

    /// The duration of all pauses so far, with the running one.
    #[must_use]
    pub fn paused_time(&self) -> Duration {
        let words = self.words();
        loop {
            let version = words.version.load(Ordering::SeqCst);
            let (paused, since) = (words.paused_ns.load(Ordering::SeqCst), words.since_ns.load(Ordering::SeqCst));
            // Another process may have ended while it wrote.
            if version.is_multiple_of(2) && words.version.load(Ordering::SeqCst) == version {
                let running = if since == 0 { 0 } else { clock_ns().saturating_sub(since) };
                return Duration::from_nanos(paused.saturating_add(running));
            }
            std::hint::spin_loop();
        }
    }
}

impl Drop for PauseGate {
    fn drop(&mut self) {
        match self.memory {
            // SAFETY: the words were leaked from a box in `default`, and nothing else frees them.
            GateMemory::Own => drop(unsafe { Box::from_raw(self.words.as_ptr()) }),
            #[cfg(target_os = "linux")]
            // SAFETY: the memory was mapped by `map` with this size, and nothing else unmaps it.
            GateMemory::Shared => unsafe {
                libc::munmap(self.words.as_ptr().cast(), size_of::<PauseWords>());
            },
        }
    }
}

/// Gates that two processes share: the host's, and that of an isolated engine. On Linux.
#[cfg(target_os = "linux")]
mod shared {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd as _, FromRawFd as _};
    use std::ptr::{NonNull, null_mut};

    use crate::threads::pause::{GateMemory, PauseGate, PauseWords};

    impl PauseGate {
        /// A gate in a file in memory, by which another process can open it.
        ///
        /// # Errors
        /// The system has no memory or descriptors.
        pub fn shared() -> io::Result<(PauseGate, File)> {
            // SAFETY: the name is NUL-terminated.
            let fd =
                unsafe { libc::memfd_create(c"foredraft-pause".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the descriptor is new, and nothing else owns it.
            let file = unsafe { File::from_raw_fd(fd) };
            file.set_len(size_of::<PauseWords>() as u64)?;
            let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
            // SAFETY: takes numbers. From now on the size stays, whatever another process does with the file.
            if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok((PauseGate::of_file(&file)?, file))
        }

        /// The gate in a file that [`PauseGate::shared`] has made, perhaps in another process.
        ///
        /// # Errors
        /// The file has no such memory.
        pub fn of_file(file: &File) -> io::Result<PauseGate> {
            if file.metadata()?.len() < size_of::<PauseWords>() as u64 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: maps new memory of the file, which has that size and is sealed.
            let mapped = unsafe {
                libc::mmap(null_mut(), size_of::<PauseWords>(), access, libc::MAP_SHARED, file.as_raw_fd(), 0)
            };
            match NonNull::new(mapped.cast()).filter(|_| mapped != libc::MAP_FAILED) {
                // Zeros are valid words, as is anything else.
                Some(words) => Ok(PauseGate { words, memory: GateMemory::Shared }),
                None => Err(io::Error::last_os_error()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_waiting_thread_goes_on_after_the_pause() {
        let gate = Arc::new(PauseGate::default());
        gate.set(1);
        let n_awake = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (gate, n_awake) = (Arc::clone(&gate), Arc::clone(&n_awake));
                std::thread::spawn(move || {
                    assert!(gate.wait_while(|| true));
                    n_awake.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        while gate.words().n_waiting.load(Ordering::SeqCst) < 4 {
            std::thread::yield_now();
        }
        gate.set(2);
        gate.set(1);
        gate.notify();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(n_awake.load(Ordering::SeqCst), 0, "one pause is left");
        gate.set(0);
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert!(!gate.wait_while(|| true), "no pause is left");
    }

    #[test]
    fn a_wait_ends_when_its_condition_does() {
        let gate = Arc::new(PauseGate::default());
        let is_cancelled = Arc::new(AtomicUsize::new(0));
        gate.set(1);
        let (waiting, condition) = (Arc::clone(&gate), Arc::clone(&is_cancelled));
        let thread = std::thread::spawn(move || waiting.wait_while(|| condition.load(Ordering::SeqCst) == 0));
        std::thread::sleep(Duration::from_millis(5));
        is_cancelled.store(1, Ordering::SeqCst);
        gate.notify();
        thread.join().expect("it ends");
        assert!(gate.is_closed());
    }

    #[test]
    fn pauses_are_timed_once_however_many_overlap() {
        let gate = PauseGate::default();
        assert_eq!(gate.paused_time(), Duration::ZERO);
        let begin = Instant::now();
        gate.set(1);
        gate.set(2);
        std::thread::sleep(Duration::from_millis(10));
        let running = gate.paused_time();
        gate.set(1);
        gate.set(0);
        let total = gate.paused_time();
        assert!(running >= Duration::from_millis(10) && total >= running && total <= begin.elapsed(), "{total:?}");
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(gate.paused_time(), total);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn shared_gates_are_one() {
        let (here, file) = PauseGate::shared().expect("a file in memory");
        let there = PauseGate::of_file(&file).expect("the same memory");
        drop(file);
        here.set(3);
        assert!(there.is_closed());
        let thread = std::thread::spawn(move || there.wait_while(|| true));
        while here.words().n_waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        here.set(0);
        assert!(thread.join().expect("it wakes"));
        let small = std::fs::File::open("/dev/null").expect("a file");
        assert!(PauseGate::of_file(&small).is_err());
    }
}
