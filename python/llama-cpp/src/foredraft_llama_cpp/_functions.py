"""Those of llama.cpp's functions that ask what the library can do, and need no model."""
from __future__ import annotations

import time

from foredraft import devices


def llama_backend_init() -> None:
    """Does nothing: the library begins with the first model."""


def llama_backend_free() -> None:
    """Does nothing: the library ends with the process."""


def llama_supports_mmap() -> bool:
    """Whether model files can be mapped into memory."""
    return True


def llama_supports_mlock() -> bool:
    """Whether a model can be kept in memory."""
    return True


def llama_supports_gpu_offload() -> bool:
    """Whether there is a GPU that layers can be put on."""
    return any(device["type"] != "cpu" for device in devices()["devices"])


def llama_max_devices() -> int:
    """The most devices that a model is put on."""
    return 16


def llama_print_system_info() -> bytes:
    """The processor's name and level, and the devices."""
    found = devices()
    of_devices = [f"{device['name']}: {device['description']}" for device in found["devices"]]
    return " | ".join([*of_devices, f"level: {found['cpu']['level']}", f"cores: {found['cpu']['cores']}"]).encode()


def llama_time_us() -> int:
    """Microseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1000


__all__ = [
    "llama_backend_free", "llama_backend_init", "llama_max_devices", "llama_print_system_info", "llama_supports_gpu_offload",
    "llama_supports_mlock", "llama_supports_mmap", "llama_time_us",
]
