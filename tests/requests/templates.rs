//! Real chat templates: what they render to, against Jinja2 set up as in transformers.
//!
//! `data/templates.py` made `data/templates.txt` from llama.cpp's collection (`models/templates`), which is not part of
//! this repository: `scripts/templates.sh` gets it. So this test is run by `make templates` alone, and fails
//! without the collection. What the real templates use is tested always beside `src/api/chat_template.rs`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use foredraft::api::{ChatTemplate, RenderInput};
use serde_json::{Map, Value};

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// FNV-1a, as in templates.py.
fn fnv(text: &str) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// The prompt, or what went wrong.
fn render(template: &ChatTemplate, case: &Value, now: u64) -> Result<String, String> {
    let rendered = template.render(&RenderInput {
        messages: case["messages"].as_array().expect("messages"),
        add_generation_prompt: case["add"] != false,
        bos_token: "<s>",
        eos_token: "</s>",
        tools: case.get("tools"),
        kwargs: case["kwargs"].as_object().unwrap_or(&Map::new()),
        now: UNIX_EPOCH + Duration::from_secs(now),
    });
    rendered.map_err(|error| error.message().to_owned())
}

/// The lines of templates.txt: template, its hash, and for each case its name and what is expected.
fn expectations(text: &str) -> Vec<(&str, &str, HashMap<&str, &str>)> {
    let mut all = Vec::new();
    for line in text.lines() {
        if let Some((case, expected)) = line.strip_prefix(' ').and_then(|line| line.split_once(' ')) {
            let (_, _, cases): &mut (_, _, HashMap<_, _>) = all.last_mut().expect("a template first");
            cases.insert(case, expected);
        } else {
            let (template, hash) = line.split_once(' ').expect("name and hash");
            all.push((template, hash, HashMap::new()));
        }
    }
    all
}

#[test]
#[ignore = "needs llama.cpp's templates: make templates"]
fn llama_cpps_templates_render_as_in_jinja2() {
    let folder = std::env::var_os("FOREDRAFT_TEMPLATES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/templates"), PathBuf::from);
    let input: Value = serde_json::from_str(&data("templates.json")).expect("JSON");
    let (now, cases) = (input["now"].as_u64().expect("now"), input["cases"].as_array().expect("cases"));
    let (text, mut wrong, mut count) = (data("templates.txt"), Vec::new(), 0);
    for (name, hash, expected) in expectations(&text) {
        let path = folder.join(name);
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(fnv(&source), hash, "{name} is another version than templates.txt was made from");
        let template = match ChatTemplate::parse(&source) {
            Ok(template) => template,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for case in cases {
            let case_name = case["name"].as_str().expect("a name");
            let (expected, found) = (expected[case_name], render(&template, case, now));
            count += 1;
            let same = match (expected.split_once(' '), &found) {
                (None, Ok(prompt)) => fnv(prompt) == expected,
                (Some(("raises", message)), Err(error)) => {
                    let message: String = serde_json::from_str(message).expect("a string");
                    error.starts_with(&format!("chat_template: {message} (line "))
                }
                // Jinja2 cannot do it, for a reason that is not the template's.
                (Some(("fails", _)), _) => true,
                _ => false,
            };
            if !same {
                wrong.push(format!("{name} {case_name}: expected {expected}, got {found:?}"));
            }
        }
    }
    assert!(count > 1000, "only {count} prompts");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("templates.txt");
    fs::write(&out, wrong.join("\n")).expect("target/ is writable");
    assert!(wrong.is_empty(), "{} of {count} are wrong, see {}", wrong.len(), out.display());
}
