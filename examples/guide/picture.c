/* Asks a model about a picture in the program's memory. From the root of the repository, after `make build`:
 *   cc -Iinclude examples/guide/picture.c -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/picture
 *   target/picture MODEL.gguf MMPROJ.gguf */
#include "foredraft.h"
#include "../json_mini.h" /* any JSON library will do */

#include <stdint.h>

enum { WIDTH = 64, HEIGHT = 48 };
static unsigned char pixels[HEIGHT][WIDTH][3];

/* A red square on white. */
static void draw(void) {
    memset(pixels, 255, sizeof pixels);
    for (int y = 16; y < 32; ++y)
        for (int x = 24; x < 40; ++x) pixels[y][x][1] = pixels[y][x][2] = 0;
}

/* ANCHOR: picture */
/* The answer to a question about the pixels, which are copied before the call returns. */
static char *ask(foredraft_engine *engine, const char *question) {
    char request[1024], *text = json_quote(question);
    snprintf(request, sizeof request,
             "{\"messages\": [{\"role\": \"user\", \"content\": ["
             "{\"type\": \"image\", \"width\": %d, \"height\": %d, \"format\": \"rgb8\", \"address\": %llu},"
             " {\"type\": \"text\", \"text\": %s}]}], \"n_predict\": 30, \"temperature\": 0}",
             WIDTH, HEIGHT, (unsigned long long)(uintptr_t)pixels, text);
    free(text);
    return foredraft_complete(engine, request);
}
/* ANCHOR_END: picture */

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: picture MODEL MMPROJ\n"), 2;
    char load[4096], *model = json_quote(argv[1]), *mmproj = json_quote(argv[2]);
    snprintf(load, sizeof load, "{\"model\": %s, \"mmproj\": %s}", model, mmproj);
    free(model);
    free(mmproj);
    foredraft_engine *engine = foredraft_engine_new();
    char *answer = NULL, *content = NULL;
    if (foredraft_load(engine, load) == FOREDRAFT_OK) {
        draw();
        answer = ask(engine, "What is in the picture?");
        content = json_text(json_member(answer, "content"));
    } else {
        answer = foredraft_status(engine); /* "error" says why */
    }
    const int failed = content == NULL;
    if (failed) fprintf(stderr, "%s\n", answer);
    else puts(content);
    foredraft_string_free(answer);
    foredraft_engine_free(engine);
    free(content);
    return failed;
}
