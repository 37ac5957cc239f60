// llama.cpp's chat formats (`common/chat.h`), guarded: what a template's model writes for reasoning and tool calls, the grammar for it, and
// the parser. Requests and answers are JSON texts. A returned text is freed by `foredraft_chat_text_free`. On failure a function returns
// NULL and writes the message to `why`. All functions may be called by several threads at once.
#include "guard.h"
#include "template_budget.h"

// Written by build.rs: llama.cpp's `common/jinja/runtime.cpp` with limits.
#include "jinja_runtime.cpp"

#include "chat.h"
#include "chat-peg-parser.h"
#include "common.h"
#include "json-schema-to-grammar.h"
#include "json.h"
#include "log.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

using guard::guarded;
using json = common_json;

struct foredraft_chat_template {
    common_chat_templates_ptr templates;
};

struct foredraft_chat_parser {
    common_peg_arena arena;
    common_chat_format format = COMMON_CHAT_FORMAT_CONTENT_ONLY;
    // The end of the prompt, which belongs to the text that the parser reads.
    std::string prefix;
};

namespace {

// What llama.cpp's template engine may use to find a format, in nanoseconds, and in bytes for each rendering. It renders a few dozen times, and takes
// up to 10,000 nanoseconds for each byte of tools with real templates.
constexpr uint64_t MAX_TIME = 1000 * 1000 * 1000;
constexpr uint64_t MAX_TIME_PER_BYTE = 20000;
constexpr uint64_t MAX_MEMORY = 128 << 20;
constexpr uint64_t MAX_MEMORY_PER_BYTE = 2000;

char * text_of(const std::string & text, size_t * length) {
    char * copy = static_cast<char *>(std::malloc(text.size() + 1));
    if (copy == nullptr) {
        throw std::bad_alloc();
    }
    std::memcpy(copy, text.c_str(), text.size() + 1);
    *length = text.size();
    return copy;
}

// llama.cpp's common library logs to stderr on a thread of its own. Its messages become errors or nothing here.
void silence_log() {
    static const bool silent = [] { common_log_set_verbosity_thold(-1); return true; }();
    (void) silent;
}

const char * trigger_type(common_grammar_trigger_type type) {
    switch (type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:        return "token";
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD:         return "word";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:      return "pattern";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: return "pattern_full";
    }
    return "word";
}

json params_json(const common_chat_params & params) {
    json triggers = json::array();
    for (const auto & trigger : params.grammar_triggers) {
        triggers.push_back({ { "type", trigger_type(trigger.type) }, { "value", trigger.value } });
    }
    return {
        { "format", static_cast<int>(params.format) },
        { "generation_prompt", params.generation_prompt },
        { "prompt", params.prompt },
        { "grammar", params.grammar },
        { "grammar_lazy", params.grammar_lazy },
        { "grammar_triggers", triggers },
        { "preserved_tokens", params.preserved_tokens },
        { "additional_stops", params.additional_stops },
        { "supports_thinking", params.supports_thinking },
        { "thinking_start", params.thinking_start_tag },
        { "thinking_ends", params.thinking_end_tags },
        { "parser", params.parser },
    };
}

common_chat_tool_choice tool_choice_of(const json & request) {
    return common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", std::string("auto")));
}

}  // namespace

extern "C" {

void foredraft_chat_text_free(char * text) {
    std::free(text);
}

// Parses a template's source.
foredraft_chat_template * foredraft_chat_template_new(const char * source, size_t length, const char * bos, const char * eos, char * why,
                                                      size_t why_size) {
    return guarded<foredraft_chat_template *>(nullptr, why, why_size, [&]() -> foredraft_chat_template * {
        silence_log();
        // Without a source it would ask the model, and assert that there is one.
        if (length == 0) {
            throw std::invalid_argument("the template is empty");
        }
        auto parsed = std::make_unique<foredraft_chat_template>();
        const template_budget::limit limit(MAX_TIME, MAX_MEMORY);
        parsed->templates = common_chat_templates_init(nullptr, std::string(source, length), bos, eos);
        template_budget::check();
        return parsed.release();
    });
}

void foredraft_chat_template_free(foredraft_chat_template * parsed) {
    delete parsed;
}

// What the template can show: `{"tools", "tool_calls", "parallel"}`.
char * foredraft_chat_capabilities(const foredraft_chat_template * of, size_t * length, char * why, size_t why_size) {
    return guarded<char *>(nullptr, why, why_size, [&] {
        const auto capabilities = common_chat_templates_get_caps(of->templates.get());
        const json answer = {
            { "tools", capabilities.at("supports_tools") },
            { "tool_calls", capabilities.at("supports_tool_calls") },
            { "parallel", capabilities.at("supports_parallel_tool_calls") },
        };
        return text_of(answer.dump(), length);
    });
}

// The format of the answer to a request: `{"messages", "tools", "tool_choice", "parallel_tool_calls", "json_schema", "reasoning_format",
// "enable_thinking", "continue_final_message", "add_generation_prompt", "kwargs"}`.
char * foredraft_chat_apply(const foredraft_chat_template * of, const char * request_text, size_t request_length, size_t * length, char * why,
                            size_t why_size) {
    return guarded<char *>(nullptr, why, why_size, [&] {
        const json request = json::parse(std::string(request_text, request_length));
        common_chat_templates_inputs inputs;
        inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
        if (request.contains("tools")) {
            inputs.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
        }
        inputs.tool_choice = tool_choice_of(request);
        inputs.parallel_tool_calls = request.value("parallel_tool_calls", false);
        if (request.contains("json_schema")) {
            inputs.json_schema = request.at("json_schema").dump();
        }
        inputs.reasoning_format = common_reasoning_format_from_name(request.value("reasoning_format", std::string("auto")));
        inputs.enable_thinking = request.value("enable_thinking", true);
        inputs.add_generation_prompt = request.value("add_generation_prompt", true);
        if (request.contains("continue_final_message")) {
            inputs.continue_final_message = common_chat_continuation_parse(request.at("continue_final_message"));
        }
        if (request.contains("kwargs")) {
            for (const auto & [name, value] : request.at("kwargs").items()) {
                inputs.chat_template_kwargs[name] = value.dump();
            }
        }
        const template_budget::limit limit(MAX_TIME + MAX_TIME_PER_BYTE * request_length, MAX_MEMORY + MAX_MEMORY_PER_BYTE * request_length);
        const auto params = common_chat_templates_apply(of->templates.get(), inputs);
        template_budget::check();
        return text_of(params_json(params).dump(), length);
    });
}

// A format for templates that cannot show tools: `{"name": ..., "arguments": {...}}`, or an array of these with parallel calls. The
// request is `{"tools", "parallel_tool_calls"}`.
char * foredraft_chat_generic(const char * request_text, size_t request_length, size_t * length, char * why, size_t why_size) {
    return guarded<char *>(nullptr, why, why_size, [&] {
        silence_log();
        const json request = json::parse(std::string(request_text, request_length));
        const json & tools = request.at("tools");
        const bool parallel = request.value("parallel_tool_calls", false);
        const auto parser = build_chat_peg_parser([&](common_chat_peg_builder & p) {
            return p.space() + p.standard_json_tools("", "", tools, parallel, true, "name", "arguments", parallel) + p.end();
        });
        common_chat_params params;
        params.format = COMMON_CHAT_FORMAT_PEG_NATIVE;
        params.parser = parser.save();
        params.grammar = build_grammar([&](const common_grammar_builder & builder) { parser.build_grammar(builder, false); });
        return text_of(params_json(params).dump(), length);
    });
}

// A parser for the completions of a format. An empty `serialized` makes the whole text the content.
foredraft_chat_parser * foredraft_chat_parser_new(const char * serialized, size_t length, int32_t format, const char * prefix,
                                                  size_t prefix_length, char * why, size_t why_size) {
    return guarded<foredraft_chat_parser *>(nullptr, why, why_size, [&]() -> foredraft_chat_parser * {
        silence_log();
        if (format < 0 || format >= COMMON_CHAT_FORMAT_COUNT) {
            throw std::invalid_argument("unknown chat format");
        }
        auto parser = std::make_unique<foredraft_chat_parser>();
        parser->format = static_cast<common_chat_format>(format);
        if (length == 0) {
            parser->arena = build_chat_peg_parser([](common_chat_peg_builder & p) { return p.content(p.rest()) + p.end(); });
        } else {
            parser->arena.load(std::string(serialized, length));
            parser->prefix.assign(prefix, prefix_length);
        }
        return parser.release();
    });
}

void foredraft_chat_parser_free(foredraft_chat_parser * parser) {
    delete parser;
}

// Parses a completion, or its beginning: `{"matches", "ends", "end", "covered", "content", "reasoning_content", "tool_calls": [{"name", "arguments",
// "id"}]}`. `matches`: the text has the format, or begins with a text that has it. `ends`: the latter, up to the byte `end`. `covered`: where the content and the
// reasoning end in the text, in bytes.
char * foredraft_chat_parse(const foredraft_chat_parser * parser, const char * text, size_t text_length, size_t * length, char * why,
                            size_t why_size) {
    return guarded<char *>(nullptr, why, why_size, [&] {
        common_peg_parse_context context(parser->prefix + std::string(text, text_length), COMMON_PEG_PARSE_FLAG_LENIENT);
        const auto result = parser->arena.parse(context);
        size_t covered = parser->prefix.size();
        context.ast.visit(result, [&](const common_peg_ast_node & node) {
            const bool is_text = node.tag == common_chat_peg_builder::CONTENT || node.tag == common_chat_peg_builder::REASONING;
            if (is_text && node.end > covered) {
                covered = node.end;
            }
        });
        common_chat_msg message;
        std::unique_ptr<common_chat_peg_mapper> mapper;
        switch (parser->format) {
            case COMMON_CHAT_FORMAT_PEG_GEMMA4:     mapper = std::make_unique<common_chat_peg_gemma4_mapper>(message); break;
            case COMMON_CHAT_FORMAT_PEG_MINIMAX_M3: mapper = std::make_unique<common_chat_peg_minimax_m3_mapper>(message); break;
            default:                                mapper = std::make_unique<common_chat_peg_mapper>(message); break;
        }
        mapper->from_ast(context.ast, result);
        json calls = json::array();
        for (const auto & call : message.tool_calls) {
            calls.push_back({ { "name", call.name }, { "arguments", call.arguments }, { "id", call.id } });
        }
        const json answer = {
            { "matches", !result.fail() },
            { "ends", result.success() && result.end < context.input.size() },
            { "end", std::max(result.end, parser->prefix.size()) - parser->prefix.size() },
            { "covered", covered - parser->prefix.size() },
            { "content", message.content },
            { "reasoning_content", message.reasoning_content },
            { "tool_calls", calls },
        };
        return text_of(answer.dump(), length);
    });
}

}
