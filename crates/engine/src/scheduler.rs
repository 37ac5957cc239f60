//! The scheduler of one model: its slots, the requests that wait for one, and the loop of steps.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::admission::{self, AdmissionPass, Placement};
use super::beams::Beams;
use super::begun::BegunAnswers;
use super::config::Config;
use super::conversation_actions::ConversationJob;
use super::conversation_disk::ConversationDisk;
use super::conversation_files::ConversationFiles;
use super::conversation_store::ConversationStore;
use super::ending::end;
use super::event::{Event, Stop};
use super::follow_up::follow_up;
use super::preemption::{self, PreemptedTask};
use super::priority::Rank;
use super::report::StepReport;
use super::request::{Prepared, PromptState, RequestOptions, SessionJob, Submission};
use super::request_handle::CompletionSink;
use super::sessions::{self, SessionAnswer};
use super::slots::{Slot, SlotPool, Task};
use super::space;
use super::step::Step;
use super::step::draft_tree::DraftTree;
use super::{conversation_calls, conversations};
use crate::session;
use foredraft_base::error::Result;
use foredraft_llama::log::{self, Level};
use foredraft_llama::{Context, Interrupt, Rollback, working_time};
use foredraft_speculation::{BatchSplit, Drafters, SequencePadding};

/// When a scheduler has something to do, the earliest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NextWork {
    /// Now.
    Now,
    /// At this time, unless a command comes before.
    At(Instant),
    /// When a command comes.
    AfterCommand,
}

/// A request that waits for a slot.
enum Waiting {
    New(Box<Submission>),
    Preempted(PreemptedTask),
}

impl Waiting {
    fn rank(&self) -> Rank {
        match self {
            Waiting::New(submission) => submission.rank,
            Waiting::Preempted(preempted) => preempted.task.rank,
        }
    }

    /// Another request has begun.
    fn other_has_begun(&mut self, other: Rank) {
        match self {
            Waiting::New(submission) => submission.rank.other_has_begun(other),
            Waiting::Preempted(preempted) => preempted.task.rank.other_has_begun(other),
        }
    }

    fn options(&self) -> &RequestOptions {
        match self {
            Waiting::New(submission) => &submission.request.options,
            Waiting::Preempted(preempted) => &preempted.task.options,
        }
    }

    fn sink(&self) -> &CompletionSink {
        match self {
            Waiting::New(submission) => &submission.sink,
            Waiting::Preempted(preempted) => &preempted.task.sink,
        }
    }
}

/// A model's slots and the requests that wait for one.
pub(super) struct BatchScheduler {
    pub(super) pool: SlotPool,
    /// The requests that wait for their first slot, in the order in which they came.
    pub(super) queue: VecDeque<Submission>,
    /// The requests that have made way for others.
    pub(super) preempted: Vec<PreemptedTask>,
    /// The numbers of all of these, in the order in which they get slots.
    pub(super) queue_order: Vec<u64>,
    /// Sessions to be saved and loaded as soon as no request runs in their slots.
    pub(super) session_jobs: VecDeque<SessionJob>,
    /// The host's actions on conversations that wait for the disk, or for the next step.
    pub(super) conversation_jobs: VecDeque<ConversationJob>,
    /// Whether a request that could have begun otherwise waits for the disk.
    waits_for_disk: bool,
    pub(super) beams: Beams,
    pub(super) step: Step,
    /// The changes that are not delivered yet.
    report: StepReport,
    session_answers: Vec<SessionAnswer>,
}

impl BatchScheduler {
    pub(super) fn new(context: Context, beams: Beams, config: &Config) -> BatchScheduler {
        let n_parallel = config.n_parallel.max(1);
        let decodes_slots_together = context.model().decodes_sequences_together();
        let mut drafters = Drafters::new(context.model().vocab().eog_tokens().collect(), working_time);
        drafters.controller.costs.set_split(batch_split(&context));
        if context.pads_single_tokens() {
            drafters.offer_free_tokens();
        }
        if context.rollback() == Rollback::Never {
            drafters.controller.costs.repeat();
        }
        if !context.rollback().is_unlimited() {
            drafters.controller.limit_losses();
        }
        let slots: Vec<Slot> = (0..n_parallel).map(|index| Slot::new(index, config.self_extend)).collect();
        let branches = |index: usize| session::branches(index, n_parallel, context.n_shared());
        let trees = slots.iter().map(|slot| DraftTree::new(slot.cache.id(), branches(slot.index))).collect();
        let begun = BegunAnswers::new(context.n_ctx());
        let identity = |slot: &Slot| slot.cache.identity(&context);
        let files = config.cache_dir.clone().zip(slots.first().map(identity));
        let disk = files.and_then(|(folder, identity)| {
            let disk = ConversationDisk::new(ConversationFiles::new(folder, config.cache_dir_limit, &identity));
            let failed = |error: &io::Error| log::write(Level::Warn, &format!("cache_dir: not used: {error}"));
            disk.inspect_err(failed).ok()
        });
        let shared_cells = (config.context.kv_unified && n_parallel > 1).then(|| context.n_ctx());
        BatchScheduler {
            pool: SlotPool {
                context,
                slots,
                drafters,
                conversations: ConversationStore::new(config.cache_ram, disk),
                begun,
                shared_cells,
                n_withheld: 0,
                ctx_shift: config.ctx_shift,
                reuses_prompts: true,
                decodes_slots_together,
                n_admissions: 0,
                media: Arc::default(),
            },
            queue: VecDeque::new(),
            preempted: Vec::new(),
            queue_order: Vec::new(),
            session_jobs: VecDeque::new(),
            conversation_jobs: VecDeque::new(),
            waits_for_disk: false,
            beams,
            step: Step::new(trees),
            report: StepReport::default(),
            session_answers: Vec::new(),
        }
    }

    /// Whether nothing runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        let waits = self.has_waiting() || !self.session_jobs.is_empty() || self.beams.is_busy();
        !waits && self.pool.running().next().is_none()
    }

    /// Whether no request runs, but perhaps preparations do.
    pub(super) fn only_prepares(&self) -> bool {
        !self.beams.is_busy() && self.pool.running().all(|(_, task)| task.options.is_preparation())
    }

    /// Whether requests wait for slots.
    fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.preempted.is_empty()
    }

    /// The requests that run, or ran until they were preempted.
    pub(super) fn tasks_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        let running = self.pool.slots.iter_mut().filter_map(|slot| slot.task.as_mut());
        running.chain(self.preempted.iter_mut().map(|preempted| &mut *preempted.task))
    }

    /// When there is something to do. Requests whose prompts are being prepared have to end at their deadlines, and keep slots for a while.
    pub(super) fn next_work(&self) -> NextWork {
        let runs = !self.session_jobs.is_empty() || self.beams.is_busy() || self.pool.running().next().is_some();
        let waits_for_disk = self.waits_for_disk && self.pool.conversations.disk_is_busy();
        let is_known = || self.queue.iter().all(|it| it.prompt == PromptState::Known);
        let can_begin = self.has_waiting() && !waits_for_disk && is_known();
        if runs || can_begin {
            return NextWork::Now;
        }
        let late = self.queue.iter().filter_map(|submission| match submission.prompt {
            PromptState::Awaited(until) => Some(until),
            PromptState::Known | PromptState::Late => None,
        });
        self.first_deadline().into_iter().chain(late).min().map_or(NextWork::AfterCommand, NextWork::At)
    }

    /// Gives the completions of the request `id` their prompts. Those that have none end.
    pub(super) fn set_prompts(&mut self, id: u64, prepared: &Result<Prepared>) {
        self.queue.retain_mut(|submission| self.report.set_prompt(submission, id, prepared));
    }

    /// Prepares a step: ends what was cancelled, and gives free slots to waiting requests.
    pub(super) fn prepare(&mut self) {
        self.end_cancelled();
        self.serve_sessions();
        self.admit();
    }

    /// Runs one step of all slots and one of the beam search. `interrupt` stops the decode when the first of the requests must end.
    pub(super) fn step(&mut self, interrupt: &Interrupt) {
        interrupt.set_deadline(self.deadline());
        space::make_space(&mut self.pool, &mut self.report);
        self.follow_up();
        self.step.run(&mut self.pool, &mut self.report);
        self.follow_up();
        self.beams.step(&mut self.report);
        interrupt.set_deadline(None);
    }

    /// Follows up on ended runs, before another request can change their slots.
    fn follow_up(&mut self) {
        for run in std::mem::take(&mut self.report.follow_ups) {
            if let Some((sink, outcome)) = follow_up(&mut self.pool, run) {
                self.report.end(sink, outcome);
            }
        }
    }

    /// Delivers everything that has changed. Appends the number of each request that has an event to `changed`.
    pub(super) fn deliver(&mut self, changed: &mut Vec<u64>) {
        self.session_answers.drain(..).for_each(SessionAnswer::send);
        self.report.deliver(changed);
    }

    /// Ends every request.
    pub(super) fn end_all(&mut self, stop: &Stop) {
        for submission in std::mem::take(&mut self.queue) {
            self.report.end_queued(submission.sink, stop.clone());
        }
        for preempted in std::mem::take(&mut self.preempted) {
            let (sink, outcome) = preempted.end(stop.clone());
            self.report.end(sink, outcome);
        }
        for index in 0..self.pool.slots.len() {
            end(&mut self.pool, index, stop.clone(), false, &mut self.report);
        }
        self.follow_up();
        self.beams.end(stop.clone(), &mut self.report);
    }

    /// Copies sessions out of and into slots, as soon as these are free.
    pub(super) fn serve_sessions(&mut self) {
        for job in std::mem::take(&mut self.session_jobs) {
            if job.claim.is_taken() {
                continue; // its caller has given it up
            }
            let queued = self.queue.iter().map(|submission| (&submission.sink, &submission.request.options));
            let preempted = self.preempted.iter().map(|PreemptedTask { task, .. }| (&task.sink, &task.options));
            let mut requests = queued.chain(preempted).filter(|(_, options)| !options.is_preparation());
            let waits = requests
                .any(|(sink, options)| sink.id() <= job.after && options.slot.is_none_or(|slot| slot == job.slot));
            let task = self.pool.slots.get(job.slot).and_then(|slot| slot.task.as_ref());
            if !waits && task.is_some_and(|task| task.options.is_preparation()) {
                end(&mut self.pool, job.slot, Stop::Cancelled, false, &mut self.report);
            }
            if waits || !self.pool.is_free(job.slot) {
                self.session_jobs.push_back(job);
            } else if job.claim.take() {
                self.session_answers.push(sessions::serve(&mut self.pool, job));
            }
        }
    }

    /// Takes note of what the disk has done, and serves the host's calls that concern conversations. Some wait for the disk.
    pub(super) fn serve_conversations(&mut self) {
        if let Some(disk) = &mut self.pool.conversations.disk {
            disk.observe();
        }
        while let Some(job) = self.conversation_jobs.pop_front() {
            if let Some(job) = conversation_calls::serve(&mut self.pool, &mut self.preempted, job) {
                self.conversation_jobs.push_front(job);
                return;
            }
        }
        if let Some(disk) = &mut self.pool.conversations.disk {
            let queued = || self.queue.iter().map(|submission| &submission.request.options);
            let preempted = || self.preempted.iter().map(|preempted| &preempted.task.options);
            let of = |name: &str, options: &RequestOptions| options.conversation.as_deref() == Some(name);
            disk.keep_fetched(|name| queued().chain(preempted()).any(|options| of(name, options)));
        }
    }

    /// Gives slots to the requests that wait: see [`AdmissionPass`].
    fn admit(&mut self) {
        self.queue_order.clear();
        self.waits_for_disk = false;
        if !self.has_waiting() {
            return;
        }
        let now = Instant::now();
        self.queue.iter_mut().for_each(|submission| submission.prompt.look(now));
        let new = self.queue.drain(..).map(|submission| Waiting::New(Box::new(submission)));
        let mut waiting: Vec<Waiting> = new.chain(self.preempted.drain(..).map(Waiting::Preempted)).collect();
        waiting.sort_by_key(|waiting| waiting.rank().order(now));
        let mut waiting = VecDeque::from(waiting);
        let mut left = Vec::new();
        let mut pass = AdmissionPass::new(&self.pool, self.beams.is_busy());
        while let Some(next) = waiting.pop_front() {
            let place = match &next {
                Waiting::New(submission) => pass.place(&self.pool, submission),
                Waiting::Preempted(preempted) => pass.place_preempted(&self.pool, preempted),
            };
            if place.is_some_and(|place| !self.has_files_for(place, &next)) {
                self.waits_for_disk = true;
                pass.keep_slot(next.options().slot);
                left.push(next);
                continue;
            }
            let Some(place) = place.filter(|place| self.make_way(*place, waiting.iter().chain(&left))) else {
                left.push(next);
                continue;
            };
            let rank = next.rank();
            if self.begin(place, next) {
                waiting.iter_mut().chain(&mut left).for_each(|other| other.other_has_begun(rank));
                self.preempted.iter_mut().for_each(|preempted| preempted.task.rank.other_has_begun(rank));
                let in_slots = self.pool.slots.iter_mut().filter_map(|slot| slot.task.as_mut());
                in_slots.filter(|task| task.is_preempted).for_each(|task| task.rank.other_has_begun(rank));
            }
            pass.begun(&self.pool, self.beams.is_busy());
        }
        let preempted = self.preempted.iter().map(|preempted| preempted.task.sink.id());
        self.queue_order.extend(left.iter().map(|waiting| waiting.sink().id()).chain(preempted));
        left.sort_by_key(|waiting| waiting.rank().arrival());
        for waiting in left {
            match waiting {
                Waiting::New(submission) => self.queue.push_back(*submission),
                Waiting::Preempted(preempted) => self.preempted.push(preempted),
            }
        }
    }

    /// Whether a request can begin in a place without waiting for the disk.
    fn has_files_for(&mut self, place: Placement, waiting: &Waiting) -> bool {
        let Placement::Slot(index) = place else { return true };
        let name = match waiting {
            Waiting::New(submission) => submission.request.options.conversation.as_deref(),
            Waiting::Preempted(preempted) => preempted.prepared_conversation(),
        };
        conversations::is_ready(&mut self.pool, index, name)
    }

    /// Preempts the request that runs in a place, if there is one. Returns whether the place is free then. The states of as many preempted
    /// requests as there are slots are kept. `waiting`: the requests that wait.
    fn make_way<'a>(&mut self, place: Placement, waiting: impl Iterator<Item = &'a Waiting>) -> bool {
        let Placement::Slot(index) = place else { return true };
        if self.pool.is_free(index) {
            return true;
        }
        let before =
            waiting.filter(|waiting| matches!(waiting, Waiting::Preempted(PreemptedTask { state: Some(_), .. })));
        let now = self.preempted.iter().filter(|preempted| preempted.state.is_some());
        let keeps_state = before.count() + now.count() < self.pool.slots.len();
        let preempted = preemption::preempt(&mut self.pool, index, keeps_state);
        let is_free = preempted.is_some();
        self.preempted.extend(preempted);
        is_free
    }

    /// Lets a request begin in a free place, or go on there. Returns whether it runs.
    fn begin(&mut self, place: Placement, waiting: Waiting) -> bool {
        let submission = match (waiting, place) {
            (Waiting::Preempted(preempted), Placement::Slot(index)) => {
                preemption::resume(&mut self.pool, index, preempted);
                return true;
            }
            (Waiting::New(submission), _) => *submission,
            // A beam search is not preempted.
            (Waiting::Preempted(_), Placement::Beams) => return false,
        };
        let sink = submission.sink.clone();
        if !sink.start() {
            self.report.end_queued(sink, Stop::Cancelled); // at this moment
            return false;
        }
        let begun = match place {
            Placement::Slot(index) => admission::begin(&mut self.pool, index, submission),
            Placement::Beams => admission::begin_beams(&self.pool, &mut self.beams, submission),
        };
        if let Err(error) = begun {
            let outcome = sink.never_ran(Stop::Error(error));
            self.report.end(sink, outcome);
            return false;
        }
        if let Placement::Slot(index) = place
            && let Some(task) = self.pool.slots.get(index).and_then(|slot| slot.task.as_ref())
            && let Some(progress) = task.progress(task.prompt.n_cached)
        {
            // Reports before the first decode that it has begun.
            self.report.update(&sink, Event::Progress(progress));
        }
        true
    }

    /// The earliest time at which a request has to end.
    fn deadline(&self) -> Option<Instant> {
        let slots = self.pool.running().filter_map(|(_, task)| task.deadline);
        slots.chain(self.beams.deadline()).min()
    }

    /// The earliest time at which a running or a waiting request has to end.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        let queued = self.queue.iter().map(|submission| submission.deadline);
        let preempted = self.preempted.iter().map(|preempted| preempted.task.deadline);
        queued.chain(preempted).flatten().chain(self.deadline()).min()
    }

    /// Ends the requests that were cancelled, and those whose time has passed.
    pub(super) fn end_cancelled(&mut self) {
        self.beams.end_cancelled(&mut self.report);
        let now = Instant::now();
        for index in 0..self.pool.slots.len() {
            let Some(task) = self.pool.slots.get(index).and_then(|slot| slot.task.as_ref()) else { continue };
            if task.sink.is_cancelled() {
                end(&mut self.pool, index, Stop::Cancelled, false, &mut self.report);
            } else if task.deadline.is_some_and(|deadline| deadline <= now) {
                end(&mut self.pool, index, Stop::Timeout, false, &mut self.report);
            }
        }
        self.follow_up();
        let is_late = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let ends = |PreemptedTask { task, .. }: &mut PreemptedTask| task.sink.is_cancelled() || is_late(task.deadline);
        for preempted in self.preempted.extract_if(.., ends) {
            preempted.task.begun_answer().into_iter().for_each(|answer| self.pool.begun.keep(answer));
            let stop = if preempted.task.sink.is_cancelled() { Stop::Cancelled } else { Stop::Timeout };
            let (sink, outcome) = preempted.end(stop);
            self.report.end(sink, outcome);
        }
        self.queue.retain(|submission| self.report.waits(submission, now));
    }
}

/// How a context divides batches.
fn batch_split(context: &Context) -> BatchSplit {
    let n_ubatch = context.n_ubatch();
    if !context.rollback().is_unlimited() {
        let n_together = match context.rollback().max_tokens() {
            0 => 0,
            n => n + 1,
        };
        return BatchSplit::Ends { n_ubatch, n_together, is_consecutive: context.has_buffers() };
    }
    if !context.decodes_rectangles() {
        return BatchSplit::Whole { n_ubatch };
    }
    let padding = match context.pads_sequences() {
        None => SequencePadding::Never,
        Some(false) => SequencePadding::Always,
        Some(true) => SequencePadding::UnlessOneEach,
    };
    BatchSplit::Rectangles { n_ubatch, padding }
}
