use super::super::event::Update;
use super::*;

fn text(events: &[(usize, Event)]) -> String {
    events.iter().map(|(_, event)| if let Event::Update(update) = event { update.text.as_str() } else { "|" }).collect()
}

/// A request of `n` completions with prompts of 3, 4, ... tokens, and its sinks.
fn handle(n: usize, counts: &Arc<Counts>) -> (Arc<RequestHandle>, Vec<CompletionSink>) {
    let texts = (0..n).map(|index| Expected::new(3 + index, index == 0)).collect();
    let handle = RequestHandle::new(1, texts, Arc::clone(counts));
    let sinks = handle.sinks().collect();
    (handle, sinks)
}

fn update(text: &str) -> Event {
    Event::Update(Update { text: text.into(), ..Update::default() })
}

#[test]
fn excess_updates_are_merged_without_loss() {
    let (handle, sinks) = handle(2, &Arc::default());
    assert!(sinks[0].start());
    sinks[1].report(update("other"));
    let sent: Vec<String> = (0..MAX_UPDATES + 500).map(|n| format!("{n} ")).collect();
    for text in &sent {
        sinks[0].report(update(text));
    }
    sinks[1].report(update(" text"));
    let (events, phase) = handle.take(Duration::ZERO);
    assert_eq!(phase, Phase::Prompt);
    assert_eq!(events.len(), MAX_UPDATES);
    let (first, other): (Vec<_>, Vec<_>) = events.into_iter().partition(|(index, _)| *index == 0);
    assert_eq!((text(&first), text(&other)), (sent.concat(), "other text".to_owned()));
}

#[test]
fn cancelling_a_queued_request_ends_it_at_once() {
    let counts = Arc::default();
    let (handle, sinks) = handle(2, &counts);
    assert!(handle.cancel());
    assert!(!sinks[0].start(), "a slot must not take it");
    let (events, phase) = handle.take(Duration::from_secs(3600));
    assert_eq!(phase, Phase::Finished);
    let [(0, Event::Finished(first)), (1, Event::Finished(second))] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&first.stop, &second.stop), (&Stop::Cancelled, &Stop::Cancelled));
    assert_eq!((first.prompt.n_total, second.prompt.n_total), (3, 4));
    assert_eq!((first.speculation.is_some(), second.speculation.is_some()), (true, false));
    assert!(handle.cancel(), "nothing runs");
    assert_eq!(
        handle.take(Duration::from_secs(3600)).0.len(),
        0,
        "a finished request has no more events, and taking them does not wait"
    );
}

#[test]
fn queued_and_unfinished_completions_are_counted() {
    let counts = Arc::default();
    let (_handle, sinks) = handle(3, &counts);
    let mut seen = vec![(counts.queued(), counts.unfinished())];
    let mut note = || seen.push((counts.queued(), counts.unfinished()));
    assert!(sinks[0].start() && !sinks[0].start());
    note();
    assert!(sinks[1].finish_if_queued(Stop::Timeout));
    sinks[1].finish(sinks[1].never_ran(Stop::Cancelled));
    note();
    sinks[0].finish(sinks[0].never_ran(Stop::Eos));
    note();
    sinks[2].finish(sinks[2].never_ran(Stop::Eos));
    note();
    assert_eq!(seen, [(3, 3), (2, 3), (1, 2), (1, 1), (0, 0)]);
}

#[test]
fn cancel_leaves_running_completions_to_the_engine() {
    let (handle, sinks) = handle(2, &Arc::default());
    assert!(sinks[1].start());
    assert!(!handle.cancel());
    assert_eq!((sinks[0].phase(), sinks[1].phase()), (Phase::Finished, Phase::Prompt));
    assert!(sinks[1].is_cancelled());
    sinks[1].finish(sinks[1].never_ran(Stop::Cancelled));
    assert_eq!(handle.phase(), Phase::Finished);
}

#[test]
fn request_phase_is_that_of_its_furthest_completion() {
    let (handle, sinks) = handle(3, &Arc::default());
    let mut phases = vec![handle.phase()];
    assert!(sinks[1].start() && sinks[0].start());
    phases.push(handle.phase());
    sinks[0].set_generating();
    phases.push(handle.phase());
    sinks[0].finish(sinks[0].never_ran(Stop::Eos));
    phases.push(handle.phase());
    sinks[1].finish(sinks[1].never_ran(Stop::Eos));
    phases.push(handle.phase());
    assert!(sinks[2].finish_if_queued(Stop::Timeout));
    phases.push(handle.phase());
    use Phase::*;
    assert_eq!(phases, [Queued, Prompt, Generating, Prompt, Queued, Finished]);
}

#[test]
fn waiting_ends_with_the_first_update() {
    let (handle, sinks) = handle(1, &Arc::default());
    let other = Arc::clone(&handle);
    assert!(sinks[0].start());
    let waiting = std::thread::spawn(move || other.take(Duration::MAX));
    sinks[0].report(update("a"));
    assert_eq!(text(&waiting.join().unwrap().0), "a");
}
