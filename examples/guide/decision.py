from typing import Literal

from foredraft import Engine, Question

engine = Engine("models/stories-target.gguf", model_draft="models/stories-draft.gguf")
# ANCHOR: decision
story = "Once upon a time there was a fox. The fox was looking for a"
answer = engine.complete(story, choices=[" kite", " drum", " whistle"], temperature=1)
for choice in answer["choices"]:
    print(f"{choice['text']}: {choice['prob']:.0%}")
print("It is" + answer["choices"][answer["choice"]]["text"])
# ANCHOR_END: decision
# ANCHOR: questions
state = {"message": "Where is my parcel? I want my money back!", "orders": 3}
answers = engine.decide(state, {
    "team": Question("Which team should answer this message?", Literal["billing", "shipping"]),
    "urgency": Question("How urgent is it?", range(1, 6)),
    "refund": Question("The customer asks for a refund.", bool),
})
for name, answer in answers.items():
    print(name, answer.value, answer.probabilities)
# ANCHOR_END: questions
engine.close()
