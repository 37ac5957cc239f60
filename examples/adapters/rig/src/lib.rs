//! An engine as a `CompletionModel` of rig: completions, tools, streams and typed answers with a model in your process.
//!
//! ```no_run
//! use foredraft::{Config, Engine};
//! use foredraft_rig::Foredraft;
//! use rig_core::completion::CompletionModel;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Foredraft::new(Engine::load(&Config::new("model.gguf"))?);
//! let request = model.completion_request("What is a draft model?").preamble("You answer in one sentence.".into());
//! println!("{:?}", model.completion(request.build()).await?.choice);
//! # Ok(())
//! # }
//! ```

use foredraft::{CompletionStream, Engine, Error, FinalResponse, Message, Request, StopType};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rig_core::completion::{
    CompletionError, CompletionModel, CompletionRequest, CompletionResponse, FinishReason, ProviderCapabilities, Usage,
};
use rig_core::message::{
    AssistantContent, DocumentSourceKind, ImageMediaType, Message as RigMessage, MimeType as _, ToolCall, ToolChoice,
    ToolFunction, ToolResult, ToolResultContent, UserContent,
};
use rig_core::streaming::{
    MintKind, RawStreamingChoice, RawStreamingToolCall, StreamFinal, StreamPartId, StreamingCompletionResponse,
};
use serde_json::{Value, json};

const PROVIDER: &str = "foredraft";

/// A loaded engine, as rig calls models.
#[derive(Clone)]
pub struct Foredraft(Engine);

impl Foredraft {
    /// The engine may have other users at the same time.
    pub fn new(engine: Engine) -> Foredraft {
        Foredraft(engine)
    }
}

impl CompletionModel for Foredraft {
    async fn completion(&self, request: CompletionRequest) -> Result<CompletionResponse, CompletionError> {
        let mut updates = self.0.stream(&engine_request(request)?).map_err(failed)?;
        while updates.try_next().await.map_err(failed)?.is_some() {}
        let end = updates.finish().map_err(failed)?;
        let message = end.message.clone().unwrap_or_default();
        let mut choice = Vec::new();
        choice.extend(message.reasoning_content.iter().map(AssistantContent::reasoning));
        choice.extend(message.content.iter().filter(|text| !text.is_empty()).map(AssistantContent::text));
        for call in &message.tool_calls {
            let function =
                ToolFunction::new(call.function.name.clone(), serde_json::from_str(&call.function.arguments)?);
            choice.push(AssistantContent::ToolCall(ToolCall::from_wire(&call.id, function)));
        }
        let mut response =
            CompletionResponse::new(choice, usage(&end), PROVIDER).with_optional_finish_reason(reason(&end));
        response.raw = Value::Object(end.fields);
        Ok(response)
    }

    async fn stream(&self, request: CompletionRequest) -> Result<StreamingCompletionResponse, CompletionError> {
        let updates = self.0.stream(&engine_request(request)?).map_err(failed)?;
        // Each turn gives the parts of one update; the last one gives the calls, which are then complete.
        let parts = stream::unfold(Some(updates), |updates| async {
            let mut updates = updates?;
            match updates.try_next().await {
                Ok(Some(update)) => Some((delta(&update.fields), Some(updates))),
                Ok(None) => Some((end(updates), None)),
                Err(error) => Some((vec![Err(failed(error))], None)),
            }
        });
        Ok(StreamingCompletionResponse::stream(PROVIDER, Box::pin(parts.flat_map(stream::iter))))
    }

    fn capabilities(&self) -> ProviderCapabilities {
        // A request may have tools and a schema: what the model writes is one of its calls or a document of the schema.
        ProviderCapabilities::new().with_native_output_tool_composition(true)
    }
}

type Part = Result<RawStreamingChoice, CompletionError>;

/// The text and the reasoning in an update.
fn delta(fields: &serde_json::Map<String, Value>) -> Vec<Part> {
    let text = |key| fields.get("delta")?.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let reasoning = text("reasoning_content").map(|reasoning| RawStreamingChoice::ReasoningDelta {
        id: StreamPartId::minted(MintKind::Reasoning, 0),
        provider_id: None,
        reasoning,
    });
    let content = text("content").map(RawStreamingChoice::Message);
    reasoning.into_iter().chain(content).map(Ok).collect()
}

/// The calls of a completion that has ended, and its end.
fn end(updates: CompletionStream) -> Vec<Part> {
    let read = || {
        let end = updates.finish().map_err(failed)?;
        let mut parts = Vec::new();
        for call in end.message.iter().flat_map(|message| &message.tool_calls) {
            let arguments = serde_json::from_str(&call.function.arguments)?;
            let id = StreamPartId::wire(&call.id);
            parts.push(RawStreamingChoice::ToolCall(RawStreamingToolCall::new(
                id,
                call.function.name.clone(),
                arguments,
            )));
        }
        let last = StreamFinal::new(PROVIDER, usage(&end)).with_optional_finish_reason(reason(&end));
        parts.push(RawStreamingChoice::FinalResponse(StreamFinal { raw: Value::Object(end.fields), ..last }));
        Ok(parts)
    };
    match read() {
        Ok(parts) => parts.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }
}

fn usage(end: &FinalResponse) -> Usage {
    let mut usage = Usage::new();
    let count = |n: usize| n as u64;
    usage.input_tokens = end.usage.map_or(0, |usage| count(usage.prompt_tokens));
    usage.output_tokens = end.usage.map_or(0, |usage| count(usage.completion_tokens));
    usage.total_tokens = usage.input_tokens + usage.output_tokens;
    usage.cached_input_tokens =
        end.fields.get("timings").and_then(|timings| timings.get("cache_n")).and_then(Value::as_u64).unwrap_or(0);
    usage
}

fn reason(end: &FinalResponse) -> Option<FinishReason> {
    let has_calls = end.message.as_ref().is_some_and(|message| !message.tool_calls.is_empty());
    Some(match end.stop_type? {
        StopType::Eos | StopType::Word if has_calls => FinishReason::ToolCalls,
        StopType::Eos | StopType::Word => FinishReason::Stop,
        StopType::Limit => FinishReason::Length,
        StopType::Timeout => FinishReason::Other("timeout".to_owned()),
        StopType::Cancelled => FinishReason::Other("cancelled".to_owned()),
        StopType::Error => FinishReason::Other("error".to_owned()),
    })
}

fn failed(error: Error) -> CompletionError {
    CompletionError::ProviderError(error.to_string())
}

fn refused(what: &str) -> CompletionError {
    CompletionError::RequestError(format!("foredraft: {what}").into())
}

/// The keys of `foredraft_complete` for a request of rig. `additional_params` are more of these keys.
fn engine_request(request: CompletionRequest) -> Result<Request, CompletionError> {
    request.validate_message_content()?;
    let mut messages: Vec<Value> = request.preamble.iter().map(|text| json!(Message::system(text))).collect();
    // Documents come before the question about them.
    let documents = request.normalized_documents();
    let (last, earlier) = request.chat_history.split_last().ok_or_else(|| refused("there is no message"))?;
    for message in earlier.iter().chain(&documents).chain([last]) {
        push_messages(&mut messages, message)?;
    }
    let mut wanted = Request::messages([]).set("messages", messages);
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| json!({"type": "function", "function": tool}));
        wanted = wanted.tools(tools.collect());
    }
    wanted = match request.tool_choice {
        None => wanted,
        Some(ToolChoice::Auto) => wanted.set("tool_choice", "auto"),
        Some(ToolChoice::None) => wanted.set("tool_choice", "none"),
        Some(ToolChoice::Required) => wanted.set("tool_choice", "required"),
        Some(ToolChoice::Specific { function_names }) => {
            let tools = function_names.iter().map(|name| json!({"type": "function", "function": {"name": name}}));
            let allowed = json!({"mode": "required", "tools": tools.collect::<Vec<_>>()});
            wanted.set("tool_choice", json!({"type": "allowed_tools", "allowed_tools": allowed}))
        }
    };
    if let Some(temperature) = request.temperature {
        wanted = wanted.temperature(temperature);
    }
    if let Some(max_tokens) = request.max_tokens {
        wanted = wanted.set("n_predict", max_tokens);
    }
    if let Some(schema) = request.output_schema {
        wanted = wanted.json_schema(schema.to_value());
    }
    if let Some(Value::Object(more)) = request.additional_params {
        wanted = more.into_iter().fold(wanted, |wanted, (key, value)| wanted.set(&key, value));
    }
    Ok(wanted)
}

/// Adds a message of rig: a user's results of tools are messages of their own.
fn push_messages(messages: &mut Vec<Value>, message: &RigMessage) -> Result<(), CompletionError> {
    match message {
        RigMessage::System { content } => messages.push(json!(Message::system(content))),
        RigMessage::User { content } => {
            let mut parts = Vec::new();
            for part in content {
                match part {
                    UserContent::ToolResult(result) => messages.push(tool_message(result)?),
                    UserContent::Text(text) => parts.push(json!({"type": "text", "text": text.text})),
                    UserContent::Document(document) => {
                        let (DocumentSourceKind::String(text) | DocumentSourceKind::Base64(text)) = &document.data
                        else {
                            return Err(refused("a document must be text"));
                        };
                        parts.push(json!({"type": "text", "text": text}));
                    }
                    UserContent::Image(image) => parts.push(image_part(&image.data, image.media_type.as_ref())?),
                    UserContent::Audio(_) | UserContent::Video(_) => {
                        return Err(refused("sounds and videos are not supported"));
                    }
                }
            }
            if !parts.is_empty() {
                messages.push(json!({"role": "user", "content": parts}));
            }
        }
        RigMessage::Assistant { content, .. } => {
            let mut answer = json!({"role": "assistant", "content": null});
            let mut append = |key: &str, text: &str| {
                let before = answer[key].as_str().unwrap_or_default();
                answer[key] = json!(format!("{before}{text}"));
            };
            let mut calls = Vec::new();
            for part in content {
                match part {
                    AssistantContent::Text(text) => append("content", &text.text),
                    AssistantContent::Reasoning(reasoning) => append("reasoning_content", &reasoning.display_text()),
                    AssistantContent::ToolCall(call) => calls.push(json!({
                        "id": call.wire_call_id(), "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments.to_string()},
                    })),
                    AssistantContent::Image(_) => return Err(refused("an answer cannot have images")),
                }
            }
            if !calls.is_empty() {
                answer["tool_calls"] = json!(calls);
            }
            messages.push(answer);
        }
    }
    Ok(())
}

fn tool_message(result: &ToolResult) -> Result<Value, CompletionError> {
    let text = |part: &ToolResultContent| match part {
        ToolResultContent::Text(text) => Ok(text.text.clone()),
        ToolResultContent::Json { value } => Ok(value.to_string()),
        ToolResultContent::Image(_) => Err(refused("a result of a tool cannot have images")),
    };
    let content = result.content.iter().map(text).collect::<Result<String, _>>()?;
    Ok(json!({"role": "tool", "tool_call_id": result.wire_call_id(), "name": result.name, "content": content}))
}

fn image_part(data: &DocumentSourceKind, kind: Option<&ImageMediaType>) -> Result<Value, CompletionError> {
    let url = match data {
        DocumentSourceKind::Url(url) => url.clone(),
        DocumentSourceKind::Base64(data) => {
            format!("data:{};base64,{data}", kind.map_or("image/png", ImageMediaType::to_mime_type))
        }
        _ => return Err(refused("an image must be a URL or base64")),
    };
    Ok(json!({"type": "image_url", "image_url": {"url": url}}))
}
