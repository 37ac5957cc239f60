//! The shipped projector: the toy says the colour, the shape and the place in pictures that it was not trained on.

use serde_json::{Value, json};

use crate::common::Endpoint::Foredraft;
use crate::common::pictures::base64;
use crate::common::{complete, model, n, start, with};

const PICTURES: usize = 200;
/// Training draws from another generator, in another language.
const SEED: u64 = 20_261_129;
const COLORS: [(&str, [u8; 3]); 8] = [
    ("red", [220, 20, 20]),
    ("green", [20, 160, 40]),
    ("blue", [30, 50, 230]),
    ("yellow", [250, 230, 20]),
    ("pink", [250, 160, 190]),
    ("purple", [140, 20, 170]),
    ("white", [255, 255, 255]),
    ("black", [0, 0, 0]),
];
const SHAPES: [&str; 4] = ["circle", "square", "triangle", "cross"];
const PLACES: [&str; 9] = [
    "at the top left",
    "at the top",
    "at the top right",
    "on the left",
    "in the middle",
    "on the right",
    "at the bottom left",
    "at the bottom",
    "at the bottom right",
];
const SIZES: [(u32, u32); 6] = [(40, 40), (48, 48), (96, 96), (72, 60), (60, 72), (120, 100)];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("small")
    }

    /// A number between these two.
    fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.next() >> 40) as f32 / (1_u32 << 24) as f32
    }
}

/// Returns whether a point is in a shape of this radius around the origin.
fn contains(shape: &str, x: f32, y: f32, radius: f32) -> bool {
    let (ax, ay) = (x.abs(), y.abs());
    match shape {
        "circle" => x.hypot(y) < radius,
        "square" => ax.max(ay) < 0.85 * radius,
        "triangle" => y < 0.8 * radius && 1.8 * ax - y < radius,
        _ => ax.max(ay) < radius && ax.min(ay) < 0.34 * radius,
    }
}

/// A picture's part of a message, and its description.
fn picture(random: &mut Random) -> (Value, String) {
    let (width, height) = SIZES[random.below(SIZES.len())];
    let (w, h) = (width as f32, height as f32);
    let is_dark = random.below(2) == 0;
    let ground = if is_dark { random.below(50) } else { 205 + random.below(50) };
    let mut rgb = vec![u8::try_from(ground).expect("a byte"); (width * height * 3) as usize];
    let visible: Vec<_> = COLORS.iter().filter(|(name, _)| *name != if is_dark { "black" } else { "white" }).collect();
    let (color, pixel) = visible[random.below(visible.len())];
    let cell = random.below(PLACES.len());
    let shape = SHAPES[random.below(SHAPES.len())];
    let radius = random.between(0.125, 0.155) * w.max(h);
    let mut center = |index: usize, side: f32| {
        (((index as f32 + 0.5) / 3.0 + random.between(-0.02, 0.02)) * side).clamp(radius, side - radius)
    };
    let (cx, cy) = (center(cell % 3, w), center(cell / 3, h));
    for (index, target) in rgb.chunks_mut(3).enumerate() {
        let index = u32::try_from(index).expect("small");
        let (x, y) = ((index % width) as f32 + 0.5, (index / width) as f32 + 0.5);
        if contains(shape, x - cx, y - cy, radius) {
            target.copy_from_slice(pixel);
        }
    }
    let part = json!({"type": "image", "width": width, "height": height, "format": "rgb8", "base64": base64(&rgb)});
    (part, format!("A {color} {shape} is {}.", PLACES[cell]))
}

#[test]
fn shipped_model_describes_pictures_that_it_has_never_seen() {
    let mmproj = model("vision");
    let alone = start(json!({"model_draft": null, "mmproj": mmproj}));
    let drafting = ["draft", "eagle3"].map(|draft| start(json!({"model_draft": model(draft), "mmproj": mmproj})));
    let (mut random, mut wrong, mut drafts) = (Random(SEED), Vec::new(), [(0, 0); 2]);
    for _ in 0..PICTURES {
        let (picture, expected) = picture(&mut random);
        let content = json!([picture, {"type": "text", "text": "What is in the picture?"}]);
        let request = json!({"messages": [{"role": "user", "content": content}], "n_predict": 60, "temperature": 0});
        let answer = complete(&alone, Foredraft, &request)["content"].clone();
        let request = with(&request, json!({"speculative": {"type": "draft", "adaptive": false, "n_max": 3}}));
        for (engine, (n_drafted, n_accepted)) in drafting.iter().zip(&mut drafts) {
            let drafted = complete(engine, Foredraft, &request);
            assert_eq!(drafted["content"], answer, "a draft changes nothing");
            *n_drafted += n(&drafted["speculative"]["n_drafted"]);
            *n_accepted += n(&drafted["speculative"]["n_accepted"]);
        }
        if answer != *expected {
            wrong.push((expected, answer));
        }
    }
    println!("{} of {PICTURES} are right, drafted and accepted: {drafts:?}", PICTURES - wrong.len());
    assert!(wrong.len() <= PICTURES / 20, "{} of {PICTURES} are wrong: {wrong:#?}", wrong.len());
    // The draft model was trained on other answers, and sees nothing.
    assert!(
        drafts.iter().all(|(n_drafted, _)| *n_drafted > 20 * PICTURES) && drafts[1].1 > PICTURES / 10,
        "{drafts:?}"
    );
}
