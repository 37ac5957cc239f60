//! Sets of CPUs, and priorities of threads, as a load gives them.

/// `GGML_MAX_N_THREADS`: the maximum number of CPUs in a [`CpuSet`].
const MAX_CPUS: usize = 512;
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPUs, by the operating system's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// Parses a mask in hexadecimal digits, with or without `0x`. The last digit has the CPUs 0 to 3. `None`: another character, or a CPU
    /// above 511.
    #[must_use]
    pub fn from_mask(mask: &str) -> Option<CpuSet> {
        let digits = mask.strip_prefix("0x").unwrap_or(mask);
        let mut set = CpuSet::default();
        for (place, digit) in digits.chars().rev().enumerate() {
            let bits = digit.to_digit(16)?;
            for bit in (0..4).filter(|bit| bits & (1 << bit) != 0) {
                set.insert(4 * place + bit)?;
            }
        }
        Some(set)
    }

    /// Parses a range `first-last`. The defaults are 0 and 511. `None`: invalid.
    #[must_use]
    pub fn from_range(range: &str) -> Option<CpuSet> {
        let (first, last) = range.split_once('-')?;
        let number = |text: &str, otherwise: usize| match text.trim() {
            "" => Some(otherwise),
            text => text.parse::<usize>().ok(),
        };
        let (first, last) = (number(first, 0)?, number(last, MAX_CPUS - 1)?);
        let mut set = CpuSet::default();
        (first <= last && last < MAX_CPUS).then_some(())?;
        for cpu in first..=last {
            set.insert(cpu)?;
        }
        Some(set)
    }

    /// The union of both sets.
    #[must_use]
    pub fn union(mut self, other: CpuSet) -> CpuSet {
        self.words.iter_mut().zip(other.words).for_each(|(word, more)| *word |= more);
        self
    }

    /// Whether the set is empty. Threads then keep their affinity.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MAX_CPUS).filter(|cpu| self.contains(*cpu))
    }

    fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// `None`: the CPU's number is too large.
    pub(crate) fn insert(&mut self, cpu: usize) -> Option<()> {
        *self.words.get_mut(cpu / 64)? |= 1 << (cpu % 64);
        Some(())
    }
}

/// The CPUs as a list of ranges: `0-3,8`.
impl std::fmt::Display for CpuSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        for first in self.iter().filter(|cpu| *cpu == 0 || !self.contains(cpu - 1)) {
            let last = (first..MAX_CPUS).take_while(|cpu| self.contains(*cpu)).last().unwrap_or(first);
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// `ggml_sched_priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThreadPriority {
    /// Only when nothing else runs: `SCHED_IDLE` on Linux, idle on Windows, the background class on macOS.
    Idle,
    /// For background work: `SCHED_BATCH` on Linux, below normal on Windows.
    Low,
    /// The priority of the thread that loaded the model.
    #[default]
    Normal,
    /// Above all normal threads of the machine: `SCHED_FIFO` 40 on Linux, which needs `CAP_SYS_NICE` or a limit for `rtprio`; above normal on
    /// Windows.
    Medium,
    /// `SCHED_FIFO` 80; the highest on Windows.
    High,
    /// `SCHED_FIFO` 90; time-critical on Windows.
    Realtime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_ranges_are_llama_cpps() {
        let cpus = |set: Option<CpuSet>| set.map(|set| set.iter().collect::<Vec<_>>());
        for (mask, expected) in [
            ("0x5", Some(vec![0, 2])),
            ("F0", Some(vec![4, 5, 6, 7])),
            ("1ff", Some((0..9).collect())),
            ("10000000000000000", Some(vec![64])),
            ("0", Some(vec![])),
            ("", Some(vec![])),
            ("xyz", None),
            ("-1", None),
        ] {
            assert_eq!(cpus(CpuSet::from_mask(mask)), expected, "{mask}");
        }
        assert_eq!(cpus(CpuSet::from_mask(&format!("8{}", "0".repeat(127)))), Some(vec![511]));
        assert_eq!(cpus(CpuSet::from_mask(&format!("1{}", "0".repeat(128)))), None);
        for (range, expected) in [
            ("0-1", Some(vec![0, 1])),
            ("3-3", Some(vec![3])),
            ("-2", Some(vec![0, 1, 2])),
            ("510-", Some(vec![510, 511])),
            ("-", Some((0..512).collect())),
            ("2-1", None),
            ("0-512", None),
            ("1", None),
            ("", None),
            ("0-1-2", None),
        ] {
            assert_eq!(cpus(CpuSet::from_range(range)), expected, "{range}");
        }
    }

    #[test]
    fn sets_are_printed_as_ranges() {
        let set = CpuSet::from_range("0-2").and_then(|set| Some(set.union(CpuSet::from_mask("150")?)));
        assert_eq!(set.map(|set| set.to_string()).as_deref(), Some("0-2,4,6,8"));
    }
}
