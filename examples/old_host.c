/* A host of the old JSON-RPC server, written as such hosts were: it includes rpcserver.h, and polls in every frame, from before init_async
 * to after deinit. It reads the fields that the old server always sent, and fails if one is missing or has another type. It appends only
 * the text of updates with "stop": false, cancels with {}, and frees with free(). It prints a line for each event. From the root of
 * the repository:
 *   cc -std=c99 -Iinclude examples/old_host.c -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/old_host
 *   target/old_host ["a prompt" [model.gguf]] */
#define _POSIX_C_SOURCE 200809L
#include "rpcserver.h"
#include "json_mini.h"

#include <time.h>

static const char *model = "models/stories-target.gguf";

static void fail(const char *what, const char *json) {
    fprintf(stderr, "old_host: %s: %s\n", what, json);
    exit(1);
}

/* A field that the old server always sent as a string, allocated with malloc. */
static char *string_of(const char *object, const char *key) {
    const char *value = json_member(object, key);
    if (!value || *value != '"') fail(key, object);
    return json_text(value);
}

static int bool_of(const char *object, const char *key) {
    const char *value = json_member(object, key);
    if (!value || (*value != 't' && *value != 'f')) fail(key, object);
    return *value == 't';
}

static void frame(void) {
    const struct timespec nap = {0, 5 * 1000 * 1000};
    nanosleep(&nap, NULL);
}

/* A completion as the user interface shows it. */
typedef struct {
    char *text;
    int probabilities; /* of updates with "stop": false */
    int at_end;        /* of the last update */
    int last_updates;
    int finished;
} view;

static void append(view *shown, const char *text) {
    size_t old = strlen(shown->text), more = strlen(text);
    shown->text = (char *)realloc(shown->text, old + more + 1);
    if (!shown->text) fail("memory", "");
    memcpy(shown->text + old, text, more + 1);
}

static int count(const char *array) {
    int n = 0;
    for (const char *item = json_first(array); item; item = json_next(item)) n++;
    return n;
}

/* One frame's poll. */
static void poll(view *shown) {
    const char *reply = async_completion_poll("{}");
    if (!bool_of(reply, "success")) fail("poll", reply);
    const char *updates = json_member(reply, "completion_updates");
    if (!updates || *updates != '[') fail("completion_updates", reply);
    for (const char *update = json_first(updates); update; update = json_next(update)) {
        char *content = string_of(update, "content");
        if (bool_of(update, "stop")) {
            shown->at_end = count(json_member(update, "completion_probabilities"));
            shown->last_updates++;
            if (*content) fail("text in the last update", update);
        } else {
            append(shown, content);
            shown->probabilities += count(json_member(update, "completion_probabilities"));
        }
        free(content);
    }
    shown->finished = bool_of(reply, "finished");
    free((void *)reply);
}

static view begin(void) {
    view shown = {NULL, 0, 0, 0, 0};
    shown.text = (char *)calloc(1, 1);
    return shown;
}

/* init_success of this frame. The strings must always exist. */
static int status(void) {
    const char *reply = poll_system_status();
    char *path = string_of(reply, "model"), *alias = string_of(reply, "model_alias");
    const char *success = json_member(reply, "init_success");
    int ready = (int)json_number(success);
    if (!success) fail("init_success", reply);
    if (ready == 1 && (strcmp(path, model) || strcmp(alias, model))) fail("the model's names", reply);
    free(path);
    free(alias);
    free((void *)reply);
    return ready;
}

/* A poll without updates. */
static void idle(const char *when) {
    view shown = begin();
    poll(&shown);
    printf("%s: init_success %d, text \"%s\", finished %d\n", when, status(), shown.text, shown.finished);
    free(shown.text);
}

static void submit(const char *request) {
    const char *reply = async_completion_init(request);
    if (!bool_of(reply, "success") || !json_member(json_member(reply, "prompt_stats"), "n_ctx")) fail("init", reply);
    free((void *)reply);
}

static void cancel(const char *when) {
    const char *reply = async_completion_cancel("{}");
    printf("cancel %s: success %d\n", when, bool_of(reply, "success"));
    free((void *)reply);
}

/* Polls to the end of a request and prints its text. */
static void run(const char *name, const char *request, int cancel_at) {
    view shown = begin();
    submit(request);
    while (!shown.finished) {
        poll(&shown);
        if (cancel_at && (int)strlen(shown.text) >= cancel_at) {
            cancel("while it generates");
            cancel_at = 0;
        }
        frame();
    }
    char *quoted = json_quote(shown.text);
    if (strcmp(name, "cancelled")) printf("%s: %s\n", name, quoted);
    else printf("%s: some text %d\n", name, *shown.text != 0);
    printf("%s: last updates %d, probabilities %s\n", name, shown.last_updates,
           shown.probabilities == shown.at_end ? (shown.at_end ? "of all tokens" : "none") : "lost");
    free(quoted);
    free(shown.text);
}

int main(int argc, char **argv) {
    char *prompt = json_quote(argc > 1 ? argv[1] : "Once upon a time"), json[4096];
    int ready;
    if (argc > 2) model = argv[2];

    idle("before init");
    cancel("before init");

    init_async("{\"model\": \"/nowhere.gguf\"}");
    while ((ready = status()) == 0) frame();
    idle("after a failed init");

    snprintf(json, sizeof json, "{\"model\": \"%s\", \"model_alias\": \"unknown\", \"n_ctx\": 512, \"n_gpu_layers\": 0, "
                                "\"memory_f16\": true, \"lora_base\": \"\", \"port\": 8080}", model);
    init_async(json);
    memset(json, 'x', sizeof json - 1); /* the old server read it later; this one has a copy */
    while ((ready = status()) == 0) {
        view shown = begin();
        poll(&shown); /* every frame */
        free(shown.text);
        frame();
    }
    if (ready != 1) fail("init", "it failed");
    idle("when loaded");
    cancel("with nothing running");

    snprintf(json, sizeof json, "{\"text\": %s}", prompt);
    const char *tokens = tokenize(json);
    const char *length = json_member(tokens, "length");
    if (!bool_of(tokens, "success") || !length || count(json_member(tokens, "tokens")) != (int)json_number(length))
        fail("tokenize", tokens);
    printf("tokenize: success 1\n");
    free((void *)tokens);

    snprintf(json, sizeof json, "{\"prompt\": %s, \"n_predict\": 64, \"temperature\": 0}", prompt);
    run("completion", json, 0);
    snprintf(json, sizeof json, "{\"prompt\": %s, \"n_predict\": 16, \"temperature\": 0, \"n_probs\": 3, "
                                "\"top_p\": 1.1, \"logit_bias\": [[99999999, 1], \"x\"]}", prompt);
    run("tolerated", json, 0);
    snprintf(json, sizeof json, "{\"prompt\": %s, \"n_predict\": -2, \"ignore_eos\": true}", prompt);
    run("cancelled", json, 20);
    idle("after that");

    snprintf(json, sizeof json, "{\"prompt\": %s, \"n_predict\": 16, \"temperature\": 0}", prompt);
    const char *answer = get_completion(json);
    char *content = string_of(answer, "content"), *quoted = json_quote(content);
    printf("waited for: %s\n", quoted);
    free(quoted);
    free(content);
    free((void *)answer);

    deinit();
    cancel("after deinit");
    view shown = begin();
    poll(&shown);
    printf("after deinit: text \"%s\"\n", shown.text);
    free(shown.text);
    free(prompt);
    return 0;
}
