using System;
using System.Collections.Generic;
using System.Linq;
using System.Text.Json;
using System.Threading;
using System.Threading.Tasks;
using Microsoft.Extensions.AI;

namespace Foredraft.Tests
{
    /// <summary>Tests of the chat client for Microsoft.Extensions.AI, against its interface as it is documented.</summary>
    public static class ChatClientTests
    {
        private const string Schema = "{\"type\":\"object\",\"properties\":{\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9}},\"required\":[\"days\"],\"additionalProperties\":false}";
        private const string Long = "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\",\"minLength\":500}},\"required\":[\"text\"]}";

        private sealed class Declared : AIFunctionDeclaration
        {
            private readonly string schema;
            public Declared(string schema) { this.schema = schema; }
            public override string Name { get { return "weather"; } }
            public override string Description { get { return "The weather"; } }
            public override JsonElement JsonSchema { get { return new JsonElement(schema); } }
        }

        private static void With(Action<Engine, IChatClient> test)
        {
            using (var engine = new Engine())
            {
                engine.Load(new Json { ["model"] = Runner.Model("target"), ["n_ctx"] = 1024, ["n_threads"] = 1, ["log_level"] = "none" });
                using (var client = new ForedraftChatClient(engine)) test(engine, client);
            }
        }

        private static List<ChatMessage> Question() { return new List<ChatMessage> { new ChatMessage(ChatRole.User, "Tell me a story about a fox.") }; }

        private static async Task<List<ChatResponseUpdate>> Streamed(IChatClient client, ChatOptions options, int atMost = int.MaxValue, CancellationToken cancel = default(CancellationToken))
        {
            var updates = new List<ChatResponseUpdate>();
            var reader = client.GetStreamingResponseAsync(Question(), options).GetAsyncEnumerator(cancel);
            try
            {
                while (updates.Count < atMost && await reader.MoveNextAsync()) updates.Add(reader.Current);
            }
            finally
            {
                await reader.DisposeAsync();
            }
            return updates;
        }

        [Test]
        public static void a_chat_client_answers_as_the_engine_does()
        {
            With((engine, client) =>
            {
                var request = Json.Parse("{\"max_tokens\": 24, \"seed\": 7, \"temperature\": 0.5, \"stop\": [\"zzz\"]}");
                request["messages"] = Json.Array(
                    new Json { ["role"] = "system", ["content"] = "Be brief." },
                    new Json { ["role"] = "user", ["content"] = "Tell me a story about a fox." });
                var expected = engine.Complete(request)["message"]["content"].Text;
                var options = new ChatOptions { Instructions = "Be brief.", MaxOutputTokens = 24, Seed = 7, Temperature = 0.5f, StopSequences = new[] { "zzz" } };
                var whole = client.GetResponseAsync(Question(), options).Result;
                Check.Equal(expected, whole.Text);
                Check.Equal("length", whole.FinishReason.Value.Value);
                Check.Equal(24L, whole.Usage.OutputTokenCount.Value);
                var updates = Streamed(client, options).Result;
                Check.Equal(expected, string.Concat(updates.Select(update => update.Text)));
                Check.That(updates.Count > 1 && updates.All(update => update.ResponseId == updates[0].ResponseId), updates.Count);
                Check.Equal("length", updates.Last().FinishReason.Value.Value);
                Check.Equal(24L, updates.Last().Contents.OfType<UsageContent>().Single().Details.OutputTokenCount.Value);
            });
        }

        [Test]
        public static void a_chat_client_calls_functions_and_takes_their_results()
        {
            With((engine, client) =>
            {
                var options = new ChatOptions { MaxOutputTokens = 100, Seed = 3, Tools = new AITool[] { new Declared(Schema) }, ToolMode = new RequiredChatToolMode("weather") };
                var response = client.GetResponseAsync(Question(), options).Result;
                var call = response.Messages[0].Contents.OfType<FunctionCallContent>().Single();
                var days = ((JsonElement)call.Arguments["days"]).GetInt64();
                Check.That(call.Name == "weather" && days >= 1 && days <= 9 && call.Exception == null, days);
                Check.Equal("tool_calls", response.FinishReason.Value.Value);
                var streamed = Streamed(client, options).Result.Last();
                Check.Equal(days, ((JsonElement)streamed.Contents.OfType<FunctionCallContent>().Single().Arguments["days"]).GetInt64());
                // The answer goes back as it is, with the result.
                var history = Question();
                history.AddRange(response.Messages);
                history.Add(new ChatMessage(ChatRole.Tool, new List<AIContent> { new FunctionResultContent(call.CallId, new Dictionary<string, object> { ["sky"] = "clear" }) }));
                options.ToolMode = new NoneChatToolMode();
                Check.That(client.GetResponseAsync(history, options).Result.Text != "", "no text");
                // A call that the limit cuts has the error.
                options = new ChatOptions { MaxOutputTokens = 60, Tools = new AITool[] { new Declared(Long) }, ToolMode = new RequiredChatToolMode(null), AllowMultipleToolCalls = false };
                var cut = client.GetResponseAsync(Question(), options).Result;
                Check.That(cut.Messages[0].Contents.OfType<FunctionCallContent>().Single().Exception is JsonException, cut.Text);
            });
        }

        [Test]
        public static void a_chat_client_makes_json_and_passes_further_keys()
        {
            With((engine, client) =>
            {
                var options = new ChatOptions { MaxOutputTokens = 100, ResponseFormat = new ChatResponseFormatJson(new JsonElement(Schema)) };
                var days = Json.Parse(client.GetResponseAsync(Question(), options).Result.Text)["days"].Integer;
                Check.That(days >= 1 && days <= 9, days);
                options = new ChatOptions { MaxOutputTokens = 4, AdditionalProperties = new AdditionalPropertiesDictionary { ["max_tokens"] = 7, ["tag"] = "mine" } };
                var answer = client.GetResponseAsync(Question(), options).Result;
                Check.Equal(7L, answer.Usage.OutputTokenCount.Value);
                Check.Equal("mine", ((Json)answer.RawRepresentation)["tag"].Text);
                Check.Equal("local", ((ChatClientMetadata)client.GetService(typeof(ChatClientMetadata))).DefaultModelId);
                Check.That(client.GetService(typeof(Engine)) == engine && client.GetService(typeof(IChatClient)) == client && client.GetService(typeof(string)) == null, "services");
                var picture = new ChatMessage(ChatRole.User, new List<AIContent> { new DataContent("data:image/png;base64,AA==") });
                Check.Throws<NotSupportedException>(() => client.GetResponseAsync(new[] { picture }).GetAwaiter().GetResult());
            });
        }

        [Test]
        public static void a_chat_client_heeds_tokens_and_left_streams()
        {
            With((engine, client) =>
            {
                var endless = new ChatOptions { AdditionalProperties = new AdditionalPropertiesDictionary { ["ignore_eos"] = true, ["n_predict"] = -1 } };
                using (var source = new CancellationTokenSource())
                {
                    var answer = client.GetResponseAsync(Question(), endless, source.Token);
                    source.Cancel();
                    Check.Throws<OperationCanceledException>(() => answer.GetAwaiter().GetResult());
                }
                using (var source = new CancellationTokenSource())
                {
                    source.Cancel();
                    Check.Throws<OperationCanceledException>(() => Streamed(client, endless, int.MaxValue, source.Token).GetAwaiter().GetResult());
                }
                Check.Equal(2, Streamed(client, endless, 2).Result.Count);
                for (var i = 0; engine.Status()["slots"].Items.Any(slot => !slot["request_id"].IsNull); ++i)
                {
                    Check.That(i < 3000, engine.Status());
                    Thread.Sleep(10);
                }
            });
        }
    }
}
