import json

from foredraft import Engine

# ANCHOR: tools
TOOLS = {
    "weather": lambda city: f"12 degrees and rain in {city}",
    "time": lambda city: f"ten o'clock in {city}",
}
CALL = {
    "type": "object",
    "properties": {
        "name": {"enum": sorted(TOOLS)},
        "arguments": {
            "type": "object",
            "properties": {"city": {"enum": ["Lima", "Oslo"]}},
            "required": ["city"],
        },
    },
    "required": ["name", "arguments"],
}


def answer_with_tools(engine: Engine, question: str) -> str:
    """Lets the model choose a tool, calls it, and lets the model answer with the result."""
    messages = [
        {"role": "system", "content": f"Answer with a call of a tool, as JSON of this schema: {json.dumps(CALL)}"},
        {"role": "user", "content": question},
    ]
    choice = engine.chat(messages, schema=CALL, n_predict=100, temperature=0)
    call = choice.json()  # valid, because the schema lets no other token through
    result = TOOLS[call["name"]](**call["arguments"])
    print(f"called {call['name']}: {result}")
    messages = [{"role": "user", "content": f"{question} You know: {result}. Answer in one sentence."}]
    return engine.chat(messages, n_predict=60).text
# ANCHOR_END: tools


if __name__ == "__main__":
    with Engine("models/stories-target.gguf", model_draft="models/stories-draft.gguf", n_ctx=2048) as engine:
        print(answer_with_tools(engine, "How is the weather in Oslo?"))
