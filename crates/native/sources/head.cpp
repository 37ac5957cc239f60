// Checks the head of a GGUF file before llama.cpp loads the file: what kind of file it is, whether it is whole, and what llama.cpp would use
// without looking at it. llama.cpp's own checks throw; a division of integers by zero, or a call of a missing function, ends the process.
#include "../guard.h"
#include "../native.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

// Whether ggml can multiply matrices of this type.
bool multiplies(ggml_type type) {
    const bool intermediate = type == GGML_TYPE_Q8_1 || type == GGML_TYPE_Q8_K;
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || (ggml_is_quantized(type) && !intermediate);
}

static_assert(GGML_TYPE_COUNT <= FOREDRAFT_N_FORMATS, "a count for each type");

// The maximum number of layers, as llama.cpp's LLAMA_MAX_LAYERS.
constexpr uint32_t MAX_LAYERS = 512;

// The metadata of a file, with what the host overrides.
class metadata {
  public:
    // `overrides` ends with an empty key, or is NULL.
    metadata(const gguf_context * head, const llama_model_kv_override * overrides) : head(head), overrides(overrides) {}

    std::string text(const std::string & key) const {
        const int64_t id = gguf_find_key(head, key.c_str());
        return id >= 0 && gguf_get_kv_type(head, id) == GGUF_TYPE_STRING ? gguf_get_val_str(head, id) : "";
    }

    // All keys, those that the host alone gives included.
    std::vector<std::string> keys() const {
        std::vector<std::string> all;
        for (int64_t i = 0; i < gguf_get_n_kv(head); ++i) {
            all.push_back(gguf_get_key(head, i));
        }
        for (const llama_model_kv_override * it = overrides; it != nullptr && it->key[0] != 0; ++it) {
            all.push_back(it->key);
        }
        return all;
    }

    // The integers of a key: its value, or the items of its array. Empty if there are none.
    std::vector<int64_t> integers(const std::string & key) const {
        for (const llama_model_kv_override * it = overrides; it != nullptr && it->key[0] != 0; ++it) {
            if (it->tag == LLAMA_KV_OVERRIDE_TYPE_INT && key == it->key) {
                return { it->val_i64 };
            }
        }
        const int64_t id = gguf_find_key(head, key.c_str());
        if (id < 0) {
            return {};
        }
        const gguf_type type = gguf_get_kv_type(head, id);
        if (type != GGUF_TYPE_ARRAY) {
            return type == GGUF_TYPE_STRING ? std::vector<int64_t>() : items(type, gguf_get_val_data(head, id), 1);
        }
        const gguf_type item = gguf_get_arr_type(head, id);
        return item == GGUF_TYPE_STRING ? std::vector<int64_t>() : items(item, gguf_get_arr_data(head, id), gguf_get_arr_n(head, id));
    }

    // Whether llama.cpp reads 0 from a key: it stores 32 bits. `absent` is the answer if there is no such key.
    bool has_zero(const std::string & key, bool absent) const {
        const std::vector<int64_t> all = integers(key);
        return all.empty() ? absent : std::any_of(all.begin(), all.end(), [](int64_t n) { return static_cast<uint32_t>(n) == 0; });
    }

  private:
    template <class T>
    static std::vector<int64_t> copied(const void * data, size_t n) {
        const T * from = static_cast<const T *>(data);
        return std::vector<int64_t>(from, from + n);
    }

    static std::vector<int64_t> items(gguf_type type, const void * data, size_t n) {
        switch (type) {
            case GGUF_TYPE_UINT8:  return copied<uint8_t>(data, n);
            case GGUF_TYPE_INT8:   return copied<int8_t>(data, n);
            case GGUF_TYPE_UINT16: return copied<uint16_t>(data, n);
            case GGUF_TYPE_INT16:  return copied<int16_t>(data, n);
            case GGUF_TYPE_UINT32: return copied<uint32_t>(data, n);
            case GGUF_TYPE_INT32:  return copied<int32_t>(data, n);
            case GGUF_TYPE_UINT64: return copied<uint64_t>(data, n);
            case GGUF_TYPE_INT64:  return copied<int64_t>(data, n);
            default:               return {};
        }
    }

    const gguf_context * head;
    const llama_model_kv_override * overrides;
};

// The integer of a layer, 0 if there is none. A single one is that of all layers.
uint32_t of_layer(const std::vector<int64_t> & all, size_t layer) {
    return static_cast<uint32_t>(all.size() == 1 ? all[0] : layer < all.size() ? all[layer] : 0);
}

// A number that must not be 0 in these architectures: llama.cpp divides by it, or uses a memory that it then does not make. `required`: if
// it is absent, it counts as 0.
struct divisor {
    const char * key;
    bool required;
    std::vector<const char *> architectures;
};

const std::vector<divisor> & divisors() {
    static const std::vector<divisor> all = {
        { "full_attention_interval", false, { "qwen3next", "qwen35", "qwen35moe", "clef", "minimax-01" } },
        { "ssm.time_step_rank", true,
          { "mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen3next", "qwen35", "qwen35moe", "clef" } },
        { "ssm.group_count", true,
          { "mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe", "qwen3next", "qwen35", "qwen35moe", "clef" } },
        { "wkv.head_size", true, { "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7" } },
        { "attention.head_count", true, { "gemma2", "gemma3", "olmo2", "phimoe", "deepseek2-ocr" } },
        { "attention.head_count_kv", false, { "modern-bert" } },
        { "attention.output_group_count", true, { "deepseek4" } },
        { "attention.indexer.block_size", true, { "minimax-m3" } },
        { "attention.sliding_window", true, { "afmoe" } },
        { "vision.attention.head_count", false, { "clip" } },
        { "vision.image_size", false, { "clip" } },
        { "audio.attention.head_count", false, { "clip" } },
    };
    return all;
}

bool is_any(const std::string & name, const std::vector<const char *> & of) {
    return std::find(of.begin(), of.end(), name) != of.end();
}

// Why llama.cpp would divide by zero. Empty: it would not.
std::string zero_divisor(const metadata & values, const std::string & architecture) {
    const auto key = [&](const char * name) { return architecture + "." + name; };
    for (const divisor & it : divisors()) {
        if (is_any(architecture, it.architectures) && values.has_zero(key(it.key), it.required)) {
            return key(it.key) + " is 0 or absent";
        }
    }
    // The width of an expert is that of the feed-forward layer, divided by the experts in use, if it is not given.
    const std::vector<int64_t> widths = values.integers(key("expert_feed_forward_length")), used = values.integers(key("expert_used_count"));
    const auto lacks_width = [&](size_t layer) { return of_layer(widths, layer) == 0 && of_layer(used, layer) == 0; };
    bool lacks = is_any(architecture, { "qwen35moe", "qwen3next", "qwen4exp" }) && lacks_width(0);
    if (is_any(architecture, { "nemotron_h", "nemotron_h_moe" }) && !values.has_zero(key("expert_count"), true)) {
        const std::vector<int64_t> dense = values.integers(key("feed_forward_length"));
        const size_t n_layers = std::min(of_layer(values.integers(key("block_count")), 0), MAX_LAYERS);
        for (size_t layer = 0; layer < n_layers; ++layer) {
            lacks = lacks || (of_layer(dense, layer) != 0 && lacks_width(layer));
        }
    }
    if (lacks) {
        return key("expert_feed_forward_length") + " and " + key("expert_used_count") + " are 0 or absent";
    }
    // Their sum is a divisor. ggml checks that one of the first three is positive.
    const std::vector<int64_t> sections = values.integers(key("rope.dimension_sections"));
    if (std::any_of(sections.begin(), sections.end(), [](int64_t n) { return static_cast<int32_t>(n) < 0; })) {
        return key("rope.dimension_sections") + " has a negative number";
    }
    return "";
}

// The most numbers of a head that ggml's operation of RWKV-7 (ggml_rwkv_wkv7) reads and writes in one step, which depends on the processor.
constexpr uint32_t WKV7_STEP = 64;

// The bounds of integers that describe a model. llama.cpp and ggml compute with them as sizes, counts and indices, in 32 bits. The first row whose
// part the key has is that of the key. `by_head`: at most the width of a head.
struct bound {
    const char * part;
    int64_t least;
    int64_t most;
    bool by_head;
};

const bound & bound_of(const std::string & key) {
    constexpr int64_t POSITIONS = int64_t(1) << 30, WIDTH = int64_t(1) << 24, HEAD = int64_t(1) << 14;
    static const bound all[] = {
        { ".rope.dimension_sections", 0, WIDTH, true },
        { ".rope.dimension_count", 0, WIDTH, true },
        { ".key_length", 0, HEAD, false },
        { ".value_length", 0, HEAD, false },
        { "context_length", 0, POSITIONS, false },
        { "temperature_length", 0, POSITIONS, false },
        { "sliding_window", 0, POSITIONS, false },
        { "token_id", -1, POSITIONS, false },
        { ".deepstack_mapping", -1, WIDTH, false },
        // Numbers of 64 bits, and of tokens.
        { ".ple.", 0, INT64_MAX, false },
        { ".vocab_size", 0, POSITIONS, false },
        { "_length", 0, WIDTH, false },
        { "_count", 0, WIDTH, false },
        { "_size", 0, WIDTH, false },
        { "_rank", 0, WIDTH, false },
        { "_dim", 0, WIDTH, false },
        { "_layers", 0, WIDTH, false },
        { ".", -1, POSITIONS, false },
    };
    return *std::find_if(std::begin(all), std::end(all) - 1, [&](const bound & it) { return key.find(it.part) != std::string::npos; });
}

// Architectures without rotary embeddings: llama.cpp does not use the number of rotated dimensions.
const std::vector<const char *> & without_rope() {
    static const std::vector<const char *> all = { "gpt2", "gptj", "mpt", "refact", "bloom", "mamba", "mamba2", "jamba", "jina-bert-v2", "t5",
        "t5encoder", "jais", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "wavtokenizer-dec", "nemotron_h", "nemotron_h_moe", "kimi-linear",
        "kimi-k3", "glm5-next" };
    return all;
}

// Which number of the metadata is none that a model can have. Empty: none.
std::string wrong_number(const metadata & values, const std::string & architecture) {
    const std::string prefix = architecture + ".";
    const auto first = [&](const char * name) -> int64_t { return of_layer(values.integers(prefix + name), 0); };
    const int64_t n_heads = first("attention.head_count");
    const auto head_width = [&](const std::string & key) {
        const bool of_window = key.size() > 4 && key.compare(key.size() - 4, 4, "_swa") == 0;
        const int64_t of_layers = first("attention.key_length"), own = of_window ? first("attention.key_length_swa") : 0;
        return own != 0 ? own : of_layers != 0 ? of_layers : n_heads != 0 ? first("embedding_length") / n_heads : INT64_MAX;
    };
    for (const std::string & key : values.keys()) {
        if (architecture.empty() || key.compare(0, prefix.size(), prefix) != 0) {
            continue;
        }
        const bound & bounds = bound_of(key);
        const int64_t most = bounds.by_head ? std::min(bounds.most, head_width(key)) : bounds.most;
        // ggml rotates no dimensions without end.
        const bool rotates = key.find(".rope.dimension_count") != std::string::npos && n_heads != 0 && !is_any(architecture, without_rope());
        const int64_t least = rotates ? 1 : bounds.least;
        for (const int64_t number : values.integers(key)) {
            if (number < least || number > most) {
                return key + " is " + std::to_string(number) + ": expected " + std::to_string(least) + " to " + std::to_string(most);
            }
        }
    }
    return "";
}

// Why ggml would read and write beyond the rows of a state. Empty: it would not. The operation has no loop for what remains of a head after whole
// steps, so a token's result would depend on the tokens beside it.
std::string wrong_head_size(const metadata & values, const std::string & architecture) {
    const std::string key = architecture + ".wkv.head_size";
    const uint32_t size = of_layer(values.integers(key), 0);
    if (!is_any(architecture, { "rwkv7", "arwkv7" }) || size % WKV7_STEP == 0) {
        return "";
    }
    return key + " is " + std::to_string(size) + ": ggml computes heads of RWKV-7 only with a multiple of " + std::to_string(WKV7_STEP);
}

// Calls `add` for each token that the file calls a control token, ascending.
void each_control_token(const metadata & values, void (*add)(void * user, int32_t token), void * user) {
    const std::vector<int64_t> types = values.integers("tokenizer.ggml.token_type");
    for (size_t token = 0; token < types.size(); ++token) {
        if (types[token] == LLAMA_TOKEN_TYPE_CONTROL) {
            add(user, static_cast<int32_t>(token));
        }
    }
}

// Which tensors llama.cpp would compute with without having loaded others that belong to them. Empty: none.
std::string lone_tensor(const gguf_context * head, const std::string & architecture) {
    // RWKV6-Qwen2 has no `time_mix_first`. With one, llama.cpp computes as for RWKV6, with a norm that it loads for that alone.
    const int64_t n = architecture == "rwkv6qwen2" ? gguf_get_n_tensors(head) : 0;
    for (int64_t i = 0; i < n; ++i) {
        const std::string name = gguf_get_tensor_name(head, i);
        if (name.find(".time_mix_first.") != std::string::npos) {
            return "has " + name + ", which models of the architecture " + architecture + " do not have: llama.cpp cannot run it";
        }
    }
    return "";
}

// Whether a file has layers for multi-token prediction, and no others.
bool has_only_mtp_layers(const gguf_context * head, const metadata & values, const std::string & architecture) {
    const int64_t n = gguf_get_n_tensors(head);
    bool has_layers = false;
    for (int64_t i = 0; i < n; ++i) {
        const char * name = gguf_get_tensor_name(head, i);
        if (std::strncmp(name, "blk.0.", 6) == 0) {
            return false;
        }
        has_layers = has_layers || std::strncmp(name, "blk.", 4) == 0;
    }
    return has_layers && !values.has_zero(architecture + ".nextn_predict_layers", true);
}

foredraft_draft_kind kind_of(const gguf_context * head, const metadata & values) {
    const std::string architecture = values.text("general.architecture");
    if (architecture == "eagle3") {
        return FOREDRAFT_DRAFT_KIND_EAGLE3;
    }
    if (architecture == "dflash") {
        return gguf_find_tensor(head, "markov_w1.weight") >= 0 ? FOREDRAFT_DRAFT_KIND_DSPARK : FOREDRAFT_DRAFT_KIND_DFLASH;
    }
    if (architecture == "gemma4-assistant") {
        return FOREDRAFT_DRAFT_KIND_ASSISTANT;
    }
    return has_only_mtp_layers(head, values, architecture) ? FOREDRAFT_DRAFT_KIND_MTP : FOREDRAFT_DRAFT_KIND_MODEL;
}

const char * name_of(foredraft_draft_kind kind) {
    switch (kind) {
        case FOREDRAFT_DRAFT_KIND_MTP:       return "a head for multi-token prediction (MTP)";
        case FOREDRAFT_DRAFT_KIND_EAGLE3:    return "an EAGLE-3 head";
        case FOREDRAFT_DRAFT_KIND_DFLASH:    return "a DFlash head";
        case FOREDRAFT_DRAFT_KIND_DSPARK:    return "a DSpark head";
        case FOREDRAFT_DRAFT_KIND_ASSISTANT: return "an assistant of Gemma 4";
        default:                             return "a model";
    }
}

// Why a file cannot be a target. Empty: it can.
std::string wrong_target(foredraft_draft_kind kind) {
    if (kind == FOREDRAFT_DRAFT_KIND_MODEL) {
        return "";
    }
    return std::string("is ") + name_of(kind) +
           ", which drafts for the model that it was trained with: name that model in `model`, and this file in `model_draft`";
}

// Why a file cannot draft. Empty: it can, for some target.
std::string wrong_draft(const gguf_context * head, const metadata & values, foredraft_draft_kind kind) {
    const std::string architecture = values.text("general.architecture");
    if (gguf_find_tensor(head, "selector_hidden.weight") >= 0) {
        return "is a DFlash 2 head, which has a selector. This library does not run it: it runs those without";
    }
    if (kind == FOREDRAFT_DRAFT_KIND_MODEL || kind == FOREDRAFT_DRAFT_KIND_MTP || kind == FOREDRAFT_DRAFT_KIND_ASSISTANT) {
        return "";
    }
    const std::string is = std::string("is ") + name_of(kind) + ", but ";
    const std::string key = architecture + ".target_layers";
    const std::vector<int64_t> layers = values.integers(key);
    if (layers.empty()) {
        return is + key + ", the layers of its target that it reads, is absent";
    }
    if (kind == FOREDRAFT_DRAFT_KIND_EAGLE3 && layers.size() != 3) {
        return is + key + " has " + std::to_string(layers.size()) + " layers: expected 3";
    }
    if (std::any_of(layers.begin(), layers.end(), [](int64_t n) { return n < 0 || n > MAX_LAYERS; })) {
        return is + key + " has a number that is no layer";
    }
    return "";
}

// Why a file of this kind cannot be used as what the host wants. Empty: it can.
std::string wrong_kind(const gguf_context * head, const metadata & values, foredraft_role role, foredraft_draft_kind kind) {
    const std::string architecture = values.text("general.architecture"), type = values.text("general.type");
    if (role == FOREDRAFT_ROLE_ADAPTER) {
        return type == "adapter" || architecture.empty() ? "" : "is a whole model of the architecture " + architecture + ", not a LoRA adapter";
    }
    if (role == FOREDRAFT_ROLE_PROJECTOR) {
        return architecture == "clip" ? "" : "is not a multimodal projector (mmproj): its architecture is " + architecture;
    }
    if (type == "adapter") {
        return "is a LoRA adapter, not a model: load the model that it was made for, and name the adapter in `lora`";
    }
    if (type == "mmproj" || architecture == "clip") {
        return "is a multimodal projector (mmproj), which turns images or sound into input for a model: name that model in `model`, and this "
               "file in `mmproj`";
    }
    if (type == "imatrix" || architecture == "imatrix") {
        return "is an importance matrix, which quantizing uses, not a model";
    }
    if (architecture == "controlvector") {
        return "is a control vector, not a model";
    }
    return role == FOREDRAFT_ROLE_DRAFT ? wrong_draft(head, values, kind) : wrong_target(kind);
}

// Why the tensors of a file cannot be used. Empty: they can. The file is `length` bytes from byte `start` of what was read, and `formats` counts
// the weights of each ggml_type.
std::string wrong_tensors(const gguf_context * head, const metadata & values, uint64_t start, uint64_t length, foredraft_weights_of_format * formats) {
    // For other architectures, llama.cpp makes a second tensor of the same weights.
    const bool multiplies_embeddings = values.text("general.architecture") == "bitnet";
    const int64_t n = gguf_get_n_tensors(head);
    // Offsets are those of what was read.
    uint64_t end = gguf_get_data_offset(head);
    for (int64_t i = 0; i < n; ++i) {
        const std::string name = gguf_get_tensor_name(head, i);
        const ggml_type type = gguf_get_tensor_type(head, i);
        // Tables from tokens to experts or to other tokens contain integers.
        const bool is_table = name.find("tid2eid") != std::string::npos || name.find("d2t") != std::string::npos;
        const bool is_weight = name.find("weight") != std::string::npos || name.find(".lora_") != std::string::npos;
        if (is_weight && !is_table) {
            formats[type].n += 1;
            formats[type].bytes += gguf_get_tensor_size(head, i);
            formats[type].has_output_embeddings |= multiplies_embeddings && name == "token_embd.weight";
        }
        if (is_weight && !is_table && !multiplies(type)) {
            return name + " has the type " + ggml_type_name(type) + ", which matrix multiplication does not support";
        }
        const uint64_t size = gguf_get_tensor_size(head, i);
        // llama.cpp divides by the sizes of a tensor.
        if (size == 0) {
            return name + " has no elements";
        }
        const uint64_t at = gguf_get_tensor_offset(head, i), data = gguf_get_data_offset(head);
        const bool fits = at <= UINT64_MAX - data && size <= UINT64_MAX - data - at;
        end = std::max(end, fits ? data + at + size : UINT64_MAX);
    }
    if (n > 0 && end - start > length) {
        return "is cut: it has " + std::to_string(length) + " bytes of " + std::to_string(end - start) + ". Copy or download it again";
    }
    return "";
}

}  // namespace

extern "C" {

bool foredraft_check_head(const char * path, void * stream, uint64_t start, uint64_t length, foredraft_role role,
                          const llama_model_kv_override * overrides, foredraft_weights_of_format * formats, foredraft_draft_kind * kind,
                          void (*add_control_token)(void * user, int32_t token), void * user, char * why, size_t why_size) {
    char ignored[64];
    return guard::guarded<bool>(true, ignored, sizeof ignored, [&] {
        const guard::Head file = guard::read_head(path, stream, start);
        if (!file) {
            std::snprintf(why, why_size,
                          "cannot be loaded: its metadata cannot be read to the end of the file, which has %llu bytes and is cut or damaged",
                          static_cast<unsigned long long>(length));
            return false;
        }
        const metadata values(file.get(), overrides);
        const bool is_part = of_layer(values.integers("split.count"), 0) > 1;
        *kind = kind_of(file.get(), values);
        each_control_token(values, add_control_token, user);
        std::string wrong = wrong_kind(file.get(), values, role, *kind);
        if (wrong.empty() && stream != nullptr && is_part) {
            wrong = "is one of several files of a model, which are loaded by the first one's path";
        }
        if (wrong.empty()) {
            wrong = wrong_tensors(file.get(), values, start, length, formats);
        }
        if (wrong.empty() && role != FOREDRAFT_ROLE_ADAPTER) {
            wrong = zero_divisor(values, values.text("general.architecture"));
        }
        if (wrong.empty() && role != FOREDRAFT_ROLE_ADAPTER) {
            wrong = wrong_number(values, values.text("general.architecture"));
        }
        if (wrong.empty()) {
            wrong = wrong_head_size(values, values.text("general.architecture"));
        }
        if (wrong.empty()) {
            wrong = lone_tensor(file.get(), values.text("general.architecture"));
        }
        std::snprintf(why, why_size, "%s", wrong.c_str());
        return wrong.empty();
    });
}

}
