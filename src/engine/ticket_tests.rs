use super::*;

fn text(events: &[(usize, Event)]) -> String {
    events.iter().map(|(_, event)| if let Event::Update(update) = event { update.text.as_str() } else { "|" }).collect()
}

/// An order of `n` texts with prompts of 3, 4, ... tokens, and its tickets.
fn order(n: usize, unfinished: &Arc<AtomicUsize>) -> (Arc<Order>, Vec<Ticket>) {
    let texts = (0..n).map(|index| Expected { n_prompt: 3 + index, speculates: index == 0 }).collect();
    let order = Order::new(1, texts, Arc::clone(unfinished));
    let tickets = order.tickets().collect();
    (order, tickets)
}

fn update(text: &str) -> Update {
    Update { text: text.into(), ..Update::default() }
}

#[test]
fn updates_beyond_the_bound_are_joined_and_nothing_is_lost() {
    let (order, tickets) = order(2, &Arc::default());
    assert!(tickets[0].start());
    tickets[1].update(update("other"));
    let sent: Vec<String> = (0..MAX_UPDATES + 500).map(|n| format!("{n} ")).collect();
    for text in &sent {
        tickets[0].update(update(text));
    }
    tickets[1].update(update(" text"));
    let (events, phase) = order.take(Duration::ZERO);
    assert_eq!(phase, Phase::Prompt);
    assert_eq!(events.len(), MAX_UPDATES);
    let (first, other): (Vec<_>, Vec<_>) = events.into_iter().partition(|(index, _)| *index == 0);
    assert_eq!((text(&first), text(&other)), (sent.concat(), "other text".to_owned()));
}

#[test]
fn a_queued_request_ends_where_it_is_cancelled() {
    let unfinished = Arc::default();
    let (order, tickets) = order(2, &unfinished);
    assert_eq!(unfinished.load(Ordering::Relaxed), 2);
    assert!(order.cancel());
    assert_eq!(unfinished.load(Ordering::Relaxed), 0);
    assert!(!tickets[0].start(), "a slot must not take it");
    let (events, phase) = order.take(Duration::from_secs(3600));
    assert_eq!(phase, Phase::Finished);
    let [(0, Event::Finished(first)), (1, Event::Finished(second))] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&first.stop, &second.stop), (&Stop::Cancelled, &Stop::Cancelled));
    assert_eq!((first.prompt.n_total, second.prompt.n_total), (3, 4));
    assert_eq!((first.speculation.is_some(), second.speculation.is_some()), (true, false));
    assert!(order.cancel(), "nothing runs");
    assert_eq!(order.take(Duration::from_secs(3600)).0.len(), 0, "waits for nothing once finished, and ends once");
}

#[test]
fn a_cancel_leaves_what_runs_to_the_engine() {
    let (order, tickets) = order(2, &Arc::default());
    assert!(tickets[1].start());
    assert!(!order.cancel());
    assert_eq!((tickets[0].phase(), tickets[1].phase()), (Phase::Finished, Phase::Prompt));
    assert!(tickets[1].is_cancelled());
    tickets[1].finish(tickets[1].never_ran(Stop::Cancelled));
    assert_eq!(order.phase(), Phase::Finished);
}

#[test]
fn the_request_has_come_as_far_as_its_furthest_text() {
    let (order, tickets) = order(3, &Arc::default());
    let mut phases = vec![order.phase()];
    assert!(tickets[1].start() && tickets[0].start());
    phases.push(order.phase());
    tickets[0].set_generating();
    phases.push(order.phase());
    tickets[0].finish(tickets[0].never_ran(Stop::Eos));
    phases.push(order.phase());
    tickets[1].finish(tickets[1].never_ran(Stop::Eos));
    phases.push(order.phase());
    assert!(tickets[2].finish_if_queued(Stop::Timeout));
    phases.push(order.phase());
    use Phase::*;
    assert_eq!(phases, [Queued, Prompt, Generating, Prompt, Queued, Finished]);
    assert_eq!(tickets[2].phase_of(1), Finished);
}

#[test]
fn waiting_ends_with_the_first_update() {
    let (order, tickets) = order(1, &Arc::default());
    let other = Arc::clone(&order);
    assert!(tickets[0].start());
    let waiting = std::thread::spawn(move || other.take(Duration::MAX));
    tickets[0].update(update("a"));
    assert_eq!(text(&waiting.join().unwrap().0), "a");
}
