//! The first request of an engine, which knows of drafts only what it assumes and of decodes only what it measured before.

use super::machine::{MEASURING, Machine, Noise, pairs};
use super::trace::{Task, Trace, tasks};
use super::{Kind, SEEDS, Scenario, Way, run_with};

/// The tokens of the request.
const TOKENS: usize = 96;
const FIXED: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// The speed of the first requests of a task with adaptive lengths, and with the best fixed one, over that of plain decoding.
fn speeds(machine: &Machine, task: &Task, kind: Kind) -> (f64, f64) {
    let traces: Vec<Trace> = task.traces.iter().map(|trace| trace.first(TOKENS)).collect();
    let scenario = Scenario { task, kind, machine, n_slots: 1 };
    let seconds = |way: Way| -> f64 {
        let runs =
            traces.iter().flat_map(|trace| SEEDS.map(|seed| run_with(&scenario, way, Noise::new(seed), &[trace])));
        runs.map(|(_, seconds)| seconds).sum()
    };
    let plain = seconds(Way::Plain);
    let fixed = FIXED.map(|n| plain / seconds(Way::Fixed(n))).into_iter().fold(1.0, f64::max);
    (plain / seconds(Way::Adaptive), fixed)
}

/// Asserts that first requests have at least these fractions of the speed with the best fixed length, by how near the draft model is.
fn assert_speeds(machine: &Machine, least: [(Kind, f64); 3]) {
    for (kind, least) in least {
        let (mut product, mut n) = (0.0, 0);
        for task in tasks(None) {
            let (adaptive, fixed) = speeds(machine, &task, kind);
            let ratio = adaptive / fixed;
            eprintln!("{}, {} {kind:?}: {adaptive:.3} of plain, {ratio:.3} of the best", machine.name, task.name);
            (product, n) = (product + ratio.ln(), n + 1);
        }
        let mean = (product / f64::from(n)).exp();
        eprintln!("{}, {kind:?}: {mean:.3} on average", machine.name);
        assert!(mean >= least, "{}, {kind:?}: {mean:.3}", machine.name);
    }
}

#[test]
fn the_first_request_is_nearly_as_fast_as_with_the_best_fixed_length() {
    for machine in pairs() {
        // With one size, with two or three, and with all.
        for seconds in [0.0, 0.1, 0.2, MEASURING] {
            eprintln!("measured for {seconds} s");
            assert_speeds(
                &machine.measuring_for(seconds),
                [(Kind::Near, 0.935), (Kind::Far, 0.99), (Kind::Useless, 1.0)],
            );
        }
    }
}
