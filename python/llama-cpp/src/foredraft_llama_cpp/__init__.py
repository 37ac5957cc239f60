"""llama-cpp-python's interface over foredraft, by the names of its modules: `from foredraft_llama_cpp import Llama`.

Programs and libraries that import `llama_cpp` get this package in its place after `foredraft_llama_cpp.install()`.
"""
import sys as _sys

from foredraft import version as _version

from . import _constants, _functions, llama, llama_cache, llama_chat_format, llama_grammar, llama_speculative, llama_tokenizer, llama_types
from ._constants import *  # noqa: F403
from ._functions import *  # noqa: F403
from ._vocabulary import llama_model_get_vocab, llama_token_to_piece
from .llama import Llama, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from .llama_cache import LlamaCache, LlamaDiskCache, LlamaRAMCache, LlamaState
from .llama_grammar import LlamaGrammar
from .llama_tokenizer import LlamaTokenizer
from .llama_types import *  # noqa: F403

__version__: str


def __getattr__(name: str) -> str:
    # The library is loaded when it is first needed.
    if name == "__version__":
        return _version()
    raise AttributeError(f"foredraft_llama_cpp has no {name!r}: of llama_cpp it has the high-level interface, and hardly any of llama.cpp's functions")


def install() -> None:
    """Lets `import llama_cpp`, and of its modules, find this package in this process."""
    for module in (llama, llama_cache, llama_chat_format, llama_grammar, llama_speculative, llama_tokenizer, llama_types):
        _sys.modules[module.__name__.replace("foredraft_", "", 1)] = module
    _sys.modules["llama_cpp"] = _sys.modules[__name__]


__all__ = [
    "Llama", "LlamaCache", "LlamaDiskCache", "LlamaGrammar", "LlamaRAMCache", "LlamaState", "LlamaTokenizer", "LogitsProcessor", "LogitsProcessorList",
    "StoppingCriteria", "StoppingCriteriaList", "install", "llama_model_get_vocab", "llama_token_to_piece",
]
__all__ += _constants.__all__
__all__ += _functions.__all__
__all__ += llama_types.__all__
