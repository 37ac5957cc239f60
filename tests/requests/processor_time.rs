//! The time that work takes of the processor, whatever else runs there, and how fast the processor is.

use std::time::Duration;

/// A fixed work, and the time that it took on the processor for which the limits of tests are written.
const STEPS: u64 = 20_000_000;
const TIME_OF_STEPS: Duration = Duration::from_millis(240);

/// The processor time of this thread so far.
pub fn of_this_thread() -> Duration {
    #[cfg(unix)]
    return of_clock(libc::CLOCK_THREAD_CPUTIME_ID);
    #[cfg(not(unix))]
    of_a_clock_on_the_wall()
}

/// The processor time of this process so far.
pub fn of_all_threads() -> Duration {
    #[cfg(unix)]
    return of_clock(libc::CLOCK_PROCESS_CPUTIME_ID);
    #[cfg(not(unix))]
    of_a_clock_on_the_wall()
}

#[cfg(unix)]
fn of_clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

#[cfg(not(unix))]
fn of_a_clock_on_the_wall() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// How much longer this processor takes now; at least 1.
pub fn slowness() -> f64 {
    let before = of_this_thread();
    let mut state = 1_u64;
    for _ in 0..STEPS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::hint::black_box((state >> 33) % std::hint::black_box(7));
    }
    ((of_this_thread() - before).as_secs_f64() / TIME_OF_STEPS.as_secs_f64()).max(1.0)
}
