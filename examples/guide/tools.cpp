// Lets a model call two tools, one after the other, and then answer. From the root of the repository, after `make build`:
//   c++ -std=c++17 -Iinclude examples/guide/tools.cpp -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/tools && target/tools
#include "foredraft.hpp"

#include <iostream>
#include <string>

// ANCHOR: tools
const std::string city = R"({"type": "object", "properties": {"city": {"enum": ["Lima", "Oslo"]}}, "required": ["city"]})";
const std::string tools = R"([{"type": "function", "function": {"name": "weather", "parameters": )" + city +
    R"(}}, {"type": "function", "function": {"name": "time", "parameters": )" + city + "}}]";

std::string call(const std::string &name, const foredraft::json &arguments) {
    return (name == "weather" ? "12 degrees and rain in " : "ten o'clock in ") + arguments["city"].text();
}

void answer_with_tools(foredraft::engine &engine) {
    std::string messages = R"({"role": "user", "content": "How is the weather in Oslo, and what time is it there?"})";
    const auto ask = [&](const std::string &choice) {
        return engine.complete(R"({"messages": [)" + messages + R"(], "tools": )" + tools + R"(, "tool_choice": )" + choice + R"(, "n_predict": 80})");
    };
    for (const std::string tool : {"weather", "time"}) {  // a large model chooses by itself: "auto"
        const foredraft::json answer = ask(R"({"type": "function", "function": {"name": ")" + tool + R"("}})");
        messages += ", " + answer["message"].dump();
        for (const foredraft::json &made : answer["message"]["tool_calls"]) {
            const std::string name = made["function"]["name"].text();
            const std::string result = call(name, foredraft::json(made["function"]["arguments"].text()));
            std::cout << "called " << name << ": " << result << '\n';
            messages += R"(, {"role": "tool", "tool_call_id": )" + made["id"].dump() + R"(, "name": ")" + name + R"(", "content": ")" + result + R"("})";
        }
    }
    std::cout << ask(R"("none")")["message"]["content"].text() << '\n';
}
// ANCHOR_END: tools

int main(int argc, char **argv) {
    foredraft::engine engine(std::string(R"({"n_ctx": 2048, "model": ")") + (argc > 1 ? argv[1] : "models/stories-target.gguf") + R"("})");
    answer_with_tools(engine);
}
