"""A program that uses the package's types: mypy --strict accepts it (it is never run)."""
import asyncio
from pathlib import Path
from typing import Dict, List

from foredraft import Completion, Engine, ForedraftError, Llama, Stream, Update


def chat(model: Path) -> str:
    with Engine(model, model_draft=None, n_ctx=4096, progress=print) as engine:
        stream: Stream = engine.stream(messages=[{"role": "user", "content": "Hello"}], n_predict=10)
        for update in stream:
            text: str = update.text
            print(text)
        completion: Completion = stream.completion
        tokens: List[int] = engine.tokenize(completion.text)
        return engine.detokenize(tokens)


def from_a_file(archive: Path) -> Engine:
    with open(archive, "rb") as file:
        return Engine({"fd": file.fileno(), "offset": 4096}, model_draft="draft.gguf")


async def chat_async(model: Path) -> Dict[str, object]:
    async with await Engine.create(model) as engine:
        update: Update
        async for update in engine.stream("Hello", seed=1):
            print(update)
        return (await engine.chat_async([{"role": "user", "content": "Hello"}])).message


try:
    asyncio.run(chat_async(Path("model.gguf")))
    Llama("model.gguf").create_chat_completion([{"role": "user", "content": chat(Path("model.gguf"))}])
except ForedraftError as error:
    code: str = error.code
