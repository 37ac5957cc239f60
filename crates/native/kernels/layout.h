// How blocks of rows lie in memory.
//
// A block of `SIZE` bytes is words of four bytes, and perhaps an odd scale of one or two bytes, first or last.
// Its rows are read from one of two layouts:
//
//   the file's  row after row.
//   panels      the rows of a panel, `LANES` of them, word by word: a word of every row, then the next word, in the order in which the formats
//               read them. Blocks follow each other in groups: first the odd scales of a group's blocks, so many that they fill registers, then
//               the words of each. So memory is read from one end to the other, which processors foresee, and no register has to be put together
//               from several rows. A panel is as large as its rows are in the file. making.cpp makes them.
//
// Both have the functions
//
//   load_4(offset, words), load_8(offset, words)   four or eight words of each row, from byte `offset` of a block on
//   load<N>(offset, words)                         the same
//   load_few<OFFSET, N>(words)                     one to three
//   odd_halves(), odd_bytes()                      the odd scale: an F16 number, or a byte
#pragma once

#include "vectors.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

// The bytes of the odd scale of a block of `size` bytes, how many of them are before the words, and the blocks of a group.
constexpr int odd_of(int size) { return size % 4; }
constexpr int before_words(ggml_type type, int size) {
    const bool is_last = type == GGML_TYPE_Q3_K || type == GGML_TYPE_Q6_K || type == GGML_TYPE_TQ1_0 || type == GGML_TYPE_TQ2_0;
    return is_last ? 0 : odd_of(size);
}
constexpr int blocks_of_group(int size) { return odd_of(size) == 0 ? 1 : 4 / odd_of(size); }

// Where a panel has a block's word: the scales come first, and of Q6_K each half's upper bits before its lower ones.
constexpr int place_of_word(ggml_type type, int word) {
    switch (type) {
        case GGML_TYPE_Q2_K: return word == 20 ? 0 : word + 1;
        case GGML_TYPE_Q3_K: return word >= 24 ? word - 24 : word + 3;
        case GGML_TYPE_Q6_K: return word >= 48 ? word - 48 : word >= 32 ? 4 + (word - 32) / 8 * 24 + word % 8 : 12 + word / 16 * 24 + word % 16;
        default: return word;
    }
}

template <ggml_type TYPE, int SIZE> struct InFile {
    static constexpr bool IS_PANEL = false;
    const uint8_t * at;
    size_t stride;

    void load_4(int offset, I32xN * words) const { load_4_words(at + offset, stride, words); }
    void load_8(int offset, I32xN * words) const { load_8_words(at + offset, stride, words); }
    template <int OFFSET, int N> void load_few(I32xN * words) const {
        // Nothing may be read behind a block: it may be the file's last. So what is read may begin with words that are not wanted.
        constexpr int AT_ONCE = N <= 2 ? 2 : 4, LATEST = SIZE - 4 * AT_ONCE;
        constexpr int BACK = OFFSET <= LATEST ? 0 : (OFFSET - LATEST + 3) / 4;
        I32xN all_words[4];
        if constexpr (AT_ONCE == 2) {
            load_2_words(at + OFFSET - 4 * BACK, stride, all_words);
        } else {
            load_4_words(at + OFFSET - 4 * BACK, stride, all_words);
        }
        for (int word = 0; word < N; ++word) {
            words[word] = all_words[BACK + word];
        }
    }
    F32xN odd_halves() const {
        I32xN words[2];
        load_2_words(before_words(TYPE, SIZE) != 0 ? at : at + SIZE - 8, stride, words);
        return before_words(TYPE, SIZE) != 0 ? low_halves(words[0]) : high_halves(words[1]);
    }
    I32xN odd_bytes() const {
        I32xN words[2];
        load_2_words(at, stride, words);
        return bit_and(words[0], broadcast(0xff));
    }
    template <int N> void load(int offset, I32xN * words) const { N == 8 ? load_8(offset, words) : load_4(offset, words); }
    void next(int64_t, int64_t) { at += SIZE; }
};

template <ggml_type TYPE, int SIZE> struct InPanel {
    static constexpr bool IS_PANEL = true;
    // The block's odd scale and its words.
    const uint8_t *odd_at, *words_at;

    template <int N> void load(int offset, I32xN * words) const {
        const uint8_t * at = words_at + place_of_word(TYPE, (offset - before_words(TYPE, SIZE)) / 4) * 4 * LANES;
        for (int word = 0; word < N; ++word) {
            words[word] = foredraft::FOREDRAFT_LEVEL::load(at + word * 4 * LANES);
        }
    }
    void load_4(int offset, I32xN * words) const { load<4>(offset, words); }
    void load_8(int offset, I32xN * words) const { load<8>(offset, words); }
    template <int OFFSET, int N> void load_few(I32xN * words) const { load<N>(OFFSET, words); }
    F32xN odd_halves() const { return floats_of_halves(odd_at); }
    I32xN odd_bytes() const { return ints_of_bytes(odd_at); }
    // Goes on to block `block` of `n_blocks`, which follows.
    void next(int64_t block, int64_t n_blocks) {
        constexpr int ODD = LANES * odd_of(SIZE), IN_GROUP = blocks_of_group(SIZE);
        words_at += LANES * SIZE - ODD;
        odd_at += ODD;
        if (IN_GROUP > 1 && block % IN_GROUP == 0) {
            odd_at = words_at;
            words_at += ODD * (n_blocks - block < IN_GROUP ? n_blocks - block : IN_GROUP);
        }
    }
};

// Where a block of a panel is: its odd scales, and its words.
struct PanelBlock {
    int64_t odd, words;
};
inline PanelBlock block_of_panel(int size, int64_t n_blocks, int64_t block) {
    const int64_t in_group = blocks_of_group(size), first = block - block % in_group;
    const int64_t n = n_blocks - first < in_group ? n_blocks - first : in_group;
    const int64_t odd = LANES * odd_of(size), words = LANES * size - odd, group = first * LANES * size;
    return { group + (block - first) * odd, group + n * odd + (block - first) * words };
}

// Makes panels of a matrix's rows. The lanes of the last panel that have no rows become zeros.
inline void make_panels(ggml_type type, int size, const uint8_t * from, int64_t n_rows, int64_t n_blocks, uint8_t * to) {
    const int odd = odd_of(size), before = before_words(type, size), n_words = size / 4;
    const size_t stride = size * n_blocks;
    for (int64_t row = 0; row < n_rows; row += LANES, from += LANES * stride, to += LANES * stride) {
        const int n = int(n_rows - row < LANES ? n_rows - row : LANES);
        if (n < LANES) {
            memset(to, 0, LANES * stride);
        }
        for (int64_t block = 0; block < n_blocks; ++block) {
            const PanelBlock at = block_of_panel(size, n_blocks, block);
            const uint8_t * of_block = from + block * size;
            int word = 0;
            for (; n == LANES && word + 4 <= n_words; word += 4) {
                I32xN words[4];
                load_4_words(of_block + before + 4 * word, stride, words);
                for (int i = 0; i < 4; ++i) {
                    store(to + at.words + place_of_word(type, word + i) * 4 * LANES, words[i]);
                }
            }
            for (int lane = 0; lane < n; ++lane) {
                const uint8_t * of_lane = of_block + lane * stride;
                for (int left = word; left < n_words; ++left) {
                    memcpy(to + at.words + (place_of_word(type, left) * LANES + lane) * 4, of_lane + before + 4 * left, 4);
                }
                // Two bytes at once: a copy of unknown size takes longer than all else.
                const uint8_t * odd_scale = of_lane + (before != 0 ? 0 : size - odd);
                if (odd == 2) {
                    memcpy(to + at.odd + lane * 2, odd_scale, 2);
                } else {
                    memcpy(to + at.odd + lane * odd, odd_scale, odd);
                }
            }
        }
    }
}

// `n` blocks of a row of panels, from the block `first` on, as the file had them.
inline void blocks_of_panels(
    ggml_type type, int size, const uint8_t * panels, int64_t row, int64_t n_blocks, int64_t first, int64_t n, uint8_t * to) {
    const int odd = odd_of(size), before = before_words(type, size), n_words = size / 4;
    const int64_t lane = row % LANES;
    const uint8_t * panel = panels + (row - lane) * size * n_blocks;
    for (int64_t block = first; block < first + n; ++block, to += size) {
        const PanelBlock at = block_of_panel(size, n_blocks, block);
        for (int word = 0; word < n_words; ++word) {
            memcpy(to + before + 4 * word, panel + at.words + (place_of_word(type, word) * LANES + lane) * 4, 4);
        }
        memcpy(to + (before != 0 ? 0 : size - odd), panel + at.odd + lane * odd, odd);
    }
}

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
