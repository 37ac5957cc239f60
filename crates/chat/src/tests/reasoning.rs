//! Calls inside of reasoning: models leave out its end before a call, and they reason about calls.

use std::sync::Arc;

use serde_json::{Value, json};

use super::real_templates::real_templates;
use super::renderer::TestTemplate;
use super::round_trip::{assistant, completion, constraint, read, refused, request_tools, start_of, tools};
use super::templates;
use crate::families;
use crate::{Block, Calls, ChatFormat, MessageReader, ReaderOptions, TurnRequest, TurnStart};

const THOUGHT: &str = "I call it.";

fn one_tool() -> Value {
    request_tools(&json!({"t": {"type": "string"}}))
}

/// The format, where its turn starts, and a turn that calls in reasoning with this argument. `None`: the template prints no reasoning before
/// a call, or its calls do not begin with a tag.
fn called_in_reasoning(template: &TestTemplate, argument: &str) -> Option<(ChatFormat, TurnStart, String)> {
    let format = template.detect();
    let request = one_tool();
    let start = start_of(template, &format, &request)?;
    let calls = [("get_it", &json!({"t": argument}))];
    let whole = completion(template, &format, &request, &assistant("", THOUGHT, &calls))?;
    let (thought, rest) = whole.split_once(THOUGHT)?;
    let is_over = !format.is_reasoning(&start) && format.reasoning_ends().iter().any(|end| start.opened.contains(end));
    if is_over {
        return None;
    }
    let begins = format.calls.iter().filter(|calls| !calls.is_anchored).map(Calls::begin_text);
    let begin = begins.filter(|text| !text.is_empty()).filter_map(|text| rest.find(text)).min()?;
    let turn = format!("{thought}{THOUGHT}\n{}", &rest[begin..]);
    Some((format, start, turn))
}

fn faults(template: &TestTemplate) -> Option<Vec<String>> {
    let (format, start, text) = called_in_reasoning(template, "x")?;
    let tools = tools(&one_tool());
    let mut wrong = Vec::new();
    let end = format.reasoning_ends().into_iter().next()?;
    for is_required in [false, true] {
        let turn = TurnRequest { tools: &tools, is_required, ..TurnRequest::default() };
        wrong.extend(refused(constraint(&format, &turn, &start), &text).map(|why| format!("{why} of {text:?}")));
        // Reasoning alone is no call.
        let cut = format!("{}{THOUGHT}\n{end}", text.split(THOUGHT).next()?);
        if is_required && refused(constraint(&format, &turn, &start), &cut).is_none() {
            wrong.push(format!("{cut:?} is let through"));
        }
    }
    for is_enforced in [false, true] {
        let options = ReaderOptions { opened: start.opened.clone(), is_enforced, ..ReaderOptions::default() };
        let reader = Arc::new(
            MessageReader::new(format.clone(), tools.clone(), options, &foredraft_base::work::Work::unlimited())
                .unwrap(),
        );
        match read(&reader, &text) {
            Ok(message) if message.reasoning == THOUGHT && message.content.is_empty() && message.calls.len() == 1 => {}
            other => wrong.push(format!("read {other:?} from {text:?}")),
        }
        // Reasoning that goes on is about calls.
        for more in [format!(" hm\n{end}"), end.clone()] {
            let text = format!("{text}{more}");
            match read(&reader, &text) {
                Ok(message) if message.reasoning.contains("get_it") && message.calls.is_empty() => {}
                other => wrong.push(format!("read {other:?} from {text:?}")),
            }
        }
    }
    Some(wrong)
}

/// Also where a call is required: the grammar allows it, and the end behind it.
#[test]
fn call_at_the_end_of_a_turn_ends_reasoning() {
    let checked: Vec<&str> = templates::ALL
        .iter()
        .filter_map(|(name, source)| {
            assert_eq!(faults(&TestTemplate::new(source))?, Vec::<String>::new(), "{name}");
            Some(*name)
        })
        .collect();
    assert_eq!(checked, ["JSON in tags", "tags"]);
}

#[test]
#[ignore = "downloads (scripts/check.sh templates)"]
fn call_ends_turns_of_real_templates_in_reasoning() {
    let (mut n, mut all) = (0, Vec::new());
    for (name, source) in real_templates() {
        let Some(wrong) = faults(&TestTemplate::new(&source)) else { continue };
        n += 1;
        all.extend(wrong.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    println!("{n} templates");
    assert!(all.is_empty() && n > 15, "{all:#?}");
}

#[test]
fn reasoning_about_calls_stays_reasoning() {
    let (_, source) = templates::ALL[0];
    let tools = tools(&one_tool());
    let reader = Arc::new(
        MessageReader::new(
            TestTemplate::new(source).detect(),
            tools,
            ReaderOptions::default(),
            &foredraft_base::work::Work::unlimited(),
        )
        .unwrap(),
    );
    for thought in [
        "I could write <tool_call> here.",
        "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_it\", \"arguments\": {\"t\": 1}}\n</tool_call> is wrong",
    ] {
        let message = read(&reader, &format!("<think>\n{thought}\n</think>\n\nok")).unwrap();
        assert_eq!((message.reasoning.as_str(), message.content.as_str(), message.calls.len()), (thought, "ok", 0));
    }
}

/// Gemma's models repeat the tags.
#[test]
fn repeated_tags_of_reasoning_are_content_only_with_reasoning_in_it() {
    let mut format = ChatFormat {
        reasoning: Some(Block::new("<|channel>thought\n", "<channel|>")),
        between: ["<|tool_response>", "<channel|>", "<|channel>"].map(str::to_owned).to_vec(),
        ..ChatFormat::default()
    };
    let begun = "<|channel>thought\nHm.<channel|>Hello";
    let texts = ["", "<channel|>", "<|channel>thought\n<channel|><channel|>"].map(|end| format!("{begun}{end}"));
    let reader = |format: &ChatFormat| {
        Arc::new(
            MessageReader::new(
                format.clone(),
                Vec::new(),
                ReaderOptions::default(),
                &foredraft_base::work::Work::unlimited(),
            )
            .unwrap(),
        )
    };
    for text in &texts {
        let message = read(&reader(&format), text).unwrap();
        assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("Hm.", "Hello"), "{text}");
    }
    format.keep_reasoning_in_content();
    for text in &texts {
        let message = read(&reader(&format), text).unwrap();
        assert_eq!((message.reasoning.as_str(), &message.content), ("", text));
    }
}

/// Also where nothing constrained the completion.
#[test]
fn calls_in_reasoning_without_their_last_tag_are_reasoning() {
    let tools = tools(&one_tool());
    let begun = "<think>I call it.\n<tool_call>\n{\"name\": \"get_it\", \"arguments\": {\"t\": \"x\"}}";
    let format = ChatFormat { reasoning: Some(Block::new("<think>", "</think>")), ..templates::format("JSON in tags") };
    for is_enforced in [false, true] {
        let options = ReaderOptions { is_enforced, ..ReaderOptions::default() };
        let work = foredraft_base::work::Work::unlimited();
        let reader = Arc::new(MessageReader::new(format.clone(), tools.clone(), options, &work).unwrap());
        let n_calls = |text: &str| read(&reader, text).unwrap().calls.len();
        assert_eq!((n_calls(begun), n_calls(&format!("{begun}\n</tool_call>"))), (0, 1), "{is_enforced}");
    }
}

/// Kimi K3's models answer without ending reasoning that the prompt opens.
#[test]
fn beginning_of_content_ends_reasoning() {
    let mut checked = Vec::new();
    for (name, format) in families::tests::all() {
        let (Some(block), Some(content)) = (&format.reasoning, &format.content) else { continue };
        checked.push(name);
        for (thought, begin) in
            [THOUGHT, ""].into_iter().flat_map(|it| content.begins.iter().map(move |begin| (it, begin)))
        {
            let text = format!("{thought}{begin}Hello{}", content.end());
            let space = begin.strip_suffix(begin.trim_start()).unwrap();
            for (is_enforced, is_shown) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut format = format.clone();
                if is_shown {
                    format.keep_reasoning_in_content();
                }
                let options =
                    ReaderOptions { opened: block.begin().to_owned(), is_enforced, ..ReaderOptions::default() };
                let work = foredraft_base::work::Work::unlimited();
                let reader = Arc::new(MessageReader::new(format, tools(&one_tool()), options, &work).unwrap());
                let message = read(&reader, &text).unwrap();
                let wanted = match is_shown {
                    // Space before the beginning of content is a part of reasoning.
                    true => (String::new(), format!("{}{thought}{space}Hello", block.begin())),
                    false => (thought.to_owned(), "Hello".to_owned()),
                };
                assert_eq!((message.reasoning, message.content), wanted, "{name} {text:?} {is_enforced}");
            }
        }
    }
    assert_eq!(checked, ["gpt-oss", "Muse", "Kimi K3", "Solar"]);
}
