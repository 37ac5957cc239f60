//! The default number of threads.

use crate::platform::cpus::CpuSet;
use crate::platform::{allowed_cpus, physical_cores};

/// With more cores than this, one core is left to the host.
const MAX_ALL_USED: usize = 4;

/// The default number of threads: one for each physical core that this process may use, limited by a cgroup's CPU quota. With more than
/// four cores, one is left to the host. On processors with two kinds of cores, only the faster ones count.
pub(crate) fn default_threads() -> i32 {
    i32::try_from(threads_for(usable_cores())).unwrap_or(i32::MAX).min(512)
}

/// The physical cores that this process may use, limited by a cgroup's CPU quota.
#[must_use]
pub fn usable_cores() -> usize {
    n_cores(&allowed_cpus())
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
    physical_cores(cpus).map_or(allowed, |cores| cores.min(allowed))
}

fn threads_for(cores: usize) -> usize {
    if cores > MAX_ALL_USED { cores - 1 } else { cores.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_of_many_is_left_to_the_host() {
        for (cores, threads) in [(0, 1), (1, 1), (2, 2), (4, 4), (5, 4), (16, 15)] {
            assert_eq!(threads_for(cores), threads, "{cores}");
        }
    }
}
