"""The chat formats of llama-cpp-python, as far as llama.cpp has them as built-in templates."""
from __future__ import annotations

#: llama-cpp-python's names that llama.cpp spells otherwise. llama.cpp's own names (`llama3`, `mistral-v7`, ...) are taken as well.
_RENAMED = {
    "llama-2": "llama2-sys", "llama-3": "llama3", "llama-4": "llama4", "mistral-instruct": "mistral-v1", "phi-3": "phi3", "phi-4": "phi4",
    "qwen": "chatml", "chatml-function-calling": "chatml", "deepseek-v2": "deepseek2", "deepseek-v3": "deepseek3", "open-orca": "vicuna-orca",
}


def template_of(chat_format: str) -> str:
    """The name of llama.cpp's template for a chat format. Whether there is one, the engine knows."""
    return _RENAMED.get(chat_format, chat_format)
