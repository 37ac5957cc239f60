// A chat client for Microsoft.Extensions.AI (package Microsoft.Extensions.AI.Abstractions), in this process:
//
//   var engine = new Engine();
//   engine.Load(new Json { ["model"] = "target.gguf", ["model_draft"] = "draft.gguf" });
//   IChatClient client = new ForedraftChatClient(engine);
//   Console.WriteLine(await client.GetResponseAsync("Tell me a story."));
//
// Copy the file into your project: it needs no package but the two above. It is compiled and tested here against the interface as it is
// documented (csharp/tests/extensions_ai), not against the package itself.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Text.Json;
using System.Threading;
using System.Threading.Tasks;
using Microsoft.Extensions.AI;

namespace Foredraft
{
    /// <summary>A chat client over an engine, which stays the caller's. Cancelling a token, or leaving a stream, ends the request.</summary>
    public sealed class ForedraftChatClient : IChatClient
    {
        private readonly Engine engine;
        private readonly Json settings;
        private readonly ChatClientMetadata metadata;

        /// <summary>`settings`: keys of the engine's requests, for all calls. Options of a call count more, and its AdditionalProperties most.</summary>
        public ForedraftChatClient(Engine engine, Json settings = null, string model = "local")
        {
            this.engine = engine ?? throw new ArgumentNullException(nameof(engine));
            this.settings = settings ?? new Json();
            metadata = new ChatClientMetadata("foredraft", null, model);
        }

        public async Task<ChatResponse> GetResponseAsync(
            IEnumerable<ChatMessage> messages, ChatOptions options = null, CancellationToken cancellationToken = default(CancellationToken))
        {
            var request = await engine.CompleteAsync(RequestOf(messages, options), cancellationToken).ConfigureAwait(false);
            var message = request.Answer["message"];
            var contents = new List<AIContent>();
            if (message["reasoning_content"].Text != "") contents.Add(new TextReasoningContent(message["reasoning_content"].Text));
            if (message["content"].Text != "") contents.Add(new TextContent(message["content"].Text));
            contents.AddRange(message["tool_calls"].Items.Select(CallOf));
            return new ChatResponse(new ChatMessage(ChatRole.Assistant, contents))
            {
                FinishReason = ReasonOf(request.Answer), ModelId = metadata.DefaultModelId, Usage = UsageOf(request.Answer),
                ResponseId = ResponseId(request), RawRepresentation = request.Answer,
            };
        }

        public IAsyncEnumerable<ChatResponseUpdate> GetStreamingResponseAsync(
            IEnumerable<ChatMessage> messages, ChatOptions options = null, CancellationToken cancellationToken = default(CancellationToken))
        {
            return new Updates(this, RequestOf(messages, options), cancellationToken);
        }

        public object GetService(Type serviceType, object serviceKey = null)
        {
            if (serviceType == null) throw new ArgumentNullException(nameof(serviceType));
            if (serviceKey != null) return null;
            if (serviceType == typeof(ChatClientMetadata)) return metadata;
            if (serviceType == typeof(Engine)) return engine;
            return serviceType.IsInstanceOfType(this) ? this : null;
        }

        /// <summary>Does nothing: the engine is the caller's.</summary>
        public void Dispose() { }

        private static string ResponseId(Request request) { return "chatcmpl-" + request.Id; }

        /// <summary>The engine's request of a call.</summary>
        private Json RequestOf(IEnumerable<ChatMessage> messages, ChatOptions options)
        {
            if (messages == null) throw new ArgumentNullException(nameof(messages));
            options = options ?? new ChatOptions();
            var request = new Json();
            foreach (var name in settings.Names) request[name] = settings[name];
            var all = messages.SelectMany(MessagesOf).ToList();
            if (!string.IsNullOrEmpty(options.Instructions)) all.Insert(0, Message("system", options.Instructions));
            request["messages"] = Json.Array(all);
            if (options.MaxOutputTokens != null) request["max_tokens"] = options.MaxOutputTokens.Value;
            if (options.Temperature != null) request["temperature"] = options.Temperature.Value;
            if (options.TopP != null) request["top_p"] = options.TopP.Value;
            if (options.TopK != null) request["top_k"] = options.TopK.Value;
            if (options.FrequencyPenalty != null) request["frequency_penalty"] = options.FrequencyPenalty.Value;
            if (options.PresencePenalty != null) request["presence_penalty"] = options.PresencePenalty.Value;
            if (options.Seed != null) request["seed"] = options.Seed.Value;
            if (options.StopSequences != null) request["stop"] = Json.Array(options.StopSequences.Select(text => (Json)text));
            if (options.ResponseFormat is ChatResponseFormatJson json)
            {
                var format = new Json { ["type"] = "json_object" };
                if (json.Schema != null) format["schema"] = Json.Parse(json.Schema.Value.GetRawText());
                request["response_format"] = format;
            }
            if (options.Tools != null && options.Tools.Count > 0)
            {
                request["tools"] = Json.Array(options.Tools.Select(ToolOf));
                if (options.ToolMode is NoneChatToolMode) request["tool_choice"] = "none";
                if (options.ToolMode is RequiredChatToolMode required) request["tool_choice"] = required.RequiredFunctionName ?? "required";
                if (options.AllowMultipleToolCalls != null) request["parallel_tool_calls"] = options.AllowMultipleToolCalls.Value;
            }
            foreach (var more in options.AdditionalProperties ?? Enumerable.Empty<KeyValuePair<string, object>>()) request[more.Key] = JsonOf(more.Value);
            return request;
        }

        private static Json JsonOf(object value) { return value as Json ?? Json.Parse(JsonSerializer.Serialize(value)); }

        private static Json Message(string role, string content) { return new Json { ["role"] = role, ["content"] = content }; }

        /// <summary>A message as the engine's: each result of a tool is one of its own.</summary>
        private static IEnumerable<Json> MessagesOf(ChatMessage message)
        {
            var text = "";
            var reasoning = "";
            var calls = new List<Json>();
            foreach (var content in message.Contents)
            {
                if (content is TextContent written) text += written.Text;
                else if (content is TextReasoningContent thought) reasoning += thought.Text;
                else if (content is FunctionCallContent call)
                {
                    var arguments = call.Arguments == null ? "{}" : JsonSerializer.Serialize(call.Arguments);
                    var function = new Json { ["name"] = call.Name, ["arguments"] = arguments };
                    calls.Add(new Json { ["id"] = call.CallId, ["type"] = "function", ["function"] = function });
                }
                else if (content is FunctionResultContent result)
                {
                    var answer = Message("tool", result.Result as string ?? JsonSerializer.Serialize(result.Result));
                    answer["tool_call_id"] = result.CallId;
                    yield return answer;
                }
                else if (!(content is UsageContent)) throw new NotSupportedException("the engine reads text only, got " + content.GetType().Name);
            }
            if (message.Role == ChatRole.Tool) yield break;
            var converted = Message(message.Role.Value, text);
            if (reasoning != "") converted["reasoning_content"] = reasoning;
            if (calls.Count > 0) converted["tool_calls"] = Json.Array(calls);
            yield return converted;
        }

        private static Json ToolOf(AITool tool)
        {
            var declared = tool as AIFunctionDeclaration;
            if (declared == null) throw new NotSupportedException("the engine calls functions only, got the tool " + tool.Name);
            var function = new Json { ["name"] = declared.Name, ["description"] = declared.Description };
            function["parameters"] = Json.Parse(declared.JsonSchema.GetRawText());
            return new Json { ["type"] = "function", ["function"] = function };
        }

        /// <summary>A call. Its arguments are no JSON where the limit has cut them: then it has the error.</summary>
        private static AIContent CallOf(Json call)
        {
            var function = call["function"];
            try
            {
                var arguments = JsonSerializer.Deserialize<Dictionary<string, object>>(function["arguments"].Text);
                return new FunctionCallContent(call["id"].Text, function["name"].Text, arguments);
            }
            catch (Exception error) when (error is JsonException || error is FormatException)
            {
                return new FunctionCallContent(call["id"].Text, function["name"].Text) { Exception = error };
            }
        }

        private static ChatFinishReason? ReasonOf(Json answer)
        {
            switch (answer["finish_reason"].Text)
            {
                case "stop": return ChatFinishReason.Stop;
                case "length": return ChatFinishReason.Length;
                case "tool_calls": return ChatFinishReason.ToolCalls;
                default: return null;
            }
        }

        private static UsageDetails UsageOf(Json answer)
        {
            var usage = answer["usage"];
            return new UsageDetails
            {
                InputTokenCount = usage["prompt_tokens"].Integer, OutputTokenCount = usage["completion_tokens"].Integer,
                TotalTokenCount = usage["total_tokens"].Integer,
            };
        }

        private sealed class Updates : IAsyncEnumerable<ChatResponseUpdate>
        {
            private readonly ForedraftChatClient client;
            private readonly Json request;
            private readonly CancellationToken given;

            public Updates(ForedraftChatClient client, Json request, CancellationToken given)
            {
                this.client = client;
                this.request = request;
                this.given = given;
            }

            public IAsyncEnumerator<ChatResponseUpdate> GetAsyncEnumerator(CancellationToken cancellationToken = default(CancellationToken))
            {
                return new Reader(client, request, CancellationTokenSource.CreateLinkedTokenSource(given, cancellationToken));
            }
        }

        /// <summary>Reads the updates of a request: text and reasoning as they come, then calls, the reason and the usage.</summary>
        private sealed class Reader : IAsyncEnumerator<ChatResponseUpdate>
        {
            private readonly ForedraftChatClient client;
            private readonly Request running;
            private readonly CancellationTokenSource cancel;
            private bool hasEnded;

            public Reader(ForedraftChatClient client, Json request, CancellationTokenSource cancel)
            {
                this.client = client;
                this.cancel = cancel;
                running = client.engine.Submit(request);
            }

            public ChatResponseUpdate Current { get; private set; }

            public async ValueTask<bool> MoveNextAsync()
            {
                while (!hasEnded)
                {
                    var update = await running.NextAsync(cancel.Token).ConfigureAwait(false);
                    var contents = new List<AIContent>();
                    hasEnded = update == null;
                    if (hasEnded)
                    {
                        contents.AddRange(running.Answer["message"]["tool_calls"].Items.Select(CallOf));
                        contents.Add(new UsageContent(UsageOf(running.Answer)));
                    }
                    else
                    {
                        var delta = update.Json["delta"];
                        if (delta["reasoning_content"].Text != "") contents.Add(new TextReasoningContent(delta["reasoning_content"].Text));
                        if (delta["content"].Text != "") contents.Add(new TextContent(delta["content"].Text));
                        if (contents.Count == 0) continue;
                    }
                    Current = new ChatResponseUpdate(ChatRole.Assistant, contents)
                    {
                        ResponseId = ResponseId(running), MessageId = ResponseId(running), ModelId = client.metadata.DefaultModelId,
                        FinishReason = hasEnded ? ReasonOf(running.Answer) : null,
                    };
                    return true;
                }
                return false;
            }

            public ValueTask DisposeAsync()
            {
                running.Dispose();
                cancel.Dispose();
                return default(ValueTask);
            }
        }
    }
}
