//! Messages in the form that a template expects, and messages that it drops.

use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use super::{ChatTemplate, RenderInput, check, render};

const PRINTS_ALL: &str = "{% for m in messages %}{{ m.role }}={{ m.content }}|{% endfor %}";

fn said(role: &str, content: impl Into<Json>) -> Json {
    json!({"role": role, "content": content.into()})
}

fn parts(text: &str) -> Json {
    json!([{"type": "text", "text": text}])
}

/// The warning about messages that are not in the prompt.
fn warning(template: &str, messages: Json) -> Option<String> {
    let template = ChatTemplate::parse(template, None).unwrap();
    let input = RenderInput {
        messages: messages.as_array().unwrap(),
        add_generation_prompt: true,
        bos_token: "",
        eos_token: "",
        tools: None,
        kwargs: &Map::new(),
        now: SystemTime::now(),
        interrupt: None,
    };
    let names: Vec<usize> = (10..10 + input.messages.len()).collect();
    template.warning_of_vanished(&input, &names, &template.render(&input).unwrap())
}

#[test]
fn unknown_roles_are_named_in_a_warning() {
    let warning = |template: &str, role: &str| {
        let (template, messages) = (ChatTemplate::parse(template, None).unwrap(), [said("user", "A"), said(role, "B")]);
        let input = RenderInput {
            messages: &messages,
            add_generation_prompt: true,
            bos_token: "",
            eos_token: "",
            tools: None,
            kwargs: &Map::new(),
            now: SystemTime::now(),
            interrupt: None,
        };
        template.warning_of_roles(&input, &[4, 7])
    };
    let expected = "messages[7].role: the chat template does not know \"usr\", only roles such as \"system\", \"user\" and \"assistant\"";
    assert_eq!(warning(PRINTS_ALL, "usr").as_deref(), Some(expected));
    for role in ["user", "tool", "developer"] {
        assert_eq!(warning(PRINTS_ALL, role), None);
    }
    let knows = "{% for m in messages %}{% if m.role == 'usr' %}U{% endif %}{{ m.content }}{% endfor %}";
    assert_eq!(warning(knows, "usr"), None);
}

#[test]
fn a_developer_is_the_system_unless_the_template_prints_developers() {
    let messages = json!([said("developer", "A"), said("user", "B")]);
    let print = "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }}={{ m.content }}|{% endif %}{% endfor %}";
    for before in ["", "{# developer #}", "{% set x = 'developer' %}", "{% if 'developer' == bos_token %}{% endif %}"] {
        check(&format!("{before}{print}"), messages.clone(), "system=A|user=B|");
    }
    // A role that is printed by its name only is not known, whatever other literals say.
    check(
        &format!("{{% if false %}}{{{{ 'developer system' }}}}{{% endif %}}{PRINTS_ALL}"),
        messages.clone(),
        "system=A|user=B|",
    );
    let knows = "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{{ m.content }}|{% endfor %}";
    check(knows, messages, "DA|B|");
}

#[test]
fn messages_of_the_system_are_joined_where_a_template_prints_one() {
    let messages = json!([said("system", "A"), said("developer", "B"), said("system", "C"), said("user", "D")]);
    let first_only = "{% for m in messages %}{% if m.role == 'user' or loop.first %}{{ m.role }}={{ m.content }}|{% endif %}{% endfor %}";
    check(first_only, messages.clone(), "system=A\nB\nC|user=D|");
    let refuses = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}\
        {{ m.role }}={{ m.content }}|{% endfor %}";
    check(refuses, messages.clone(), "system=A\nB\nC|user=D|");
    // Where all are printed, they stay apart, and later ones are the template's.
    check(PRINTS_ALL, messages, "system=A|system=B|system=C|user=D|");
    let later = json!([said("user", "A"), said("system", "B")]);
    assert!(render(refuses, later).is_err_and(|error| error.message().contains("no (line 1)")));
}

#[test]
fn parts_are_joined_for_roles_that_are_printed_as_text() {
    let only_users = "{% for m in messages %}{{ m.role }}={% if m.role == 'user' and m.content is not string %}\
        {% for p in m.content %}({{ p.text }}){% endfor %}{% else %}{{ m.content }}{% endif %}|{% endfor %}";
    let call = json!({"role": "assistant", "content": parts("d"), "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "f", "arguments": "{}"}}]});
    let messages = json!([
        said("system", parts("Be brief.")),
        said("user", parts("b")),
        call,
        {"role": "tool", "tool_call_id": "1", "content": parts("it's")},
        said("assistant", parts("c")),
    ]);
    check(only_users, messages.clone(), "system=Be brief.|user=(b)|assistant=d|tool=it's|assistant=c|");
    // And the other way around: text becomes parts for roles that are printed from parts.
    let only_parts = "{% for m in messages %}{{ m.role }}={% if m.role == 'user' %}{{ m.content }}{% else %}\
        {% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}|{% endfor %}";
    let texts = json!([said("system", "a"), said("user", "b"), said("assistant", "c")]);
    check(only_parts, texts, "system=(a)|user=b|assistant=(c)|");
    check(PRINTS_ALL, messages, "system=Be brief.|user=b|assistant=d|tool=it's|assistant=c|");
}

#[test]
fn parts_are_joined_where_a_template_prints_the_first_one_only() {
    let two = |one: &str, other: &str| json!([{"type": "text", "text": one}, {"type": "text", "text": other}]);
    let messages = json!([said("system", two("a", "b")), said("user", two("c", "d"))]);
    let first_only = "{% for m in messages %}{{ m.role }}={{ m.content[0].text }}|{% endfor %}";
    check(first_only, messages.clone(), "system=a\nb|user=c\nd|");
    let text_or_first = "{% for m in messages %}{{ m.role }}=\
        {% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}|{% endfor %}";
    check(text_or_first, messages.clone(), "system=a\nb|user=c\nd|");
    let all = "{% for m in messages %}{{ m.role }}={% for p in m.content %}({{ p.text }}){% endfor %}|{% endfor %}";
    check(all, messages, "system=(a)(b)|user=(c)(d)|");
}

#[test]
fn tools_get_the_fields_that_hosts_may_leave_out() {
    let template = "{% for t in tools %}{{ t.function.name + ':' + t.function.description }}\
        {% for name in t.function.parameters.properties %}{{ name }}{% endfor %}\
        {{ t.function.parameters|tojson }};{% endfor %}";
    let tools = json!([
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g", "description": null, "parameters": null}},
        {"type": "function", "function": {"name": "h", "description": "d"}},
    ]);
    check(template, json!({"messages": [], "tools": tools}), "f:{};g:{};h:d{};");
    // The order is OpenAI's, and what else there is stays.
    let tools = json!([{"type": "function", "function": {"strict": true, "parameters": {}, "name": "f"}}]);
    check(
        "{{ tools|tojson }}",
        json!({"messages": [], "tools": tools}),
        r#"[{"type": "function", "function": {"name": "f", "description": "", "parameters": {}, "strict": true}}]"#,
    );
}

#[test]
fn schemas_get_what_the_template_needs() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"a": {"type": ["string", "null"]}, "b": true}}}}, {"type": "function", "function": {"name": "g"}}]);
    let input = json!({"messages": [], "tools": tools});
    // A template without needs gets the schemas as they are.
    check(
        "{{ tools[0].function.parameters | tojson }}",
        input.clone(),
        r#"{"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": true}}"#,
    );
    let needy = "{% for t in tools %}{{ t.function.name }}({% for name, p in t.function.parameters.properties.items() %}\
        {{ name + ' ' + p.description + (p.type | join('/')) + ' ' }}{% endfor %});{% endfor %}";
    check(needy, input.clone(), "f(a string/null b  );g();");
    let one_type = "{% for name, p in tools[0].function.parameters.properties | items %}{{ name }}:\
        {% if p.type is not string and 'null' in p.type %}{{ raise_exception('null') }}{% endif %}{{ p.get('type', '-') }};{% endfor %}";
    check(one_type, input, "a:['string'];b:-;");
}

/// The probe for the form of arguments gets through a template that asks undefined values for attributes.
#[test]
fn arguments_are_not_encoded_twice() {
    let call = |arguments: Json| {
        json!([said("user", "u"), {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": arguments}}]}])
    };
    let objects = "{% if tools[0].function.name %}{% endif %}{% for m in messages %}{% for c in m.tool_calls %}\
        {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    let strings = objects.replace(" | tojson", "");
    for arguments in [json!({"a": 1}), json!("{\"a\": 1}")] {
        check(objects, call(arguments.clone()), "{\"a\": 1}");
        check(&strings, call(arguments), "{\"a\": 1}");
    }
    for empty in [json!(""), json!(" "), json!({}), json!("{}"), Json::Null] {
        check(objects, call(empty.clone()), "{}");
        check(&strings, call(empty), "{}");
    }
    let absent = json!([said("user", "u"), {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}]);
    check(objects, absent, "{}");
}

#[test]
fn messages_that_a_template_drops_are_named_in_a_warning() {
    let dropped = |what: &str| Some(format!("{what}: the chat template does not print this"));
    let users = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}|{% endif %}{% endfor %}";
    let messages =
        json!([said("user", "first"), said("system", "Be brief."), said("user", "B"), said("assistant", "last")]);
    assert_eq!(warning(users, messages), dropped("messages[11].content, messages[13].content"));
    assert_eq!(warning(users, json!([said("user", "a"), said("user", "b")])), None);
    assert_eq!(warning(users, json!([said("user", "a"), said("assistant", ""), said("assistant", Json::Null)])), None);
    let many = Json::from(vec![said("tool", "lost"); 20]);
    assert!(warning(users, many).is_some_and(|warning| warning.contains("messages[17].content and more: ")));
    // Content that is printed in another form is not lost, nor is the reasoning of an answer.
    for (template, content) in [
        (PRINTS_ALL.replace("m.content", "m.content|tojson"), "a \"b\"\n c"),
        (PRINTS_ALL.replace("m.content", "m.content|upper"), "a"),
        (PRINTS_ALL.replace("m.content", "m.content|trim"), " a\n"),
        (PRINTS_ALL.replace("m.content", "m.content.split('</think>')[-1]"), "<think>hm</think> yes"),
    ] {
        assert_eq!(warning(&template, json!([said("user", "u"), said("assistant", content)])), None, "{template}");
    }
    let call = json!([said("user", "u"), {"role": "assistant", "tool_calls": [{"type": "function",
        "function": {"name": "get_weather", "arguments": "{}"}}]}]);
    assert_eq!(warning(PRINTS_ALL, call), dropped("messages[11].tool_calls"));
}

/// Gemma 4's template looks back over all earlier messages for each message, and cannot end that loop.
#[test]
fn two_thousand_turns_render_with_a_template_that_looks_back_over_all_messages() {
    let template = "{%- for m in messages %}{%- set before = namespace(role=None, found=false) %}{%- if loop.index0 > 0 %}\
        {%- for j in range(loop.index0 - 1, -1, -1) %}{%- if not before.found %}{%- if messages[j]['role'] != 'tool' %}\
        {%- set before.role = messages[j]['role'] %}{%- set before.found = true %}{%- endif %}{%- endif %}{%- endfor %}{%- endif %}\
        {{- m.role[0] ~ (before.role or '-')[0] ~ m.content }}{%- endfor %}";
    let messages: Vec<Json> =
        (0..4000).map(|i| said(if i % 2 == 0 { "user" } else { "assistant" }, format!("{i} "))).collect();
    let prompt = render(template, messages.into()).unwrap();
    assert!(prompt.starts_with("u-0 au1 ua2 ") && prompt.ends_with("ua3998 au3999 "));
}

#[test]
fn a_thousand_turns_render_with_a_template_that_compares_all_messages() {
    let template = "{% for m in messages %}{% set n = namespace(later=0) %}{% for o in messages[loop.index:] %}{% if o.role == 'user' %}\
        {% set n.later = n.later + 1 %}{% endif %}{% endfor %}{{ m.content }}{{ n.later }} {% endfor %}";
    let messages: Vec<Json> =
        (0..2000).map(|i| said(if i % 2 == 0 { "user" } else { "assistant" }, format!("m{i}-"))).collect();
    let prompt = render(template, messages.into()).unwrap();
    assert!(prompt.starts_with("m0-999 m1-999 m2-998 ") && prompt.ends_with("m1999-0 "));
}
