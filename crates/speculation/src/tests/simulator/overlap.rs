//! Drafting while the target verifies: the draft model drafts on one core, as if the draft before were accepted and its next token followed,
//! and the target verifies on the others. A right guess makes the next draft free; a wrong one costs nothing but the core.

use super::trace::tasks;
use super::{FIXED, Kind, MACHINES, Running, Scenario, requests};

/// The times of two models that run beside each other, relative to those of each alone on all cores.
#[derive(Clone, Copy)]
struct Beside {
    target: f64,
    draft: f64,
}

/// The tokens per second of one slot with drafts of `n` tokens. `beside`: the next one is drafted during the verification.
fn rate(scenario: &Scenario<'_>, n: usize, beside: Option<Beside>) -> f64 {
    let Scenario { kind, machine, .. } = *scenario;
    let draft = n as f64 * machine.draft(1);
    let (mut n_generated, mut seconds) = (0, 0.0);
    for trace in requests(scenario) {
        let (mut running, mut is_drafted) = (Running::begin(trace, 0), false);
        while !running.rest().is_empty() {
            let right = trace.right(kind, running.generated());
            let verify = machine.target(&[1 + n], |_| running.tokens.len());
            seconds += if is_drafted { 0.0 } else { draft };
            is_drafted = beside.is_some() && right > n;
            seconds += match beside {
                Some(Beside { target, draft: slower }) if is_drafted => (target * verify).max(slower * draft),
                Some(Beside { target, .. }) => target * verify,
                None => verify,
            };
            let new = running.rest()[..(1 + right.min(n)).min(running.rest().len())].to_vec();
            n_generated += new.len();
            running.tokens.extend_from_slice(&new);
        }
    }
    n_generated as f64 / seconds
}

/// The gain over drafting before the verification, each with its best length: the geometric mean of all machines and tasks.
fn gain(kind: Kind, beside: Beside) -> f64 {
    let (mut sum, mut n) = (0.0, 0);
    let tasks = tasks(None);
    for (machine, task) in MACHINES.iter().flat_map(|machine| tasks.iter().map(move |task| (machine, task))) {
        let scenario = Scenario { task, kind, machine, n_slots: 1 };
        let best = |beside| FIXED.iter().map(|n| rate(&scenario, *n, beside)).fold(0.0, f64::max);
        sum += (best(Some(beside)) / best(None)).ln();
        n += 1;
    }
    (sum / f64::from(n)).exp()
}

/// So it is not built: docs/figures/speculation.md.
#[test]
fn drafting_during_the_verification_pays_only_beside_idle_cores_and_bandwidth() {
    let of = |name: &str, target: f64, draft: f64| {
        let [near, far] = [Kind::Near, Kind::Far].map(|kind| gain(kind, Beside { target, draft }));
        eprintln!("{name}: {near:.3} with the near draft, {far:.3} with the far one");
        (near, far)
    };
    // The target's time on one core less, if it leaves some unused, and if computing limits it; the draft's on one core.
    let two = of("two cores, one hardly used", 1.3, 1.5);
    let two_busy = of("two cores, both used", 2.0, 2.0);
    let eight = of("eight cores, one unused, and bandwidth for both", 1.0, 2.0);
    let eight_busy = of("eight cores, all used", 8.0 / 7.0, 4.0);
    assert!(two.0 < 1.05 && two.1 < 0.95 && two_busy.0 < 0.75 && two_busy.1 < 0.75);
    assert!(eight.0 > 1.1 && eight.1 < 1.15 && eight_busy.0 < 0.95 && eight_busy.1 < 0.95);
}
