//! Answers that are a document of a schema, or calls.

use std::sync::Arc;

use foredraft_schema::{CompileOptions, Schema};
use serde_json::{Value, json};

use super::real_templates::real_templates;
use super::renderer::TestTemplate;
use super::round_trip::{assistant, completion, constraint, read, refused, request_tools, start_of, tools, work};
use super::templates;
use crate::{MessageReader, ReaderOptions, TurnRequest, TurnStart};

const DOCUMENT: &str = r#"{"answer": "Oslo", "n": 3}"#;

fn schema() -> Schema {
    let raw = json!({"type": "object", "properties": {"answer": {"enum": ["Lima", "Oslo"]}, "n": {"type": "integer"}},
        "required": ["answer", "n"]});
    Schema::new(&raw, &work()).unwrap()
}

/// The number of a template's answers that are documents, with tools and without, and the faults in them.
fn faults(template: &TestTemplate) -> (usize, Vec<String>) {
    let format = template.detect();
    let request = request_tools(&json!({"t": {"type": "string"}}));
    let schema = schema();
    let (mut n, mut wrong) = (0, Vec::new());
    let Some(start) = start_of(template, &format, &request) else { return (0, wrong) };
    let print = |answer: &Value| {
        let text = completion(template, &format, &request, answer)?;
        // The history of some templates lacks the end of reasoning that the prompt has begun.
        let ends = format.reasoning_ends();
        let has_end = |text: &str| ends.iter().any(|end| text.contains(end.as_str()));
        // Others have ended it.
        let is_over = !format.is_reasoning(&start) && has_end(&start.opened) && has_end(&text);
        ((!format.is_reasoning(&start) || has_end(&text)) && !is_over).then_some(text)
    };
    for tools in [Vec::new(), tools(&request)] {
        let turn = TurnRequest {
            tools: &tools,
            is_required: false,
            parallel: true,
            document: Some((&schema, CompileOptions::default())),
        };
        let says = |text: &str| refused(constraint(&format, &turn, &start), text);
        for reasoning in ["", "I think."] {
            let Some(text) = print(&assistant(DOCUMENT, reasoning, &[])) else { continue };
            n += 1;
            wrong.extend(says(&text).map(|refused| format!("{refused} of {text:?}")));
            let options = ReaderOptions { opened: start.opened.clone(), is_enforced: true, ..ReaderOptions::default() };
            match read(
                &Arc::new(
                    MessageReader::new(
                        format.clone(),
                        tools.clone(),
                        options,
                        &foredraft_base::work::Work::unlimited(),
                    )
                    .unwrap(),
                ),
                &text,
            ) {
                Ok(message) if message.content.trim() == DOCUMENT && message.calls.is_empty() => {}
                other => wrong.push(format!("read {other:?} from {text:?}")),
            }
            for other in [text.replace("Oslo", "Bonn"), text.replace(DOCUMENT, "Sure, here it is.")] {
                if says(&other).is_none() {
                    wrong.push(format!("allowed {other:?}"));
                }
            }
        }
        if let Some(text) = print(&assistant("", "", &[("get_it", &json!({"t": "x"}))]))
            && !tools.is_empty()
        {
            wrong.extend(says(&text).map(|refused| format!("{refused} of the call {text:?}")));
        }
    }
    (n, wrong)
}

#[test]
fn answer_is_a_document_or_a_call() {
    for (name, source) in templates::ALL {
        let (n, wrong) = faults(&TestTemplate::new(source));
        assert!(n == 4 && wrong.is_empty(), "{name}: {n} {wrong:#?}");
    }
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn answers_of_real_templates_are_documents_or_calls() {
    let (mut n_all, mut all) = (0, Vec::new());
    for (name, source) in real_templates() {
        let (n, wrong) = faults(&TestTemplate::new(&source));
        n_all += n;
        all.extend(wrong.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    println!("{n_all} documents");
    assert!(all.is_empty() && n_all > 200, "{all:#?}");
}

/// The header of a message may say that it is JSON.
#[test]
fn documents_of_gpt_oss_have_each_of_its_headers() {
    let (format, schema, start) = (templates::format("gpt-oss"), schema(), TurnStart::default());
    let document = Some((&schema, CompileOptions::default()));
    let turn = TurnRequest { tools: &[], is_required: false, parallel: true, document };
    let grammar = format.grammar(&turn, &start, &work()).unwrap();
    for header in ["<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"] {
        for before in ["", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"] {
            let says =
                |document: &str| refused(constraint(&format, &turn, &start), &format!("{before}{header}{document}"));
            assert_eq!(says(DOCUMENT), None, "{before}{header}");
            assert!(says(&DOCUMENT.replace("Oslo", "Bonn")).is_some(), "{before}{header}");
            let options = ReaderOptions { is_enforced: true, grammar: grammar.clone(), ..ReaderOptions::default() };
            let reader = Arc::new(MessageReader::new(format.clone(), Vec::new(), options, &work()).unwrap());
            assert_eq!(read(&reader, &format!("{before}{header}{DOCUMENT}")).unwrap().content, DOCUMENT);
        }
    }
}
