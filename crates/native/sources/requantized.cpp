// A GGUF file with smaller weights, as a stream: it has the file's head with other types, and quantizes weights when llama.cpp reads them. So there
// is no second file, and at most AHEAD of the weights are in memory twice.
#include "../guard.h"
#include "../native.h"
#include "stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#ifdef FOREDRAFT_HAS_STREAMS

namespace {

// Threads that quantize, at most.
constexpr int64_t MOST_THREADS = 16;
// Weights that a thread quantizes at once, which takes much longer than to start it.
constexpr int64_t PIECE = 1 << 16;
// Weights that are quantized ahead, as a FILE * reads a few kilobytes at once.
constexpr int64_t AHEAD = 64 * PIECE;

struct Close {
    void operator()(FILE * file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, Close>;

struct Free {
    void operator()(ggml_context * context) const { ggml_free(context); }
};

// The head of a file, with its tensors.
struct Head {
    guard::Head values = { nullptr, gguf_free };
    std::unique_ptr<ggml_context, Free> tensors;
};

// Throws if it cannot be read.
Head read_head(FILE * file, uint64_t start) {
    ggml_context * tensors = nullptr;
    Head head;
    head.values.reset(guard::seek_to(file, start) ? gguf_init_from_file_ptr(file, { true, &tensors }) : nullptr);
    head.tensors.reset(tensors);
    if (!head.values) {
        throw std::runtime_error("its metadata cannot be read");
    }
    return head;
}

// Whether weights of a tensor take more bits than `type`, and can be quantized. Vectors are not multiplied, and files have matrices in F32 where
// llama.cpp needs them so.
bool is_larger(const ggml_tensor * tensor, ggml_type type) {
    const bool is_weight = ggml_is_quantized(tensor->type) || tensor->type == GGML_TYPE_F16 || tensor->type == GGML_TYPE_BF16;
    const int64_t n = ggml_blck_size(tensor->type) * ggml_blck_size(type);
    return is_weight && ggml_nrows(tensor) > 1 && tensor->ne[0] % ggml_blck_size(type) == 0 && ggml_row_size(tensor->type, n) > ggml_row_size(type, n)
           && ggml_get_type_traits(tensor->type)->to_float != nullptr;
}

// Whether a tensor of a projector is a matrix that its encoder multiplies. Others are kernels of convolutions, are looked up or transposed.
bool is_multiplied(const ggml_tensor * tensor) {
    static const std::regex NAMES(R"((v|a)\.blk\.\d+\.(attn_(q|k|v|qkv|out)|ffn_(up|gate|down))\.weight|mm(\.a)?(\.mlp|\.model\.mlp)?\.\d+\.weight|mm\.model\.fc\.weight)");
    return ggml_n_dims(tensor) == 2 && std::regex_match(tensor->name, NAMES);
}

// The weights of a tensor in a file and in the stream.
struct Weights {
    FILE * file;
    uint64_t in_file, in_stream;
    ggml_type file_type, type;
    // Those of several matrices follow each other.
    int64_t n_rows, width;

    size_t row_size() const { return ggml_row_size(type, width); }
    uint64_t size() const { return row_size() * static_cast<uint64_t>(n_rows); }
};

class Requantized : public stream::Bytes {
  public:
    Requantized(std::vector<File> files, std::vector<char> head, std::vector<Weights> weights)
        : Bytes(weights.back().in_stream + weights.back().size()), files(std::move(files)), head(std::move(head)), weights(std::move(weights)) {}

    ssize_t read(uint64_t at, char * to, size_t size) noexcept override {
        // The next call reads the rest of the request.
        if (at < head.size()) {
            size = std::min<size_t>(size, head.size() - at);
            std::memcpy(to, head.data() + at, size);
            return static_cast<ssize_t>(size);
        }
        const auto after = std::upper_bound(weights.begin(), weights.end(), at, [](uint64_t at, const Weights & of) { return at < of.in_stream; });
        const Weights & of = *(after - 1);
        const uint64_t from = at - of.in_stream;
        if (from >= of.size()) {
            // The gap before the next tensor.
            size = after == weights.end() ? size : std::min<size_t>(size, after->in_stream - at);
            std::memset(to, 0, size);
            return static_cast<ssize_t>(size);
        }
        size = std::min<size_t>(size, of.size() - from);
        if (of.type == of.file_type) {
            errno = EIO;
            return read_file(of.file, of.in_file + from, to, size) ? static_cast<ssize_t>(size) : -1;
        }
        if (ahead.of != &of || from < ahead.from || from >= ahead.from + ahead.bytes.size()) {
            ahead.of = nullptr;
            if (const int failure = quantize(of, from / of.row_size()); failure != 0) {
                errno = failure;
                return -1;
            }
        }
        size = std::min<size_t>(size, ahead.from + ahead.bytes.size() - from);
        std::memcpy(to, ahead.bytes.data() + (from - ahead.from), size);
        return static_cast<ssize_t>(size);
    }

  private:
    // Reads from a file. Returns false at its end and after an error.
    bool read_file(FILE * file, uint64_t at, void * to, size_t size) {
        const std::lock_guard<std::mutex> lock(reads);
        return guard::seek_to(file, at) && std::fread(to, 1, size, file) == size;
    }

    // Quantizes rows from `first` on, to be read. Returns 0 or an error as errno has it.
    int quantize(const Weights & of, int64_t first) noexcept try {
        const int64_t at_once = std::max<int64_t>(PIECE / of.width, 1), end = std::min(of.n_rows, first + std::max(AHEAD / of.width, at_once));
        const size_t in_file = ggml_row_size(of.file_type, of.width);
        ahead.bytes.resize((end - first) * of.row_size());
        std::atomic<int64_t> next { first };
        std::atomic<int> failure { 0 };
        const auto work = [&]() noexcept {
            try {
                std::vector<char> rows(at_once * in_file);
                std::vector<float> floats(at_once * of.width);
                for (int64_t row; failure == 0 && (row = next.fetch_add(at_once)) < end;) {
                    const int64_t n = std::min(at_once, end - row);
                    if (!read_file(of.file, of.in_file + row * in_file, rows.data(), n * in_file)) {
                        failure = EIO;
                        return;
                    }
                    ggml_get_type_traits(of.file_type)->to_float(rows.data(), floats.data(), n * of.width);
                    ggml_quantize_chunk(of.type, floats.data(), ahead.bytes.data() + (row - first) * of.row_size(), 0, n, of.width, nullptr);
                }
            } catch (const std::exception &) {
                failure = ENOMEM;
            }
        };
        const int64_t n_cores = std::thread::hardware_concurrency(), n_pieces = (end - first) / at_once;
        std::vector<std::thread> threads;
        try {
            for (int64_t n = std::min({ MOST_THREADS, n_cores, n_pieces }); n > 1; --n) {
                threads.emplace_back(work);
            }
        } catch (const std::exception &) {
            // Fewer threads do the same.
        }
        work();
        for (std::thread & thread : threads) {
            thread.join();
        }
        ahead.of = failure == 0 ? &of : nullptr;
        ahead.from = first * of.row_size();
        return failure;
    } catch (const std::exception &) {
        return ENOMEM;
    }

    const std::vector<File> files;
    const std::vector<char> head;
    // In the order of the stream, and at least one.
    const std::vector<Weights> weights;
    std::mutex reads;
    // Bytes of a tensor from byte `from` on that are quantized. NULL: none.
    struct {
        const Weights * of = nullptr;
        uint64_t from = 0;
        std::vector<char> bytes;
    } ahead;
};

// The value of general.file_type.
llama_ftype file_type(ggml_type type) {
    return type == GGML_TYPE_Q8_0 ? LLAMA_FTYPE_MOSTLY_Q8_0 : LLAMA_FTYPE_MOSTLY_Q4_0;
}

// The stream of the files with `type`. NULL: none of their weights are larger. `files` are those to close with the stream.
FILE * open_requantized(std::vector<File> files, const std::vector<std::pair<FILE *, uint64_t>> & all, ggml_type type) {
    std::vector<Head> heads;
    std::vector<Weights> weights;
    for (const auto & [file, start] : all) {
        const Head & head = heads.emplace_back(read_head(file, start));
        const int64_t key = gguf_find_key(head.values.get(), "general.architecture");
        const bool is_projector = key >= 0 && gguf_get_kv_type(head.values.get(), key) == GGUF_TYPE_STRING
                                  && std::strcmp(gguf_get_val_str(head.values.get(), key), "clip") == 0;
        for (int64_t i = 0; i < gguf_get_n_tensors(head.values.get()); ++i) {
            const ggml_tensor * tensor = ggml_get_tensor(head.tensors.get(), gguf_get_tensor_name(head.values.get(), i));
            const uint64_t at = gguf_get_data_offset(head.values.get()) + gguf_get_tensor_offset(head.values.get(), i);
            const bool is_made = is_larger(tensor, type) && (!is_projector || is_multiplied(tensor));
            const ggml_type made = is_made ? type : tensor->type;
            weights.push_back({ file, at, 0, tensor->type, made, ggml_nrows(tensor), tensor->ne[0] });
        }
    }
    // llama.cpp says which of several files is absent.
    const gguf_context * first = heads.front().values.get();
    const int64_t count = gguf_find_key(first, "split.count");
    if (count >= 0 && gguf_get_val_u16(first, count) > all.size()) {
        return nullptr;
    }
    if (std::all_of(weights.begin(), weights.end(), [](const Weights & of) { return of.type == of.file_type; })) {
        return nullptr;
    }
    // The first head with the tensors of the others.
    gguf_context * head = heads.front().values.get();
    for (size_t i = 1; i < heads.size(); ++i) {
        const gguf_context * values = heads[i].values.get();
        for (int64_t t = 0; t < gguf_get_n_tensors(values); ++t) {
            gguf_add_tensor(head, ggml_get_tensor(heads[i].tensors.get(), gguf_get_tensor_name(values, t)));
        }
    }
    gguf_remove_key(head, "split.count");
    gguf_set_val_u32(head, "general.file_type", file_type(type));
    for (size_t i = 0; i < weights.size(); ++i) {
        gguf_set_tensor_type(head, gguf_get_tensor_name(head, i), weights[i].type);
    }
    std::vector<char> bytes(gguf_get_meta_size(head));
    gguf_get_meta_data(head, bytes.data());
    for (size_t i = 0; i < weights.size(); ++i) {
        weights[i].in_stream = bytes.size() + gguf_get_tensor_offset(head, i);
    }
    FILE * file = stream::open(std::make_unique<Requantized>(std::move(files), std::move(bytes), std::move(weights)));
    return file != nullptr ? file : throw std::bad_alloc();
}

}  // namespace

extern "C" {

void * foredraft_requantized_open(const char * const * paths, size_t n_paths, void * stream, uint64_t start, ggml_type type, uint64_t * length,
                                  char * why, size_t why_size) {
    return guard::guarded<void *>(nullptr, why, why_size, [&]() -> void * {
        std::vector<File> files;
        std::vector<std::pair<FILE *, uint64_t>> all;
        for (size_t i = 0; i < n_paths; ++i) {
            files.emplace_back(std::fopen(paths[i], "rbe"));
            if (!files.back()) {
                throw std::runtime_error(std::strerror(errno));
            }
            all.push_back({ files.back().get(), 0 });
        }
        if (n_paths == 0) {
            all.push_back({ static_cast<FILE *>(stream), start });
        }
        FILE * file = open_requantized(std::move(files), all, type);
        if (file != nullptr) {
            std::fseek(file, 0, SEEK_END);
            *length = static_cast<uint64_t>(std::ftell(file));
        }
        return file;
    });
}

}

#else

void * foredraft_requantized_open(const char * const *, size_t, void *, uint64_t, ggml_type, uint64_t *, char * why, size_t why_size) {
    std::snprintf(why, why_size, "%s", "");
    return nullptr;
}
#endif
