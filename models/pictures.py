"""Pictures of coloured squares, the training data of the vision model: drawn from a seed, the same for the same seed.

A picture has one square, or none, in a cell of a grid of 3 × 3. It is drawn as llama.cpp's preprocessing leaves it:
with bars where it is not as wide as high, and edges as soft as scaling makes them.
"""
import numpy as np

PLACES = ["at the top left", "at the top", "at the top right", "on the left", "in the middle", "on the right",
          "at the bottom left", "at the bottom", "at the bottom right"]
# The lowest and the highest values of red, green and blue.
COLORS = {
    "red": ((190, 0, 0), (255, 50, 50)), "green": ((0, 110, 0), (60, 255, 60)), "blue": ((0, 0, 180), (60, 90, 255)),
    "yellow": ((235, 210, 0), (255, 255, 60)), "pink": ((245, 130, 170), (255, 195, 215)), "purple": ((110, 0, 120), (165, 40, 220)),
    "white": ((240, 240, 240), (255, 255, 255)), "black": ((0, 0, 0), (20, 20, 20)),
}
# The same of backgrounds, and the colour that is too near to them.
BACKGROUNDS = [((190, 190, 190), (255, 255, 255), "white"), ((0, 0, 0), (65, 65, 65), "black"), ((95, 95, 95), (150, 150, 150), "")]
HALF = (0.10, 0.136)  # of a square's side, in the longer side of its picture
BARS = (122, 116, 104)  # of llama.cpp, as LLaVA has them


def place_square(r, width, height):
    """A cell, and a centre and half a side in it, so that the square is in the picture."""
    while True:
        cell, half = int(r.integers(9)), r.uniform(*HALF) * max(width, height)
        x = ((cell % 3 + 0.5) / 3 + r.uniform(-0.07, 0.07)) * width
        y = ((cell // 3 + 0.5) / 3 + r.uniform(-0.07, 0.07)) * height
        if min(x, width - x, y, height - y) >= half:
            return cell, x, y, half


def draw(r, n, size):
    """Draws n pictures: their pixels from 0 to 255, (n, size, size, 3), and of each the colour and the place of its square, or None."""
    pixels, contents = np.empty((n, size, size, 3), np.float32), []
    pixels[:] = BARS
    row, column = np.mgrid[:size, :size] + 0.5
    for picture in pixels:
        width = height = size
        if r.random() < 0.4:  # as far as 4:3, or upright
            other = int(r.integers(size * 3 // 4, size))
            width, height = (size, other) if r.random() < 0.7 else (other, size)
        left, top = (size - width) // 2, (size - height) // 2
        low, high, near = BACKGROUNDS[r.choice(3, p=[0.45, 0.4, 0.15])]
        ground = r.integers(low, high, endpoint=True)
        picture[top : top + height, left : left + width] = ground if r.random() < 0.3 else 0.3 * ground + 0.7 * ground.mean()
        content = None
        if r.random() < 0.96:
            name = str(r.choice([name for name in COLORS if name != near]))
            cell, x, y, half = place_square(r, width, height)
            outside = np.maximum(abs(column - left - x), abs(row - top - y)) - half
            inside = (0.5 - outside / (0.01 if r.random() < 0.3 else r.uniform(0.5, 1.8))).clip(0, 1)
            picture += inside[..., None] * (r.integers(*COLORS[name], endpoint=True) - picture)
            content = name, PLACES[cell]
        if r.random() < 0.3:
            picture += r.uniform(0, 6) * r.standard_normal(picture.shape)
        contents.append(content)
    return pixels.clip(0, 255), contents
