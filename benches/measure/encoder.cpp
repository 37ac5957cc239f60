// Prints the seconds of processor time in which llama.cpp's mtmd encodes a square picture: MODEL MMPROJ SIDE THREADS.
#include "llama.h"
#include "mtmd.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

int main(int, char ** arguments) {
    const uint32_t side = std::atoi(arguments[3]);
    mtmd_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model * model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    mtmd_context_params params = mtmd_context_params_default();
    params.print_timings = false;
    params.n_threads = std::atoi(arguments[4]);
    mtmd_context * projector = mtmd_init_from_file(arguments[2], model, params);
    std::vector<unsigned char> pixels(size_t(side) * side * 3);
    for (size_t i = 0; i < pixels.size(); ++i) {
        pixels[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
    }
    const mtmd_bitmap * bitmap = mtmd_bitmap_init(side, side, pixels.data());
    mtmd_input_chunks * chunks = mtmd_input_chunks_init();
    const mtmd_input_part part = { nullptr, bitmap };
    const mtmd_input_part * parts[] = { &part };
    if (mtmd_tokenize_from_parts(projector, chunks, parts, 1, false) != 0) {
        return 1;
    }
    const auto now = [] {
        timespec time;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
        return time.tv_sec + time.tv_nsec / 1e9;
    };
    const double before = now();
    for (size_t i = 0; i < mtmd_input_chunks_size(chunks); ++i) {
        const mtmd_input_chunk * chunk = mtmd_input_chunks_get(chunks, i);
        if (mtmd_input_chunk_get_type(chunk) != MTMD_INPUT_CHUNK_TYPE_TEXT && mtmd_encode_chunk(projector, chunk) != 0) {
            return 1;
        }
    }
    std::printf("%f\n", now() - before);
}
