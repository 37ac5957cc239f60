// The smallest streaming chat in C++17. From the root of the repository, after `make build`:
//   c++ -std=c++17 -Iinclude examples/guide/hello.cpp -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/hello && target/hello
// ANCHOR: hello
#include "foredraft.hpp"

#include <iostream>

int main() {
    foredraft::engine engine(R"({"model": "models/stories-target.gguf", "model_draft": "models/stories-draft.gguf"})");
    auto request = engine.submit(
        R"({"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "n_predict": 60, "seed": 7})");
    for (const foredraft::json &update : request) std::cout << update["content"].text() << std::flush;
}
// ANCHOR_END: hello
