/* Frees foredraft.dll while its engine works, which must not remove the code of running threads.
 *
 *   unload TARGET */
#include <windows.h>

#include <stdio.h>

#define FIND(type, name) type name = (type) (void *) GetProcAddress(library, #name)

typedef void *(*make_function)(void);
typedef int (*load_function)(void *engine, const char *config);
typedef char *(*call_function)(void *engine, const char *request);

int main(int argc, char **argv) {
    const HMODULE library = LoadLibraryW(L"foredraft.dll");
    char config[4096];
    if (library == NULL || argc < 2) {
        return 2;
    }
    FIND(make_function, foredraft_engine_new);
    FIND(load_function, foredraft_load);
    FIND(call_function, foredraft_submit);
    if (foredraft_engine_new == NULL || foredraft_load == NULL || foredraft_submit == NULL) {
        return 3;
    }
    void *engine = foredraft_engine_new();
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 2, \"log_level\": \"error\"}", argv[1]);
    if (foredraft_load(engine, config) != 0) {
        return 4;
    }
    foredraft_submit(engine, "{\"prompt\": \"a\", \"n_predict\": 100000, \"ignore_eos\": true}");
    Sleep(50);
    FreeLibrary(library);
    Sleep(200);
    if (GetModuleHandleW(L"foredraft.dll") != library) {
        return 5;
    }
    printf("ok unload\n");
    return 0; /* while the engine works */
}
