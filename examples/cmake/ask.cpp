// Streams the answer to a question. Usage: ask target.gguf "a question" [draft.gguf]
#include <foredraft.hpp>

#include <cstdio>
#include <iostream>

using foredraft::quote;

int main(int argc, char **argv) try {
    if (argc < 3) {
        std::fprintf(stderr, "usage: %s target.gguf question [draft.gguf]\n", argv[0]);
        return 2;
    }
    foredraft::engine engine("{\"model\": " + quote(argv[1]) + ", \"model_draft\": " + quote(argc > 3 ? argv[3] : "") + "}");

    const std::string message = "{\"role\": \"user\", \"content\": " + quote(argv[2]) + "}";
    auto request = engine.submit("{\"messages\": [" + message + "], \"temperature\": 0, \"n_predict\": 64}");
    for (const foredraft::json &update : request) {
        std::cout << update["content"].text() << std::flush;
        if (update["stop"].boolean())
            std::fprintf(stderr, "\n[%.0f tokens, %s]\n", update["tokens_predicted"].number(), update["stop_type"].text().c_str());
    }
    std::cout << std::endl;
} catch (const foredraft::error &error) {
    std::fprintf(stderr, "ask: %s (%s)\n", error.what(), error.code().c_str());
    return 1;
}
