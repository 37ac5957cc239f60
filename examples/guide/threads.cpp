// Two threads and one engine: one reads, the other cancels.
#include "foredraft.hpp"

#include <iostream>
#include <thread>

int main() {
    // ANCHOR: cancel
    foredraft::engine engine(R"({"model": "models/stories-target.gguf", "model_draft": "models/stories-draft.gguf"})");
    auto request = engine.submit(R"({"prompt": "Once upon a time", "ignore_eos": true})"); // it does not end by itself
    std::thread impatient([&] { request.cancel(); });
    std::string stop_type;
    for (const foredraft::json &update : request)
        if (update["stop"].boolean()) stop_type = update["stop_type"].text();
    impatient.join();
    std::cout << "ended by: " << stop_type << std::endl; // "cancelled"
    // ANCHOR_END: cancel
}
