"""Asks a model about a picture: python examples/guide/picture.py MODEL.gguf MMPROJ.gguf"""
import sys

from foredraft import Engine, picture

WIDTH, HEIGHT = 64, 48


def draw() -> bytes:
    """A red square on white."""
    pixels = bytearray(b"\xff" * (WIDTH * HEIGHT * 3))
    for y in range(16, 32):
        start = 3 * (y * WIDTH + 24)
        pixels[start : start + 3 * 16] = b"\xff\0\0" * 16
    return bytes(pixels)


model, mmproj = sys.argv[1:]
# ANCHOR: picture
with Engine(model, mmproj=mmproj) as engine:
    pixels = memoryview(draw()).cast("B", (HEIGHT, WIDTH, 3))  # or a NumPy array, a picture of Pillow, a path, the bytes of a file
    question = {"type": "text", "text": "What is in the picture?"}
    messages = [{"role": "user", "content": [picture(pixels), question]}]
    print(engine.chat(messages, n_predict=30, temperature=0).text)
# ANCHOR_END: picture
