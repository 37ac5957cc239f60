"""Pictures of coloured shapes, the training data of the vision model: drawn from a seed, the same for the same seed.

A picture has one shape, or none, in a cell of a grid of 3 × 3. It is drawn as llama.cpp's preprocessing leaves it:
with bars where it is not as wide as high, and edges as soft as scaling makes them.
"""
import numpy as np

SHAPES = ["circle", "square", "triangle", "cross"]
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
RADIUS = (0.12, 0.16)  # of a shape, in the longer side of its picture
JITTER = 0.04  # how far a shape's centre is from its cell's, in the picture's sides
BARS = (122, 116, 104)  # of llama.cpp, as LLaVA has them


def distance(shape, x, y, radius):
    """How far each pixel is outside a shape; negative inside."""
    ax, ay = abs(x), abs(y)
    if shape == "circle":
        return np.hypot(x, y) - radius
    if shape == "square":
        return np.maximum(ax, ay) - 0.85 * radius
    if shape == "triangle":
        return np.maximum(y - 0.8 * radius, (1.8 * ax - y - radius) / 2.06)
    return np.maximum(np.maximum(ax, ay) - radius, np.minimum(ax, ay) - 0.34 * radius)


def place_shape(r, width, height):
    """A cell, and the centre and the radius of a shape in it, all of which is in the picture."""
    cell, radius = int(r.integers(9)), r.uniform(*RADIUS) * max(width, height)
    x = ((cell % 3 + 0.5) / 3 + r.uniform(-JITTER, JITTER)) * width
    y = ((cell // 3 + 0.5) / 3 + r.uniform(-JITTER, JITTER)) * height
    return cell, np.clip(x, radius, width - radius), np.clip(y, radius, height - radius), radius


def draw(r, n, size):
    """Draws n pictures: their pixels from 0 to 255, (n, size, size, 3), and of each the colour, the name and the place of its shape, or None."""
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
            color = str(r.choice([color for color in COLORS if color != near]))
            cell, x, y, radius = place_shape(r, width, height)
            shape = SHAPES[r.integers(len(SHAPES))]
            outside = distance(shape, column - left - x, row - top - y, radius)
            inside = (0.5 - outside / (0.01 if r.random() < 0.3 else r.uniform(0.5, 1.8))).clip(0, 1)
            picture += inside[..., None] * (r.integers(*COLORS[color], endpoint=True) - picture)
            content = color, shape, PLACES[cell]
        if r.random() < 0.3:
            picture += r.uniform(0, 6) * r.standard_normal(picture.shape)
        contents.append(content)
    return pixels.clip(0, 255), contents
