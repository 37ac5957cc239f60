/* A minimal JSON reader for these examples, in C99 and C++. It reads valid JSON, such as foredraft's answers, in place, and does not
 * validate it. A real host uses a JSON library. A value is a pointer to its first character in the text. NULL means absent, and every
 * function accepts it. */
#ifndef JSON_MINI_H
#define JSON_MINI_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline const char *json_space(const char *at) {
    return at + strspn(at, " \t\r\n");
}

/* The first character after a value. Skips strings, and counts brackets. */
static inline const char *json_end(const char *at) {
    int depth = 0;
    do {
        if (*at == '"') {
            for (at++; *at && *at != '"'; at++) at += *at == '\\' && at[1];
        } else if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else {
            at += strcspn(at, "\"{}[],: \t\r\n");
            if (depth == 0) return at;
            if (strchr("\"{}[]", *at)) continue;
        }
        at += *at != 0;
    } while (depth > 0 && *at);
    return at;
}

/* The value of a key of an object. */
static inline const char *json_member(const char *object, const char *key) {
    size_t length = strlen(key);
    const char *at = object && *object == '{' ? json_space(object + 1) : NULL;
    while (at && *at == '"') {
        const char *value = json_space(json_space(json_end(at)) + 1);
        if (!strncmp(at + 1, key, length) && at[length + 1] == '"') return value;
        at = json_space(json_end(value));
        if (*at == ',') at = json_space(at + 1);
    }
    return NULL;
}

/* The first value of an array, and the value that follows one. */
static inline const char *json_first(const char *array) {
    const char *at = array && *array == '[' ? json_space(array + 1) : NULL;
    return at && *at != ']' ? at : NULL;
}
static inline const char *json_next(const char *value) {
    const char *at = json_space(json_end(value));
    return *at == ',' ? json_space(at + 1) : NULL;
}

static inline int json_true(const char *value) {
    return value && *value == 't';
}
static inline double json_number(const char *value) {
    return value ? strtod(value, NULL) : 0;
}

static inline unsigned json_hex4(const char *at) {
    char digits[5] = {0};
    return (unsigned)strtoul(strncpy(digits, at, 4), NULL, 16);
}

/* The text of a string, allocated with malloc; "" for other values. */
static inline char *json_text(const char *value) {
    static const char names[] = "nrtbf", bytes[] = "\n\r\t\b\f";
    const char *at = value && *value == '"' ? value + 1 : "", *end = *at ? json_end(value) - 1 : at;
    char *text = (char *)malloc((size_t)(end - at) + 1), *to = text;
    while (text && at < end) {
        if (*at != '\\') {
            *to++ = *at++;
        } else if (at[1] != 'u') {
            const char *name = strchr(names, at[1]);
            *to++ = name ? bytes[name - names] : at[1];
            at += 2;
        } else {
            unsigned c = json_hex4(at + 2);
            at += 6;
            if (c >= 0xd800 && c < 0xdc00 && at[0] == '\\' && at[1] == 'u') { /* a pair of surrogates */
                c = 0x10000 + ((c - 0xd800) << 10) + (json_hex4(at + 2) - 0xdc00);
                at += 6;
            }
            int more = (c > 0x7f) + (c > 0x7ff) + (c > 0xffff); /* bytes after the first in UTF-8 */
            *to++ = (char)(more ? (0xf0 << (3 - more)) | (c >> (6 * more)) : c);
            while (more--) *to++ = (char)(0x80 | (c >> (6 * more) & 0x3f));
        }
    }
    if (text) *to = 0;
    return text;
}

/* A text as a JSON string with quotes, allocated with malloc. */
static inline char *json_quote(const char *text) {
    char *quoted = (char *)malloc(6 * strlen(text) + 3), *to = quoted;
    if (!quoted) return NULL;
    *to++ = '"';
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20) {
            to += sprintf(to, "\\u%04x", c);
        } else {
            if (c == '"' || c == '\\') *to++ = '\\';
            *to++ = (char)c;
        }
    }
    memcpy(to, "\"", 2);
    return quoted;
}

#endif
