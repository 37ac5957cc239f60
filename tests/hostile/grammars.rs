//! Grammars that are invalid, cannot be satisfied, or need too much time or memory.

use std::process::Command;

use serde_json::json;

use crate::c_api::{assert_works, both_ways, call, loaded};

/// The outcome of a request with a grammar.
enum Fate {
    /// The grammar is refused.
    Refused,
    /// The grammar compiles, but allows no token.
    Dead,
    /// The request succeeds with this output.
    Text(String),
}

#[test]
fn hostile_grammars_are_refused_or_end_the_request() {
    use Fate::{Dead, Refused, Text};
    let _guard = loaded(json!({}));
    let text = |text: &str| Text(text.to_owned());
    let nested = |n: usize| format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n));
    let chain = |n: usize, end: &str| {
        let links: String = (0..n).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
        format!("root ::= r0\n{links}r{n} ::= {end}")
    };
    let cases = [
        ("unparsable", "root ::= (".to_owned(), Refused),
        ("no grammar", "Once upon a time".into(), Refused),
        ("no root", "start ::= \"a\"".into(), Refused),
        ("an undefined rule", "root ::= nowhere".into(), Refused),
        ("left recursion", "root ::= root \"a\" | \"a\"".into(), Refused),
        ("indirect left recursion", "root ::= a\na ::= b\nb ::= a \"x\"".into(), Refused),
        ("itself", "root ::= root".into(), Refused),
        ("a class without end", "root ::= [abc".into(), Refused),
        ("a string without end", "root ::= \"abc".into(), Refused),
        ("an escape without end", "root ::= \"\\u12\"".into(), Refused),
        ("nothing to repeat", "root ::= *".into(), Refused),
        ("too many repetitions", "root ::= \"a\"{1000000}".into(), Refused),
        ("a number too large", "root ::= \"a\"{99999999999999999999}".into(), Refused),
        ("a token that does not exist", "root ::= <no such token>".into(), Refused),
        ("a token number too large", "root ::= <[99999999999999999999]>".into(), Refused),
        ("2 MB", format!("root ::= \"{}\"", "a".repeat(2 << 20)), Refused),
        ("100,000 open parentheses", format!("root ::= {}", "(".repeat(100_000)), Refused),
        ("50,000 rules in a circle", chain(50_000, "r0"), Refused),
        ("100,000 nested parentheses", nested(100_000), text("a")),
        ("50,000 chained rules", chain(50_000, "\"a\""), text("a")),
        ("nothing", "root ::= \"\"".into(), text("")),
        ("half of a surrogate pair", "root ::= [\\uD800]".into(), text("\u{FFFD}\u{FFFD}\u{FFFD}")),
        ("a range in reverse order", "root ::= [z-a]".into(), Dead),
        ("a token outside the vocabulary", "root ::= <[999999]>".into(), Dead),
        ("characters that no token has", "root ::= \"\\U0001F9FF\"".into(), text("\u{1F9FF}")),
        ("recursion to the right", "root ::= \"a\" root | \"\"".into(), text("")),
    ];
    for (what, grammar, fate) in cases {
        let request = json!({"prompt": "Once upon a time", "n_predict": 8, "temperature": 0, "grammar": grammar});
        for request in both_ways(&request) {
            let (way, answer) = (&request["speculative"], call("complete", &request));
            match &fate {
                Refused => {
                    assert_eq!(answer["code"], "invalid_request", "{way}, {what}: {answer}");
                    assert!(answer["stop_type"].is_null(), "{way}, {what}: it was queued: {answer}");
                    let error = answer["error"].as_str().expect("checked");
                    assert!(error.starts_with("grammar: "), "{way}, {what}: {error}");
                }
                Dead => {
                    assert_eq!(answer["code"], "invalid_request", "{way}, {what}: {answer}");
                    assert_eq!(answer["stop_type"], "error", "{way}, {what}: {answer}");
                }
                Text(text) => assert_eq!(answer["content"], json!(text), "{way}, {what}: {answer}"),
            }
        }
    }
    assert_works();
}

/// A repetition whose upper bound is below its lower bound makes llama.cpp's parser count down from 2^64 and add a rule each
/// time; a short grammar of repeated long strings takes gigabytes. A child process with a memory limit tries both.
#[test]
fn huge_grammar_repetitions_are_refused() {
    let limited =
        "ulimit -v 4000000; exec timeout 600 \"$0\" --exact grammars::child_tries_huge_repetitions --include-ignored";
    let program = std::env::current_exe().expect("the test binary has a path");
    let child = Command::new("sh").arg("-c").arg(limited).arg(program).output().expect("the child starts");
    let printed = [child.stdout, child.stderr].map(|output| String::from_utf8_lossy(&output).into_owned()).concat();
    assert!(child.status.success(), "{}: {printed}", child.status);
}

#[test]
#[ignore = "run by huge_grammar_repetitions_are_refused, which limits its memory"]
fn child_tries_huge_repetitions() {
    let _guard = loaded(json!({}));
    for grammar in [
        "root ::= \"a\"{5,2}".to_owned(),
        "root ::= [^a]{3,0}".to_owned(),
        "root ::= \"}{5,2}\" ( \"a\" | [{2,1}] ) { 3 , 1 } # {2,1}".to_owned(),
        "root ::= \"\\\"\" [\\]]{9,8}".to_owned(),
        format!("root ::= \"{}\"{{2000}}", "a".repeat(1_000_000)),
        format!("root ::= {}", "\"a\"{0,2000} ".repeat(50_000)),
    ] {
        let answer = call("complete", &json!({"prompt": "a", "n_predict": 1, "grammar": grammar}));
        assert_eq!(answer["code"], "invalid_request", "{answer}");
        // Vocabulary, weights and caches take less than 100 MB.
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let peak =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak").trim_end_matches("kB");
        let shortened: String = grammar.chars().take(60).collect();
        assert!(peak.trim().parse::<usize>().expect("a number") < 512 << 10, "{shortened} took {peak} kB");
    }
    // Text that looks like a repetition but is a literal.
    for grammar in ["root ::= \"{5,2}\"", "root ::= \"\\\"{5,2}\"", "root ::= \"\" # {5,2}", "root ::= \"a\"{2,2}"] {
        let answer = call("complete", &json!({"prompt": "a", "n_predict": 9, "grammar": grammar}));
        assert_eq!(answer["success"], true, "{grammar}: {answer}");
    }
    assert_works();
}
