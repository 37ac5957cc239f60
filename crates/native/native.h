// The functions of this folder's C++ files that Rust calls. build/bindings.rs makes native.rs of them, and the C++ files include this header, so
// that no signature is written twice.
//
// No function throws. One that catches an exception returns the value that its comment says, and writes the message to `why`, of `why_size` bytes.
#pragma once

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-rpc.h"
#include "ggml.h"
#include "llama.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// -- sources/head.cpp

// The host's purpose for a file.
enum foredraft_role { FOREDRAFT_ROLE_TARGET, FOREDRAFT_ROLE_DRAFT, FOREDRAFT_ROLE_ADAPTER, FOREDRAFT_ROLE_PROJECTOR };

// How a file drafts.
enum foredraft_draft_kind {
    FOREDRAFT_DRAFT_KIND_MODEL,
    FOREDRAFT_DRAFT_KIND_MTP,
    FOREDRAFT_DRAFT_KIND_EAGLE3,
    FOREDRAFT_DRAFT_KIND_DFLASH,
    FOREDRAFT_DRAFT_KIND_DSPARK,
    FOREDRAFT_DRAFT_KIND_ASSISTANT,
};

// A file's weights of a ggml_type: their number, their bytes, and whether the token embeddings are among them and are the output weights, too, in the
// same tensor.
struct foredraft_weights_of_format {
    uint32_t n;
    uint64_t bytes;
    bool has_output_embeddings;
};

// At least the number of ggml's types.
#define FOREDRAFT_N_FORMATS 64

// Returns whether a GGUF file can be used as `role` says. If false, `why` says why not. For a file whose head cannot be read this returns true,
// because the loader reports it. `formats`, FOREDRAFT_N_FORMATS of them, count the weights of each ggml_type. `kind` is set to how it drafts.
// `overrides` ends with an empty key, or is NULL. `add_control_token` is called with `user` for each token that the file calls a control token,
// ascending.
//
// If `stream` is not NULL, the file is the part of it from byte `start`, and `path` is NULL. The file is `length` bytes long. (llama.cpp does
// not notice that weights are beyond the end of a mapped part, because the file continues there.)
bool foredraft_check_head(const char * path, void * stream, uint64_t start, uint64_t length, enum foredraft_role role,
    const struct llama_model_kv_override * overrides, struct foredraft_weights_of_format * formats, enum foredraft_draft_kind * kind,
    void (*add_control_token)(void * user, int32_t token), void * user, char * why, size_t why_size);

// The version of the protocol of ggml's RPC servers.
enum foredraft_rpc_version {
    FOREDRAFT_RPC_MAJOR = RPC_PROTO_MAJOR_VERSION,
    FOREDRAFT_RPC_MINOR = RPC_PROTO_MINOR_VERSION,
    FOREDRAFT_RPC_PATCH = RPC_PROTO_PATCH_VERSION,
};

// -- sources/requantized.cpp

// Opens a stream over a GGUF file whose larger weights have `type`: it quantizes them when they are read. The file is that at `paths`, which are all
// files of a model, or the part of `stream` from byte `start` if `n_paths` is 0; `stream` must then stay open. Sets `*length` to the stream's
// length. Returns NULL on failure, with the reason in `why`, and with an empty `why` if no weights are larger or the platform has no such streams.
void * foredraft_requantized_open(const char * const * paths, size_t n_paths, void * stream, uint64_t start, enum ggml_type type, uint64_t * length,
    char * why, size_t why_size);

// -- media.cpp

struct mtmd_context;
struct mtmd_bitmap;
struct mtmd_input_chunk;
struct mtmd_input_chunks;
// Declared in kernels/native.h.
struct foredraft_interrupt;

// Loads the encoder of an mmproj file for the model that it was made for, or returns NULL. The file is that at `path`, or, if `stream` is not NULL,
// its `length` bytes from byte `start`. Numbers of tokens of a picture below 1 are those of the file.
struct mtmd_context * foredraft_projector_load(const char * path, void * stream, uint64_t start, uint64_t length, const struct llama_model * model,
    int32_t n_threads, int32_t min_tokens, int32_t max_tokens, char * why, size_t why_size);

// Reads the file of a picture, or of a sound for this projector, whose size the caller has bounded, or returns NULL.
struct mtmd_bitmap * foredraft_media_read(
    const struct mtmd_context * projector, const uint8_t * file, size_t size, char * why, size_t why_size);
// Copies a picture of width * height * 3 bytes, or returns NULL.
struct mtmd_bitmap * foredraft_picture_new(uint32_t width, uint32_t height, const uint8_t * rgb, char * why, size_t why_size);

// Scales and cuts a picture or a sound, and puts the model's own tokens around its pieces. Returns NULL on failure.
struct mtmd_input_chunks * foredraft_media_chunks(
    const struct mtmd_context * projector, const struct mtmd_bitmap * medium, char * why, size_t why_size);
// The interrupt of graphs that the calling thread computes with backends of mtmd's, which have no abort callback. NULL: none. See kernels/barrier.c.
void foredraft_set_encode_interrupt(const struct foredraft_interrupt * interrupt);
// Returns the rows of a piece, valid until the next call, or NULL, also where `interrupt` stops the encoder. It is asked every few dozen nodes of
// the graph, on the calling thread.
const float * foredraft_media_encode(struct mtmd_context * projector, const struct mtmd_input_chunk * piece,
    const struct foredraft_interrupt * interrupt, char * why, size_t why_size);

// -- guard.cpp

// Loads a model from a path or a stream.
struct llama_model * foredraft_model_load(
    const char * path, void * stream, uint64_t start, struct llama_model_params params, char * why, size_t why_size);

// Opens a stream over `*length` bytes from `start` of a descriptor, or of memory if `fd` is -1. UINT64_MAX means to the end of the file;
// `*length` is set to the length. With `mapped`, it opens the file again, so that llama.cpp can map it and the host's file position does not
// change; the part then starts at `start`. Returns NULL on failure, with the reason in `why`.
void * foredraft_stream_open(int fd, uint64_t start, uint64_t * length, bool mapped, char * why, size_t why_size);
void foredraft_stream_close(void * stream);
// Reads `size` bytes from byte `at` of a stream, less at its end and after an error.
size_t foredraft_stream_read(void * stream, uint64_t at, uint8_t * to, size_t size);

// Returns whether llama.cpp can read `pattern` as a regular expression. If false, `why` says why not.
bool foredraft_check_pattern(const char * pattern, char * why, size_t why_size);

struct llama_context * foredraft_context_new(struct llama_model * model, struct llama_context_params params, char * why, size_t why_size);

// Returns -1000 if it threw (-1001: for lack of memory), else as llama_decode or, with the model's encoder, as llama_encode.
int32_t foredraft_decode(struct llama_context * ctx, struct llama_batch batch, bool encoder, char * why, size_t why_size);

// Sets whether decodes on CPUs use ggml's reference kernels. Returns false if this is not available.
bool foredraft_set_reference(struct llama_context * ctx, bool reference);

// Returns INT32_MIN if it threw or if there are too many tokens, else as llama_tokenize.
int32_t foredraft_guarded_tokenize(const struct llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens, int32_t n_tokens_max,
    bool add_special, bool parse_special, char * why, size_t why_size);

// Returns INT32_MIN if it threw, else as llama_detokenize.
int32_t foredraft_guarded_detokenize(const struct llama_vocab * vocab, const llama_token * tokens, int32_t n_tokens, char * text, int32_t text_len_max,
    bool unparse_special, char * why, size_t why_size);

// Returns INT32_MIN if it threw, else as llama_chat_apply_template.
int32_t foredraft_guarded_chat_template(const char * name, const struct llama_chat_message * chat, size_t n_messages, bool begins_answer, char * text,
    int32_t text_len_max, char * why, size_t why_size);

// Loads an adapter from a path or a stream.
struct llama_adapter_lora * foredraft_lora_load(struct llama_model * model, const char * path, void * stream, char * why, size_t why_size);

// Return 0 if they threw, else as llama_state_seq_get_size_ext and its siblings. `partial`: only the part that later tokens overwrite.
size_t foredraft_state_size(struct llama_context * ctx, llama_seq_id seq, bool partial, char * why, size_t why_size);
size_t foredraft_state_get(struct llama_context * ctx, uint8_t * to, size_t size, llama_seq_id seq, bool partial, char * why, size_t why_size);
size_t foredraft_state_set(struct llama_context * ctx, const uint8_t * from, size_t size, llama_seq_id seq, bool partial, char * why, size_t why_size);

// llama_memory_seq_add. Returns false if it threw.
bool foredraft_seq_move(llama_memory_t memory, llama_seq_id seq, llama_pos from, llama_pos to, llama_pos by, char * why, size_t why_size);

// Calls `add`, which is ggml_backend_rpc_add_server. Returns NULL if it threw.
ggml_backend_reg_t foredraft_rpc_add(ggml_backend_reg_t (*add)(const char * endpoint), const char * endpoint, char * why, size_t why_size);

// Returns false if it threw. The device may belong to an RPC server.
bool foredraft_device_memory(ggml_backend_dev_t device, size_t * free, size_t * total, char * why, size_t why_size);

// Calls `create`, which is ggml_threadpool_new. Returns NULL if it threw.
struct ggml_threadpool * foredraft_threadpool_new(struct ggml_threadpool * (*create)(struct ggml_threadpool_params * params),
    struct ggml_threadpool_params * params, char * why, size_t why_size);

// Sets whether decodes keep hidden states, of all tokens or only of tokens with logits.
void foredraft_keep_hidden(struct llama_context * ctx, bool keep, bool with_logits_alone);
// Selects the MTP layer that decodes use.
void foredraft_set_mtp_layer(struct llama_context * ctx, int32_t layer);
// Returns NULL if it threw, or if there is no hidden state.
const float * foredraft_hidden(struct llama_context * ctx, int32_t index, char * why, size_t why_size);
// Sets whether decodes keep the input of a layer for all tokens. Returns false if it threw.
bool foredraft_keep_layer_input(struct llama_context * ctx, uint32_t layer, bool keep, char * why, size_t why_size);
// The inputs of a layer for all tokens of the last batch, one row after the other. NULL if it threw.
const float * foredraft_layer_inputs(struct llama_context * ctx, uint32_t layer, char * why, size_t why_size);
// The layers of its target whose inputs a draft head reads. Returns their number.
size_t foredraft_target_layers(const struct llama_model * model, const int32_t ** layers);

// -- placement.cpp

// Bytes in buffers of one device.
struct foredraft_buffers {
    ggml_backend_dev_t device;
    uint64_t weights, kv_cache, compute;
};

// The numbers that a model's classifier gives a text; 0: it has none, or one whose size is not that of its labels.
size_t foredraft_n_scores(const struct llama_model * model);

// The weights of the model's output, if they have a row for each token, and their bytes. NULL: there are none.
const struct ggml_tensor * foredraft_output_weights(const struct llama_model * model, uint64_t * size);

// Whether the layers of a Gemma 4 assistant can read the KV cache of `target`, also a model of Gemma 4. If false, `why` says why not.
bool foredraft_reads_cache(const struct llama_model * assistant, const struct llama_model * target, char * why, size_t why_size);

// The device of a layer, or of the output if `layer` is the number of layers. NULL: there is no such layer.
ggml_backend_dev_t foredraft_layer_device(const struct llama_model * model, int32_t layer);

// The buffers of a model's weights if `ctx` is NULL, else those of a context with the weights. Writes at most `most`, and returns their number;
// 0 if it threw.
size_t foredraft_buffers_of(const struct llama_model * model, const struct llama_context * ctx, struct foredraft_buffers * to, size_t most, char * why,
    size_t why_size);

// Calls `visit` with `to` and each key and value of a model's metadata.
void foredraft_metadata(const struct llama_model * model, void (*visit)(void * to, const char * key, const char * value), void * to);

// Where llama.cpp puts an adapter: each of its tensors beside the weights that it changes. `path` and `stream` as for foredraft_lora_load. Writes
// at most `most`, and returns their number; 0 if it threw, or if the file cannot be read, which the load of the adapter reports.
size_t foredraft_adapter_buffers(const struct llama_model * model, const char * path, void * stream, struct foredraft_buffers * to, size_t most,
    char * why, size_t why_size);

// -- kernels/attention_cost.cpp

// A layer's attention.
struct foredraft_attention {
    int32_t n_head, n_head_kv, n_key, n_value;
    int32_t n_cells, n_tokens;
    bool flash;
};

// The time of a layer's attention in microseconds. Negative: it threw, or unknown.
double foredraft_attention_cost(
    struct foredraft_attention attention, int32_t n_threads, struct ggml_threadpool * threads, char * why, size_t why_size);

#ifdef __cplusplus
}
#endif
