//! The field `json_schema`.

use foredraft_base::work::Work;
use serde_json::json;

use foredraft_schema::CompileOptions;

use super::{parse, to_grammar};

#[test]
fn json_schema_field_is_an_object_or_its_json_string() {
    assert_eq!(parse(&json!({"type": "null"})).unwrap(), json!({"type": "null"}));
    assert_eq!(parse(&json!(" {\"type\": \"null\"}")).unwrap(), json!({"type": "null"}));
    for (given, why) in [
        (json!("{"), "not JSON: EOF"),
        (json!("[1]"), "expected an object"),
        (json!(true), "expected an object, or a string that contains one, got true"),
        (json!([]), "expected an object"),
    ] {
        let error = parse(&given).unwrap_err();
        assert!(error.message().starts_with("json_schema: ") && error.message().contains(why), "{error}");
    }
}

#[test]
fn errors_begin_with_the_field() {
    let error = to_grammar(
        &json!({"properties": {"a": {"type": "strin"}}}),
        &CompileOptions::default(),
        &Work::new(1 << 20, None),
    )
    .unwrap_err();
    assert_eq!(error.message(), "json_schema: #/properties/a: unrecognized type \"strin\"");
}
