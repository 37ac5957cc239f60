/* A completion with a package's DLL: scripts/windows.sh. */
#include <foredraft.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char ** argv) {
    char config[512];
    foredraft_engine * engine = foredraft_engine_new();
    char *answer, *slash;
    if (argc != 2 || strlen(argv[1]) > 400) {
        return 2;
    }
    while ((slash = strchr(argv[1], '\\')) != NULL) {
        *slash = '/';
    }
    sprintf(config, "{\"model\": \"%s\", \"warmup\": false, \"log_level\": \"error\"}", argv[1]);
    if (foredraft_load(engine, config) != 0) {
        answer = foredraft_status(engine);
        fprintf(stderr, "%s\n", answer);
        return 1;
    }
    answer = foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 8, \"temperature\": 0, \"response_fields\": [\"content\"]}");
    puts(answer);
    foredraft_string_free(answer);
    foredraft_engine_free(engine);
    return 0;
}
