from foredraft import Engine

engine = Engine("models/stories-target.gguf", model_draft="models/stories-draft.gguf")
# ANCHOR: conversation
messages = []
for text in ["Tell me a story about a fox.", "Count from 3 to 9."]:
    messages.append({"role": "user", "content": text})
    answer = engine.chat(messages, n_predict=60, temperature=0)
    print(f"{answer.text}  [{answer.usage['completion_tokens']} tokens, {answer.stop_type}]")
    messages.append(answer.message)
# ANCHOR_END: conversation
engine.close()
