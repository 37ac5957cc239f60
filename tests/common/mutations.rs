//! Damaged files. `FOREDRAFT_FUZZ`: their number; `FOREDRAFT_FUZZ_SEED`: the first one's.

use std::time::Instant;

/// Calls `read` with `usual` damaged files, or as many as `FOREDRAFT_FUZZ` says: one of `files` after the other, each with the number of its first bytes
/// that are damaged.
pub fn damage(what: &str, files: &[(Vec<u8>, usize)], usual: u64, mut read: impl FnMut(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (count, first) = (number("FOREDRAFT_FUZZ"), number("FOREDRAFT_FUZZ_SEED").unwrap_or(1));
    let (start, n) = (Instant::now(), count.unwrap_or(usual));
    for seed in first..first + n {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let (file, most) = &files[seed as usize % files.len()];
        let mut damaged = file.clone();
        for _ in 0..3 {
            let at = next() % damaged.len().min(*most);
            match next() % 4 {
                0 => drop(damaged.remove(at)),
                1 => damaged.insert(at, next() as u8),
                _ => damaged[at] = next() as u8,
            }
        }
        // A crash ends the process, so the seed is printed before each hundred.
        if count.is_some() && (seed - first).is_multiple_of(100) {
            eprint!("\r{what}: FOREDRAFT_FUZZ_SEED={seed}");
        }
        read(&damaged);
    }
    if count.is_some() {
        eprintln!();
        println!("| {what}, damaged | {n} executions | {} s | no failure |", start.elapsed().as_secs());
    }
}
