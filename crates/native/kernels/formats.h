// How each format of quantized weights is unpacked.
//
// A format unpacks a block of `LANES` rows, a row in each lane. A word is four weights of each row. The result is exact:
//
//   short formats: blocks of 32 weights, or of a multiple: PARTS times 32. weight = scale * (number - OFFSET), or scale * number + least.
//                  With HALVES, each 16 weights have a scale of their own, and otherwise each block has.
//   long formats: blocks of 256 weights in PARTS parts. weight = scale * part's scale * (number - OFFSET), or
//                 scale * part's scale * number - least * part's minimum.
//
// BITS says how large the numbers are: unsigned with 2, 4, 5 or 6 bits; with 8 bits they are signed, and those levels whose instruction multiplies
// unsigned numbers add 128 to them, which OFFSET takes away again. Long formats of 2 bits have one scale for all parts, and 1 as their OFFSET.
//
// ORDER says which weights a word has: four that follow each other (1), or, where a byte has 4 or 8 weights that follow each other, one of each of
// the four bytes of a packed word, because their bits are at the same places. The tokens' numbers are put into the same order (`pack`).
#pragma once

#include "layout.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

// FOREDRAFT_DOT: the level sums four products of bytes as 32-bit numbers at once.
#if defined(FOREDRAFT_AVX512_VNNI) || defined(FOREDRAFT_AVX_VNNI)
#define FOREDRAFT_DOT
constexpr int OF_SIGNED = 128;
inline I32xN of_signed(I32xN bytes) { return bit_xor(bytes, broadcast_8(0x80)); }
#else
#if defined(FOREDRAFT_NEON)
#define FOREDRAFT_DOT
#endif
constexpr int OF_SIGNED = 0;
inline I32xN of_signed(I32xN bytes) { return bytes; }
#endif

// STEP: words that are unpacked at once: fewer where sixteen registers hold sums, too. UNROLL: of loops over a step's parts. `load_again` makes the
// compiler load words of a panel once more instead of storing them.
#if defined(FOREDRAFT_DOT)
constexpr int STEP = 8, UNROLL = 1;
template <typename From> inline void load_again() {}
#else
constexpr int STEP = 4, UNROLL = 4;
template <typename From> inline __attribute__((always_inline)) void load_again() {
    if constexpr (From::IS_PANEL) {
        asm volatile("" : : : "memory");
    }
}
#endif

// The scales of a short format's block, or with HALVES those of a part.
struct ShortScales {
    F32xN scale;
    union {
        // With MINIMA.
        F32xN least;
        // With HALVES: the scale of the last 16 weights. `scale` is that of the first 16.
        F32xN last;
    };
};

// The scales of a long format's block: part p has byte p % 4 of word p / 4. `minima` are set with MINIMA alone.
struct LongScales {
    F32xN scale, least;
    I32xN scales[4], minima[4];
};

// The two F16 numbers of the word at byte OFFSET.
template <int OFFSET, typename From, typename Scales> inline void scale_and_least(const From & from, Scales & to) {
    I32xN word[1];
    from.template load_few<OFFSET, 1>(word);
    to.scale = low_halves(word[0]);
    to.least = high_halves(word[0]);
}

inline I32xN low_4_bits(I32xN a) { return bit_and(a, broadcast_8(0x0f)); }
inline I32xN high_4_bits(I32xN a) { return bit_and(right_16<4>(a), broadcast_8(0x0f)); }

// 32 packed numbers of 4 bits: the low ones are numbers 0 to 15, the high ones 16 to 31.
template <typename From> inline void unpack_16_bytes(const From & from, int offset, I32xN * words) {
    I32xN packed[4];
    from.load_4(offset, packed);
    for (int word = 0; word < 4; ++word) {
        words[word] = low_4_bits(packed[word]);
        words[word + 4] = high_4_bits(packed[word]);
    }
}

// One byte of a word in all four.
inline I32xN spread_byte(I32xN words, int byte) {
    alignas(16) static const uint8_t PICK[4][16] = {
        { 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12 },
        { 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13 },
        { 2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14 },
        { 3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15 },
    };
    return shuffle(words, repeat_16(PICK[byte]));
}

// Bits 0 to 3, and 4 to 7, of a byte that is in all four of a word: `value` in the bytes whose bit is set.
inline I32xN where_low_bits(I32xN spread, I32xN value) { return where_bits(spread, broadcast(0x08040201), value); }
inline I32xN where_high_bits(I32xN spread, I32xN value) { return where_bits(spread, broadcast(int32_t(0x80402010)), value); }

// Sets bit 4 of 32 numbers to the bits of a 32-bit word.
inline void add_fifth_bits(I32xN bits, I32xN * words) {
#pragma GCC unroll 4
    for (int byte = 0; byte < 4; ++byte) {
        const I32xN eight = spread_byte(bits, byte);
        words[2 * byte] = bit_or(words[2 * byte], where_low_bits(eight, broadcast_8(0x10)));
        words[2 * byte + 1] = bit_or(words[2 * byte + 1], where_high_bits(eight, broadcast_8(0x10)));
    }
}

// Replaces numbers by the entries of a table.
inline void look_up(const int8_t * table, I32xN * words, int n, int offset) {
    const I32xN entries = sub_8(repeat_16(table), broadcast_8(-offset));
    for (int word = 0; word < n; ++word) {
        words[word] = shuffle(entries, words[word]);
    }
}

// The constants of a short format: numbers, and the scale in its first two bytes.
template <ggml_type TYPE_OF, int SIZE_OF, int BITS_OF, int OFFSET_OF, int PARTS_OF = 1, int ORDER_OF = 1> struct ShortFormat {
    static constexpr ggml_type TYPE = TYPE_OF;
    static constexpr int SIZE = SIZE_OF, BITS = BITS_OF, OFFSET = OFFSET_OF, PARTS = PARTS_OF, ORDER = ORDER_OF;
    static constexpr bool IS_LONG = false, MINIMA = false, HALVES = false;

    template <typename From> static void scales(const From & from, ShortScales * to) { to->scale = from.odd_halves(); }
};

// A short format with a scale and the least weight in its first four bytes.
template <ggml_type TYPE, int SIZE, int BITS, int OFFSET> struct ShortFormatWithMinima : ShortFormat<TYPE, SIZE, BITS, OFFSET> {
    static constexpr bool MINIMA = true;

    template <typename From> static void scales(const From & from, ShortScales * to) { scale_and_least<0>(from, *to); }
};

// The constants of a long format.
template <ggml_type TYPE_OF, int SIZE_OF, int BITS_OF, int OFFSET_OF, int PARTS_OF> struct LongFormat {
    static constexpr ggml_type TYPE = TYPE_OF;
    // `unpack` passes on WORDS words at a time.
    static constexpr int SIZE = SIZE_OF, BITS = BITS_OF, OFFSET = OFFSET_OF, PARTS = PARTS_OF, ORDER = 1, WORDS = 64 / PARTS;
    static constexpr bool IS_LONG = true, MINIMA = false, SIGNED_SCALES = false;
};

struct Q4_0 : ShortFormat<GGML_TYPE_Q4_0, sizeof(block_q4_0), 4, 8> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN words[8];
        unpack_16_bytes(from, offsetof(block_q4_0, qs), words);
        use(0, words);
    }
};

struct Q4_1 : ShortFormatWithMinima<GGML_TYPE_Q4_1, sizeof(block_q4_1), 4, 0> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN words[8];
        unpack_16_bytes(from, offsetof(block_q4_1, qs), words);
        use(0, words);
    }
};

struct Q5_0 : ShortFormat<GGML_TYPE_Q5_0, sizeof(block_q5_0), 5, 16> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN words[8], fifth[1];
        from.template load_few<offsetof(block_q5_0, qh), 1>(fifth);
        unpack_16_bytes(from, offsetof(block_q5_0, qs), words);
        add_fifth_bits(fifth[0], words);
        use(0, words);
    }
};

struct Q5_1 : ShortFormatWithMinima<GGML_TYPE_Q5_1, sizeof(block_q5_1), 5, 0> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN words[8], fifth[1];
        from.template load_few<offsetof(block_q5_1, qh), 1>(fifth);
        unpack_16_bytes(from, offsetof(block_q5_1, qs), words);
        add_fifth_bits(fifth[0], words);
        use(0, words);
    }
};

struct Q8_0 : ShortFormat<GGML_TYPE_Q8_0, sizeof(block_q8_0), 8, OF_SIGNED> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN words[8];
        from.load_8(offsetof(block_q8_0, qs), words);
        for (I32xN & word : words) {
            word = of_signed(word);
        }
        use(0, words);
    }
};

struct IQ4_NL : ShortFormat<GGML_TYPE_IQ4_NL, sizeof(block_iq4_nl), 8, OF_SIGNED> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN words[8];
        unpack_16_bytes(from, offsetof(block_iq4_nl, qs), words);
        look_up(kvalues_iq4nl, words, 8, OFFSET);
        use(0, words);
    }
};

// The numbers are -12 to 12.
struct MXFP4 : ShortFormat<GGML_TYPE_MXFP4, sizeof(block_mxfp4), 5, 12> {
    template <typename From> static void scales(const From & from, ShortScales * to) {
        const I32xN e = from.odd_bytes();
        // 2^(e - 128), where the least two are no normal numbers.
        const I32xN least = select_less(e, broadcast(1), broadcast(0x00200000), broadcast(0x00400000));
        to->scale = as_floats(select_less(e, broadcast(2), least, left_32<23>(sub_32(e, broadcast(1)))));
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN words[8];
        unpack_16_bytes(from, offsetof(block_mxfp4, qs), words);
        look_up(kvalues_mxfp4, words, 8, OFFSET);
        use(0, words);
    }
};

// The numbers are those of MXFP4. AMX takes none away from them.
template <int OFFSET_OF> struct NVFP4With : ShortFormat<GGML_TYPE_NVFP4, sizeof(block_nvfp4), 5, OFFSET_OF, QK_NVFP4 / 32> {
    static constexpr bool HALVES = true;

    template <typename From> static void scales(const From & from, ShortScales * to) {
        static_assert(offsetof(block_nvfp4, d) == 0 && sizeof(block_nvfp4::d) == 4 && NVFP4With::PARTS == 2, "a scale for each 16 weights");
        // Four numbers without a sign: 4 bits of exponent and 3 of mantissa.
        I32xN packed[1];
        from.template load_few<offsetof(block_nvfp4, d), 1>(packed);
        I32xN numbers = bit_and(packed[0], broadcast_8(0x7f));
        // 0x7f stands for NaN, and ggml reads it as 0. ggml ignores bit 7 of all other bytes, also of 0xff.
        const I32xN is_nan = bit_and(add_32(numbers, broadcast_8(1)), bit_xor(packed[0], broadcast_8(0x80)));
        numbers = bit_xor(numbers, where_bits(is_nan, broadcast_8(0x80), broadcast_8(0x7f)));
        // F16 numbers with these bits are 2^-8 of the scales, also of those that are not normal. The table has twice the values.
        const I32xN even = left_32<7>(bit_and(numbers, broadcast(0x00ff00ff))), odd = bit_and(right_32<1>(numbers), broadcast(0x7f807f80));
        const F32xN by = broadcast_f32(0.5f * 256.0f);
        to[0].scale = mul(low_halves(even), by);
        to[0].last = mul(low_halves(odd), by);
        to[1].scale = mul(high_halves(even), by);
        to[1].last = mul(high_halves(odd), by);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN packed[8];
        from.load_8(offsetof(block_nvfp4, qs), packed);
        for (int part = 0; part < NVFP4With::PARTS; ++part) {
            // Each 16 weights are in two words: the low half-bytes are the first 8.
            I32xN words[8];
            for (int word = 0; word < 8; ++word) {
                const I32xN of_two = packed[4 * part + word / 4 * 2 + word % 2];
                words[word] = word % 4 < 2 ? low_4_bits(of_two) : high_4_bits(of_two);
            }
            look_up(kvalues_mxfp4, words, 8, OFFSET_OF);
            use(part, words);
        }
    }
};
using NVFP4 = NVFP4With<12>;

// Weights of one bit: scale or -scale.
// The numbers are 0 and 2.
struct Q1_0 : ShortFormat<GGML_TYPE_Q1_0, sizeof(block_q1_0), 4, 1, QK1_0 / 32, 8> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN packed[PARTS];
        from.load_4(offsetof(block_q1_0, qs), packed);
        const I32xN two = broadcast_8(0x02);
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; ++part) {
            const I32xN bits = packed[part];
            const I32xN words[8] = {
                bit_and(left_16<1>(bits), two),
                bit_and(bits, two),
                bit_and(right_16<1>(bits), two),
                bit_and(right_16<2>(bits), two),
                bit_and(right_16<3>(bits), two),
                bit_and(right_16<4>(bits), two),
                bit_and(right_16<5>(bits), two),
                bit_and(right_16<6>(bits), two),
            };
            use(part, words);
        }
    }
};

// Four numbers of 2 bits of each byte.
inline void unpack_2_bits(I32xN packed, I32xN * words) {
    const I32xN two = broadcast_8(0x03);
    words[0] = bit_and(packed, two);
    words[1] = bit_and(right_16<2>(packed), two);
    words[2] = bit_and(right_16<4>(packed), two);
    words[3] = bit_and(right_16<6>(packed), two);
}

struct Q2_0 : ShortFormat<GGML_TYPE_Q2_0, sizeof(block_q2_0), 4, 1, QK2_0 / 32, 4> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN packed[4];
        from.load_4(offsetof(block_q2_0, qs), packed);
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; ++part) {
            I32xN words[8];
            unpack_2_bits(packed[2 * part], words);
            unpack_2_bits(packed[2 * part + 1], words + 4);
            use(part, words);
        }
    }
};

// Two sets of 32 numbers of 4 bits: the low and the high ones of 32 bytes.
template <typename From, typename Use, typename Change> inline void unpack_32_bytes(const From & from, int offset, int part, Change change, Use use) {
    I32xN packed[8], words[2][8];
    from.load_8(offset, packed);
    for (int word = 0; word < 8; ++word) {
        words[0][word] = change(0, word, low_4_bits(packed[word]));
        words[1][word] = change(1, word, high_4_bits(packed[word]));
    }
    use(part, words[0]);
    use(part + 1, words[1]);
}

// The head of Q4_K and Q5_K: two F16 numbers, and 8 scales and 8 minima of 6 bits.
template <typename From> inline void long_scales(const From & from, LongScales & to) {
    static_assert(offsetof(block_q4_K, scales) == 4 && offsetof(block_q5_K, scales) == 4 && K_SCALE_SIZE == 12, "a head of 16 bytes");
    I32xN head[4];
    from.load_4(0, head);
    to.scale = low_halves(head[0]);
    to.least = high_halves(head[0]);
    const I32xN six = broadcast_8(0x3f), two = broadcast_8(0x30);
    to.scales[0] = bit_and(head[1], six);
    to.minima[0] = bit_and(head[2], six);
    to.scales[1] = bit_or(low_4_bits(head[3]), bit_and(right_16<2>(head[1]), two));
    to.minima[1] = bit_or(high_4_bits(head[3]), bit_and(right_16<2>(head[2]), two));
}

struct Q4_K : LongFormat<GGML_TYPE_Q4_K, sizeof(block_q4_K), 4, 0, 8> {
    static constexpr bool MINIMA = true;

    template <typename From> static void scales(const From & from, LongScales & to) { long_scales(from, to); }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        const auto same = [](int, int, I32xN numbers) { return numbers; };
        for (int pair = 0; pair < 4; ++pair) {
            unpack_32_bytes(from, offsetof(block_q4_K, qs) + 32 * pair, 2 * pair, same, use);
        }
    }
};

struct Q5_K : LongFormat<GGML_TYPE_Q5_K, sizeof(block_q5_K), 5, 0, 8> {
    static constexpr bool MINIMA = true;
    static constexpr int WORDS = STEP;

    template <typename From> static void scales(const From & from, LongScales & to) { long_scales(from, to); }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
#pragma GCC unroll 2
        for (int first = 0; first < 8; first += STEP) {
            I32xN fifth[STEP], packed[STEP], words[2][STEP];
            from.template load<STEP>(offsetof(block_q5_K, qh) + 4 * first, fifth);
#pragma GCC unroll UNROLL
            for (int pair = 0; pair < 4; ++pair) {
                const int at = (16 * pair + first) / STEP;
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    if (half == 1) {
                        load_again<From>();
                    }
                    from.template load<STEP>(offsetof(block_q5_K, qs) + 32 * pair + 4 * first, packed);
                    for (int word = 0; word < STEP; ++word) {
                        const I32xN bits = half == 0 ? left_16<4>(fifth[word]) : left_16<3>(fifth[word]);
                        const I32xN numbers = half == 0 ? low_4_bits(packed[word]) : high_4_bits(packed[word]);
                        words[half][word] = bit_or(numbers, bit_and(bits, broadcast_8(0x10)));
                    }
                    if (STEP < 8) {
                        use(at + half * 8 / STEP, words[half]);
                    }
                }
                for (I32xN & word : fifth) {
                    word = right_16<2>(word);
                }
                if (STEP == 8) {
                    use(at, words[0]);
                    use(at + 1, words[1]);
                }
            }
        }
    }
};

struct IQ4_XS : LongFormat<GGML_TYPE_IQ4_XS, sizeof(block_iq4_xs), 8, OF_SIGNED, 8> {
    static constexpr bool SIGNED_SCALES = true;

    template <typename From> static void scales(const From & from, LongScales & to) {
        static_assert(offsetof(block_iq4_xs, scales_h) == 2 && offsetof(block_iq4_xs, scales_l) == 4, "a head of 8 bytes");
        // Byte p: bits 2p and 2p + 1 of the upper half of the first word.
        alignas(16) static const uint8_t LOW[16] = { 2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14 };
        alignas(16) static const uint8_t HIGH[16] = { 3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15 };
        // Byte p of a word: half-byte p of its lower, then of its upper two bytes.
        alignas(16) static const uint8_t FIRST[16] = { 0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13 };
        alignas(16) static const uint8_t LAST[16] = { 2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15 };
        I32xN head[2];
        from.template load_few<0, 2>(head);
        to.scale = low_halves(head[0]);
        const auto scales_of = [&](const uint8_t * high, const uint8_t * low) {
            const I32xN bits = shuffle(head[0], repeat_16(high)), packed = shuffle(head[1], repeat_16(low));
            const I32xN even = bit_and(packed, broadcast(0x000f000f)), odd = bit_and(right_16<4>(packed), broadcast(0x0f000f00));
            const I32xN upper = bit_or(
                where_bits(bits, broadcast(0x40100401), broadcast_8(0x10)), where_bits(bits, broadcast(int32_t(0x80200802)), broadcast_8(0x20)));
            return sub_8(bit_or(bit_or(even, odd), upper), broadcast_8(32));
        };
        to.scales[0] = scales_of(LOW, FIRST);
        to.scales[1] = scales_of(HIGH, LAST);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        for (int part = 0; part < PARTS; ++part) {
            I32xN words[8];
            unpack_16_bytes(from, offsetof(block_iq4_xs, qs) + 16 * part, words);
            look_up(kvalues_iq4nl, words, 8, OFFSET);
            use(part, words);
        }
    }
};

struct Q6_K : LongFormat<GGML_TYPE_Q6_K, sizeof(block_q6_K), 6, 32, 16> {
    static constexpr bool SIGNED_SCALES = true;

    template <typename From> static void scales(const From & from, LongScales & to) {
        from.load_4(offsetof(block_q6_K, scales), to.scales);
        to.scale = from.odd_halves();
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        const I32xN two = broadcast_8(0x30);
        for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
            for (int first = 0; first < 8; first += STEP) {
#pragma GCC unroll 4
                for (int of_two = 0; of_two < 4; ++of_two) {
                    // A byte has the low bits of two weights, 64 apart, and the high ones of four.
                    const int quarter = of_two / 2 + of_two % 2 * 2;
                    I32xN high[STEP], packed[STEP], words[STEP];
                    load_again<From>();
                    from.template load<STEP>(offsetof(block_q6_K, qh) + 32 * half + 4 * first, high);
                    from.template load<STEP>(offsetof(block_q6_K, ql) + 64 * half + 32 * (quarter % 2) + 4 * first, packed);
                    for (int word = 0; word < STEP; ++word) {
                        const I32xN bits = quarter == 0   ? left_16<4>(high[word])
                                           : quarter == 1 ? left_16<2>(high[word])
                                           : quarter == 2 ? high[word]
                                                          : right_16<2>(high[word]);
                        words[word] = bit_or(quarter < 2 ? low_4_bits(packed[word]) : high_4_bits(packed[word]), bit_and(bits, two));
                    }
#pragma GCC unroll 2
                    for (int word = 0; word < STEP; word += 4) {
                        use(8 * half + 2 * quarter + (first + word) / 4, words + word);
                    }
                }
            }
        }
    }
};

struct Q2_K : LongFormat<GGML_TYPE_Q2_K, sizeof(block_q2_K), 4, 0, 16> {
    static constexpr bool MINIMA = true;

    template <typename From> static void scales(const From & from, LongScales & to) {
        I32xN packed[4];
        from.load_4(offsetof(block_q2_K, scales), packed);
        for (int word = 0; word < 4; ++word) {
            to.scales[word] = low_4_bits(packed[word]);
            to.minima[word] = high_4_bits(packed[word]);
        }
        scale_and_least<SIZE - 4>(from, to);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
            for (int first = 0; first < 8; first += STEP) {
                I32xN packed[STEP], words[STEP];
                from.template load<STEP>(offsetof(block_q2_K, qs) + 32 * half + 4 * first, packed);
#pragma GCC unroll UNROLL
                for (int quarter = 0; quarter < 4; ++quarter) {
                    for (int word = 0; word < STEP; ++word) {
                        words[word] = bit_and(packed[word], broadcast_8(0x03));
                        packed[word] = right_16<2>(packed[word]);
                    }
#pragma GCC unroll 2
                    for (int word = 0; word < STEP; word += 4) {
                        use(8 * half + 2 * quarter + (first + word) / 4, words + word);
                    }
                }
            }
        }
    }
};

struct Q3_K : LongFormat<GGML_TYPE_Q3_K, sizeof(block_q3_K), 4, 4, 16> {
    static constexpr bool SIGNED_SCALES = true;

    template <typename From> static void scales(const From & from, LongScales & to) {
        I32xN packed[3];
        from.template load_few<offsetof(block_q3_K, scales), 3>(packed);
        to.scale = from.odd_halves();
        const I32xN two = broadcast_8(0x30), offset = broadcast_8(32);
        to.scales[0] = sub_8(bit_or(low_4_bits(packed[0]), bit_and(left_16<4>(packed[2]), two)), offset);
        to.scales[1] = sub_8(bit_or(low_4_bits(packed[1]), bit_and(left_16<2>(packed[2]), two)), offset);
        to.scales[2] = sub_8(bit_or(high_4_bits(packed[0]), bit_and(packed[2], two)), offset);
        to.scales[3] = sub_8(bit_or(high_4_bits(packed[1]), bit_and(right_16<2>(packed[2]), two)), offset);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
#pragma GCC unroll 2
        for (int first = 0; first < 8; first += STEP) {
            I32xN third[STEP], packed[STEP], words[STEP];
            from.template load<STEP>(offsetof(block_q3_K, hmask) + 4 * first, third);
            for (int half = 0; half < 2; ++half) {
                from.template load<STEP>(offsetof(block_q3_K, qs) + 32 * half + 4 * first, packed);
#pragma GCC unroll UNROLL
                for (int quarter = 0; quarter < 4; ++quarter) {
                    for (int word = 0; word < STEP; ++word) {
                        const I32xN bit = bit_and(left_16<2>(third[word]), broadcast_8(0x04));
                        words[word] = bit_or(bit_and(packed[word], broadcast_8(0x03)), bit);
                        packed[word] = right_16<2>(packed[word]);
                        third[word] = right_16<1>(third[word]);
                    }
#pragma GCC unroll 2
                    for (int word = 0; word < STEP; word += 4) {
                        use(8 * half + 2 * quarter + (first + word) / 4, words + word);
                    }
                }
            }
        }
    }
};

// Ternary weights. Four words are a part, so that registers hold what is packed, the part, and a few tokens' sums.
struct TQ2_0 : LongFormat<GGML_TYPE_TQ2_0, sizeof(block_tq2_0), 2, 1, 16> {
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        for (int64_t sixteen = 0; sixteen < 4; ++sixteen) {
            const int64_t first = sixteen / 2 * 8 + sixteen % 2;
            I32xN packed[4], words[4];
            from.load_4(offsetof(block_tq2_0, qs) + 16 * sixteen, packed);
#pragma GCC unroll 4
            for (int quarter = 0; quarter < 4; ++quarter) {
                for (int word = 0; word < 4; ++word) {
                    words[word] = bit_and(packed[word], broadcast_8(0x03));
                    packed[word] = right_16<2>(packed[word]);
                }
                use(first + 2 * quarter, words);
            }
        }
    }
};

// A byte of TQ1_0 is a fraction, of 256, with five digits of base 3: the first is 1 from a third (86) on, and 2 from two thirds (171) on. Three times
// the byte begins with the next digit. Here bytes are signed, 128 less, and so is three times such a byte.
inline I32xN next_digit(I32xN & rest) {
    const I32xN digit = compare_8(rest, 170 - 128);
    rest = add_8(rest, add_8(rest, rest));
    return digit;
}

struct TQ1_0 : LongFormat<GGML_TYPE_TQ1_0, sizeof(block_tq1_0), 2, 1, 16> {
    // Five digits of each of 16 bytes: the parts from `first` on that are STEP apart.
    template <int STEP, typename From, typename Use>
    static inline __attribute__((always_inline)) void unpack_16(const From & from, int offset, int64_t first, Use use) {
        I32xN packed[4], words[4];
        from.load_4(offset, packed);
        for (I32xN & word : packed) {
            word = bit_xor(word, broadcast_8(0x80));
        }
#pragma GCC unroll 5
        for (int digit = 0; digit < 5; ++digit) {
            for (int word = 0; word < 4; ++word) {
                words[word] = next_digit(packed[word]);
            }
            use(first + STEP * digit, words);
        }
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        static_assert(sizeof(block_tq1_0::qs) == 48 && offsetof(block_tq1_0, qh) == 48, "32 bytes, 16 bytes, and 4 bytes with 4 digits");
        for (int sixteen = 0; sixteen < 2; ++sixteen) {
            unpack_16<2>(from, 16 * sixteen, sixteen, use);
        }
        unpack_16<1>(from, 32, 10, use);
        I32xN packed[1], words[4];
        from.template load_few<48, 1>(packed);
        packed[0] = bit_xor(packed[0], broadcast_8(0x80));
        for (I32xN & word : words) {
            word = next_digit(packed[0]);
        }
        use(15, words);
    }
};

// Numbers of i-quants are entries of a table, with signs. A table's entry is 4 or 8 unsigned bytes. Each 32 numbers have a word of signs: a byte for
// each 8. All scales are odd: twice a number of 4 bits, and 1.

// A byte of each word.
inline I32xN one_byte(I32xN words, int byte) {
    alignas(16) static const uint8_t PICK[4][16] = {
        { 0, 255, 255, 255, 4, 255, 255, 255, 8, 255, 255, 255, 12, 255, 255, 255 },
        { 1, 255, 255, 255, 5, 255, 255, 255, 9, 255, 255, 255, 13, 255, 255, 255 },
        { 2, 255, 255, 255, 6, 255, 255, 255, 10, 255, 255, 255, 14, 255, 255, 255 },
        { 3, 255, 255, 255, 7, 255, 255, 255, 11, 255, 255, 255, 15, 255, 255, 255 },
    };
    return shuffle(words, repeat_16(PICK[byte]));
}

// Completes signs of 7 bits: the eighth of each byte makes their number even.
inline I32xN with_eighth_sign(I32xN signs) {
    I32xN parity = bit_xor(signs, right_16<4>(signs));
    parity = bit_xor(parity, right_16<2>(parity));
    parity = bit_xor(parity, right_16<1>(parity));
    return bit_or(signs, bit_and(left_16<7>(parity), broadcast_8(0x80)));
}

// Four times 7 bits of a word, each in a byte.
inline I32xN spread_signs(I32xN packed) {
    const I32xN low = bit_or(bit_and(packed, broadcast(0x7f)), bit_and(left_32<1>(packed), broadcast(0x7f00)));
    const I32xN high = bit_or(bit_and(left_32<2>(packed), broadcast(0x7f0000)), bit_and(left_32<3>(packed), broadcast(0x7f000000)));
    return with_eighth_sign(bit_or(low, high));
}

// Gives 8 numbers the signs of a byte.
inline void apply_signs(I32xN signs, int eight, I32xN * words) {
    const I32xN spread = spread_byte(signs, eight), ones = broadcast_8(0xff);
    const I32xN negative[2] = { where_low_bits(spread, ones), where_high_bits(spread, ones) };
    for (int word = 0; word < 2; ++word) {
        words[word] = of_signed(sub_8(bit_xor(words[word], negative[word]), negative[word]));
    }
}

// 8 numbers of a table with entries of 8 bytes.
inline void look_up_8(const uint64_t * table, I32xN indices, I32xN * words) {
    const auto * halves = reinterpret_cast<const uint32_t *>(table);
    const I32xN first = left_32<1>(indices);
    words[0] = gather(halves, first);
    words[1] = gather(halves + 1, first);
}

// Scales of the 4 bits that end each of 8 words.
inline void scales_of_ends(const I32xN * words, I32xN * scales) {
    const I32xN ones = broadcast_8(1);
    for (int four = 0; four < 2; ++four, words += 4) {
        const I32xN low = bit_or(bit_and(right_32<27>(words[0]), broadcast(0x1e)), bit_and(right_32<19>(words[1]), broadcast(0x1e00)));
        const I32xN high = bit_or(bit_and(right_32<11>(words[2]), broadcast(0x1e0000)), bit_and(right_32<3>(words[3]), broadcast(0x1e000000)));
        scales[four] = bit_or(bit_or(low, high), ones);
    }
}

// Eight scales of a word of 4 bits each.
inline void scales_of_halves(I32xN packed, I32xN * scales) {
    alignas(16) static const uint8_t TWICE[2][16] = {
        { 0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13 },
        { 2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15 },
    };
    for (int half = 0; half < 2; ++half) {
        const I32xN twice = shuffle(packed, repeat_16(TWICE[half]));
        const I32xN even = bit_and(left_16<1>(twice), broadcast(0x001e001e)), odd = bit_and(right_16<3>(twice), broadcast(0x1e001e00));
        scales[half] = bit_or(bit_or(even, odd), broadcast_8(1));
    }
}

// An i-quant that has a table.
template <ggml_type TYPE, int SIZE, int PARTS> using IQuant = LongFormat<TYPE, SIZE, 8, OF_SIGNED, PARTS>;

// The scale of two-bit formats is an eighth of the file's, because parts' scales are twice as large, and a quarter is part of the format.
template <typename From> inline F32xN part_of_scale(const From & from, float part) { return mul(from.odd_halves(), broadcast_f32(part)); }

struct IQ2_XXS : IQuant<GGML_TYPE_IQ2_XXS, sizeof(block_iq2_xxs), 8> {
    template <typename From> static void scales(const From & from, LongScales & to) {
        I32xN words[16], ends[8];
        from.load_8(2, words);
        from.load_8(34, words + 8);
        for (int part = 0; part < PARTS; ++part) {
            ends[part] = words[2 * part + 1];
        }
        to.scale = part_of_scale(from, 0.125f);
        scales_of_ends(ends, to.scales);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        for (int pair = 0; pair < 4; ++pair) {
            I32xN packed[4];
            from.load_4(2 + 16 * pair, packed);
            for (int half = 0; half < 2; ++half) {
                I32xN words[8];
                const I32xN indices = packed[2 * half], signs = spread_signs(packed[2 * half + 1]);
                for (int eight = 0; eight < 4; ++eight) {
                    look_up_8(iq2xxs_grid, one_byte(indices, eight), words + 2 * eight);
                    apply_signs(signs, eight, words + 2 * eight);
                }
                use(2 * pair + half, words);
            }
        }
    }
};

struct IQ2_XS : IQuant<GGML_TYPE_IQ2_XS, sizeof(block_iq2_xs), 16> {
    template <typename From> static void scales(const From & from, LongScales & to) {
        I32xN packed[2];
        from.template load_few<offsetof(block_iq2_xs, scales), 2>(packed);
        to.scale = part_of_scale(from, 0.125f);
        scales_of_halves(packed[0], to.scales);
        scales_of_halves(packed[1], to.scales + 2);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        // 16 bits: an index of 9, and signs.
        const I32xN index = broadcast(0x1ff);
        for (int four = 0; four < 4; ++four) {
            I32xN packed[4];
            from.load_4(2 + 16 * four, packed);
            for (int half = 0; half < 2; ++half) {
                I32xN words[8];
                const I32xN first = packed[2 * half], last = packed[2 * half + 1];
                const I32xN low = bit_or(bit_and(right_32<9>(first), broadcast(0x7f)), bit_and(right_32<17>(first), broadcast(0x7f00)));
                const I32xN high = bit_or(bit_and(left_32<7>(last), broadcast(0x7f0000)), bit_and(right_32<1>(last), broadcast(0x7f000000)));
                const I32xN signs = with_eighth_sign(bit_or(low, high));
                const I32xN indices[4]
                    = { bit_and(first, index), bit_and(right_32<16>(first), index), bit_and(last, index), bit_and(right_32<16>(last), index) };
                for (int eight = 0; eight < 4; ++eight) {
                    look_up_8(iq2xs_grid, indices[eight], words + 2 * eight);
                    apply_signs(signs, eight, words + 2 * eight);
                }
                use(4 * four + 2 * half, words);
                use(4 * four + 2 * half + 1, words + 4);
            }
        }
    }
};

struct IQ2_S : IQuant<GGML_TYPE_IQ2_S, sizeof(block_iq2_s), 16> {
    template <typename From> static void scales(const From & from, LongScales & to) {
        I32xN packed[2];
        from.template load_few<offsetof(block_iq2_s, scales), 2>(packed);
        to.scale = part_of_scale(from, 0.125f);
        scales_of_halves(packed[0], to.scales);
        scales_of_halves(packed[1], to.scales + 2);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        constexpr int INDICES = offsetof(block_iq2_s, qs), SIGNS = INDICES + 32;
        I32xN upper[2];
        from.template load_few<offsetof(block_iq2_s, qh), 2>(upper);
        for (int half = 0; half < 2; ++half) {
            I32xN indices[4], signs[4];
            from.load_4(INDICES + 16 * half, indices);
            from.load_4(SIGNS + 16 * half, signs);
            for (int byte = 0; byte < 4; ++byte) {
                I32xN words[8], two = left_32<8>(one_byte(upper[half], byte));
                for (int eight = 0; eight < 4; ++eight) {
                    look_up_8(iq2s_grid, bit_or(one_byte(indices[byte], eight), bit_and(two, broadcast(0x300))), words + 2 * eight);
                    apply_signs(signs[byte], eight, words + 2 * eight);
                    two = right_32<2>(two);
                }
                use(8 * half + 2 * byte, words);
                use(8 * half + 2 * byte + 1, words + 4);
            }
        }
    }
};

struct IQ3_XXS : IQuant<GGML_TYPE_IQ3_XXS, sizeof(block_iq3_xxs), 8> {
    static constexpr int INDICES = offsetof(block_iq3_xxs, qs), SIGNS = INDICES + 64;

    template <typename From> static void scales(const From & from, LongScales & to) {
        I32xN ends[8];
        from.load_8(SIGNS, ends);
        to.scale = part_of_scale(from, 0.25f);
        scales_of_ends(ends, to.scales);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        for (int half = 0; half < 2; ++half) {
            I32xN indices[8], packed[4];
            from.load_8(INDICES + 32 * half, indices);
            from.load_4(SIGNS + 16 * half, packed);
            for (int part = 0; part < 4; ++part) {
                I32xN words[8];
                const I32xN signs = spread_signs(packed[part]);
                for (int word = 0; word < 8; ++word) {
                    words[word] = gather(iq3xxs_grid, one_byte(indices[2 * part + word / 4], word % 4));
                }
                for (int eight = 0; eight < 4; ++eight) {
                    apply_signs(signs, eight, words + 2 * eight);
                }
                use(4 * half + part, words);
            }
        }
    }
};

struct IQ3_S : IQuant<GGML_TYPE_IQ3_S, sizeof(block_iq3_s), 8> {
    template <typename From> static void scales(const From & from, LongScales & to) {
        I32xN packed[1];
        from.template load_few<offsetof(block_iq3_s, scales), 1>(packed);
        to.scale = from.odd_halves();
        scales_of_halves(packed[0], to.scales);
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        constexpr int INDICES = offsetof(block_iq3_s, qs), SIGNS = offsetof(block_iq3_s, signs);
        I32xN upper[2];
        from.template load_few<offsetof(block_iq3_s, qh), 2>(upper);
        for (int half = 0; half < 2; ++half) {
            I32xN indices[8], signs[4];
            from.load_8(INDICES + 32 * half, indices);
            from.load_4(SIGNS + 16 * half, signs);
            for (int part = 0; part < 4; ++part) {
                I32xN words[8], bits = left_32<8>(one_byte(upper[half], part));
                for (int word = 0; word < 8; ++word) {
                    const I32xN low = one_byte(indices[2 * part + word / 4], word % 4);
                    words[word] = gather(iq3s_grid, bit_or(low, bit_and(bits, broadcast(0x100))));
                    bits = right_32<1>(bits);
                }
                for (int eight = 0; eight < 4; ++eight) {
                    apply_signs(signs[part], eight, words + 2 * eight);
                }
                use(4 * half + part, words);
            }
        }
    }
};

// The weights of IQ1_S and IQ1_M are eighths of scales: eight times a table's -1, 0 or 1, and 1 or -1. OFFSET makes them unsigned.
template <ggml_type TYPE, int SIZE, int PARTS> struct EighthsOfScales : LongFormat<TYPE, SIZE, 5, 9, PARTS> {
    // 8 weights: bits 8 to 10 of `bits` complete the table's index, and bit 11 stands for -1. An entry has eight numbers from 0 to 2, of 4 bits each.
    static void look_up(I32xN index, I32xN bits, I32xN * words) {
        const I32xN eight = gather(iq1s_grid_gpu, bit_or(index, bit_and(bits, broadcast(0x700))));
        const I32xN is_less = signed_right_32<31>(left_32<20>(bits)), more = sub_8(broadcast_8(2), bit_and(is_less, broadcast_8(2)));
        words[0] = bit_or(left_16<3>(low_4_bits(eight)), more);
        words[1] = bit_or(right_16<1>(bit_and(eight, broadcast_8(0xf0))), more);
    }
};

struct IQ1_S : EighthsOfScales<GGML_TYPE_IQ1_S, sizeof(block_iq1_s), 8> {
    template <typename From> static void scales(const From & from, LongScales & to) {
        I32xN high[4];
        from.load_4(offsetof(block_iq1_s, qh), high);
        to.scale = part_of_scale(from, 0.125f);
        for (int four = 0; four < 2; ++four) {
            const I32xN first = high[2 * four], last = high[2 * four + 1];
            const I32xN low = bit_or(bit_and(right_32<11>(first), broadcast(0x0e)), bit_and(right_32<19>(first), broadcast(0x0e00)));
            const I32xN upper = bit_or(bit_and(left_32<5>(last), broadcast(0x0e0000)), bit_and(right_32<3>(last), broadcast(0x0e000000)));
            to.scales[four] = bit_or(bit_or(low, upper), broadcast_8(1));
        }
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN indices[8], high[4], words[8];
        from.load_8(offsetof(block_iq1_s, qs), indices);
        from.load_4(offsetof(block_iq1_s, qh), high);
        for (int part = 0; part < PARTS; ++part) {
            // 16 bits: four times 3 of an index, the scale, and the sign of all 32.
            const I32xN packed = part % 2 == 0 ? high[part / 2] : right_32<16>(high[part / 2]);
            const I32xN sign = bit_and(right_32<4>(packed), broadcast(0x800));
            I32xN bits = left_32<8>(packed);
            for (int eight = 0; eight < 4; ++eight, bits = right_32<3>(bits)) {
                look_up(one_byte(indices[part], eight), bit_or(bit_and(bits, broadcast(0x700)), sign), words + 2 * eight);
            }
            use(part, words);
        }
    }
};

struct IQ1_M : EighthsOfScales<GGML_TYPE_IQ1_M, sizeof(block_iq1_m), 16> {
    template <typename From> static void scales(const From & from, LongScales & to) {
        // Four times 16 bits: four scales of 3 bits, and 4 bits of the F16 scale of all.
        I32xN packed[2];
        from.template load_few<offsetof(block_iq1_m, scales), 2>(packed);
        const I32xN low = bit_or(bit_and(right_32<12>(packed[0]), broadcast(0x000f)), bit_and(right_32<24>(packed[0]), broadcast(0x00f0)));
        const I32xN high = bit_or(bit_and(right_32<4>(packed[1]), broadcast(0x0f00)), bit_and(right_32<16>(packed[1]), broadcast(0xf000)));
        to.scale = mul(low_halves(bit_or(low, high)), broadcast_f32(0.125f));
        for (int four = 0; four < 4; ++four) {
            const I32xN of_four = four % 2 == 0 ? packed[four / 2] : right_32<16>(packed[four / 2]);
            const I32xN first = bit_or(bit_and(left_32<1>(of_four), broadcast(0x0e)), bit_and(left_32<6>(of_four), broadcast(0x0e00)));
            const I32xN last = bit_or(bit_and(left_32<11>(of_four), broadcast(0x0e0000)), bit_and(left_32<16>(of_four), broadcast(0x0e000000)));
            to.scales[four] = bit_or(bit_or(first, last), broadcast_8(1));
        }
    }
    template <typename From, typename Use> static void unpack(const From & from, Use use) {
        I32xN indices[8], high[4], words[8];
        from.load_8(offsetof(block_iq1_m, qs), indices);
        from.load_4(offsetof(block_iq1_m, qh), high);
        for (int pair = 0; pair < 8; ++pair) {
            // For each 8 weights 3 bits of an index, and a sign.
            I32xN bits = pair % 2 == 0 ? left_32<8>(high[pair / 2]) : right_32<8>(high[pair / 2]);
            for (int eight = 0; eight < 4; ++eight, bits = right_32<4>(bits)) {
                look_up(one_byte(indices[pair], eight), bits, words + 2 * eight);
            }
            use(2 * pair, words);
            use(2 * pair + 1, words + 4);
        }
    }
};

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
