"""Asks a model about a picture: python examples/guide/picture.py MODEL.gguf MMPROJ.gguf"""
import base64
import sys

from foredraft import Engine

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
    pixels = base64.b64encode(draw()).decode()
    picture = {"type": "image", "width": WIDTH, "height": HEIGHT, "format": "rgb8", "base64": pixels}
    question = {"type": "text", "text": "What is in the picture?"}
    messages = [{"role": "user", "content": [picture, question]}]
    print(engine.chat(messages, n_predict=30, temperature=0).text)
# ANCHOR_END: picture
