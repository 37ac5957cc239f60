use super::{exp, gap};

#[test]
fn exp_is_exp() {
    for step in 0..=2_000_000 {
        let x = -88.0 * step as f32 / 2_000_000.0;
        let (value, truth) = (f64::from(exp(x)), f64::from(x).exp());
        if x > -87.3 {
            assert!((value - truth).abs() <= 3e-7 * truth, "exp({x}) = {value}, not {truth}");
        } else {
            assert_eq!(value, 0.0, "exp({x})");
        }
    }
}

#[test]
fn exp_of_the_extremes() {
    for (x, expected) in [(0.0, 1.0), (-0.0, 1.0), (f32::NEG_INFINITY, 0.0), (f32::NAN, 0.0), (f32::MIN, 0.0)] {
        assert_eq!(exp(x), expected, "exp({x})");
    }
}

#[test]
fn an_infinite_maximum_is_at_distance_0_from_itself() {
    assert_eq!(gap(f32::INFINITY, f32::INFINITY), 0.0);
    assert_eq!(gap(3.0, f32::INFINITY), f32::NEG_INFINITY);
    assert_eq!(gap(f32::NEG_INFINITY, 3.0), f32::NEG_INFINITY);
    assert_eq!(gap(2.5, 3.0), -0.5);
}
