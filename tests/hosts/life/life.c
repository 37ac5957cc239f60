/* A host that uses most of the library. Sanitizers, fault injection, the soak and the chaos run it.
 *   life FOLDER TARGET DRAFT once              everything, once, and again after the shim (fault_shim.c) let calls fail
 *   life FOLDER TARGET DRAFT save KIND         saves two states to FOLDER/file in turn, forever
 *   life FOLDER TARGET DRAFT soak N_REQUESTS N_LOADS
 *   life FOLDER TARGET DRAFT chaos SECONDS     random calls on several threads
 *   life FOLDER TARGET DRAFT scarce WHAT       saves and loads without descriptors, space on the disk, or permission; and again with them
 *   life FOLDER TARGET DRAFT address MB        loads with so much more address space, and again without the limit
 *   life FOLDER TARGET DRAFT forks N           forks N times while other threads are in calls; the children call functions, too
 *   life FOLDER TARGET DRAFT bug               a use after free inside the library: the address sanitizer and Valgrind must see it
 *   life FOLDER TARGET DRAFT race              two threads write and read a request: the thread sanitizer must see it
 * host.c has what the modes share. The modes save and scarce are in saves.c, soak and address in memory.c.
 */
#include "host.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything once. Returns the number of steps that failed. */
static int whole_life(void) {
    foredraft_engine *engine = foredraft_engine_new();
    static char text[1 << 16];
    int n_failed = 0, code;
    char *request;
    n_failed += !step("create", engine, foredraft_lookup_create, format("{\"tokens\": [1, 2, 3, 1, 2, 3, 1, 2, 4], \"output\": \"%s/a\"}", folder));
    code = load(engine, "");
    if (!quiet) {
        printf("load %d\n", code);
    }
    if (code != 0) {
        foredraft_engine_free(engine);
        return n_failed + 1;
    }
    n_failed += !step("create", engine, foredraft_lookup_create, format("{\"text\": \"Once upon a time, a time upon once\", \"output\": \"%s/b\"}", folder));
    n_failed += !step("merge", engine, foredraft_lookup_merge, format("{\"inputs\": [\"%s/b\", \"%s/b\"], \"output\": \"%s/c\"}", folder, folder, folder));
    n_failed += !step("stats", engine, foredraft_lookup_stats, format("{\"text\": \"Once upon a time, a time\", \"lookup_cache_static\": \"%s/c\"}", folder));
    n_failed += !step("cache load", engine, foredraft_lookup_cache, format("{\"action\": \"load\", \"cache\": \"dynamic\", \"filename\": \"%s/c\"}", folder));
    n_failed += !step("complete", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon a time\", \"n_predict\": 12, \"id_slot\": 0, \"speculative\": {\"type\": \"draft\"}}"));
    n_failed += !step("complete", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon a time\", \"n_predict\": 12, \"speculative\": {\"type\": \"ngram-cache\"}, \"n_probs\": 2, \"grammar\": \"root ::= [a-zA-Z ,.]*\"}"));
    n_failed += !step("session save", engine, foredraft_session_save, format("{\"id_slot\": 0, \"filename\": \"%s/s\"}", folder));
    n_failed += !step("session load", engine, foredraft_session_load, format("{\"id_slot\": 1, \"filename\": \"%s/s\"}", folder));
    n_failed += !step("cache save", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s/d\"}", folder));
    n_failed += !step("tokenize", engine, foredraft_tokenize, strdup("{\"text\": \"Once upon\"}"));
    n_failed += !step("template", engine, foredraft_apply_template, strdup("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"chat_template\": \"chatml\"}"));
    n_failed += !step("chat", engine, foredraft_complete, strdup("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"chat_template\": \"chatml\", \"n_predict\": 8, "
        "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}}}}"));
    request = strdup("{\"prompt\": \"Once\", \"n_predict\": 20, \"seed\": 3}");
    n_failed += !streamed(engine, request, text, sizeof text, 0);
    streamed(engine, request, text, sizeof text, 1);
    free(request);
    /* Errors. */
    n_failed += step("no JSON", engine, foredraft_complete, strdup("{"));
    n_failed += step("no prompt", engine, foredraft_complete, strdup("{\"prompt\": 7}"));
    n_failed += step("no file", engine, foredraft_session_load, strdup("{\"id_slot\": 0, \"filename\": \"/nowhere/s\"}"));
    n_failed += step("no id", engine, foredraft_poll, strdup("{\"id\": 12345}"));
    foredraft_string_free(foredraft_status(engine));
    foredraft_unload(engine);
    n_failed += step("unloaded", engine, foredraft_tokenize, strdup("{\"text\": \"Once upon\"}"));
    foredraft_engine_free(engine);
    return n_failed;
}

static int once(void) {
    void (*const arm)(int) = (void (*)(int)) dlsym(RTLD_DEFAULT, "fault_arm");
    int (*const count)(void) = (int (*)(void)) dlsym(RTLD_DEFAULT, "fault_count");
    int n_failed;
    if (arm != NULL) {
        arm(1);
        n_failed = whole_life();
        printf("calls %d\n", count());
        arm(0);
        printf("failed %d\n", n_failed);
    }
    quiet = arm != NULL;
    n_failed = whole_life();
    printf("again %d\n", n_failed);
    return 0;
}

static char raced[] = "{\"text\": \"Once\"}";

static void *writes(void *unused) {
    int i;
    for (i = 0; i < 100000; ++i) {
        raced[10] = (char) ('a' + i % 26);
    }
    return unused;
}

/* The library reads what another thread writes. */
static int race(void) {
    pthread_t thread;
    int i;
    pthread_create(&thread, NULL, writes, NULL);
    for (i = 0; i < 1000; ++i) {
        foredraft_string_free(foredraft_tokenize(NULL, raced));
    }
    pthread_join(thread, NULL);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 4 ? argv[4] : "";
    if (argc < 5) {
        return 2;
    }
    folder = argv[1];
    target = argv[2];
    draft = argv[3];
    if (strcmp(mode, "once") == 0) {
        return once();
    }
    if (strcmp(mode, "save") == 0 && argc > 5) {
        return save(argv[5]);
    }
    if (strcmp(mode, "soak") == 0 && argc > 6) {
        return soak(atol(argv[5]), atol(argv[6]));
    }
    if (strcmp(mode, "chaos") == 0 && argc > 5) {
        return chaos(atol(argv[5]));
    }
    if (strcmp(mode, "scarce") == 0 && argc > 5) {
        return scarce(argv[5]);
    }
    if (strcmp(mode, "address") == 0 && argc > 5) {
        return address_space(atol(argv[5]));
    }
    if (strcmp(mode, "forks") == 0 && argc > 5) {
        return forks(atol(argv[5]));
    }
    if (strcmp(mode, "race") == 0) {
        return race();
    }
    if (strcmp(mode, "bug") == 0) {
        /* Inside the library: it writes to a buffer of its caller's that is gone. */
        char *answer = foredraft_status(NULL);
        foredraft_string_free(answer);
        return foredraft_tokenize(NULL, answer) == NULL;
    }
    return 2;
}
