// A model in memory: memory MODEL.
#include "foredraft.hpp"

#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

int main(int, char **argv) {
    std::ifstream file(argv[1], std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    // ANCHOR: memory
    const auto address = std::to_string(reinterpret_cast<std::uintptr_t>(bytes.data()));
    foredraft::engine engine(R"({"model": {"address": ")" + address + R"(", "length": )" + std::to_string(bytes.size()) + "}}");
    bytes = {}; // the weights were copied
    // ANCHOR_END: memory
    std::cout << engine.complete(R"({"prompt": "Once upon a time", "n_predict": 20, "temperature": 0})")["content"].text() << std::endl;
}
