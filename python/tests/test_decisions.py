"""Typed decisions."""
import enum
from typing import Literal

import pytest

import foredraft
from conftest import TARGET
from foredraft import Engine, Question

STATE = "Tom had a red kite. The wind took it away."


class Thing(enum.Enum):
    KITE = "kite"
    HAT = 2


QUESTIONS = {
    "thing": Question("What did Tom have?", Thing, {Thing.HAT: "on a head"}),
    "word": Question("Which word fits?", Literal["red", "blue"]),
    "sadness": Question("How sad is Tom?", range(1, 6)),
    "steps": Question("How far away is it?", range(0, 10, 5), {0: "near", 5: "far"}),
    "lost": Question("Tom lost something.", bool, {True: "it is gone"}),
    "given": {"type": "noul", "instructions": "Tom lost something.", "criteria": {"true": "it is gone"}},
}


@pytest.fixture(scope="module")
def engine():
    with Engine(TARGET, n_ctx=1024) as engine:
        yield engine


def test_answers_have_the_types_of_their_questions(engine):
    answers = engine.decide(STATE, QUESTIONS)
    assert list(answers) == list(QUESTIONS)
    for name, values in {"thing": list(Thing), "word": ["red", "blue"], "sadness": [1, 2, 3, 4, 5], "steps": [0, 5], "lost": [True, False]}.items():
        answer = answers[name]
        assert list(answer.probabilities) == values
        assert sum(answer.probabilities.values()) == pytest.approx(1)
        assert answer.probabilities[answer.value] == max(answer.probabilities.values())
        assert 0 <= answer.confidence <= 1
    assert answers["steps"].expected == pytest.approx(5 * answers["steps"].probabilities[5])
    assert answers["thing"].expected is None
    assert answers["lost"].probability == answers["lost"].probabilities[True] == answers["given"]["noul"]
    assert bool(answers["lost"]) == (answers["lost"].probability > 0.5)


def test_a_question_alone_has_the_bits_that_it_has_beside_others(engine):
    together = engine.decide(STATE, QUESTIONS)
    for name in ("thing", "sadness", "lost"):
        alone = engine.decide(STATE, QUESTIONS[name], cache_prompt=False)
        assert alone.probabilities == together[name].probabilities
    of_messages = engine.decide(None, QUESTIONS, messages=[{"role": "user", "content": STATE}])
    assert of_messages["thing"].probabilities == together["thing"].probabilities


@pytest.mark.parametrize("answer", [range(5, 1), str, Literal, enum.Enum, 5])
def test_types_without_answers_are_refused(answer):
    with pytest.raises(foredraft.InvalidRequestError, match="answer: expected bool, an Enum, a Literal or a range"):
        Question("What?", answer)


def test_the_library_names_the_question_that_is_wrong(engine):
    with pytest.raises(foredraft.InvalidRequestError, match="questions.far.criteria: expected an array of 2 to 10 levels"):
        engine.decide(STATE, {"far": Question("How far?", range(11))})
    with pytest.raises(foredraft.InvalidRequestError, match="descriptions: 7 is no answer"):
        Question("How far?", range(5), {7: "far"})
    with pytest.raises(foredraft.TimedOutError):
        engine.decide(STATE * 40, {str(index): QUESTIONS["thing"] for index in range(200)}, timeout_ms=1)
