"""A model: its settings, its vocabulary and its embeddings."""
from __future__ import annotations

import os
from random import Random
from types import SimpleNamespace
from typing import Any, Dict, Sequence, Type, TypeVar

from foredraft import Engine, InvalidRequestError, download

from . import _constants as numbers
from ._llama_config import config_of
from ._llama_request import seed_of
from ._llama_state import LlamaCache, common_prefix
from ._llama_tokenizer import LlamaTokenizer
from ._openai_shapes import Response

_Self = TypeVar("_Self", bound="LlamaModel")


class LlamaModel:
    """The part of a `Llama` that needs no slot."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 512,
        n_gpu_layers: int = 0,
        seed: int = 0xFFFFFFFF,
        split_mode: int | None = None,
        rope_scaling_type: int | None = None,
        pooling_type: int | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        lora_path: str | None = None,
        lora_scale: float = 1.0,
        chat_format: str | None = None,
        numa: bool | int = False,
        draft_model: Any = None,
        chat_handler: Any = None,
        tokenizer: Any = None,
        verbose: bool = True,
        **others: Any,
    ) -> None:
        config = config_of(
            n_ctx, n_gpu_layers, seed, split_mode, rope_scaling_type, pooling_type, type_k, type_v, lora_path, lora_scale, chat_format, numa,
            draft_model, chat_handler, tokenizer, others,
        )
        self._arguments: Dict[str, Any] = {
            "n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "seed": seed, "split_mode": split_mode, "rope_scaling_type": rope_scaling_type,
            "pooling_type": pooling_type, "type_k": type_k, "type_v": type_v, "lora_path": lora_path, "lora_scale": lora_scale,
            "chat_format": chat_format, "numa": numa, "draft_model": draft_model, "chat_handler": chat_handler, "verbose": verbose, **others,
        }
        self.model_path = os.fspath(model_path)
        self.chat_format = chat_format
        self.n_batch = int(others.get("n_batch") or 2048)
        self._seed: int | None = None if seed_of(seed) == -1 else seed
        self.verbose = verbose
        self.cache: LlamaCache | None = None
        self._embeds = bool(others.get("embedding"))
        self._tokens: list[int] = []
        # The texts of tokens, without and with the texts of control tokens.
        self._pieces: tuple[Dict[int, bytes], Dict[int, bytes]] = ({}, {})
        try:
            self.engine = Engine(self.model_path, **config)
        except InvalidRequestError as error:
            if chat_format is None or not str(error).startswith("chat_template: "):
                raise
            raise ValueError(f"chat_format: llama.cpp has no built-in template for {chat_format!r}; {error}") from None
        self._info = self.engine.model_info()
        self._bos = self.token_bos()

    @classmethod
    def from_pretrained(cls: Type[_Self], repo_id: str, filename: str | None = None, **others: Any) -> _Self:
        """Downloads a file of a repository into Hugging Face's cache, and loads it. `filename` may be a pattern, such as `*Q8_0.gguf`."""
        if others.pop("local_dir", None) or others.pop("cache_dir", None) or others.pop("additional_files", None):
            raise NotImplementedError("from_pretrained: HF_HUB_CACHE names the folder of downloads, and all files of a split model are downloaded")
        others.pop("local_dir_use_symlinks", None)
        return cls(download(f"{repo_id}/{filename}" if filename else repo_id, beside=())["model"], **others)

    def close(self) -> None:
        """Frees the model."""
        self.engine.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> Dict[str, Any]:
        # The model is loaded again where it is unpickled.
        return {"model_path": self.model_path, **self._arguments}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def n_threads(self) -> int:
        """Threads that decode."""
        return self.engine.status()["n_threads_now"]

    @property
    def context_params(self) -> SimpleNamespace:
        """The settings of the context, as far as they are known by name."""
        status = self.engine.status()
        return SimpleNamespace(
            n_ctx=int(status["n_ctx"]), n_batch=self.n_batch, n_ubatch=int(self._arguments.get("n_ubatch") or 512),
            n_threads=self.n_threads, n_threads_batch=int(self._arguments.get("n_threads_batch") or self.n_threads),
            n_seq_max=int(status["n_parallel"]), embeddings=self._embeds,
            rope_freq_base=float(self._arguments.get("rope_freq_base") or 0), rope_freq_scale=float(self._arguments.get("rope_freq_scale") or 0),
            offload_kqv=bool(self._arguments.get("offload_kqv", True)),
        )

    def set_seed(self, seed: int) -> None:
        """Begins the row of seeds of later requests that have none."""
        self._seed = None if seed_of(seed) == -1 else seed

    def _next_seed(self, seed: int | None) -> int | None:
        """The seed of a request: the given one, else the next one of the row. As there, a given seed begins the row anew."""
        if seed is not None:
            self.set_seed(seed)
            return seed
        if self._seed is not None:
            self._seed = Random(self._seed).randint(0, 0xFFFFFFFE)
        return self._seed

    @property
    def model(self: _Self) -> _Self:
        """The argument of `llama_model_get_vocab`."""
        return self

    def tokenizer(self) -> LlamaTokenizer:
        """The model's tokenizer."""
        return LlamaTokenizer(self)

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """How many tokens both begin with."""
        return common_prefix(a, b)

    def n_ctx(self) -> int:
        """Tokens of context."""
        return int(self.engine.status()["n_ctx"])

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return int(self._info["n_vocab"])

    def pooling_type(self) -> int:
        """The number of the pooling of embeddings."""
        given = self._arguments["pooling_type"]
        if given is not None and given != numbers.LLAMA_POOLING_TYPE_UNSPECIFIED:
            return int(given)
        known = self._info["metadata"]
        return int(known.get(f"{known.get('general.architecture')}.pooling_type", numbers.LLAMA_POOLING_TYPE_LAST))

    def n_embd(self) -> int:
        """Numbers of an embedding."""
        return int(self._info["n_embd"])

    @property
    def metadata(self) -> Dict[str, str]:
        """The metadata of the model's file."""
        return dict(self._info["metadata"])

    @property
    def _is_recurrent(self) -> bool:
        """Whether the model has states instead of attention. Programs ask for this private name."""
        return self._has_states and not self._has_attention

    @property
    def _is_hybrid(self) -> bool:
        """Whether the model has states beside attention."""
        return self._has_states and self._has_attention

    @property
    def _has_states(self) -> bool:
        kinds = (".ssm.", ".wkv.", ".kda.", ".shortconv.")
        return any(kind in key for key in self._info["metadata"] for kind in kinds)

    @property
    def _has_attention(self) -> bool:
        known = self._info["metadata"]
        return known.get(f"{known.get('general.architecture')}.attention.head_count", "0") != "0"

    def token_bos(self) -> int:
        """The token that begins texts; -1: there is none."""
        return _token(self._info["bos"])

    def token_eos(self) -> int:
        """The token that ends texts; -1: there is none."""
        return _token(self._info["eos"])

    def token_nl(self) -> int:
        """The token of a line feed; -1: there is none."""
        return _token(self._info["newline"])

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The ids of a text's tokens."""
        return self.engine.tokenize(text.decode("utf-8", "replace"), add_special=add_bos, parse_special=special)

    def detokenize(self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False) -> bytes:
        """The text of tokens, in UTF-8. As there, a space that a vocabulary puts before a text is left out after BOS only."""
        pieces = self._pieces[special]
        try:
            text = b"".join([pieces[token] for token in tokens])
        except KeyError:
            for token in set(tokens).difference(pieces):
                pieces[token] = self._piece(int(token), special)
            text = b"".join([pieces[token] for token in tokens])
        return text[1:] if not prev_tokens and len(tokens) and tokens[0] == self._bos and text.startswith(b" ") else text

    def _piece(self, token: int, special: bool) -> bytes:
        """The text of a token. The engine leaves a space out at the beginning of a text, so there is a token before this one."""
        before = token if self._bos == -1 else self._bos
        return self.engine.detokenize_bytes([before, token], special=special)[len(self.engine.detokenize_bytes([before], special=special)):]

    def _embedded(self, texts: Sequence[str], normalize: int, truncate: bool) -> tuple[list[Any], int]:
        """The embedding of each text, and the number of tokens of all."""
        if not self._embeds:
            raise RuntimeError("embeddings need a Llama that was made with embedding=True")
        if self.pooling_type() != numbers.LLAMA_POOLING_TYPE_NONE:
            return self.engine._embed_many(texts, normalize, truncate)
        vectors = [self.engine.embed_tokens(text, embd_normalize=normalize, truncate=truncate) for text in texts]
        return vectors, sum(map(len, vectors))

    def embed(self, input: str | Sequence[str], normalize: bool = False, truncate: bool = True, return_count: bool = False) -> Any:
        """The embedding of a text, or of each of several. A text that is too long loses its end, or is a ValueError. With `return_count`
        also how many tokens that were. With the pooling none a text has a list with the vector of each token."""
        texts = [input] if isinstance(input, str) else input
        vectors, n_tokens = self._embedded(texts, 2 if normalize else -1, truncate)
        found = vectors[0] if isinstance(input, str) else vectors
        return (found, n_tokens) if return_count else found

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Response:
        """The same in OpenAI's shape."""
        embedded, n_tokens = self._embedded([input] if isinstance(input, str) else input, -1, True)
        return {
            "object": "list",
            "data": [{"object": "embedding", "embedding": numbers, "index": i} for i, numbers in enumerate(embedded)],
            "model": model or self.model_path,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


def _token(token: int | None) -> int:
    return -1 if token is None else token
