// Memory after many short requests: resident megabytes after every tenth part of them.
//   c++ -std=c++17 -O1 -Iinclude scripts/memory/memory.cpp -Ltarget/release -lforedraft -Wl,-rpath,$PWD/target/release -o target/memory
//   target/memory [requests]
#include "foredraft.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

static double megabytes() {
    long size = 0, pages = 0;
    if (FILE *file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%ld %ld", &size, &pages) != 2) pages = 0;
        std::fclose(file);
    }
    return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

int main(int argc, char **argv) {
    const long count = argc > 1 ? std::atol(argv[1]) : 10000;
    foredraft::engine engine(R"({"model": "models/stories-draft.gguf", "n_ctx": 256, "warmup": false})");
    for (long i = 0; i <= count; i++) {
        if (i % (count / 10) == 0) {
            std::printf("%6ld requests %7.1f MB\n", i, megabytes());
            std::fflush(stdout);
        }
        engine.complete("{\"prompt\": \"Number " + std::to_string(i) + "\", \"n_predict\": 1}");
    }
}
