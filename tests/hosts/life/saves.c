/* Saves that are killed, and saves without descriptors, space on the disk, or permission. */
#include "host.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *const SAVED[] = { "1, 2, 3, 1, 2, 3, 1", "5, 6, 7, 8, 9, 5, 6, 7, 10, 11" };

/* Saves two states in turn. FOLDER/0 and FOLDER/1 are what the file must be. */
int save(const char *kind) {
    foredraft_engine *engine = foredraft_engine_new();
    int turn, round, is_session = strcmp(kind, "session") == 0, is_cache = strcmp(kind, "cache") == 0;
    quiet = 1;
    if ((is_session || is_cache) && load(engine, "") != 0) {
        return 3;
    }
    for (turn = 0; turn < 2; ++turn) {
        step("", engine, foredraft_lookup_create, format("{\"tokens\": [%s], \"output\": \"%s/n%d\"}", SAVED[turn], folder, turn));
        if (is_session) {
            step("", engine, foredraft_complete, format("{\"prompt\": \"%s\", \"n_predict\": 4, \"id_slot\": %d}", turn ? "Once upon a time" : "A dog", turn));
        }
    }
    for (round = -2;; ++round) {
        char *file = round < 0 ? format("%s/%d", folder, round + 2) : format("%s/file", folder);
        turn = round & 1;
        if (is_session) {
            step("", engine, foredraft_session_save, format("{\"id_slot\": %d, \"filename\": \"%s\"}", turn, file));
        } else if (is_cache) {
            step("", engine, foredraft_lookup_cache, format("{\"action\": \"load\", \"cache\": \"dynamic\", \"filename\": \"%s/n%d\"}", folder, turn));
            step("", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s\"}", file));
        } else if (strcmp(kind, "create") == 0) {
            step("", engine, foredraft_lookup_create, format("{\"tokens\": [%s], \"output\": \"%s\"}", SAVED[turn], file));
        } else {
            step("", engine, foredraft_lookup_merge, format("{\"inputs\": [\"%s/n%d\"], \"output\": \"%s\"}", folder, turn, file));
        }
        free(file);
        if (round == 1) {
            puts("ready");
            fflush(stdout);
        }
    }
}

/* Something that the system lacks, from its beginning to its end. Returns 0 if this system does not allow that. */
static int lack(const char *what, int begins) {
    const int is_disk = strcmp(what, "disk") == 0, is_folder = strcmp(what, "read-only") == 0;
    if (is_disk || is_folder) {
        static FILE *filler;
        char *path = format("%s/filler", folder);
        int works = 1;
        if (is_folder) {
            works = mount("", folder, "", MS_REMOUNT | (begins ? MS_RDONLY : 0), "") == 0;
        } else if (begins) {
            filler = fopen(path, "wb");
            setvbuf(filler, NULL, _IONBF, 0);
            while (fputc('x', filler) != EOF) { }
            works = errno == ENOSPC;
        } else {
            fclose(filler);
            works = remove(path) == 0;
        }
        free(path);
        return works;
    } else {
        const int is_size = strcmp(what, "file-size") == 0, resource = is_size ? RLIMIT_FSIZE : RLIMIT_NOFILE;
        static struct rlimit before;
        struct rlimit limit;
        if (!begins) {
            return setrlimit(resource, &before) == 0;
        }
        getrlimit(resource, &before);
        limit = before;
        limit.rlim_cur = 10;
        if (!is_size) {
            const int lowest = dup(0);
            close(lowest);
            limit.rlim_cur = (rlim_t) lowest;
        }
        /* Its action is to end the process. */
        signal(SIGXFSZ, SIG_DFL);
        return setrlimit(resource, &limit) == 0;
    }
}

/* Everything that writes files. Returns how many calls succeeded. */
static int n_saved(foredraft_engine *engine) {
    char *request, *answer;
    int n = step("", engine, foredraft_session_save, format("{\"id_slot\": 0, \"filename\": \"%s/session\"}", folder));
    n += step("", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s/cache\"}", folder));
    n += step("", engine, foredraft_lookup_create, format("{\"text\": \"Once upon a time\", \"output\": \"%s/created\"}", folder));
    n += step("", engine, foredraft_lookup_merge, format("{\"inputs\": [\"%s/created\", \"%s/created\"], \"output\": \"%s/merged\"}", folder, folder, folder));
    /* The completion is returned all the same, with the error of its file. */
    request = format("{\"prompt\": \"Once\", \"n_predict\": 2, \"id_slot\": 1, \"session_save\": \"%s/session2\"}", folder);
    answer = foredraft_complete(engine, request);
    n += succeeded(answer) && strstr(answer, "\"session_save\":{\"success\":false") == NULL;
    n_exhausted += strstr(answer, EXHAUSTED) != NULL;
    foredraft_string_free(answer);
    free(request);
    return n;
}

static char *content(const char *name, long *size) {
    char *path = format("%s/%s", folder, name), *bytes;
    FILE *file = fopen(path, "rb");
    *size = 0;
    free(path);
    if (file == NULL) {
        return NULL;
    }
    bytes = malloc(1 << 24);
    *size = (long) fread(bytes, 1, 1 << 24, file);
    fclose(file);
    return bytes;
}

int scarce(const char *what) {
    static const char *const FILES[] = { "session", "cache", "created", "merged", "session2" };
    foredraft_engine *engine = foredraft_engine_new(), *other = foredraft_engine_new();
    const int has_disk = strcmp(what, "disk") == 0 || strcmp(what, "read-only") == 0;
    const int mounted = has_disk && mount("tmpfs", folder, "tmpfs", 0, "size=4m") == 0;
    char *before[5];
    long sizes[5], size;
    int i, n, is_right;
    quiet = 1;
    if (has_disk && !mounted) {
        printf("skipped: %s: %s\n", what, strerror(errno));
        return 0;
    }
    is_right = load(engine, "") == 0;
    is_right = is_right && step("", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon\", \"n_predict\": 3, \"id_slot\": 0}"));
    n = n_saved(engine);
    is_right = is_right && n == 5;
    for (i = 0; i < 5; ++i) {
        before[i] = content(FILES[i], &sizes[i]);
    }
    if (!lack(what, 1)) {
        printf("skipped: %s: %s\n", what, strerror(errno));
        return 0;
    }
    n_exhausted = 0;
    n = n_saved(engine);
    printf("%d of 5 saves without %s, %d resource_exhausted\n", n, what, n_exhausted);
    /* Leave to write is no resource. */
    is_right = is_right && n == 0 && n_exhausted == (strcmp(what, "read-only") == 0 ? 0 : 5);
    /* A completion does not need what is lacking. */
    is_right = is_right && step("", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon\", \"n_predict\": 3, \"id_slot\": 0}"));
    if (strcmp(what, "descriptors") == 0) {
        load(other, ""); /* Not refused if it shares the open model. */
        is_right = is_right && !step("", engine, foredraft_session_load, format("{\"id_slot\": 1, \"filename\": \"%s/session\"}", folder));
        is_right = is_right && !step("", engine, foredraft_lookup_cache, format("{\"action\": \"load\", \"cache\": \"dynamic\", \"filename\": \"%s/created\"}", folder));
    }
    is_right = lack(what, 0) && is_right;
    for (i = 0; i < 5; ++i) {
        char *after = content(FILES[i], &size);
        is_right = is_right && after != NULL && size == sizes[i] && memcmp(after, before[i], (size_t) size) == 0;
        free(after);
        free(before[i]);
    }
    n = n_saved(engine);
    is_right = is_right && n == 5 && load(other, "") == 0;
    is_right = is_right && step("", other, foredraft_session_load, format("{\"id_slot\": 1, \"filename\": \"%s/session\"}", folder));
    foredraft_engine_free(engine);
    foredraft_engine_free(other);
    if (mounted) {
        char *command = format("test -z \"$(find %s -name '*.part')\"", folder);
        is_right = system(command) == 0 && is_right;
        free(command);
        umount(folder);
    }
    printf("%s\n", is_right ? "nothing lost, all works again" : "failed");
    return !is_right;
}
