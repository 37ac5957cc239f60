//! The programs lookup_create, lookup_merge and lookup_stats in examples/, run from the command line.

use std::fs;
use std::process::Command;

use crate::toolchain::{folder, library_folder, root, run, run_failing};

fn program(name: &str) -> Command {
    Command::new(library_folder().with_file_name("examples").join(name))
}

/// The number after a name in a program's output.
fn number(printed: &str, name: &str) -> f64 {
    let value = |line: &str| Some(line.strip_prefix(name)?.trim_start().strip_prefix("= ")?.to_owned());
    let value = printed.lines().find_map(value).unwrap_or_else(|| panic!("no {name} in {printed}"));
    let number = value.split([' ', '%']).next().expect("a value");
    number.parse().unwrap_or_else(|error| panic!("{name} = {value}: {error}"))
}

#[test]
fn lookup_programs_create_merge_and_measure_a_cache() {
    let folder = folder("lookup_examples");
    let path = |name: &str| folder.join(name);
    let names = ["Mia", "Tom", "Nora"];
    let sentence = |i: usize| format!("{} has a kite. It is near the river.\n", names[i * i % 3]);
    fs::write(path("text"), (0..400).map(sentence).collect::<String>()).expect("target/ is writable");
    let model = root().join("models/stories-target.gguf");
    let with_text = |name: &str| {
        let mut command = program(name);
        command.arg("-m").arg(&model).arg("-f").arg(path("text"));
        command
    };

    let created = run(with_text("lookup_create").arg("-o").arg(path("once")), "");
    let size = fs::metadata(path("once")).expect("the file was written").len() as f64;
    let (ngrams, pairs) = (number(&created, "n-grams"), number(&created, "continuations"));
    assert_eq!(size, 20.0 * ngrams + 8.0 * pairs, "{created}");
    let merged = run(program("lookup_merge").args(["once", "once", "twice"].map(path)), "");
    assert_eq!((number(&merged, "n-grams"), number(&merged, "continuations")), (ngrams, pairs), "{merged}");
    assert_eq!(number(&merged, "inputs"), 2.0);
    // The counts are doubled, and the size is the same.
    assert_ne!(fs::read(path("once")).expect("written"), fs::read(path("twice")).expect("written"));
    assert_eq!(fs::metadata(path("twice")).expect("the file was written").len() as f64, size);

    let stats = |cache: &str| {
        let mut command = with_text("lookup_stats");
        command.args(["-c", "128", "--draft-max", "4", "-lcs"]).arg(path(cache));
        run(&mut command, "")
    };
    let once = stats("once");
    assert_eq!(number(&once, "n_draft"), 4.0);
    assert!(number(&once, "n_accept") > 100.0, "{once}");
    let rate = 100.0 * number(&once, "n_accept") / number(&once, "n_drafted");
    assert!((number(&once, "accept ") - rate).abs() < 1e-3, "{once}");
    assert_eq!(number(&once, "n_predict") % 128.0, 0.0);
    // One occurrence is below the thresholds, two are not.
    assert!(number(&stats("twice"), "n_accept") > number(&once, "n_accept"), "{once}");
}

#[test]
fn lookup_programs_explain_usage_errors() {
    for name in ["lookup_create", "lookup_merge", "lookup_stats"] {
        let help = run(program(name).arg("--help"), "");
        assert!(help.starts_with(name), "{help}");
        let errors = run_failing(program(name).arg("--no-such-option"));
        assert!(errors.starts_with(&format!("{name}: unknown option --no-such-option")), "{errors}");
    }
    for (name, args, part) in [
        ("lookup_create", &["-o"][..], "-o: a value is missing"),
        ("lookup_create", &["-p", "a", "-o", "/tmp/x"], "no model is loaded"),
        ("lookup_create", &["-m", "/nowhere.gguf", "-p", "a", "-o", "/tmp/x"], "/nowhere.gguf"),
        ("lookup_create", &["stray"], "\"stray\" belongs to no option"),
        ("lookup_create", &["--ngram-min", "two"], "--ngram-min: \"two\" is not a number"),
        ("lookup_merge", &["alone"], "one or more inputs and an output"),
        ("lookup_merge", &["/nowhere.bin", "/tmp/x"], "/nowhere.bin"),
        ("lookup_stats", &["-p", "a", "-c", "0"], "n_ctx: "),
    ] {
        let errors = run_failing(program(name).args(args));
        let explained = |line: &str| line.starts_with(&format!("{name}: ")) && line.contains(part);
        assert!(errors.lines().any(explained), "{name} {args:?}: {errors}");
    }
}
