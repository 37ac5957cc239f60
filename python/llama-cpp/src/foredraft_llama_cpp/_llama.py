"""The interface of llama-cpp-python: `from foredraft_llama_cpp import Llama` in place of `from llama_cpp import Llama`.

Arguments that mean nothing here are ignored with a warning in the log; those that would change what the program does are
refused. Speculation is on, as `draft_model` (a path, or whatever else llama-cpp-python takes) or the text's own repetitions
allow; the completions are the same.
"""
from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, Sequence

from foredraft import Completion, Stream

from ._llama_grammar import LlamaGrammar, grammar_of
from ._llama_request import Stop, n_choices_of, sampling_of, tokens_of
from ._llama_steps import LlamaSteps
from ._openai_shapes import Chunk, Response, chat_logprobs_of, head_of, logprobs_of, usage_of


class Llama(LlamaSteps):
    """A model, as llama-cpp-python has it. `engine` is the engine behind it."""

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
            **sampling_of(
                max_tokens, temperature, top_p, min_p, typical_p, stop, frequency_penalty, presence_penalty, repeat_penalty, top_k,
                seed, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta, logit_bias,
            ),
            **grammar_of(grammar),
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            **request,
        }
        if suffix is not None:
            whole.update(input_prefix=prompt, input_suffix=suffix)
            whole["prompt"] = ""
        else:
            whole["prompt"] = prompt if isinstance(prompt, str) else tokens_of(prompt)
        if logprobs is not None:
            whole["n_probs"] = max(logprobs, 1)
        given = prompt if isinstance(prompt, str) else self.engine.detokenize(prompt) if echo or logprobs is not None else ""
        shown = given if echo else ""
        head = head_of("cmpl", "text_completion", model or self.model_path)
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
                "logprobs": logprobs_of(entries, 0 if scored is not None else len(given)) if logprobs is not None else None,
                "finish_reason": answer.finish_reason,
            }

        return {**head, "choices": [choice(index, answer) for index, answer in enumerate(answers)], "usage": usage_of(answers)}

    def _prompt_entries(self, answer: Completion) -> list[Mapping[str, Any]]:
        """The prompt's tokens with their probabilities, without a BOS that begins it."""
        entries = list(answer.get("prompt_logprobs") or ())
        return entries[1:] if entries and entries[0]["id"] == self.token_bos() else entries

    def _prompt_logprobs(self, answer: Completion) -> Dict[str, Any]:
        return logprobs_of(self._prompt_entries(answer), 0)

    __call__ = create_completion

    def _completion_chunks(
        self, whole: Dict[str, Any], head: Response, first: str, offset: int | None, of_prompt: Dict[str, Any] | None,
    ) -> Iterator[Chunk]:
        """The chunks of completions whose text begins at that offset; `None`: without log-probabilities."""
        def chunk(text: str, index: int, logprobs: Any = None, reason: str | None = None) -> Chunk:
            choice = {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
            return {**head, "choices": [choice]}

        offsets = [offset or 0] * n_choices_of(whole)
        with self.engine.stream(**whole) as running:
            if first:
                yield from (chunk(first, index, of_prompt) for index in range(len(offsets)))
            for update in running:
                if update.text:
                    entries = update.get("completion_probabilities") or ()
                    logprobs = logprobs_of(entries, offsets[update.index]) if offset is not None else None
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
            **sampling_of(
                max_tokens, temperature, top_p, min_p, typical_p, stop, frequency_penalty, presence_penalty, repeat_penalty, top_k,
                seed, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta, logit_bias,
            ),
            **grammar_of(grammar),
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
            return self._chat_chunks(running, n_choices_of(whole), head_of("chatcmpl", "chat.completion.chunk", name), bool(logprobs))
        answers = _answers(running)
        return {
            **head_of("chatcmpl", "chat.completion", name),
            "choices": [{
                "index": index,
                "message": answer.message,
                "logprobs": {"content": chat_logprobs_of(answer)} if logprobs else None,
                "finish_reason": answer.finish_reason,
            } for index, answer in enumerate(answers)],
            "usage": {**answers[0].usage, **usage_of(answers)},
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
                    yield chunk(delta, update.index, {"content": chat_logprobs_of(update)} if with_logprobs else None)
            yield from (chunk({}, index, None, answer.finish_reason) for index, answer in enumerate(running.completions))


def _answers(running: Stream) -> list[Completion]:
    """Waits for the answers of a request."""
    running.wait()
    return running.completions
