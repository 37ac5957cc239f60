"""Typed questions for `Engine.decide`."""
from __future__ import annotations

from enum import Enum
from typing import Any, Dict, Generic, List, Mapping, TypeVar, Union, cast, get_args, overload

from ._errors import InvalidRequestError

T = TypeVar("T")

#: A question as the library takes it: `type`, `instructions`, `criteria`.
GivenQuestion = Mapping[str, Any]


class Question(Generic[T]):
    """A question, and the type of its answer: `bool`, a class of `Enum`, `Literal["a", "b"]`, or a `range` of whole numbers.

    `descriptions` say what the answers mean to the model: by `True` and `False`, by a member or text, or by number.
    """

    @overload
    def __init__(self: Question[int], instructions: Any, answer: range, descriptions: Mapping[int, Any] | None = None) -> None: ...
    @overload
    def __init__(self, instructions: Any, answer: type[T], descriptions: Mapping[T, Any] | None = None) -> None: ...
    @overload
    def __init__(self: Question[Any], instructions: Any, answer: Any, descriptions: Mapping[Any, Any] | None = None) -> None: ...
    def __init__(self, instructions: Any, answer: Any, descriptions: Mapping[Any, Any] | None = None) -> None:
        self.instructions = instructions
        self._descriptions = dict(descriptions or {})
        self._kind = "noul" if answer is bool else "score" if isinstance(answer, range) else "choice"
        self._values: list[Any]
        if answer is bool:
            self._values = [True, False]
        elif isinstance(answer, range):
            # The library refuses more than 10 levels.
            self._values = list(answer[:11])
        elif isinstance(answer, type) and issubclass(answer, Enum):
            self._values = list(answer)
        else:
            self._values = list(get_args(answer))
        if not self._values:
            raise InvalidRequestError(f"answer: expected bool, an Enum, a Literal or a range that is not empty, got {answer!r}")
        unknown = [value for value in self._descriptions if value not in self._values]
        if unknown:
            raise InvalidRequestError(f"descriptions: {unknown[0]!r} is no answer")

    def _given(self) -> dict[str, Any]:
        """The question as the library takes it."""
        described = [(value, self._descriptions.get(value)) for value in self._values]
        criteria: Any
        if self._kind == "score":
            criteria = [str(value) if text is None else text for value, text in described]
        elif self._kind == "noul":
            criteria = {str(value).lower(): text for value, text in described}
        else:
            criteria = {_name(value): text for value, text in described}
            if len(criteria) < len(described):
                raise InvalidRequestError("answer: expected answers with different texts")
        return {"type": self._kind, "instructions": self.instructions, "criteria": criteria}

    def _read(self, answer: Mapping[str, Any]) -> Answer[T]:
        """The library's answer, by the values of this question."""
        if self._kind == "noul":
            shares = [answer["noul"], 1 - answer["noul"]]
        else:
            shares = list(answer["probabilities"].values())
        probabilities = dict(zip(self._values, map(float, shares)))
        best = max(probabilities, key=lambda value: probabilities[value])
        expected = sum(value * share for value, share in probabilities.items()) if self._kind == "score" else None
        confidence = answer.get("confidence", abs(2 * shares[0] - 1))
        return Answer(cast(T, best), cast("Dict[T, float]", probabilities), float(confidence), expected)


class Answer(Generic[T]):
    """An answer: the most probable value, and how probable each is. `bool(answer)` is that of the value."""

    def __init__(self, value: T, probabilities: dict[T, float], confidence: float, expected: float | None) -> None:
        self.value = value
        self.probabilities = probabilities
        #: 0: as good as a guess; 1: certain.
        self.confidence = confidence
        #: Of a range: its mean, weighted by the probabilities.
        self.expected = expected

    @property
    def probability(self) -> float:
        """That of the value; of `True` for a question with `bool`."""
        shares = cast("Dict[Any, float]", self.probabilities)
        return shares[True] if isinstance(self.value, bool) else shares[self.value]

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return f"Answer({self.value!r}, probability={self.probability:.3f}, confidence={self.confidence:.3f})"


Questions = Union[Question[T], Mapping[str, Union[Question[T], GivenQuestion]]]


def given(questions: Questions[Any]) -> dict[str, Any]:
    """The questions as the library takes them. A single one has the id `answer`."""
    if isinstance(questions, Question):
        return {"answer": questions._given()}
    return {name: asked._given() if isinstance(asked, Question) else dict(asked) for name, asked in questions.items()}


def read(questions: Questions[Any], answers: Mapping[str, Any]) -> Any:
    """The answers: typed where the questions are."""
    if isinstance(questions, Question):
        return questions._read(answers["answer"])
    return {name: asked._read(answers[name]) if isinstance(asked, Question) else answers[name] for name, asked in questions.items()}


def _name(value: Any) -> str:
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name
    return str(value)
