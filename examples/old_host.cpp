// A host of the old JSON-RPC server in C++, like old_host.c in C: a window with a text field that polls in every frame.
// From the root of the repository:
//   c++ -std=c++11 -Iinclude examples/old_host.cpp -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/old_host
//   target/old_host ["a prompt" [model.gguf]]
#include "rpcserver.h"
#include "json_mini.h"

#include <chrono>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

// The old server's strings are owned and freed by the host.
static std::string taken(const char *text) {
    std::string copy(text);
    free(const_cast<char *>(text));
    return copy;
}
static std::string quoted(const std::string &text) { return taken(json_quote(text.c_str())); }

// Like get<T>() of a JSON library, these throw if a field is missing or has another type.
static std::string string_of(const char *object, const char *key) {
    const char *value = json_member(object, key);
    if (!value || *value != '"') throw std::runtime_error(std::string(key) + " is no string");
    return taken(json_text(value));
}
static bool bool_of(const char *object, const char *key) {
    const char *value = json_member(object, key);
    if (!value || (*value != 't' && *value != 'f')) throw std::runtime_error(std::string(key) + " is no bool");
    return *value == 't';
}

struct Window {
    std::string text, title;
    bool busy = false;
    int init_success = 0;

    // Called in every frame, in any state of the server.
    void frame() {
        const std::string status = taken(poll_system_status());
        init_success = static_cast<int>(json_number(json_member(status.c_str(), "init_success")));
        title = string_of(status.c_str(), "model_alias");
        const std::string reply = taken(async_completion_poll("{}"));
        if (!bool_of(reply.c_str(), "success")) throw std::runtime_error(reply);
        const char *updates = json_member(reply.c_str(), "completion_updates");
        for (const char *update = json_first(updates); update; update = json_next(update)) {
            if (!bool_of(update, "stop")) text += string_of(update, "content");
        }
        if (bool_of(reply.c_str(), "finished")) busy = false;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }

    void complete(const std::string &request) {
        text.clear();
        busy = bool_of(taken(async_completion_init(request.c_str())).c_str(), "success");
    }
};

int main(int argc, char **argv) try {
    const std::string prompt = quoted(argc > 1 ? argv[1] : "Once upon a time");
    const std::string model = argc > 2 ? argv[2] : "models/stories-target.gguf";
    Window window;
    window.frame();
    init_async(("-m " + model + " -c 512 -ngl 0 --lora-base none --memory_f16 -lv").c_str());
    while (window.init_success == 0) window.frame();
    std::cout << "loaded: " << window.init_success << ", the title is the path: " << (window.title == model) << "\n";
    window.complete("{\"prompt\": " + prompt + ", \"n_predict\": 64, \"temperature\": 0}");
    while (window.busy) window.frame();
    std::cout << quoted(window.text) << "\n";
    window.complete("{\"prompt\": " + prompt + ", \"n_predict\": -1, \"ignore_eos\": true}");
    while (window.text.empty()) window.frame();
    std::cout << "cancel: " << bool_of(taken(async_completion_cancel("{}")).c_str(), "success") << "\n";
    while (window.busy) window.frame();
    deinit();
    window.frame();
    std::cout << "still here\n";
} catch (const std::exception &error) {
    std::cerr << "old_host: " << error.what() << "\n";
    return 1;
}
