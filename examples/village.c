/* A village in a terminal: a dozen villagers with moods and memories, one of whom talks to you, while the others think when there is time.
 * From the root of the repository:
 *   cc -std=c99 -Iinclude examples/village.c -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/village
 *   target/village [model.gguf]
 * An empty line goes on to the next villager, who greets you. Any other line is said to the one in front of you. */
#define _POSIX_C_SOURCE 200809L
#include "foredraft.h"
#include "json_mini.h"

#include <poll.h>
#include <stdarg.h>
#include <time.h>

#define MOODS "\"happy\": null, \"sad\": null, \"angry\": null, \"curious\": null, \"tired\": null"

enum { N = 12, FRAME_MS = 16, REST = 30 * 60 }; /* villagers; milliseconds of a frame; frames between two thoughts */
enum activity { RESTS, THINKS, FEELS, TALKS };

static const char *const people[N][2] = {
    {"Mia", "a baker"}, {"Tom", "a boy with a red kite"}, {"Lily", "a girl who loves flowers"}, {"Ben", "a fisherman"},
    {"Anna", "a teacher"}, {"Max", "a farmer with a big dog"}, {"Sue", "an old lady with a cat"}, {"Sam", "a smith"},
    {"Lucy", "a singer"}, {"Tim", "a lazy shepherd"}, {"Ella", "a doctor"}, {"Jack", "a sailor who came home"},
};

struct villager {
    const char *name;
    char *memory; /* the messages so far: JSON objects separated by commas */
    char *words;  /* what is being said or thought */
    char mood[16];
    enum activity activity;
    double id;       /* the request of the activity */
    long next_frame; /* when the villager thinks again */
};

static struct villager village[N];
static foredraft_engine *engine;
static int front = -1; /* the villager in front of you */
static long frame, n_late, n_tokens, n_thoughts, n_moods;

/* printf into a malloc'd string. */
static char *format(const char *pattern, ...) {
    va_list args;
    va_start(args, pattern);
    int length = vsnprintf(NULL, 0, pattern, args);
    va_end(args);
    char *text = (char *)malloc((size_t)length + 1);
    va_start(args, pattern);
    if (text) vsnprintf(text, (size_t)length + 1, pattern, args);
    va_end(args);
    return text;
}

static void replace(char **text, char *by) {
    free(*text);
    *text = by;
}

static void remember(struct villager *one, const char *role, const char *content) {
    char *quoted = json_quote(content);
    replace(&one->memory, format("%s, {\"role\": \"%s\", \"content\": %s}", one->memory, role, quoted));
    free(quoted);
}

/* The request for what a villager says or thinks next. Its conversation is the villager's name, so only new messages are decoded. */
static char *request(const struct villager *one, const char *situation, int priority) {
    char *quoted = json_quote(situation);
    char *text = format("{\"messages\": [%s, {\"role\": \"user\", \"content\": %s}], \"conversation\": \"%s\", \"priority\": %d, "
                        "\"n_predict\": 40, \"temperature\": 0.3, \"stop\": [\"\\n\"], \"seed\": 7", one->memory, quoted, one->name, priority);
    free(quoted);
    return text;
}

/* Calls a function, prints its error, and returns the number of the request. */
static double call(char *(*function)(foredraft_engine *, const char *), char *text) {
    char *reply = function(engine, text);
    double id = json_number(json_member(reply, "id"));
    if (!json_true(json_member(reply, "success"))) fprintf(stderr, "village: %s\n", reply);
    foredraft_string_free(reply);
    free(text);
    return id;
}

static void begin(struct villager *one, enum activity activity, char *text) {
    if (one->id) call(foredraft_cancel, format("{\"id\": %.0f}", one->id));
    replace(&one->words, format(""));
    one->id = call(foredraft_submit, text);
    one->activity = one->id ? activity : RESTS;
    one->next_frame = frame + REST;
}

static void feel(struct villager *one) {
    begin(one, FEELS, format("{\"messages\": [%s], \"conversation\": \"%s\", \"priority\": -5, \"questions\": {\"mood\": {\"type\": \"choice\", "
                             "\"instructions\": \"How does %s feel?\", \"criteria\": {" MOODS "}}}}", one->memory, one->name, one->name));
}

static const char greeting[] = "A friend comes to you. What do you say?";

/* The next villager's greeting is begun while nothing else is to be done, so it is there when you come. */
static void expect(void) {
    char *text = request(&village[(front + 1) % N], greeting, 10);
    call(foredraft_prepare, format("%s, \"begin\": true}", text));
    free(text);
}

static void talk(struct villager *one, const char *words) {
    char *text = request(one, words, 10);
    begin(one, TALKS, format("%s}", text));
    free(text);
    remember(one, "user", words);
    printf("%s (%s): ", one->name, one->mood);
}

/* A line of yours. */
static void hear(const char *line) {
    if (*line) {
        printf("You: %s\n", line);
        talk(&village[front], line);
    } else {
        front = (front + 1) % N;
        talk(&village[front], greeting);
    }
}

/* An update of what a villager says, thinks or feels. */
static void update(struct villager *one, const char *news) {
    char *content = json_text(json_member(news, "content"));
    if (one->activity == TALKS) fputs(content, stdout);
    replace(&one->words, format("%s%s", one->words, content));
    free(content);
    if (!json_true(json_member(news, "stop"))) return;
    n_tokens += (long)json_number(json_member(news, "tokens_predicted"));
    one->id = 0;
    if (one->activity == FEELS) {
        char *mood = json_text(json_member(json_member(json_member(news, "answers"), "mood"), "choice"));
        if (*mood) snprintf(one->mood, sizeof one->mood, "%s", mood);
        free(mood);
        one->activity = RESTS;
        n_moods++;
    } else {
        remember(one, "assistant", one->words);
        if (one->activity == TALKS) puts("");
        else n_thoughts++;
        feel(one);
    }
    expect();
}

/* Asks once in a frame what is new of all villagers, and lets those think who have rested. Never waits. Returns
 * how many are active. */
static int look(void) {
    char *ids = format("");
    int n_active = 0;
    for (int i = 0; i < N; i++) {
        struct villager *one = &village[i];
        if (i != front && one->activity == RESTS && frame >= one->next_frame) {
            char *text = request(one, "You are alone. What do you think about?", -5);
            begin(one, THINKS, format("%s}", text));
            free(text);
            remember(one, "user", "You are alone. What do you think about?");
        }
        if (!one->id) continue;
        n_active++;
        replace(&ids, format("%s%s%.0f", ids, *ids ? ", " : "", one->id));
    }
    char *command = format("{\"ids\": [%s]}", ids), *reply = *ids ? foredraft_poll(engine, command) : NULL;
    for (const char *each = json_first(json_member(reply, "results")); each; each = json_next(each)) {
        double id = json_number(json_member(each, "id"));
        for (int i = 0; i < N; i++) {
            if (village[i].id != id) continue;
            const char *news = json_first(json_member(each, "completion_updates"));
            for (; news; news = json_next(news)) update(&village[i], news);
            break;
        }
    }
    foredraft_string_free(reply);
    free(command);
    free(ids);
    fflush(stdout);
    return n_active;
}

static void show_meter(FILE *out) {
    char *status = foredraft_status(engine);
    int n_working = 0;
    for (const char *slot = json_first(json_member(status, "slots")); slot; slot = json_next(slot))
        n_working += json_number(json_member(slot, "request_id")) > 0;
    fprintf(out, "[frame %ld, %ld late; %ld tokens, %ld thoughts, %ld moods; %d slots work, %.0f requests wait; %.1f MB of conversations]\n",
            frame, n_late, n_tokens, n_thoughts, n_moods, n_working, json_number(json_member(status, "queue")),
            json_number(json_member(json_member(status, "conversations"), "bytes")) / 1e6);
    foredraft_string_free(status);
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    char *model = json_quote(argc > 1 ? argv[1] : "models/stories-target.gguf"), line[1024];
    /* The conversations of those who have no slot stay in memory. */
    char *config = format("{\"model\": %s, \"n_ctx\": 1024, \"n_parallel\": 3, \"cache_ram_mb\": 256}", model);
    engine = foredraft_engine_new();
    if (foredraft_load(engine, config) != 0) {
        char *status = foredraft_status(engine), *why = json_text(json_member(status, "error"));
        fprintf(stderr, "village: %s\n", why);
        return 1;
    }
    for (int i = 0; i < N; i++) {
        village[i].name = people[i][0];
        village[i].memory = format("{\"role\": \"system\", \"content\": \"You are %s, %s in a small village. Answer in one short sentence.\"}",
                                   people[i][0], people[i][1]);
        village[i].words = format("");
        strcpy(village[i].mood, "calm");
    }
    expect();
    struct pollfd input = {0, POLLIN, 0};
    int is_open = 1;
    double last = now_ms();
    setvbuf(stdin, NULL, _IONBF, 0);
    for (int n_active = 1; is_open || n_active > 0;) {
        n_active = look();
        int is_free = front < 0 || village[front].activity != TALKS;
        if (is_open && is_free && poll(&input, 1, 0) > 0) {
            if ((is_open = fgets(line, sizeof line, stdin) != NULL)) line[strcspn(line, "\n")] = 0;
            if (is_open && (front >= 0 || !*line)) hear(line);
        }
        if (++frame % 60 == 0) show_meter(stderr);
        double left = last + FRAME_MS - now_ms();
        n_late += left < 0;
        if (left > 0) poll(NULL, 0, (int)left);
        last = now_ms();
    }
    show_meter(stdout);
    foredraft_engine_free(engine);
    for (int i = 0; i < N; i++) free(village[i].memory), free(village[i].words);
    free(config);
    free(model);
    return 0;
}
