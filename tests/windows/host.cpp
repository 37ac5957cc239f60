// Tests foredraft.dll as a host on Windows, on the shipped models: life cycle, paths in UTF-8, streaming, speculation, cancel inside a
// decode, sessions, n-gram files, several engines, update notifications, placement of threads, output, unloading.
// scripts/windows.sh runs it.
//
//   host TARGET DRAFT FOLDER     all checks; a line "ok NAME" for each. FOLDER is written to.
//   host exit TARGET DRAFT       leaves main while an engine works
#include <foredraft.hpp>

#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#include <windows.h>

#include <io.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using foredraft::json;
using foredraft::quote;

#define CHECK(holds) ((holds) ? void() : fail(#holds, __LINE__))

[[noreturn]] static void fail(const char *what, int line) {
    std::printf("host.cpp:%d: %s\n", line, what);
    std::fflush(stdout);
    std::_Exit(1);
}

static std::string target, draft, folder;

// The answer of a C function.
static json answer(char *text) {
    CHECK(text != nullptr);
    json value{std::string(text)};
    foredraft_string_free(text);
    return value;
}

// As answer, which must succeed.
static json good(char *text) {
    json value = answer(text);
    if (value["success"].is_boolean() && !value["success"].boolean()) {
        std::printf("%s\n", value.dump().c_str());
        CHECK(!"success");
    }
    return value;
}

static std::string config(const std::string &more = "", const std::string &model = target) {
    return "{\"model\": " + quote(model) + ", \"model_draft\": " + quote(draft) + ", \"n_threads\": 2, \"log_level\": \"error\"" + more + "}";
}

static const char STORY[] = "{\"prompt\": \"Once upon a time there was a little\", \"temperature\": 0, \"n_predict\": 48, \"return_tokens\": true";

// An engine with the shipped models.
struct loaded {
    foredraft_engine *engine = foredraft_engine_new();
    explicit loaded(const std::string &command = config()) {
        if (foredraft_load(engine, command.c_str()) != FOREDRAFT_OK) {
            std::printf("%s\n", answer(foredraft_status(engine)).dump().c_str());
            CHECK(!"loaded");
        }
    }
    loaded(const loaded &) = delete;
    ~loaded() { foredraft_engine_free(engine); }
};

// Windows' file functions take UTF-16.
static std::wstring wide(const std::string &text) {
    const int length = MultiByteToWideChar(CP_UTF8, 0, text.c_str(), -1, nullptr, 0);
    std::wstring result(static_cast<size_t>(length), L'\0');
    MultiByteToWideChar(CP_UTF8, 0, text.c_str(), -1, &result[0], length);
    result.pop_back();
    return result;
}

static bool exists(const std::string &path) { return GetFileAttributesW(wide(path).c_str()) != INVALID_FILE_ATTRIBUTES; }

static std::vector<char> content(const std::string &path) {
    const HANDLE file = CreateFileW(wide(path).c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr, OPEN_EXISTING, 0, nullptr);
    CHECK(file != INVALID_HANDLE_VALUE);
    std::vector<char> bytes(GetFileSize(file, nullptr));
    DWORD n = 0;
    CHECK(ReadFile(file, bytes.data(), static_cast<DWORD>(bytes.size()), &n, nullptr) && n == bytes.size());
    CloseHandle(file);
    return bytes;
}

static void life_cycle() {
    foredraft_engine *engine = foredraft_engine_new();
    CHECK(answer(foredraft_status(engine))["state"].text() == "uninitialized");
    CHECK(foredraft_load(engine, "{\"model\": \"no such file.gguf\"}") != FOREDRAFT_OK);
    CHECK(answer(foredraft_status(engine))["error"].text().find("no such file.gguf") != std::string::npos);
    for (int round = 0; round < 3; ++round) {
        foredraft_load_async(engine, config().c_str());
        std::string state;
        while ((state = answer(foredraft_status(engine))["state"].text()) == "loading") Sleep(1);
        CHECK(state == "ready");
        good(foredraft_complete(engine, (std::string(STORY) + "}").c_str()));
        foredraft_unload(engine);
        CHECK(answer(foredraft_status(engine))["state"].text() == "uninitialized");
    }
    foredraft_engine_free(engine);
    CHECK(answer(foredraft_status(engine))["code"].text() == "invalid_engine");
}

static void own_kernels() {
    const loaded host;
    const json cpu = answer(foredraft_status(host.engine))["cpu"];
    CHECK(cpu["level"].text() != "generic");
    for (const char *kernel : {"matmul", "attention", "barrier"}) CHECK(cpu["kernels"][kernel].text() == "foredraft");
    // The other levels of this processor give the same completion.
    const std::string story = std::string(STORY) + "}", tokens = good(foredraft_complete(host.engine, story.c_str()))["tokens"].dump();
    foredraft_unload(host.engine);
    for (const json &level : cpu["levels"]) {
        CHECK(foredraft_load(host.engine, config(", \"cpu_level\": " + quote(level.text())).c_str()) == FOREDRAFT_OK);
        CHECK(answer(foredraft_status(host.engine))["cpu"]["level"].text() == level.text());
        CHECK(good(foredraft_complete(host.engine, story.c_str()))["tokens"].dump() == tokens);
        foredraft_unload(host.engine);
    }
}

static void utf8_paths() {
    const std::string name = folder + "/mod\u00e8le \u65e5\u672c.gguf";
    CHECK(CopyFileW(wide(target).c_str(), wide(name).c_str(), FALSE));
    for (const char *mapped : {"true", "false"}) {
        const loaded host(config(std::string(", \"use_mmap\": ") + mapped, name));
        CHECK(answer(foredraft_status(host.engine))["model"].text() == name);
        good(foredraft_complete(host.engine, (std::string(STORY) + "}").c_str()));
    }
    // Also by Windows' own names, and nothing keeps the file open after the unload.
    std::string other = name;
    for (char &c : other) c = c == '/' ? '\\' : c;
    { const loaded host(config("", other)); }
    CHECK(DeleteFileW(wide(name).c_str()));
}

static void streams_and_speculates() {
    const loaded host;
    const std::string story = STORY;
    const json plain = good(foredraft_complete(host.engine, (story + ", \"speculative\": false}").c_str()));
    for (const char *type : {"\"draft\"", "\"suffix\"", "\"ngram-cache\"", "[\"draft\", \"suffix\"]", "\"auto\""}) {
        const json other = good(foredraft_complete(host.engine, (story + ", \"speculative\": {\"type\": " + type + ", \"compare\": true}}").c_str()));
        CHECK(other["tokens"].dump() == plain["tokens"].dump());
        CHECK(other["speculative"]["first_difference"].is_null());
    }
    const long long id = good(foredraft_submit(host.engine, (story + "}").c_str()))["id"].integer();
    std::string text;
    int n_updates = 0;
    for (bool finished = false; !finished;) {
        const json poll = good(foredraft_poll(host.engine, ("{\"id\": " + std::to_string(id) + ", \"timeout_ms\": 1000}").c_str()));
        for (const json &update : poll["completion_updates"]) text += update["content"].text(), ++n_updates;
        finished = poll["finished"].boolean();
    }
    CHECK(n_updates > 1 && text == plain["content"].text());
}

// A prompt of one large batch takes seconds on the slow side; the cancel must not wait for its end.
static void cancels_inside_a_decode() {
    const loaded host(config(", \"n_ctx\": 8192, \"n_batch\": 8192, \"n_ubatch\": 8192"));
    std::string prompt;
    for (int i = 0; i < 1500; ++i) prompt += "the dog and the cat ";
    const json begun = good(foredraft_submit(host.engine, ("{\"prompt\": " + quote(prompt) + ", \"n_predict\": 1, \"cache_prompt\": false}").c_str()));
    const std::string id = "{\"id\": " + std::to_string(begun["id"].integer()) + ", \"timeout_ms\": 10000}";
    // Until the slot works on it.
    while (answer(foredraft_status(host.engine))["slots"].dump().find("\"request_id\":null") != std::string::npos) Sleep(1);
    CHECK(good(foredraft_cancel(host.engine, id.c_str()))["cancelled"].boolean());
    json last;
    for (bool finished = false; !finished;) {
        const json poll = good(foredraft_poll(host.engine, id.c_str()));
        for (const json &update : poll["completion_updates"]) last = update;
        finished = poll["finished"].boolean();
    }
    CHECK(last["stop_type"].text() == "cancelled" && last["tokens_predicted"].integer() == 0);
    good(foredraft_complete(host.engine, (std::string(STORY) + "}").c_str()));
}

static void sessions() {
    const std::string file = folder + "/s\u00e9ance.bin", request = STORY;
    std::string tokens;
    {
        const loaded host;
        tokens = good(foredraft_complete(host.engine, (request + "}").c_str()))["tokens"].dump();
        // Replaces a file that another program has open for reading.
        for (int round = 0; round < 2; ++round) {
            good(foredraft_session_save(host.engine, ("{\"id_slot\": 0, \"filename\": " + quote(file) + "}").c_str()));
        }
    }
    const loaded host;
    CHECK(good(foredraft_session_load(host.engine, ("{\"id_slot\": 0, \"filename\": " + quote(file) + "}").c_str()))["n_restored"].integer() > 40);
    const json again = good(foredraft_complete(host.engine, (request + "}").c_str()));
    CHECK(again["tokens"].dump() == tokens && again["timings"]["cache_n"].integer() > 0);
    // A file that cannot be replaced stays, and no part of another one is left.
    const std::vector<char> before = content(file);
    SetFileAttributesW(wide(file).c_str(), FILE_ATTRIBUTE_READONLY);
    const json refused = answer(foredraft_session_save(host.engine, ("{\"id_slot\": 0, \"filename\": " + quote(file) + "}").c_str()));
    SetFileAttributesW(wide(file).c_str(), FILE_ATTRIBUTE_NORMAL);
    CHECK(!refused["success"].boolean() || content(file).size() > 0);
    if (!refused["success"].boolean()) CHECK(content(file) == before);
    WIN32_FIND_DATAW found;
    CHECK(FindFirstFileW(wide(folder + "/*.part").c_str(), &found) == INVALID_HANDLE_VALUE);
}

static void ngram_files() {
    const loaded host;
    const std::string one = folder + "/\u03b1.bin", two = folder + "/b.bin", both = folder + "/both.bin";
    const auto create = [&](const std::string &text, const std::string &to) {
        good(foredraft_lookup_create(host.engine, ("{\"text\": " + quote(text) + ", \"output\": " + quote(to) + "}").c_str()));
    };
    create("the dog and the cat went to the park and the dog was happy", one);
    create("a bird sang a song to a bird in a tree", two);
    good(foredraft_lookup_merge(host.engine, ("{\"inputs\": [" + quote(one) + ", " + quote(two) + "], \"output\": " + quote(both) + "}").c_str()));
    CHECK(content(both).size() > content(one).size() && content(both).size() <= content(one).size() + content(two).size());
    good(foredraft_lookup_cache(host.engine, ("{\"action\": \"load\", \"cache\": \"static\", \"filename\": " + quote(both) + "}").c_str()));
    good(foredraft_lookup_cache(host.engine, ("{\"action\": \"save\", \"cache\": \"static\", \"filename\": " + quote(two) + "}").c_str()));
    CHECK(content(two) == content(both));
    const json missing = answer(foredraft_lookup_merge(host.engine, ("{\"inputs\": [" + quote(folder + "/none\u00e9.bin") + "], \"output\": " + quote(both) + "}").c_str()));
    CHECK(missing["error"].text().find("none\u00e9.bin") != std::string::npos);
}

static void several_engines() {
    const loaded one, other(config(", \"n_parallel\": 2"));
    std::vector<std::thread> threads;
    std::vector<std::string> texts(6);
    for (size_t i = 0; i < texts.size(); ++i) {
        threads.emplace_back([&, i] {
            texts[i] = good(foredraft_complete((i % 2 != 0 ? one : other).engine, (std::string(STORY) + "}").c_str()))["content"].text();
        });
    }
    for (std::thread &thread : threads) thread.join();
    for (const std::string &text : texts) CHECK(!text.empty() && text == texts[0]);
}

// Waits for the end of a request, sleeping in `wait` before each poll. Returns how often there was an update.
static int follow(foredraft_engine *engine, const std::function<void()> &wait) {
    const std::string id = "{\"id\": " + std::to_string(good(foredraft_submit(engine, (std::string(STORY) + "}").c_str()))["id"].integer()) + "}";
    int n_updates = 0;
    for (bool finished = false; !finished;) {
        wait();
        const json poll = good(foredraft_poll(engine, id.c_str()));
        n_updates += poll["completion_updates"].size() > 0;
        finished = poll["finished"].boolean();
    }
    return n_updates;
}

static void notifies_by_event() {
    const HANDLE event = CreateEventW(nullptr, FALSE, FALSE, nullptr);
    {
        const loaded host(config(", \"notify_fd\": " + std::to_string(static_cast<long>(reinterpret_cast<intptr_t>(event)))));
        const auto wait = [&] { CHECK(WaitForSingleObject(event, 20000) == WAIT_OBJECT_0); };
        CHECK(follow(host.engine, wait) > 1);
        CHECK(follow(host.engine, wait) > 1);
    }
    // The library has closed its copy, and the host's is still open.
    CHECK(SetEvent(event) && CloseHandle(event));
    foredraft_engine *engine = foredraft_engine_new();
    for (const long number : {static_cast<long>(reinterpret_cast<intptr_t>(event)), 2000000000L}) {
        CHECK(foredraft_load(engine, config(", \"notify_fd\": " + std::to_string(number)).c_str()) != FOREDRAFT_OK);
        const std::string why = answer(foredraft_status(engine))["error"].text();
        CHECK(why.find("notify_fd: expected the handle of an event, or a socket") != std::string::npos);
    }
    const HANDLE mutex = CreateMutexW(nullptr, FALSE, nullptr);
    CHECK(foredraft_load(engine, config(", \"notify_fd\": " + std::to_string(static_cast<long>(reinterpret_cast<intptr_t>(mutex)))).c_str()) != FOREDRAFT_OK);
    CloseHandle(mutex);
    foredraft_engine_free(engine);
}

static void notifies_by_socket() {
    WSADATA data;
    CHECK(WSAStartup(MAKEWORD(2, 2), &data) == 0);
    const SOCKET listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int size = sizeof address;
    CHECK(bind(listener, reinterpret_cast<sockaddr *>(&address), size) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, reinterpret_cast<sockaddr *>(&address), &size) == 0);
    const SOCKET writer = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(writer, reinterpret_cast<sockaddr *>(&address), size) == 0);
    const SOCKET reader = accept(listener, nullptr, nullptr);
    closesocket(listener);
    const loaded host(config(", \"notify_fd\": " + std::to_string(static_cast<long>(writer))));
    CHECK(follow(host.engine, [&] {
        char bytes[4096];
        CHECK(recv(reader, bytes, sizeof bytes, 0) > 0);
    }) > 1);
    closesocket(writer); // the library has its own copy
    const std::string id = std::to_string(good(foredraft_submit(host.engine, "{\"prompt\": \"a\", \"n_predict\": 1000}"))["id"].integer());
    closesocket(reader); // the host is gone
    for (int i = 0; i < 2000 && answer(foredraft_status(host.engine))["state"].text() == "ready"; ++i) Sleep(10);
    CHECK(answer(foredraft_status(host.engine))["state"].text() == "uninitialized");
}

static std::atomic<int> n_called{0};

static void notifies_by_callback() {
    const loaded host;
    foredraft_set_update_callback(host.engine, [](uint64_t, void *) { ++n_called; }, nullptr);
    CHECK(follow(host.engine, [] { Sleep(1); }) > 0);
    foredraft_set_update_callback(host.engine, nullptr, nullptr);
    CHECK(n_called > 1);
}

static void places_threads() {
    DWORD_PTR process = 0, system = 0;
    CHECK(GetProcessAffinityMask(GetCurrentProcess(), &process, &system));
    int first = 0;
    while ((process >> first & 1) == 0) ++first;
    const std::string range = std::to_string(first) + "-" + std::to_string(first);
    for (const char *prio : {"-1", "0", "1", "2", "3"}) {
        const loaded host(config(std::string(", \"prio\": ") + prio + ", \"cpu_range\": " + quote(range)));
        good(foredraft_complete(host.engine, (std::string(STORY) + "}").c_str()));
    }
    if ((process & (DWORD_PTR(1) << 63)) == 0) {
        foredraft_engine *engine = foredraft_engine_new();
        CHECK(foredraft_load(engine, config(", \"cpu_range\": \"63-63\"").c_str()) != FOREDRAFT_OK);
        CHECK(answer(foredraft_status(engine))["error"].text().find("this process cannot use any of the CPUs 63") != std::string::npos);
        foredraft_engine_free(engine);
    }
}

static void says_what_is_missing() {
    foredraft_engine *engine = foredraft_engine_new();
    CHECK(foredraft_load(engine, config(", \"isolate\": true").c_str()) != FOREDRAFT_OK);
    CHECK(answer(foredraft_status(engine))["error"].text().find("isolate: not available on this platform") != std::string::npos);
    const std::string memory = "{\"model\": {\"address\": 4096, \"length\": 100}}";
    CHECK(foredraft_load(engine, memory.c_str()) != FOREDRAFT_OK);
    CHECK(answer(foredraft_status(engine))["error"].text().find("not available on this platform") != std::string::npos);
    foredraft_engine_free(engine);
}

// Nothing but the log goes to stdout or stderr, and with a callback nothing does.
static void is_silent() {
    std::fflush(stdout);
    const std::string name = folder + "/output.txt";
    SECURITY_ATTRIBUTES inherited = {sizeof inherited, nullptr, TRUE};
    const HANDLE file = CreateFileW(wide(name).c_str(), GENERIC_WRITE, FILE_SHARE_READ, &inherited, CREATE_ALWAYS, 0, nullptr);
    const HANDLE out = GetStdHandle(STD_OUTPUT_HANDLE), error = GetStdHandle(STD_ERROR_HANDLE);
    SetStdHandle(STD_OUTPUT_HANDLE, file);
    SetStdHandle(STD_ERROR_HANDLE, file);
    const int c_out = _dup(1), c_error = _dup(2);
    std::FILE *sink = std::fopen((folder + "/c-output.txt").c_str(), "wb");
    CHECK(sink && _dup2(_fileno(sink), 1) == 0 && _dup2(_fileno(sink), 2) == 0);
    foredraft_set_log_callback([](int32_t, const char *, void *) {}, nullptr);
    {
        const loaded host;
        good(foredraft_complete(host.engine, (std::string(STORY) + "}").c_str()));
        foredraft_load(host.engine, "{\"model\": \"none.gguf\"}");
    }
    std::fflush(nullptr);
    foredraft_set_log_callback(nullptr, nullptr);
    _dup2(c_out, 1);
    _dup2(c_error, 2);
    std::fclose(sink);
    SetStdHandle(STD_OUTPUT_HANDLE, out);
    SetStdHandle(STD_ERROR_HANDLE, error);
    CloseHandle(file);
    CHECK(content(name).empty() && content(folder + "/c-output.txt").empty());
    CHECK(exists(name));
}

// The old names, which a host may have as well.
extern "C" {
int32_t init(const char *command);
void deinit(void);
const char *get_completion(const char *request);
void free_string(const char *text);
}

static void old_names() {
    CHECK(init(config().c_str()) == 0);
    const char *text = get_completion((std::string(STORY) + "}").c_str());
    CHECK(json(std::string(text))["success"].boolean());
    free_string(text);
    deinit();
}

// Begins a completion of many tokens, and returns while the engine works on it.
static void begin_work() {
    foredraft_engine *engine = foredraft_engine_new();
    CHECK(foredraft_load(engine, config().c_str()) == FOREDRAFT_OK);
    good(foredraft_submit(engine, "{\"prompt\": \"a\", \"n_predict\": 100000, \"ignore_eos\": true}"));
    Sleep(50);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    const std::string what = argv[1];
    if (what == "exit") {
        target = argv[2], draft = argv[3];
        begin_work();
        std::printf("ok %s\n", what.c_str());
        return 0;
    }
    target = argv[1], draft = argv[2], folder = argv[3];
    const std::pair<const char *, void (*)()> checks[] = {
        {"life_cycle", life_cycle}, {"own_kernels", own_kernels}, {"utf8_paths", utf8_paths},
        {"streams_and_speculates", streams_and_speculates}, {"cancels_inside_a_decode", cancels_inside_a_decode},
        {"sessions", sessions}, {"ngram_files", ngram_files}, {"several_engines", several_engines},
        {"notifies_by_event", notifies_by_event}, {"notifies_by_socket", notifies_by_socket},
        {"notifies_by_callback", notifies_by_callback}, {"places_threads", places_threads},
        {"says_what_is_missing", says_what_is_missing}, {"is_silent", is_silent}, {"old_names", old_names},
    };
    for (const auto &check : checks) {
        if (argc > 4 && std::string(argv[4]) != check.first) continue;
        check.second();
        std::printf("ok %s\n", check.first);
        std::fflush(stdout);
    }
    return 0;
}
