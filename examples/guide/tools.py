import json
import sys

from foredraft import Engine

# ANCHOR: tools
CITY = {"type": "object", "properties": {"city": {"enum": ["Lima", "Oslo"]}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather in a city", "parameters": CITY}},
    {"type": "function", "function": {"name": "time", "description": "The time in a city", "parameters": CITY}},
]
FUNCTIONS = {
    "weather": lambda city: f"12 degrees and rain in {city}",
    "time": lambda city: f"ten o'clock in {city}",
}


def answer_with_tools(engine: Engine, question: str) -> str:
    """Lets the model call both tools, one after the other, and then answer."""
    messages = [{"role": "user", "content": question}]
    for name in FUNCTIONS:
        choice = {"type": "function", "function": {"name": name}}  # a large model chooses by itself: "auto"
        answer = engine.chat(messages, tools=TOOLS, tool_choice=choice, n_predict=100)
        messages.append(answer.message)
        for call in answer.message.get("tool_calls", []):
            function = call["function"]
            result = FUNCTIONS[function["name"]](**json.loads(function["arguments"]))
            print(f"called {function['name']}: {result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "name": function["name"], "content": result})
    return engine.chat(messages, tools=TOOLS, tool_choice="none", n_predict=60).message["content"]
# ANCHOR_END: tools


if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else "models/stories-target.gguf"
    with Engine(model, n_ctx=2048) as engine:
        print(answer_with_tools(engine, "How is the weather in Oslo, and what time is it there?"))
