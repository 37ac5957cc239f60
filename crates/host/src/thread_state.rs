//! The state that a thread inherits from its starter and that a host may have changed: floating-point control and the signal mask.
//!
//! A host that rounds upwards, flushes denormals to zero or traps exceptions (`fesetround`, `-ffast-math`, `feenableexcept`) would change
//! the tokens of a completion, or end the process by SIGFPE in a kernel. And a signal for the process that the host blocks on its own
//! threads would be delivered to one of the library's.

/// While it lives, the calling thread computes as every thread does at the start of a process: it rounds to nearest, keeps denormals, and
/// traps nothing. Then it gets back what it had, flags of exceptions included.
#[derive(Debug)]
pub struct StandardFloats {
    before: FloatControl,
}

impl StandardFloats {
    /// Sets the standard state on the calling thread.
    pub fn new() -> StandardFloats {
        let before = FloatControl::of_this_thread();
        FloatControl::STANDARD.apply();
        StandardFloats { before }
    }
}

impl Default for StandardFloats {
    fn default() -> Self {
        StandardFloats::new()
    }
}

impl Drop for StandardFloats {
    fn drop(&mut self) {
        self.before.apply();
    }
}

/// The control registers. (Rust knows nothing of C's `fenv_t`.)
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FloatControl {
    /// The register of SSE and AVX, with the flags of exceptions.
    mxcsr: u32,
    /// The x87's register, which glibc reads when it parses and prints numbers.
    x87: u16,
    /// The x87's flags of exceptions.
    x87_flags: u16,
}

#[cfg(target_arch = "x86_64")]
impl FloatControl {
    /// The ABI's values at the start of a process.
    const STANDARD: FloatControl = FloatControl { mxcsr: 0x1F80, x87: 0x037F, x87_flags: 0 };
    /// Flags in the status of the x87, and their summary.
    const X87_FLAGS: u16 = 0x80FF;

    fn of_this_thread() -> FloatControl {
        let mut control = FloatControl::STANDARD;
        // SAFETY: the instructions store three registers in memory of their sizes.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control.mxcsr, options(nostack, preserves_flags));
            std::arch::asm!("fnstcw [{}]", in(reg) &raw mut control.x87, options(nostack, preserves_flags));
            std::arch::asm!("fnstsw [{}]", in(reg) &raw mut control.x87_flags, options(nostack, preserves_flags));
        }
        control.x87_flags &= Self::X87_FLAGS;
        control
    }

    fn apply(self) {
        // SAFETY: the values are the standard ones, or came from these registers. Rust's code computes nothing between a value and the
        // standard one: the host's code runs before, or after.
        unsafe {
            if FloatControl::of_this_thread().x87_flags != self.x87_flags {
                // A flag whose exception the host traps would end it.
                let mut environment = [0_u32; 7];
                std::arch::asm!("fnstenv [{}]", in(reg) &raw mut environment, options(nostack, preserves_flags));
                environment[1] = environment[1] & !u32::from(Self::X87_FLAGS) | u32::from(self.x87_flags);
                std::arch::asm!("fldenv [{}]", in(reg) &raw const environment, options(nostack, preserves_flags));
            }
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const self.mxcsr, options(nostack, preserves_flags));
            std::arch::asm!("fldcw [{}]", in(reg) &raw const self.x87, options(nostack, preserves_flags));
        }
    }
}

/// The control register, and the one with the flags of exceptions.
#[cfg(target_arch = "aarch64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FloatControl {
    fpcr: u64,
    fpsr: u64,
}

#[cfg(target_arch = "aarch64")]
impl FloatControl {
    const STANDARD: FloatControl = FloatControl { fpcr: 0, fpsr: 0 };

    fn of_this_thread() -> FloatControl {
        let (fpcr, fpsr): (u64, u64);
        // SAFETY: reads two registers.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags));
            std::arch::asm!("mrs {}, fpsr", out(reg) fpsr, options(nomem, nostack, preserves_flags));
        }
        FloatControl { fpcr, fpsr }
    }

    fn apply(self) {
        // SAFETY: the values are the standard ones, or came from these registers. Rust's code computes nothing between a value and the
        // standard one: the host's code runs before, or after.
        unsafe {
            std::arch::asm!("msr fpcr, {}", in(reg) self.fpcr, options(nostack, preserves_flags));
            std::arch::asm!("msr fpsr, {}", in(reg) self.fpsr, options(nostack, preserves_flags));
        }
    }
}

/// On other processors threads compute as the host's do.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FloatControl;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl FloatControl {
    const STANDARD: FloatControl = FloatControl;

    fn of_this_thread() -> FloatControl {
        FloatControl
    }

    fn apply(self) {}
}

/// While it lives, threads that the calling thread starts block all signals but those that mean a crash, and those that runtimes send to a
/// single thread. Profilers send SIGPROF. To stop a thread that a callback has made known to it, Boehm's garbage collector sends SIGPWR and
/// SIGXCPU; Mono and .NET's runtime send real-time signals, which Mono chooses at run time. A thread that blocked one of them would let a
/// collection wait for ever. Signals for the process are the host's threads'.
///
/// Signals that the calling thread blocks already stay blocked: a host that reads a real-time signal from a `signalfd` blocks it on its
/// threads, and the signal would end the process on a thread that does not. (glibc keeps its own two, 32 and 33, out of every mask.)
#[cfg(unix)]
pub struct SignalsBlocked {
    before: libc::sigset_t,
}

#[cfg(unix)]
impl SignalsBlocked {
    const DELIVERED: &[i32] = &[
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGSYS,
        libc::SIGPROF,
        libc::SIGXCPU,
        #[cfg(target_os = "linux")]
        libc::SIGPWR,
    ];

    /// Blocks the signals on the calling thread.
    pub fn new() -> SignalsBlocked {
        // SAFETY: the sets are writable, zeros are valid for these plain structures, and the calls change this thread's mask alone.
        unsafe {
            let (mut blocked, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut blocked);
            for signal in Self::DELIVERED {
                libc::sigdelset(&raw mut blocked, *signal);
            }
            // macOS has no real-time signals, and runtimes suspend threads there without signals.
            #[cfg(target_os = "linux")]
            for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
                libc::sigdelset(&raw mut blocked, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before);
            SignalsBlocked { before }
        }
    }
}

#[cfg(unix)]
impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask was this thread's.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Runs `work` while a signal is blocked on this thread that the system sends to a thread whose write fails: SIGPIPE or SIGXFSZ, which end
/// a process. The host's handling of the signal is not changed.
#[cfg(unix)]
pub fn without_signal<R>(signal: i32, work: impl FnOnce() -> R) -> R {
    // SAFETY: zeros are valid for these plain structures, and the sets are local. The signal mask belongs to this thread, and is restored
    // at the end. If the signal was not pending before and is now, `sigwait` removes it without waiting.
    unsafe {
        let (mut only, mut former) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        let is_pending = || {
            let mut pending = std::mem::zeroed();
            libc::sigpending(&raw mut pending) == 0 && libc::sigismember(&raw const pending, signal) == 1
        };
        let was_pending = is_pending();
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, &raw mut former);
        let result = work();
        if !was_pending && is_pending() {
            let mut taken = 0;
            libc::sigwait(&raw const only, &raw mut taken);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former, std::ptr::null_mut());
        result
    }
}

/// Windows has no signals that a thread blocks.
#[cfg(not(unix))]
pub struct SignalsBlocked;

#[cfg(not(unix))]
impl SignalsBlocked {
    /// Blocks nothing.
    pub fn new() -> SignalsBlocked {
        SignalsBlocked
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        SignalsBlocked::new()
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "x86_64")]
    use super::*;

    /// One divided by zero, by the x87, which sets a flag.
    #[cfg(target_arch = "x86_64")]
    fn divide_by_zero() {
        // SAFETY: leaves the x87's stack as it was; exceptions are masked where this is called.
        unsafe { std::arch::asm!("fld1", "fldz", "fdivp", "fstp st(0)", options(nomem, nostack)) };
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn what_the_thread_had_is_given_back() {
        let own = FloatControl::of_this_thread();
        // Both round upwards and trap divisions by zero, denormals are flushed, and an earlier operation was inexact.
        let changed = FloatControl { mxcsr: 0xDDC0 | 0x20, x87: 0x0B7B, x87_flags: 0x20 };
        changed.apply();
        {
            let _standard = StandardFloats::new();
            assert_eq!(FloatControl::of_this_thread(), FloatControl::STANDARD);
            divide_by_zero();
            assert_eq!(FloatControl::of_this_thread().x87_flags, 4);
        }
        let after = FloatControl::of_this_thread();
        own.apply();
        assert_eq!(after, changed);
    }
}
