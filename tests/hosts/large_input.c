/* Sends a large input with little address space, and a small one afterwards without the limit. Prints what came of it.
 *   large_input MODEL FOLDER KIND MIB     MIB: how much address space the process may add. FOLDER has the files that some kinds read
 *   large_input                           prints the kinds
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "foredraft.h"

typedef char *(*function)(foredraft_engine *, const char *);

/* Loads another engine, and returns its status. */
static char *load_another(foredraft_engine *unused, const char *config) {
    foredraft_engine *engine = foredraft_engine_new();
    char *status;
    (void) unused;
    foredraft_load(engine, config);
    status = foredraft_status(engine);
    foredraft_engine_free(engine);
    return status;
}

/* An input: `before`, then `part` again and again, then `after`. Without `part`, `before` alone: what it names is large. */
struct kind {
    const char *name;
    function call;
    const char *before, *part, *after;
};

static const struct kind KINDS[] = {
    { "prompt", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"", "Once upon a time ", "\"}" },
    { "escaped prompt", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"", "a\\u0062\\n", "\"}" },
    { "tokens", foredraft_complete, "{\"n_predict\": 1, \"prompt\": [1", ", 300", "]}" },
    { "prompts", foredraft_complete, "{\"timeout_ms\": 1000, \"n_predict\": 1, \"prompts\": [\"a\"", ", \"a dog\"", "]}" },
    { "stop", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"a\", \"stop\": [\"", "a long word ", "\"]}" },
    { "stops", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"a\", \"stop\": [\"x\"", ", \"word\"", "]}" },
    { "bias", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"a\", \"logit_bias\": [[1, 2]", ", [300, 0.5]", "]}" },
    { "grammar", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"a\", \"grammar\": \"root ::= [a-z]", " | [a-z] [b-d]*", "\"}" },
    { "literal", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"a\", \"grammar\": \"root ::= \\\"", "a long word ", "\\\"\"}" },
    { "schema", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"a\", \"json_schema\": {\"enum\": [1", ", \"word\"", "]}}" },
    { "message", foredraft_complete,
      "{\"n_predict\": 1, \"chat_template\": \"chatml\", \"messages\": [{\"role\": \"user\", \"content\": \"", "Once upon a time ", "\"}]}" },
    { "messages", foredraft_complete,
      "{\"n_predict\": 1, \"chat_template\": \"chatml\", \"messages\": [{\"role\": \"user\", \"content\": \"a\"}",
      ", {\"role\": \"user\", \"content\": \"a\"}", "]}" },
    { "template", foredraft_complete,
      "{\"n_predict\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"chat_template\": \"", "{{ messages[0].content }} ", "\"}" },
    { "prediction", foredraft_complete,
      "{\"n_predict\": 1, \"prompt\": \"a\", \"prediction\": {\"type\": \"content\", \"content\": \"", "Once upon a time ", "\"}}" },
    { "tag", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"a\", \"tag\": [1", ", [1]", "]}" },
    { "unknown", foredraft_complete, "{\"n_predict\": 1, \"prompt\": \"a\", \"no such key\": \"", "a long word ", "\"}" },
    { "wrong", foredraft_complete, "{\"n_predict\": \"", "a long word ", "\"}" },
    { "no JSON", foredraft_complete, "{\"prompt\": \"a\", ", "a long word ", "" },
    { "submit", foredraft_submit, "{\"n_predict\": 1, \"prompt\": \"", "Once upon a time ", "\"}" },
    { "poll", foredraft_poll, "{\"ids\": [1", ", 300", "]}" },
    { "tokenize", foredraft_tokenize, "{\"text\": \"", "Once upon a time ", "\"}" },
    { "pieces", foredraft_tokenize, "{\"with_pieces\": true, \"text\": \"", "Once upon a time ", "\"}" },
    { "detokenize", foredraft_detokenize, "{\"tokens\": [1", ", 300", "]}" },
    { "chat", foredraft_apply_template, "{\"chat_template\": \"chatml\", \"messages\": [{\"role\": \"user\", \"content\": \"", "Once upon a time ", "\"}]}" },
    { "counted", foredraft_lookup_create, "{\"tokens\": [1, 2, 3", ", 300", "], \"output\": \"large\"}" },
    { "counted text", foredraft_lookup_create, "{\"output\": \"large\", \"text\": \"", "Once upon a time ", "\"}" },
    { "context", load_another, "{\"model\": \"model.gguf\", \"n_ctx\": 60000000, \"log_level\": \"none\"}", "", "" },
    { "session", foredraft_session_load, "{\"id_slot\": 0, \"filename\": \"session\"}", "", "" },
    { "claimed counts", foredraft_lookup_cache, "{\"action\": \"load\", \"cache\": \"dynamic\", \"filename\": \"claimed\"}", "", "" },
    { "counts", foredraft_lookup_cache, "{\"action\": \"load\", \"cache\": \"dynamic\", \"filename\": \"counts\"}", "", "" },
    { "n-grams", foredraft_lookup_merge, "{\"inputs\": [\"n-grams\"], \"output\": \"large\"}", "", "" },
};

enum { SIZE = 4 << 20 };

static char *repeated(const struct kind *kind) {
    const size_t n = kind->part[0] == 0 ? 0 : SIZE / strlen(kind->part);
    char *text = malloc(strlen(kind->before) + n * strlen(kind->part) + strlen(kind->after) + 1), *at = text;
    size_t i;
    at = stpcpy(at, kind->before);
    for (i = 0; i < n; ++i) {
        at = stpcpy(at, kind->part);
    }
    strcpy(at, kind->after);
    return text;
}

/* Prints whether an answer is a success, or its code. */
static void print(const char *name, char *answer) {
    const char *code = strstr(answer, "\"code\":\"");
    /* The status of an engine that failed to load has a code, too. */
    if (strncmp(answer, "{\"success\":true", 15) == 0 && strstr(answer, "\"state\":\"failed\"") == NULL) {
        printf("%s success\n", name);
    } else {
        printf("%s %.*s\n", name, code == NULL ? 0 : (int) strcspn(code + 8, "\""), code == NULL ? "" : code + 8);
    }
    foredraft_string_free(answer);
}

int main(int argc, char **argv) {
    foredraft_engine *engine = foredraft_engine_new();
    struct rlimit before, limit;
    char config[4096], *input;
    long pages = 0;
    size_t i;
    FILE *file;
    if (argc == 1) {
        for (i = 0; i < sizeof KINDS / sizeof *KINDS; ++i) {
            puts(KINDS[i].name);
        }
        return 0;
    }
    if (argc < 5 || chdir(argv[2]) != 0) {
        return 2;
    }
    for (i = 0; i < sizeof KINDS / sizeof *KINDS && strcmp(KINDS[i].name, argv[3]) != 0; ++i) { }
    if (i == sizeof KINDS / sizeof *KINDS) {
        return 2;
    }
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 1, \"n_threads_batch\": 1, \"n_ctx\": 256, \"log_level\": \"none\"}", argv[1]);
    if (foredraft_load(engine, config) != 0) {
        return 3;
    }
    print("first", foredraft_complete(engine, "{\"prompt\": \"Once\", \"n_predict\": 2}"));
    input = repeated(&KINDS[i]);
    file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%ld", &pages) != 1) {
        return 3;
    }
    fclose(file);
    getrlimit(RLIMIT_AS, &before);
    limit = before;
    limit.rlim_cur = (rlim_t) pages * (rlim_t) sysconf(_SC_PAGESIZE) + ((rlim_t) atol(argv[4]) << 20);
    setrlimit(RLIMIT_AS, &limit);
    print("large", KINDS[i].call(engine, input));
    setrlimit(RLIMIT_AS, &before);
    free(input);
    print("again", foredraft_complete(engine, "{\"prompt\": \"Once\", \"n_predict\": 2}"));
    foredraft_engine_free(engine);
    return 0;
}
