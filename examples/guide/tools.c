/* Lets a model call two tools, one after the other, and then answer. From the root of the repository, after `make build`:
 *   cc -Iinclude examples/guide/tools.c -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/tools && target/tools */
#include "foredraft.h"
#include "../json_mini.h" /* any JSON library will do */

#define CITY "{\"type\": \"object\", \"properties\": {\"city\": {\"enum\": [\"Lima\", \"Oslo\"]}}, \"required\": [\"city\"]}"
#define TOOL(NAME) "{\"type\": \"function\", \"function\": {\"name\": \"" NAME "\", \"parameters\": " CITY "}}"

static char messages[8192] = "{\"role\": \"user\", \"content\": \"How is the weather in Oslo, and what time is it there?\"}";

static void add(const char *text) { strncat(messages, text, sizeof messages - strlen(messages) - 1); }

/* ANCHOR: tools */
/* The answer to the messages so far, with this tool or with "none". */
static char *answer(foredraft_engine *engine, const char *choice) {
    static char request[16384];
    snprintf(request, sizeof request,
             "{\"messages\": [%s], \"tools\": [" TOOL("weather") ", " TOOL("time") "], \"tool_choice\": %s, \"n_predict\": 80}",
             messages, choice);
    return foredraft_complete(engine, request);
}

static int chat(foredraft_engine *engine) {
    static const char *const names[] = {"weather", "time"};
    for (int i = 0; i < 2; ++i) { /* a large model chooses by itself: "auto" */
        char choice[80];
        snprintf(choice, sizeof choice, "{\"type\": \"function\", \"function\": {\"name\": \"%s\"}}", names[i]);
        char *reply = answer(engine, choice);
        const char *call = json_first(json_member(json_member(reply, "message"), "tool_calls"));
        if (!call) {
            fprintf(stderr, "%s\n", reply);
            foredraft_string_free(reply);
            return 1;
        }
        char *name = json_text(json_member(json_member(call, "function"), "name"));
        char *arguments = json_text(json_member(json_member(call, "function"), "arguments"));
        char *city = json_text(json_member(arguments, "city"));
        char *id = json_text(json_member(call, "id"));
        const char *what = strcmp(name, "weather") == 0 ? "12 degrees and rain" : "ten o'clock";
        char turn[1024];
        printf("called %s: %s in %s\n", name, what, city);
        snprintf(turn, sizeof turn,
                 ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"%s\", \"type\": \"function\", \"function\":"
                 " {\"name\": \"%s\", \"arguments\": \"{\\\"city\\\": \\\"%s\\\"}\"}}]},"
                 " {\"role\": \"tool\", \"tool_call_id\": \"%s\", \"name\": \"%s\", \"content\": \"%s in %s\"}",
                 id, name, city, id, name, what, city);
        add(turn);
        free(name), free(arguments), free(city), free(id);
        foredraft_string_free(reply);
    }
    char *reply = answer(engine, "\"none\"");
    char *content = json_text(json_member(json_member(reply, "message"), "content"));
    printf("%s\n", content);
    free(content);
    foredraft_string_free(reply);
    return 0;
}
/* ANCHOR_END: tools */

int main(int argc, char **argv) {
    char config[1024];
    foredraft_engine *engine = foredraft_engine_new();
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_ctx\": 2048}", argc > 1 ? argv[1] : "models/stories-target.gguf");
    int failed = foredraft_load(engine, config) != FOREDRAFT_OK || chat(engine);
    foredraft_engine_free(engine);
    return failed;
}
