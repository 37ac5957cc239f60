# ANCHOR: hello
from foredraft import Engine

with Engine("models/stories-target.gguf", model_draft="models/stories-draft.gguf") as engine:
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    for update in engine.stream(messages=messages, n_predict=60, seed=7):
        print(update, end="", flush=True)
# ANCHOR_END: hello
