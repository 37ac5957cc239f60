// A chat that prints each answer while it is being generated, in C++17. From the root of the repository:
//   c++ -std=c++17 -Iinclude examples/chat.cpp -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/chat
//   target/chat ["a message" [target.gguf [draft.gguf]]]
// Without a message, it reads messages from stdin, one per line, and keeps the conversation.
#include "foredraft.h"
#include "json_mini.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

// A string returned by the library. The destructor releases it.
struct Release {
    void operator()(char *text) const { foredraft_string_free(text); }
    void operator()(foredraft_engine *engine) const { foredraft_engine_free(engine); }
};
using Owned = std::unique_ptr<char, Release>;

// Converts a string from json_mini.h to std::string.
static std::string taken(char *text) {
    std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
    return owner ? owner.get() : throw std::bad_alloc();
}
static std::string quoted(const std::string &text) { return taken(json_quote(text.c_str())); }

// Throws the error in an answer of the library.
static void check(const char *answer) {
    const char *error = json_member(answer, "error");
    if (error && *error == '"') throw std::runtime_error(taken(json_text(error)));
}

// A loaded engine. The destructor unloads it.
struct Engine {
    Engine(const std::string &model, const std::string &draft) {
        const std::string config = "{\"model\": " + quoted(model) + ", \"model_draft\": " + quoted(draft) + "}";
        if (foredraft_load(handle.get(), config.c_str()) == FOREDRAFT_OK) return;
        check(Owned(foredraft_status(handle.get())).get());
        throw std::runtime_error("the load failed");
    }

    // Sends a message, streams the answer to stdout, and adds both to the conversation.
    void turn(const std::string &message) {
        say("user", message);
        const std::string request = "{\"messages\": [" + conversation + "], \"temperature\": 0, \"n_predict\": 200}";
        const Owned begun(foredraft_submit(handle.get(), request.c_str()));
        check(begun.get());
        const auto id = static_cast<long long>(json_number(json_member(begun.get(), "id")));
        const std::string poll = "{\"id\": " + std::to_string(id) + ", \"timeout_ms\": 1000}";
        std::string answer;
        for (bool finished = false; !finished;) {
            const Owned reply(foredraft_poll(handle.get(), poll.c_str()));
            check(reply.get());
            const char *update = json_first(json_member(reply.get(), "completion_updates"));
            for (; update; update = json_next(update)) {
                const std::string content = taken(json_text(json_member(update, "content")));
                std::cout << content << std::flush;
                answer += content;
                if (!json_true(json_member(update, "stop"))) continue;
                check(update);  // the last update is the final response
                std::cout << std::endl;
                std::fprintf(stderr, "[%.0f tokens, %.1f tokens/s, accept_rate %.2f]\n",
                             json_number(json_member(update, "tokens_predicted")),
                             json_number(json_member(json_member(update, "timings"), "predicted_per_second")),
                             json_number(json_member(json_member(update, "speculative"), "accept_rate")));
            }
            finished = json_true(json_member(reply.get(), "finished"));
        }
        say("assistant", answer);
    }

private:
    std::unique_ptr<foredraft_engine, Release> handle{foredraft_engine_new()};
    std::string conversation;  // JSON objects separated by commas

    void say(const std::string &role, const std::string &content) {
        conversation += (conversation.empty() ? "" : ", ");
        conversation += "{\"role\": " + quoted(role) + ", \"content\": " + quoted(content) + "}";
    }
};

int main(int argc, char **argv) try {
    // The default draft only fits the default target.
    Engine engine(argc > 2 ? argv[2] : "models/stories-target.gguf",
                  argc > 3 ? argv[3] : argc > 2 ? "" : "models/stories-draft.gguf");
    std::string line;
    if (argc > 1) {
        engine.turn(argv[1]);
    } else {
        while (std::cerr << "> " && std::getline(std::cin, line)) engine.turn(line);
    }
} catch (const std::exception &error) {
    std::cerr << "chat: " << error.what() << "\n";
    return 1;
}
