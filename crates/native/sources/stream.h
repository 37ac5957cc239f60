// A FILE * whose bytes come from an object, for llama.cpp, which reads models from paths and from a FILE *.
#pragma once

#if defined(__linux__) && defined(__GLIBC__)
#define FOREDRAFT_HAS_STREAMS
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sys/types.h>

namespace stream {

// The bytes of a stream.
class Bytes {
  public:
    explicit Bytes(uint64_t length) : length(length) {}
    Bytes(const Bytes &) = delete;
    Bytes & operator=(const Bytes &) = delete;
    virtual ~Bytes() = default;

    // Reads at most `size` bytes from byte `at` on. Returns their number, 0 at the end, and -1 with errno on failure. The C library calls it, so
    // it must not throw.
    virtual ssize_t read(uint64_t at, char * to, size_t size) noexcept = 0;

    const uint64_t length;

  private:
    friend FILE * open(std::unique_ptr<Bytes> bytes);
    uint64_t at = 0;
};

// Returns NULL if there is no memory.
inline FILE * open(std::unique_ptr<Bytes> bytes) {
    const cookie_read_function_t * read = [](void * cookie, char * to, size_t size) -> ssize_t {
        Bytes & of = *static_cast<Bytes *>(cookie);
        const uint64_t left = of.at < of.length ? of.length - of.at : 0;
        const ssize_t n = left == 0 ? 0 : of.read(of.at, to, left < size ? static_cast<size_t>(left) : size);
        of.at += n > 0 ? static_cast<uint64_t>(n) : 0;
        return n;
    };
    const cookie_seek_function_t * seek = [](void * cookie, off64_t * offset, int whence) {
        Bytes & of = *static_cast<Bytes *>(cookie);
        const uint64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? of.at : of.length;
        const int64_t to = static_cast<int64_t>(from) + *offset;
        if (to < 0) {
            errno = EINVAL;
            return -1;
        }
        of.at = static_cast<uint64_t>(to);
        *offset = to;
        return 0;
    };
    const cookie_close_function_t * close = [](void * cookie) {
        delete static_cast<Bytes *>(cookie);
        return 0;
    };
    FILE * file = bytes ? fopencookie(bytes.get(), "rb", { read, nullptr, seek, close }) : nullptr;
    if (file != nullptr) {
        bytes.release();
    }
    return file;
}

}  // namespace stream
#endif
