"""Chat formats. The engine renders messages with the model's own template, or llama.cpp's of the name `chat_format`."""
from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable, List, Mapping, NoReturn, Sequence

from .llama import StoppingCriteriaList


@dataclass
class ChatFormatterResponse:
    """The text of a conversation, the texts that end the answer, and whether the text has BOS already."""

    prompt: str
    stop: str | List[str] | None = None
    stopping_criteria: StoppingCriteriaList | None = None
    added_special: bool = False


class Jinja2ChatFormatter:
    """Renders conversations with a template, by the package jinja2. `to_chat_handler` is a value for `Llama(chat_handler=...)`: the engine
    renders with this template itself then, and reads calls of tools as it writes them."""

    def __init__(
        self, template: str, eos_token: str, bos_token: str, add_generation_prompt: bool = True, stop_token_ids: Sequence[int] | None = None,
    ) -> None:
        self.template = template
        self.eos_token = eos_token
        self.bos_token = bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)

    def __call__(self, *, messages: Sequence[Mapping[str, Any]], **names: Any) -> ChatFormatterResponse:
        ends = self.stop_token_ids
        return ChatFormatterResponse(
            prompt=_rendered(
                self.template, messages=messages, eos_token=self.eos_token, bos_token=self.bos_token, add_generation_prompt=self.add_generation_prompt,
                **{"functions": None, "function_call": None, "tools": None, "tool_choice": None, **names},
            ),
            stop=[self.eos_token],
            stopping_criteria=None if ends is None else StoppingCriteriaList([lambda tokens, _: tokens[-1] in ends]),
            added_special=True,
        )

    def to_chat_handler(self) -> Jinja2ChatFormatter:
        """A value for `Llama(chat_handler=...)`."""
        return self


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True,
) -> Callable[..., ChatFormatterResponse]:
    """A formatter of a model's `tokenizer_config.json`. As there, an empty message of the assistant begins the answer."""
    template, eos, bos = (str(tokenizer_config[key]) for key in ("chat_template", "eos_token", "bos_token"))

    def formatter(messages: Sequence[Mapping[str, Any]], **names: Any) -> ChatFormatterResponse:
        begun = [*messages, {"role": "assistant", "content": ""}] if add_generation_prompt else messages
        prompt = _rendered(template, messages=begun, eos_token=eos, bos_token=bos, **names)
        return ChatFormatterResponse(prompt=prompt, stop=[eos, bos], added_special=True)

    return formatter


def _rendered(template: str, **names: Any) -> str:
    """A template's text of these names."""
    sandbox = importlib.import_module("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, indent=None, **more: json.dumps(value, ensure_ascii=False, indent=indent, **more)

    def raise_exception(message: str) -> NoReturn:
        raise ValueError(message)

    helpers = {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    return str(environment.from_string(template).render(**helpers, **names))


class Llava15ChatHandler:
    """A handler for pictures, which the engine does not read. Libraries import the name."""

    def __init__(self, *_: Any, **others: Any) -> None:
        raise NotImplementedError("Llava15ChatHandler is not available: the engine reads no pictures, and renders messages itself")


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"llama_chat_format has no {name!r}: the engine renders messages itself; use Llama(chat_format=...), or the engine's chat_template")
