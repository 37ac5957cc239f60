// Writes what llama-server's code makes of completions: lines of JSON with the template's source, the request, the completion and the message.
// With one argument, a file to write: for each test of a chat format in llama.cpp's test-chat.cpp. scripts/chat-peer.sh compiles this program
// with that file, which it downloads. With two, a file to read and one to write: for lines with a template, a request and a completion.
// src/api/prompts/chat_format/tests/peer.rs compiles it with COMPLETIONS_ONLY, which needs no download.
#include "chat.h"
#include "common.h"
#include "json.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

using json = common_json;

static FILE * recorded_lines;

#ifndef COMPLETIONS_ONLY
// The last call of the parser for a request: the tests parse each beginning of a completion, and then the whole.
struct recording {
    std::string template_source;
    json request;
    std::string completion;
    bool is_partial = false;
    common_chat_msg message;
    bool has_message = false;
};
static recording recorded;
#endif

static void write_line(const json & given, bool is_partial, const common_chat_msg & message) {
    json calls = json::array();
    for (const auto & call : message.tool_calls) {
        calls.push_back({ { "name", call.name }, { "arguments", call.arguments }, { "id", call.id } });
    }
    json line = given;
    line["is_partial"] = is_partial;
    line["content"] = message.content;
    line["reasoning_content"] = message.reasoning_content;
    line["tool_calls"] = calls;
    std::fprintf(recorded_lines, "%s\n", line.dump().c_str());
}

#ifndef COMPLETIONS_ONLY
static void write_recorded() {
    if (recorded.has_message) {
        const json given = {
            { "template", recorded.template_source }, { "request", recorded.request }, { "completion", recorded.completion }
        };
        write_line(given, recorded.is_partial, recorded.message);
    }
    recorded.has_message = false;
}

static json request_of(const common_chat_templates_inputs & inputs) {
    json messages = json::array();
    for (const auto & message : inputs.messages) {
        messages.push_back(message.to_json_oaicompat());
    }
    json kwargs = json::object();
    for (const auto & item : inputs.chat_template_kwargs) {
        kwargs[item.first] = json::parse(item.second);
    }
    kwargs["enable_thinking"] = inputs.enable_thinking;
    const char * const choices[] = { "auto", "required", "none" };
    json request = {
        { "messages", messages },
        { "tool_choice", choices[inputs.tool_choice] },
        { "parallel_tool_calls", inputs.parallel_tool_calls },
        { "reasoning_format", common_reasoning_format_name(inputs.reasoning_format) },
        { "chat_template_kwargs", kwargs },
        { "add_generation_prompt", inputs.add_generation_prompt },
    };
    if (!inputs.tools.empty()) {
        request["tools"] = common_chat_tools_to_json_oaicompat(inputs.tools);
    }
    if (!inputs.json_schema.empty()) {
        request["response_format"] = { { "type", "json_schema" }, { "json_schema", { { "schema", json::parse(inputs.json_schema) } } } };
    }
    switch (inputs.continue_final_message) {
        case COMMON_CHAT_CONTINUATION_AUTO:      request["continue_final_message"] = true; break;
        case COMMON_CHAT_CONTINUATION_REASONING: request["continue_final_message"] = "reasoning_content"; break;
        case COMMON_CHAT_CONTINUATION_CONTENT:   request["continue_final_message"] = "content"; break;
        case COMMON_CHAT_CONTINUATION_NONE:      break;
    }
    return request;
}

static common_chat_params recorded_apply(const common_chat_templates * of, const common_chat_templates_inputs & inputs) {
    write_recorded();
    recorded.template_source = common_chat_templates_source(of);
    recorded.request = request_of(inputs);
    return common_chat_templates_apply(of, inputs);
}

static common_chat_msg recorded_parse(const common_peg_arena & arena, const std::string & text, bool is_partial,
                                      const common_chat_parser_params & params) {
    const common_chat_msg message = common_chat_peg_parse(arena, text, is_partial, params);
    recorded.completion = text;
    recorded.is_partial = is_partial;
    recorded.message = message;
    recorded.has_message = true;
    return message;
}

// A stub of the server's function, for a test that is not run.
static json server_chat_convert_responses_to_chatcmpl(const json & body) { return body; }
#endif

// Stubs of a file that llama.cpp's build writes.
int llama_build_number(void) { return 0; }
const char * llama_commit(void) { return ""; }
const char * llama_compiler(void) { return ""; }
const char * llama_build_target(void) { return ""; }

static common_chat_templates_inputs inputs_of(const json & request) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
    if (request.contains("tools")) {
        inputs.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
    }
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", std::string("auto")));
    inputs.parallel_tool_calls = request.value("parallel_tool_calls", false);
    inputs.reasoning_format = common_reasoning_format_from_name(request.value("reasoning_format", std::string("auto")));
    return inputs;
}

// One line, as llama-server does it at the end of a completion.
static void answer(const json & line) {
    const auto templates = common_chat_templates_init(nullptr, line.at("template").get<std::string>(), "<s>", "</s>");
    const auto params = common_chat_templates_apply(templates.get(), inputs_of(line.at("request")));
    common_chat_parser_params parser_params(params);
    parser_params.parser.load(params.parser);
    const std::string completion = line.at("completion").get<std::string>();
    bool is_partial = false;
    common_chat_msg message;
    try {
        message = common_chat_parse(completion, is_partial, parser_params);
    } catch (const std::exception &) {
        is_partial = true;
        try {
            message = common_chat_parse(completion, is_partial, parser_params);
        } catch (const std::exception & error) {
            // llama-server answers with this error.
            json failed = line;
            failed["fails"] = error.what();
            write_line(failed, is_partial, message);
            return;
        }
    }
    write_line(line, is_partial, message);
}

static void answer_all(const char * path) {
    std::ifstream lines(path);
    std::string line;
    while (std::getline(lines, line)) {
        answer(json::parse(line));
    }
}

#ifndef COMPLETIONS_ONLY
#define common_chat_templates_apply recorded_apply
#define common_chat_peg_parse recorded_parse
#include "formats.cpp"
#endif

int main(int argc, char ** argv) {
    if (argc < 2) {
        return 2;
    }
    recorded_lines = std::fopen(argv[argc - 1], "w");
    if (recorded_lines == nullptr) {
        return 1;
    }
    if (argc > 2) {
        answer_all(argv[1]);
    }
#ifndef COMPLETIONS_ONLY
    else {
        test_template_output_peg_parsers(false);
        write_recorded();
    }
#endif
    return std::fclose(recorded_lines) == 0 ? 0 : 1;
}
