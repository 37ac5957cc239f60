/* The devices that foredraft.dll finds, and a completion whose layers a GPU would compute: scripts/windows.sh gpu. Prints three lines: the answer of
 * foredraft_devices, the status with its warnings, and the completion. */
#include <foredraft.h>

#include <stdio.h>
#include <string.h>

static void print(char * answer) {
    puts(answer);
    foredraft_string_free(answer);
}

int main(int argc, char ** argv) {
    char config[512];
    foredraft_engine * engine = foredraft_engine_new();
    int code;
    if (argc != 2 || strlen(argv[1]) > 400) {
        return 2;
    }
    sprintf(config, "{\"model\": \"%s\", \"n_gpu_layers\": 99, \"warmup\": false, \"log_level\": \"error\"}", argv[1]);
    print(foredraft_devices());
    code = foredraft_load(engine, config);
    print(foredraft_status(engine));
    if (code == FOREDRAFT_OK) {
        print(foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 8, \"temperature\": 0, \"response_fields\": [\"content\"]}"));
    }
    foredraft_engine_free(engine);
    return code;
}
