// Wrappers of llama.cpp's functions that can throw, and of some that its installed headers lack. An exception must never reach the frames
// of Rust or of the host. On failure a wrapper returns the value documented below, and writes the message to `why`.
#include "guard.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "gguf.h"
#include "native.h"
#include "sources/stream.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <regex>
#include <stdexcept>

#ifdef FOREDRAFT_HAS_STREAMS
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

namespace {

using guard::guarded;
using guard::seek_to;

// The flags for a whole state, or for the part that later tokens overwrite.
llama_state_seq_flags state_flags(bool partial) {
    return partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

#ifdef FOREDRAFT_HAS_STREAMS
// Copies memory of this process through a pipe, at most as much as fits into the pipe.
ssize_t read_memory_by_pipe(char * to, const void * from, size_t size) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return -1;
    }
    ssize_t n = write(ends[1], from, size);
    for (ssize_t done = 0, more = 1; done < n && more > 0; done += more) {
        more = read(ends[0], to + done, static_cast<size_t>(n - done));
        if (more <= 0) {
            n = -1;
        }
    }
    const int why = errno;
    close(ends[0]);
    close(ends[1]);
    errno = why;
    return n;
}

// Copies memory of this process. The kernel reads it, so an address that is not mapped gives an error instead of a crash.
ssize_t read_memory(char * to, uint64_t address, size_t size) {
    const iovec local = { to, size }, remote = { reinterpret_cast<void *>(static_cast<uintptr_t>(address)), size };
    const ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    // Some sandboxes forbid or lack this system call.
    return n >= 0 || (errno != EPERM && errno != ENOSYS) ? n : read_memory_by_pipe(to, remote.iov_base, size);
}

// A part of the host's file, or of its memory if `fd` is -1.
class PartOfHost : public stream::Bytes {
  public:
    PartOfHost(int fd, uint64_t start, uint64_t length) : Bytes(length), fd(fd), start(start) {}

    ssize_t read(uint64_t at, char * to, size_t size) noexcept override {
        ssize_t n;
        do {
            n = fd < 0 ? read_memory(to, start + at, size) : pread(fd, to, size, static_cast<off_t>(start + at));
        } while (n < 0 && errno == EINTR);
        return n;
    }

  private:
    const int fd;
    const uint64_t start;
};
#endif

}  // namespace

bool guard::seek_to(void * stream, uint64_t at) {
    FILE * file = static_cast<FILE *>(stream);
    std::clearerr(file);
#ifdef FOREDRAFT_HAS_STREAMS
    return fseeko(file, static_cast<off_t>(at), SEEK_SET) == 0;
#else
    return at == 0 && std::fseek(file, 0, SEEK_SET) == 0;
#endif
}

guard::Head guard::read_head(const char * path, void * stream, uint64_t start) {
    gguf_context * read = nullptr;
    if (stream == nullptr) {
        read = gguf_init_from_file(path, { true, nullptr });
    } else if (seek_to(stream, start)) {
        read = gguf_init_from_file_ptr(static_cast<FILE *>(stream), { true, nullptr });
    }
    return { read, gguf_free };
}

extern "C" {

// Whether this thread is inside a guarded call.
bool foredraft_is_guarded() {
    return guard::depth > 0;
}

llama_model * foredraft_model_load(const char * path, void * stream, uint64_t start, llama_model_params params, char * why,
                                   size_t why_size) {
    return guarded<llama_model *>(nullptr, why, why_size, [&]() -> llama_model * {
        if (stream == nullptr) {
            return llama_model_load_from_file(path, params);
        }
        // Lazily read weights are mapped even if mapping is off.
        params.lazy_mode = LLAMA_LAZY_MODE_OFF;
        return seek_to(stream, start) ? llama_model_load_from_file_ptr(static_cast<FILE *>(stream), params) : nullptr;
    });
}

#ifdef FOREDRAFT_HAS_STREAMS
void * foredraft_stream_open(int fd, uint64_t start, uint64_t * length, bool mapped, char * why, size_t why_size) {
    const auto refuse = [&](const char * message) -> void * {
        std::snprintf(why, why_size, "%s", message);
        return nullptr;
    };
    if (fd >= 0) {
        struct stat about;
        const int flags = fcntl(fd, F_GETFL);
        if (flags == -1 || fstat(fd, &about) != 0) {
            return refuse("there is no such open file descriptor");
        }
        if (!S_ISREG(about.st_mode)) {
            return refuse("is not a regular file");
        }
        if ((flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH) != 0) {
            return refuse("is not open for reading");
        }
        const uint64_t size = static_cast<uint64_t>(about.st_size);
        if (start > size || (*length != UINT64_MAX && *length > size - start)) {
            std::snprintf(why, why_size, "goes beyond the end of the file, which has %llu bytes", static_cast<unsigned long long>(size));
            return nullptr;
        }
        *length = *length == UINT64_MAX ? size - start : *length;
    }
    if (mapped) {
        char path[64];
        std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        FILE * file = std::fopen(path, "rbe");
        return file != nullptr ? file : refuse("cannot be opened again to be mapped; use_mmap false reads it instead");
    }
    FILE * file = stream::open(std::unique_ptr<stream::Bytes>(new (std::nothrow) PartOfHost(fd, start, *length)));
    return file != nullptr ? file : refuse("no memory");
}
#else
void * foredraft_stream_open(int, uint64_t, uint64_t *, bool, char * why, size_t why_size) {
    std::snprintf(why, why_size, "models from descriptors and from memory are not available on this platform");
    return nullptr;
}
#endif

void foredraft_stream_close(void * stream) {
    std::fclose(static_cast<FILE *>(stream));
}

size_t foredraft_stream_read(void * stream, uint64_t at, uint8_t * to, size_t size) {
    return seek_to(stream, at) ? std::fread(to, 1, size, static_cast<FILE *>(stream)) : 0;
}

llama_context * foredraft_context_new(llama_model * model, llama_context_params params, char * why, size_t why_size) {
    return guarded<llama_context *>(nullptr, why, why_size, [&] { return llama_init_from_model(model, params); });
}

int32_t foredraft_decode(llama_context * ctx, llama_batch batch, bool encoder, char * why, size_t why_size) {
    return guarded<int32_t>(-1000, why, why_size, [&] {
        try {
            return encoder ? llama_encode(ctx, batch) : llama_decode(ctx, batch);
        } catch (const std::bad_alloc & e) {
            std::snprintf(why, why_size, "%s", e.what());
            return int32_t(-1001);
        }
    });
}

bool foredraft_set_reference(llama_context * ctx, bool reference) {
    bool found = false;
    const ggml_backend_sched_t sched = ctx->get_sched();
    for (int i = 0; sched != nullptr && i < ggml_backend_sched_get_n_backends(sched); ++i) {
        const ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        const ggml_backend_dev_t device = ggml_backend_get_device(backend);
        if (device == nullptr || ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            continue;
        }
        void * set = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_cpu_set_use_ref");
        if (set != nullptr) {
            reinterpret_cast<void (*)(ggml_backend_t, bool)>(set)(backend, reference);
            found = true;
        }
    }
    return found;
}

bool foredraft_check_pattern(const char * pattern, char * why, size_t why_size) {
    return guarded(false, why, why_size, [&] {
        const std::regex read(pattern);
        return true;
    });
}

int32_t foredraft_guarded_tokenize(const llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens,
                           int32_t n_tokens_max, bool add_special, bool parse_special, char * why, size_t why_size) {
    return guarded<int32_t>(INT32_MIN, why, why_size, [&] {
        return llama_tokenize(vocab, text, text_len, tokens, n_tokens_max, add_special, parse_special);
    });
}

int32_t foredraft_guarded_detokenize(const llama_vocab * vocab, const llama_token * tokens, int32_t n_tokens, char * text,
                             int32_t text_len_max, bool unparse_special, char * why, size_t why_size) {
    return guarded<int32_t>(INT32_MIN, why, why_size, [&] {
        return llama_detokenize(vocab, tokens, n_tokens, text, text_len_max, false, unparse_special);
    });
}

int32_t foredraft_guarded_chat_template(const char * name, const llama_chat_message * chat, size_t n_messages, bool begins_answer, char * text,
                             int32_t text_len_max, char * why, size_t why_size) {
    return guarded<int32_t>(INT32_MIN, why, why_size, [&] {
        return llama_chat_apply_template(name, chat, n_messages, begins_answer, text, text_len_max);
    });
}

llama_adapter_lora * foredraft_lora_load(llama_model * model, const char * path, void * stream, char * why, size_t why_size) {
    return guarded<llama_adapter_lora *>(nullptr, why, why_size, [&]() -> llama_adapter_lora * {
        if (stream == nullptr) {
            return llama_adapter_lora_init(model, path);
        }
        return seek_to(stream, 0) ? llama_adapter_lora_init_from_file_ptr(model, static_cast<FILE *>(stream)) : nullptr;
    });
}

size_t foredraft_state_size(llama_context * ctx, llama_seq_id seq, bool partial, char * why, size_t why_size) {
    return guarded<size_t>(0, why, why_size, [&] { return llama_state_seq_get_size_ext(ctx, seq, state_flags(partial)); });
}

size_t foredraft_state_get(llama_context * ctx, uint8_t * to, size_t size, llama_seq_id seq, bool partial,
                           char * why, size_t why_size) {
    return guarded<size_t>(0, why, why_size, [&] { return llama_state_seq_get_data_ext(ctx, to, size, seq, state_flags(partial)); });
}

size_t foredraft_state_set(llama_context * ctx, const uint8_t * from, size_t size, llama_seq_id seq,
                           bool partial, char * why, size_t why_size) {
    return guarded<size_t>(0, why, why_size, [&] { return llama_state_seq_set_data_ext(ctx, from, size, seq, state_flags(partial)); });
}

bool foredraft_seq_move(llama_memory_t memory, llama_seq_id seq, llama_pos from, llama_pos to, llama_pos by, char * why,
                        size_t why_size) {
    return guarded<bool>(false, why, why_size, [&] { llama_memory_seq_add(memory, seq, from, to, by); return true; });
}

ggml_backend_reg_t foredraft_rpc_add(ggml_backend_reg_t (*add)(const char *), const char * endpoint, char * why, size_t why_size) {
    return guarded<ggml_backend_reg_t>(nullptr, why, why_size, [&] { return add(endpoint); });
}

bool foredraft_device_memory(ggml_backend_dev_t device, size_t * free, size_t * total, char * why, size_t why_size) {
    return guarded<bool>(false, why, why_size, [&] { ggml_backend_dev_memory(device, free, total); return true; });
}

ggml_threadpool * foredraft_threadpool_new(ggml_threadpool * (*create)(ggml_threadpool_params *), ggml_threadpool_params * params,
                                           char * why, size_t why_size) {
    return guarded<ggml_threadpool *>(nullptr, why, why_size, [&] { return create(params); });
}

void foredraft_keep_hidden(llama_context * ctx, bool keep, bool with_logits_alone) {
    llama_set_embeddings_nextn(ctx, keep, with_logits_alone);
}

void foredraft_set_mtp_layer(llama_context * ctx, int32_t layer) {
    llama_set_nextn_layer_offset(ctx, layer);
}

const float * foredraft_hidden(llama_context * ctx, int32_t index, char * why, size_t why_size) {
    return guarded<const float *>(nullptr, why, why_size, [&] { return llama_get_embeddings_nextn_ith(ctx, index); });
}

bool foredraft_keep_layer_input(llama_context * ctx, uint32_t layer, bool keep, char * why, size_t why_size) {
    return guarded<bool>(false, why, why_size, [&] { llama_set_embeddings_layer_inp(ctx, layer, keep); return true; });
}

const float * foredraft_layer_inputs(llama_context * ctx, uint32_t layer, char * why, size_t why_size) {
    return guarded<const float *>(nullptr, why, why_size, [&] { return llama_get_embeddings_layer_inp(ctx, layer); });
}

size_t foredraft_target_layers(const llama_model * model, const int32_t ** layers) {
    *layers = llama_model_target_layer_ids(model);
    return *layers == nullptr ? 0 : llama_model_target_layer_ids_n(model);
}

}
