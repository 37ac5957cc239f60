//! The default number of threads.

use std::collections::BTreeSet;
use std::path::Path;

use crate::llama::CpuSet;

/// With more cores than this, one core is left to the host.
const MAX_ALL_USED: usize = 4;

/// The default number of threads: one for each physical core that this process may use, limited by a cgroup's CPU quota. With more than
/// four cores, one is left to the host. On processors with two kinds of cores, only the faster ones count.
pub(in crate::llama) fn default_threads() -> i32 {
    i32::try_from(threads_for(n_cores(&allowed_cpus()))).unwrap_or(i32::MAX).min(512)
}

/// The default number of threads on these CPUs: one for each of their physical cores. CPUs that this process cannot use are ignored, unless
/// all of them are. No core is left to the host, because the host can use the other CPUs.
#[must_use]
pub fn default_threads_on(cpus: &CpuSet) -> i32 {
    let allowed = allowed_cpus();
    let (usable, others): (Vec<usize>, Vec<usize>) = cpus.iter().partition(|cpu| allowed.contains(cpu));
    let cpus = if usable.is_empty() { others } else { usable };
    i32::try_from(n_cores(&cpus).clamp(1, cpus.len().max(1))).unwrap_or(1)
}

/// The number of physical cores of these CPUs. If that is unknown, the number of CPUs that this process can use.
fn n_cores(cpus: &[usize]) -> usize {
    // Takes affinity and quotas into account.
    let allowed = std::thread::available_parallelism().map_or(4, usize::from);
    physical_cores(Path::new("/sys/devices"), cpus).map_or(allowed, |cores| cores.min(allowed))
}

fn threads_for(cores: usize) -> usize {
    if cores > MAX_ALL_USED { cores - 1 } else { cores.max(1) }
}

/// The CPUs in this process's affinity mask. Empty if unknown.
pub(in crate::llama) fn allowed_cpus() -> Vec<usize> {
    cpus_allowed("/proc/self/status")
}

/// The CPUs in the calling thread's affinity mask.
#[cfg(all(test, target_os = "linux"))]
pub(in crate::llama) fn cpus_of_this_thread() -> Vec<usize> {
    cpus_allowed("/proc/thread-self/status")
}

fn cpus_allowed(status: &str) -> Vec<usize> {
    // Read as a list, because `sched_getaffinity` has a fixed size.
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(|list| cpu_list(list.trim())).unwrap_or_default()
}

/// The number of physical cores of these CPUs. `None`: unknown.
fn physical_cores(devices: &Path, cpus: &[usize]) -> Option<usize> {
    let fast = std::fs::read_to_string(devices.join("cpu_core/cpus")).map(|list| cpu_list(list.trim())).ok();
    let is_fast = |cpu: &&usize| fast.as_ref().is_none_or(|fast| fast.contains(cpu));
    let fast: Vec<usize> = cpus.iter().filter(is_fast).copied().collect();
    let cpus = if fast.is_empty() { cpus } else { &fast };
    let siblings = |cpu: &usize| {
        let file = devices.join(format!("system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        std::fs::read_to_string(file).ok()
    };
    let cores: Option<BTreeSet<String>> = cpus.iter().map(siblings).collect();
    cores.map(|cores| cores.len()).filter(|n| *n > 0)
}

/// Parses a list of CPUs such as `0-3,8`.
fn cpu_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        for (list, cpus) in [("0", vec![0]), ("0-3", vec![0, 1, 2, 3]), ("1,4-5,9", vec![1, 4, 5, 9]), ("", vec![])] {
            assert_eq!(cpu_list(list), cpus, "{list}");
        }
    }

    #[test]
    fn one_core_of_many_is_left_to_the_host() {
        for (cores, threads) in [(0, 1), (1, 1), (2, 2), (4, 4), (5, 4), (16, 15)] {
            assert_eq!(threads_for(cores), threads, "{cores}");
        }
    }

    /// Two fast cores with two threads each, and four slow ones.
    fn hybrid() -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!(
            "foredraft-cores-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        for (cpu, siblings) in ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"].iter().enumerate() {
            let folder = root.join(format!("system/cpu/cpu{cpu}/topology"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("thread_siblings_list"), format!("{siblings}\n")).unwrap();
        }
        root
    }

    #[test]
    fn threads_of_a_core_count_once_and_slow_cores_only_where_there_are_no_others() {
        let root = hybrid();
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(physical_cores(&root, &all), Some(6));
        assert_eq!(physical_cores(&root, &[0, 1]), Some(1));
        assert_eq!(physical_cores(&root, &[1, 2, 5]), Some(3));
        assert_eq!(physical_cores(&root, &[]), None);
        assert_eq!(physical_cores(&root, &[0, 99]), None, "not known");
        std::fs::create_dir_all(root.join("cpu_core")).unwrap();
        std::fs::write(root.join("cpu_core/cpus"), "0-3\n").unwrap();
        assert_eq!(physical_cores(&root, &all), Some(2));
        assert_eq!(physical_cores(&root, &[4, 5]), Some(2));
        std::fs::remove_dir_all(root).unwrap();
    }
}
