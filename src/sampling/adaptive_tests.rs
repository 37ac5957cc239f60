use super::Adaptive;
use crate::llama::TokenData;
use crate::sampling::candidates::Candidates;
use crate::sampling::settings::Settings;

fn stage(target: f32, decay: f32) -> Option<Adaptive> {
    Adaptive::new(&Settings { adaptive_target: target, adaptive_decay: decay, ..Settings::default() })
}

#[test]
fn a_negative_target_turns_it_off() {
    assert_eq!(stage(-1.0, 0.9), None);
    assert!(stage(0.0, 0.9).is_some());
}

#[test]
fn the_mean_follows_the_tokens_taken() {
    let stage = stage(0.5, 0.75).expect("on");
    assert_eq!(stage.initial(), 0.5);
    assert_eq!(stage.next(0.5, 0.1), 0.75 * 0.5 + 0.25 * 0.1);
    // Always the same probability: the mean ends there.
    let mean = (0..100).fold(0.5, |mean, _| stage.next(mean, 0.125));
    assert!((mean - 0.125).abs() < 1e-6, "{mean}");
}

#[test]
fn logits_fall_with_the_distance_from_the_target() {
    let probabilities = [0.5_f32, 0.3, 0.15, 0.05];
    // (settings, mean so far, the target that follows)
    for (target, mean, moved) in [(0.3, 0.3, 0.3), (0.3, 0.4, 0.2), (0.3, 0.9, 0.0), (0.9, 0.1, 1.0)] {
        let mut list = Candidates::default();
        list.refill(true, |items| {
            items.extend((0..).zip(probabilities).map(|(id, p)| TokenData { id, logit: p.ln(), p: 0.0 }));
        });
        let mut before = Vec::new();
        stage(target, 0.9).expect("on").apply(mean, &mut list, &mut before);
        for (i, p) in probabilities.iter().enumerate() {
            let x = (f64::from(*p) - moved).abs() / 0.3;
            let expected = 5.0 - 10.0 * x * x / (1.0 + x);
            let found = f64::from(list.items()[i].logit);
            assert!((found - expected).abs() < 1e-5, "{target} {mean}: {found}, not {expected}");
            assert_eq!(before[i].0, i as i32);
            assert!((before[i].1 - p).abs() < 1e-6);
        }
    }
}
