// A host of the old server in C++, as its documents describe it: see old_life.rs for what it prints. Arguments: target, draft.
#define FOREDRAFT_RPCSERVER_ALL
#include "rpcserver.h"
#include "json_mini.h"

#include <chrono>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

static std::string taken(const char *text) {
    std::string copy(text);
    free(const_cast<char *>(text)); // the old server's strings are owned by the host
    return copy;
}
static std::string answered(const char *text) {
    const std::string answer = taken(text);
    if (answer.find("\"success\":false") != std::string::npos) throw std::runtime_error(answer);
    return answer;
}
static std::string text_of(const std::string &object, const char *key) { return taken(json_text(json_member(object.c_str(), key))); }
static int number_of(const std::string &object, const char *key) { return static_cast<int>(json_number(json_member(object.c_str(), key))); }
static const char *bool_of(const std::string &object, const char *key) { return *json_member(object.c_str(), key) == 't' ? "True" : "False"; }
static const char *show(bool value) { return value ? "True" : "False"; }
static std::string quoted(const std::string &text) { return taken(json_quote(text.c_str())); }
static bool has(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }
static void frame() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// Polls as the old host did: without an id, until it is finished. Returns the text; `last` is the last update.
static std::string drain(std::string &last) {
    std::string text;
    for (;;) {
        const std::string answer = answered(async_completion_poll(nullptr));
        for (const char *update = json_first(json_member(answer.c_str(), "completion_updates")); update; update = json_next(update)) {
            if (*json_member(update, "stop") == 't') last = update;
            else text += text_of(update, "content");
        }
        if (*json_member(answer.c_str(), "finished") == 't') return text;
        frame();
    }
}

int main(int argc, char **argv) try {
    if (argc < 3) return 2;
    const std::string target = argv[1], draft = argv[2];
    init_async(("{\"model\": " + quoted(target) + ", \"model_draft\": " + quoted(draft) +
                ", \"n_ctx\": 512, \"n_threads\": 1, \"seed\": 42, \"n_keep\": 3, \"log_level\": \"debug\"}").c_str());
    std::string status;
    while (number_of(status = taken(poll_system_status()), "init_success") == 0) frame();
    int warnings = 0;
    for (const char *item = json_first(json_member(status.c_str(), "warnings")); item; item = json_next(item)) warnings++;
    std::cout << "loaded " << number_of(status, "init_success") << " " << show(text_of(status, "model_alias") == target) << " " << warnings << "\n";

    std::string words, last;
    for (int i = 0; i < 200; i++) words += "Tom had a hat. ";
    const std::string submitted = answered(async_completion_init(("{\"prompt\": " + quoted(words) + ", \"n_predict\": 1}").c_str()));
    const std::string stats = json_member(submitted.c_str(), "prompt_stats");
    std::cout << "prompt " << show(number_of(stats, "total_prompt_tokens") > 700) << " " << number_of(stats, "n_past") << " " << bool_of(stats, "truncated") << "\n";
    drain(last);
    const std::string greedy = "\"prompt\": \"Once upon a time\", \"n_predict\": 12, \"temperature\": 0, \"n_keep\": 1000, \"logit_bias\": [[9, false]]";
    answered(async_completion_init(("{" + greedy + "}").c_str()));
    std::string text = drain(last);
    std::string settings = json_member(last.c_str(), "generation_settings");
    std::cout << "streamed " << quoted(text) << " " << quoted(text_of(last, "content")) << "\n";
    std::cout << "settings " << show(number_of(settings, "seed") != 42) << " " << number_of(settings, "n_keep") << " "
              << show(has(settings, "\"logit_bias\":[[9,null]]")) << " " << bool_of(settings, "stream") << "\n";
    const std::string whole = answered(get_completion(("{" + greedy + "}").c_str()));
    settings = json_member(whole.c_str(), "generation_settings");
    std::cout << "waited " << show(text_of(whole, "content") == text) << " " << bool_of(settings, "stream") << " " << number_of(whole, "tokens_predicted") << "\n";
    const std::string begun = text.substr(text.size() - 3);
    const std::string cut = answered(get_completion(("{" + greedy + ", \"stop\": [" + quoted(begun + "!!!") + "]}").c_str()));
    std::cout << "begun " << quoted(text_of(cut, "content")) << "\n";
    const char *endless = "{\"prompt\": \"Once upon a time\", \"n_predict\": -1, \"ignore_eos\": true}";
    for (int i = 0; i < 3; i++) answered(async_completion_init(endless));
    const std::string cancelled = answered(async_completion_cancel(nullptr));
    drain(last);
    std::cout << "cancelled " << bool_of(cancelled, "cancelled") << " " << text_of(last, "stop_type") << "\n";
    const std::string speculated =
        answered(speculative_completion(("{" + greedy + ", \"speculative\": {\"type\": \"draft\", \"adaptive\": false, \"n_max\": 4}}").c_str()));
    const char *of_draft = strstr(speculated.c_str(), "\"n_accepted\":");
    std::cout << "speculated " << show(text_of(speculated, "content") == text) << " " << show(of_draft && atoi(of_draft + 13) > 0) << "\n";
    answered(lookup_cache("{\"action\": \"update\", \"cache\": \"dynamic\", \"tokens\": [300, 301, 302, 300, 301, 302, 300, 301, 302, 300, 301, 302], \"n_new\": 12}"));
    const std::string drafted = answered(lookup_cache("{\"action\": \"draft\", \"tokens\": [300, 301], \"n_draft\": 2}"));
    std::cout << "drafted [";
    const char *separator = "";
    for (const char *item = json_first(json_member(drafted.c_str(), "draft")); item; item = json_next(item), separator = ", ")
        std::cout << separator << json_number(item);
    std::cout << "]\n";
    answered(async_completion_init(endless));
    std::string slot;
    do { // until the request has some text
        frame();
        status = taken(poll_system_status());
        slot = json_first(json_member(status.c_str(), "slots"));
    } while (text_of(slot, "state") != "generating" || number_of(slot, "n_past") <= 30);
    deinit();
    text = drain(last);
    std::cout << "unloaded " << show(!text.empty()) << " " << text_of(last, "stop_type") << " "
              << bool_of(answered(async_completion_poll("{}")), "finished") << "\n";
    return 0;
} catch (const std::exception &error) {
    std::cerr << "old_life: " << error.what() << "\n";
    return 1;
}
