"""The basic flows of Python clients over the package, with the shipped models: flows.py CLIENT prints a line of JSON.

The line has the client, its version, and for each flow "yes", or why not. scripts/clients.sh runs it for every client.
"""
import importlib.metadata
import json
import os
import re
import subprocess
import sys

MODELS = os.environ["FOREDRAFT_MODELS"]
TARGET = os.path.join(MODELS, "stories-target.gguf")
QUESTION = "Tell me a story about a fox."
SCHEMA = {
    "type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": SCHEMA}}
CHOSEN = {"type": "function", "function": {"name": "weather"}}
FLOWS = ("completion", "chat", "stream", "tool call", "schema", "embeddings")


def days_of(text):
    """Whether that is JSON of the schema."""
    days = json.loads(text)["days"]
    assert isinstance(days, int) and 1 <= days <= 9
    return True


def llama(**more):
    from foredraft_llama_cpp import Llama

    return Llama(TARGET, n_ctx=1024, n_threads=1, verbose=False, log_level="none", **more)


def langchain():
    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_community.embeddings import LlamaCppEmbeddings
    from langchain_community.llms import LlamaCpp
    from pydantic import BaseModel, Field

    class Weather(BaseModel):
        """The weather."""

        days: int = Field(ge=1, le=9)

    common = {"model_path": TARGET, "n_ctx": 1024, "n_threads": 1, "max_tokens": 60, "verbose": False}
    chat = ChatLlamaCpp(**common)
    forced = chat.bind_tools([WEATHER], tool_choice=CHOSEN)
    return {
        "completion": lambda: LlamaCpp(**common).invoke("Once upon a time"),
        "chat": lambda: chat.invoke(QUESTION).content,
        "stream": lambda: len([part for part in chat.stream(QUESTION) if part.content]) > 3,
        "tool call": lambda: 1 <= forced.invoke(QUESTION).tool_calls[0]["args"]["days"] <= 9,
        "schema": lambda: 1 <= chat.with_structured_output(Weather).invoke(QUESTION).days <= 9,
        "embeddings": lambda: len(LlamaCppEmbeddings(model_path=TARGET, verbose=False).embed_documents(["a fox", "a crow"])) == 2,
    }


def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.core.program import LLMTextCompletionProgram
    from llama_index.llms.llama_cpp import LlamaCPP
    from pydantic import BaseModel

    class Weather(BaseModel):
        """The weather."""

        days: int

    model = LlamaCPP(model_path=TARGET, max_new_tokens=60, context_window=1024, model_kwargs={"n_threads": 1}, verbose=False)

    def embed():
        import importlib.util

        # LlamaIndex has none for llama-cpp-python.
        spec = importlib.util.spec_from_file_location("adapter", os.environ["FOREDRAFT_EXAMPLES"] + "/adapters/llama_index.py")
        adapter = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(adapter)
        return len(adapter.ForedraftEmbedding(llama(embedding=True).engine).get_text_embedding_batch(["a fox", "a crow"])) == 2

    def program():
        model.generate_kwargs["grammar"] = grammar()
        return 1 <= LLMTextCompletionProgram.from_defaults(output_cls=Weather, prompt_template_str=QUESTION, llm=model)().days <= 9

    def grammar():
        from llama_cpp import LlamaGrammar

        return LlamaGrammar.from_json_schema(json.dumps(SCHEMA))

    return {
        "completion": lambda: model.complete("Once upon a time").text,
        "chat": lambda: model.chat([ChatMessage(role="user", content=QUESTION)]).message.content,
        "stream": lambda: len(list(model.stream_complete("Once upon a time"))) > 3,
        "tool call": "its class LlamaCPP has none",
        "schema": program,
        "embeddings": embed,
    }


def haystack():
    from haystack.dataclasses import ChatMessage
    from haystack_integrations.components.generators.llama_cpp import LlamaCppChatGenerator

    settings = {"n_threads": 1, "verbose": False}
    chat = LlamaCppChatGenerator(model=TARGET, n_ctx=1024, model_kwargs=settings, generation_kwargs={"max_tokens": 60})
    chat.warm_up()
    question = [ChatMessage.from_user(QUESTION)]

    def streamed():
        chunks = []
        chat.run(question, streaming_callback=lambda chunk: chunks.append(chunk.content))
        return len(chunks) > 3

    def called():
        from haystack.tools import Tool

        tool = Tool(name="weather", description="The weather", parameters=SCHEMA, function=lambda days: "clear")
        reply = chat.run(question, tools=[tool], generation_kwargs={"tool_choice": CHOSEN})["replies"][0]
        return 1 <= reply.tool_calls[0].arguments["days"] <= 9

    def shaped():
        form = {"type": "json_object", "schema": SCHEMA}
        return days_of(chat.run(question, generation_kwargs={"response_format": form, "max_tokens": 60})["replies"][0].text)

    return {
        "completion": "it has chats only",
        "chat": lambda: chat.run(question)["replies"][0].text,
        "stream": streamed,
        "tool call": called,
        "schema": shaped,
        "embeddings": "it has none for llama-cpp-python",
    }


def instructor():
    import instructor
    from pydantic import BaseModel, Field

    class Weather(BaseModel):
        """The weather."""

        days: int = Field(ge=1, le=9)

    create = llama().create_chat_completion_openai_v1
    question = [{"role": "user", "content": QUESTION}]

    def asked(mode):
        return 1 <= instructor.patch(create=create, mode=mode)(messages=question, response_model=Weather, max_tokens=100).days <= 9

    def partial():
        parts = instructor.patch(create=create, mode=instructor.Mode.JSON_SCHEMA)
        return list(parts(messages=question, response_model=instructor.Partial[Weather], stream=True, max_tokens=100))[-1].days

    return {
        "completion": "it has chats only",
        "chat": lambda: instructor.patch(create=create)(messages=question, response_model=None, max_tokens=20).choices[0].message.content,
        "stream": partial,
        "tool call": lambda: asked(instructor.Mode.TOOLS),
        "schema": lambda: asked(instructor.Mode.JSON_SCHEMA),
        "embeddings": "it has none",
    }


def txtai():
    from txtai import Embeddings, LLM

    model = LLM(TARGET, method="llama.cpp", n_ctx=1024, n_threads=1, verbose=False)
    question = [{"role": "user", "content": QUESTION}]

    def embed():
        vectors = Embeddings(path=TARGET, method="llama.cpp", vectors={"n_ctx": 512, "verbose": False})
        vectors.index(["a fox", "a crow"])
        return len(vectors.search("fox", 1)) == 1

    return {
        "completion": lambda: model("Once upon a time", maxlength=60),
        "chat": lambda: model(question, maxlength=60),
        "stream": lambda: len(list(model(question, stream=True, maxlength=60))) > 3,
        "tool call": "it has none",
        "schema": "it has none",
        "embeddings": embed,
    }


def outlines():
    from typing import Literal

    import outlines
    from outlines.inputs import Chat
    from pydantic import BaseModel

    class Weather(BaseModel):
        """The weather."""

        days: Literal[1, 2, 3]  # it ignores bounds of numbers

    model = outlines.from_llamacpp(llama())
    return {
        "completion": lambda: model("Once upon a time", max_tokens=20),
        "chat": lambda: model(Chat([{"role": "user", "content": QUESTION}]), max_tokens=20),
        "stream": lambda: len(list(model.stream("Once upon a time", max_tokens=20))) > 3,
        "tool call": "it has none",
        "schema": lambda: days_of(model(QUESTION, Weather, max_tokens=100)),
        "embeddings": "it has none",
    }


def guidance():
    from guidance import gen, models

    model = models.LlamaCpp(TARGET, echo=False)
    return {"completion": lambda: str(model + "Once upon a time" + gen(max_tokens=10)), **dict.fromkeys(FLOWS[1:], "no")}


def lm_format_enforcer():
    from llama_cpp import LogitsProcessorList
    from lmformatenforcer import JsonSchemaParser
    from lmformatenforcer.integrations.llamacpp import build_llamacpp_logits_processor, build_token_enforcer_tokenizer_data

    model = llama()
    data = build_token_enforcer_tokenizer_data(model)
    # It ignores bounds of numbers, and allows control tokens anywhere, as empty texts: those are banned here.
    others = (token for token in range(model.n_vocab()) if token != model.token_eos())
    banned = {token: -100 for token in others if not model.detokenize([token])}
    request = {"max_tokens": 100, "temperature": 0, "logit_bias": banned}

    def shaped(call, given, **more):
        schema = {**SCHEMA, "properties": {"days": {"enum": [1, 2, 3]}}}
        processors = LogitsProcessorList([build_llamacpp_logits_processor(data, JsonSchemaParser(schema))])
        return call(given, logits_processor=processors, **request, **more)

    question = [{"role": "user", "content": QUESTION}]
    return {
        "completion": lambda: days_of(shaped(model, "The forecast: ")["choices"][0]["text"]),
        "chat": lambda: days_of(shaped(model.create_chat_completion, question)["choices"][0]["message"]["content"]),
        "stream": lambda: days_of("".join(part["choices"][0]["text"] for part in shaped(model, "The forecast: ", stream=True))),
        "tool call": "it has none",
        "schema": lambda: days_of(shaped(model, "")["choices"][0]["text"]),
        "embeddings": "it has none",
    }


def openai():
    """Over HTTP, from the example."""
    import openai

    server = subprocess.Popen(
        [sys.executable, os.environ["FOREDRAFT_EXAMPLES"] + "/openai_http.py", TARGET, "--port", "0", "--threads", "1", "--embeddings"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    address = re.search(r"http\S+", server.stdout.readline()).group()
    client = openai.OpenAI(base_url=address, api_key="none")
    request = {"model": "any", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 100}
    create = client.chat.completions.create
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
    flows = {
        "completion": lambda: client.completions.create(model="any", prompt="Once upon a time").choices[0].text,
        "chat": lambda: create(**request).choices[0].message.content,
        "stream": lambda: len(list(create(stream=True, **request))) > 3,
        "tool call": lambda: days_of(
            create(tools=[WEATHER], tool_choice=CHOSEN, **request).choices[0].message.tool_calls[0].function.arguments),
        "schema": lambda: days_of(create(response_format=form, **request).choices[0].message.content),
        "embeddings": lambda: len(client.embeddings.create(model="any", input=["a fox", "a crow"]).data) == 2,
    }
    return flows, server.kill


#: Each client, the packages whose versions count, and its flows.
CLIENTS = {
    "langchain": (["langchain-community"], langchain), "llama-index": (["llama-index-core", "llama-index-llms-llama-cpp"], llama_index),
    "haystack": (["haystack-ai", "llama-cpp-haystack"], haystack), "instructor": (["instructor"], instructor), "txtai": (["txtai"], txtai),
    "outlines": (["outlines"], outlines), "guidance": (["guidance"], guidance),
    "lm-format-enforcer": (["lm-format-enforcer"], lm_format_enforcer),
    "openai": (["openai"], openai),
}


def short(error):
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def tried(flow):
    """How a flow ended."""
    if isinstance(flow, str):
        return flow
    try:
        result = flow()
        return "yes" if result else f"it gave {result!r}"
    except Exception as error:
        if os.environ.get("FOREDRAFT_TRACE"):
            raise
        return short(error)


def main(name):
    packages, client = CLIENTS[name]
    row = {"client": name, "version": "not installed"}
    try:
        row["version"] = ", ".join(importlib.metadata.version(package) for package in packages)
        import foredraft_llama_cpp

        foredraft_llama_cpp.install()
        flows = client()
    except Exception as error:
        if os.environ.get("FOREDRAFT_TRACE"):
            raise
        flows = {flow: "no" for flow in FLOWS} | {FLOWS[0]: short(error)}
    flows, end = flows if isinstance(flows, tuple) else (flows, lambda: None)
    try:
        row.update({flow: tried(flows[flow]) for flow in FLOWS})
    finally:
        end()
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
