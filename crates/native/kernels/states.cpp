// Gated delta nets that read their states in a recurrent cache and write them there.
//
// llama.cpp's graphs have three operations for a layer: GET_ROWS copies the states of a batch's sequences from the cache, GATED_DELTA_NET computes
// the states after each of the last tokens, and CPY copies these into the cache. That moves each state five times. Where a graph proves that
// nothing else sees the copies, the delta net reads and writes the cache itself, and GET_ROWS and CPY do nothing. The proof is made at each
// GET_ROWS, from the graph and the addresses of its tensors alone:
//
// 1. All uses of the rows, by the graph's own counts, are views that lead to one delta net. An empty view leads nowhere.
// 2. No operation between GET_ROWS and the delta net writes to the cache's tensor.
// 3. All uses of the delta net's states are views that lead to one CPY, which comes before any other operation.
// 4. The CPY's destination has a place for each state, in the order of the states. It overlaps no input of the delta net but the cache.
// 5. No sequence's state is written where another's is read.
//
// ggml's own backends fuse operations by the same counts. A graph of another shape fails the proof and is computed as it is. Each thread comes to
// the same result by itself, because it reads the same graph and the same ids.
#include "states.h"

#include "graph.h"
#include "panels.h"

namespace {

using foredraft::MAX_STATES;
using foredraft::StatePlaces;

// Operations after GET_ROWS, and after the delta net, among which uses are looked for.
constexpr int MAX_DISTANCE = 200;
constexpr int MAX_VIEWS = 8;

// The delta net that the calling thread computes in place: one at a time.
struct Found {
    enum { NONE, LEFT_ROWS, COMPUTED } state = NONE;
    const ggml_threadpool * pool = nullptr;
    // The pool's count of graphs. A graph that was aborted leaves its state behind.
    int run = 0;
    const ggml_tensor * rows = nullptr;
    const ggml_tensor * net = nullptr;
    const ggml_tensor * copy = nullptr;
    const float * before[MAX_STATES];
    StatePlaces places;
};

thread_local Found found;
// Where the calling thread found the last rows in a graph.
thread_local int cursor = 0;

struct Range {
    const char * begin;
    const char * end;

    explicit Range(const ggml_tensor * tensor)
        : begin(static_cast<const char *>(tensor->data)), end(begin + (ggml_is_empty(tensor) ? 0 : ggml_nbytes(tensor))) {}
    bool overlaps(const Range & other) const { return begin < other.end && other.begin < end; }
};

int n_uses(const ggml_cgraph * graph, const ggml_tensor * tensor) {
    const size_t at = ggml_hash_find(&graph->visited_hash_set, tensor);
    return at != GGML_HASHSET_FULL && ggml_bitset_get(graph->visited_hash_set.used, at) ? graph->use_counts[at] : 0;
}

bool is_view(const ggml_tensor * tensor) { return tensor->op == GGML_OP_VIEW || tensor->op == GGML_OP_RESHAPE; }

bool is_nothing(const ggml_tensor * tensor) {
    return is_view(tensor) || tensor->op == GGML_OP_NONE || tensor->op == GGML_OP_PERMUTE || tensor->op == GGML_OP_TRANSPOSE || ggml_is_empty(tensor);
}

// A tensor and the views of it whose uses are looked for.
class Uses {
public:
    Uses(const ggml_cgraph * graph, const ggml_tensor * of) : graph(graph) { add(of); }
    // Whether a tensor is among them.
    bool has(const ggml_tensor * tensor) const {
        for (int i = 0; i < n; ++i) {
            if (tensors[i] == tensor) {
                return true;
            }
        }
        return false;
    }
    bool add(const ggml_tensor * tensor) {
        if (n == MAX_VIEWS || tensor == nullptr || (tensor->flags & GGML_TENSOR_FLAG_OUTPUT) != 0) {
            return false;
        }
        tensors[n++] = tensor;
        n_left += n_uses(graph, tensor);
        return true;
    }
    // The number of a node's inputs that are among them, which are found then.
    int find_in(const ggml_tensor * node) {
        int n_found = 0;
        for (const ggml_tensor * input : node->src) {
            n_found += input != nullptr && has(input);
        }
        n_left -= n_found;
        return n_found;
    }
    bool are_found() const { return n_left == 0; }

private:
    const ggml_cgraph * graph;
    const ggml_tensor * tensors[MAX_VIEWS];
    int n = 0, n_left = 0;
};

// The index of a node. -1: it is not in the graph.
int index_of(const ggml_cgraph * graph, const ggml_tensor * node) {
    for (int i = cursor < graph->n_nodes ? cursor : 0, n = 0; n < graph->n_nodes; ++n, i = i + 1 < graph->n_nodes ? i + 1 : 0) {
        if (graph->nodes[i] == node) {
            cursor = i;
            return i;
        }
    }
    return -1;
}

bool is_of_this_run(const ggml_compute_params * params) {
    int run;
    return found.pool == params->threadpool && foredraft_graph_of(params->threadpool, &run) != nullptr && found.run == run;
}

bool is_computed(const ggml_tensor * node) { return (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0; }

// The index of the delta net that alone reads the rows, as its states. -1: there is none, or the cache changes before.
int find_net(const ggml_cgraph * graph, int at) {
    const ggml_tensor * rows = graph->nodes[at];
    const Range cache(rows->src[0]);
    Uses uses(graph, rows);
    int net = -1;
    for (int i = at + 1; i < graph->n_nodes && i <= at + MAX_DISTANCE && !(net >= 0 && uses.are_found()); ++i) {
        const ggml_tensor * node = graph->nodes[i];
        if (net < 0 && !is_nothing(node) && node->op != GGML_OP_GATED_DELTA_NET && Range(node).overlaps(cache)) {
            return -1;
        }
        const int n_found = uses.find_in(node);
        if (n_found == 0 || ggml_is_empty(node)) {
            continue;
        }
        if (is_view(node)) {
            if (node->data != rows->data || ggml_nelements(node) != ggml_nelements(rows) || !ggml_is_contiguous(node) || !uses.add(node)) {
                return -1;
            }
            continue;
        }
        const bool is_state = node->op == GGML_OP_GATED_DELTA_NET && n_found == 1 && uses.has(node->src[5]) && node->src[5]->view_src == rows;
        if (net >= 0 || !is_state || !is_computed(node)) {
            return -1;
        }
        net = i;
    }
    return uses.are_found() ? net : -1;
}

// The copy of the delta net's states that alone sees them, before any other operation. NULL: there is none.
const ggml_tensor * find_copy(const ggml_cgraph * graph, int at, size_t states_at, int64_t n_floats) {
    const ggml_tensor * net = graph->nodes[at];
    const char * states = static_cast<const char *>(net->data) + states_at;
    Uses uses(graph, net);
    const ggml_tensor * copy = nullptr;
    bool is_next = true;
    for (int i = at + 1; i < graph->n_nodes && i <= at + MAX_DISTANCE && !(copy != nullptr && uses.are_found()); ++i) {
        const ggml_tensor * node = graph->nodes[i];
        const int n_found = uses.find_in(node);
        if (n_found != 0 && is_view(node)) {
            const bool has_outputs = Range(node).end <= states;
            const bool has_states = node->data == states && ggml_nelements(node) == n_floats && ggml_is_contiguous(node);
            if ((node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0 || (!has_outputs && !(has_states && uses.add(node)))) {
                return nullptr;
            }
        } else if (n_found != 0) {
            // The destination is no view of the states, because it is no part of the delta net.
            if (copy != nullptr || !is_next || node->op != GGML_OP_CPY || n_found != 1 || !uses.has(node->src[0]) || node->src[0] == net
                || !is_computed(node)) {
                return nullptr;
            }
            copy = node;
        }
        is_next = is_next && is_nothing(node);
    }
    return uses.are_found() ? copy : nullptr;
}

}  // namespace

bool foredraft::leaves_rows(const ggml_compute_params * params, const ggml_tensor * rows) {
    if (found.state == Found::LEFT_ROWS && found.rows != rows && is_of_this_run(params)) {
        return false;
    }
    found.state = Found::NONE;
    const ggml_tensor * cache = rows->src[0];
    const ggml_tensor * ids = rows->src[1];
    if (cache->type != GGML_TYPE_F32 || ids->type != GGML_TYPE_I32 || !ggml_is_contiguous(ids) || ggml_n_dims(ids) > 1 || ids->ne[0] > MAX_STATES
        || !ggml_is_contiguous(cache) || ggml_n_dims(cache) > 2 || rows->view_src != nullptr) {
        return false;
    }
    int run;
    const ggml_cgraph * graph = foredraft_graph_of(params->threadpool, &run);
    const int at = graph == nullptr ? -1 : index_of(graph, rows), net_at = at < 0 ? -1 : find_net(graph, at);
    if (net_at < 0) {
        return false;
    }
    const ggml_tensor * net = graph->nodes[net_at];
    const ggml_tensor * v = net->src[2];
    const int64_t size = v->ne[0] * v->ne[0] * v->ne[1], n_seqs = v->ne[3], n_most = ggml_get_op_params_i32(net, 0);
    const int64_t n_states = n_most < v->ne[2] ? n_most : v->ne[2];
    if (cache->ne[0] != size || ids->ne[0] != n_seqs || !foredraft::kernels()->can_delta_net(net)) {
        return false;
    }
    const ggml_tensor * copy = find_copy(graph, net_at, ggml_nelements(v) * sizeof(float), size * n_seqs * n_states);
    if (copy == nullptr || copy->type != GGML_TYPE_F32 || copy->nb[0] != sizeof(float) || copy->ne[0] != size || copy->ne[1] != n_seqs
        || copy->ne[2] != n_states || copy->ne[3] != 1) {
        return false;
    }
    const Range written(copy);
    for (int i = 0; i < 5; ++i) {
        if (written.overlaps(Range(net->src[i]))) {
            return false;
        }
    }
    char * to = static_cast<char *>(copy->data);
    for (int64_t sequence = 0; sequence < n_seqs; ++sequence) {
        const int32_t id = static_cast<const int32_t *>(ids->data)[sequence];
        GGML_ASSERT(id >= 0 && id < cache->ne[1]);
        const char * from = static_cast<const char *>(cache->data) + id * cache->nb[1];
        for (int64_t other = 0; other < n_seqs; ++other) {
            for (int64_t back = 0; back < n_states; ++back) {
                const char * place = to + other * copy->nb[1] + back * copy->nb[2];
                const bool overlaps = from < place + cache->nb[1] && place < from + cache->nb[1];
                // A sequence's own state may be overwritten row by row, after the row was read.
                if (overlaps && (other != sequence || from != place)) {
                    return false;
                }
            }
        }
        found.before[sequence] = reinterpret_cast<const float *>(from);
    }
    found.places = { found.before, reinterpret_cast<float *>(to), static_cast<int64_t>(copy->nb[1] / sizeof(float)),
        static_cast<int64_t>(copy->nb[2] / sizeof(float)) };
    found.state = Found::LEFT_ROWS;
    found.pool = params->threadpool;
    found.run = run;
    found.rows = rows;
    found.net = net;
    found.copy = copy;
    return true;
}

const StatePlaces * foredraft::state_places(const ggml_compute_params * params, const ggml_tensor * net) {
    if (found.state != Found::LEFT_ROWS || found.net != net || net->src[5]->view_src != found.rows || !is_of_this_run(params)) {
        return nullptr;
    }
    found.state = Found::COMPUTED;
    return &found.places;
}

bool foredraft::is_written(const ggml_compute_params * params, const ggml_tensor * copy) {
    if (found.state != Found::COMPUTED || found.copy != copy || !is_of_this_run(params)) {
        return false;
    }
    found.state = Found::NONE;
    return true;
}
