import time

from foredraft import Engine

with Engine("models/stories-target.gguf") as engine:
    # ANCHOR: prepare
    system = {"role": "system", "content": "You are the shopkeeper of a small town. " * 5}
    engine.prepare(messages=[system], add_generation_prompt=False, conversation="shop")  # before the player has spoken
    time.sleep(1)  # the player types
    answer = engine.chat([system, {"role": "user", "content": "What do you sell?"}], n_predict=20, conversation="shop")
    print(f"{answer.timings['cache_n']} tokens were prepared, {answer.timings['prompt_n']} had to be decoded")
    # ANCHOR_END: prepare
