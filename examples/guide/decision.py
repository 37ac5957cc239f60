from foredraft import Engine

engine = Engine("models/stories-target.gguf", model_draft="models/stories-draft.gguf")
# ANCHOR: decision
story = "Once upon a time there was a fox. The fox was looking for a"
answer = engine.complete(story, choices=[" kite", " drum", " whistle"], temperature=1)
for choice in answer["choices"]:
    print(f"{choice['text']}: {choice['prob']:.0%}")
print("It is" + answer["choices"][answer["choice"]]["text"])
# ANCHOR_END: decision
engine.close()
