//! A simulator of arrivals: requests of all priorities come, wait, run, are preempted and end. No model, and a clock of its own.

use std::time::{Duration, Instant};

use super::*;
use crate::priority::Rank;
use foredraft_llama::fake::mix;

#[derive(Debug, Clone)]
struct Arrival {
    rank: Rank,
    /// Ticks that it runs.
    work: usize,
    done: usize,
    slot: Option<usize>,
    /// Later requests that have begun while it waited.
    n_overtaken: usize,
    n_preempted: usize,
    ended: bool,
}

struct Simulator {
    start: Instant,
    tick: u64,
    slots: Vec<Option<usize>>,
    jobs: Vec<Arrival>,
    last_used: Vec<u64>,
    n_begun: u64,
    /// The jobs in the order in which they began or went on.
    begun: Vec<usize>,
}

impl Simulator {
    fn new(n_slots: usize) -> Simulator {
        Simulator {
            start: Instant::now(),
            tick: 0,
            slots: vec![None; n_slots],
            jobs: Vec::new(),
            last_used: vec![0; n_slots],
            n_begun: 0,
            begun: Vec::new(),
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.tick)
    }

    /// `deadline`: in ticks from now.
    fn arrive(&mut self, priority: i32, deadline: Option<u64>, work: usize) -> usize {
        let due = deadline.map(|ticks| self.now() + Duration::from_millis(ticks));
        let rank = Rank::new(priority, (self.jobs.len() as u64, 0), due);
        self.jobs.push(Arrival { rank, work, done: 0, slot: None, n_overtaken: 0, n_preempted: 0, ended: false });
        self.jobs.len() - 1
    }

    fn waiting(&self) -> Vec<usize> {
        let mut waiting: Vec<usize> =
            (0..self.jobs.len()).filter(|job| !self.jobs[*job].ended && self.jobs[*job].slot.is_none()).collect();
        waiting.sort_by_key(|job| self.jobs[*job].rank.order(self.now()));
        waiting
    }

    fn states(&self) -> Vec<SlotState> {
        let state = |(slot, job): (usize, &Option<usize>)| SlotState {
            has_request: job.is_some(),
            may_be_preempted: true,
            level: job.map_or(0, |job| self.jobs[job].rank.level(self.now())),
            last_used: self.last_used[slot],
            ..SlotState::default()
        };
        self.slots.iter().enumerate().map(state).collect()
    }

    fn tick(&mut self) {
        for job in self.waiting() {
            let mut pass = AdmissionPass::over(self.states(), None, 100, false);
            let applicant = Applicant { priority: self.jobs[job].rank.priority, ..PREPARED };
            let Some(Placement::Slot(slot)) = pass.place_applicant(&applicant, Vec::new) else { continue };
            if let Some(victim) = self.slots[slot].replace(job) {
                (self.jobs[victim].slot, self.jobs[victim].n_preempted) = (None, self.jobs[victim].n_preempted + 1);
            }
            self.n_begun += 1;
            (self.jobs[job].slot, self.last_used[slot]) = (Some(slot), self.n_begun);
            self.begun.push(job);
            let rank = self.jobs[job].rank;
            for (earlier, other) in self.jobs.iter_mut().enumerate().filter(|(_, job)| !job.ended && job.slot.is_none())
            {
                other.rank.other_has_begun(rank);
                other.n_overtaken += usize::from(earlier < job);
            }
        }
        self.check();
        for slot in &mut self.slots {
            let Some(job) = slot.map(|job| &mut self.jobs[job]) else { continue };
            job.done += 1;
            if job.done == job.work {
                (job.ended, job.slot, *slot) = (true, None, None);
            }
        }
        self.tick += 1;
    }

    /// No slot is free while a request waits, and none waits for one of a level below its priority.
    fn check(&self) {
        let lowest = self.states().iter().filter(|state| state.has_request).map(|state| state.level).min();
        let is_full = self.slots.iter().all(Option::is_some);
        for job in self.waiting() {
            assert!(is_full, "a slot is free, and {job} waits");
            assert!(lowest.is_some_and(|lowest| self.jobs[job].rank.priority <= lowest), "{job} must preempt");
        }
    }

    fn run_until_idle(&mut self) {
        let limit = self.tick + self.jobs.iter().map(|job| job.work as u64).sum::<u64>() + 1;
        while self.jobs.iter().any(|job| !job.ended) {
            assert!(self.tick < limit, "the slots must not be idle");
            self.tick();
        }
    }
}

#[test]
fn no_request_is_lost_or_starves_in_random_arrivals() {
    let mut n_preempted = 0;
    for seed in 0..10_u64 {
        let mut random = seed;
        let mut draw = |n: u64| {
            random = mix(random.wrapping_add(1));
            random % n
        };
        let n_slots = 1 + draw(4) as usize;
        let mut simulator = Simulator::new(n_slots);
        let mut most_waiting = 0;
        for _ in 0..500 {
            // As much as the slots can do, in bursts.
            for _ in 0..if draw(40) == 0 { 20 } else { draw(2) } {
                let deadline = (draw(2) == 0).then(|| draw(200));
                simulator.arrive(draw(21) as i32 - 10, deadline, 1 + draw(2 * n_slots as u64) as usize);
            }
            simulator.tick();
            most_waiting = most_waiting.max(simulator.waiting().len());
        }
        simulator.run_until_idle();
        for (index, job) in simulator.jobs.iter().enumerate() {
            assert!(job.ended && job.done == job.work, "{index}: {job:?}");
            // 21 levels and one for the deadline, 8 each, and those that waited beside it.
            assert!(job.n_overtaken <= 22 * 8 + most_waiting, "seed {seed}, {index} of {most_waiting}: {job:?}");
            n_preempted += job.n_preempted;
        }
    }
    assert!(n_preempted > 300, "the test needs preemptions: {n_preempted}");
}

#[test]
fn equal_requests_begin_in_the_order_in_which_they_came_and_are_never_preempted() {
    let mut simulator = Simulator::new(3);
    for round in 0..50 {
        (0..round % 7).for_each(|work| _ = simulator.arrive(0, None, 1 + work));
        simulator.tick();
    }
    simulator.run_until_idle();
    assert!(simulator.begun.is_sorted() && simulator.begun.len() == simulator.jobs.len());
}

#[test]
fn within_a_priority_the_earliest_deadline_comes_first() {
    let mut simulator = Simulator::new(1);
    let running = simulator.arrive(3, None, 5);
    simulator.tick();
    let [none, late, early, higher, lower] = [(0, None), (0, Some(900)), (0, Some(800)), (1, None), (-1, Some(700))]
        .map(|(priority, deadline)| simulator.arrive(priority, deadline, 2));
    simulator.run_until_idle();
    assert_eq!(simulator.begun, [running, higher, early, late, none, lower]);
}

/// A request whose deadline has passed counts as one priority higher, but preempts no other by that.
#[test]
fn a_late_request_rises_by_one_level() {
    let mut simulator = Simulator::new(1);
    let running = simulator.arrive(1, None, 5);
    simulator.tick();
    let late = simulator.arrive(0, Some(2), 1);
    let [equal, higher] = [1, 2].map(|priority| simulator.arrive(priority, None, 1));
    simulator.run_until_idle();
    assert_eq!(simulator.begun, [running, higher, running, late, equal]);
}

#[test]
fn the_lowest_request_ends_beside_an_endless_stream_of_the_highest() {
    let mut simulator = Simulator::new(2);
    let lowest = simulator.arrive(-10, None, 30);
    while !simulator.jobs[lowest].ended {
        assert!(simulator.jobs[lowest].n_overtaken < 22 * 8, "it starves");
        for _ in 0..2 {
            simulator.arrive(10, Some(5), 1);
        }
        simulator.tick();
    }
    assert!(simulator.jobs[lowest].n_overtaken > 8, "the test needs a stream");
}
