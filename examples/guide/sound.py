"""Asks a model about a sound: python examples/guide/sound.py MODEL.gguf MMPROJ.gguf"""
import array
import math
import sys

from foredraft import Engine, sound

RATE = 16000
model, mmproj = sys.argv[1:]
# ANCHOR: sound
tone = array.array("f", (0.5 * math.sin(2 * math.pi * 440 * at / RATE) for at in range(RATE)))
with Engine(model, mmproj=mmproj) as engine:
    question = {"type": "text", "text": "What do you hear?"}
    messages = [{"role": "user", "content": [sound(tone, RATE), question]}]
    print(engine.chat(messages, n_predict=30, temperature=0).text)
# ANCHOR_END: sound
