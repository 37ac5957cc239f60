//! Agents of rig with the shipped models.

use foredraft::{Config, Engine};
use foredraft_rig::Foredraft;
use futures::StreamExt as _;
use rig_core::completion::{CompletionModel as _, FinishReason, ToolDefinition};
use rig_core::message::{AssistantContent, Message, ToolChoice, ToolResultContent, UserContent};
use rig_core::streaming::StreamedAssistantContent;
use serde_json::{Value, json};

fn model() -> Foredraft {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../models");
    let config =
        Config::new(format!("{models}/stories-target.gguf")).model_draft(format!("{models}/stories-draft.gguf"));
    Foredraft::new(Engine::load(&config.set("log_level", "none")).expect("a model of this repository"))
}

fn weather() -> ToolDefinition {
    let city = json!({"type": "object", "properties": {"city": {"enum": ["Lima", "Oslo"]}}, "required": ["city"]});
    ToolDefinition { name: "weather".into(), description: "The weather in a city.".into(), parameters: city }
}

fn text(choice: &[AssistantContent]) -> String {
    let text = |part: &AssistantContent| match part {
        AssistantContent::Text(text) => Some(text.text.clone()),
        _ => None,
    };
    choice.iter().filter_map(text).collect()
}

#[tokio::test]
async fn a_stream_is_the_completion() {
    let model = model();
    let request = || model.completion_request("Tell me a story.").temperature(0.0).max_tokens(40).build();
    let whole = model.completion(request()).await.expect("a completion");
    assert_eq!(whole.finish_reason(), Some(FinishReason::Length));
    assert_eq!(whole.usage.output_tokens, 40);

    let mut stream = model.stream(request()).await.expect("a stream");
    let (mut streamed, mut n_parts) = (String::new(), 0);
    while let Some(part) = stream.next().await {
        if let StreamedAssistantContent::Text(part) = part.expect("a part") {
            streamed.push_str(&part.text);
            n_parts += 1;
        }
    }
    assert_eq!((&streamed, &text(&stream.choice)), (&text(&whole.choice), &text(&whole.choice)));
    assert!(n_parts > 1, "{n_parts}");
}

#[tokio::test]
async fn a_tool_is_called_and_its_result_is_read() {
    let model = model();
    let ask = |history: Vec<Message>, choice: ToolChoice| {
        let request = model.completion_request("How is the weather in Oslo?").messages(history);
        request.temperature(0.0).max_tokens(60).tool(weather()).tool_choice(choice).build()
    };
    let made = model.completion(ask(Vec::new(), ToolChoice::Required)).await.expect("a call");
    assert_eq!(made.finish_reason(), Some(FinishReason::ToolCalls));
    let [AssistantContent::ToolCall(call)] = &made.choice[..] else { panic!("{:?}", made.choice) };
    assert_eq!(call.function.name, "weather");
    assert!(["Lima", "Oslo"].map(Value::from).contains(&call.function.arguments["city"]));

    let mut stream = model.stream(ask(Vec::new(), ToolChoice::Required)).await.expect("a stream");
    while let Some(part) = stream.next().await {
        part.expect("a part");
    }
    let [AssistantContent::ToolCall(streamed)] = &stream.choice[..] else { panic!("{:?}", stream.choice) };
    assert_eq!(streamed.function, call.function);

    let result = UserContent::tool_result(call.id.as_str(), "weather", vec![ToolResultContent::text("12 degrees")]);
    let history = vec![
        Message::user("How is the weather in Oslo?"),
        Message::Assistant { id: None, content: made.choice.clone() },
        Message::User { content: vec![result] },
    ];
    let answer = model.completion(ask(history, ToolChoice::None)).await.expect("an answer");
    assert!(!text(&answer.choice).is_empty());
}

#[tokio::test]
async fn a_schema_is_followed_and_errors_name_the_cause() {
    let model = model();
    let schema = json!({"type": "object", "properties": {"mood": {"enum": ["glad", "sad"]}}, "required": ["mood"]});
    let request =
        model.completion_request("How are you?").output_schema(schema.try_into().expect("a schema")).max_tokens(60);
    let answer = model.completion(request.build()).await.expect("a document");
    let document: Value = serde_json::from_str(&text(&answer.choice)).expect("JSON");
    assert!(["glad", "sad"].map(Value::from).contains(&document["mood"]), "{document}");

    let request = model.completion_request("Hello").additional_params(json!({"temperature": "hot"})).build();
    let error = model.completion(request).await.expect_err("a text is no temperature").to_string();
    assert!(error.contains("temperature"), "{error}");
}
