//! Whose a temporary file is: its name has the machine, the process id and the start of the process, so that the file of a process that was
//! killed can be told from one that is being written. Another process can get the same id, but not the same start.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

/// A temporary file of another machine, which shares the folder, is removed when it is older than this.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// A process that writes files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WriterProcess {
    /// A hash of the machine's boot and of the namespace of process ids. 0: unknown.
    pub(super) machine: u32,
    pub(super) process: u32,
    /// When it started, in the system's ticks.
    pub(super) start: u64,
}

impl fmt::Display for WriterProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WriterProcess { machine, process, start } = self;
        write!(f, "{machine:08x}-{process}-{start}")
    }
}

impl WriterProcess {
    /// This process.
    pub(super) fn this() -> WriterProcess {
        let process = std::process::id();
        WriterProcess::of(process).unwrap_or(WriterProcess { machine: 0, process, start: 0 })
    }

    /// The process with this id. `None`: there is none, it has ended, or the system does not tell.
    pub(super) fn of(process: u32) -> Option<WriterProcess> {
        static MACHINE: LazyLock<Option<u32>> = LazyLock::new(machine);
        let machine = (*MACHINE)?;
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name, in parentheses, can contain anything.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let has_ended = matches!(fields.next()?, "Z" | "X" | "x");
        // proc(5): the state is field 3, the start field 22.
        let start = fields.nth(18)?.parse().ok()?;
        (!has_ended).then_some(WriterProcess { machine, process, start })
    }

    /// The writer of a temporary file with this name.
    fn of_file(name: &str) -> Option<WriterProcess> {
        let name = name.strip_prefix('.')?.strip_suffix(".part")?;
        let tag = name.rsplit_once('.').map_or(name, |(_, tag)| tag);
        let mut parts = tag.split('-');
        let machine = parts.next().filter(|machine| machine.len() == 8)?;
        let writer = WriterProcess {
            machine: u32::from_str_radix(machine, 16).ok()?,
            process: parts.next()?.parse().ok()?,
            start: parts.next()?.parse().ok()?,
        };
        let _number: u64 = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(writer)
    }
}

/// A hash of what tells process ids of this machine, boot and namespace from others. `None`: the system has no such thing.
fn machine() -> Option<u32> {
    let mut hasher = DefaultHasher::new();
    fs::read("/proc/sys/kernel/random/boot_id").ok()?.hash(&mut hasher);
    fs::read_link("/proc/self/ns/pid").ok()?.hash(&mut hasher);
    let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
    Some(u32::from_le_bytes([a, b, c, d]).max(1))
}

/// Removes the temporary files in a folder whose writers were killed. What cannot be removed stays.
pub(super) fn remove_stale(folder: &Path) {
    let this = WriterProcess::this();
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(writer) = name.to_str().and_then(WriterProcess::of_file) else { continue };
        let is_stale = if this.machine != 0 && writer.machine == this.machine {
            writer != this && WriterProcess::of(writer.process) != Some(writer)
        } else {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            modified.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > ABANDONED))
        };
        if is_stale {
            // Another process may have removed it.
            let _ = fs::remove_file(entry.path());
        }
    }
}
