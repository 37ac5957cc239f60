// The part of Microsoft.Extensions.AI.Abstractions and of System.Text.Json that the chat client uses, with the members' names and types as
// documented (learn.microsoft.com/dotnet/api/microsoft.extensions.ai). It stands in for the packages, which Mono's compiler cannot get.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Foredraft;

namespace Microsoft.Extensions.AI
{
    public interface IChatClient : IDisposable
    {
        Task<ChatResponse> GetResponseAsync(IEnumerable<ChatMessage> messages, ChatOptions options = null, CancellationToken cancellationToken = default(CancellationToken));
        IAsyncEnumerable<ChatResponseUpdate> GetStreamingResponseAsync(IEnumerable<ChatMessage> messages, ChatOptions options = null, CancellationToken cancellationToken = default(CancellationToken));
        object GetService(Type serviceType, object serviceKey = null);
    }

    public class ChatClientMetadata
    {
        public ChatClientMetadata(string providerName = null, Uri providerUri = null, string defaultModelId = null)
        {
            ProviderName = providerName;
            ProviderUri = providerUri;
            DefaultModelId = defaultModelId;
        }

        public string ProviderName { get; }
        public Uri ProviderUri { get; }
        public string DefaultModelId { get; }
    }

    public struct ChatRole : IEquatable<ChatRole>
    {
        public ChatRole(string value) { Value = value; }
        public string Value { get; }
        public static ChatRole System { get; } = new ChatRole("system");
        public static ChatRole Assistant { get; } = new ChatRole("assistant");
        public static ChatRole User { get; } = new ChatRole("user");
        public static ChatRole Tool { get; } = new ChatRole("tool");
        public bool Equals(ChatRole other) { return Value == other.Value; }
        public override bool Equals(object other) { return other is ChatRole && Equals((ChatRole)other); }
        public override int GetHashCode() { return Value.GetHashCode(); }
        public static bool operator ==(ChatRole left, ChatRole right) { return left.Equals(right); }
        public static bool operator !=(ChatRole left, ChatRole right) { return !left.Equals(right); }
    }

    public struct ChatFinishReason
    {
        public ChatFinishReason(string value) { Value = value; }
        public string Value { get; }
        public static ChatFinishReason Stop { get; } = new ChatFinishReason("stop");
        public static ChatFinishReason Length { get; } = new ChatFinishReason("length");
        public static ChatFinishReason ToolCalls { get; } = new ChatFinishReason("tool_calls");
    }

    public class AIContent { }

    public sealed class TextContent : AIContent
    {
        public TextContent(string text) { Text = text; }
        public string Text { get; set; }
    }

    public sealed class TextReasoningContent : AIContent
    {
        public TextReasoningContent(string text) { Text = text; }
        public string Text { get; set; }
    }

    public class DataContent : AIContent
    {
        public DataContent(string uri, string mediaType = null) { }
    }

    public class UsageContent : AIContent
    {
        public UsageContent(UsageDetails details) { Details = details; }
        public UsageDetails Details { get; set; }
    }

    public class FunctionCallContent : AIContent
    {
        public FunctionCallContent(string callId, string name, IDictionary<string, object> arguments = null)
        {
            CallId = callId;
            Name = name;
            Arguments = arguments;
        }

        public string CallId { get; }
        public string Name { get; }
        public IDictionary<string, object> Arguments { get; set; }
        public Exception Exception { get; set; }
    }

    public class FunctionResultContent : AIContent
    {
        public FunctionResultContent(string callId, object result)
        {
            CallId = callId;
            Result = result;
        }

        public string CallId { get; }
        public object Result { get; set; }
    }

    public class UsageDetails
    {
        public long? InputTokenCount { get; set; }
        public long? OutputTokenCount { get; set; }
        public long? TotalTokenCount { get; set; }
    }

    public class ChatMessage
    {
        public ChatMessage(ChatRole role, string content) : this(role, new List<AIContent> { new TextContent(content) }) { }

        public ChatMessage(ChatRole role, IList<AIContent> contents)
        {
            Role = role;
            Contents = contents;
        }

        public ChatRole Role { get; set; }
        public IList<AIContent> Contents { get; set; }
        public string Text { get { return string.Concat(Contents.OfType<TextContent>().Select(content => content.Text)); } }
    }

    public class ChatResponse
    {
        public ChatResponse(ChatMessage message) { Messages = new List<ChatMessage> { message }; }
        public IList<ChatMessage> Messages { get; set; }
        public string Text { get { return string.Concat(Messages.Select(message => message.Text)); } }
        public string ResponseId { get; set; }
        public string ModelId { get; set; }
        public ChatFinishReason? FinishReason { get; set; }
        public UsageDetails Usage { get; set; }
        public object RawRepresentation { get; set; }
    }

    public class ChatResponseUpdate
    {
        public ChatResponseUpdate(ChatRole? role, IList<AIContent> contents)
        {
            Role = role;
            Contents = contents;
        }

        public ChatRole? Role { get; set; }
        public IList<AIContent> Contents { get; set; }
        public string Text { get { return string.Concat(Contents.OfType<TextContent>().Select(content => content.Text)); } }
        public string ResponseId { get; set; }
        public string MessageId { get; set; }
        public string ModelId { get; set; }
        public ChatFinishReason? FinishReason { get; set; }
    }

    public class ChatResponseFormat { }
    public sealed class ChatResponseFormatText : ChatResponseFormat { }

    public sealed class ChatResponseFormatJson : ChatResponseFormat
    {
        public ChatResponseFormatJson(System.Text.Json.JsonElement? schema, string schemaName = null, string schemaDescription = null) { Schema = schema; }
        public System.Text.Json.JsonElement? Schema { get; }
    }

    public class ChatToolMode { }
    public sealed class AutoChatToolMode : ChatToolMode { }
    public sealed class NoneChatToolMode : ChatToolMode { }

    public sealed class RequiredChatToolMode : ChatToolMode
    {
        public RequiredChatToolMode(string requiredFunctionName) { RequiredFunctionName = requiredFunctionName; }
        public string RequiredFunctionName { get; }
    }

    public abstract class AITool
    {
        public virtual string Name { get { return GetType().Name; } }
        public virtual string Description { get { return ""; } }
    }

    public abstract class AIFunctionDeclaration : AITool
    {
        public virtual System.Text.Json.JsonElement JsonSchema { get { return default(System.Text.Json.JsonElement); } }
    }

    public sealed class AdditionalPropertiesDictionary : Dictionary<string, object> { }

    public class ChatOptions
    {
        public string Instructions { get; set; }
        public float? Temperature { get; set; }
        public int? MaxOutputTokens { get; set; }
        public float? TopP { get; set; }
        public int? TopK { get; set; }
        public float? FrequencyPenalty { get; set; }
        public float? PresencePenalty { get; set; }
        public long? Seed { get; set; }
        public ChatResponseFormat ResponseFormat { get; set; }
        public IList<string> StopSequences { get; set; }
        public bool? AllowMultipleToolCalls { get; set; }
        public ChatToolMode ToolMode { get; set; }
        public IList<AITool> Tools { get; set; }
        public AdditionalPropertiesDictionary AdditionalProperties { get; set; }
    }
}

namespace System.Text.Json
{
    public class JsonException : Exception
    {
        public JsonException(string message, Exception inner) : base(message, inner) { }
    }

    public struct JsonElement
    {
        private readonly string text;
        public JsonElement(string text) { this.text = text; }
        public string GetRawText() { return text; }
        public long GetInt64() { return Foredraft.Json.Parse(text).Integer; }
    }

    public static class JsonSerializer
    {
        public static string Serialize<T>(T value) { return Of(value).ToString(); }

        public static T Deserialize<T>(string text)
        {
            try
            {
                var json = Foredraft.Json.Parse(text);
                var members = new Dictionary<string, object>();
                foreach (var name in json.Names) members[name] = new JsonElement(json[name].ToString());
                return (T)(object)members;
            }
            catch (FormatException error)
            {
                throw new JsonException(error.Message, error);
            }
        }

        private static Foredraft.Json Of(object value)
        {
            if (value == null) return Foredraft.Json.Null;
            if (value is JsonElement) return Foredraft.Json.Parse(((JsonElement)value).GetRawText());
            if (value is string) return (string)value;
            if (value is bool) return (bool)value;
            var members = value as IDictionary<string, object>;
            if (members == null) return Convert.ToDouble(value, CultureInfo.InvariantCulture);
            var json = new Foredraft.Json();
            foreach (var member in members) json[member.Key] = Of(member.Value);
            return json;
        }
    }
}
