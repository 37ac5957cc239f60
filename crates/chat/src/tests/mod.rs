//! Tests of formats, of the small templates here and of real ones (`scripts/check.sh templates` downloads them).

mod attack;
mod broken;
mod calls;
mod documents;
mod invalid;
#[path = "../../../../tests/real_templates/mod.rs"]
mod real_templates;
mod reasoning;
mod renderer;
mod round_trip;
mod templates;

use self::real_templates::real_templates;
use self::renderer::TestTemplate;

/// Prints what is found for each real template; for people.
#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn print_formats_of_real_templates() {
    for (name, source) in real_templates() {
        let template = TestTemplate::new(&source);
        let format = template.detect();
        println!(
            "=== {name} {}\n  reasoning {:?}\n  content {:?}",
            if format.is_generic { "GENERIC" } else { "" },
            format.reasoning,
            format.content
        );
        for calls in &format.calls {
            println!("  {calls:?}");
        }
    }
}
