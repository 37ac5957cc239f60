// A conversation in a window that draws 60 frames a second while the model answers: how a game or a GUI uses the library.
// SDL2 and SDL2_ttf (Debian: libsdl2-dev libsdl2-ttf-dev fonts-dejavu-core). From the root of the repository, or by `make window`:
//   c++ -std=c++17 -O2 -Iinclude examples/window/window.cpp -Ltarget/release -lforedraft -Wl,-rpath,$PWD/target/release
//       $(pkg-config --cflags --libs sdl2 SDL2_ttf) -o target/window
//   target/window [options] [target.gguf [draft.gguf]]
// Type a question and press Return. Escape cancels the answer, Tab turns speculation on and off. Colours show a token's drafter. The bars
// at the bottom are the times of the last frames, in blue the part that calls of the library took.
//
// With --mmproj the model sees the frame that was drawn last before the question: "What is on this screen?"
// With --village you talk to one of a dozen villagers, the arrows left and right choose whom, and the others think and feel by themselves.
//
// conversation.hpp and village.hpp have all that concerns the library, screen.hpp all that concerns SDL's drawing.
#include "screen.hpp"
#include "village.hpp"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <future>
#include <iostream>
#include <sstream>
#include <thread>

namespace {

constexpr double frame_ms = 1000.0 / 60;
constexpr SDL_Color background{24, 26, 32, 255}, white{232, 232, 236, 255}, gray{130, 134, 146, 255}, blue{96, 148, 255, 255},
    green{110, 200, 120, 255}, red{240, 96, 80, 255}, yellow{236, 196, 90, 255};

const char usage[] = "usage: window [options] [target.gguf [draft.gguf]]\n"
    "  --ask TEXT          ask this by itself; several are asked one after the other\n"
    "  --type TEXT         type this, a letter in each tenth frame\n"
    "  --turns N           end after so many answers\n"
    "  --frames N          end after so many frames with a loaded model\n"
    "  --press TURN:N:KEY  press a key (an SDL name such as Tab) when that answer has N tokens\n"
    "  --screenshot FILE   write the last frame as BMP\n"
    "  --plain             begin without speculation\n"
    "  --village           talk to a villager, while others think\n"
    "  --thoughts N        end after so many thoughts of villagers\n"
    "  --report            print frame times and answers\n"
    "  --help              print this\n"
    "  --budget BUSY:PER   the frame budget: decode for BUSY of each PER milliseconds\n"
    "  --pause             pause the engine while a frame is computed and drawn\n"
    "  --init MEMBERS      more members of the configuration, as '\"prio\": -1, \"n_threads\": 1'\n"
    "  --work MS           compute for so long in each frame, on two threads, as a game does\n"
    "  --mmproj FILE       the model's projector: each question is about what the window shows\n"
    "  --look MS           the model sees the window each MS milliseconds, or when it has ended the last look, and not with each question\n"
    "  --font FILE         a monospaced font\n";

// A key to press when an answer has so many tokens.
struct Press {
    std::size_t turn;
    double tokens;
    std::string key;
};

struct Options {
    std::string model, draft, settings, screenshot, text, font = "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf";
    std::deque<std::string> questions;
    std::vector<Press> presses;
    std::size_t turns = 0, frames = 0, thoughts = 0;
    double work_ms = 0, look_ms = 0;
    bool speculates = true, report = false, pauses = false, has_village = false, sees = false;

    Options(int argc, char **argv) {
        std::deque<std::string> words(argv + 1, argv + argc), models;
        const auto value = [&words] {
            if (words.empty()) throw std::runtime_error(usage);
            const std::string word = words.front();
            words.pop_front();
            return word;
        };
        while (!words.empty()) {
            const std::string word = value();
            std::istringstream fields;
            const auto split = [&] {
                std::string text = value();
                std::replace(text.begin(), text.end(), ':', ' ');
                fields.str(text);
            };
            if (word == "--help") {
                std::cout << usage;
                std::exit(0);
            } else if (word == "--ask") {
                questions.push_back(value());
            } else if (word == "--type") {
                text = value();
            } else if (word == "--turns") {
                turns = std::stoul(value());
            } else if (word == "--frames") {
                frames = std::stoul(value());
            } else if (word == "--screenshot") {
                screenshot = value();
            } else if (word == "--village") {
                has_village = true;
                settings += Village::settings;
            } else if (word == "--thoughts") {
                thoughts = std::stoul(value());
            } else if (word == "--plain") {
                speculates = false;
            } else if (word == "--pause") {
                pauses = true;
            } else if (word == "--report") {
                report = true;
            } else if (word == "--font") {
                font = value();
            } else if (word == "--mmproj") {
                sees = true;
                settings += ", \"mmproj\": " + foredraft::quote(value());
            } else if (word == "--look") {
                look_ms = std::stod(value());
            } else if (word == "--init") {
                settings += ", " + value();
            } else if (word == "--work") {
                work_ms = std::stod(value());
            } else if (word == "--press") {
                Press press;
                split();
                if (!(fields >> press.turn >> press.tokens >> press.key)) throw std::runtime_error(usage);
                presses.push_back(press);
            } else if (word == "--budget") {
                std::string busy, per;
                split();
                if (!(fields >> busy >> per)) throw std::runtime_error(usage);
                settings += ", \"frame_budget\": {\"busy_ms\": " + busy + ", \"per_ms\": " + per + "}";
            } else if (word.compare(0, 1, "-") == 0 || models.size() == 2) {
                throw std::runtime_error(usage);
            } else {
                models.push_back(word);
            }
        }
        // It looks beside the questions then.
        sees = sees && look_ms == 0;
        // Without arguments the models of `make models`, or else those in the repository.
        const std::string real = "target/models/smollm2-135m-q4_1.gguf";
        const bool has_real = std::ifstream(real).good();
        model = !models.empty() ? models[0] : has_real ? real : "models/stories-target.gguf";
        draft = models.size() == 2 ? models[1] : !models.empty() ? ""
            : has_real ? "target/models/smollm2-far-q4_1.gguf" : "models/stories-draft.gguf";
    }
};

// Times of frames, or of what is done in each of them.
struct Times {
    std::vector<double> ms;

    std::string summary() const {
        if (ms.empty()) return "none";
        char text[100];
        std::snprintf(text, sizeof text, "median %.2f ms, p99 %.2f ms, longest %.2f ms", at(0.5), at(0.99), at(1));
        return text;
    }
    // The time that this part of them does not exceed.
    double at(double part) const {
        std::vector<double> sorted = ms;
        std::sort(sorted.begin(), sorted.end());
        return sorted.empty() ? 0 : sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1))];
    }
    std::size_t above(double limit) const {
        return static_cast<std::size_t>(std::count_if(ms.begin(), ms.end(), [limit](double time) { return time > limit; }));
    }
};

SDL_Color color_of(const std::string &origin) {
    if (origin == "user") return blue;
    if (origin == "note") return gray;
    if (origin == "target") return white;
    return origin == "draft" ? green : yellow;  // a draft model, or drafters that use the token history
}

// The conversation, wrapped and scrolled to its end.
void draw_conversation(Screen &screen, const std::vector<Span> &spans, const std::string &typed, bool is_asking, int below) {
    struct Cell {
        int column, row;
        Uint32 point;
        SDL_Color color;
    };
    std::vector<Cell> cells;
    const int columns = (Screen::width - 40) / screen.glyph_width, rows = (Screen::height - 60 - below) / screen.glyph_height;
    int column = 0, row = 0;
    const auto put = [&](const std::string &text, SDL_Color color) {
        for (std::size_t at = 0; at < text.size();) {
            // A word that does not fit goes to the next line.
            const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
            if (column > 0 && column + static_cast<int>(end - at) > columns) column = 0, row++;
            const Uint32 point = Screen::next(text, at);
            if (point == '\n' || column == columns) column = 0, row++;
            if (point != '\n' && (column > 0 || point != ' ')) cells.push_back({column++, row, point, color});
        }
    };
    for (const Span &span : spans) put(span.text, color_of(span.origin));
    put((spans.empty() ? "> " : "\n\n> ") + typed, blue);
    if (is_asking && typed.empty()) put(" type a question and press Return", gray);
    const int first = std::max(0, row - rows + 1);
    for (const Cell &cell : cells) {
        if (cell.row < first) continue;
        screen.glyph(20 + cell.column * screen.glyph_width, 60 + (cell.row - first) * screen.glyph_height, cell.point, cell.color);
    }
}

SDL_Color color_of_mood(const std::string &mood) {
    if (mood == "happy") return green;
    if (mood == "sad") return blue;
    if (mood == "angry") return red;
    if (mood == "curious") return yellow;
    return mood == "tired" ? gray : white;
}

// The villagers in the colours of their moods, who is in front in brackets.
void draw_village(Screen &screen, const Village &village) {
    int x = 20, y = Screen::height - 166;
    for (const Villager &one : village.villagers()) {
        const bool is_front = &one == &village.front(), is_active = one.request.has_value();
        const std::string name = (is_front ? "[" : "") + std::string(one.name) + (is_active ? "*" : "") + (is_front ? "]" : "");
        x = screen.text(x, y, name + " ", color_of_mood(one.mood));
    }
    screen.text(20, y + screen.glyph_height, village.meter(), gray);
}

void draw_status(Screen &screen, const Conversation &conversation) {
    const Turn &turn = conversation.turn;
    char text[120];
    std::snprintf(text, sizeof text, "%5.1f tokens/s   ", turn.tokens_per_second);
    int x = screen.text(20, 16, text, white);
    if (conversation.is_answering() && turn.n_accepted > 0) {
        std::snprintf(text, sizeof text, "%.0f %% from drafts   ", 100 * turn.n_accepted / turn.n_tokens);
        x = screen.text(x, 16, text, white);
    } else if (turn.n_drafted > 0) {
        std::snprintf(text, sizeof text, "%.0f of %.0f drafted accepted   ", turn.accept_rate * turn.n_drafted, turn.n_drafted);
        x = screen.text(x, 16, text, white);
    }
    x = screen.text(x, 16, conversation.speculates ? "[Tab] speculation on  " : "[Tab] speculation off  ", gray);
    if (conversation.is_answering()) screen.text(x, 16, "[Esc] cancel", gray);
    x = Screen::width - 20 - 28 * screen.glyph_width;
    for (const char *origin : {"target", "draft", "history"}) x = screen.text(x, 16, std::string(origin) + "   ", color_of(origin));
    if (conversation.is_ready()) return;
    screen.box(20, 44, Screen::width - 40, 8, SDL_Color{60, 64, 74, 255});
    screen.box(20, 44, (Screen::width - 40) * conversation.progress(), 8, blue);
}

// The last frame times, against a line at a sixtieth of a second, and something that shows each late frame by a jerk.
void draw_frames(Screen &screen, const Times &frames, const Times &calls, double seconds) {
    const double base = Screen::height - 20, scale = 2;
    for (std::size_t i = 0; i < 220 && i < frames.ms.size(); i++) {
        const std::size_t at = frames.ms.size() - 1 - i;
        const double frame = frames.ms[at], call = calls.ms[at];
        const double x = 20 + 3.0 * (219 - static_cast<double>(i));
        const double height = std::min(frame, 50.0) * scale, part = std::min(call, 50.0) * scale;
        screen.box(x, base - height, 2, height, frame < 20 ? SDL_Color{64, 100, 72, 255} : red);
        screen.box(x, base - part, 2, part, blue);
    }
    screen.box(20, base - frame_ms * scale, 660, 1, gray);
    int legend = screen.text(20, Screen::height - 19, "a bar: the time of a frame   ", gray);
    legend = screen.text(legend, Screen::height - 19, "above 20 ms   ", red);
    legend = screen.text(legend, Screen::height - 19, "in calls of the library   ", blue);
    screen.text(legend, Screen::height - 19, "line: 1/60 s", gray);
    const double x = 810 + 110 * std::sin(seconds * 2.1), y = base - 24 - 70 * std::abs(std::cos(seconds * 3.7));
    screen.box(x, y, 24, 24, yellow);
}

// The time for which the calling thread was on a core.
double used_ms() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

// Takes that much time of a core.
void work(double ms) {
    for (const double start = used_ms(); used_ms() - start < ms;) {
    }
}

void press(const std::string &key) {
    SDL_Event event{};
    event.type = SDL_KEYDOWN;
    event.key.state = SDL_PRESSED;
    event.key.keysym.sym = SDL_GetKeyFromName(key.c_str());
    SDL_PushEvent(&event);
}

void report(const Conversation &conversation, const Times &frames, const Times &calls, const Times &drawing, std::size_t loading) {
    const auto part = [](const Times &times, std::size_t first, std::size_t last) {
        return Times{std::vector<double>(times.ms.begin() + static_cast<std::ptrdiff_t>(first), times.ms.begin() + static_cast<std::ptrdiff_t>(last))};
    };
    const auto print = [&](const char *when, std::size_t first, std::size_t last) {
        const Times times = part(frames, first, last), ours = part(calls, first, last);
        // Frames that are late only because they were drawn for longer than others.
        const double usual = part(drawing, first, last).at(0.5);
        std::size_t n_drawn = 0;
        for (std::size_t i = first; i < last; i++) n_drawn += frames.ms[i] > 20 && frames.ms[i] - (drawing.ms[i] - usual) <= 20;
        std::printf("%s: %zu frames: %s, %zu above 20 ms, %zu of them for long drawing\n", when, last - first, times.summary().c_str(), times.above(20), n_drawn);
        std::printf("%s: calls of the library in a frame: %s, %zu above 20 ms\n", when, ours.summary().c_str(), ours.above(20));
    };
    print("loading", 0, loading);
    print("loaded", loading, frames.ms.size());
    std::vector<Turn> turns = conversation.ended;
    if (conversation.is_answering()) turns.push_back(conversation.turn);
    for (const Turn &turn : turns) {
        std::printf("answer: %s, %.0f tokens, %.1f tokens/s, speculation %s, %.0f drafted, accept_rate %.2f: %s\n", turn.stop_type.empty() ? "unfinished" : turn.stop_type.c_str(),
                    turn.n_tokens, turn.tokens_per_second, turn.speculates ? "on" : "off", turn.n_drafted, turn.accept_rate,
                    foredraft::quote(turn.text).c_str());
    }
}

}  // namespace

int main(int argc, char **argv) try {
    Options options(argc, argv);
    Screen screen("foredraft", options.font);
    Conversation conversation(options.model, options.draft, options.settings);
    std::optional<Village> village;
    if (options.has_village) village.emplace(conversation);
    conversation.speculates = options.speculates;
    Times frames, calls, drawing;
    std::size_t loading = 0;  // frames until the model was loaded
    std::string typed, prepared;
    const Clock::time_point start = Clock::now();
    Clock::time_point last = start, next = start, looked = start;
    for (bool runs = true; runs;) {
        if (options.pauses) conversation.pause();
        for (SDL_Event event; SDL_PollEvent(&event);) {
            if (event.type == SDL_QUIT) runs = false;
            if (event.type == SDL_TEXTINPUT) typed += event.text.text;
            if (event.type != SDL_KEYDOWN) continue;
            switch (event.key.keysym.sym) {
            case SDLK_ESCAPE: conversation.cancel(); break;
            case SDLK_LEFT:
                if (village) village->meet(village->villagers().size() - 1);
                break;
            case SDLK_RIGHT:
                if (village) village->meet(1);
                break;
            case SDLK_TAB: conversation.speculates = !conversation.speculates; break;
            case SDLK_RETURN: options.questions.push_back(std::exchange(typed, "")); break;
            case SDLK_BACKSPACE:
                while (!typed.empty() && (typed.back() & 0xc0) == 0x80) typed.pop_back();
                if (!typed.empty()) typed.pop_back();
                break;
            default: break;
            }
        }
        conversation.update();
        if (!conversation.is_ready()) loading++;
        if (conversation.is_ready() && frames.ms.size() % 10 == 0 && !options.text.empty()) {
            typed += options.text.front();
            options.text.erase(0, 1);
        }
        if (typed != prepared && !typed.empty() && !options.sees) conversation.prepare(typed);
        prepared = typed;
        std::optional<std::string> question;
        if (conversation.is_ready() && !conversation.is_answering() && !options.questions.empty()) {
            if (village) village->interrupt();
            question = std::move(options.questions.front());
            options.questions.pop_front();
            if (!options.sees) conversation.ask(*question);
        }
        if (conversation.is_ready() && village) village->update();
        const auto due = std::partition(options.presses.begin(), options.presses.end(), [&](const Press &press) {
            const bool is_its_turn = conversation.is_answering() && conversation.ended.size() + 1 == press.turn;
            return !is_its_turn || conversation.turn.n_tokens < press.tokens;
        });
        std::for_each(due, options.presses.end(), [](const Press &due_now) { press(due_now.key); });
        options.presses.erase(due, options.presses.end());
        calls.ms.push_back(conversation.take_call_ms());
        if (options.work_ms > 0) {
            const std::future<void> other = std::async(std::launch::async, work, options.work_ms);
            work(options.work_ms);
            other.wait();
        }

        const double before_drawing = used_ms();
        screen.clear(background);
        draw_conversation(screen, conversation.spans, typed, conversation.is_ready() && !conversation.is_answering(), village ? 170 : 130);
        if (village) draw_village(screen, *village);
        draw_status(screen, conversation);
        draw_frames(screen, frames, calls, std::chrono::duration<double>(Clock::now() - start).count());
        if (options.frames > 0 && frames.ms.size() + 1 >= loading + options.frames) runs = false;
        if (options.turns > 0 && conversation.ended.size() >= options.turns) runs = false;
        if (options.thoughts > 0 && village && village->n_thoughts >= options.thoughts) runs = false;
        if (question && options.sees) conversation.ask(*question, screen.pixels(), Screen::width, Screen::height);
        if (options.look_ms > 0 && Clock::now() - looked >= std::chrono::duration<double, std::milli>(options.look_ms)) {
            conversation.look(screen.pixels(), Screen::width, Screen::height);
            looked = Clock::now();
        }
        if (!runs && !options.screenshot.empty()) screen.save(options.screenshot);
        screen.present();
        drawing.ms.push_back(used_ms() - before_drawing);

        // A late frame is not made up for.
        next = std::max(next + std::chrono::microseconds(static_cast<long>(frame_ms * 1000)), Clock::now());
        if (options.pauses) conversation.resume();
        std::this_thread::sleep_until(next);
        const Clock::time_point now = Clock::now();
        frames.ms.push_back(std::chrono::duration<double, std::milli>(now - last).count());
        last = now;
    }
    if (options.report) report(conversation, frames, calls, drawing, loading);
    if (options.report && options.look_ms > 0) std::printf("looks: %zu\n", conversation.n_looks);
    if (options.report && village) std::printf("village: %s\n", village->meter().c_str());
} catch (const std::exception &error) {
    std::cerr << "window: " << error.what() << "\n";
    return 1;
}
