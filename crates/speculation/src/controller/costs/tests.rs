use super::*;

/// The costs for these times of batches, in milliseconds, and of a drafted token (`draft_ms`).
pub fn costs(target_ms: &[(usize, u64)], draft_ms: f64) -> Costs {
    let mut costs = Costs::default();
    for (n, ms) in target_ms {
        costs.record_target(*n, Duration::from_millis(*ms));
    }
    costs.record_drafts(|_| 1, 1, 0, Duration::from_secs_f64(draft_ms / 1e3));
    costs
}

#[test]
fn v_is_interpolated_between_measured_sizes_and_extrapolated_beyond() {
    let costs = costs(&[(1, 100), (5, 200), (9, 200)], 10.0);
    for (n, expected) in [(0, 0.0), (1, 1.0), (3, 1.5), (5, 2.0), (7, 2.0), (9, 2.0)] {
        assert!((costs.v(n) - expected).abs() < 1e-9, "v({n}) = {}", costs.v(n));
    }
    assert!(costs.v(20) > 2.0);
    assert!((costs.c(1, 0) - 0.1).abs() < 1e-9);
    assert!(Costs::default().v(4) > 1.0);
}

#[test]
fn one_token_alone_says_nothing_about_several() {
    let v_of_4 = |costs: &Costs| costs.v(4);
    let one = costs(&[(1, 100)], 10.0);
    assert_eq!(v_of_4(&one), v_of_4(&Costs::default()));
    assert_eq!((one.v_at_most(1), one.v_at_most(4)), (1.0, 4.0));
    let two = costs(&[(1, 100), (2, 150)], 10.0);
    for (found, expected) in [(two.v(4), 2.5), (two.v_at_most(2), 1.5), (two.v_at_most(4), 3.0)] {
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }
    let mut padded = Costs::default();
    padded.pad();
    padded.record_target(1, Duration::from_millis(100));
    assert!(padded.v(4) > padded.v(2) && padded.v(4) < 2.0, "{}", padded.v(4));
}

#[test]
fn times_that_are_measured_again_replace_the_earlier_ones() {
    let mut costs = costs(&[(1, 100), (2, 180), (4, 300)], 10.0);
    costs.become_cheaper();
    costs.forget_target();
    costs.record_target(1, Duration::from_millis(50));
    costs.record_target(2, Duration::from_millis(60));
    assert!((costs.v(2) - 1.2).abs() < 1e-9 && costs.v(4) <= 2.4, "{} {}", costs.v(2), costs.v(4));
    assert!((costs.c(1, 0) - 0.2).abs() < 1e-9, "those of the draft are kept: {}", costs.c(1, 0));
}

#[test]
fn beyond_the_largest_size_the_prompts_tell() {
    let mut costs = costs(&[(1, 100), (8, 500)], 10.0);
    let estimate = costs.v(48);
    costs.record_prompt(40, Duration::from_millis(1));
    assert_eq!(costs.v(48), estimate, "limited to the longest draft");
    costs.record_prompt(208, Duration::from_millis(4500));
    assert!((costs.v(48) - 13.0).abs() < 1e-9 && costs.v(48) < estimate, "{} {estimate}", costs.v(48));
    assert_eq!(costs.v(8), 5.0);
}

#[test]
fn what_slows_all_sizes_changes_no_ratio() {
    let mut costs = costs(&[(1, 100), (4, 150), (8, 300)], 10.0);
    for _ in 0..200 {
        costs.record_target(4, Duration::from_millis(300));
    }
    assert!((costs.v(8) - 3.0).abs() < 1e-6, "{}", costs.v(8));
    assert!((costs.v(4) - 1.5).abs() < 0.6, "mostly the machine's doing: {}", costs.v(4));
    assert!((costs.c(1, 0) - 0.1).abs() < 1e-9, "the machine got slower, for the draft as well: {}", costs.c(1, 0));
    for _ in 0..200 {
        costs.record_drafts(|_| 1, 1, 0, Duration::from_millis(10));
    }
    assert!(costs.c(1, 0) < 0.08, "the target got slower, not the draft: {}", costs.c(1, 0));
}

#[test]
fn sizes_that_no_step_uses_follow_a_machine_that_becomes_slower() {
    let measured = [(1, 100), (2, 150), (4, 200), (8, 300)];
    // At once, and after a while.
    for calm in [0, 50] {
        let mut costs = costs(&measured, 10.0);
        for step in 0..calm + 10 {
            costs.record_step(&[1], |_| 0, Duration::from_millis(if step < calm { 100 } else { 150 }));
        }
        // The size that is used alone takes at most a seventh of the difference.
        assert!((costs.v(8) - 3.0).abs() < 0.4, "{calm}: {}", costs.v(8));
        assert!((costs.c(1, 0) - 0.1).abs() < 0.014, "the draft, too: {calm}: {}", costs.c(1, 0));
        // A single slow step says nothing about the next ones.
        costs.record_step(&[1], |_| 0, Duration::from_millis(150));
        costs.record_step(&[1], |_| 0, Duration::from_millis(250));
        costs.record_step(&[1], |_| 0, Duration::from_millis(150));
        assert!((costs.v(8) - 3.0).abs() < 0.55, "{calm}: {}", costs.v(8));
    }
}

#[test]
fn one_slow_step_says_little_of_its_size() {
    let mut costs = costs(&[(1, 100), (4, 200)], 10.0);
    for _ in 0..10 {
        costs.record_step(&[4], |_| 0, Duration::from_millis(200));
    }
    let before = costs.v(4);
    costs.record_step(&[4], |_| 0, Duration::from_millis(300));
    assert!(costs.v(4) < 1.02 * before, "{} {before}", costs.v(4));
}

#[test]
fn tokens_that_become_cheaper_do_so_in_sizes_that_were_not_used_yet() {
    let measured = [(1, 100), (2, 150), (4, 200), (8, 300)];
    let v_of_8 = |become_cheaper: bool, ms| {
        let mut costs = costs(&measured, 10.0);
        if become_cheaper {
            costs.become_cheaper();
        }
        costs.record_step(&[1], |_| 0, Duration::from_millis(100));
        costs.record_step(&[4], |_| 0, Duration::from_millis(ms));
        costs.v(8)
    };
    assert!(v_of_8(true, 150) < 2.8, "{}", v_of_8(true, 150));
    assert!(v_of_8(false, 150) > 2.95, "they were measured as they are: {}", v_of_8(false, 150));
    assert!(v_of_8(true, 250) > 2.95, "they do not become dearer: {}", v_of_8(true, 250));
}

#[test]
fn one_token_costs_no_more_than_several_until_a_step_measures_it() {
    let mut costs = costs(&[(1, 150), (2, 110), (4, 130)], 11.0);
    assert!(
        (costs.v(2) - 1.0).abs() < 1e-9 && (costs.v(4) - 130.0 / 110.0).abs() < 1e-9,
        "{} {}",
        costs.v(2),
        costs.v(4)
    );
    assert!((costs.c(1, 0) - 0.1).abs() < 1e-9, "{}", costs.c(1, 0));
    for _ in 0..20 {
        costs.record_step(&[2], |_| 0, Duration::from_millis(110));
        costs.record_step(&[1], |_| 0, Duration::from_millis(100));
    }
    assert!(costs.v(2) > 1.05, "{}", costs.v(2));
}

#[test]
fn what_a_batch_of_another_size_costs_more_is_no_sizes_own_cost() {
    let mut costs = costs(&[(1, 100), (4, 150), (8, 250)], 10.0);
    for step in 0..400 {
        let n = [1, 1, 1, 4, 4, 8][step % 6];
        let changed = step % 6 == 0 || step % 6 == 3 || step % 6 == 5;
        let time = [0, 100, 0, 0, 150, 0, 0, 0, 250][n] + if changed { 50 } else { 0 };
        costs.record_target(n, Duration::from_millis(time));
    }
    for (n, v) in [(1, 1.0), (4, 1.5), (8, 2.5)] {
        assert!((costs.v(n) - v).abs() < 0.1, "v({n}) = {}", costs.v(n));
    }
    costs.record_mixed(4);
    for (preferred, n, changes) in
        [(None, 4, 0.0), (None, 8, 1.0), (Some(4), 8, 2.0), (Some(8), 8, 1.0), (Some(8), 4, 1.0)]
    {
        let more = costs.next(preferred)(n) - costs.v(n);
        assert!((more - changes * 0.5).abs() < 0.1, "preferred {preferred:?}, {n}: {more}");
    }
}

#[test]
fn padded_one_token_costs_what_two_do() {
    let mut costs = costs(&[(1, 100), (2, 130), (8, 260)], 10.0);
    costs.pad();
    assert_eq!((costs.v(1), costs.v(2), costs.v(8)), (1.0, 1.0, 2.0));
    costs.record_target(1, Duration::from_millis(130));
    assert_eq!((costs.v(1), costs.v(2), costs.v(8)), (1.0, 1.0, 2.0));
    assert!((costs.v(16) - 4.0).abs() < 1e-9, "a larger batch is worth no more: {}", costs.v(16));
}

#[test]
fn the_cost_of_the_context_is_learned_from_steps() {
    let mut costs = costs(&[(1, 100), (4, 110), (16, 200)], 10.0);
    // 10 ms for each slot and 5 ms for each of its tokens, for each thousand tokens of context.
    let time = |n: usize, each: f64, n_past: f64| {
        let own = [0.0, 0.1, 0.0, 0.0, 0.11][n] + n_past / 1e3 * (0.01 + 0.005 * each);
        Duration::from_secs_f64(own)
    };
    for step in 0..200 {
        let n = [1, 4][step % 2];
        costs.record_step(&[n], |_| 2000, time(n, n as f64, 2000.0));
    }
    let more = costs.attention(16, 2000) - costs.attention(1, 2000);
    assert!((more - 1.5).abs() < 0.3, "15 tokens more: {more}");
    let cost = |n: usize| costs.v(n) + costs.attention(n, 2000);
    assert!((cost(4) / cost(1) - 0.17 / 0.13).abs() < 0.03, "{} {}", cost(1), cost(4));
    assert_eq!(costs.attention(0, 2000), 0.0);
}

#[test]
fn a_slow_first_step_is_soon_forgotten() {
    let mut costs = costs(&[(1, 100), (2, 103), (4, 106)], 10.0);
    costs.record_step(&[1, 1, 1, 1], |_| 200, Duration::from_millis(200));
    for _ in 0..10 {
        costs.record_step(&[1, 1, 1, 1], |_| 200, Duration::from_millis(110));
    }
    let step = costs.step(&[1, 1, 1, 1], |_| 200);
    assert!((step - 1.1).abs() < 0.15, "{step}");
    assert!((costs.c(1, 0) - 0.1).abs() < 0.01, "{}", costs.c(1, 0));
}

#[test]
fn a_draft_costs_more_with_more_context() {
    let mut costs = costs(&[(1, 100)], 10.0);
    for _ in 0..20 {
        costs.record_drafts(|_| 2, 3, 1000, Duration::from_millis(3 * 32));
    }
    assert!((costs.c(2, 1000) - 0.32).abs() < 0.02, "{}", costs.c(2, 1000));
    assert!(costs.c(2, 0) < 0.2 && costs.c(2, 2000) > 0.4, "{} {}", costs.c(2, 0), costs.c(2, 2000));
}

#[test]
fn the_sizes_that_slots_use_are_measured_first() {
    assert_eq!(sizes_to_measure(1)[..5], [1, 2, 4, 8, 16]);
    assert_eq!(sizes_to_measure(8)[..6], [1, 8, 16, 32, 64, 24]);
    assert_eq!(sizes_to_measure(0), sizes_to_measure(1));
    assert!(sizes_to_measure(100).iter().all(|size| *size <= MAX_DRAFT));
}

#[test]
fn a_single_slow_decode_counts_little() {
    let mut costs = costs(&[(1, 100), (2, 120)], 10.0);
    costs.record_target(2, Duration::from_secs(60));
    costs.record_drafts(|_| 1, 1, 0, Duration::from_secs(60));
    assert!(costs.v(2) < 1.4 && costs.c(1, 0) < 0.15, "{} {}", costs.v(2), costs.c(1, 0));
}
