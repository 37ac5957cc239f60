/* A chat that prints each answer while it is being generated, in C99. From the root of the repository:
 *   cc -std=c99 -Iinclude examples/chat.c -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/chat
 *   target/chat ["a message" [target.gguf [draft.gguf]]]
 * Without a message, it reads messages from stdin, one per line, and keeps the conversation. */
#include "foredraft.h"
#include "json_mini.h"

#include <stdarg.h>

/* printf into a malloc'd string. */
static char *format(const char *pattern, ...) {
    va_list args;
    va_start(args, pattern);
    int length = vsnprintf(NULL, 0, pattern, args);
    va_end(args);
    char *text = (char *)malloc((size_t)length + 1);
    va_start(args, pattern);
    if (text) vsnprintf(text, (size_t)length + 1, pattern, args);
    va_end(args);
    return text;
}

/* Prints the error in an answer of the library. Returns 0 if there is none. */
static int failed(const char *answer) {
    const char *error = json_member(answer, "error");
    if (!error || *error != '"') return 0;
    char *text = json_text(error);
    fprintf(stderr, "chat: %s\n", text);
    free(text);
    return 1;
}

/* Adds a message to a conversation: JSON objects separated by commas. */
static void say(char **conversation, const char *role, const char *content) {
    char *quoted = json_quote(content), *old = *conversation;
    *conversation = format("%s%s{\"role\": \"%s\", \"content\": %s}", old, *old ? ", " : "", role, quoted);
    free(quoted);
    free(old);
}

/* Sends a message, streams the answer to stdout, and adds both to the conversation. Returns 1 if it failed, else 0. */
static int turn(foredraft_engine *engine, char **conversation, const char *message) {
    say(conversation, "user", message);
    char *request = format("{\"messages\": [%s], \"temperature\": 0, \"n_predict\": 200}", *conversation);
    char *reply = foredraft_submit(engine, request);
    char *poll = format("{\"id\": %.0f, \"timeout_ms\": 1000}", json_number(json_member(reply, "id")));
    char *answer = format("");
    int bad = failed(reply), finished = bad;
    foredraft_string_free(reply);
    while (!finished) {
        reply = foredraft_poll(engine, poll);
        const char *update = json_first(json_member(reply, "completion_updates"));
        for (; update; update = json_next(update)) {
            char *content = json_text(json_member(update, "content")), *old = answer;
            fputs(content, stdout);
            fflush(stdout);
            answer = format("%s%s", old, content);
            free(old);
            free(content);
            if (!json_true(json_member(update, "stop"))) continue;
            bad = failed(update); /* the last update is the final response */
            puts("");
            fprintf(stderr, "[%.0f tokens, %.1f tokens/s, accept_rate %.2f]\n",
                    json_number(json_member(update, "tokens_predicted")),
                    json_number(json_member(json_member(update, "timings"), "predicted_per_second")),
                    json_number(json_member(json_member(update, "speculative"), "accept_rate")));
        }
        if (failed(reply)) bad = finished = 1;
        else finished = json_true(json_member(reply, "finished"));
        foredraft_string_free(reply);
    }
    say(conversation, "assistant", answer);
    free(answer);
    free(poll);
    free(request);
    return bad;
}

int main(int argc, char **argv) {
    char *model = json_quote(argc > 2 ? argv[2] : "models/stories-target.gguf");
    /* The default draft only fits the default target. */
    char *draft = json_quote(argc > 3 ? argv[3] : argc > 2 ? "" : "models/stories-draft.gguf");
    char *config = format("{\"model\": %s, \"model_draft\": %s}", model, draft);
    char *conversation = format(""), line[4096];
    foredraft_engine *engine = foredraft_engine_new();
    int status = foredraft_load(engine, config);
    if (status != 0) {
        char *why = foredraft_status(engine);
        failed(why);
        foredraft_string_free(why);
    } else if (argc > 1) {
        status = turn(engine, &conversation, argv[1]);
    } else {
        while (status == 0 && fputs("> ", stderr) >= 0 && fgets(line, sizeof line, stdin)) {
            line[strcspn(line, "\n")] = 0;
            status = turn(engine, &conversation, line);
        }
    }
    foredraft_engine_free(engine);
    free(conversation); free(config); free(draft); free(model);
    return status;
}
