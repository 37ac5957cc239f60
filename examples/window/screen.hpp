// The screen of window.cpp, drawn with SDL2 and SDL2_ttf. Nothing here knows the library.
#pragma once
#include <SDL.h>
#include <SDL_ttf.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

class Screen {
public:
    static constexpr int width = 960, height = 600;

    Screen(const std::string &title, const std::string &font) {
        check(SDL_Init(SDL_INIT_VIDEO) == 0 && TTF_Init() == 0);
        window_ = SDL_CreateWindow(title.c_str(), SDL_WINDOWPOS_CENTERED, SDL_WINDOWPOS_CENTERED, width, height, 0);
        check(window_);
        renderer_ = SDL_CreateRenderer(window_, -1, 0);
        check(renderer_);
        font_ = TTF_OpenFont(font.c_str(), 15);
        check(font_);
        check(TTF_SizeUTF8(font_, "m", &glyph_width, nullptr) == 0);
        glyph_height = TTF_FontLineSkip(font_);
        SDL_SetRenderDrawBlendMode(renderer_, SDL_BLENDMODE_BLEND);
        SDL_StartTextInput();
    }
    Screen(const Screen &) = delete;
    ~Screen() {
        for (const auto &[_, glyph] : glyphs_) SDL_DestroyTexture(glyph);
        TTF_CloseFont(font_);
        SDL_DestroyRenderer(renderer_);
        SDL_DestroyWindow(window_);
        TTF_Quit();
        SDL_Quit();
    }

    void clear(SDL_Color color) {
        SDL_SetRenderDrawColor(renderer_, color.r, color.g, color.b, 255);
        SDL_RenderClear(renderer_);
    }
    void present() { SDL_RenderPresent(renderer_); }

    void box(double x, double y, double w, double h, SDL_Color color) {
        const SDL_FRect rect{static_cast<float>(x), static_cast<float>(y), static_cast<float>(w), static_cast<float>(h)};
        SDL_SetRenderDrawColor(renderer_, color.r, color.g, color.b, color.a);
        SDL_RenderFillRectF(renderer_, &rect);
    }

    // One line of text; returns the x behind it.
    int text(int x, int y, const std::string &utf8, SDL_Color color) {
        for (std::size_t at = 0; at < utf8.size(); x += glyph_width) glyph(x, y, next(utf8, at), color);
        return x;
    }

    // The character at a position of a text, which moves behind it.
    static Uint32 next(const std::string &utf8, std::size_t &at) {
        const auto byte = static_cast<unsigned char>(utf8[at++]);
        int more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
        Uint32 point = more == 0 ? byte : byte & (0x3fu >> more);
        for (; more > 0 && at < utf8.size(); more--) point = point << 6 | (static_cast<unsigned char>(utf8[at++]) & 0x3fu);
        return point;
    }

    void glyph(int x, int y, Uint32 point, SDL_Color color) {
        SDL_Texture *texture = texture_of(point);
        if (!texture) return;
        SDL_Rect place{x, y, 0, 0};
        SDL_QueryTexture(texture, nullptr, nullptr, &place.w, &place.h);
        SDL_SetTextureColorMod(texture, color.r, color.g, color.b);
        SDL_RenderCopy(renderer_, texture, nullptr, &place);
    }

    // Writes what was drawn since clear() to a BMP file.
    void save(const std::string &file) {
        SDL_Surface *surface = SDL_CreateRGBSurfaceWithFormat(0, width, height, 24, SDL_PIXELFORMAT_BGR24);
        check(surface && SDL_RenderReadPixels(renderer_, nullptr, SDL_PIXELFORMAT_BGR24, surface->pixels, surface->pitch) == 0);
        const bool saved = SDL_SaveBMP(surface, file.c_str()) == 0;
        SDL_FreeSurface(surface);
        check(saved);
    }

    // What was drawn since clear(), 3 bytes a pixel, row by row from the top.
    std::vector<Uint8> pixels() const {
        std::vector<Uint8> all(static_cast<std::size_t>(width) * height * 3);
        check(SDL_RenderReadPixels(renderer_, nullptr, SDL_PIXELFORMAT_RGB24, all.data(), width * 3) == 0);
        return all;
    }

    int glyph_width = 0, glyph_height = 0;

private:
    static void check(bool done) {
        if (!done) throw std::runtime_error(SDL_GetError());
    }

    // White, so that a colour can be put on it. NULL for blanks and what the font has not.
    SDL_Texture *texture_of(Uint32 point) {
        if (const auto known = glyphs_.find(point); known != glyphs_.end()) return known->second;
        SDL_Surface *surface = point > ' ' ? TTF_RenderGlyph32_Blended(font_, point, SDL_Color{255, 255, 255, 255}) : nullptr;
        SDL_Texture *texture = surface ? SDL_CreateTextureFromSurface(renderer_, surface) : nullptr;
        SDL_FreeSurface(surface);
        return glyphs_[point] = texture;
    }

    SDL_Window *window_ = nullptr;
    SDL_Renderer *renderer_ = nullptr;
    TTF_Font *font_ = nullptr;
    std::map<Uint32, SDL_Texture *> glyphs_;
};
