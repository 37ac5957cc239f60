// foredraft.hpp: the functions of foredraft.h for C++17 and newer. Header-only; link with the library as in C.
//
//     foredraft::engine engine(R"({"model": "model.gguf", "model_draft": "draft.gguf"})");
//     auto request = engine.submit(R"({"messages": [{"role": "user", "content": "Hello"}], "n_predict": 200})");
//     for (const foredraft::json &update : request) std::cout << update["content"].text() << std::flush;
//
// Engines      `engine` owns a handle and releases it; `engine::process_default()` is the engine of the old names. An engine that was
//              moved from is no engine: its functions fail with `invalid_engine`.
// Requests     `request` owns a queued request. Destroying it before its end cancels it.
// Errors       A failure throws `foredraft::error`. Each function has a twin `try_...` that returns `result<T>`: the value,
//              or the error.
// JSON         Requests are JSON texts, or values of a type with a member `dump()` such as nlohmann::json. Answers are
//              `foredraft::json`, which reads their members; `answer.as<nlohmann::json>()` hands one to a JSON library. This
//              header includes none.
// Threads      As in foredraft.h: every function of an engine may be called from any thread. A `request` belongs to one thread
//              at a time; cancel() may be called from any.
#ifndef FOREDRAFT_HPP
#define FOREDRAFT_HPP

// MSVC has its standard in _MSVC_LANG.
#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 201703L
#error "foredraft.hpp needs C++17 or newer (-std=c++17 or /std:c++17); foredraft.h works with older ones"
#else

#include "foredraft.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace foredraft {

/// What an error object of the library says.
class error : public std::runtime_error {
public:
    error(const std::string &message, std::string code, int status)
        : std::runtime_error(message), code_(std::move(code)), status_(status) {}

    /// One of the documented codes: "invalid_request", "not_found", ...
    const std::string &code() const noexcept { return code_; }
    /// The matching number, as of HTTP: 400, 404, ...
    int status() const noexcept { return status_; }

private:
    std::string code_;
    int status_;
};

/// A value, or the error that took its place.
template <class T>
class [[nodiscard]] result {
public:
    result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    result(foredraft::error failure) : state_(std::in_place_index<1>, std::move(failure)) {}

    bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    /// The value; throws the error if there is none.
    T &value() & { return check(), std::get<0>(state_); }
    const T &value() const & { return check(), std::get<0>(state_); }
    T &&value() && { return check(), std::get<0>(std::move(state_)); }
    T &operator*() & { return value(); }
    const T &operator*() const & { return value(); }
    T &&operator*() && { return std::move(*this).value(); }
    T *operator->() { return &value(); }
    const T *operator->() const { return &value(); }

    /// The error; throws std::bad_variant_access if there is a value.
    const foredraft::error &error() const { return std::get<1>(state_); }

private:
    void check() const {
        if (const foredraft::error *failure = std::get_if<1>(&state_)) throw *failure;
    }

    std::variant<T, foredraft::error> state_;
};

/// Success, or an error.
template <>
class [[nodiscard]] result<void> {
public:
    result() = default;
    result(foredraft::error failure) : error_(std::make_shared<foredraft::error>(std::move(failure))) {}

    bool has_value() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return has_value(); }
    void value() const {
        if (error_) throw *error_;
    }
    /// The error; throws std::bad_variant_access if there is none.
    const foredraft::error &error() const { return error_ ? *error_ : throw std::bad_variant_access(); }

private:
    std::shared_ptr<foredraft::error> error_;
};

/// A string as a JSON value, with quotation marks. Text that is not UTF-8 is the library's to refuse.
inline std::string quote(std::string_view text) {
    static const char digits[] = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            (out += '\\') += c;
        } else if (c == '\n') {
            out += "\\n";
        } else if (byte < 0x20) {
            ((out += "\\u00") += digits[byte >> 4]) += digits[byte & 15];
        } else {
            out += c;
        }
    }
    return out += '"';
}

/// Bytes in base64.
inline std::string base64(const void *data, std::size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const auto *bytes = static_cast<const unsigned char *>(data);
    std::string out;
    out.reserve((size + 2) / 3 * 4);
    for (std::size_t at = 0; at < size; at += 3) {
        const std::size_t n = size - at < 3 ? size - at : 3;
        unsigned group = 0;
        for (std::size_t byte = 0; byte < 3; ++byte) group = group << 8 | (byte < n ? bytes[at + byte] : 0u);
        for (std::size_t digit = 0; digit < 4; ++digit) out += digit > n ? '=' : digits[group >> (18 - 6 * digit) & 63];
    }
    return out;
}

/// The part of a message's content with a picture of 3 or 4 bytes a pixel, row by row from the top.
inline std::string picture(const void *pixels, int width, int height, int bytes_per_pixel = 3) {
    const auto size = static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * static_cast<std::size_t>(bytes_per_pixel);
    return "{\"type\": \"image\", \"width\": " + std::to_string(width) + ", \"height\": " + std::to_string(height) + ", \"format\": \""
        + (bytes_per_pixel == 4 ? "rgba8" : "rgb8") + "\", \"base64\": \"" + base64(pixels, size) + "\"}";
}

/// The part of a message's content with a sound: the bytes of a WAV, MP3 or FLAC file.
inline std::string sound(const void *file, std::size_t size) {
    return "{\"type\": \"input_audio\", \"input_audio\": {\"data\": \"" + base64(file, size) + "\"}}";
}

/// The same with samples from -1 to 1, those of all channels and then the next ones.
inline std::string sound(const float *samples, std::size_t size, unsigned rate, unsigned channels = 1) {
    const unsigned bytes = static_cast<unsigned>(4 * size), block = 4 * channels;
    std::string file = "RIFF";
    const auto number = [&file](unsigned value, int n) {
        for (; n > 0; --n, value >>= 8) file += static_cast<char>(value & 255);
    };
    number(36 + bytes, 4), file += "WAVEfmt ", number(16, 4), number(3, 2), number(channels, 2), number(rate, 4), number(rate * block, 4);
    number(block, 2), number(32, 2), file += "data", number(bytes, 4);
    file.append(reinterpret_cast<const char *>(samples), bytes);
    return sound(file.data(), file.size());
}

/// A JSON value of an answer, read where it lies in the answer's text. Copies share that text. A value that is not there
/// (`answer["no such key"]`) is null, empty and 0, so that members of members can be asked for without checks.
class json {
public:
    /// Null.
    json() = default;
    /// Valid JSON, as the library answers; other text reads as some value or as null.
    explicit json(std::string document)
        : document_(std::make_shared<const std::string>(std::move(document))), at_(trim(*document_)) {}

    /// The value's own JSON text.
    std::string dump() const { return at_.empty() ? "null" : std::string(at_); }
    /// The value in a type with a static member `parse`, such as nlohmann::json.
    template <class J>
    J as() const {
        return J::parse(dump());
    }

    bool is_null() const noexcept { return at_.empty() || at_ == "null"; }
    bool is_object() const noexcept { return starts('{'); }
    bool is_array() const noexcept { return starts('['); }
    bool is_string() const noexcept { return starts('"'); }
    bool is_boolean() const noexcept { return at_ == "true" || at_ == "false"; }
    bool is_number() const noexcept { return !is_null() && !is_boolean() && !is_object() && !is_array() && !is_string(); }

    bool boolean() const noexcept { return at_ == "true"; }
    double number() const { return is_number() ? std::strtod(std::string(at_).c_str(), nullptr) : 0.0; }
    std::uint64_t integer() const { return is_number() ? std::strtoull(std::string(at_).c_str(), nullptr, 10) : 0; }
    /// A string's characters, in UTF-8; empty for everything else.
    std::string text() const {
        std::string out;
        if (!is_string()) return out;
        const std::string_view body = at_.substr(1, at_.size() < 2 ? 0 : at_.size() - 2);
        for (std::size_t i = 0; i < body.size(); i++) {
            if (body[i] != '\\' || i + 1 == body.size()) {
                out += body[i];
                continue;
            }
            switch (body[++i]) {
            case 'b': out += '\b'; break;
            case 'f': out += '\f'; break;
            case 'n': out += '\n'; break;
            case 'r': out += '\r'; break;
            case 't': out += '\t'; break;
            case 'u': {
                std::uint32_t point = unit(body, i + 1);
                i += 4;
                if (point >= 0xd800 && point < 0xdc00 && body.substr(i + 1, 2) == "\\u") {
                    point = 0x10000 + ((point - 0xd800) << 10) + (unit(body, i + 3) - 0xdc00);
                    i += 6;
                }
                append(out, point);
                break;
            }
            default: out += body[i];
            }
        }
        return out;
    }

    /// An object's member; null if there is none.
    json operator[](std::string_view key) const {
        if (!is_object()) return {};
        std::string_view rest = trim(at_.substr(1));
        while (!rest.empty() && rest.front() == '"') {
            const std::size_t end = length(rest);
            const json name(document_, rest.substr(0, end));
            rest = trim(rest.substr(end));
            if (rest.empty()) break;
            rest = trim(rest.substr(1));  // the colon
            const std::size_t size = length(rest);
            if (name.text() == key) return json(document_, rest.substr(0, size));
            rest = trim(rest.substr(size));
            if (rest.empty() || rest.front() != ',') break;
            rest = trim(rest.substr(1));
        }
        return {};
    }
    bool contains(std::string_view key) const { return !(*this)[key].at_.empty(); }

    /// Steps through an array's elements.
    class iterator;
    iterator begin() const;
    iterator end() const;
    /// An array's number of elements.
    std::size_t size() const;

private:
    json(std::shared_ptr<const std::string> document, std::string_view at) : document_(std::move(document)), at_(at) {}

    bool starts(char c) const noexcept { return !at_.empty() && at_.front() == c; }

    static std::string_view trim(std::string_view text) {
        const std::size_t first = text.find_first_not_of(" \t\r\n");
        return first == std::string_view::npos ? std::string_view() : text.substr(first);
    }

    /// How many characters the value takes that a text begins with.
    static std::size_t length(std::string_view text) {
        std::size_t depth = 0, i = 0;
        while (i < text.size()) {
            const char c = text[i];
            if (c == '"') {
                for (i++; i < text.size() && text[i] != '"'; i++) i += text[i] == '\\';
                i++;
            } else if (c == '{' || c == '[') {
                depth++, i++;
            } else if (c == '}' || c == ']') {
                if (depth == 0) break;
                depth--, i++;
            } else if (depth > 0) {
                i++;
                continue;
            } else {
                i = std::min(text.find_first_of(",:]} \t\r\n", i), text.size());
            }
            if (depth == 0) break;
        }
        return std::min(i, text.size());
    }

    static std::uint32_t unit(std::string_view text, std::size_t at) {
        return static_cast<std::uint32_t>(std::strtoul(std::string(text.substr(std::min(at, text.size()), 4)).c_str(), nullptr, 16));
    }

    static void append(std::string &out, std::uint32_t point) {
        const auto byte = [&out](std::uint32_t value) { out += static_cast<char>(value); };
        if (point < 0x80) {
            byte(point);
        } else if (point < 0x800) {
            byte(0xc0 | point >> 6), byte(0x80 | (point & 63));
        } else if (point < 0x10000) {
            byte(0xe0 | point >> 12), byte(0x80 | (point >> 6 & 63)), byte(0x80 | (point & 63));
        } else {
            byte(0xf0 | point >> 18), byte(0x80 | (point >> 12 & 63)), byte(0x80 | (point >> 6 & 63)), byte(0x80 | (point & 63));
        }
    }

    std::shared_ptr<const std::string> document_;
    std::string_view at_;
};

class json::iterator {
public:
    using iterator_category = std::input_iterator_tag;
    using value_type = json;
    using difference_type = std::ptrdiff_t;
    using pointer = const json *;
    using reference = const json &;

    iterator() = default;
    reference operator*() const { return current_; }
    pointer operator->() const { return &current_; }
    iterator &operator++() {
        rest_ = trim(rest_.substr(current_.at_.size()));
        rest_ = !rest_.empty() && rest_.front() == ',' ? trim(rest_.substr(1)) : std::string_view();
        read();
        return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator &a, const iterator &b) { return a.rest_.size() == b.rest_.size(); }
    friend bool operator!=(const iterator &a, const iterator &b) { return !(a == b); }

private:
    friend class json;
    iterator(std::shared_ptr<const std::string> document, std::string_view rest) : rest_(rest) {
        current_.document_ = std::move(document);
        read();
    }
    void read() {
        if (!rest_.empty() && rest_.front() == ']') rest_ = {};
        current_.at_ = rest_.substr(0, length(rest_));
    }

    json current_;
    std::string_view rest_;
};

inline json::iterator json::begin() const { return is_array() ? iterator(document_, trim(at_.substr(1))) : iterator(); }
inline json::iterator json::end() const { return {}; }
inline std::size_t json::size() const { return static_cast<std::size_t>(std::distance(begin(), end())); }

/// The JSON text of an argument: a string is one already, other types have a member `dump()`.
class document {
public:
    document(const char *text) : text_(text) {}
    document(std::string text) : text_(std::move(text)) {}
    template <class J, class = decltype(std::string(std::declval<const J &>().dump()))>
    document(const J &value) : text_(value.dump()) {}

    const char *c_str() const noexcept { return text_.c_str(); }

private:
    std::string text_;
};

namespace detail {

/// A returned string as a value, released.
inline json taken(char *text) {
    const std::unique_ptr<char, void (*)(char *)> owner(text, foredraft_string_free);
    return json(std::string(text));
}

/// An answer, or the error that it holds.
inline result<json> checked(json answer) {
    if (!answer["error"].is_string()) return answer;
    return error(answer["error"].text(), answer["code"].text(), static_cast<int>(answer["status"].number()));
}

inline result<json> call(char *(*function)(foredraft_engine *, const char *), foredraft_engine *engine, const document &request) {
    return checked(taken(function(engine, request.c_str())));
}

}  // namespace detail

/// A queued request: a range of its updates. The last one, with `stop` true, is the final response.
class request {
public:
    request(request &&other) noexcept { *this = std::move(other); }
    request &operator=(request &&other) noexcept {
        if (this != &other) {
            abandon();
            engine_ = other.engine_;
            id_ = other.id_;
            finished_ = std::exchange(other.finished_, true);
            pending_ = std::move(other.pending_);
            next_ = std::move(other.next_);
        }
        return *this;
    }
    ~request() { abandon(); }

    std::uint64_t id() const noexcept { return id_; }
    /// Whether the last update was handed out by poll().
    bool finished() const noexcept { return finished_; }

    /// The updates since the last poll. Waits up to `timeout` for one; 0 never waits, as a frame of a game needs it.
    result<json> try_poll(std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) {
        result<json> reply = detail::call(foredraft_poll, engine_, command(", \"timeout_ms\": " + std::to_string(timeout.count())));
        if (!reply) {
            finished_ = reply.error().code() != "would_deadlock";
            return reply;
        }
        finished_ = (*reply)["finished"].boolean();
        return (*reply)["completion_updates"];
    }
    json poll(std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) { return try_poll(timeout).value(); }

    /// Ends the request within one decode; its last update says so. May be called from another thread.
    void cancel() const { detail::call(foredraft_cancel, engine_, command("")).value(); }

    /// The next update, waiting for it; an empty value after the last one.
    result<json> try_next() {
        while (next_ == pending_.end()) {
            if (finished_) return json();
            result<json> updates = try_poll(std::chrono::seconds(1));
            if (!updates) return updates;
            pending_ = *updates;
            next_ = pending_.begin();
        }
        result<json> update = detail::checked(*next_);
        ++next_;
        return update;
    }
    json next() { return try_next().value(); }

    /// Hands each update to `function`, and returns the last one, the final response. A function that returns false cancels.
    template <class Function>
    result<json> try_stream(Function &&function) {
        json last;
        for (;;) {
            result<json> update = try_next();
            if (!update) return update;
            if (update->is_null()) return last;
            last = *update;
            if constexpr (std::is_same_v<std::invoke_result_t<Function &, const json &>, bool>) {
                if (!function(last)) (void) detail::call(foredraft_cancel, engine_, command(""));
            } else {
                function(last);
            }
        }
    }
    template <class Function>
    json stream(Function &&function) {
        return try_stream(std::forward<Function>(function)).value();
    }
    /// The final response.
    json wait() {
        return stream([](const json &) {});
    }

    /// Steps through the updates as they come. A request can be stepped through once.
    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = json;
        using difference_type = std::ptrdiff_t;
        using pointer = const json *;
        using reference = const json &;

        reference operator*() const { return update_; }
        pointer operator->() const { return &update_; }
        iterator &operator++() {
            update_ = from_->next();
            if (update_.is_null()) from_ = nullptr;
            return *this;
        }
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator &a, const iterator &b) { return a.from_ == b.from_; }
        friend bool operator!=(const iterator &a, const iterator &b) { return !(a == b); }

    private:
        friend class request;
        explicit iterator(request *from) : from_(from) {
            if (from_) ++*this;
        }

        request *from_;
        json update_;
    };
    iterator begin() { return iterator(this); }
    iterator end() { return iterator(nullptr); }

private:
    friend class engine;
    request(foredraft_engine *engine, std::uint64_t id) : engine_(engine), id_(id), finished_(false) {}

    std::string command(const std::string &more) const { return "{\"id\": " + std::to_string(id_) + more + "}"; }

    void abandon() noexcept {
        if (finished_) return;
        finished_ = true;
        try {
            (void) detail::call(foredraft_cancel, engine_, command(""));
        } catch (...) {  // no memory: the request ends with its engine
        }
    }

    foredraft_engine *engine_ = nullptr;
    std::uint64_t id_ = 0;
    bool finished_ = true;
    json pending_;
    json::iterator next_;
};

/// An engine: models, slots and the requests that they serve.
class engine {
public:
    /// Without a model.
    engine() : handle_(foredraft_engine_new()), owned_(true) {}
    /// Loads the models of that configuration.
    explicit engine(const document &config) : engine() { load(config); }
    /// The process's default engine, on which the old names work. Destroying this leaves it as it is.
    static engine process_default() { return engine(nullptr, false); }

    engine(engine &&other) noexcept
        : handle_(std::exchange(other.handle_, none())), owned_(std::exchange(other.owned_, false)), on_update_(std::move(other.on_update_)),
          on_logits_(std::move(other.on_logits_)) {}
    /// Releases what this one has, waiting for its threads.
    engine &operator=(engine &&other) noexcept {
        if (this != &other) {
            release();
            handle_ = std::exchange(other.handle_, none());
            owned_ = std::exchange(other.owned_, false);
            on_update_ = std::move(other.on_update_);
            on_logits_ = std::move(other.on_logits_);
        }
        return *this;
    }
    ~engine() { release(); }

    /// For functions of foredraft.h; NULL is the default engine. After a move it is a handle that all of them refuse.
    foredraft_engine *handle() const noexcept { return handle_; }
    /// Whether this is an engine: false after a move.
    explicit operator bool() const noexcept { return handle_ != none(); }

    result<void> try_load(const document &config) {
        const std::int32_t code = foredraft_load(handle_, config.c_str());
        if (code == FOREDRAFT_OK) return {};
        const json now = status();
        const std::string message = now["error"].text(), word = now["code"].text();
        return error(message.empty() ? "foredraft_load returned " + std::to_string(code) : message, word, static_cast<int>(now["status"].number()));
    }
    void load(const document &config) { try_load(config).value(); }
    /// Loads on another thread; status() tells `progress`, and `load_state` 1 when it is done.
    void load_async(const document &config) { foredraft_load_async(handle_, config.c_str()); }
    void unload() { foredraft_unload(handle_); }
    /// Lets the engine's threads sleep, also in the middle of a decode, until as many calls of resume() have followed. Returns at once.
    /// False: the engine was moved from.
    bool pause() noexcept { return foredraft_pause(handle_) == FOREDRAFT_OK; }
    /// Ends a pause. After the last one the threads go on where they were. False: there is none.
    bool resume() noexcept { return foredraft_resume(handle_) == FOREDRAFT_OK; }
    /// What the engine does. After a failed load it has the `error`; that is not thrown.
    json status() const { return detail::taken(foredraft_status(handle_)); }

    /// Generates, waits, and returns the final response.
    result<json> try_complete(const document &request) { return detail::call(foredraft_complete, handle_, request); }
    json complete(const document &request) { return try_complete(request).value(); }

    /// Prepares a request that may come, and returns at once. See `foredraft_prepare`.
    result<json> try_prepare(const document &request) { return detail::call(foredraft_prepare, handle_, request); }
    json prepare(const document &request) { return try_prepare(request).value(); }

    /// Decides questions about a state, waits, and returns the `answers`.
    result<json> try_decide(const document &request) { return detail::call(foredraft_decide, handle_, request); }
    json decide(const document &request) { return try_decide(request).value(); }

    /// Queues a request.
    result<foredraft::request> try_submit(const document &request) {
        const result<json> answer = detail::call(foredraft_submit, handle_, request);
        if (!answer) return answer.error();
        return foredraft::request(handle_, (*answer)["id"].integer());
    }
    foredraft::request submit(const document &request) { return try_submit(request).value(); }

    result<json> try_tokenize(const document &request) { return detail::call(foredraft_tokenize, handle_, request); }
    json tokenize(const document &request) { return try_tokenize(request).value(); }
    result<json> try_detokenize(const document &request) { return detail::call(foredraft_detokenize, handle_, request); }
    json detokenize(const document &request) { return try_detokenize(request).value(); }
    result<json> try_model_info(const document &request = "{}") { return detail::call(foredraft_model_info, handle_, request); }
    json model_info(const document &request = "{}") { return try_model_info(request).value(); }
    result<json> try_apply_template(const document &request) { return detail::call(foredraft_apply_template, handle_, request); }
    json apply_template(const document &request) { return try_apply_template(request).value(); }
    result<json> try_embed(const document &request) { return detail::call(foredraft_embed, handle_, request); }
    json embed(const document &request) { return try_embed(request).value(); }
    result<json> try_rerank(const document &request) { return detail::call(foredraft_rerank, handle_, request); }
    json rerank(const document &request) { return try_rerank(request).value(); }
    result<json> try_session_save(const document &request) { return detail::call(foredraft_session_save, handle_, request); }
    json session_save(const document &request) { return try_session_save(request).value(); }
    result<json> try_session_load(const document &request) { return detail::call(foredraft_session_load, handle_, request); }
    json session_load(const document &request) { return try_session_load(request).value(); }
    result<json> try_session_erase(const document &request) { return detail::call(foredraft_session_erase, handle_, request); }
    json session_erase(const document &request) { return try_session_erase(request).value(); }
    result<json> try_conversation(const document &request) { return detail::call(foredraft_conversation, handle_, request); }
    json conversation(const document &request) { return try_conversation(request).value(); }
    result<json> try_lookup_cache(const document &request) { return detail::call(foredraft_lookup_cache, handle_, request); }
    json lookup_cache(const document &request) { return try_lookup_cache(request).value(); }
    result<json> try_lookup_create(const document &request) { return detail::call(foredraft_lookup_create, handle_, request); }
    json lookup_create(const document &request) { return try_lookup_create(request).value(); }
    result<json> try_lookup_merge(const document &request) { return detail::call(foredraft_lookup_merge, handle_, request); }
    json lookup_merge(const document &request) { return try_lookup_merge(request).value(); }
    result<json> try_lookup_stats(const document &request) { return detail::call(foredraft_lookup_stats, handle_, request); }
    json lookup_stats(const document &request) { return try_lookup_stats(request).value(); }

    /// Has `function` called with the id of each request that has an update, on the engine's thread; an empty one ends that. It must
    /// not throw, and may call only what does not wait: see foredraft_set_update_callback.
    void on_update(std::function<void(std::uint64_t id)> function) {
        // The former function may run until the library has the new one.
        auto next = function ? std::make_unique<std::function<void(std::uint64_t)>>(std::move(function)) : nullptr;
        const auto call = [](std::uint64_t id, void *user) { (*static_cast<std::function<void(std::uint64_t)> *>(user))(id); };
        foredraft_set_update_callback(handle_, next ? +call : nullptr, next.get());
        on_update_ = std::move(next);
    }

    /// A position of a request whose logits a function of `on_logits` may change. It is valid during the call.
    struct position {
        std::uint64_t id;
        float *logits;
        std::int32_t n_vocab;
        const std::int32_t *tokens;
        std::int32_t n_tokens;
    };

    /// Has `function` called before each token is chosen, in requests with "logits_callback": true; an empty one ends that. It must not
    /// throw, and may call only what does not wait: see foredraft_set_logits_callback.
    void on_logits(std::function<void(const position &)> function) {
        auto next = function ? std::make_unique<std::function<void(const position &)>>(std::move(function)) : nullptr;
        const auto call = [](std::uint64_t id, float *logits, std::int32_t n_vocab, const std::int32_t *tokens, std::int32_t n_tokens, void *user) {
            (*static_cast<std::function<void(const position &)> *>(user))({id, logits, n_vocab, tokens, n_tokens});
        };
        foredraft_set_logits_callback(handle_, next ? +call : nullptr, next.get());
        on_logits_ = std::move(next);
    }

private:
    engine(foredraft_engine *handle, bool owned) : handle_(handle), owned_(owned) {}

    /// A handle that is never one of an engine. (NULL would be the default engine.)
    static foredraft_engine *none() noexcept { return reinterpret_cast<foredraft_engine *>(~static_cast<std::uintptr_t>(0)); }

    void release() noexcept {
        if (on_update_) foredraft_set_update_callback(handle_, nullptr, nullptr);
        if (on_logits_) foredraft_set_logits_callback(handle_, nullptr, nullptr);
        on_update_ = nullptr;
        on_logits_ = nullptr;
        if (owned_) foredraft_engine_free(handle_);
        owned_ = false;
    }

    foredraft_engine *handle_;
    bool owned_;
    std::unique_ptr<std::function<void(std::uint64_t)>> on_update_;
    std::unique_ptr<std::function<void(const position &)>> on_logits_;
};

/// What a load can use: `devices`, the `modules` of GPUs and why one is not used, and the `cpu`. The first call starts the backends, which takes
/// as long as a GPU's driver needs.
inline result<json> try_devices() { return detail::checked(detail::taken(foredraft_devices())); }
inline json devices() { return try_devices().value(); }

/// The library's version, and whether its C interface is the one that this header was compiled with.
inline std::string version() { return foredraft_version(); }
inline bool abi_matches() { return foredraft_abi_version() == FOREDRAFT_ABI_VERSION; }

}  // namespace foredraft

#endif  // C++17
#endif  // FOREDRAFT_HPP
