//! Replays recorded completions through the drafters and the controller on a virtual clock: deterministic, without a model.
//!
//! It runs the engine's own code: [`Drafters`] with its costs, calibration, exploration and history-based drafters. It simulates the
//! target, whose tokens come from a [`Trace`], the draft model ([`ReplayedDraft`]), and the costs of decodes on a [`Machine`], with noise.
//!
//! A scenario is a task, a temperature, a draft model, a machine and a number of slots. It runs plain, with fixed lengths, with adaptive
//! lengths, and with the lengths of an oracle that knows which tokens of the draft model will be accepted (but has no history-based
//! drafters). A run ends when there is no request left for a slot, so all slots are busy until then. `cargo test --release -p
//! foredraft-speculation simulator -- --nocapture` prints the ratios; the tests assert them.

mod beginnings;
mod draft;
mod losses;
mod machine;
mod overlap;
mod trace;

use std::cell::Cell;
use std::time::{Duration, Instant};

use self::draft::ReplayedDraft;
use self::machine::{MACHINES, Machine, Memory, Noise};
use self::trace::{Task, Trace, tasks};
use crate::{
    Adaptive, Costs, DraftOutcome, DrafterKind, Drafters, DraftingSlot, DraftingState, MAX_DRAFT, NgramCache, Settings,
    SlotDrafts, StepSlot, Suffix,
};
use foredraft_base::Token;
use foredraft_sampling::{self as sampling, Sampler};

/// The number of requests in a run, for each slot.
const REQUESTS: usize = 3;
/// The noise of a run with adaptive lengths: their figure is the mean of these.
const SEEDS: [u64; 2] = [7, 8];
const FIXED: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 12, 16];
const FIXED_TEXT: [usize; 3] = [3, 8, 16];

thread_local! {
    static START: Instant = Instant::now();
    static PASSED: Cell<f64> = const { Cell::new(0.0) };
    static SLOWDOWN: Cell<f64> = const { Cell::new(1.0) };
}

/// The virtual clock.
fn clock() -> Instant {
    START.with(|start| *start + Duration::from_secs_f64(PASSED.get()))
}

/// Advances the clock.
fn pass(seconds: f64) {
    PASSED.set(PASSED.get() + seconds);
}

/// How many times as long as in a calm hour all takes now.
fn slowdown() -> f64 {
    SLOWDOWN.get()
}

/// The replayed draft model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Near,
    Far,
    /// A draft model as confident as the far one, and always rejected.
    Useless,
}

/// The drafting of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Fixed(usize),
    FixedText(usize),
    Adaptive,
    /// With adaptive lengths, the recorded draft alone: of a draft model, from the history at no cost, or both.
    Replayed(&'static [DrafterKind]),
}

/// The configuration of a run.
#[derive(Clone, Copy)]
struct Scenario<'a> {
    task: &'a Task,
    kind: Kind,
    machine: &'a Machine,
    n_slots: usize,
}

/// A running request.
struct Running<'a> {
    trace: &'a Trace,
    /// Prompt and output so far.
    tokens: Vec<Token>,
    /// Tokens that the next step decodes in any case: the last one, and those that are decoded again.
    n_pending: usize,
}

impl<'a> Running<'a> {
    /// The decode of the prompt gives the first token. The first requests of the slots start at different positions of their outputs: the
    /// one in slot `offset` starts later.
    fn begin(trace: &'a Trace, offset: usize) -> Running<'a> {
        let known = 1 + offset * 29 % (trace.output.len() / 2);
        Running { trace, tokens: [&trace.prompt[..], &trace.output[..known]].concat(), n_pending: 1 }
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.trace.prompt.len()
    }

    /// The target's remaining tokens.
    fn rest(&self) -> &[Token] {
        &self.trace.output[self.generated()..]
    }
}

fn sampler(task: &Task) -> Sampler {
    let settings =
        sampling::SamplingSettings { temperature: task.temperature, ..sampling::SamplingSettings::default() };
    // The traces have the tokens; nothing is sampled.
    crate::tests::fakes::sampler(&settings, 1, None)
}

/// The requests of a scenario: the task's traces, repeatedly.
fn requests<'a>(scenario: &Scenario<'a>) -> Vec<&'a Trace> {
    let traces = scenario.task.traces.iter().cycle();
    traces.take(scenario.task.traces.len().max(REQUESTS * scenario.n_slots).max(4)).collect()
}

/// The tokens per second.
fn run(scenario: &Scenario<'_>, way: Way) -> f64 {
    let seeds = if way == Way::Adaptive { &SEEDS[..] } else { &SEEDS[..1] };
    let runs = seeds.iter().map(|seed| run_with(scenario, way, Noise::new(*seed), &requests(scenario)));
    let (tokens, seconds) = runs.fold((0.0, 0.0), |(tokens, seconds), run| (tokens + run.0, seconds + run.1));
    tokens / seconds
}

/// The tokens and seconds of a run of these requests with this noise.
fn run_with(scenario: &Scenario<'_>, way: Way, mut noise: Noise, requests: &[&Trace]) -> (f64, f64) {
    let Scenario { task, kind, machine, n_slots } = *scenario;
    let (sampler, begin) = (sampler(task), PASSED.get());
    let mut drafters = Drafters::new(Vec::new(), clock);
    let (sources, adaptive, n_max) = match way {
        Way::Plain => (Vec::new(), Adaptive::Auto, 16),
        Way::Fixed(n) => (vec![DrafterKind::Draft], Adaptive::Fixed, n),
        Way::FixedText(n) => (vec![DrafterKind::Suffix, DrafterKind::NgramCache], Adaptive::Fixed, n),
        Way::Adaptive => (Settings::default().sources, Adaptive::Auto, Settings::default().n_max),
        Way::Replayed(kinds) => (kinds.to_vec(), Adaptive::Auto, Settings::default().n_max),
    };
    if sources.contains(&DrafterKind::Draft) {
        drafters.add_model(Box::new(ReplayedDraft::new(n_slots, kind, machine)));
    }
    if let Way::Replayed(_) = way {
        if sources.contains(&DrafterKind::NgramCache) {
            drafters.add(Box::new(ReplayedDraft::from_history(DrafterKind::NgramCache, n_slots, kind, machine)));
        }
    } else if sources.contains(&DrafterKind::Suffix) {
        drafters.add(Box::new(Suffix::new(n_slots)));
        drafters.add(Box::new(NgramCache::new(n_slots)));
    }
    let settings = Settings { sources, adaptive, n_max, ..Settings::default() };
    let mut costs = Costs::default();
    costs.set_split(machine.split());
    if machine.memory == Memory::Copied {
        costs.repeat();
    }
    if machine.memory != Memory::Cells {
        drafters.controller.limit_losses();
    }
    machine.measure(n_slots, &mut costs, &mut noise);
    drafters.controller.costs = costs;
    let begin = begin.max(PASSED.get());
    let mut queue = requests.iter().copied();
    let mut slots: Vec<Option<Running<'_>>> = (0..n_slots).map(|_| None).collect();
    let mut states: Vec<Option<DraftingState>> = (0..n_slots).map(|_| None).collect();
    let mut drafts: Vec<SlotDrafts> = (0..n_slots).map(|_| SlotDrafts::default()).collect();
    let (mut n_generated, mut n_tokens) = (0, vec![0; n_slots]);
    let n_all: usize = requests.iter().map(|trace| trace.output.len()).sum();
    loop {
        SLOWDOWN.set(machine.slowdown(n_generated as f64 / n_all as f64));
        for (index, slot) in slots.iter_mut().enumerate() {
            if slot.is_none()
                && let Some(trace) = queue.next()
            {
                ReplayedDraft::begin_trace(index, trace);
                // The prompt is decoded in any case. Its time is not part of the comparison.
                let prompt = machine.target(&[trace.prompt.len()], |_| 0) * noise.factor();
                drafters.controller.costs.record_prompt(trace.prompt.len(), Duration::from_secs_f64(prompt));
                let mut state = drafters.begin(index, &sampler, &settings);
                let running = Running::begin(trace, if n_generated == 0 { index } else { 0 });
                // The draft model reads the prompt while the target does.
                let mut reading = vec![DraftingSlot {
                    slot: index,
                    tokens: &running.tokens,
                    text: &running.tokens,
                    sampler: &sampler,
                    generated: 0,
                    position: 0,
                    room: None,
                    is_padded: false,
                    state: &mut state,
                    drafts: &mut drafts[index],
                }];
                drafters.draft(&vec![StepSlot::default(); n_slots], &mut reading);
                (states[index], *slot) = (Some(state), Some(running));
            }
        }
        if slots.iter().any(Option::is_none) {
            break;
        }
        let room = |running: &Running<'_>| (running.rest().len() - 1).min(machine.most_removable());
        let start = clock();
        drafts.iter_mut().for_each(SlotDrafts::clear);
        let all = slots.iter().zip(&mut states).zip(&mut drafts).enumerate();
        let drafting = all.filter_map(|(slot, ((running, state), drafts))| {
            let (running, state) = (running.as_ref()?, state.as_mut()?);
            Some(DraftingSlot {
                slot,
                tokens: &running.tokens,
                text: &running.tokens,
                sampler: &sampler,
                generated: running.generated(),
                position: running.generated(),
                room: Some(room(running)),
                is_padded: false,
                state,
                drafts,
            })
        });
        let step = |slot: &Option<Running<'_>>| match slot {
            Some(running) => {
                let n_past = machine.depth(running.tokens.len() - running.n_pending);
                let room = (MAX_DRAFT - 2).min(machine.most_removable());
                StepSlot { n_tokens: running.n_pending, generates: true, room, n_past }
            }
            None => StepSlot::default(),
        };
        let steps: Vec<StepSlot> = slots.iter().map(step).collect();
        let lengths = drafters.draft(&steps, &mut drafting.collect::<Vec<_>>()).to_vec();
        let t_draft = clock() - start;
        let adapts = states.iter().flatten().any(DraftingState::adapts);
        let chosen = |drafts: &SlotDrafts| {
            let chosen = drafts.chosen();
            chosen.map_or((None, Vec::new()), |chosen| (chosen.kind, chosen.draft.tokens[..chosen.n].to_vec()))
        };
        for (slot, n) in n_tokens.iter_mut().enumerate() {
            let n_drafted = chosen(&drafts[slot]).1.len();
            let length = n_drafted.max(lengths.get(slot).copied().unwrap_or(0));
            *n = slots[slot].as_ref().map_or(0, |running| running.n_pending + length);
        }
        let depths = |slot: usize| slots[slot].as_ref().map_or(0, |running| running.tokens.len());
        let time = machine.target(&n_tokens, depths) * noise.factor();
        pass(time);
        let mut n_step = 0;
        for (index, slot) in slots.iter_mut().enumerate() {
            let Some(running) = slot else { continue };
            let (kind, drafted) = chosen(&drafts[index]);
            let right = drafted.iter().zip(running.rest()).take_while(|(drafted, said)| drafted == said).count();
            let (n_drafted, rest) = (drafted.len(), running.rest());
            let new = rest[..rest.len().min(right + 1)].to_vec();
            running.tokens.extend_from_slice(&new);
            let n_accepted = right.min(new.len());
            let is_repeated = machine.memory == Memory::Copied && right < n_drafted;
            running.n_pending = if is_repeated { running.n_pending + new.len() } else { 1 };
            let outcome = DraftOutcome { kind, n_drafted, n_longest: n_drafted, n_accepted };
            drafters.learn(index, &steps, states[index].as_mut().unwrap(), &drafts[index], &new, &outcome);
            n_step += new.len();
            if running.rest().is_empty() {
                // Nothing is learned, because the next request can have the same output.
                drafters.end(index, &[], 0);
                (*slot, states[index]) = (None, None);
            }
        }
        n_generated += n_step;
        let costs = &mut drafters.controller.costs;
        let time = Duration::from_secs_f64(time);
        let cost = costs.record_step(&n_tokens, |slot| steps[slot].n_past, time);
        let drafting = costs.of(t_draft);
        drafters.stepped(&steps, adapts, n_step, cost, drafting);
    }
    SLOWDOWN.set(1.0);
    (n_generated as f64, PASSED.get() - begin)
}

/// The tokens per second with the best length for each step, which is known in advance.
fn oracle(scenario: &Scenario<'_>) -> f64 {
    let Scenario { kind, machine, n_slots, .. } = *scenario;
    let mut rate = n_slots as f64 / machine.target(&vec![1; n_slots], |_| 200);
    for _ in 0..3 {
        let mut queue = requests(scenario).into_iter();
        let mut slots: Vec<Option<Running<'_>>> = (0..n_slots).map(|_| None).collect();
        let (mut n_generated, mut seconds) = (0, 0.0);
        loop {
            for (index, slot) in slots.iter_mut().enumerate() {
                if slot.is_none() {
                    let offset = if n_generated == 0 { index } else { 0 };
                    *slot = queue.next().map(|trace| Running::begin(trace, offset));
                }
            }
            if slots.iter().any(Option::is_none) {
                break;
            }
            let brings = |running: &Running<'_>, length: usize| {
                (1 + running.trace.right(kind, running.generated()).min(length)).min(running.rest().len())
            };
            let tokens = |length: usize| slots.iter().flatten().map(|running| brings(running, length)).sum::<usize>();
            let cost = |length: usize| {
                let n_tokens: Vec<usize> = slots.iter().map(|slot| slot.as_ref().map_or(0, |_| 1 + length)).collect();
                let depths = |slot: usize| slots[slot].as_ref().map_or(0, |running| running.tokens.len());
                machine.target(&n_tokens, depths) + machine.passes.between(0, length) as f64 * machine.draft(n_slots)
            };
            let value = |length: usize| tokens(length) as f64 - rate * cost(length);
            let length = (0..=16).max_by(|a, b| value(*a).total_cmp(&value(*b))).unwrap();
            seconds += cost(length);
            for slot in &mut slots {
                let Some(running) = slot else { continue };
                let n = brings(running, length);
                n_generated += n;
                let new = running.rest()[..n].to_vec();
                running.tokens.extend_from_slice(&new);
                if running.rest().is_empty() {
                    *slot = None;
                }
            }
        }
        rate = n_generated as f64 / seconds;
    }
    rate
}

/// The speed of adaptive lengths relative to the best fixed length, to plain decoding, and to the oracle.
struct Ratios {
    best: Way,
    to_best: f64,
    to_plain: f64,
    to_oracle: f64,
}

fn ratios(scenario: &Scenario<'_>, plain: f64, text: (f64, Way)) -> Ratios {
    // A draft that is always rejected costs time and gains no token, so plain decoding is faster than each fixed length of it.
    let lengths = if scenario.kind == Kind::Useless { &[][..] } else { &FIXED };
    let fixed = lengths.iter().map(|n| (run(scenario, Way::Fixed(*n)), Way::Fixed(*n)));
    let (rate, best) = fixed.chain([text]).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    let adaptive = run(scenario, Way::Adaptive);
    Ratios {
        best: if rate > plain { best } else { Way::Plain },
        to_best: adaptive / rate.max(plain),
        to_plain: adaptive / plain,
        to_oracle: adaptive / oracle(scenario),
    }
}

/// The ratios of a machine with this number of slots.
struct Summary {
    name: String,
    /// The minimum ratio to the best fixed length, and the geometric mean.
    least: f64,
    mean: f64,
    /// The minimum ratio to plain decoding where that is the best choice.
    least_to_plain: f64,
}

/// Runs all scenarios of these tasks on these machines and prints them.
fn simulate(machines: &[Machine], tasks: &[Task]) -> Vec<Summary> {
    eprintln!("{:<44} {:>14} {:>7} {:>8} {:>11}", "scenario", "best fixed", "to best", "to plain", "oracle");
    std::thread::scope(|scope| {
        let threads: Vec<_> = machines.iter().map(|machine| scope.spawn(|| simulate_machine(machine, tasks))).collect();
        let finished = threads.into_iter().map(|thread| thread.join().unwrap());
        finished.inspect(|(report, _)| eprint!("{report}")).flat_map(|(_, summaries)| summaries).collect()
    })
}

/// The lines of a machine's scenarios, and their summaries.
fn simulate_machine(machine: &Machine, tasks: &[Task]) -> (String, Vec<Summary>) {
    let (mut report, mut summaries) = (String::new(), Vec::new());
    for n_slots in [1, 4, 8] {
        let (mut least, mut least_to_plain, mut product, mut n) = (f64::INFINITY, f64::INFINITY, 0.0, 0);
        for task in tasks {
            let scenario = Scenario { task, kind: Kind::Near, machine, n_slots };
            let plain = run(&scenario, Way::Plain);
            let texts = FIXED_TEXT.iter().map(|n| (run(&scenario, Way::FixedText(*n)), Way::FixedText(*n)));
            let text = texts.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
            for kind in [Kind::Near, Kind::Far, Kind::Useless] {
                let scenario = Scenario { kind, ..scenario };
                let Ratios { best, to_best, to_plain, to_oracle } = ratios(&scenario, plain, text);
                let name = format!("{} x{n_slots} {} {kind:?}", machine.name, task.name);
                let best_name = format!("{best:?}");
                let line = format!("{name:<44} {best_name:>14} {to_best:>7.3} {to_plain:>8.3} {to_oracle:>11.3}\n");
                report.push_str(&line);
                if best == Way::Plain {
                    least_to_plain = to_plain.min(least_to_plain);
                }
                (least, product, n) = (to_best.min(least), product + to_best.ln(), n + 1);
            }
        }
        let (name, mean) = (format!("{} x{n_slots}", machine.name), (product / f64::from(n)).exp());
        report.push_str(&format!("{name}: {least:.3} at least, {mean:.3} on average; {least_to_plain:.3} of plain\n"));
        summaries.push(Summary { name, least, mean, least_to_plain });
    }
    (report, summaries)
}

/// The bounds of the ratios: of the geometric mean for a machine with this number of slots, of each ratio to the best fixed length, and of
/// each ratio to plain decoding where that is the best choice.
///
/// The goal is .97 of the best fixed length in every scenario, and .99 of plain decoding where speculation does not pay. Of 756 scenarios
/// a few are below: the best fixed length is chosen after the run, and a run is short beside what has to be learned in it. These bounds
/// hold now, and should be raised when the controller improves.
struct Bounds {
    mean: f64,
    least: f64,
    least_to_plain: f64,
}

const BOUNDS: Bounds = Bounds { mean: 0.98, least: 0.92, least_to_plain: 0.97 };
/// The bounds for half of the prompts, in runs that are only slightly longer than the learning phase.
const BOUNDS_OF_HALVES: Bounds = Bounds { mean: 0.97, least: 0.85, least_to_plain: 0.95 };

/// The bounds where all becomes slower within a run or before its first step. The goal is .97 of the best fixed length, as in a calm hour; 6 of 216
/// scenarios are below it. The least mean of a machine is .9900 with these seeds; another C library rounds otherwise, so some runs turn out otherwise.
const BOUNDS_OF_BUSY_MEMORY: Bounds = Bounds { mean: 0.987, least: 0.945, least_to_plain: 0.967 };

fn check(machines: &[Machine], tasks: &[Task], bounds: &Bounds) {
    for Summary { name, least, mean, least_to_plain } in simulate(machines, tasks) {
        assert!(mean >= bounds.mean, "{name}: {mean:.3} on average");
        assert!(least >= bounds.least, "{name}: {least:.3}");
        assert!(least_to_plain >= bounds.least_to_plain, "{name}: {least_to_plain:.3} of plain");
    }
}

#[test]
fn adaptive_lengths_are_nearly_as_fast_as_the_best_fixed_ones() {
    check(MACHINES, &tasks(None), &BOUNDS);
}

/// Where a draft costs one pass, a longer one costs no more to make.
#[test]
fn drafts_of_blocks_are_nearly_as_fast_as_with_the_best_fixed_length() {
    let machines = MACHINES.iter().filter(|machine| machine.depth(0) == 0);
    let machines: Vec<Machine> = machines.map(Machine::with_blocks).collect();
    check(&machines, &tasks(Some(1)), &BOUNDS_OF_HALVES);
}

/// Text drafts that cost nothing and are poor must not displace a draft model that is good, also where costs change after they were measured.
#[test]
fn drafts_of_a_pair_on_busy_memory_are_nearly_as_fast_as_with_the_best_fixed_length() {
    check(&machine::pairs_on_busy_memory(), &tasks(None), &BOUNDS_OF_BUSY_MEMORY);
}

#[test]
#[ignore = "the prompts that the controller was tuned with: a half of the test above"]
fn so_they_are_for_the_prompts_tuned_with() {
    check(MACHINES, &tasks(Some(1)), &BOUNDS_OF_HALVES);
}

#[test]
#[ignore = "the prompts that were held out: a half of the test above"]
fn so_they_are_for_the_prompts_held_out() {
    check(MACHINES, &tasks(Some(2)), &BOUNDS_OF_HALVES);
}
