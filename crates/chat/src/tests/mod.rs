//! Tests of formats, of the small templates here and of real ones (`scripts/check.sh templates` downloads them).

mod answers;
mod attack;
mod broken;
mod calls;
mod documents;
mod held_back;
mod invalid;
mod random;
#[path = "../../../../tests/real_templates/mod.rs"]
mod real_templates;
mod reasoning;
mod renderer;
mod round_trip;
mod templates;
mod variants;
mod work;

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

/// Words of every family.
const FAMILY_WORDS: &str = "<|tool_call_argument_begin|> <|tool_call_start|> List of tools: <|tool_call>call: CDATA <tool_call> <|tool_call|> \
    <think></think> [THINK][/THINK]";

#[test]
fn comment_of_a_template_chooses_no_format() {
    let plain = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";
    let commented = |comment: &str| TestTemplate::new(&format!("{comment}{plain}")).detect();
    let plain = TestTemplate::new(plain).detect();
    assert_eq!(commented(&format!("{{# {FAMILY_WORDS} #}}")), plain);
    assert!(plain.is_generic && plain.reasoning.is_none());
    assert_ne!(commented(&format!("{{% if false %}}{FAMILY_WORDS}{{% endif %}}")), plain);
}
