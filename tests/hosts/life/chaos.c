/* Random calls on several threads. Each engine is loaded and unloaded by one thread, and used by all. */
#include "host.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Numbers of a GGUF file, for machines that store the lowest byte first. */
static void put(FILE *file, unsigned long long number, int n_bytes) {
    for (; n_bytes > 0; --n_bytes, number >>= 8) {
        fputc((int) (number & 255), file);
    }
}

static void put_text(FILE *file, const char *text) {
    put(file, strlen(text), 8);
    fputs(text, file);
}

/* Writes FOLDER/lora: an adapter of rank 2 on the attention outputs of the target's 6 layers, with pseudo-random weights. */
static void write_adapter(void) {
    static const char *const KEYS[] = { "general.type", "adapter", "general.architecture", "llama", "adapter.type", "lora" };
    char *path = format("%s/lora", folder);
    FILE *file = fopen(path, "wb");
    const float alpha = 2;
    unsigned state = 1;
    int i;
    fputs("GGUF", file);
    put(file, 3, 4);
    put(file, 12, 8);
    put(file, 4, 8);
    for (i = 0; i < 6; i += 2) {
        put_text(file, KEYS[i]);
        put(file, 8, 4);
        put_text(file, KEYS[i + 1]);
    }
    put_text(file, "adapter.lora.alpha");
    put(file, 6, 4);
    fwrite(&alpha, sizeof alpha, 1, file);
    for (i = 0; i < 12; ++i) {
        char *name = format("blk.%d.attn_output.weight.lora_%c", i / 2, "ab"[i % 2]);
        put_text(file, name);
        free(name);
        put(file, 2, 4);
        put(file, i % 2 == 0 ? 256 : 2, 8);
        put(file, i % 2 == 0 ? 2 : 256, 8);
        put(file, 0, 4);
        put(file, 2048ULL * (unsigned) i, 8);
    }
    while (ftell(file) % 32 != 0) {
        fputc(0, file);
    }
    for (i = 0; i < 12 * 512; ++i) {
        const float weight = ((float) ((state = state * 1664525 + 1013904223) >> 8) / (1 << 23) - 1) * 0.15f;
        fwrite(&weight, sizeof weight, 1, file);
    }
    fclose(file);
    free(path);
}

#define N_ENGINES 2
#define N_PROMPTS 8
static foredraft_engine *engines[N_ENGINES];
static char *solo[N_PROMPTS];
static time_t end_of_chaos;
static atomic_long n_right, n_calls, n_forks, n_loaded, n_freed;
static char *with_adapter;
static atomic_int n_wrong;

static char *chaos_request(int index) {
    /* Prompts differ in their adapter's scale. */
    return format("{\"prompt\": \"Once upon a time %d\", \"n_predict\": 24, \"seed\": %d, \"lora\": [{\"id\": 0, \"scale\": %s}]%s}", index, index,
                  index % 4 == 3 ? "1" : index % 4 == 2 ? "-0.5" : "0",
                  index % 3 == 1 ? ", \"speculative\": {\"type\": \"auto\"}" : index % 3 == 2 ? ", \"speculative\": {\"type\": \"suffix\"}" : "");
}

/* Completes a prompt, and compares the text with its solo run. */
static void compared(foredraft_engine *engine, int index, char *text, int cancels) {
    char *request = chaos_request(index);
    if (streamed(engine, request, text, 1 << 16, cancels) && !cancels) {
        atomic_fetch_add(&n_right, 1);
        if (strcmp(text, solo[index]) != 0) {
            printf("another completion of %d: %s\n", index, text);
            atomic_fetch_add(&n_wrong, 1);
        }
    }
    free(request);
}

/* One random call. `own`: the engine that this thread loads and unloads, or -1. */
static void chaotic_call(int own, unsigned *seed, char *text) {
    foredraft_engine *engine = engines[own >= 0 ? own : rand_r(seed) % N_ENGINES];
    const int index = rand_r(seed) % N_PROMPTS, what = rand_r(seed) % 20;
    atomic_fetch_add(&n_calls, 1);
    if (own >= 0 && what < 2) {
        const struct timespec pause = { 0, (rand_r(seed) % 200) * 1000000L };
        nanosleep(&pause, NULL);
        if (what == 0) {
            foredraft_unload(engine);
        }
        n_loaded += load(engine, with_adapter) == 0;
    } else if (what < 12) {
        compared(engine, index, text, what == 11);
    } else if (what < 13) {
        step("", engine, foredraft_session_load, format("{\"id_slot\": %d, \"filename\": \"%s/chaos\", \"timeout_ms\": 1000}", index % 2, folder));
    } else if (what < 14) {
        step("", engine, foredraft_session_save, format("{\"id_slot\": %d, \"filename\": \"%s/chaos\", \"timeout_ms\": 1000}", index % 2, folder));
    } else if (what < 15) {
        step("", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s/cache\"}", folder));
    } else if (what < 16) {
        atomic_fetch_add(&n_forks, 1);
        if (child_result(engine) == 2) {
            printf("a forked child waited forever\n");
            atomic_fetch_add(&n_wrong, 1);
        }
    } else if (what < 17) {
        foredraft_engine *other = foredraft_engine_new();
        step("", other, foredraft_lookup_create, format("{\"tokens\": [1, 2, 3], \"output\": \"%s/x%d\"}", folder, index));
        if (rand_r(seed) % 8 == 0 && load(other, with_adapter) == 0) {
            atomic_fetch_add(&n_freed, 1);
            compared(other, index, text, 0);
        }
        foredraft_engine_free(other);
    } else {
        foredraft_string_free(foredraft_status(engine));
    }
}

/* Held for reading by each call of chaos, and for writing while the memory is measured. */
static pthread_rwlock_t measuring;

static void *chaotic(void *argument) {
    unsigned seed = (unsigned) (size_t) argument;
    const int own = (int) seed < N_ENGINES ? (int) seed : -1;
    char *text = malloc(1 << 16);
    while (time(NULL) < end_of_chaos) {
        pthread_rwlock_rdlock(&measuring);
        chaotic_call(own, &seed, text);
        pthread_rwlock_unlock(&measuring);
    }
    free(text);
    return NULL;
}

/* The memory while no call runs: bytes that are allocated, and memory after the allocator returned its free pages, in KiB. */
struct sample {
    long allocated, needed;
};

static long allocated(void) {
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 info = mallinfo2();
    return (long) ((info.uordblks + info.hblkhd) >> 10);
#endif
#endif
    return 0;
}

/* Measures with the engines as they are, and when nothing is loaded; then loads both again. */
static struct sample sampled(long seconds) {
    struct sample sample;
    long loaded;
    size_t i;
    pthread_rwlock_wrlock(&measuring);
    loaded = needed();
    for (i = 0; i < N_ENGINES; ++i) {
        foredraft_unload(engines[i]);
    }
    sample.needed = needed();
    sample.allocated = allocated();
    for (i = 0; i < N_ENGINES; ++i) {
        load(engines[i], with_adapter);
    }
    printf("| %ld s, %ld calls, %ld loads | %ld KiB | nothing loaded: %ld KiB, of which %ld KiB are allocated |\n", seconds, (long) n_calls, (long) n_loaded, loaded,
           sample.needed, sample.allocated);
    fflush(stdout);
    pthread_rwlock_unlock(&measuring);
    return sample;
}

static int by_size(const void *left, const void *right) {
    const long a = *(const long *) left, b = *(const long *) right;
    return (a > b) - (a < b);
}

/* The median of a field (its offset) of some samples. */
static long median(const struct sample *samples, size_t n, size_t field) {
    long *values = malloc(n * sizeof *values), middle;
    size_t i;
    for (i = 0; i < n; ++i) {
        memcpy(&values[i], (const char *) &samples[i] + field, sizeof *values);
    }
    qsort(values, n, sizeof *values, by_size);
    middle = values[n / 2];
    free(values);
    return middle;
}

/* Prints the medians of the third and the fourth quarter of the samples. Returns whether the memory grew between them. */
static int grew(const struct sample *samples, size_t n) {
    const struct sample *third = samples + n / 2, *fourth = samples + n - n / 4;
    const long needed_before = median(third, n / 4, offsetof(struct sample, needed)), needed_after = median(fourth, n / 4, offsetof(struct sample, needed));
    const long before = median(third, n / 4, offsetof(struct sample, allocated)), after = median(fourth, n / 4, offsetof(struct sample, allocated));
    const int grows = after > before + before / 50 + 64 || needed_after > needed_before + needed_before / 20 + 1024;
    printf("| nothing loaded, medians of the third and the fourth quarter | %ld and %ld KiB, of which %ld and %ld KiB are allocated | %s |\n", needed_before,
           needed_after, before, after, grows ? "it grows" : "flat");
    return grows;
}

/* The seconds between measurements of the memory. */
enum { SAMPLED_EVERY = 60, MOST_SAMPLES = 10000 };

int chaos(long seconds) {
    static char text[1 << 16];
    static struct sample samples[MOST_SAMPLES];
    pthread_rwlockattr_t attributes;
    pthread_t threads[8];
    size_t i, n_samples = 0;
    long before, after;
    int grows = 0;
    quiet = 1;
    write_adapter();
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    /* Otherwise the calls never leave a gap. */
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&measuring, &attributes);
    with_adapter = format(", \"lora\": [{\"path\": \"%s/lora\", \"scale\": 0}]", folder);
    for (i = 0; i < N_ENGINES; ++i) {
        engines[i] = foredraft_engine_new();
    }
    if (load(engines[0], with_adapter) != 0) {
        return 3;
    }
    for (i = 0; i < N_PROMPTS; ++i) {
        char *request = chaos_request((int) i);
        streamed(engines[0], request, text, sizeof text, 0);
        solo[i] = strdup(text);
        free(request);
    }
    before = memory();
    end_of_chaos = time(NULL) + seconds;
    for (i = 0; i < 8; ++i) {
        pthread_create(&threads[i], NULL, chaotic, (void *) i);
    }
    while (n_samples < MOST_SAMPLES && ((long) n_samples + 1) * SAMPLED_EVERY < seconds) {
        const time_t begun = end_of_chaos - seconds, next = begun + ((long) n_samples + 1) * SAMPLED_EVERY;
        while (time(NULL) < next) {
            sleep(1);
        }
        samples[n_samples] = sampled(time(NULL) - begun);
        ++n_samples;
    }
    for (i = 0; i < 8; ++i) {
        pthread_join(threads[i], NULL);
    }
    for (i = 0; i < N_ENGINES; ++i) {
        foredraft_engine_free(engines[i]);
    }
    after = memory();
    if (n_samples >= 8) {
        grows = grew(samples, n_samples);
    }
    printf("| %ld s of chaos | %ld calls, %ld loads, %ld more engines loaded and freed, %ld forks, %ld completions compared, %d different | "
           "%ld KiB before, %ld KiB after, of which the allocator needs %ld KiB |\n", seconds, (long) n_calls, (long) n_loaded, (long) n_freed, (long) n_forks,
           (long) n_right, (int) n_wrong, before, after, needed());
    return n_wrong > 0 || grows;
}
