from foredraft import Engine

with Engine("models/stories-target.gguf") as engine:
    # ANCHOR: prepare
    system = {"role": "system", "content": "You are the shopkeeper of a small town. " * 5}
    engine.chat([system], add_generation_prompt=False, n_predict=0)  # before the player has spoken
    answer = engine.chat([system, {"role": "user", "content": "What do you sell?"}], n_predict=20)
    print(f"{answer.timings['cache_n']} tokens were prepared, {answer.timings['prompt_n']} had to be decoded")
    # ANCHOR_END: prepare
