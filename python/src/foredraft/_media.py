"""Pictures and sounds as parts of a message's content."""
from __future__ import annotations

import base64
import os
import struct
from typing import Any, Dict, Optional

#: The WAV formats of samples by their types in buffers.
_SAMPLES = {"h": 1, "i": 1, "f": 3, "d": 3}


def picture(source: Any) -> Dict[str, Any]:
    """The part of a message with a picture.

    `source` is a file's path, the bytes of a file (PNG, JPEG, GIF, BMP), a picture of Pillow, or pixels: a NumPy array or another buffer of
    the shape (height, width, 3 or 4) and type uint8.
    """
    if isinstance(source, (str, os.PathLike)):
        return {"type": "image_url", "image_url": {"url": os.fspath(source)}}
    if hasattr(source, "convert") and hasattr(source, "size"):  # Pillow's
        width, height = source.size
        return _pixels(width, height, 3, source.convert("RGB").tobytes())
    view = memoryview(source)
    shape = view.shape or ()
    if view.ndim == 1 and view.itemsize == 1:
        return {"type": "image_url", "image_url": {"url": f"data:;base64,{_encoded(view)}"}}
    if view.ndim != 3 or view.format != "B" or shape[2] not in (3, 4):
        raise ValueError(f"picture: expected bytes of a file, or uint8 pixels of shape (height, width, 3 or 4), got {view.format} of {shape}")
    height, width, channels = shape
    return _pixels(width, height, channels, view)


def sound(source: Any, rate: Optional[int] = None) -> Dict[str, Any]:
    """The part of a message with a sound.

    `source` is a file's path or the bytes of a file (WAV, MP3, FLAC). With `rate`, the samples of a second, it is samples: a NumPy array or
    another buffer of the shape (samples,) or (samples, channels), of floating-point numbers from -1 to 1 or integers of 16 or 32 bits.
    """
    if isinstance(source, (str, os.PathLike)):
        return {"type": "input_audio", "input_audio": {"path": os.fspath(source)}}
    view = memoryview(source)
    shape = view.shape or ()
    if rate is None:
        if view.ndim != 1 or view.itemsize != 1:
            raise ValueError(f"sound: expected bytes of a file, or a rate with samples, got {view.format} of {shape}")
        return {"type": "input_audio", "input_audio": {"data": _encoded(view)}}
    if view.format not in _SAMPLES or view.ndim not in (1, 2):
        raise ValueError(f"sound: expected float32, float64, int16 or int32 samples of one or two dimensions, got {view.format} of {shape}")
    block = view.itemsize * (shape[1] if view.ndim == 2 else 1)
    form = struct.pack("<HHIIHH", _SAMPLES[view.format], block // view.itemsize, rate, rate * block, block, 8 * view.itemsize)
    head = b"RIFF" + struct.pack("<I", 36 + view.nbytes) + b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", view.nbytes)
    return {"type": "input_audio", "input_audio": {"data": _encoded(head + view.tobytes())}}


def _pixels(width: int, height: int, channels: int, data: Any) -> Dict[str, Any]:
    return {"type": "image", "width": width, "height": height, "format": "rgb8" if channels == 3 else "rgba8", "base64": _encoded(data)}


def _encoded(data: Any) -> str:
    return base64.b64encode(memoryview(data).tobytes()).decode()
