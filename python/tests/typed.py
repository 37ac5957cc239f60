"""A program that uses the package's types: mypy --strict accepts it (it is never run)."""
import asyncio
from pathlib import Path
from dataclasses import dataclass
from enum import Enum
from typing import Dict, List, Literal

from foredraft import (
    Answer, AssistantMessage, Completion, Engine, ForedraftError, Question, SlotStatus, Status, Stream, Update, Usage,
)
from foredraft_llama_cpp import Llama


def chat(model: Path) -> str:
    with Engine(model, model_draft=None, n_ctx=4096, progress=print) as engine:
        stream: Stream = engine.stream(messages=[{"role": "user", "content": "Hello"}], n_predict=10)
        for update in stream:
            text: str = update.text
            print(text)
        completion: Completion = stream.completion
        tokens: List[int] = engine.tokenize(completion.text)
        return engine.detokenize(tokens)


def typed_answers(engine: Engine, update: Update) -> str:
    status: Status = engine.status()
    free: int = sum(device["memory_free"] for device in status["devices"])
    slot: SlotStatus = status["slots"][0]
    answer = engine.chat([{"role": "user", "content": "Hello"}])
    message: AssistantMessage = answer.message
    for call in message.get("tool_calls") or ():
        print(call["function"]["name"], free, slot["n_past"])
    usage: Usage = answer.usage
    speed: float = answer.timings["predicted_per_second"] + answer.speculation.get("accept_rate", 0.0)
    engine.chat([{"role": "user", "content": "Hello"}, message])
    text: str = answer["content"]
    text = message["content"]
    call_id: str = update["delta"].get("content", "") + text
    number: int = answer["tokens_predicted"] + update["index"] + len(answer["warnings"]) + answer["usage"]["total_tokens"]
    copy: Dict[str, object] = answer.copy()
    print(copy)
    answer["contnet"]  # type: ignore[call-overload]
    answer.get("finish_resaon")  # type: ignore[arg-type]
    answer["message"]["contnet"]  # type: ignore[typeddict-item]
    update["contnet"]  # type: ignore[call-overload]
    update["delta"]["contnet"]  # type: ignore[typeddict-item]
    status["stat"]  # type: ignore[typeddict-item]
    usage["prompt_token"]  # type: ignore[typeddict-item]
    answer.timings["prompt_mss"]  # type: ignore[typeddict-item]
    if answer.stop_type == "stopped":  # type: ignore[comparison-overlap]
        return "never"
    return f"{call_id} {number} {speed} {engine.model_info()['n_vocab']} {status['state'].upper()}"


def prepared(engine: Engine) -> int:
    return engine.prepare(messages=[{"role": "user", "content": "a"}], conversation="b", begin=True)


class Team(Enum):
    BILLING = "billing"
    SHIPPING = "shipping"


def decided(engine: Engine) -> Team:
    team: Answer[Team] = engine.decide({"mail": "Where is my parcel?"}, Question("Which team?", Team, {Team.BILLING: "money"}))
    level: int = engine.decide("Help!", Question("How urgent?", range(1, 6))).value
    angry: bool = engine.decide(None, Question("The customer is angry.", bool), messages=[{"role": "user", "content": "Help!"}]).value
    words = engine.decide("Help!", {"mood": Question("Which mood?", Literal["calm", "sad"])}, temperatures={"choice": 1.5})
    raw = engine.decide("Help!", {"mood": {"type": "noul", "instructions": "The customer is sad."}})
    engine.decide("Help!", Question("Which team?", Team)).value == "billing"  # type: ignore[comparison-overlap]
    print(level, angry, words["mood"].value, raw["mood"]["noul"], team.probabilities[Team.SHIPPING])
    return team.value


def from_a_file(archive: Path) -> Engine:
    with open(archive, "rb") as file:
        return Engine({"fd": file.fileno(), "offset": 4096}, model_draft="draft.gguf")


async def chat_async(model: Path) -> Dict[str, object]:
    async with await Engine.create(model) as engine:
        update: Update
        async for update in engine.stream("Hello", seed=1):
            print(update)
        return {**(await engine.chat_async([{"role": "user", "content": "Hello"}])).message}


@dataclass
class Point:
    """Shaped like a class of pydantic's."""

    x: int

    @classmethod
    def model_json_schema(cls) -> Dict[str, object]:
        return {"type": "object"}

    @classmethod
    def model_validate_json(cls, json_data: str) -> "Point":
        return cls(int(json_data))


def misspelt(engine: Engine) -> int:
    """mypy reports each error that is expected here: `--warn-unused-ignores`, a part of `--strict`, fails where it reports none."""
    engine.complete("Once", n_predcit=40)  # type: ignore[call-arg]
    engine.stream("Once", temperature="hot")  # type: ignore[arg-type]
    engine.chat([{"role": "user", "content": "Hello"}], top_kk=1)  # type: ignore[call-arg]
    engine.complete("Once", speculative={"n_mx": 3})  # type: ignore[arg-type]
    engine.complete("Once", speculative={"verify": "hope"})  # type: ignore[arg-type]
    Engine("model.gguf", n_ctxx=512)  # type: ignore[call-arg]
    Engine("model.gguf", flash_attn="maybe")  # type: ignore[arg-type]
    engine.apply_template([], add_generation_promt=True)  # type: ignore[call-arg]
    answer = engine.complete("A point: ", schema=Point, n_predict=40, speculative={"n_max": 4, "verify": "match"}, stop=["\n"])
    answer.parse(int)  # type: ignore[type-var]
    answer.parse(Point).z  # type: ignore[attr-defined]
    return answer.parse(Point).x


try:
    asyncio.run(chat_async(Path("model.gguf")))
    Llama("model.gguf").create_chat_completion([{"role": "user", "content": chat(Path("model.gguf"))}])
except ForedraftError as error:
    code: str = error.code
