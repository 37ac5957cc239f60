// Products of weights with tokens: ggml's MUL_MAT and MUL_MAT_ID (mixtures of experts). Included by level.cpp only.
//
// Speculation needs forward passes of a few tokens that take little longer than one token's. ggml's loops compute one row of weights for one
// token at a time, so from two tokens on, arithmetic is their bottleneck. Here a block of `LANES` rows is unpacked once for all tokens: a register
// holds four weights of each row, and one instruction multiplies them with four numbers of a token.
//
// A result is defined without any regard to lanes, tiles or threads, so it is the same bits for any batch, any number of threads and any level:
//   quantized weights  a token is rounded to whole numbers, with a scale for each block. The sum of a block's products is exact, in integers.
//                      Blocks are added one after the other, each with one fma (and one more for the minima).
//   floats             16 sums, of the products 16 apart, each by fma; then `total`.

// What `pack` computes of a block of a token, in tiles of N tokens, so that addresses in the inner loop are constants:
//   short: N x 32 numbers, N scales, N corrections (what OFFSET takes away) or sums (scaled, for `least`)
//   long:  N x 256 numbers, N scales, N x 16 sums of parts, of 16 or 32 numbers
constexpr int SHORT_SIZE = 32 + 4 + 4, LONG_SIZE = 256 + 4 + 32;
// Short blocks that are unpacked together.
constexpr int STRETCH = 8;
// Tokens whose sums are kept together.
constexpr int TOKENS = 128;

struct ShortPart {
    Ints words[8];
    ShortScales scales;
};

// `of_part`: a part's scale in each lane; of AVX2's in both halves of a lane. `pairs`: of parts 2p and 2p + 1, the minima if there are any, else
// the scales, as 16-bit numbers.
template <int PARTS> struct LongScalesOfParts {
    Ints of_part[PARTS], pairs[PARTS / 2];
    Floats scale, least;
};

template <int PARTS> struct LongBlock {
    Ints words[64];
    LongScalesOfParts<PARTS> scales;
};

inline float float_at(const uint8_t * at) {
    float x;
    memcpy(&x, at, sizeof x);
    return x;
}
inline int32_t int_at(const void * at) {
    int32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

// --- Sums of products of a part ------------------------------------------------------------------------------------------------------------

// Adds `WORDS` words of weights times T tokens' numbers, times the part's scale, to `sums`. Token t's numbers are at `numbers + t * SIZE`.
template <int BITS, int WORDS, int SIZE, bool IS_LONG, int T>
inline __attribute__((always_inline)) void add_products(const Ints * words, const uint8_t * numbers, Ints scale, Ints * sums) {
#ifdef FOREDRAFT_DOT
    Ints of_part[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
        of_part[t] = IS_LONG ? all(0) : sums[t];
    }
#ifdef FOREDRAFT_NEON
#pragma GCC unroll 2
    for (int word = 0; word < WORDS; word += 4) {
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            const Ints of_token = load(numbers + t * SIZE + 4 * word);
            of_part[t] = dot_8<0>(of_part[t], words[word], of_token);
            of_part[t] = dot_8<1>(of_part[t], words[word + 1], of_token);
            of_part[t] = dot_8<2>(of_part[t], words[word + 2], of_token);
            of_part[t] = dot_8<3>(of_part[t], words[word + 3], of_token);
        }
    }
#else
#pragma GCC unroll 8
    for (int word = 0; word < WORDS; ++word) {
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            of_part[t] = dot_8(of_part[t], words[word], all(int_at(numbers + t * SIZE + 4 * word)));
        }
    }
#endif
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
        sums[t] = IS_LONG ? add_32(sums[t], mul_32(of_part[t], scale)) : of_part[t];
    }
#else
    // As many words as fit into 16-bit sums: 4 bits: 8 * 2 * 15 * 127, 5 bits: 4 * 2 * 31 * 127, 6 bits: 2 * 2 * 63 * 127, 8 bits: 2 * 128 * 127.
    constexpr int GROUP = BITS == 4 ? (WORDS < 8 ? WORDS : 8) : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;
    const Ints by = IS_LONG ? scale : all(0x00010001);
#pragma GCC unroll 8
    for (int group = 0; group < WORDS; group += GROUP) {
        Ints pairs[T];
#pragma GCC unroll 8
        for (int word = group; word < group + GROUP; ++word) {
            const Ints weights = BITS == 8 ? abs_8(words[word]) : words[word];
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
                const Ints four = all(int_at(numbers + t * SIZE + 4 * word));
                const Ints product = pairs_8(weights, BITS == 8 ? sign_8(four, words[word]) : four);
                pairs[t] = word == group ? product : add_16_bits(pairs[t], product);
            }
        }
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            sums[t] = dot_16(sums[t], pairs[t], by);
        }
    }
#endif
}

// The same for N tokens.
template <int BITS, int WORDS, int SIZE, bool IS_LONG, int N>
inline __attribute__((always_inline)) void add_all_products(const Ints * words, const uint8_t * numbers, Ints scale, Ints * sums) {
#pragma GCC unroll 4
    for (int token = 0; token + 4 <= N; token += 4) {
        add_products<BITS, WORDS, SIZE, IS_LONG, 4>(words, numbers + token * SIZE, scale, sums + token);
    }
    constexpr int DONE = N / 4 * 4;
    if constexpr (N % 4 != 0) {
        add_products<BITS, WORDS, SIZE, IS_LONG, N % 4>(words, numbers + DONE * SIZE, scale, sums + DONE);
    }
}

// --- Short formats --------------------------------------------------------------------------------------------------------------------------

// Adds a block of rows times N tokens to the sums.
template <int BITS, bool MINIMA, int N>
inline __attribute__((always_inline)) void add_short(const Ints * words, const ShortScales & scales, const uint8_t * numbers, Floats * sums) {
    const uint8_t *scales_of = numbers + N * 32, *corrections = numbers + N * 36;
    Ints products[N];
#pragma GCC unroll 16
    for (int token = 0; token < N; ++token) {
        products[token] = MINIMA ? all(0) : all(int_at(corrections + 4 * token));
    }
    add_all_products<BITS, 8, 32, false, N>(words, numbers, all(0), products);
#pragma GCC unroll 16
    for (int token = 0; token < N; ++token) {
        const Floats scale = mul(scales.scale, all_floats(float_at(scales_of + 4 * token)));
        sums[token] = fma(to_floats(products[token]), scale, sums[token]);
        if constexpr (MINIMA) {
            sums[token] = fma(scales.least, all_floats(float_at(corrections + 4 * token)), sums[token]);
        }
    }
}

template <int BITS, bool MINIMA, int N> void multiply_short(const void * unpacked, int n_blocks, const uint8_t * numbers, Floats * to) {
    const auto * parts = static_cast<const ShortPart *>(unpacked);
    Floats sums[N];
    for (int token = 0; token < N; ++token) {
        sums[token] = to[token];
    }
    for (int block = 0; block < n_blocks; ++block) {
        add_short<BITS, MINIMA, N>(parts[block].words, parts[block].scales, numbers + block * N * SHORT_SIZE, sums);
    }
    for (int token = 0; token < N; ++token) {
        to[token] = sums[token];
    }
}

// --- Long formats ---------------------------------------------------------------------------------------------------------------------------

template <int PARTS, bool MINIMA, bool SIGNED>
inline __attribute__((always_inline)) void expand(const LongScales & from, LongScalesOfParts<PARTS> & to) {
    alignas(16) static const uint8_t PAIR[2][16] = {
        { 0, 255, 1, 255, 4, 255, 5, 255, 8, 255, 9, 255, 12, 255, 13, 255 },
        { 2, 255, 3, 255, 6, 255, 7, 255, 10, 255, 11, 255, 14, 255, 15, 255 },
    };
    alignas(16) static const uint8_t SIGNED_PAIR[2][16] = {
        { 255, 0, 255, 1, 255, 4, 255, 5, 255, 8, 255, 9, 255, 12, 255, 13 },
        { 255, 2, 255, 3, 255, 6, 255, 7, 255, 10, 255, 11, 255, 14, 255, 15 },
    };
    to.scale = from.scale;
    if constexpr (MINIMA) {
        to.least = from.least;
    }
    const auto expand_4 = [&](Ints words, Ints * scales) __attribute__((always_inline)) {
#ifdef FOREDRAFT_DOT
        scales[0] = SIGNED ? signed_right_32<24>(left_32<24>(words)) : both_bits(words, all(0xff));
        scales[1] = SIGNED ? signed_right_32<24>(left_32<16>(words)) : both_bits(right_32<8>(words), all(0xff));
        scales[2] = SIGNED ? signed_right_32<24>(left_32<8>(words)) : both_bits(right_32<16>(words), all(0xff));
        scales[3] = SIGNED ? signed_right_32<24>(words) : right_32<24>(words);
#else
        alignas(16) static const uint8_t BOTH[4][16] = {
            { 0, 255, 0, 255, 4, 255, 4, 255, 8, 255, 8, 255, 12, 255, 12, 255 },
            { 1, 255, 1, 255, 5, 255, 5, 255, 9, 255, 9, 255, 13, 255, 13, 255 },
            { 2, 255, 2, 255, 6, 255, 6, 255, 10, 255, 10, 255, 14, 255, 14, 255 },
            { 3, 255, 3, 255, 7, 255, 7, 255, 11, 255, 11, 255, 15, 255, 15, 255 },
        };
        alignas(16) static const uint8_t SIGNED_BOTH[4][16] = {
            { 255, 0, 255, 0, 255, 4, 255, 4, 255, 8, 255, 8, 255, 12, 255, 12 },
            { 255, 1, 255, 1, 255, 5, 255, 5, 255, 9, 255, 9, 255, 13, 255, 13 },
            { 255, 2, 255, 2, 255, 6, 255, 6, 255, 10, 255, 10, 255, 14, 255, 14 },
            { 255, 3, 255, 3, 255, 7, 255, 7, 255, 11, 255, 11, 255, 15, 255, 15 },
        };
#pragma GCC unroll 4
        for (int byte = 0; byte < 4; ++byte) {
            const Ints spread = shuffle(words, repeat_16(SIGNED ? SIGNED_BOTH[byte] : BOTH[byte]));
            scales[byte] = SIGNED ? signed_right_16<8>(spread) : spread;
        }
#endif
    };
#pragma GCC unroll 4
    for (int word = 0; word < PARTS / 4; ++word) {
        expand_4(from.scales[word], to.of_part + 4 * word);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            // Minima are never signed.
            constexpr bool IS_SIGNED = SIGNED && !MINIMA;
            const Ints pair = shuffle(MINIMA ? from.minima[word] : from.scales[word], repeat_16(IS_SIGNED ? SIGNED_PAIR[half] : PAIR[half]));
            to.pairs[2 * word + half] = IS_SIGNED ? signed_right_16<8>(pair) : pair;
        }
    }
}

// Adds to `sums` what a block's parts have added to `products`.
template <int PARTS, bool MINIMA, int N> inline __attribute__((always_inline)) void add_long(
    const Ints * products, const LongScalesOfParts<PARTS> & scales, int offset, const uint8_t * numbers, Floats * sums) {
    const uint8_t *scales_of = numbers + N * 256, *part_sums = numbers + N * 260;
#pragma GCC unroll 16
    for (int token = 0; token < N; ++token) {
        Ints of_pairs = all(0);
#pragma GCC unroll 8
        for (int pair = 0; pair < PARTS / 2; ++pair) {
            of_pairs = dot_16(of_pairs, scales.pairs[pair], all(int_at(part_sums + token * 32 + 4 * pair)));
        }
        const Floats of_token = all_floats(float_at(scales_of + 4 * token));
        const Ints product = MINIMA ? products[token] : sub_32(products[token], mul_32(of_pairs, all(offset)));
        sums[token] = fma(to_floats(product), mul(scales.scale, of_token), sums[token]);
        if constexpr (MINIMA) {
            sums[token] = fnma(to_floats(of_pairs), mul(scales.least, of_token), sums[token]);
        }
    }
}

template <int BITS, int PARTS, bool MINIMA, int N> void multiply_long(const void * unpacked, int offset, const uint8_t * numbers, Floats * to) {
    const auto & block = *static_cast<const LongBlock<PARTS> *>(unpacked);
    constexpr int WORDS = 64 / PARTS;
    Ints products[N];
    for (int token = 0; token < N; ++token) {
        products[token] = all(0);
    }
    for (int part = 0; part < PARTS; ++part) {
        add_all_products<BITS, WORDS, 256, true, N>(block.words + part * WORDS, numbers + part * 4 * WORDS, block.scales.of_part[part], products);
    }
    add_long<PARTS, MINIMA, N>(products, block.scales, offset, numbers, to);
}

// --- A format's functions -------------------------------------------------------------------------------------------------------------------

// A panel's rows of weights. `stride` is of the file's layout: in a panel, a row's bytes are not together.
struct Rows {
    const uint8_t * weights;
    size_t stride;
    int64_t n_blocks;
    // What will be read next, or these rows: prefetched while these are computed.
    const uint8_t * next;
    // Whether these rows and the next ones fit into the first level of caches.
    bool are_few;
};

// Bytes of rows that are few. The first level has 32 KiB at least, and holds the tokens' numbers too.
constexpr size_t FEW = 12 << 10;

// Where a format's blocks are, in each layout.
struct OfFile {
    template <typename Format> static InFile<Format::SIZE> block(const Rows & rows, int64_t at) {
        return { rows.weights + at * Format::SIZE, rows.stride };
    }
};
struct OfPanel {
    template <typename Format> static InPanel<Format::SIZE> block(const Rows & rows, int64_t at) {
        const PanelBlock block = block_of_panel(Format::SIZE, rows.n_blocks, at);
        return { rows.weights + block.odd, rows.weights + block.words };
    }
};

// Prefetches while a block of all rows is computed with `TOKENS_AT_ONCE` tokens. A processor waits for few lines at a time, so each part asks for
// some. Of rows as in the file:
//
//   far   as many bytes of the next rows as the block has, into the second level of caches; into the first one if the rows are few and
//         computing takes longer than reading (with Q8_0 it does not).
//   near  of long formats, the next block of each row, into the first level: rows lie apart, so the processor does not foresee them.
template <typename Format, int PARTS, typename Layout, int TOKENS_AT_ONCE> struct Fetch {
    static constexpr int LINES = (LANES * Format::SIZE + 63) / 64, OF_PART = LINES / PARTS;
    static constexpr int ROWS_OF_PART = LANES > PARTS ? LANES / PARTS : 1, PARTS_OF_ROW = LANES > PARTS ? 1 : PARTS / LANES;
    static constexpr bool OFTEN_FEW = Format::BITS < 8 && (!Format::IS_LONG || Format::SIZE <= 96), NEAR = Format::IS_LONG && !OFTEN_FEW;
    const uint8_t *line, *row;
    size_t stride;
    bool into_first;
    int n_parts = 0;

    inline __attribute__((always_inline)) Fetch(const Rows & rows, int64_t block)
        : line(rows.next + block * LANES * Format::SIZE), row(rows.weights + (block + 1) * Format::SIZE), stride(rows.stride),
          into_first(OFTEN_FEW && rows.are_few) {
        fetch<LINES - PARTS * OF_PART>();
    }
    inline __attribute__((always_inline)) void part() {
        fetch<OF_PART>();
        if constexpr (NEAR) {
            if (n_parts % PARTS_OF_ROW == 0) {
#pragma GCC unroll 4
                for (int n = 0; n < ROWS_OF_PART; ++n) {
#pragma GCC unroll 4
                    for (int at = 0; at < Format::SIZE; at += 64) {
                        PREFETCH(row + at, 3);
                    }
                    row += stride;
                }
            }
            ++n_parts;
        }
    }

private:
    template <int N> inline __attribute__((always_inline)) void fetch() {
        if (into_first) {
            for (int i = 0; i < N; ++i) {
                PREFETCH(line + 64 * i, 3);
            }
        } else {
            for (int i = 0; i < N; ++i) {
                PREFETCH(line + 64 * i, 2);
            }
        }
        line += 64 * N;
    }
};
// Panels are read from one end to the other, which processors foresee, unless much is computed between the reads.
template <typename Format, int PARTS, int TOKENS_AT_ONCE> struct Fetch<Format, PARTS, OfPanel, TOKENS_AT_ONCE> {
    static constexpr bool IS_NEEDED = TOKENS_AT_ONCE >= 4;
    static constexpr int AHEAD = 8 << 10, LINES_OF_PART = (LANES * Format::SIZE + 63) / 64 / PARTS + 1;
    const uint8_t * line;

    Fetch(const Rows & rows, int64_t block) : line(rows.weights + block * LANES * Format::SIZE + AHEAD) {}
    inline __attribute__((always_inline)) void part() {
        if constexpr (IS_NEEDED) {
#pragma GCC unroll 16
            for (int i = 0; i < LINES_OF_PART; ++i) {
                PREFETCH(line + 64 * i, 2);
            }
            line += 64 * LINES_OF_PART;
        }
    }
};

// Unpacks `n` blocks from block `first` on: at most STRETCH short ones, one long one.
template <typename Format, typename Layout> void unpack(const Rows & rows, int64_t first, int n, void * to) {
    for (int at = 0; at < n; ++at) {
        const auto block = Layout::template block<Format>(rows, first + at);
        if constexpr (Format::IS_LONG) {
            auto & unpacked = *static_cast<LongBlock<Format::PARTS> *>(to);
            Fetch<Format, Format::PARTS, Layout, TILE> fetch(rows, first + at);
            LongScales scales;
            Format::scales(block, scales);
            expand<Format::PARTS, Format::MINIMA, Format::SIGNED_SCALES>(scales, unpacked.scales);
            constexpr int WORDS = 64 / Format::PARTS;
            Format::unpack(
                block, [&](int part, const Ints * words) __attribute__((always_inline)) {
                    fetch.part();
                    for (int word = 0; word < WORDS; ++word) {
                        unpacked.words[part * WORDS + word] = words[word];
                    }
                });
        } else {
            auto & unpacked = static_cast<ShortPart *>(to)[at];
            Fetch<Format, 1, Layout, TILE>(rows, first + at).part();
            Format::scales(block, unpacked.scales);
            Format::unpack(
                block, [&](int, const Ints * words) __attribute__((always_inline)) {
                    for (int word = 0; word < 8; ++word) {
                        unpacked.words[word] = words[word];
                    }
                });
        }
    }
}

// Multiplies rows with a tile of N tokens, without storing what is unpacked.
template <typename Format, typename Layout, int N> void multiply_few(const Rows & rows, const uint8_t * numbers, Floats * to) {
    Floats sums[N];
    for (Floats & sum : sums) {
        sum = zero();
    }
    for (int64_t at = 0; at < rows.n_blocks; ++at) {
        const auto block = Layout::template block<Format>(rows, at);
        if constexpr (Format::IS_LONG) {
            constexpr int WORDS = 64 / Format::PARTS;
            const uint8_t * of_tile = numbers + at * N * LONG_SIZE;
            Fetch<Format, Format::PARTS, Layout, N> fetch(rows, at);
            LongScales packed;
            Format::scales(block, packed);
            LongScalesOfParts<Format::PARTS> scales;
            expand<Format::PARTS, Format::MINIMA, Format::SIGNED_SCALES>(packed, scales);
            // Of a single token two sums, because each waits for its last product.
            constexpr int CHAINS = N == 1 ? 2 : 1;
            Ints products[CHAINS][N];
            for (int chain = 0; chain < CHAINS; ++chain) {
                for (Ints & product : products[chain]) {
                    product = all(0);
                }
            }
            Format::unpack(
                block, [&](int part, const Ints * words) __attribute__((always_inline)) {
                    fetch.part();
                    add_all_products<Format::BITS, WORDS, 256, true, N>(
                        words, of_tile + part * 4 * WORDS, scales.of_part[part], products[part % CHAINS]);
                });
            if constexpr (CHAINS == 2) {
                products[0][0] = add_32(products[0][0], products[1][0]);
            }
            add_long<Format::PARTS, Format::MINIMA, N>(products[0], scales, Format::OFFSET, of_tile, sums);
        } else {
            ShortScales scales;
            Fetch<Format, 1, Layout, N>(rows, at).part();
            Format::scales(block, scales);
            Format::unpack(
                block, [&](int, const Ints * words) __attribute__((always_inline)) {
                    add_short<Format::BITS, Format::MINIMA, N>(words, scales, numbers + at * N * SHORT_SIZE, sums);
                });
        }
    }
    for (int token = 0; token < N; ++token) {
        to[token] = sums[token];
    }
}

// Tokens whose products are computed without storing what is unpacked.
constexpr int FEW_TOKENS = 8;

using Multiply = void (*)(const void * unpacked, int, const uint8_t * numbers, Floats * sums);

struct Format {
    ggml_type type;
    int size, offset, n_parts;
    bool is_long, minima;
    // For weights as in the file, and in panels.
    void (*unpack[2])(const Rows &, int64_t, int, void *);
    // For 1 to FEW_TOKENS tokens, or NULL.
    void (*multiply_few[2][FEW_TOKENS])(const Rows &, const uint8_t *, Floats *);
    // For 1 to TILE tokens.
    const Multiply * multiply;
};

template <typename F, int N> constexpr Multiply multiply_of() {
#ifdef FOREDRAFT_DOT
    // The instruction is the same for all sizes of numbers, so the formats share their functions.
    constexpr int BITS = 8;
#else
    constexpr int BITS = F::BITS;
#endif
    if constexpr (F::IS_LONG) {
        return multiply_long<BITS, F::PARTS, F::MINIMA, N>;
    } else {
        return multiply_short<BITS, F::MINIMA, N>;
    }
}

template <typename F> struct Functions {
    static constexpr Multiply MULTIPLY[] = {
        multiply_of<F, 1>(),
        multiply_of<F, 2>(),
        multiply_of<F, 3>(),
        multiply_of<F, 4>(),
        multiply_of<F, 5>(),
        multiply_of<F, 6>(),
        multiply_of<F, 7>(),
        multiply_of<F, 8>(),
#if defined(FOREDRAFT_AVX512_VNNI)
        multiply_of<F, 9>(),
        multiply_of<F, 10>(),
        multiply_of<F, 11>(),
        multiply_of<F, 12>(),
        multiply_of<F, 13>(),
        multiply_of<F, 14>(),
        multiply_of<F, 15>(),
        multiply_of<F, 16>(),
#endif
    };
    static_assert(sizeof MULTIPLY / sizeof MULTIPLY[0] == TILE, "a function for each number of tokens");

    static constexpr int parts() {
        if constexpr (F::IS_LONG) {
            return F::PARTS;
        } else {
            return 1;
        }
    }
    static constexpr Format make() {
        return { F::TYPE, F::SIZE, F::OFFSET, parts(), F::IS_LONG, F::MINIMA, { unpack<F, OfFile>, unpack<F, OfPanel> },
            { { multiply_few<F, OfFile, 1> },
                { multiply_few<F, OfPanel, 1>, multiply_few<F, OfPanel, 2>, multiply_few<F, OfPanel, 3>, multiply_few<F, OfPanel, 4>,
                    multiply_few<F, OfPanel, 5>, multiply_few<F, OfPanel, 6>, multiply_few<F, OfPanel, 7>, multiply_few<F, OfPanel, 8> } },
            MULTIPLY };
    }
};

const Format FORMATS[] = {
    Functions<Q8_0>::make(),
    Functions<Q4_0>::make(),
    Functions<Q4_1>::make(),
    Functions<Q5_0>::make(),
    Functions<Q5_1>::make(),
    Functions<IQ4_NL>::make(),
    Functions<MXFP4>::make(),
    Functions<Q2_K>::make(),
    Functions<Q3_K>::make(),
    Functions<Q4_K>::make(),
    Functions<Q5_K>::make(),
    Functions<Q6_K>::make(),
    Functions<IQ4_XS>::make(),
};

// NULL: another type.
inline const Format * format_of(ggml_type type) {
    for (const Format & format : FORMATS) {
        if (format.type == type) {
            return &format;
        }
    }
    return nullptr;
}

// --- Rounding tokens to whole numbers -------------------------------------------------------------------------------------------------------

// Rounds `n` numbers (a multiple of 16) to whole numbers with one scale, which is returned. Numbers that are not finite make the scale so.
inline float round_to_bytes(const float * from, int n, int8_t * to) {
    Sixteen most = sixteen(0.0f);
    bool is_nan = false;
    for (int i = 0; i < n; i += 16) {
        const Sixteen x = load_floats(from + i);
        is_nan = is_nan || has_nan(x);
        most = max_16(most, abs_16(x));
    }
    const float amount = largest(most);
    // Too small to divide by.
    const bool is_zero = amount < 1e-35f;
    const float inverse = is_zero ? 0.0f : 127.0f / amount;
    for (int i = 0; i < n; i += 16) {
        store_bytes(to + i, mul_16(load_floats(from + i), sixteen(inverse)));
    }
    return is_nan ? NAN : is_zero ? 0.0f : amount / 127.0f;
}

// Prepares a block of token `token` of a tile of `n` tokens. `to` is the tile's block.
inline void pack(const Format & format, const float * from, int token, int n, uint8_t * to) {
    if (!format.is_long) {
        int8_t * numbers = reinterpret_cast<int8_t *>(to) + token * 32;
        const float scale = round_to_bytes(from, 32, numbers);
        memcpy(to + n * 32 + token * 4, &scale, sizeof scale);
        const int sum = sum_of_16(numbers) + sum_of_16(numbers + 16);
        const float scaled = scale * float(sum);
        const int32_t correction = -format.offset * sum;
        memcpy(to + n * 36 + token * 4, format.minima ? static_cast<const void *>(&scaled) : &correction, sizeof scaled);
        return;
    }
    int8_t * numbers = reinterpret_cast<int8_t *>(to) + token * 256;
    const float scale = round_to_bytes(from, 256, numbers);
    memcpy(to + n * 256 + token * 4, &scale, sizeof scale);
    int16_t sums[16] = {};
    for (int sixteen_of = 0; sixteen_of < 16; ++sixteen_of) {
        sums[sixteen_of * format.n_parts / 16] = int16_t(sums[sixteen_of * format.n_parts / 16] + sum_of_16(numbers + 16 * sixteen_of));
    }
    memcpy(to + n * 260 + token * 32, sums, sizeof sums);
}

// --- The operation --------------------------------------------------------------------------------------------------------------------------

inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A product: matrices of weights, and the tokens that each of them multiplies (`slots`). Of MUL_MAT, a matrix multiplies the tokens of all heads
// that share it; of MUL_MAT_ID, those that have chosen it.
struct Product {
    const ggml_tensor *weights, *tokens, *ids, *to;
    int64_t width, n_rows, n_matrices, n_slots;
    // Of MUL_MAT_ID: the first slot of each matrix, and one more; then for each slot the expert's index and the token's.
    int32_t *first_slots, *slots;
    // NULL: floats.
    const Format * format;
    bool in_panels;
    int64_t n_blocks, slot_size;
    uint8_t * packed;

    // The size of what is kept in ggml's work buffer: the tables, and the packed tokens.
    int64_t tables_size() const { return ids == nullptr ? 0 : padded((n_matrices + 1 + 2 * n_slots) * 4, 64); }
    int64_t size() const { return tables_size() + n_slots * slot_size + 64; }

    int64_t first_of(int64_t matrix) const { return ids == nullptr ? matrix * (n_slots / n_matrices) : first_slots[matrix]; }
    const uint8_t * matrix(int64_t index) const {
        return static_cast<const uint8_t *>(weights->data) + index % weights->ne[2] * weights->nb[2] + index / weights->ne[2] * weights->nb[3];
    }
    void indices(int64_t matrix, int64_t slot, int64_t & i1, int64_t & i2, int64_t & i3) const {
        if (ids != nullptr) {
            i1 = slots[2 * slot];
            i2 = slots[2 * slot + 1];
            i3 = 0;
            return;
        }
        const int64_t at = slot - first_of(matrix), shared = tokens->ne[2] / weights->ne[2];
        const int64_t head = at / tokens->ne[1];
        i1 = at % tokens->ne[1];
        i2 = matrix % weights->ne[2] * shared + head % shared;
        i3 = matrix / weights->ne[2] * (tokens->ne[3] / weights->ne[3]) + head / shared;
    }
    const float * from(int64_t matrix, int64_t slot) const {
        int64_t i1, i2, i3;
        indices(matrix, slot, i1, i2, i3);
        const int64_t row = ids == nullptr ? i1 : i1 % tokens->ne[1];
        return reinterpret_cast<const float *>(
            static_cast<const char *>(tokens->data) + row * tokens->nb[1] + i2 * tokens->nb[2] + i3 * tokens->nb[3]);
    }
    float * result(int64_t matrix, int64_t slot) const {
        int64_t i1, i2, i3;
        indices(matrix, slot, i1, i2, i3);
        return reinterpret_cast<float *>(static_cast<char *>(to->data) + i1 * to->nb[1] + i2 * to->nb[2] + i3 * to->nb[3]);
    }
};

bool has_panels(ggml_type type) { return format_of(type) != nullptr; }

void make_panels(ggml_type type, const uint8_t * from, int64_t n_rows, int64_t width, uint8_t * to) {
    make_panels(from, n_rows, width / ggml_blck_size(type), int(ggml_type_size(type)), to);
}

void blocks_of_panels(ggml_type type, const uint8_t * panels, int64_t row, int64_t width, int64_t first, int64_t n, uint8_t * to) {
    blocks_of_panels(panels, row, width / ggml_blck_size(type), int(ggml_type_size(type)), first, n, to);
}

bool multiplies(ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || format_of(type) != nullptr; }

// Whether the operation is one that this file computes; then describes it.
inline bool describe(const ggml_tensor * dst, Product & product) {
    const ggml_tensor *weights = dst->src[0], *tokens = dst->src[1];
    const bool chooses = dst->op == GGML_OP_MUL_MAT_ID;
    if (!chooses && ggml_get_op_params_i32(dst, 1) == GGML_HINT_SRC0_IS_HADAMARD) {
        return false;
    }
    const ggml_type type = weights->type;
    product.format = format_of(type);
    product.in_panels = weights->extra == &IN_PANELS;
    if (!multiplies(type) || tokens->type != GGML_TYPE_F32 || dst->type != GGML_TYPE_F32) {
        return false;
    }
    if (weights->nb[0] != ggml_type_size(type) || tokens->nb[0] != sizeof(float) || dst->nb[0] != sizeof(float) || ggml_is_empty(dst)
        || weights->ne[0] == 0) {
        return false;
    }
    product.weights = weights;
    product.tokens = tokens;
    product.to = dst;
    product.ids = chooses ? dst->src[2] : nullptr;
    product.width = weights->ne[0];
    product.n_rows = weights->ne[1];
    product.n_matrices = weights->ne[2] * weights->ne[3];
    product.n_slots = chooses ? product.ids->ne[0] * product.ids->ne[1] : tokens->ne[1] * tokens->ne[2] * tokens->ne[3];
    const bool is_long = product.format != nullptr && product.format->is_long;
    product.n_blocks = product.width / (is_long ? 256 : 32);
    product.slot_size = product.format == nullptr ? 0 : product.n_blocks * (is_long ? LONG_SIZE : SHORT_SIZE);
    return true;
}

// Groups the slots of MUL_MAT_ID by matrix.
inline void group(Product & product) {
    const ggml_tensor * ids = product.ids;
    const auto expert
        = [&](int64_t token, int64_t index) { return int_at(static_cast<const char *>(ids->data) + token * ids->nb[1] + index * ids->nb[0]); };
    const auto for_all = [&](auto use) {
        for (int64_t token = 0; token < ids->ne[1]; ++token) {
            for (int64_t index = 0; index < ids->ne[0]; ++index) {
                const int32_t chosen = expert(token, index);
                if (chosen >= 0 && chosen < product.n_matrices) {
                    use(chosen, index, token);
                }
            }
        }
    };
    int32_t * first = product.first_slots;
    memset(first, 0, (product.n_matrices + 1) * sizeof *first);
    for_all([&](int32_t chosen, int64_t, int64_t) { ++first[chosen + 1]; });
    for (int64_t matrix = 0; matrix < product.n_matrices; ++matrix) {
        first[matrix + 1] += first[matrix];
    }
    // Each matrix's first slot moves on as slots are filled, and ends where the next one's began.
    for_all([&](int32_t chosen, int64_t index, int64_t token) {
        int32_t * slot = product.slots + 2 * first[chosen]++;
        slot[0] = int32_t(index);
        slot[1] = int32_t(token);
    });
    for (int64_t matrix = product.n_matrices; matrix > 0; --matrix) {
        first[matrix] = first[matrix - 1];
    }
    first[0] = 0;
}

// The tile of a slot of a matrix: its first slot, and how many it has.
struct Tile {
    int64_t first;
    int n;
};
inline Tile tile_at(int64_t first_of_matrix, int64_t end_of_matrix, int64_t slot) {
    const int64_t first = first_of_matrix + (slot - first_of_matrix) / TILE * TILE;
    return { first, int(min_of(int64_t(TILE), end_of_matrix - first)) };
}

// Packs the calling thread's part of all tokens.
inline void pack_tokens(const Product & product, int thread, int n_threads) {
    const Format & format = *product.format;
    const int64_t n_slots = product.first_of(product.n_matrices), all_blocks = n_slots * product.n_blocks;
    const int64_t begin = all_blocks * thread / n_threads, end = all_blocks * (thread + 1) / n_threads;
    const int block_width = format.is_long ? 256 : 32, block_size = format.is_long ? LONG_SIZE : SHORT_SIZE;
    int64_t matrix = 0, last_slot = -1;
    Tile tile = {};
    const float * from = nullptr;
    for (int64_t at = begin; at < end; ++at) {
        const int64_t slot = at / product.n_blocks, block = at % product.n_blocks;
        if (slot != last_slot) {
            while (slot >= product.first_of(matrix + 1)) {
                ++matrix;
            }
            tile = tile_at(product.first_of(matrix), product.first_of(matrix + 1), slot);
            from = product.from(matrix, slot);
            last_slot = slot;
        }
        pack(format, from + block * block_width, int(slot - tile.first), tile.n,
            product.packed + tile.first * product.slot_size + block * tile.n * block_size);
    }
}

// Multiplies `n_panels` panels of rows of a matrix with the slots `first` to `end`.
inline void multiply_panels(const Product & product, int64_t matrix, int64_t panel, int64_t n_panels, int64_t first, int64_t end) {
    const Format & format = *product.format;
    const uint8_t * weights = product.matrix(matrix);
    const size_t row_size = product.weights->nb[1];
    const int block_size = format.is_long ? LONG_SIZE : SHORT_SIZE;
    alignas(64) uint8_t unpacked[sizeof(LongBlock<16>) > STRETCH * sizeof(ShortPart) ? sizeof(LongBlock<16>) : STRETCH * sizeof(ShortPart)];
    alignas(64) Floats sums[TOKENS];
    // A stretch of the rows of the last panel: those behind the last row are not ours to read.
    alignas(64) uint8_t copied[LANES * STRETCH * 40];
    static_assert(sizeof copied >= LANES * sizeof(block_q8_0) * STRETCH && sizeof copied >= LANES * sizeof(block_q6_K), "a stretch fits");
    const int64_t of_matrix = product.first_of(matrix), end_of_matrix = product.first_of(matrix + 1);
    // The first tile, and perhaps the only one.
    const Tile only = tile_at(of_matrix, end_of_matrix, first);
    for (int64_t index = 0; index < n_panels; ++index) {
        const int64_t row = (panel + index) * LANES;
        const int n_rows = int(min_of(int64_t(LANES), product.n_rows - row));
        const uint8_t * at = weights + row * row_size;
        const bool continues = index + 1 < n_panels && row + 2 * LANES <= product.n_rows && row_size == size_t(format.size) * product.n_blocks;
        const Rows rows { at, row_size, product.n_blocks, continues ? at + LANES * row_size : at, LANES * row_size <= FEW };
        // A panel always has all its rows.
        const bool is_whole = product.in_panels || n_rows == LANES;
        const auto multiply_few
            = only.n == end - first && only.n <= FEW_TOKENS && is_whole ? format.multiply_few[product.in_panels][only.n - 1] : nullptr;
        if (multiply_few != nullptr) {
            multiply_few(rows, product.packed + first * product.slot_size, sums);
        } else {
            for (int64_t slot = 0; slot < end - first; ++slot) {
                sums[slot] = zero();
            }
            const int at_once = format.is_long ? 1 : STRETCH;
            for (int64_t block = 0; block < product.n_blocks; block += at_once) {
                const int n = int(min_of(int64_t(at_once), product.n_blocks - block));
                if (is_whole) {
                    format.unpack[product.in_panels](rows, block, n, unpacked);
                } else {
                    const size_t size = size_t(n) * format.size;
                    for (int lane = 0; lane < LANES; ++lane) {
                        memcpy(copied + lane * size, at + min_of(lane, n_rows - 1) * row_size + block * format.size, size);
                    }
                    format.unpack[0](Rows { copied, size, n, copied, false }, 0, n, unpacked);
                }
                for (int64_t slot = first; slot < end;) {
                    const Tile tile = tile_at(of_matrix, end_of_matrix, slot);
                    const uint8_t * numbers = product.packed + tile.first * product.slot_size + block * tile.n * block_size;
                    format.multiply[tile.n - 1](unpacked, format.is_long ? format.offset : n, numbers, sums + (slot - first));
                    slot += tile.n;
                }
            }
        }
        for (int64_t slot = first; slot < end; ++slot) {
            float * to = product.result(matrix, slot) + row;
            if (n_rows == LANES) {
                store(to, sums[slot - first]);
            } else {
                float lanes[LANES];
                store(lanes, sums[slot - first]);
                memcpy(to, lanes, n_rows * sizeof(float));
            }
        }
    }
}

// --- Floats ---------------------------------------------------------------------------------------------------------------------------------

struct F32 {
    using Number = float;
    static Sixteen load(const float * at) { return load_floats(at); }
};
struct F16 {
    using Number = uint16_t;
    static Sixteen load(const uint16_t * at) { return load_halves(at); }
};
struct BF16 {
    using Number = uint16_t;
    static Sixteen load(const uint16_t * at) { return load_bf16(at); }
};

// The last numbers of a row, filled up with zeros.
template <typename Of> inline Sixteen load_part(const typename Of::Number * at, int64_t n) {
    typename Of::Number part[16] = {};
    memcpy(part, at, n * sizeof part[0]);
    return Of::load(part);
}

// R rows times T tokens.
template <typename Of, int R, int T>
void multiply_floats(const uint8_t * weights, size_t stride, int64_t width, const float * const * tokens, float * const * to, int64_t row) {
    Sixteen sums[R][T];
    const typename Of::Number * rows[R];
    for (int r = 0; r < R; ++r) {
        rows[r] = reinterpret_cast<const typename Of::Number *>(weights + (row + r) * stride);
        for (int t = 0; t < T; ++t) {
            sums[r][t] = sixteen(0.0f);
        }
    }
    int64_t at = 0;
    for (; at + 16 <= width; at += 16) {
        Sixteen of_rows[R];
        for (int r = 0; r < R; ++r) {
            of_rows[r] = Of::load(rows[r] + at);
        }
        for (int t = 0; t < T; ++t) {
            const Sixteen x = load_floats(tokens[t] + at);
            for (int r = 0; r < R; ++r) {
                sums[r][t] = fma_16(of_rows[r], x, sums[r][t]);
            }
        }
    }
    if (at < width) {
        for (int t = 0; t < T; ++t) {
            const Sixteen x = load_part<F32>(tokens[t] + at, width - at);
            for (int r = 0; r < R; ++r) {
                sums[r][t] = fma_16(load_part<Of>(rows[r] + at, width - at), x, sums[r][t]);
            }
        }
    }
    for (int t = 0; t < T; ++t) {
        if constexpr (R == 4) {
            store_totals(to[t] + row, sums[0][t], sums[1][t], sums[2][t], sums[3][t]);
        } else {
            for (int r = 0; r < R; ++r) {
                to[t][row + r] = total(sums[r][t]);
            }
        }
    }
}

// Rows and tokens that are computed together.
constexpr int FLOAT_ROWS = SUMS == 16 ? 4 : 2, FLOAT_TOKENS = SUMS / FLOAT_ROWS;

template <typename Of> void multiply_floats(const Product & product, int64_t matrix, int64_t row, int64_t n_rows, int64_t first, int64_t end) {
    const uint8_t * weights = product.matrix(matrix);
    const size_t stride = product.weights->nb[1];
    const int64_t end_row = row + n_rows;
    for (; row < end_row;) {
        const bool whole = row + FLOAT_ROWS <= end_row;
        for (int64_t slot = first; slot < end;) {
            const int64_t left = end - slot;
            const int n = left >= FLOAT_TOKENS ? FLOAT_TOKENS : left >= 2 ? 2 : 1;
            const float * tokens[FLOAT_TOKENS];
            float * to[FLOAT_TOKENS];
            for (int t = 0; t < n; ++t) {
                tokens[t] = product.from(matrix, slot + t);
                to[t] = product.result(matrix, slot + t);
            }
            const auto multiply = n == FLOAT_TOKENS ? (whole ? multiply_floats<Of, FLOAT_ROWS, FLOAT_TOKENS> : multiply_floats<Of, 1, FLOAT_TOKENS>)
                                  : n == 2          ? (whole ? multiply_floats<Of, FLOAT_ROWS, 2> : multiply_floats<Of, 1, 2>)
                                                    : (whole ? multiply_floats<Of, FLOAT_ROWS, 1> : multiply_floats<Of, 1, 1>);
            multiply(weights, stride, product.width, tokens, to, row);
            slot += n;
        }
        row += whole ? FLOAT_ROWS : 1;
    }
}

// --- Threads --------------------------------------------------------------------------------------------------------------------------------

inline void multiply_all(const ggml_compute_params * params, Product & product) {
    const int64_t panel_rows = product.format == nullptr ? 16 : LANES;
    const int64_t n_panels = (product.n_rows + panel_rows - 1) / panel_rows;
    // Items are taken by threads as they come: panels of a matrix, times at most TOKENS slots. A thread that has lost its core takes fewer.
    int64_t chunk = n_panels / (int64_t(params->nth) * 4);
    chunk = chunk < 1 ? 1 : chunk > 64 ? 64 : chunk;
    const int64_t n_chunks = (n_panels + chunk - 1) / chunk;
    int64_t item = params->ith, before = 0;
    for (int64_t matrix = 0; matrix < product.n_matrices; ++matrix) {
        const int64_t first = product.first_of(matrix), end = product.first_of(matrix + 1);
        const int64_t n_items = (end - first + TOKENS - 1) / TOKENS * n_chunks;
        while (item < before + n_items) {
            const int64_t panel = (item - before) % n_chunks * chunk, n = min_of(chunk, n_panels - panel);
            const int64_t slot = first + (item - before) / n_chunks * TOKENS, last = min_of(slot + TOKENS, end);
            if (product.format != nullptr) {
                multiply_panels(product, matrix, panel, n, slot, last);
            } else {
                const int64_t row = panel * panel_rows, n_rows = min_of(n * panel_rows, product.n_rows - row);
                const ggml_type type = product.weights->type;
                const auto multiply = type == GGML_TYPE_F32   ? multiply_floats<F32>
                                      : type == GGML_TYPE_F16 ? multiply_floats<F16>
                                                              : multiply_floats<BF16>;
                multiply(product, matrix, row, n_rows, slot, last);
            }
            item = ggml_threadpool_chunk_add(params->threadpool, 1);
        }
        before += n_items;
    }
}

bool can_multiply(const ggml_tensor * dst) {
    Product product;
    return describe(dst, product);
}

size_t multiply_size(const ggml_tensor * dst) {
    Product product;
    return describe(dst, product) ? size_t(product.size()) : 0;
}

bool multiply(const ggml_compute_params * params, const ggml_tensor * dst) {
    Product product;
    if (!describe(dst, product)) {
        return false;
    }
    const bool needs_memory = product.ids != nullptr || product.format != nullptr;
    if (needs_memory && params->wsize < size_t(product.size())) {
        return false;
    }
    uint8_t * memory = reinterpret_cast<uint8_t *>(padded(reinterpret_cast<int64_t>(params->wdata), 64));
    product.first_slots = reinterpret_cast<int32_t *>(memory);
    product.slots = product.first_slots + product.n_matrices + 1;
    product.packed = memory + product.tables_size();
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
        if (product.ids != nullptr) {
            group(product);
        }
    }
    if (product.ids != nullptr) {
        ggml_barrier(params->threadpool);
    }
    if (product.format != nullptr) {
        pack_tokens(product, params->ith, params->nth);
    }
    ggml_barrier(params->threadpool);
    multiply_all(params, product);
    return true;
}
