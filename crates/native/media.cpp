// Wrappers of mtmd, llama.cpp's encoders of pictures and sounds. See guard.cpp.
#include "guard.h"
#include "kernels/native.h"
#include "mtmd-helper.h"
#include "mtmd.h"
#include "native.h"
#include "sources/stream.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#ifdef FOREDRAFT_HAS_STREAMS
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace {

using guard::guarded;

// The nodes between two questions to the interrupt of an encode, for builds whose threads do not ask it themselves (kernels/barrier.c). Each
// question begins another graph, with its own threads.
constexpr unsigned NODES_PER_QUESTION = 64;

// The interrupt of the encode that runs on this thread, and the nodes since the last question.
thread_local const foredraft_interrupt * current = nullptr;
thread_local unsigned n_nodes = 0;

// ggml's callback: with `asks`, whether to end the graph at this node; then, whether to go on.
bool on_node(ggml_tensor *, bool asks, void *) {
    if (current == nullptr) {
        return !asks;
    }
    if (asks) {
        return ++n_nodes % NODES_PER_QUESTION == 0;
    }
    current->wait(current);
    return !current->stops(current);
}

// A copy of a part of a stream that has a path, because mtmd reads paths. It is gone with this object.
class Copy {
  public:
#ifdef FOREDRAFT_HAS_STREAMS
    Copy(void * stream, uint64_t start, uint64_t length) : file(::memfd_create("mmproj", MFD_CLOEXEC)) {
        std::vector<char> piece(1 << 20);
        FILE * from = static_cast<FILE *>(stream);
        bool is_whole = file >= 0 && guard::seek_to(stream, start);
        while (is_whole && length > 0) {
            const size_t n = std::fread(piece.data(), 1, length < piece.size() ? length : piece.size(), from);
            is_whole = n > 0 && ::write(file, piece.data(), n) == static_cast<ssize_t>(n);
            length -= n;
        }
        if (!is_whole) {
            const std::string reason = std::strerror(errno);
            close();
            throw std::runtime_error("cannot be copied: " + reason);
        }
    }
    ~Copy() { close(); }
    std::string path() const { return "/proc/self/fd/" + std::to_string(file); }

  private:
    void close() const { file >= 0 ? ::close(file) : 0; }
    const int file;
#else
    Copy(void *, uint64_t, uint64_t) { throw std::runtime_error("not available on this platform"); }
    std::string path() const { return ""; }
#endif
};

}  // namespace

extern "C" {

mtmd_context * foredraft_projector_load(const char * path, void * stream, uint64_t start, uint64_t length, const llama_model * model,
                                        int32_t n_threads, int32_t min_tokens, int32_t max_tokens, char * why, size_t why_size) {
    return guarded<mtmd_context *>(nullptr, why, why_size, [&] {
        const std::unique_ptr<Copy> copy(stream == nullptr ? nullptr : new Copy(stream, start, length));
        mtmd_context_params params = mtmd_context_params_default();
        params.print_timings = false;
        params.n_threads = n_threads;
        params.image_min_tokens = min_tokens > 0 ? min_tokens : -1;
        params.image_max_tokens = max_tokens > 0 ? max_tokens : -1;
        params.cb_eval = on_node;
        return mtmd_init_from_file(copy ? copy->path().c_str() : path, model, params);
    });
}

mtmd_bitmap * foredraft_media_read(const mtmd_context * projector, const uint8_t * file, size_t size, char * why, size_t why_size) {
    return guarded<mtmd_bitmap *>(nullptr, why, why_size, [&] {
        return mtmd_helper_bitmap_init_from_buf(projector, file, size, false, mtmd_helper_init_opt_default()).bitmap;
    });
}

mtmd_bitmap * foredraft_picture_new(uint32_t width, uint32_t height, const uint8_t * rgb, char * why, size_t why_size) {
    return guarded<mtmd_bitmap *>(nullptr, why, why_size, [&] { return mtmd_bitmap_init(width, height, rgb); });
}

mtmd_input_chunks * foredraft_media_chunks(const mtmd_context * projector, const mtmd_bitmap * medium, char * why, size_t why_size) {
    return guarded<mtmd_input_chunks *>(nullptr, why, why_size, [&]() -> mtmd_input_chunks * {
        std::unique_ptr<mtmd_input_chunks, decltype(&mtmd_input_chunks_free)> chunks(mtmd_input_chunks_init(), mtmd_input_chunks_free);
        const mtmd_input_part part = { nullptr, medium };
        const mtmd_input_part * const parts[] = { &part };
        return mtmd_tokenize_from_parts(projector, chunks.get(), parts, 1, false) == 0 ? chunks.release() : nullptr;
    });
}

const float * foredraft_media_encode(mtmd_context * projector, const mtmd_input_chunk * piece, const foredraft_interrupt * interrupt, char * why,
                                     size_t why_size) {
    current = interrupt;
    const float * rows = guarded<const float *>(nullptr, why, why_size, [&] {
        return mtmd_encode_chunk(projector, piece) == 0 ? mtmd_get_output_embd(projector) : nullptr;
    });
    current = nullptr;
    return rows;
}

}
