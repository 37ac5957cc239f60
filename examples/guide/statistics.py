from foredraft import Engine

engine = Engine("models/stories-target.gguf", model_draft="models/stories-draft.gguf")
# ANCHOR: statistics
answer = engine.complete("Once upon a time", n_predict=100, temperature=0, speculative={"type": ["draft", "suffix"]})
figures = answer["speculative"]
print(f"{answer.tokens_per_second:.1f} tokens/s, {figures['tokens_per_step']:.2f} tokens a step")
print("accepted by position:", [round(rate, 2) for rate in figures["accepted_per_position"][:4]])
for drafter, of_it in figures["by_type"].items():
    print(f"{drafter}: {of_it['n_accepted']} of {of_it['n_drafted']} accepted")
print("switched off:", figures.get("disabled"))
# ANCHOR_END: statistics

# ANCHOR: prediction
code = "def add(a, b):\n    return a + b\n" * 4
edited = engine.complete(f"Rename add to plus:\n{code}", n_predict=60,
                         prediction={"type": "content", "content": code.replace("add", "plus")})
# ANCHOR_END: prediction
# ANCHOR: compare
checked = engine.complete("Once upon a time", n_predict=40, seed=7, speculative={"compare": True})
print("first difference:", checked["speculative"]["first_difference"])
# ANCHOR_END: compare
engine.close()
