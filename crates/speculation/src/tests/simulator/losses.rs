//! How much drafts lose that are always wrong, and gain that are right, in a short run of an engine that knows nothing of them. Where several
//! tokens cost much more than one: on hybrids.

use super::machine::{Machine, Noise, hybrids};
use super::trace::{Task, Trace};
use super::{Kind, Scenario, Way, run_with};
use crate::DrafterKind;

/// Drafts from the history, of a draft model, and of both, which draft the same.
const HISTORY: &[DrafterKind] = &[DrafterKind::NgramCache];
const MODEL: &[DrafterKind] = &[DrafterKind::Draft];
const BOTH: &[DrafterKind] = &[DrafterKind::NgramCache, DrafterKind::Draft];

/// Whether the draft for this token of a request's completion is right.
type IsRight<'a> = &'a dyn Fn(usize) -> bool;

const NEVER: IsRight<'_> = &|_| false;
const ALWAYS: IsRight<'_> = &|_| true;

/// The speed with drafts over the speed without, for requests of `n` tokens one after the other.
fn speed(machine: &Machine, drafters: &'static [DrafterKind], n: usize, requests: &[IsRight<'_>]) -> f64 {
    let task = Task { name: String::new(), temperature: 0.0, traces: Vec::new() };
    let traces: Vec<Trace> = requests.iter().map(|is_right| Trace::scripted(n, is_right)).collect();
    let traces: Vec<&Trace> = traces.iter().collect();
    let scenario = Scenario { task: &task, kind: Kind::Near, machine, n_slots: 1 };
    let seconds = |way| run_with(&scenario, way, Noise::NONE, &traces).1;
    seconds(Way::Plain) / seconds(Way::Replayed(drafters))
}

#[test]
fn wrong_drafts_cost_less_than_a_hundredth_of_128_tokens() {
    for (machine, drafters) in hybrids().iter().flat_map(|machine| [HISTORY, MODEL, BOTH].map(|all| (machine, all))) {
        for (n, requests) in [(128, &[NEVER][..]), (512, &[NEVER]), (128, &[NEVER; 4])] {
            let speed = speed(machine, drafters, n, requests);
            eprintln!("{}, {drafters:?}: {speed:.4} of {} x {n} tokens", machine.name, requests.len());
            assert!(speed >= 0.99, "{}, {drafters:?}: {speed:.4}", machine.name);
        }
    }
}

/// The speeds before drafts had a limit to what they lose: of 128 and 512 tokens with right drafts, and of 256 whose second half has them.
const WITHOUT_LIMIT: [(&str, &[DrafterKind], [f64; 3]); 8] = [
    ("hybrid", HISTORY, [2.72, 2.725, 1.359]),
    ("hybrid", MODEL, [2.140, 2.151, 0.977]),
    ("hybrid, copied", HISTORY, [3.113, 3.119, 1.101]),
    ("hybrid, copied", MODEL, [2.376, 2.382, 0.959]),
    ("steep hybrid", HISTORY, [1.849, 1.870, 0.986]),
    ("steep hybrid", MODEL, [1.558, 1.581, 0.988]),
    ("steep hybrid, copied", HISTORY, [1.892, 1.987, 1.028]),
    ("steep hybrid, copied", MODEL, [1.628, 1.671, 0.988]),
];

#[test]
fn right_drafts_gain_as_much_as_without_a_limit() {
    let machines = hybrids();
    for (name, drafters, [short, long, half]) in WITHOUT_LIMIT {
        let machine = machines.iter().find(|machine| machine.name == name).unwrap();
        let from_128: IsRight<'_> = &|at| at >= 128;
        // The first drafts are short, so a short completion gains a little less.
        for (n, is_right, before, least) in
            [(128, ALWAYS, short, 0.95), (512, ALWAYS, long, 0.97), (256, from_128, half, 1.0)]
        {
            let speed = speed(machine, drafters, n, &[is_right]);
            eprintln!(
                "{name}, {drafters:?}: {speed:.3} with {n} tokens, {:.3} of the speed without a limit",
                speed / before
            );
            assert!(speed >= least * before, "{name}, {drafters:?}: {speed:.3} with {n} tokens, {before}");
        }
    }
}

#[test]
fn right_drafts_after_wrong_requests_are_found() {
    for machine in hybrids() {
        for drafters in [HISTORY, BOTH] {
            let speed = speed(&machine, drafters, 128, &[NEVER, NEVER, ALWAYS, ALWAYS]);
            eprintln!("{}, {drafters:?}: {speed:.3}", machine.name);
            assert!(speed >= 1.1, "{}, {drafters:?}: {speed:.3}", machine.name);
        }
    }
}
