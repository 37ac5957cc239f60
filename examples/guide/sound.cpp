// Asks a model about a sound. From the root of the repository, after `make build`:
//   c++ -std=c++17 -Iinclude examples/guide/sound.cpp -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/sound
//   target/sound MODEL.gguf MMPROJ.gguf
#include "foredraft.hpp"

#include <cmath>
#include <iostream>
#include <vector>

// ANCHOR: sound
// The answer to a question about a sound of samples from -1 to 1.
static std::string ask(foredraft::engine &engine, const std::string &question, const std::vector<float> &samples, unsigned rate) {
    const std::string heard = foredraft::sound(samples.data(), samples.size(), rate);
    const std::string content = heard + ", {\"type\": \"text\", \"text\": " + foredraft::quote(question) + "}";
    const std::string messages = "[{\"role\": \"user\", \"content\": [" + content + "]}]";
    return engine.complete("{\"messages\": " + messages + ", \"n_predict\": 30, \"temperature\": 0}")["content"].text();
}
// ANCHOR_END: sound

int main(int argc, char **argv) try {
    if (argc != 3) return std::cerr << "usage: sound MODEL MMPROJ\n", 2;
    const unsigned rate = 16000;
    std::vector<float> tone;
    for (unsigned at = 0; at < rate; ++at) tone.push_back(static_cast<float>(0.5 * std::sin(2 * 3.14159265358979323846 * 440 * at / rate)));
    foredraft::engine engine;
    engine.load("{\"model\": " + foredraft::quote(argv[1]) + ", \"mmproj\": " + foredraft::quote(argv[2]) + "}");
    std::cout << ask(engine, "What do you hear?", tone, rate) << "\n";
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
