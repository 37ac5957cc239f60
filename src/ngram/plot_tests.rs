use super::super::{Cache, lookup_stats};
use super::{LookupStats, Tally, grouped};

fn stats() -> LookupStats {
    let text: Vec<i32> = (0..4000).map(|i| (i * i / 5) % 17 + i % 3).collect();
    let before: Vec<i32> = (0..4000).map(|i| (i * i / 5) % 17).collect();
    let mut static_cache = Cache::new();
    static_cache.update(&before, before.len(), super::super::Sizes::STATIC);
    lookup_stats(&text, 6, 500, &mut Cache::new(), &static_cache, &mut |_| std::ops::ControlFlow::Continue(())).unwrap()
}

/// Every tag is closed in order, and every coordinate lies in the picture.
fn check(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().expect("a name"));
        }
        for attribute in ["x=", "y=", "cx=", "cy=", "width=", "height=", "r="] {
            for value in tag.split(' ').filter_map(|part| part.strip_prefix(attribute)) {
                let value: f64 = value.trim_matches(['"', '/']).parse().expect("a number");
                assert!((0.0..=super::WIDTH).contains(&value), "{tag}");
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn every_tally_is_a_dot() {
    let stats = stats();
    assert!(stats.all().accepted > 0 && stats.static_cache.iter().any(|tally| tally.drafted > 0), "{stats:?}");
    let svg = stats.plot();
    check(&svg);
    for (tallies, name) in stats.by_size.iter().chain([&stats.static_cache]).zip(super::SERIES.map(|(name, _)| name)) {
        for (tally, position) in tallies.iter().zip(1..) {
            let title = format!("{name}, position {position}: {} of {} accepted", tally.accepted, tally.drafted);
            assert_eq!(svg.contains(&title), tally.drafted > 0, "{title}");
        }
    }
    let all = stats.all();
    assert!(svg.contains(&format!("{} of {} accepted", grouped(all.accepted), grouped(all.drafted))));
}

#[test]
fn nothing_and_very_much() {
    check(&LookupStats::default().plot());
    let many = vec![Tally { drafted: usize::MAX / 100_000, accepted: 1 }; 5000];
    check(&LookupStats { by_size: std::array::from_fn(|_| many.clone()), ..LookupStats::default() }.plot());
}

#[test]
fn thousands_are_grouped() {
    for (number, expected) in [(0, "0"), (999, "999"), (1000, "1 000"), (1_234_567, "1 234 567")] {
        assert_eq!(grouped(number).replace('\u{a0}', " "), expected);
    }
}
