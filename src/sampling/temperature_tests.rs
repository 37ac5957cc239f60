use super::super::blocks::{BlockScratch, Blocks};
use super::super::candidates::Candidates;
use super::super::settings::Settings;
use super::Temperature;

fn dynamic(temperature: f32, range: f32, exponent: f32) -> Settings {
    Settings { temperature, dynatemp_range: range, dynatemp_exponent: exponent, ..Settings::default() }
}

/// Probabilities after the temperature, by token; the same for row and list.
fn heated(temperature: Temperature, logits: &[f32]) -> Vec<f32> {
    let (mut list, mut scratch) = (Candidates::default(), BlockScratch::default());
    let mut blocks = Blocks::survey(logits, &mut scratch);
    blocks.all(&mut list);
    temperature.apply(&mut list);
    list.softmax();
    let mut expected = vec![0.0; logits.len()];
    list.items().iter().for_each(|item| expected[item.id as usize] = item.p);

    if temperature.set(&mut blocks, &mut list) {
        blocks.all(&mut list);
    }
    assert!((blocks.sum_exp() >= 1.0) && blocks.entropy() >= -1e-6, "also where 1 / temperature overflows");
    list.softmax();
    let mut found = vec![0.0; logits.len()];
    list.items().iter().for_each(|item| found[item.id as usize] = item.p);
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} and {expected:?}");
    assert_eq!(list.size(), logits.len(), "nothing is cut off");
    found
}

fn check(temperature: Temperature, logits: &[f32], expected: &[f64]) {
    let found = heated(temperature, logits);
    let close = found.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5);
    assert!(close, "{temperature:?}: {found:?}, expected {expected:?}");
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

#[test]
fn a_fixed_temperature_divides() {
    let logits = [0.1, 0.7, -0.3, 1.1];
    for temperature in [0.2_f32, 0.8, 1.5, 7.0] {
        check(Temperature::fixed(temperature).unwrap(), &logits, &softmax(&logits, f64::from(temperature)));
    }
    assert_eq!(Temperature::fixed(1.0), None);
    assert_eq!(Temperature::new(&dynamic(1.0, 0.0, 2.0)), None);
}

#[test]
fn the_most_probable_alone_at_0_and_where_the_division_overflows() {
    for temperature in [0.0, -1.0, 1e-39] {
        check(Temperature::fixed(temperature).unwrap(), &[0.5, 2.0, 2.0, 1.0], &[0.0, 1.0, 0.0, 0.0]);
        check(Temperature::fixed(temperature).unwrap(), &[-5.0, -2.0, -2.5, -9.0], &[0.0, 1.0, 0.0, 0.0]);
    }
    check(Temperature::fixed(1e-39).unwrap(), &[-5.0, 0.0, -1e-3, -9.0], &[0.0, 1.0, 0.0, 0.0]);
    check(Temperature::fixed(1e-30).unwrap(), &[0.5, 2.0, 2.0, 1.0], &[0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn the_dynamic_temperature_follows_the_entropy() {
    let logits: Vec<f32> = [0.1_f32, 0.2, 0.3, 0.4].iter().map(|p| p.ln()).collect();
    let entropy: f64 = [0.1_f64, 0.2, 0.3, 0.4].iter().map(|p| -p * p.ln()).sum();
    let share = entropy / 4.0_f64.ln();
    for (base, range, exponent) in [(1.0_f32, 0.5_f32, 1.0_f32), (0.8, 0.3, 2.0), (0.5, 2.0, 0.5), (1.0, 0.5, 0.0)] {
        let (low, high) = ((f64::from(base) - f64::from(range)).max(0.0), f64::from(base) + f64::from(range));
        let temperature = low + (high - low) * share.powf(f64::from(exponent));
        check(Temperature::new(&dynamic(base, range, exponent)).unwrap(), &logits, &softmax(&logits, temperature));
    }
    // Flat: the highest temperature, which changes nothing. Certain: the lowest.
    check(Temperature::new(&dynamic(1.0, 0.5, 1.0)).unwrap(), &[3.0; 4], &[0.25; 4]);
    check(Temperature::new(&dynamic(1.0, 1.0, 1.0)).unwrap(), &[200.0, 0.0, 1.0, 0.0], &[1.0, 0.0, 0.0, 0.0]);
    check(Temperature::new(&dynamic(1.0, 0.5, 1.0)).unwrap(), &[3.0], &[1.0]);
}

/// As in llama.cpp the greatest entropy is that of all candidates, banned ones included.
#[test]
fn banned_tokens_count_in_the_greatest_entropy() {
    let logits = [0.0, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let p = softmax(&logits[..2], 1.0);
    let share = p.iter().map(|p| -p * p.ln()).sum::<f64>() / 4.0_f64.ln();
    let mut expected = softmax(&logits[..2], 0.5 + share);
    expected.extend([0.0, 0.0]);
    check(Temperature::new(&dynamic(1.0, 0.5, 1.0)).unwrap(), &logits, &expected);
}
