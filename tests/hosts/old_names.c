/* A host of the old server that has functions of its own under names that foredraft added: it includes rpcserver.h, compiles unchanged as C
 * and as C++, links with the shared or the static library, and its own functions are called. Arguments: the model. */
#include "rpcserver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
int called = 0;
double version(double x) { called++; return x + 1; }
int free_string(int n, char c) { called++; return n + c; }
char set_log_callback(void) { called++; return 'l'; }
char set_update_callback(void) { called++; return 'u'; }
int detokenize(int token) { called++; return token; }
int apply_template(int a, int b) { called++; return a * b; }
float get_embedding(float x) { called++; return x; }
int speculative_completion(void) { called++; return 1; }
int speculative_completion_init(void) { called++; return 2; }
int speculative_completion_poll(void) { called++; return 3; }
int speculative_completion_cancel(void) { called++; return 4; }
int lookup_create(void) { called++; return 5; }
int lookup_merge(void) { called++; return 6; }
int lookup_stats(void) { called++; return 7; }
int lookup_cache(void) { called++; return 8; }
int session_save(void) { called++; return 9; }
int session_load(void) { called++; return 10; }
#ifdef __cplusplus
}
#endif

static int sum(void) {
    return (int)version(1.5) + free_string(1, 'a') + set_log_callback() + set_update_callback() + detokenize(3) + apply_template(2, 3) +
           (int)get_embedding(4) + speculative_completion() + speculative_completion_init() + speculative_completion_poll() +
           speculative_completion_cancel() + lookup_create() + lookup_merge() + lookup_stats() + lookup_cache() + session_save() + session_load();
}

int main(int argc, char **argv) {
    char config[4096];
    const char *answer;
    int total;
    if (argc < 2) return 2;
    sprintf(config, "{\"model\": \"%.4000s\", \"n_ctx\": 256, \"n_threads\": 1}", argv[1]);
    if (init(config) != 0) {
        puts(poll_system_status());
        return 1;
    }
    answer = get_completion("{\"prompt\": \"Once upon a time\", \"n_predict\": 8, \"temperature\": 0}");
    if (strstr(answer, "\"tokens_predicted\":8") == NULL) return 1;
    free((void *)answer);
    answer = async_completion_init("{\"prompt\": \"Once\", \"n_predict\": -1, \"ignore_eos\": true}");
    free((void *)answer);
    answer = async_completion_cancel(NULL);
    free((void *)answer);
    do {
        free((void *)(answer = async_completion_poll("{}")));
        answer = async_completion_poll("{}");
    } while (strstr(answer, "\"finished\":true") == NULL && (free((void *)answer), 1));
    free((void *)answer);
    answer = tokenize("{\"text\": \"a\"}");
    free((void *)answer);
    deinit();
    total = sum();
    printf("%d %d\n", total, called);
    return 0;
}
