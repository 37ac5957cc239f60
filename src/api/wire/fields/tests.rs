use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Checks a reader on a document: its value, or part of its error message.
fn check<T: std::fmt::Debug + PartialEq>(
    document: &str,
    read: impl FnOnce(&mut Fields) -> Result<Option<T>>,
    expected: Result<Option<T>, &str>,
) {
    let map = parse_object(document.as_bytes()).unwrap();
    let result = read(&mut Fields::new(&map));
    match (&result, &expected) {
        (Ok(value), Ok(wanted)) => assert_eq!(value, wanted, "{document}"),
        (Err(error), Err(part)) => {
            assert_eq!(error.code(), Code::InvalidRequest);
            assert!(error.message().contains(part), "{document}: {error} does not say {part:?}");
        }
        _ => panic!("{document}: {result:?}, expected {expected:?}"),
    }
}

#[test]
fn malformed_documents_are_refused() {
    let check = |bytes: &[u8], expected: &str| {
        let error = parse_object(bytes).unwrap_err();
        assert_eq!(error.code(), Code::InvalidJson);
        assert!(error.message().contains(expected), "{error} does not say {expected:?}");
    };
    check(b"", "line 1 column 0");
    check(b"{", "line 1 column 1");
    check(b"{\"a\": 1,\n \"b\": }", "line 2 column 7");
    check(b"[1, 2]", "expected a JSON object, got [1,2] at line 1 column 1");
    check(b"\n\n  null", "got null at line 3 column 3");
    check(b"{} x", "line 1 column 4");
    check(b"{\"a\": 1e999}", "out of range");
    check(b"{\"a\": NaN}", "line 1 column 7");
    check(b"{\"a\": \"\\ud800\"}", "line 1");
    check(b"{\"a\":\n \"\xff\"}", "not UTF-8 at line 2 column 3");
    check("{\"a\":".repeat(10_000).as_bytes(), "recursion limit exceeded");
    check("[".repeat(10_000).as_bytes(), "recursion limit exceeded");
    check("[".repeat(1_000_000).as_bytes(), "recursion limit exceeded");
    assert_eq!(parse_object(b" {\"a\": {\"b\": [1]}} ").unwrap(), *json!({"a": {"b": [1]}}).as_object().unwrap());
    assert_eq!(parse_object("\u{FEFF}{}".as_bytes()).unwrap().len(), 0);
    let message = |text: &str| parse_object(text.as_bytes()).unwrap_err().message().to_owned();
    assert!(message("Hello").ends_with("(expected a JSON object, for a completion such as {\"prompt\": \"Hello\"})"));
    assert!(!message("{\"prompt\": Hello}").contains("expected a JSON object"));
}

#[test]
fn integers_are_parsed_and_range_checked() {
    let int = |fields: &mut Fields| fields.int::<i32>("n", -1..=4096);
    check("{}", int, Ok(None));
    check(r#"{"n": null}"#, int, Ok(None));
    check(r#"{"n": 12}"#, int, Ok(Some(12)));
    check(r#"{"n": 12.0}"#, int, Ok(Some(12)));
    check(r#"{"n": -1}"#, int, Ok(Some(-1)));
    check(r#"{"n": 12.5}"#, int, Err("n: expected a whole number from -1 to 4096, got 12.5"));
    check(r#"{"n": -2}"#, int, Err("got -2"));
    check(r#"{"n": 4097}"#, int, Err("got 4097"));
    check(r#"{"n": 18446744073709551615}"#, int, Err("got 18446744073709551615"));
    check(r#"{"n": 1e300}"#, int, Err("got 1e+300"));
    check(r#"{"n": "12"}"#, int, Err("got \"12\""));
    check(r#"{"n": true}"#, int, Err("got true"));
    check(r#"{"n": [1]}"#, int, Err("got [1]"));
    // Even if the range is wider than the type, the result is an error, not a truncated number.
    check(r#"{"n": 300}"#, |fields| fields.int::<u8>("n", 0..=1000), Err("got 300"));
}

#[test]
fn numbers_are_parsed_and_range_checked() {
    let number = |fields: &mut Fields| fields.number("x", 0.0..=1.0);
    check(r#"{"x": 0.5}"#, number, Ok(Some(0.5)));
    check(r#"{"x": 1}"#, number, Ok(Some(1.0)));
    check(r#"{"x": 1.1}"#, number, Err("x: expected a number from 0 to 1, got 1.1"));
    check(r#"{"x": "hot"}"#, number, Err("got \"hot\""));
    check(r#"{"x": 1e300}"#, |fields| fields.number("x", f32::MIN..=f32::MAX), Err("expected a number, got 1e+300"));
    check(r#"{"x": 2000}"#, |fields| fields.number("x", f32::MIN..=1000.0), Err("a number up to 1000, got 2000"));
    // Rounded to f32 it is 1, which is in range.
    check(r#"{"x": 1.00000001}"#, number, Ok(Some(1.0)));
    check(r#"{"x": 0.01}"#, |fields| fields.number("x", 0.01..=f32::MAX), Ok(Some(0.01)));
    check(r#"{"x": 0}"#, |fields| fields.number("x", 0.01..=f32::MAX), Err("a number from 0.01 on, got 0"));
}

#[test]
fn flags_strings_enums_and_lists_are_parsed() {
    let flag = |fields: &mut Fields| fields.flag("b");
    check(r#"{"b": false}"#, flag, Ok(Some(false)));
    check(r#"{"b": 1}"#, flag, Err("b: expected true or false, got 1"));
    check(r#"{"b": "true"}"#, flag, Err("got \"true\""));

    let text = |fields: &mut Fields| fields.c_text("s");
    check(r#"{"s": "a b"}"#, text, Ok(Some("a b".to_owned())));
    check(r#"{"s": ""}"#, text, Ok(None));
    check(r#"{"s": "a\u0000b"}"#, text, Err("s: expected a string without NUL, got \"a\\u0000b\""));
    check(r#"{"s": 5}"#, text, Err("s: expected a string, got 5"));

    let word = |fields: &mut Fields| fields.word("w", &[("none", 0), ("linear", 1), ("yarn", 2)]);
    check(r#"{"w": "yarn"}"#, word, Ok(Some(2)));
    check(
        r#"{"w": "yran"}"#,
        word,
        Err(r#"w: expected one of "none", "linear", "yarn", got "yran" (did you mean "yarn"?)"#),
    );
    check(r#"{"w": 2}"#, word, Err("got 2"));

    let texts = |fields: &mut Fields| fields.c_texts("t");
    let strings = |words: &[&str]| Ok(Some(words.iter().map(|word| word.to_string()).collect()));
    check(r#"{"t": ["a", "b,c"]}"#, texts, strings(&["a", "b,c"]));
    check(r#"{"t": "a, b,,c"}"#, texts, strings(&["a", "b", "c"]));
    check(r#"{"t": ["a", 1]}"#, texts, Err("t[1]: expected a string, got 1"));
    check(r#"{"t": {}}"#, texts, Err("t: expected an array of strings, got {}"));

    let list =
        |fields: &mut Fields| fields.list("l", "an array of numbers", |name, value| int_in::<u8>(name, value, 0..=9));
    check(r#"{"l": [1, 2]}"#, list, Ok(Some(vec![1, 2])));
    check(r#"{"l": [1, 10]}"#, list, Err("l[1]: expected a whole number from 0 to 9, got 10"));
    check(r#"{"l": 1}"#, list, Err("l: expected an array of numbers, got 1"));
}

#[test]
fn unknown_keys_are_warnings() {
    let check = |document: Value, expected: &[&str]| {
        let map = document.as_object().unwrap();
        let mut fields = Fields::new(map);
        fields.number("temperature", 0.0..=1.0).unwrap();
        fields.int::<i32>("top_k", 0..=9).unwrap();
        fields.get_prefixed("speculative.");
        assert_eq!(fields.finish(), expected, "{document}");
    };
    check(json!({"temperature": 1, "top_k": null, "speculative.x": 1}), &[]);
    check(json!({"temprature": 1}), &[r#"unknown key "temprature" (did you mean "temperature"?)"#]);
    check(
        json!({"topk": 1, "zebra": null}),
        &[r#"unknown key "topk" (did you mean "top_k"?)"#, r#"unknown key "zebra""#],
    );

    let many: Map<String, Value> = (0..1000).map(|i| (format!("unknown {i}"), Value::Null)).collect();
    let warnings = Fields::new(&many).finish();
    assert_eq!((warnings.len(), warnings.last().unwrap().as_str()), (33, "968 more unknown keys"));

    let map = json!({"nmax": 1}).as_object().unwrap().clone();
    let mut nested = Fields::nested("speculative.", &map);
    nested.flag("n_max").unwrap();
    assert_eq!(nested.finish(), [r#"unknown key "speculative.nmax" (did you mean "speculative.n_max"?)"#]);
}

proptest! {
    #[test]
    fn values_in_messages_are_shortened(text in "\\PC{0,200}", n in 0usize..3) {
        let value = (0..n).fold(Value::from(text.clone()), |value, _| json!([value, 1]));
        let whole = serde_json::to_string(&value).unwrap();
        let shown = show(&value);
        prop_assert!(shown.len() <= SHOWN + 3);
        match shown.strip_suffix("...") {
            Some(beginning) if whole != shown => {
                prop_assert!(whole.starts_with(beginning) && beginning.len() > SHOWN - 4);
            }
            _ => prop_assert_eq!(shown, whole),
        }
    }

    #[test]
    fn any_bytes_are_an_object_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_object(&bytes).map_err(|error| assert_eq!(error.code(), Code::InvalidJson));
    }
}
