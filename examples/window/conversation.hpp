// The conversation of window.cpp: everything that it asks the library. No function waits for the engine, so that each can be called
// in every frame; the time that they take is added up.
#pragma once
#include "foredraft.hpp"

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

// Text of one origin: "user", "target", a drafter's name, or "note" for text that belongs to no message.
struct Span {
    std::string origin, text;
};

// An answer and its statistics.
struct Turn {
    std::string text, stop_type;
    bool speculates = false;
    double n_tokens = 0, n_accepted = 0, tokens_per_second = 0;
    double n_drafted = 0, accept_rate = 0;  // known at the end
};

class Conversation {
public:
    Conversation(const std::string &model, const std::string &draft, const std::string &settings) {
        std::string config = "{\"model\": " + foredraft::quote(model) + settings;
        if (!draft.empty()) config += ", \"model_draft\": " + foredraft::quote(draft);
        timed([&] { engine.load_async(config + "}"); });
    }

    // Takes the progress of the load, or the new text of the answer.
    void update() {
        if (state_ != "ready") {
            const foredraft::json status = timed([&] { return engine.status(); });
            state_ = status["state"].text();
            progress_ = status["progress"].number();
            if (state_ == "failed") throw std::runtime_error(status["error"].text());
        }
        if (look_) timed([&] { return look_->poll(); });
        if (look_ && look_->finished()) look_.reset(), n_looks++;
        if (!request_) return;
        const foredraft::json updates = timed([&] { return request_->poll(); });
        for (const foredraft::json &update : updates) take(update);
        if (request_->finished()) request_.reset();
    }

    // The engine sleeps from `pause` to `resume`, while the host needs the processor.
    void pause() {
        timed([&] { return engine.pause(); });
    }
    void resume() {
        timed([&] { return engine.resume(); });
    }

    // Begins to answer.
    void ask(const std::string &question) { ask(question, foredraft::quote(question)); }

    // Begins to answer a question about a picture of 3 bytes a pixel.
    void ask(const std::string &question, std::vector<unsigned char> pixels, int width, int height) {
        // Each later request has the message again, with the same address.
        pictures_.push_back(std::move(pixels));
        ask(question, content_of(question, pictures_.back(), width, height));
    }

    // Begins to look at a picture beside the conversation, unless the last look has not ended. Of its answer one token is enough here.
    void look(const std::vector<unsigned char> &pixels, int width, int height) {
        if (!is_ready() || look_) return;
        const std::string content = content_of("What is on this screen?", pixels, width, height);
        look_ = timed([&] { return engine.submit("{\"messages\": [{\"role\": \"user\", \"content\": " + content + "}], \"n_predict\": 1}"); });
    }

    // The answer to what is typed so far is begun while nothing else is decoded.
    void prepare(const std::string &typed) {
        const std::string request = request_of(foredraft::quote(typed));
        if (is_ready() && !is_answering()) timed([&] { return engine.prepare(request + ", \"begin\": true}"); });
    }

    void cancel() {
        if (request_) timed([&] { request_->cancel(); });
    }

    bool is_ready() const { return state_ == "ready"; }
    bool is_answering() const { return request_.has_value(); }
    double progress() const { return progress_; }
    // The time that calls of the library took since this was asked last.
    double take_call_ms() { return std::exchange(call_ms_, 0.0); }

    // The time of a call is added up.
    template <class Call>
    auto timed(Call call) -> decltype(call()) {
        struct Stopwatch {
            double &ms;
            Clock::time_point start = Clock::now();
            ~Stopwatch() { ms += std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }
        } stopwatch{call_ms_};
        return call();
    }

    foredraft::engine engine;  // ends after the requests
    bool speculates = true;
    std::string name = "window";  // of the conversation, for the engine
    std::string messages;         // JSON objects separated by commas
    std::vector<Span> spans;   // all that was said
    Turn turn;                 // the answer that is being written, or the last one
    std::vector<Turn> ended;   // all that have ended
    std::size_t n_looks = 0;   // that have ended

private:
    void ask(const std::string &question, const std::string &content) {
        spans.push_back({"user", (spans.empty() ? "> " : "\n\n> ") + question + "\n"});
        const std::string request = request_of(content);
        request_ = timed([&] { return engine.submit(request + "}"); });
        remember("user", content);
        turn = {};
        turn.speculates = speculates;
        untold_.clear();
    }

    // The content of a message with a picture and a question.
    static std::string content_of(const std::string &question, const std::vector<unsigned char> &pixels, int width, int height) {
        return "[{\"type\": \"image\", \"format\": \"rgb8\", \"width\": " + std::to_string(width) + ", \"height\": " + std::to_string(height)
            + ", \"address\": " + std::to_string(reinterpret_cast<std::uintptr_t>(pixels.data())) + "}, "
            + "{\"type\": \"text\", \"text\": " + foredraft::quote(question) + "}]";
    }

    // A request for the answer to a message with this content, in JSON.
    std::string request_of(const std::string &content) const {
        const std::string message = "{\"role\": \"user\", \"content\": " + content + "}";
        return "{\"messages\": [" + messages + (messages.empty() ? "" : ", ") + message + "], \"conversation\": \"" + name + "\", "
            "\"priority\": 5, \"temperature\": 0, \"n_predict\": 200, \"return_tokens\": true, \"speculative\": " + (speculates ? "true" : "false");
    }

    // An update of a request: more text, or the final response.
    void take(const foredraft::json &update) {
        // A token's text may come later than the token, and no update says where one ends: each token colours as many bytes as it has.
        const foredraft::json sources = update["sources"];
        auto source = sources.begin();
        for (const foredraft::json &token : update["tokens"]) {
            const std::string ids = "{\"tokens\": [" + token.dump() + "]}";
            const foredraft::json text = timed([&] { return engine.detokenize(ids); });
            untold_.push_back({source->text(), text["content"].text()});
            if (source->text() != "target") turn.n_accepted++;
            ++source;
            if (++turn.n_tokens == 1) first_token_ = Clock::now();
        }
        const std::string content = update["content"].text();
        for (std::size_t at = 0; at < content.size();) {
            const bool known = !untold_.empty();
            const std::size_t n = known ? std::max<std::size_t>(untold_.front().text.size(), 1) : content.size() - at;
            show(known ? untold_.front().origin : "target", content.substr(at, n));
            if (known) untold_.pop_front();
            at += n;
        }
        turn.text += content;
        const double seconds = std::chrono::duration<double>(Clock::now() - first_token_).count();
        if (turn.n_tokens > 1 && seconds > 0) turn.tokens_per_second = (turn.n_tokens - 1) / seconds;
        if (!update["stop"].boolean()) return;
        if (update["error"].is_string()) throw std::runtime_error(update["error"].text());
        turn.stop_type = update["stop_type"].text();
        turn.n_tokens = update["tokens_predicted"].number();
        turn.tokens_per_second = update["timings"]["predicted_per_second"].number();
        turn.n_drafted = update["speculative"]["n_drafted"].number();
        turn.accept_rate = update["speculative"]["accept_rate"].number();
        ended.push_back(turn);
        remember("assistant", foredraft::quote(turn.text));
        if (turn.stop_type != "eos") spans.push_back({"note", " [" + turn.stop_type + "]"});
    }

    void show(const std::string &origin, const std::string &text) {
        if (spans.empty() || spans.back().origin != origin) spans.push_back({origin, ""});
        spans.back().text += text;
    }

    void remember(const std::string &role, const std::string &content) {
        messages += (messages.empty() ? "" : ", ");
        messages += "{\"role\": \"" + role + "\", \"content\": " + content + "}";
    }

    std::optional<foredraft::request> request_, look_;
    std::string state_;
    double progress_ = 0, call_ms_ = 0;
    std::deque<std::vector<unsigned char>> pictures_;
    std::deque<Span> untold_;  // tokens whose text has not come yet
    Clock::time_point first_token_;
};
