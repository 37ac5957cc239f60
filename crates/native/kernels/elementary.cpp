// The C library's functions of floats that ggml and llama.cpp call, so that they give the same bits with every C library. Each is
// computed in double precision and rounded once, which nearly always gives the float nearest to the exact value (tests/kernels.rs).
// 1.3 % of glibc's sines of rotary angles are its neighbour, and other libraries differ in other places.
//
//   sinf, cosf, sincosf        angles of rotary embeddings
//   tanhf, erff                GELU, soft caps
//   expf, logf, powf, expm1f   what remains after groups of eight, frequencies, slopes, other activations
//   exp2f, log2f               numbers of heads, Mirostat
//
// mingw-w64's header makes `expf`, `powf` and `tanhf` from the functions of doubles, rounded once, so ggml does not call ours there.
//
// The bits depend neither on the compiler nor on the processor: there are only additions, multiplications and divisions of doubles, none fused
// (`-ffp-contract=off`), and integers. The compiler computes the tables. Compiled for any processor.
#include "linked.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

extern "C" {
float __wrap_sinf(float);
float __wrap_cosf(float);
void __wrap_sincosf(float, float *, float *);
float __wrap_tanhf(float);
float __wrap_erff(float);
float __wrap_expf(float);
float __wrap_exp2f(float);
float __wrap_expm1f(float);
float __wrap_logf(float);
float __wrap_log2f(float);
float __wrap_powf(float, float);
}

namespace {

constexpr double PI_2 = 0x1.921fb54442d18p+0, LN_2_HIGH = 0x1.62e42fefa2p-1, LN_2_LOW = 0x1.9ef35793c7673p-41;
constexpr double INFINITE = std::numeric_limits<double>::infinity(), NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();

template <typename To, typename From> To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

// The nearest integer to a number of less than 2^51.
double nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

// A polynomial in x. Pairs of terms are added in a tree, which takes less time than one after the other.
template <size_t n> double polynomial(const double (&coefficients)[n], double x) {
    double terms[n], power = x;
    for (size_t i = 0; i < n; ++i) {
        terms[i] = coefficients[i];
    }
    for (size_t left = n; left > 1; left = (left + 1) / 2, power *= power) {
        for (size_t i = 0; i < left / 2; ++i) {
            terms[i] = terms[2 * i] + terms[2 * i + 1] * power;
        }
        if (left % 2 == 1) {
            terms[left / 2] = terms[left - 1];
        }
    }
    return terms[0];
}

// -- sine and cosine

struct Turn {
    double rest;        // between -pi / 4 and pi / 4
    uint64_t quadrant;  // modulo 4
};

// Reduces an angle of 2^25 or more: multiplies its 24 bits with those bits of 2 / pi that give its fraction of a quadrant.
Turn reduce_large(float x) {
    constexpr uint64_t TWO_OVER_PI[] = { 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561 };
    using Wide = unsigned __int128;
    const uint32_t parts = bits<uint32_t>(x);
    const uint64_t mantissa = (parts & 0x7fffff) | 0x800000;
    // Bits of 2 / pi that give multiples of four quadrants.
    const unsigned skipped = (parts >> 23 & 0xff) - 150 - 2, bit = skipped % 64;
    const uint64_t * words = TWO_OVER_PI + skipped / 64;
    const auto word = [&](unsigned i) { return bit == 0 ? words[i] : words[i] << bit | words[i + 1] >> (64 - bit); };
    // In units of 2^-126 quadrants, modulo 4 quadrants.
    const Wide product = (Wide(mantissa * word(0)) << 64) + Wide(mantissa) * word(1);
    const Wide quadrant = (product + (Wide(1) << 125)) >> 126;
    const Wide rest = product - (quadrant << 126);
    const bool below = rest >> 127 != 0, negative = parts >> 31 != 0;
    const Wide size = below ? -rest : rest;
    const double fraction = double(uint64_t(size >> 64)) * 0x1p-62 + double(uint64_t(size)) * 0x1p-126;
    return { (below != negative ? -fraction : fraction) * PI_2, negative ? -uint64_t(quadrant) : uint64_t(quadrant) };
}

Turn reduce(float x) {
    if (!(std::fabs(x) < 0x1p25f)) {
        return std::isfinite(x) ? reduce_large(x) : Turn { NOT_A_NUMBER, 0 };
    }
    // Up to 2^25 times the first and the second are exact.
    constexpr double PARTS[] = { 0x1.921fb54p+0, 0x1.10b4610p-30, 0x1.a62633145c06ep-58 };
    const double angle = x, quadrants = nearest(angle * (1.0 / PI_2));
    return { ((angle - quadrants * PARTS[0]) - quadrants * PARTS[1]) - quadrants * PARTS[2], uint64_t(int64_t(quadrants)) };
}

// Terms of (sin(r) / r - 1) / r^2 and of (cos(r) - 1) / r^2, by r^2.
constexpr double SINE[]
    = { -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000 };
constexpr double COSINE[] = { -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000,
    -1.0 / 6402373705728000 };

double sine_of_rest(double r) {
    const double square = r * r;
    return r + r * (square * polynomial(SINE, square));
}

double cosine_of_rest(double r) {
    const double square = r * r;
    return 1.0 + square * polynomial(COSINE, square);
}

double sine(const Turn & turn) {
    const double size = turn.quadrant & 1 ? cosine_of_rest(turn.rest) : sine_of_rest(turn.rest);
    return turn.quadrant & 2 ? -size : size;
}

double cosine(const Turn & turn) { return sine({ turn.rest, turn.quadrant + 1 }); }

// -- exponential and logarithm

// e^x - 1 of a number between -ln(2) / 2 and ln(2) / 2.
double exp_minus_1_of_rest(double r) {
    constexpr double TERMS[] = { 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800,
        1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800 };
    return r + r * r * polynomial(TERMS, r);
}

double exponential(double x) {
    if (!(std::fabs(x) < 200.0)) {
        return std::isnan(x) ? x : x > 0.0 ? INFINITE : 0.0;
    }
    const double n = nearest(x * (1.0 / (LN_2_HIGH + LN_2_LOW)));
    const double rest = exp_minus_1_of_rest((x - n * LN_2_HIGH) - n * LN_2_LOW);
    return (1.0 + rest) * bits<double>(uint64_t(int64_t(n) + 1023) << 52);
}

// The logarithm of a number that is not negative.
double logarithm(float x) {
    if (x == 0.0f) {
        return -INFINITE;
    }
    if (!std::isfinite(x)) {
        return x;
    }
    // x = 2^n m, with m between 3 / 4 and 3 / 2, and log(m) = 2 atanh((m - 1) / (m + 1)).
    const uint64_t parts = bits<uint64_t>(double(x));
    const uint64_t up = (parts & (uint64_t(1) << 51)) != 0;
    const double n = double(int64_t(parts >> 52) - 1023 + int64_t(up));
    const double m = bits<double>((parts & 0xfffffffffffff) | (1023 - up) << 52);
    constexpr double TERMS[] = { 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23 };
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    const double of_m = 2.0 * s + s * (square * polynomial(TERMS, square));
    return n * LN_2_HIGH + (n * LN_2_LOW + of_m);
}

// -- hyperbolic tangent and error function: Taylor's series around the nearest sixteenth

constexpr size_t N_TERMS = 12;

struct Series {
    double terms[N_TERMS];
};

template <size_t n> struct Table { Series at[n]; };

// e^x - 1 of a number that is not negative, when the library is compiled.
constexpr double constant_exp_minus_1(double x) {
    double sum = 0.0;
    for (int i = 100; i >= 1; --i) {
        sum = (sum + 1.0) * x / i;
    }
    return sum;
}

// Up to 9.5. From 9.02 on the nearest float is 1.
constexpr Table<153> make_tanh() {
    Table<153> table {};
    for (size_t at = 0; at < 153; ++at) {
        const double square = constant_exp_minus_1(double(at) / 8.0);
        double * terms = table.at[at].terms;
        terms[0] = square / (square + 2.0);
        // tanh' = 1 - tanh^2 = 4 e^2x / (e^2x + 1)^2
        terms[1] = 4.0 * (square + 1.0) / ((square + 2.0) * (square + 2.0));
        for (size_t n = 1; n + 1 < N_TERMS; ++n) {
            double product = 0.0;
            for (size_t i = 0; i <= n; ++i) {
                product += terms[i] * terms[n - i];
            }
            terms[n + 1] = -product / double(n + 1);
        }
    }
    return table;
}

// Up to 4. From 3.84 on the nearest float is 1.
constexpr Table<65> make_erf() {
    Table<65> table {};
    for (size_t at = 0; at < 65; ++at) {
        const double x = double(at) / 16.0;
        double * terms = table.at[at].terms;
        // erf' = 2 / sqrt(pi) e^(-x^2), and erf = erf' (x + 2 x^3 / 3 + 4 x^5 / 15 + ...)
        const double slope = 0x1.20dd750429b6dp+0 / (constant_exp_minus_1(x * x) + 1.0);
        double sum = 0.0;
        for (int i = 100; i >= 1; --i) {
            sum = (sum + 1.0) * (2.0 * x * x) / (2 * i + 1);
        }
        terms[0] = slope * (x * (sum + 1.0));
        // erf'' = -2 x erf'
        double before = 0.0, derivative = slope;
        terms[1] = slope;
        for (size_t n = 1; n + 1 < N_TERMS; ++n) {
            const double next = -2.0 * (x * derivative + before) / double(n);
            before = derivative;
            derivative = next;
            terms[n + 1] = next / double(n + 1);
        }
    }
    return table;
}

constexpr auto TANH = make_tanh();
constexpr auto ERF = make_erf();

// An odd function whose nearest float is 1 from the end of its table on.
template <size_t n> float from_table(const Table<n> & table, float x) {
    const double size = std::fabs(double(x));
    if (!(size < double(n - 1) / 16.0)) {
        return std::isnan(x) ? x : std::copysign(1.0f, x);
    }
    const auto at = size_t(size * 16.0 + 0.5);
    const double value = polynomial(table.at[at].terms, size - double(at) / 16.0);
    return std::copysign(float(value), x);
}

}  // namespace

extern "C" {

float __wrap_sinf(float x) { return x == 0.0f ? x : float(sine(reduce(x))); }

float __wrap_cosf(float x) { return float(cosine(reduce(x))); }

void __wrap_sincosf(float x, float * to_sine, float * to_cosine) {
    const Turn turn = reduce(x);
    const double by_sine = sine_of_rest(turn.rest), by_cosine = cosine_of_rest(turn.rest);
    const double sine = turn.quadrant & 1 ? by_cosine : by_sine, cosine = turn.quadrant & 1 ? by_sine : by_cosine;
    *to_sine = x == 0.0f ? x : float(turn.quadrant & 2 ? -sine : sine);
    *to_cosine = float((turn.quadrant + 1) & 2 ? -cosine : cosine);
}

float __wrap_tanhf(float x) { return from_table(TANH, x); }

float __wrap_erff(float x) { return from_table(ERF, x); }

float __wrap_expf(float x) { return float(exponential(x)); }

float __wrap_exp2f(float x) { return float(exponential(x * (LN_2_HIGH + LN_2_LOW))); }

float __wrap_expm1f(float x) { return x == 0.0f ? x : float(std::fabs(x) < 0.34f ? exp_minus_1_of_rest(x) : exponential(x) - 1.0); }

float __wrap_logf(float x) { return x < 0.0f ? float(NOT_A_NUMBER) : float(logarithm(x)); }

float __wrap_log2f(float x) { return x < 0.0f ? float(NOT_A_NUMBER) : float(logarithm(x) / (LN_2_HIGH + LN_2_LOW)); }

float __wrap_powf(float x, float y) {
    const float size = std::fabs(x);
    if (y == 0.0f || x == 1.0f) {
        return 1.0f;
    }
    if (std::isnan(x) || std::isnan(y)) {
        return x + y;
    }
    const bool is_integer = std::floor(y) == y, is_odd = is_integer && std::fabs(y) < 0x1p24f && (int64_t(y) & 1) != 0;
    if (x < 0.0f && std::isfinite(x) && !is_integer) {
        return float(NOT_A_NUMBER);
    }
    const auto value = size == 1.0f ? 1.0f : float(exponential(double(y) * logarithm(size)));
    return std::signbit(x) && is_odd ? -value : value;
}
}

namespace {
[[maybe_unused]] const bool is_linked = foredraft::linked.elementary = true;
}
