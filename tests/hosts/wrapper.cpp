// Tests foredraft.hpp's promises on the shipped models. Usage: wrapper target.gguf draft.gguf. tests/hosts/install.rs runs it.
#include <foredraft.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

using foredraft::json;

#define CHECK(holds) ((holds) ? void() : fail(#holds, __LINE__))

static void fail(const char *what, int line) {
    std::fprintf(stderr, "wrapper.cpp:%d: %s\n", line, what);
    std::exit(1);
}

// Has a static `parse` and a member `dump`, as nlohmann::json.
struct Other {
    std::string document;
    static Other parse(const std::string &text) { return {text}; }
    std::string dump() const { return document; }
};

static void encodes_pictures_and_sounds() {
    CHECK(foredraft::base64("", 0).empty() && foredraft::base64("f", 1) == "Zg==" && foredraft::base64("fo", 2) == "Zm8=");
    CHECK(foredraft::base64("foobar\xff\xfe\xfd", 9) == "Zm9vYmFy//79");
    const unsigned char pixels[8] = {1, 2, 3, 255, 4, 5, 6, 255};
    const json picture(foredraft::picture(pixels, 2, 1, 4)), file(foredraft::sound("fLaC", 4));
    CHECK(picture["format"].text() == "rgba8" && picture["width"].integer() == 2 && picture["base64"].text() == "AQID/wQFBv8=");
    CHECK(file["input_audio"]["data"].text() == "ZkxhQw==");
    const float samples[2] = {0, 1};
    const json tone(foredraft::sound(samples, 2, 16000));
    CHECK(tone["input_audio"]["data"].text() == "UklGRiwAAABXQVZFZm10IBAAAAADAAEAgD4AAAD6AAAEACAAZGF0YQgAAAAAAAAAAACAPw==");
}

static void reads_json() {
    const json value(R"( {"a" : [1, -2.5e1, "x,]}\"\\", {"b": [[], {}]}, true, null], "\u20ac\ud83e\udd80\n": {"c": false}, "": 7} )");
    CHECK(value.is_object() && !value.is_array());
    std::vector<std::string> elements;
    for (const json &element : value["a"]) elements.push_back(element.dump());
    CHECK((elements == std::vector<std::string>{"1", "-2.5e1", R"("x,]}\"\\")", R"({"b": [[], {}]})", "true", "null"}));
    CHECK(value["a"].size() == 6);
    auto element = value["a"].begin();
    CHECK(element->integer() == 1);
    CHECK((++element)->number() == -25.0);
    CHECK((++element)->text() == "x,]}\"\\");
    CHECK((*++element)["b"].size() == 2);
    CHECK((++element)->boolean());
    CHECK((++element)->is_null());
    CHECK(value["\u20ac\U0001f980\n"]["c"].is_boolean());
    CHECK(value[""].integer() == 7);
    CHECK(!value.contains("b") && value["b"]["c"]["d"].is_null() && value["b"].text().empty() && value["b"].size() == 0);
    CHECK(value.as<Other>().document == value.dump());
    CHECK(json(foredraft::quote("a\"b\\c\n\x01\u20ac")).text() == "a\"b\\c\n\x01\u20ac");
    // Text that is no JSON is read without end or fault.
    for (const char *broken : {"", "[", "{", "[,", "{\"a\"", "{\"a\":", "\"\\", "[1 2]", "]", "{\"a\" 1}", "\"\\ud83e\\u"})
        for (const json &part : json(broken)) (void) part["a"].text();
}

// An engine that was moved from is not the default engine, and no function reaches that through it.
static void a_moved_engine_is_none(const std::string &config) {
    foredraft::engine from;
    foredraft::engine to(std::move(from));
    CHECK(to && !from && from.handle() != nullptr);
    CHECK(from.try_load(config).error().code() == "invalid_engine");
    CHECK(from.try_complete(R"({"prompt": "Once"})").error().code() == "invalid_engine");
    CHECK(from.status()["code"].text() == "invalid_engine");
    from.unload();
    CHECK(!from.pause() && !from.resume());
    CHECK(to.pause() && to.status()["paused"].boolean() && to.resume() && !to.resume());
    CHECK(foredraft::engine::process_default().status()["state"].text() == "uninitialized");

    // The engine that is assigned to is released; the default engine is not.
    foredraft_engine *const former = to.handle();
    to = foredraft::engine::process_default();
    CHECK(to.handle() == nullptr);
    CHECK(foredraft::detail::taken(foredraft_status(former))["code"].text() == "invalid_engine");
    from = std::move(to);
    CHECK(from.handle() == nullptr && !to);
    foredraft::engine &self = from;
    from = std::move(self);
    CHECK(from.status()["state"].text() == "uninitialized");
}

static std::string plain(foredraft::engine &engine, const std::string &prompt) {
    return engine.complete("{\"prompt\": " + foredraft::quote(prompt) + ", \"n_predict\": 48, \"temperature\": 0, \"speculative\": false}")["content"].text();
}

static void reports_errors(foredraft::engine &engine) {
    const auto answer = engine.try_complete(R"({"prompt": "Once", "n_predict": "many"})");
    CHECK(!answer && answer.error().code() == "invalid_request" && answer.error().status() == 400);
    try {
        engine.complete(R"({"prompt": "Once", "n_predict": "many"})");
        CHECK(false);
    } catch (const foredraft::error &error) {
        CHECK(std::string(error.what()).find("n_predict") != std::string::npos);
    }
    foredraft::engine empty;
    CHECK(empty.try_submit(R"({"prompt": "Once"})").error().code() == "not_initialized");
    const auto loaded = empty.try_load(R"({"model": "missing.gguf"})");
    CHECK(!loaded && loaded.error().code() == "model_error" && loaded.error().status() == 500);
    CHECK(std::string(loaded.error().what()).find("missing.gguf") != std::string::npos);
    CHECK(empty.status()["state"].text() == "failed");
}

static void streams(foredraft::engine &engine) {
    const std::string prompt = "Once upon a time";
    const std::string expected = plain(engine, prompt);
    const Other request{"{\"prompt\": " + foredraft::quote(prompt) + ", \"n_predict\": 48, \"temperature\": 0}"};
    CHECK(!expected.empty());

    std::string by_range;
    bool stopped = false;
    auto submitted = engine.submit(request);
    for (const json &update : submitted) {
        by_range += update["content"].text();
        stopped = update["stop"].boolean();
    }
    CHECK(by_range == expected && stopped && submitted.finished());

    std::string by_callback;
    const json last = engine.submit(request).stream([&](const json &update) { by_callback += update["content"].text(); });
    CHECK(by_callback == expected && last["stop"].boolean() && last["tokens_predicted"].integer() == 48);

    // Once a frame, never waiting.
    std::string by_frame;
    foredraft::request frames = engine.submit(request);
    while (!frames.finished()) {
        for (const json &update : frames.poll()) by_frame += update["content"].text();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(by_frame == expected);
    CHECK(frames.next().is_null());
}

static void cancels(foredraft::engine &engine) {
    const char *const endless = R"({"prompt": "Once", "n_predict": -1, "ignore_eos": true, "temperature": 0})";
    int updates = 0;
    const auto ended = engine.submit(endless).try_stream([&](const json &) { return ++updates < 3; });
    CHECK(updates >= 3);
    CHECK(ended ? (*ended)["stop_type"].text() == "cancelled" : ended.error().code() == "cancelled");

    {  // Left early, and moved before.
        foredraft::request left = engine.submit(endless);
        foredraft::request moved = std::move(left);
        CHECK(left.finished() && !moved.finished());
        CHECK(!moved.next().is_null());
    }
    // One slot: the next request only gets it because the ones before have ended.
    CHECK(!plain(engine, "Once").empty());
}

static void tells_of_updates(foredraft::engine &engine) {
    std::atomic<unsigned> calls{0};
    std::atomic<std::uint64_t> last{0};
    engine.on_update([&](std::uint64_t id) { last = id, calls++; });
    auto request = engine.submit(R"({"prompt": "Once", "n_predict": 8})");
    const std::uint64_t id = request.id();
    request.wait();
    engine.on_update({});
    CHECK(calls > 0 && last == id);
    const unsigned before = calls;
    engine.complete(R"({"prompt": "Once", "n_predict": 8})");
    CHECK(calls == before);
}

static void changes_logits(foredraft::engine &engine) {
    std::atomic<std::int32_t> calls{0};
    const std::string request = R"({"prompt": "Once", "n_predict": 8, "ignore_eos": true, "logits_callback": true})";
    engine.on_logits([&](const foredraft::engine::position &at) {
        calls++;
        for (std::int32_t token = 0; token < at.n_vocab; token++) at.logits[token] = token == at.tokens[0] + 70 ? 1.0f : -1.0f / 0.0f;
    });
    CHECK(!engine.complete(request)["content"].text().empty() && calls == 8);
    engine.on_logits({});
    CHECK(!engine.try_complete(request));
}

int main(int, char **argv) {
    CHECK(foredraft::abi_matches() && !foredraft::version().empty());
    encodes_pictures_and_sounds();
    reads_json();
    const std::string config = "{\"model\": " + foredraft::quote(argv[1]) + ", \"model_draft\": " + foredraft::quote(argv[2]) +
                               ", \"n_threads\": 1, \"log_level\": \"none\"}";
    foredraft::engine first(config);
    foredraft::engine engine(std::move(first));
    a_moved_engine_is_none(config);
    CHECK(engine.tokenize(R"({"content": "Once upon a time"})")["ids"].size() > 0);
    reports_errors(engine);
    streams(engine);
    cancels(engine);
    tells_of_updates(engine);
    changes_logits(engine);
    CHECK(foredraft::engine::process_default().status()["state"].text() == "uninitialized");
    std::puts("ok");
}
