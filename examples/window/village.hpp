// The villagers of window.cpp's --village: one of them is in the conversation, and the others think and feel while there is time.
#pragma once
#include "conversation.hpp"

#include <array>

struct Villager {
    const char *name, *trade;
    std::string mood = "calm";
    std::string messages{};     // as Conversation's, while somebody else is in the conversation
    std::vector<Span> spans{};  // likewise
    std::string words{};        // the thought so far
    bool feels = false;         // what the request is for: the mood, or else a thought
    long next_thought = 0;      // the frame
    std::optional<foredraft::request> request{};
};

class Village {
public:
    static constexpr const char *settings = ", \"n_ctx\": 2048, \"n_parallel\": 3, \"cache_ram_mb\": 256";

    explicit Village(Conversation &conversation) : conversation_(conversation) {
        for (Villager &one : villagers_) {
            const std::string who = std::string("You are ") + one.name + ", " + one.trade + " in a small village. Answer in one short sentence.";
            one.messages = message("system", who);
        }
        show();
    }

    // The villager that is so many places further comes to the front, unless an answer is being written.
    void meet(std::size_t places) {
        if (conversation_.is_answering()) return;
        front().messages = std::exchange(conversation_.messages, "");
        front().spans = std::exchange(conversation_.spans, {});
        front_ = (front_ + places) % villagers_.size();
        show();
    }

    // Something is said to the villager at the front, who stops feeling.
    void interrupt() { front().request.reset(); }

    // Once in a frame: takes what is new, and lets those think who have rested. Never waits.
    void update() {
        if (conversation_.ended.size() > n_answers_) {
            n_answers_ = conversation_.ended.size();
            feel(front());
        }
        frame_++;
        for (Villager &one : villagers_) {
            if (one.request) follow(one);
            else if (&one != &front() && frame_ >= one.next_thought) think(one);
        }
        if (frame_ % 60 == 0) read_meter();
    }

    std::string meter() const {
        char text[160];
        std::snprintf(text, sizeof text, "%zu thoughts, %zu moods, %.0f tokens; %zu slots work, %.0f requests wait; %.1f MB of conversations",
                      n_thoughts, n_moods, n_tokens_, n_working_, n_waiting_, megabytes_);
        return text;
    }

    const std::array<Villager, 12> &villagers() const { return villagers_; }
    const Villager &front() const { return villagers_[front_]; }

    std::size_t n_thoughts = 0, n_moods = 0;

private:
    static constexpr long rest = 30 * 60;  // frames between two thoughts

    static std::string message(const std::string &role, const std::string &content) {
        return "{\"role\": \"" + role + "\", \"content\": " + foredraft::quote(content) + "}";
    }

    Villager &front() { return villagers_[front_]; }
    std::string &messages_of(Villager &one) { return &one == &front() ? conversation_.messages : one.messages; }

    void show() {
        conversation_.name = front().name;
        conversation_.messages = std::exchange(front().messages, "");
        conversation_.spans = std::exchange(front().spans, {});
    }

    void submit(Villager &one, bool feels, const std::string &more) {
        const std::string text = "{\"messages\": [" + messages_of(one) + "], \"conversation\": \"" + one.name + "\", \"priority\": -5" + more + "}";
        one.words.clear();
        one.feels = feels;
        one.request = conversation_.timed([&] { return conversation_.engine.submit(text); });
    }

    void think(Villager &one) {
        one.next_thought = frame_ + rest;
        messages_of(one) += ", " + message("user", "You are alone. What do you think about?");
        submit(one, false, ", \"n_predict\": 40, \"temperature\": 0.3, \"seed\": 7, \"stop\": [\"\\n\"]");
    }

    void feel(Villager &one) {
        const std::string question = foredraft::quote(std::string("How does ") + one.name + " feel?");
        submit(one, true, ", \"questions\": {\"mood\": {\"type\": \"choice\", \"instructions\": " + question +
            ", \"criteria\": {\"happy\": null, \"sad\": null, \"angry\": null, \"curious\": null, \"tired\": null}}}");
    }

    void follow(Villager &one) {
        const foredraft::json updates = conversation_.timed([&] { return one.request->poll(); });
        for (const foredraft::json &update : updates) {
            if (update["error"].is_string()) throw std::runtime_error(update["error"].text());
            one.words += update["content"].text();
            if (!update["stop"].boolean()) continue;
            n_tokens_ += update["tokens_predicted"].number();
            one.request.reset();
            if (one.feels) {
                one.mood = update["answers"]["mood"]["choice"].text();
                n_moods++;
            } else {
                n_thoughts++;
                messages_of(one) += ", " + message("assistant", one.words);
                feel(one);
            }
            break;
        }
    }

    void read_meter() {
        const foredraft::json status = conversation_.timed([&] { return conversation_.engine.status(); });
        n_working_ = 0;
        for (const foredraft::json &slot : status["slots"]) n_working_ += slot["request_id"].number() > 0;
        n_waiting_ = status["queue"].number();
        megabytes_ = status["conversations"]["bytes"].number() / 1e6;
    }

    Conversation &conversation_;
    std::array<Villager, 12> villagers_{{
        {"Mia", "a baker"}, {"Tom", "a boy with a red kite"}, {"Lily", "a girl who loves flowers"}, {"Ben", "a fisherman"},
        {"Anna", "a teacher"}, {"Max", "a farmer with a big dog"}, {"Sue", "an old lady with a cat"}, {"Sam", "a smith"},
        {"Lucy", "a singer"}, {"Tim", "a lazy shepherd"}, {"Ella", "a doctor"}, {"Jack", "a sailor who came home"},
    }};
    std::size_t front_ = 0, n_answers_ = 0, n_working_ = 0;
    long frame_ = 0;
    double n_tokens_ = 0, n_waiting_ = 0, megabytes_ = 0;
};
