"""The interface of llama-cpp-python: `from foredraft_llama_cpp import Llama` in place of `from llama_cpp import Llama`.

Arguments that mean nothing here are ignored with a warning in the log; those that would change what the program does are
refused. Speculation is on, as `draft_model` (a path, or whatever else llama-cpp-python takes) or the text's own repetitions
allow; the completions are the same.
"""
from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections import deque
from pathlib import Path
from random import Random
import tempfile
from types import SimpleNamespace
from typing import Any, Dict, Generator, Iterable, Iterator, List, Mapping, NoReturn, Sequence, Union

from foredraft import Completion, ContextFullError, Engine, InvalidRequestError, Stream, Update, download

from . import _constants as numbers
from ._chat_formats import template_of
from ._llama_state import LlamaCache, LlamaState, array_of, common_prefix
from ._llama_tokenizer import LlamaTokenizer

#: The package's own log.
logger = logging.getLogger("foredraft")

Chunk = Dict[str, Any]
Response = Dict[str, Any]
Stop = Union[str, List[str], None]

#: Arguments, and the engine's names for them.
_RENAMED = {
    "n_gpu_layers": "n_gpu_layers", "main_gpu": "main_gpu", "tensor_split": "tensor_split", "vocab_only": "vocab_only",
    "use_mmap": "use_mmap", "use_mlock": "use_mlock", "kv_overrides": "override_kv", "n_batch": "n_batch",
    "n_ubatch": "n_ubatch", "n_threads": "n_threads", "n_threads_batch": "n_threads_batch",
    "yarn_ext_factor": "yarn_ext_factor", "yarn_attn_factor": "yarn_attn_factor", "yarn_beta_fast": "yarn_beta_fast",
    "yarn_beta_slow": "yarn_beta_slow", "yarn_orig_ctx": "yarn_orig_ctx", "rope_freq_base": "rope_freq_base",
    "rope_freq_scale": "rope_freq_scale", "embedding": "embedding", "offload_kqv": "offload_kqv",
    "flash_attn": "flash_attn", "swa_full": "swa_full", "spm_infill": "spm_infill",
}
#: Numbers of llama.cpp's enums, which the engine knows by name.
_SPLIT_MODES = {numbers.LLAMA_SPLIT_MODE_NONE: "none", numbers.LLAMA_SPLIT_MODE_LAYER: "layer", numbers.LLAMA_SPLIT_MODE_ROW: "row"}
_POOLING = {
    numbers.LLAMA_POOLING_TYPE_NONE: "none", numbers.LLAMA_POOLING_TYPE_MEAN: "mean", numbers.LLAMA_POOLING_TYPE_CLS: "cls",
    numbers.LLAMA_POOLING_TYPE_LAST: "last", numbers.LLAMA_POOLING_TYPE_RANK: "rank",
}
_ROPE_SCALING = {
    numbers.LLAMA_ROPE_SCALING_TYPE_NONE: "none", numbers.LLAMA_ROPE_SCALING_TYPE_LINEAR: "linear",
    numbers.LLAMA_ROPE_SCALING_TYPE_YARN: "yarn", numbers.LLAMA_ROPE_SCALING_TYPE_LONGROPE: "longrope",
}
_NUMA = {
    numbers.GGML_NUMA_STRATEGY_DISABLED: "disabled", numbers.GGML_NUMA_STRATEGY_DISTRIBUTE: "distribute",
    numbers.GGML_NUMA_STRATEGY_ISOLATE: "isolate", numbers.GGML_NUMA_STRATEGY_NUMACTL: "numactl",
}
_CACHE_TYPES = {
    numbers.GGML_TYPE_F32: "f32", numbers.GGML_TYPE_F16: "f16", numbers.GGML_TYPE_Q4_0: "q4_0", numbers.GGML_TYPE_Q4_1: "q4_1",
    numbers.GGML_TYPE_Q5_0: "q5_0", numbers.GGML_TYPE_Q5_1: "q5_1", numbers.GGML_TYPE_Q8_0: "q8_0", numbers.GGML_TYPE_IQ4_NL: "iq4_nl",
    numbers.GGML_TYPE_BF16: "bf16",
}
#: Why an argument or a function of llama-cpp-python is not there.
_REASONS = {
    "scores": "the engine keeps no logits: ask for logprobs",
    "chat_handler": "the engine renders messages itself: use chat_format, or the engine's chat_template",
    "tokenizer": "the engine tokenizes by the model's own vocabulary",
}
#: The engine's own keys, passed on as they are.
_ENGINE_KEYS = {
    "model_draft", "n_parallel", "kv_unified", "speculative", "draft_vocab", "draft_weights", "lookup_cache_static", "lookup_cache_dynamic",
    "n_ctx_draft", "n_gpu_layers_draft", "n_threads_draft", "devices", "devices_draft", "fit", "fit_margin_mb", "fit_ctx", "rpc", "warmup", "cache_type_k",
    "cache_type_v", "ctx_shift", "n_keep", "log_level", "prio", "prio_batch", "cpu_mask", "cpu_range", "cpu_strict", "poll", "frame_budget",
    "max_queue",
}
#: Arguments without effect on completions, or here.
_IGNORED = {
    "last_n_tokens_size", "lora_base", "no_perf", "op_offload", "logits_all", "verbose",
    "attention_type",
}


class LlamaGrammar:
    """A GBNF grammar."""

    def __init__(self, grammar: str) -> None:
        self.grammar: str | None = grammar
        self.schema: Any = None

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar of its text."""
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """A grammar of a file."""
        return cls(Path(file).read_text(encoding="utf-8"))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """The texts that are valid under a JSON schema."""
        grammar = cls("")
        grammar.grammar, grammar.schema = None, json.loads(json_schema)
        return grammar


class Llama:
    """A model, as llama-cpp-python has it. `engine` is the engine behind it."""

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
        # A handler of a template is that template. Others are functions that the engine does not call.
        handled = getattr(chat_handler, "template", None)
        _refuse(chat_handler=None if isinstance(handled, str) else chat_handler, tokenizer=tokenizer)
        # As there, a completion without max_tokens ends with the context.
        config: Dict[str, Any] = {"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "seed": _seed(seed), "ctx_shift": False}
        named = {
            "split_mode": (split_mode, _SPLIT_MODES), "rope_scaling": (rope_scaling_type, _ROPE_SCALING),
            "pooling": (pooling_type, _POOLING), "cache_type_k": (type_k, _CACHE_TYPES), "cache_type_v": (type_v, _CACHE_TYPES),
            "numa": (int(numa) or None, _NUMA),
        }
        for key, (number, names) in named.items():
            if number is not None and number != -1:
                if number not in names:
                    raise ValueError(f"{key}: expected one of {sorted(names)}, got {number}")
                config[key] = names[number]
        if lora_path:
            config["lora"] = [{"path": lora_path, "scale": lora_scale}]
        if chat_format is not None:
            config["chat_template"] = template_of(chat_format)
        if handled is not None:
            config["chat_template"] = handled
        if isinstance(draft_model, (str, os.PathLike)):
            config["model_draft"] = os.fspath(draft_model)
        elif draft_model is not None:
            # LlamaPromptLookupDecoding: what the engine does by itself.
            most = getattr(draft_model, "num_pred_tokens", None)
            config["speculative"] = {"n_max": most} if isinstance(most, int) else True
        for key, value in others.items():
            if key in _ENGINE_KEYS:
                config[key] = value
            elif value is None or key in _IGNORED:
                continue
            elif key in _RENAMED:
                config[_RENAMED[key]] = value
            else:
                logger.warning("Llama(%s=...) is unknown and ignored", key)
        self._arguments: Dict[str, Any] = {
            "n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "seed": seed, "split_mode": split_mode, "rope_scaling_type": rope_scaling_type,
            "pooling_type": pooling_type, "type_k": type_k, "type_v": type_v, "lora_path": lora_path, "lora_scale": lora_scale,
            "chat_format": chat_format, "numa": numa, "draft_model": draft_model, "chat_handler": chat_handler, "verbose": verbose, **others,
        }
        self.model_path = os.fspath(model_path)
        self.chat_format = chat_format
        self.n_batch = int(others.get("n_batch") or 2048)
        self._seed: int | None = None if _seed(seed) == -1 else seed
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
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **others: Any) -> Llama:
        """Downloads a file of a repository into Hugging Face's cache, and loads it. `filename` may be a pattern, such as `*Q8_0.gguf`."""
        if others.pop("local_dir", None) or others.pop("cache_dir", None) or others.pop("additional_files", None):
            raise NotImplementedError("from_pretrained: HF_HUB_CACHE names the folder of downloads, and all files of a split model are downloaded")
        others.pop("local_dir_use_symlinks", None)
        return cls(download(f"{repo_id}/{filename}" if filename else repo_id, beside=())["model"], **others)

    def close(self) -> None:
        """Frees the model."""
        self.engine.close()

    def __enter__(self) -> Llama:
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
        self._seed = None if _seed(seed) == -1 else seed

    def _next_seed(self, seed: int | None) -> int | None:
        """The seed of a request: the given one, else the next one of the row. As there, a given seed begins the row anew."""
        if seed is not None:
            self.set_seed(seed)
            return seed
        if self._seed is not None:
            self._seed = Random(self._seed).randint(0, 0xFFFFFFFE)
        return self._seed

    @property
    def model(self) -> Llama:
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

    # Token by token. These work in the first slot.

    @property
    def n_tokens(self) -> int:
        """How many tokens `eval` and `generate` have read since `reset`."""
        return len(self._tokens)

    @property
    def input_ids(self) -> Any:
        """The tokens that `eval` and `generate` have read since `reset`: an array of numpy's where that is installed, else one of Python's."""
        return array_of(self._tokens)

    @property
    def eval_tokens(self) -> deque[int]:
        """The same as a queue."""
        return deque(self._tokens, maxlen=self.n_ctx())

    @property
    def scores(self) -> NoReturn:
        """Is not there."""
        raise NotImplementedError(f"scores is not available: {_REASONS['scores']}")

    def reset(self) -> None:
        """Forgets what `eval` has read. (A slot's cache makes a later prompt faster, and changes nothing else.)"""
        self._tokens = []

    def eval(self, tokens: Sequence[int]) -> None:
        """Reads tokens after those that were read before."""
        read = [*self._tokens, *tokens]
        if len(read) > self.n_ctx():
            raise ContextFullError(f"eval: {len(read)} tokens do not fit into the context of {self.n_ctx()}")
        if tokens:
            self.engine.complete(read, n_predict=0, id_slot=0)
        self._tokens = read

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
        seed: int | None = None,
    ) -> int:
        """A token after those that were read, or, with `idx`, after the first `idx + 1` of them. It is not read itself."""
        request = _sampling(
            1, temp, top_p, min_p, typical_p, None, frequency_penalty, presence_penalty, repeat_penalty, top_k, seed, tfs_z, mirostat_mode,
            mirostat_tau, mirostat_eta, None,
        )
        read = self._tokens if idx is None else self._tokens[:idx + 1]
        request.update(_grammar(grammar), logits_processor=logits_processor, penalize_nl=penalize_nl)
        answer = self.engine.complete(read, id_slot=0, return_tokens=True, **request)
        return int(answer["tokens"][0])

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        grammar: LlamaGrammar | None = None,
        seed: int | None = None,
    ) -> Generator[int, Union[Sequence[int], None], None]:
        """Generates tokens one by one after these: until one of them ends the text (it is the last one), the context is full, or the loop
        is left. Tokens that are sent to the generator are read after the one that it has given."""
        request = _sampling(
            None, temp, top_p, min_p, typical_p, None, frequency_penalty, presence_penalty, repeat_penalty, top_k, seed, tfs_z, mirostat_mode,
            mirostat_tau, mirostat_eta, None,
        )
        request.update(
            _grammar(grammar), logits_processor=logits_processor, stopping_criteria=stopping_criteria, penalize_nl=penalize_nl, id_slot=0,
            return_tokens=True,
        )
        if reset:
            # As there, what is common stays, and `reset`, which a program may have replaced, is not called.
            if not common_prefix(self._tokens, tokens):
                self.reset()
            self._tokens = []
        self._tokens = [*self._tokens, *tokens]
        goes_on = True
        while goes_on:
            goes_on = False
            with self.engine.stream(self._tokens, **request) as running:
                for token in (token for update in running for token in update.get("tokens") or ()):
                    sent = yield int(token)
                    # As there, a token counts as read when the next one is asked for.
                    self._tokens.append(int(token))
                    if sent:
                        self._tokens.extend(sent)
                        goes_on = True
                        break

    # States.

    def save_state(self) -> LlamaState:
        """The state of the first slot, with the tokens that `eval` and `generate` have read."""
        if not self._tokens:
            return LlamaState((), b"", self._seed)
        # The last token may not have been decoded yet.
        self.engine.complete(self._tokens, n_predict=0, id_slot=0)
        with tempfile.TemporaryDirectory(prefix="foredraft-") as folder:
            path = Path(folder, "state")
            self.engine.session_save(path, id_slot=0)
            return LlamaState(self._tokens, path.read_bytes(), self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Puts a state back in place."""
        if state.llama_state:
            with tempfile.TemporaryDirectory(prefix="foredraft-") as folder:
                path = Path(folder, "state")
                path.write_bytes(state.llama_state)
                self.engine.session_load(path, id_slot=0)
        self._tokens = list(state.input_ids)
        self._seed = state.seed

    def set_cache(self, cache: LlamaCache | None) -> None:
        """Keeps the states of completions in that cache, and begins later ones from there. (The engine keeps the last prompt of each slot
        by itself; a cache is for more of them than there are slots.)"""
        self.cache = cache

    def _restore(self, prompt: Sequence[int]) -> None:
        """Before a completion: the cached state that has read most of its prompt."""
        if self.cache is None:
            return
        try:
            state = self.cache[prompt]
        except KeyError:
            return
        if common_prefix(state.input_ids, prompt) > common_prefix(self._tokens, prompt):
            self.load_state(state)

    def _keep(self, tokens: Sequence[int]) -> None:
        """After a completion: its state."""
        if self.cache is not None:
            self._tokens = list(tokens)
            self.cache[tokens] = self.save_state()

    def _keep_tokens(self, whole: Mapping[str, Any], answers: Sequence[Completion]) -> None:
        """The same for a request whose prompt and answer are tokens; of several answers the first."""
        if self.cache is not None and "tokens" in answers[0]:
            self._keep([*whole["prompt"], *answers[0]["tokens"]])

    # Text.

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

    # Completions.

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: Stop = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Any = None,
        logits_processor: Any = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        **request: Any,
    ) -> Any:
        """A completion in OpenAI's shape; with `stream` its chunks, one by one. `request` takes the engine's own keys."""
        seed = self._next_seed(seed)
        whole: Dict[str, Any] = {
            **_sampling(
                max_tokens, temperature, top_p, min_p, typical_p, stop, frequency_penalty, presence_penalty, repeat_penalty, top_k,
                seed, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta, logit_bias,
            ),
            **_grammar(grammar),
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            **request,
        }
        if suffix is not None:
            whole.update(input_prefix=prompt, input_suffix=suffix)
            whole["prompt"] = ""
        else:
            whole["prompt"] = prompt if isinstance(prompt, str) else _tokens_of(prompt)
        if logprobs is not None:
            whole["n_probs"] = max(logprobs, 1)
        given = prompt if isinstance(prompt, str) else self.engine.detokenize(prompt) if echo or logprobs is not None else ""
        shown = given if echo else ""
        head = _head("cmpl", "text_completion", model or self.model_path)
        # The probabilities of the prompt's tokens, which are shown with it.
        scored = whole["n_probs"] if echo and logprobs is not None and suffix is None else None
        if self.cache is not None and suffix is None:
            whole.update(prompt=self.engine.tokenize(whole["prompt"]), id_slot=0, return_tokens=True)
            self._restore(whole["prompt"])
        if stream:
            first = None
            if scored is not None:
                # Read before the chunks begin; they find it in the cache.
                answer = self.engine.complete(**{**whole, "n_predict": 0, "prompt_logprobs": scored})
                first = self._prompt_logprobs(answer)
            return self._completion_chunks(whole, head, shown, len(given) if logprobs is not None else None, first)
        if scored is not None:
            whole["prompt_logprobs"] = scored
        answers = _answers(self.engine.stream(**whole))
        self._keep_tokens(whole, answers)

        def choice(index: int, answer: Completion) -> Dict[str, Any]:
            entries = [*self._prompt_entries(answer), *(answer.get("completion_probabilities") or ())]
            return {
                "text": shown + answer.text + (suffix or "" if echo else ""),
                "index": index,
                "logprobs": _logprobs(entries, 0 if scored is not None else len(given)) if logprobs is not None else None,
                "finish_reason": answer.finish_reason,
            }

        return {**head, "choices": [choice(index, answer) for index, answer in enumerate(answers)], "usage": _usage(answers)}

    def _prompt_entries(self, answer: Completion) -> list[Mapping[str, Any]]:
        """The prompt's tokens with their probabilities, without a BOS that begins it."""
        entries = list(answer.get("prompt_logprobs") or ())
        return entries[1:] if entries and entries[0]["id"] == self.token_bos() else entries

    def _prompt_logprobs(self, answer: Completion) -> Dict[str, Any]:
        return _logprobs(self._prompt_entries(answer), 0)

    __call__ = create_completion

    def _completion_chunks(
        self, whole: Dict[str, Any], head: Response, first: str, offset: int | None, of_prompt: Dict[str, Any] | None,
    ) -> Iterator[Chunk]:
        """The chunks of completions whose text begins at that offset; `None`: without log-probabilities."""
        def chunk(text: str, index: int, logprobs: Any = None, reason: str | None = None) -> Chunk:
            choice = {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
            return {**head, "choices": [choice]}

        offsets = [offset or 0] * _n_choices(whole)
        with self.engine.stream(**whole) as running:
            if first:
                yield from (chunk(first, index, of_prompt) for index in range(len(offsets)))
            for update in running:
                if update.text:
                    entries = update.get("completion_probabilities") or ()
                    logprobs = _logprobs(entries, offsets[update.index]) if offset is not None else None
                    yield chunk(update.text, update.index, logprobs)
                    offsets[update.index] += len(update.text)
            answers = running.completions
            yield from (chunk("", index, None, answer.finish_reason) for index, answer in enumerate(answers))
        self._keep_tokens(whole, answers)

    def create_chat_completion(
        self,
        messages: Iterable[Mapping[str, Any]],
        functions: Any = None,
        function_call: Any = None,
        tools: Iterable[Any] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: Stop = None,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **request: Any,
    ) -> Any:
        """The answer to a conversation in OpenAI's shape; with `stream` its chunks, one by one."""
        seed = self._next_seed(seed)
        whole: Dict[str, Any] = {
            **_sampling(
                max_tokens, temperature, top_p, min_p, typical_p, stop, frequency_penalty, presence_penalty, repeat_penalty, top_k,
                seed, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta, logit_bias,
            ),
            **_grammar(grammar),
            "logits_processor": logits_processor,
            **request,
        }
        if tool_choice is not None:
            whole["tool_choice"] = tool_choice
        if functions is not None:
            whole["functions"] = list(functions)
        if function_call is not None:
            whole["function_call"] = function_call
        if response_format is not None:
            whole["response_format"] = response_format
        if logprobs:
            whole["n_probs"] = max(top_logprobs or 1, 1)
        name = model or self.model_path
        running = self.engine.stream(messages=messages, tools=tools, **whole)
        if stream:
            return self._chat_chunks(running, _n_choices(whole), _head("chatcmpl", "chat.completion.chunk", name), bool(logprobs))
        answers = _answers(running)
        return {
            **_head("chatcmpl", "chat.completion", name),
            "choices": [{
                "index": index,
                "message": answer.message,
                "logprobs": {"content": _chat_logprobs(answer)} if logprobs else None,
                "finish_reason": answer.finish_reason,
            } for index, answer in enumerate(answers)],
            "usage": {**answers[0].usage, **_usage(answers)},
        }

    def create_chat_completion_openai_v1(self, *args: Any, **others: Any) -> Any:
        """The same as objects of the package `openai`."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer = self.create_chat_completion(*args, **others)
        if others.get("stream"):
            return (ChatCompletionChunk(**chunk) for chunk in answer)
        return ChatCompletion(**answer)

    def _chat_chunks(self, running: Stream, n_choices: int, head: Response, with_logprobs: bool) -> Iterator[Chunk]:
        def chunk(delta: Mapping[str, Any], index: int, logprobs: Any = None, reason: str | None = None) -> Chunk:
            choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return {**head, "choices": [choice]}

        with running:
            yield from (chunk({"role": "assistant"}, index) for index in range(n_choices))
            for update in running:
                delta = {key: value for key, value in (update.get("delta") or {}).items() if key != "role"}
                if delta or (with_logprobs and update.get("completion_probabilities")):
                    yield chunk(delta, update.index, {"content": _chat_logprobs(update)} if with_logprobs else None)
            yield from (chunk({}, index, None, answer.finish_reason) for index, answer in enumerate(running.completions))


def _tokens_of(prompt: Sequence[int]) -> list[int]:
    """The tokens of a prompt. The engine would read texts among them as parts of one prompt."""
    if any(isinstance(token, (str, bytes)) for token in prompt):
        raise TypeError("prompt: expected a text or its tokens, got several texts: each is a call of its own")
    return [int(token) for token in prompt]


def _token(token: int | None) -> int:
    return -1 if token is None else token


def _n_choices(request: Mapping[str, Any]) -> int:
    return int(request.get("n_cmpl") or request.get("n") or 1)


def _answers(running: Stream) -> list[Completion]:
    """Waits for the answers of a request."""
    running.wait()
    return running.completions


def _usage(answers: Sequence[Completion]) -> Dict[str, int]:
    """The tokens of all choices together, as llama-cpp-python counts them; their prompt counts once."""
    n_prompt = answers[0].usage["prompt_tokens"]
    n_completion = sum(answer.usage["completion_tokens"] for answer in answers)
    return {"prompt_tokens": n_prompt, "completion_tokens": n_completion, "total_tokens": n_prompt + n_completion}


def _head(prefix: str, kind: str, model: str) -> Response:
    return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()), "model": model}


def _seed(seed: int | None) -> int:
    return -1 if seed is None or seed in (-1, 0xFFFFFFFF) else seed


def _refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name} is not available: {_REASONS[name]}")


def _sampling(
    max_tokens: int | None,
    temperature: float,
    top_p: float,
    min_p: float,
    typical_p: float,
    stop: Stop,
    frequency_penalty: float,
    presence_penalty: float,
    repeat_penalty: float,
    top_k: int,
    seed: int | None,
    tfs_z: float,
    mirostat_mode: int,
    mirostat_tau: float,
    mirostat_eta: float,
    logit_bias: Mapping[int, float] | None,
) -> Dict[str, Any]:
    request: Dict[str, Any] = {
        "n_predict": max_tokens if max_tokens is not None and max_tokens > 0 else -1,
        "temperature": temperature, "top_p": top_p, "min_p": min_p, "typical_p": typical_p, "top_k": top_k, "tfs_z": tfs_z,
        "frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty, "repeat_penalty": repeat_penalty,
        "mirostat": mirostat_mode, "mirostat_tau": mirostat_tau, "mirostat_eta": mirostat_eta,
    }
    if stop:
        request["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if seed is not None:
        request["seed"] = _seed(seed)
    if logit_bias:
        request["logit_bias"] = [[int(token), bias] for token, bias in logit_bias.items()]
    return request


def _grammar(grammar: LlamaGrammar | None) -> Dict[str, Any]:
    if grammar is None:
        return {}
    return {"json_schema": grammar.schema} if grammar.grammar is None else {"grammar": grammar.grammar}


def _chat_logprobs(answer: Update | Completion) -> list[Any]:
    keys = ("token", "logprob", "bytes", "top_logprobs")
    return [{key: one.get(key) for key in keys} for one in answer.get("completion_probabilities") or ()]


def _logprobs(entries: Sequence[Mapping[str, Any]], offset: int) -> Dict[str, Any]:
    """Tokens with their probabilities in OpenAI's shape. The text of the first one begins at that character."""
    tokens: list[str] = []
    logprobs: list[Any] = []
    top: list[Dict[str, Any] | None] = []
    offsets: list[int] = []
    for one in entries:
        tokens.append(str(one.get("token")))
        logprobs.append(one.get("logprob"))
        # Nothing predicts the first token of a prompt.
        predicted = one.get("logprob") is not None
        top.append({str(other.get("token")): other.get("logprob") for other in one.get("top_logprobs") or ()} if predicted else None)
        offsets.append(offset)
        offset += len(tokens[-1])
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}
