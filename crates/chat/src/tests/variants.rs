//! Calls as models write them: other space, quotes, escapes and constants than the template prints, texts that they leave out or add.

use std::sync::Arc;

use serde_json::{Value, json};

use super::renderer::TestTemplate;
use super::round_trip::{constraint, read, refused, tools};
use super::templates;
use crate::{ChatFormat, MessageParser, MessageReader, ReaderOptions, TurnRequest, TurnStart};

/// The calls of a text, its content, and the warnings.
type Answer = (Vec<Value>, String, Vec<String>);

/// What a completion is read as, and, if the grammar allows it, as what it is read then. All parameters of a tool `f` are required.
fn answers(format: &ChatFormat, properties: &Value, text: &str) -> (Answer, Option<Answer>) {
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    let parameters =
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let tools = tools(&json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]));
    let answer = |is_enforced| {
        let options = ReaderOptions { is_enforced, ..ReaderOptions::default() };
        let reader = Arc::new(
            MessageReader::new(format.clone(), tools.clone(), options, &foredraft_base::work::Work::unlimited())
                .unwrap(),
        );
        let message = read(&reader, text).unwrap();
        let mut parser = MessageParser::new(reader);
        parser.push(text);
        parser.finish();
        let arguments = message.calls.iter().map(|call| serde_json::from_str(&call.arguments).unwrap());
        (arguments.collect(), message.content, parser.warnings().to_vec())
    };
    let turn = TurnRequest { tools: &tools, is_required: false, parallel: true, document: None };
    let is_allowed = refused(constraint(format, &turn, &TurnStart::default()), text).is_none();
    (answer(false), is_allowed.then(|| answer(true)))
}

/// Whether a grammar lets a variant through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grammar {
    Allows,
    Forbids,
}
use Grammar::{Allows, Forbids};

/// Each text is a call with these arguments, under a grammar, too, if that allows it.
fn check(template: &str, properties: &Value, variants: &[(&str, Value, Grammar)]) {
    let format = templates::format(template);
    for (text, arguments, grammar) in variants {
        let wanted: Vec<Value> =
            if let Value::Array(calls) = arguments { calls.clone() } else { vec![arguments.clone()] };
        let (answer, strict) = answers(&format, properties, text);
        assert_eq!(answer, (wanted.clone(), String::new(), Vec::new()), "{text:?} under {properties}");
        assert_eq!(strict, (*grammar == Allows).then_some((wanted, String::new(), Vec::new())), "{text:?}: a grammar");
    }
}

#[test]
fn space_after_a_first_tag_is_any() {
    let (text, lima) = (json!({"s": {"type": "string"}}), json!({"s": "Lima"}));
    for space in ["", " ", "\n", "\n\n  "] {
        for (template, before, after) in [
            ("LFM2", "<|tool_call_start|>", "[f(s='Lima')]<|tool_call_end|>"),
            ("Gemma", "<|tool_call>", "call:f{s:<|\"|>Lima<|\"|>}<tool_call|>"),
            ("Gemma", "<|tool_call>", "f{s:<|\"|>Lima<|\"|>}<tool_call|>"),
            ("JSON in tags", "<tool_call>", "{\"name\": \"f\", \"arguments\": {\"s\": \"Lima\"}}</tool_call>"),
            (
                "tags",
                "</think><tool_call>",
                "<function=f>\n<parameter=s>\nLima\n</parameter>\n</function>\n</tool_call>",
            ),
            ("tags", "</think><tool_call>", "{\"name\": \"f\", \"arguments\": {\"s\": \"Lima\"}}\n</tool_call>"),
            ("tags", "</think><tool_call>\n<function=f>", "<parameter=s>Lima</parameter></function></tool_call>"),
            ("GLM", "<tool_call>f", "<arg_key>s</arg_key>\n<arg_value>Lima</arg_value>\n</tool_call>"),
            ("GLM", "<tool_call>f\n<arg_key>s</arg_key>", "<arg_value>Lima</arg_value>\n</tool_call>"),
            ("GLM", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>Lima</arg_value>", "</tool_call>"),
            (
                "DSML",
                "<｜DSML｜function_calls>",
                "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">Lima</｜DSML｜parameter>\n\
                </｜DSML｜invoke>\n</｜DSML｜function_calls>",
            ),
            (
                "MiniMax M3",
                "]<]minimax[>[<tool_call>",
                "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>Lima]<]minimax[>[</s>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            ),
            (
                "Kimi K3",
                "<|open|>tools<|sep|>",
                "<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>Lima<|close|>argument<|sep|>\
                <|close|>call<|sep|><|close|>tools<|sep|>",
            ),
            (
                "Kimi K2",
                "<|tool_calls_section_begin|>",
                "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\":\"Lima\"}<|tool_call_end|><|tool_calls_section_end|>",
            ),
        ] {
            check(template, &text, &[(&format!("{before}{space}{after}"), lima.clone(), Allows)]);
        }
    }
}

#[test]
fn strings_of_python_calls_have_its_escapes() {
    let text = |value: &str| json!({"s": value});
    let call = |value: &str| format!("<|tool_call_start|>[f(s={value})]<|tool_call_end|>");
    for (written, value) in [
        (r"'it\'s'", "it's"),
        (r#""it's""#, "it's"),
        (r#""say \"x\"""#, "say \"x\""),
        (r"'a\nb\tc'", "a\nb\tc"),
        (r"'\x41\u00e9\U0001f600'", "A\u{e9}\u{1f600}"),
        (r"'C:\\dir'", r"C:\dir"),
        ("'two words, a=b)'", "two words, a=b)"),
        // As the template prints them.
        ("'it's'", "it's"),
        ("'line one\nline two'", "line one\nline two"),
    ] {
        check("LFM2", &json!({"s": {"type": "string"}}), &[(&call(written), text(value), Allows)]);
    }
}

#[test]
fn python_calls_have_any_space_constants_and_nested_values() {
    let properties = json!({"s": {"type": ["string", "null"]}, "b": {"type": "boolean"}, "o": {"type": "object"},
        "l": {"type": "array", "items": {"type": ["integer", "null"]}}});
    let (whole, none) = (
        json!({"s": "x", "b": true, "o": {"a": [1, false], "k": null}, "l": [1, null]}),
        json!({"s": null, "b": false, "o": {}, "l": []}),
    );
    check(
        "LFM2",
        &properties,
        &[
            (
                "<|tool_call_start|>[f(s='x', b=True, o={'a': [1, False], \"k\": None}, l=[1, None])]<|tool_call_end|>",
                whole.clone(),
                Allows,
            ),
            (
                "<|tool_call_start|> [ f( s = 'x' , b=true, o={'a':[1,false],'k':null},\nl=[1, null] ) ] <|tool_call_end|>",
                whole.clone(),
                Allows,
            ),
            (
                "<|tool_call_start|>[f(l=[], o={}, b=False, s=None), f(s='x', b=True, o={'a': [1, False], 'k': None}, l=[1, None])]\
                <|tool_call_end|>",
                json!([none, whole]),
                Allows,
            ),
        ],
    );
    check("LFM2", &json!({}), &[("<|tool_call_start|>[f()]<|tool_call_end|>", json!({}), Allows)]);
}

#[test]
fn values_of_gemma_obey_their_schema() {
    let properties = json!({"n": {"type": "integer", "maximum": 5}, "e": {"enum": ["x", "y", null]}, "l": {"type": "array", "items": {"type": "boolean"}}});
    let whole = json!({"n": 3, "e": "y", "l": [true]});
    check(
        "Gemma",
        &properties,
        &[
            ("<|tool_call>call:f{n:3,e:<|\"|>y<|\"|>,l:[true]}<tool_call|>", whole.clone(), Allows),
            ("<|tool_call>call:f{ l: [ true ], n: 3, e: <|\"|>y<|\"|> }<tool_call|>", whole.clone(), Forbids),
            ("<|tool_call>call:f{\"n\":3,\"e\":\"y\",\"l\":[true]}<tool_call|>", whole, Forbids),
            ("<|tool_call>call:f{n:3,e:null,l:[]}<tool_call|>", json!({"n": 3, "e": null, "l": []}), Allows),
        ],
    );
    for text in [
        "<|tool_call>call:f{n:6,e:<|\"|>y<|\"|>,l:[]}<tool_call|>",
        "<|tool_call>call:f{n:3,e:<|\"|>z<|\"|>,l:[]}<tool_call|>",
        "<|tool_call>call:f{n:3,e:<|\"|>x<|\"|>,l:[1]}<tool_call|>",
        "<|tool_call>call:f{n:3,e:<|\"|>x<|\"|>}<tool_call|>",
    ] {
        let ((calls, _, warnings), strict) = answers(&templates::format("Gemma"), &properties, text);
        assert_eq!((calls.len(), warnings.len(), strict), (1, 1, None), "{text}");
    }
}

#[test]
fn null_and_booleans_are_what_templates_print() {
    let properties = json!({"s": {"type": ["string", "null"]}, "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "b": {"type": "boolean"}});
    let wanted = json!({"s": null, "n": null, "b": true});
    for (null, yes) in [("null", "true"), ("None", "True")] {
        let tags = format!(
            "</think><tool_call>\n<function=f>\n<parameter=s>\n{null}\n</parameter>\n<parameter=n>\n{null}\n</parameter>\n\
            <parameter=b>\n{yes}\n</parameter>\n</function>\n</tool_call>"
        );
        check("tags", &properties, &[(&tags, wanted.clone(), Allows)]);
        let elements = ["s", "n"].map(|name| format!("]<]minimax[>[<{name}>{null}]<]minimax[>[</{name}>")).concat();
        let elements = format!(
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">{elements}]<]minimax[>[<b>{yes}]<]minimax[>[</b>]<]minimax[>[</invoke>\n\
            ]<]minimax[>[</tool_call>"
        );
        check("MiniMax M3", &properties, &[(&elements, wanted.clone(), Allows)]);
        let arguments = [("s", null), ("n", null), ("b", yes)]
            .map(|(name, value)| format!("<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n"));
        let glm = format!("<tool_call>f\n{}</tool_call>", arguments.concat());
        check("GLM", &properties, &[(&glm, wanted.clone(), Allows)]);
    }
    check(
        "GLM",
        &json!({"v": {"description": "any"}}),
        &[(
            "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>text</arg_value>\n</tool_call>",
            json!({"v": "text"}),
            Allows,
        )],
    );
}

#[test]
fn texts_around_calls_may_be_missing() {
    let (text, lima) = (json!({"s": {"type": "string"}}), json!({"s": "Lima"}));
    let k2 = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\":\"Lima\"}<|tool_call_end|>";
    let k3 = "<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>Lima<|close|>argument<|sep|>\
        <|close|>call<|sep|>";
    let dsml = "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">Lima</｜DSML｜parameter>\n</｜DSML｜invoke>";
    let element = "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>Lima]<]minimax[>[</s>]<]minimax[>[</invoke>";
    for (template, bare) in [("Kimi K2", k2), ("Kimi K3", k3), ("DSML", dsml), ("MiniMax M3", element)] {
        check(template, &text, &[(bare, lima.clone(), Allows)]);
        let two = format!("{bare}\n{bare}");
        check(template, &text, &[(&two, json!([lima, lima]), Allows)]);
    }
    for (template, open) in [
        ("Kimi K2", format!("<|tool_calls_section_begin|>{k2}")),
        ("LFM2", "<|tool_call_start|>[f(s='Lima')]".to_owned()),
        ("MiniMax M3", format!("]<]minimax[>[<tool_call>\n{element}")),
        ("Kimi K3", format!("<|open|>tools<|sep|>{k3}")),
    ] {
        let (answer, _) = answers(&templates::format(template), &text, &open);
        assert_eq!(answer, (vec![lima.clone()], String::new(), Vec::new()), "{open}");
    }
}

/// Elements of objects and arrays, with and without a schema for what is in them.
#[test]
fn elements_are_objects_and_arrays() {
    let close = "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>";
    let call = |inner: &str| {
        let inner = inner.replace('<', "]<]minimax[>[<");
        format!("]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">{inner}{close}")
    };
    let properties = json!({"o": {"type": "object", "properties": {"t": {"type": "string"}, "l": {"type": "array", "items": {"type": "integer"}}}}});
    let wanted = json!({"o": {"t": "12", "l": [1, 2]}});
    for inner in [
        "<o><t>12</t><l><item>1</item><item>2</item></l></o>",
        "<o>\n  <l>\n<item>1</item>\n<item> 2 </item></l>\n<t>12</t>\n</o>",
    ] {
        check("MiniMax M3", &properties, &[(&call(inner), wanted.clone(), Allows)]);
    }
    check(
        "MiniMax M3",
        &json!({"o": {"type": "object"}, "l": {"type": "array"}}),
        &[
            (
                &call("<o><a>x y</a><b><item>1</item><item>z</item></b></o><l><item><k>true</k></item></l>"),
                json!({"o": {"a": "x y", "b": [1, "z"]}, "l": [{"k": true}]}),
                Allows,
            ),
            (&call("<o></o><l></l>"), json!({"o": {}, "l": []}), Allows),
        ],
    );
}

/// Elements are read by the part of the schema that allows them.
#[test]
fn elements_among_several_types_obey_their_part() {
    let call = |inner: &str| {
        let inner = inner.replace('<', "]<]minimax[>[<");
        format!(
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">{inner}]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
        )
    };
    let point = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false});
    for union in ["anyOf", "oneOf"] {
        let properties =
            json!({"o": {union: [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}, point]}});
        for (inner, wanted) in [
            ("<o><x>10</x></o>", json!({"o": {"x": 10}})),
            ("<o><item>alpha</item><item>beta</item></o>", json!({"o": ["alpha", "beta"]})),
            ("<o>7</o>", json!({"o": 7})),
            ("<o>{\"x\": 3}</o>", json!({"o": {"x": 3}})),
        ] {
            check("MiniMax M3", &properties, &[(&call(inner), wanted, Allows)]);
        }
    }
}

#[test]
fn values_of_kimi_k3_have_their_types() {
    let properties = json!({"s": {"type": "string"}, "n": {"type": "number"}, "o": {"type": "object"}, "z": {"type": ["string", "null"]}});
    let argument = |name: &str, kind: &str, value: &str| {
        format!("<|open|>argument key=\"{name}\" type=\"{kind}\"<|sep|>{value}<|close|>argument<|sep|>")
    };
    let call = |arguments: &[String]| {
        format!(
            "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>{}<|close|>call<|sep|><|close|>tools<|sep|>",
            arguments.concat()
        )
    };
    let text = call(&[
        argument("s", "string", "12 \"x\"\n"),
        argument("n", "number", "-1.5"),
        argument("o", "object", "{\"a\": [1]}"),
        argument("z", "null", "null"),
    ]);
    let wanted = json!({"s": "12 \"x\"\n", "n": -1.5, "o": {"a": [1]}, "z": null});
    check("Kimi K3", &properties, &[(&text, wanted, Allows)]);
    let wrong = call(&[argument("s", "number", "12")]);
    let ((calls, _, warnings), strict) =
        answers(&templates::format("Kimi K3"), &json!({"s": {"type": "string"}}), &wrong);
    assert_eq!((calls, warnings.len(), strict), (vec![json!({"s": 12})], 1, None));
}

#[test]
fn calls_of_gpt_oss_may_repeat_the_header() {
    let thought = "<|channel|>analysis<|message|>R<|end|>";
    for header in [
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json",
        "<|start|>assistant to=functions.f<|channel|>commentary json",
        "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.f",
    ] {
        let text = format!("{thought}{header}<|message|>{{\"s\":\"Lima\"}}");
        check("gpt-oss", &json!({"s": {"type": "string"}}), &[(&text, json!({"s": "Lima"}), Allows)]);
    }
}

/// V4's models write the tags of V3.2's section, in a pair or alone.
#[test]
fn sections_of_another_version_of_a_model_are_no_content() {
    let (text, lima) = (json!({"s": {"type": "string"}}), json!({"s": "Lima"}));
    let format = TestTemplate::new(templates::DSML_V4).detect();
    let call = "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">Lima</｜DSML｜parameter>\n</｜DSML｜invoke>";
    for name in ["function_calls", "tool_calls"] {
        let (begin, end) = (format!("<｜DSML｜{name}>\n"), format!("\n</｜DSML｜{name}>"));
        for said in [format!("{begin}{call}{end}"), format!("{begin}{call}"), format!("Yes.\n\n{begin}{call}{end}")] {
            let content = if said.starts_with("Yes") { "Yes." } else { "" };
            let (answer, _) = answers(&format, &text, &said);
            assert_eq!(answer, (vec![lima.clone()], content.to_owned(), Vec::new()), "{said:?}");
        }
    }
}

/// As in llama.cpp, but only where the arguments are complete.
#[test]
fn calls_without_their_last_tag_are_calls() {
    let (text, lima) = (json!({"s": {"type": "string"}}), json!({"s": "Lima"}));
    for (template, said) in [
        ("LFM2", "<|tool_call_start|>[f(s='Lima')"),
        ("Gemma", "<|tool_call>call:f{s:<|\"|>Lima<|\"|>}"),
        ("JSON in tags", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"Lima\"}}"),
        ("JSON in tags", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"Lima\"}}\n"),
        ("tags", "</think><tool_call>\n<function=f>\n<parameter=s>\nLima\n</parameter>\n</function>"),
        ("tags", "</think><tool_call>\n<function=f>\n<parameter=s>\nLima\n</parameter>"),
        (
            "DSML",
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">Lima</｜DSML｜parameter>",
        ),
    ] {
        let (answer, _) = answers(&templates::format(template), &text, said);
        assert_eq!(answer, (vec![lima.clone()], String::new(), Vec::new()), "{said:?}");
    }
    // The text behind it is content.
    let said = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"Lima\"}}\nNow I wait.";
    let (answer, _) = answers(&templates::format("JSON in tags"), &text, said);
    assert_eq!(answer, (vec![lima.clone()], "Now I wait.".to_owned(), Vec::new()));
    // A call whose arguments break off is none.
    for said in ["<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"Lima\"}", "<tool_call>\n{\"name\": \"f\""] {
        let (answer, _) = answers(&templates::format("JSON in tags"), &text, said);
        assert_eq!(answer, (Vec::new(), said.to_owned(), Vec::new()), "{said:?}");
    }
}
