/* A completion whose logits this program changes: with a penalty of its own for what was said just before. */
#include "foredraft.h"
#include "../json_mini.h"

/* ANCHOR: callback */
static void repeat_less(uint64_t id, float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n_tokens, void *user) {
    const float *penalty = user;
    (void) id, (void) n_vocab;
    for (int32_t i = n_tokens > 20 ? n_tokens - 20 : 0; i < n_tokens; i++) logits[tokens[i]] -= *penalty;
}

static char *complete(foredraft_engine *engine) {
    float penalty = 2; /* lives until the callback is removed */
    foredraft_set_logits_callback(engine, repeat_less, &penalty);
    char *answer = foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 60, \"seed\": 7,"
                                              " \"repeat_penalty\": 1, \"logits_callback\": true}");
    foredraft_set_logits_callback(engine, NULL, NULL);
    return answer;
}
/* ANCHOR_END: callback */

int main(void) {
    foredraft_engine *engine = foredraft_engine_new();
    if (foredraft_load(engine, "{\"model\": \"models/stories-target.gguf\", \"model_draft\": \"models/stories-draft.gguf\"}") != FOREDRAFT_OK) {
        return 1;
    }
    char *answer = complete(engine);
    char *text = json_text(json_member(answer, "content"));
    puts(text ? text : answer);
    free(text);
    foredraft_string_free(answer);
    foredraft_engine_free(engine);
    return 0;
}
