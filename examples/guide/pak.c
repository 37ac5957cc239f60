/* A model inside an archive: pak ARCHIVE OFFSET LENGTH. */
#define _POSIX_C_SOURCE 200809L
#include "foredraft.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: %s archive offset length\n", argv[0]), 2;
    long offset = atol(argv[2]), length = atol(argv[3]);
    /* ANCHOR: pak */
    int fd = open(argv[1], O_RDONLY);
    char config[160];
    snprintf(config, sizeof config, "{\"model\": {\"fd\": %d, \"offset\": %ld, \"length\": %ld}}", fd, offset, length);
    foredraft_engine *engine = foredraft_engine_new();
    int code = foredraft_load(engine, config);
    close(fd); /* the model is loaded */
    /* ANCHOR_END: pak */
    char *answer = code == FOREDRAFT_OK ? foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 20, \"temperature\": 0,"
                                                                     " \"response_fields\": [\"content\"]}")
                                        : foredraft_status(engine);
    puts(answer);
    foredraft_string_free(answer);
    foredraft_engine_free(engine);
    return code;
}
