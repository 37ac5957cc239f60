/* Prints completions with and without speculation, for scripts/windows.sh, which compares the output on Linux with that on Windows.
 *
 *   completions TARGET DRAFT          the models; DRAFT "-": none
 *
 * The lines depend on the models and the requests alone. The level of instructions goes to stderr. */
#include <foredraft.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char * const PROMPTS[] = {
    "Once upon a time there was a little",
    "The dog and the cat went to the park. They",
    "\\u00dcber den Wolken war es sch\\u00f6n, said the bird, and",
};

static const char * const SAMPLINGS[] = {
    "\"temperature\": 0",
    "\"temperature\": 0.8, \"seed\": 7",
    "\"temperature\": 1.3, \"seed\": 42, \"top_k\": 0, \"top_p\": 1, \"repeat_penalty\": 1",
};

static const char * const SPECULATIONS[] = { "false", "{\"type\": \"draft\", \"n_max\": 6}", "{\"type\": [\"suffix\", \"ngram-cache\"]}" };

/* The value of the first `"key":[...]` or `"key":"..."` of an answer, as it is. */
static void print_value(const char * answer, const char * key, char close) {
    char name[32];
    const char *begin, *end;
    sprintf(name, "\"%s\":", key);
    begin = strstr(answer, name);
    if (begin == NULL) {
        printf("no %s: %s", key, answer);
        return;
    }
    begin += strlen(name);
    for (end = begin + 1; *end != '\0' && (*end != close || end[-1] == '\\'); ++end) {
    }
    printf("%.*s", (int) (end - begin + 1), begin);
}

int main(int argc, char ** argv) {
    char command[4096];
    size_t prompt, sampling, speculation;
    const int has_draft = argc > 2 && strcmp(argv[2], "-") != 0;
    char *answer, *level;
    foredraft_engine * engine;
    if (argc < 3) {
        return 2;
    }
    engine = foredraft_engine_new();
    sprintf(command, "{\"model\": \"%s\", %s%s%s \"n_ctx\": 1024, \"log_level\": \"error\", \"n_threads\": 2}", argv[1],
            has_draft ? "\"model_draft\": \"" : "", has_draft ? argv[2] : "", has_draft ? "\"," : "");
    if (foredraft_load(engine, command) != 0) {
        answer = foredraft_status(engine);
        printf("%s\n", answer);
        return 1;
    }
    answer = foredraft_status(engine);
    level = strstr(answer, "\"cpu\":");
    fprintf(stderr, "%.*s\n", 160, level != NULL ? level : "no cpu");
    foredraft_string_free(answer);
    for (prompt = 0; prompt < sizeof PROMPTS / sizeof *PROMPTS; ++prompt) {
        for (sampling = 0; sampling < sizeof SAMPLINGS / sizeof *SAMPLINGS; ++sampling) {
            for (speculation = 0; speculation < sizeof SPECULATIONS / sizeof *SPECULATIONS; ++speculation) {
                if (speculation == 1 && !has_draft) {
                    continue;
                }
                sprintf(command, "{\"prompt\": \"%s\", %s, \"speculative\": %s, \"n_predict\": 64, \"return_tokens\": true}",
                        PROMPTS[prompt], SAMPLINGS[sampling], SPECULATIONS[speculation]);
                answer = foredraft_complete(engine, command);
                printf("%d %d %d ", (int) prompt, (int) sampling, (int) speculation);
                print_value(answer, "content", '"');
                print_value(answer, "tokens", ']');
                printf("\n");
                foredraft_string_free(answer);
            }
        }
    }
    foredraft_engine_free(engine);
    return 0;
}
