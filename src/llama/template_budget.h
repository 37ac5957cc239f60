// Bounds llama.cpp's template engine, which has no limits: build.rs inserts calls of these functions into its `jinja/runtime.cpp`. They count
// before the engine works: time in units of about a nanosecond, and the memory of all values that are made. What they throw leaves the engine like
// its own errors.
#pragma once

#include "jinja/runtime.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace template_budget {

// A statement or an expression.
constexpr uint64_t STEP = 200;
// A value: it has room for each type. The same in bytes.
constexpr uint64_t VALUE = 300;
// A list or an object. The same in bytes, so values nest a few hundred thousand times at most, and the stack suffices to free them.
constexpr uint64_t CONTAINER = 500;
// A part of a text. The same in bytes.
constexpr uint64_t PART = 40;
// Looking at a value in another.
constexpr uint64_t VISIT = 16;
// An iteration of a loop, which makes `loop`.
constexpr uint64_t ITERATION = 6000;
// Copying a variable.
constexpr uint64_t VARIABLE = 2000;
// Comparing the names of two variables.
constexpr uint64_t NAME = 100;
// A byte of a rendered text, which is then compared with others.
constexpr uint64_t OUTPUT = 8;
// Bytes that are read or copied in a unit of time.
constexpr uint64_t BYTES = 4;
// The deepest nesting of macro calls and statements, and of values.
constexpr size_t MAX_DEPTH = 5000;

// The variables of a context, which are private: an explicit instantiation may name them.
template <auto Member> struct private_variables {
    friend const jinja::value_object & variables_of(const jinja::context & context) { return context.*Member; }
};
const jinja::value_object & variables_of(const jinja::context & context);
template struct private_variables<&jinja::context::env>;

struct exhausted : std::exception {
    const char * what() const noexcept override { return "the template exceeds the limits of llama.cpp's template engine"; }
};

// What the calling thread may still use.
struct state {
    uint64_t time = UINT64_MAX;
    uint64_t memory = UINT64_MAX;
    // The memory for each rendering, after which all values are freed.
    uint64_t rendering = UINT64_MAX;
    // The place of the last statement that is in no other.
    size_t place = 0;
    size_t depth = 0;
    bool is_exhausted = false;
};

inline thread_local state current;

[[noreturn]] inline void exhaust() {
    current.is_exhausted = true;
    throw exhausted();
}

inline void use(uint64_t time, uint64_t memory = 0) {
    if (current.is_exhausted || time > current.time || memory > current.memory) {
        exhaust();
    }
    current.time -= time;
    current.memory -= memory;
}

inline uint64_t product(uint64_t one, uint64_t other) {
    return one != 0 && other > UINT64_MAX / one ? UINT64_MAX : one * other;
}

// Limits the calls of the engine until this is destroyed.
struct limit {
    limit(uint64_t time, uint64_t memory) {
        current = state();
        current.time = time;
        current.memory = current.rendering = memory;
    }
    ~limit() { current = state(); }
    limit(const limit &) = delete;
    limit & operator=(const limit &) = delete;
};

// The engine ignores most errors while it tries templates.
inline void check() { use(0); }

// Before a copy of all variables.
inline void copy(const jinja::context & context) {
    const uint64_t n = variables_of(context)->val_obj.size();
    use(VARIABLE * n, VALUE * n);
}

// Before a variable is set, which is compared with all.
inline void set(const jinja::context & context, uint64_t time = 0) { use(time + NAME * variables_of(context)->val_obj.size(), CONTAINER); }

// Counts a value with all that it contains, as often as it contains it, and returns its size in bytes and values.
inline uint64_t measure(const jinja::value & value, size_t depth = 0) {
    if (depth > MAX_DEPTH) {
        exhaust();
    }
    if (!value) {
        return 1;
    }
    uint64_t size = 1 + value->val_str.length();
    use(VISIT + size / BYTES + PART * value->val_str.parts.size());
    for (const auto & item : value->val_arr) {
        size += measure(item, depth + 1);
    }
    for (const auto & pair : value->val_obj) {
        size += measure(pair.first, depth + 1) + measure(pair.second, depth + 1);
    }
    if (const auto * named = dynamic_cast<const jinja::value_kwarg_t *>(value.get())) {
        size += measure(named->val, depth + 1);
    }
    return size;
}

// A number as a factor of what a function makes. (Other values leave `val_int` uninitialized.)
inline uint64_t factor(const jinja::value & value) {
    if (const auto * named = dynamic_cast<const jinja::value_kwarg_t *>(value.get())) {
        return factor(named->val);
    }
    if (!jinja::is_val<jinja::value_int>(value)) {
        return 0;
    }
    return std::min<uint64_t>(value->val_int < 0 ? 0 - static_cast<uint64_t>(value->val_int) : value->val_int, UINT32_MAX);
}

// The pieces that a text or a container may be divided into by a function.
inline uint64_t pieces(const jinja::value & input, const std::vector<jinja::value> & args) {
    const std::string separator = args.empty() ? " " : args.front()->val_str.str();
    uint64_t n = 1 + input->val_arr.size() + input->val_obj.size();
    for (const auto & part : input->val_str.parts) {
        n += separator.empty() ? part.val.size() : std::count(part.val.begin(), part.val.end(), separator.front());
    }
    return n;
}

// A call. `input`: what a filter or a method is applied to.
inline void call(const std::string & name, const jinja::value & input, const std::vector<jinja::value> & args) {
    use(CONTAINER, CONTAINER);
    uint64_t numbers = 0;
    uint64_t given = input ? measure(input) : 0;
    for (const auto & arg : args) {
        numbers += factor(arg);
        given += measure(arg);
    }
    if (name == "range") {
        use(product(numbers, VALUE), product(numbers, VALUE));
    } else if (name == "replace" || name == "split" || name == "rsplit") {
        // They move the rest of the text for each piece, and search for a text of the arguments.
        const uint64_t n = input ? pieces(input, args) : 1;
        const uint64_t most = given + VALUE;
        const uint64_t piece = name == "replace" ? (args.size() > 1 ? args[1]->val_str.length() : 0) : VALUE;
        use(product(n, most), given + product(n, piece));
    } else if (name == "sort" || name == "dictsort" || name == "min" || name == "max") {
        use(product(given, 32), given);
    } else if (name == "items" || name == "list") {
        use(product(given, VALUE), product(input ? 1 + input->val_str.length() + input->val_arr.size() + input->val_obj.size() : 1, VALUE));
    } else if (name == "indent" || name == "tojson" || name == "join" || name == "center" || name == "string") {
        // An indentation or a separator for each line or item.
        for (const auto & arg : args) {
            numbers += arg->val_str.length();
        }
        use(product(given, 1 + numbers) / BYTES, name == "join" ? product(given, 1 + numbers) : product(given, 2 + numbers));
    } else if (name != "slice") {
        // Tests of each item.
        for (const auto & arg : args) {
            use(product(given, 1 + arg->val_str.length()) / BYTES);
        }
    }
}

// A test of the first argument.
inline void test(const std::vector<jinja::value> & args) {
    // Tests of a type only look at the value.
    for (size_t i = 1; i < args.size(); ++i) {
        use(product(measure(args.front()), measure(args[i])) / BYTES);
    }
}

// An operator with two operands.
inline void operation(const std::string & op, const jinja::value & left, const jinja::value & right) {
    const uint64_t one = measure(left), other = measure(right);
    if (op == "*") {
        const uint64_t size = std::max(product(one, factor(right)), product(other, factor(left)));
        use(product(size, PART), product(size, PART));
    } else if (op == "~" || op == "+") {
        use(0, one + other);
    } else if (op == "in" || op == "not in") {
        use(product(one, other) / BYTES);
    }
}

// One statement or expression, with those inside.
struct step {
    explicit step(const jinja::statement & statement) {
        if (current.depth == 0) {
            if (statement.pos <= current.place) {
                current.memory = current.rendering;
            }
            current.place = statement.pos;
        }
        use(STEP);
        if (current.depth >= MAX_DEPTH) {
            exhaust();
        }
        ++current.depth;
    }
    ~step() { --current.depth; }
    step(const step &) = delete;
    step & operator=(const step &) = delete;

    // The result: a new value takes memory, and what a template prints is a text with all items.
    jinja::value result(jinja::value && value) const {
        if (value.use_count() == 1) {
            const uint64_t size = value->val_str.length();
            const bool is_container = !(value->val_arr.empty() && value->val_obj.empty());
            use(size / BYTES, size + PART * value->val_str.parts.size() + (is_container ? CONTAINER : 0));
        }
        if (current.depth == 1) {
            use(product(measure(value), OUTPUT));
        }
        return std::move(value);
    }
};

}  // namespace template_budget
