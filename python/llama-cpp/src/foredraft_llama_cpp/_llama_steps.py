"""Token by token: `eval`, `sample`, `generate` and the states of the first slot, in which they work."""
from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path
from typing import Any, Generator, Mapping, NoReturn, Sequence, Union

from foredraft import Completion, ContextFullError

from ._llama_config import REASONS
from ._llama_grammar import LlamaGrammar, grammar_of
from ._llama_model import LlamaModel
from ._llama_request import sampling_of
from ._llama_state import LlamaCache, LlamaState, array_of, common_prefix


class LlamaSteps(LlamaModel):
    """The part of a `Llama` that works in the first slot."""

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
        raise NotImplementedError(f"scores is not available: {REASONS['scores']}")

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
        request = sampling_of(
            1, temp, top_p, min_p, typical_p, None, frequency_penalty, presence_penalty, repeat_penalty, top_k, seed, tfs_z, mirostat_mode,
            mirostat_tau, mirostat_eta, None,
        )
        read = self._tokens if idx is None else self._tokens[:idx + 1]
        request.update(grammar_of(grammar), logits_processor=logits_processor, penalize_nl=penalize_nl)
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
        request = sampling_of(
            None, temp, top_p, min_p, typical_p, None, frequency_penalty, presence_penalty, repeat_penalty, top_k, seed, tfs_z, mirostat_mode,
            mirostat_tau, mirostat_eta, None,
        )
        request.update(
            grammar_of(grammar), logits_processor=logits_processor, stopping_criteria=stopping_criteria, penalize_nl=penalize_nl, id_slot=0,
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
