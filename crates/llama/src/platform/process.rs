//! The process of an isolated engine: how it ends with its host, what it inherits, and its limits. On Linux.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

/// Lets the kernel end this process when the thread that started it ends. Returns false if the starter has ended already.
pub fn end_with_parent(parent: u32) -> bool {
    // SAFETY: a request about this process, with a signal number.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: returns a number.
    u32::try_from(unsafe { libc::getppid() }) == Ok(parent)
}

/// Closes all files that this process inherited, except for the first three. Call it before anything opens a file.
pub fn close_inherited_files() {
    // SAFETY: nothing in this process has opened a file yet, so nothing owns these descriptors. Without the call (before Linux 5.9) they
    // stay open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// Takes the file that is the standard output, and puts `/dev/null` in its place.
///
/// # Errors
/// There is none, or the system has no more descriptors.
pub fn take_stdout() -> io::Result<File> {
    let stdout = io::stdout();
    let taken = stdout.as_fd().try_clone_to_owned()?;
    // Without it the standard output stays what it was, and nothing is written to it.
    if let Ok(ignored) = File::options().write(true).open("/dev/null") {
        // SAFETY: takes numbers. The standard output stays open.
        unsafe { libc::dup2(ignored.as_raw_fd(), stdout.as_raw_fd()) };
    }
    Ok(taken.into())
}

/// Lets signals that mean a crash end this process. Rust's own handlers, which explain an overflow of the stack, swallow the first one that
/// another process sends.
pub fn restore_crash_signals() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: sets the default action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Lets this process have every signal. It inherits the mask of a thread of the library, which blocks most of them.
pub fn unblock_signals() {
    // SAFETY: zeros are a valid set, the set is writable, and the call changes this thread's mask alone.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Makes a write beyond the limit on file sizes an error, instead of the end of this process.
pub fn survive_file_limit() {
    // SAFETY: sets an action.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Limits the memory of this process that is not a file's.
///
/// # Errors
/// The system refuses it.
pub fn limit_memory(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: reads a struct that lives during the call.
    succeeded(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) })
}

/// Sets the nice value of this process.
///
/// # Errors
/// The system refuses it.
pub fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: takes numbers.
    succeeded(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })
}

/// Restricts this thread, and those that it starts, to these CPUs.
///
/// # Errors
/// The system refuses it.
pub fn set_cpus(cpus: impl Iterator<Item = usize>) -> io::Result<()> {
    // SAFETY: a set of zeros is an empty set. `CPU_SET` ignores numbers beyond its size. The call reads the set.
    succeeded(unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let most = 8 * size_of::<libc::cpu_set_t>();
        cpus.filter(|cpu| *cpu < most).for_each(|cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    })
}

/// Ends this process at once: no exit handlers, no destructors.
pub fn end_now(status: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(status) }
}

/// Ends a process and those that it has started, if it leads a process group.
pub fn kill_group(leader: u32) {
    if let Ok(leader) = libc::pid_t::try_from(leader)
        && leader > 1
    {
        // SAFETY: takes numbers. The group has the number of a child that was not waited for, so no other one has it.
        unsafe { libc::kill(-leader, libc::SIGKILL) };
    }
}

/// Writes all bytes to a socket. A closed one is an error and no SIGPIPE, whose handling belongs to the host.
///
/// # Errors
/// The other end is closed, or has failed.
pub fn send_all(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: reads the slice, which lives during the call.
        let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or(&[]),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

fn succeeded(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
