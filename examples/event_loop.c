/* The library in an event loop: epoll waits for updates of requests and for a timer. Linux, C99:
 *   cc -std=c99 -Iinclude examples/event_loop.c -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/event_loop
 *   target/event_loop ["a prompt" [target.gguf [draft.gguf]]]
 * The update callback only writes to an eventfd, because it runs on the engine's thread and must not block it. (With "notify_fd" in the
 * configuration, the library writes to the eventfd without a callback: see event_loop.py.) */
#define _GNU_SOURCE
#include "foredraft.h"
#include "json_mini.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

static void on_update(uint64_t id, void *user) {
    uint64_t one = 1;
    (void)id;
    if (write(*(int *)user, &one, sizeof one) < 0) { /* full: the loop wakes up anyway */ }
}

/* Adds a descriptor to epoll, and returns it. */
static int watched(int epoll, int fd) {
    struct epoll_event event = {0};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        perror("event_loop");
        exit(1);
    }
    return fd;
}

/* Prints the new text of a request. Returns 1 if it has finished, -1 if it failed. */
static int print_updates(foredraft_engine *engine, double id) {
    char command[64];
    int ended;
    snprintf(command, sizeof command, "{\"id\": %.0f}", id); /* without timeout_ms it never waits */
    char *reply = foredraft_poll(engine, command);
    const char *update = json_first(json_member(reply, "completion_updates"));
    for (; update; update = json_next(update)) {
        char *content = json_text(json_member(update, "content"));
        fputs(content, stdout);
        fflush(stdout);
        free(content);
    }
    ended = !json_true(json_member(reply, "success")) ? -1 : json_true(json_member(reply, "finished"));
    foredraft_string_free(reply);
    return ended;
}

int main(int argc, char **argv) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int updates_fd = watched(epoll, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int timer = watched(epoll, timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    struct itimerspec every = {{0, 10 * 1000 * 1000}, {0, 10 * 1000 * 1000}};
    char *prompt = json_quote(argc > 1 ? argv[1] : "Once upon a time");
    char *model = json_quote(argc > 2 ? argv[2] : "models/stories-target.gguf");
    char *draft = json_quote(argc > 3 ? argv[3] : argc > 2 ? "" : "models/stories-draft.gguf");
    char *text = (char *)malloc(strlen(prompt) + strlen(model) + strlen(draft) + 100);
    foredraft_engine *engine = foredraft_engine_new();
    double id = 0;
    unsigned ticks = 0;
    int ended = 0;

    foredraft_set_update_callback(engine, on_update, &updates_fd);
    sprintf(text, "{\"model\": %s, \"model_draft\": %s}", model, draft);
    foredraft_load_async(engine, text);
    sprintf(text, "{\"prompt\": %s, \"temperature\": 0, \"n_predict\": 64}", prompt);
    timerfd_settime(timer, 0, &every, NULL);
    while (ended == 0) {
        struct epoll_event events[8];
        int count = epoll_wait(epoll, events, 8, -1);
        for (int i = 0; i < count; i++) {
            uint64_t times = 0;
            if (read(events[i].data.fd, &times, sizeof times) < 0) continue;
            if (events[i].data.fd == updates_fd) {
                ended = print_updates(engine, id);
            } else {
                /* A game would draw its frame here. */
                ticks += (unsigned)times;
                if (id != 0) continue;
                char *status = foredraft_status(engine);
                double loaded = json_number(json_member(status, "load_state"));
                if (loaded > 0) {
                    char *reply = foredraft_submit(engine, text);
                    id = json_number(json_member(reply, "id"));
                    if (id == 0) ended = -1;
                    foredraft_string_free(reply);
                } else if (loaded < 0) {
                    ended = -1;
                }
                foredraft_string_free(status);
            }
        }
    }
    puts("");
    fprintf(stderr, "[%u ticks]\n", ticks);
    foredraft_engine_free(engine); /* after this nothing calls back */
    free(text); free(draft); free(model); free(prompt);
    close(timer); close(updates_fd); close(epoll);
    return ended == 1 ? 0 : 1;
}
