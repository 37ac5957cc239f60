// Copies of floats: see copies.h.
#include "copies.h"

#include <algorithm>
#include <cstring>

namespace {

// The floats that a thread copies at least, if a row is divided.
constexpr int64_t PIECE = 4096;
// Rows that are copied together where the floats of a column lie together.
constexpr int64_t TOGETHER = 16;

// A matrix of floats in memory; its strides are in bytes.
struct Matrix {
    char * data;
    size_t column, row;

    float * at(int64_t r, int64_t c) const { return reinterpret_cast<float *>(data + r * row + c * column); }
    Matrix from(int64_t r, int64_t c) const { return { data + r * row + c * column, column, row }; }
};

template <int N> void copy_short_rows(const Matrix & to, const Matrix & from, int64_t n_rows) {
    for (int64_t r = 0; r < n_rows; ++r) {
        memcpy(to.at(r, 0), from.at(r, 0), N * sizeof(float));
    }
}

// Copies a matrix. The floats of a row of `to` lie together.
void copy(const Matrix & to, const Matrix & from, int64_t n_rows, int64_t n_columns) {
    if (from.column == sizeof(float)) {
        switch (n_columns) {
            case 1: return copy_short_rows<1>(to, from, n_rows);
            case 2: return copy_short_rows<2>(to, from, n_rows);
            case 3: return copy_short_rows<3>(to, from, n_rows);
            case 4: return copy_short_rows<4>(to, from, n_rows);
            default: break;
        }
        for (int64_t r = 0; r < n_rows; ++r) {
            memcpy(to.at(r, 0), from.at(r, 0), n_columns * sizeof(float));
        }
        return;
    }
    for (int64_t first = 0; first < n_rows; first += TOGETHER) {
        const int64_t end = std::min(first + TOGETHER, n_rows);
        for (int64_t c = 0; c < n_columns; ++c) {
            for (int64_t r = first; r < end; ++r) {
                *to.at(r, c) = *from.at(r, c);
            }
        }
    }
}

// The part of `n` items that a thread computes.
struct Part {
    int64_t first, end;

    Part(const ggml_compute_params * params, int64_t n) : first(n * params->ith / params->nth), end(n * (params->ith + 1) / params->nth) {}
};

// Rows of floats, each divided into pieces. An item is a piece.
struct Pieces {
    int64_t n_columns, of_row;

    explicit Pieces(int64_t n_columns) : n_columns(n_columns), of_row(std::max<int64_t>(n_columns / PIECE, 1)) {}
    int64_t first_column(int64_t piece) const { return n_columns * piece / of_row; }

    // Calls `use` with the rows of `part` and the first and the last columns: once for all whole rows that follow each other.
    template <typename F> void for_each(Part part, F use) const {
        if (of_row == 1) {
            use(part.first, part.end, int64_t(0), n_columns);
            return;
        }
        while (part.first < part.end) {
            const int64_t row = part.first / of_row, piece = part.first % of_row, n = std::min(of_row - piece, part.end - part.first);
            use(row, row + 1, first_column(piece), first_column(piece + n));
            part.first += n;
        }
    }
};

bool are_floats(const ggml_tensor * tensor) { return tensor->type == GGML_TYPE_F32; }

const char * end_of(const ggml_tensor * tensor) { return static_cast<const char *>(tensor->data) + ggml_nbytes(tensor); }

bool overlap(const ggml_tensor * a, const ggml_tensor * b) { return a->data < end_of(b) && b->data < end_of(a); }

// Rows of several kilobytes, which ggml does not divide.
bool get_wide_rows(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * rows = op->src[0];
    const ggml_tensor * ids = op->src[1];
    const bool is_matrix = rows->ne[2] == 1 && rows->ne[3] == 1 && ids->ne[1] == 1 && ids->ne[2] == 1 && ids->ne[3] == 1;
    if (!are_floats(rows) || !are_floats(op) || ids->type != GGML_TYPE_I32 || !is_matrix || rows->ne[0] < 2 * PIECE || rows->nb[0] != sizeof(float)
        || op->nb[0] != sizeof(float)) {
        return false;
    }
    const Pieces pieces(rows->ne[0]);
    pieces.for_each(Part(params, ids->ne[0] * pieces.of_row), [&](int64_t row, int64_t, int64_t column, int64_t end) {
        const int32_t id = *reinterpret_cast<const int32_t *>(static_cast<const char *>(ids->data) + row * ids->nb[0]);
        GGML_ASSERT(id >= 0 && id < rows->ne[1]);
        const size_t at = column * sizeof(float);
        const char * from = static_cast<const char *>(rows->data) + id * rows->nb[1] + at;
        memcpy(static_cast<char *>(op->data) + row * op->nb[1] + at, from, (end - column) * sizeof(float));
    });
    return true;
}

// The floats from the beginning of a tensor that lie together.
int64_t floats_together(const ggml_tensor * tensor) {
    int64_t n = 1;
    for (int i = 0; i < GGML_MAX_DIMS; ++i) {
        if (tensor->ne[i] != 1 && tensor->nb[i] != n * sizeof(float)) {
            break;
        }
        n *= tensor->ne[i];
    }
    return n;
}

// Copies to another shape or other strides. The floats of a source's matrix lie together in the destination.
bool copy_matrices(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * from = op->src[0];
    const int64_t n_columns = from->ne[0], n_rows = from->ne[1], n = n_columns * n_rows;
    if (!are_floats(from) || !are_floats(op) || (ggml_is_contiguous(from) && ggml_is_contiguous(op)) || floats_together(op) % n != 0
        || overlap(from, op)) {
        return false;
    }
    const Pieces pieces(n_columns);
    const int64_t per_matrix = n_rows * pieces.of_row;
    Part part(params, per_matrix * from->ne[2] * from->ne[3]);
    while (part.first < part.end) {
        const int64_t matrix = part.first / per_matrix;
        Part within = part;
        within.first -= matrix * per_matrix;
        within.end = std::min(part.end - matrix * per_matrix, per_matrix);
        int64_t at = matrix * n;
        char * data = static_cast<char *>(op->data);
        for (int i = 0; i < GGML_MAX_DIMS; ++i) {
            data += at % op->ne[i] * op->nb[i];
            at /= op->ne[i];
        }
        const size_t plane = matrix % from->ne[2] * from->nb[2] + matrix / from->ne[2] * from->nb[3];
        const Matrix source = { static_cast<char *>(from->data) + plane, from->nb[0], from->nb[1] };
        const Matrix target = { data, sizeof(float), n_columns * sizeof(float) };
        pieces.for_each(within, [&](int64_t row, int64_t end_row, int64_t column, int64_t end) {
            copy(target.from(row, column), source.from(row, column), end_row - row, end - column);
        });
        part.first += within.end - within.first;
    }
    return true;
}

// Joins rows: those of the first source, and behind each that of the second.
bool join_rows(const ggml_compute_params * params, ggml_tensor * op) {
    if (ggml_get_op_params_i32(op, 0) != 0 || !are_floats(op->src[0]) || !are_floats(op->src[1]) || op->nb[0] != sizeof(float)) {
        return false;
    }
    Part part(params, op->ne[1] * op->ne[2] * op->ne[3]);
    while (part.first < part.end) {
        const int64_t matrix = part.first / op->ne[1], row = part.first % op->ne[1], n = std::min(op->ne[1] - row, part.end - part.first);
        const auto plane = [&](const ggml_tensor * tensor) {
            const size_t at = matrix % op->ne[2] * tensor->nb[2] + matrix / op->ne[2] * tensor->nb[3];
            return Matrix { static_cast<char *>(tensor->data) + at, tensor->nb[0], tensor->nb[1] };
        };
        const Matrix to = plane(op);
        copy(to.from(row, 0), plane(op->src[0]).from(row, 0), n, op->src[0]->ne[0]);
        copy(to.from(row, op->src[0]->ne[0]), plane(op->src[1]).from(row, 0), n, op->src[1]->ne[0]);
        part.first += n;
    }
    return true;
}

}  // namespace

bool foredraft::copy_floats(const ggml_compute_params * params, ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_GET_ROWS: return get_wide_rows(params, op);
        case GGML_OP_CPY:
        case GGML_OP_CONT:
        case GGML_OP_DUP: return copy_matrices(params, op);
        case GGML_OP_CONCAT: return join_rows(params, op);
        default: return false;
    }
}
