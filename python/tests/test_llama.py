"""The interface of llama-cpp-python."""
import inspect
import json

import pytest

import foredraft
import foredraft_llama_cpp
from conftest import DRAFT, TARGET
from foredraft_llama_cpp import (
    LLAMA_POOLING_TYPE_CLS, LLAMA_POOLING_TYPE_NONE, LLAMA_POOLING_TYPE_RANK, Llama, LlamaDiskCache, LlamaGrammar, LlamaRAMCache, LlamaState,
)

MESSAGES = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "One about a crow."}]


@pytest.fixture(scope="module")
def llm():
    with Llama(str(TARGET), n_ctx=512, n_threads=2, draft_model=str(DRAFT), verbose=False, warmup=False) as llm:
        yield llm


def test_completion(llm):
    answer = llm("Once upon a time", max_tokens=12, temperature=0, stop=["\\n\\n"], echo=True)
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    choice = answer["choices"][0]
    assert choice["text"].startswith("Once upon a time") and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["total_tokens"] == 12 + answer["usage"]["prompt_tokens"]


def test_the_chunks_of_a_completion_are_its_text(llm):
    whole = llm.create_completion("Once", max_tokens=12, temperature=0)["choices"][0]["text"]
    chunks = list(llm.create_completion("Once", max_tokens=12, temperature=0, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_logprobs(llm):
    logprobs = llm("Once", max_tokens=4, temperature=0, logprobs=2)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 4
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])


def test_chat(llm):
    answer = llm.create_chat_completion(MESSAGES, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3)
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert len(choice["logprobs"]["content"]) == 12
    chunks = list(llm.create_chat_completion(MESSAGES, max_tokens=12, temperature=0, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_leaving_the_chunks_cancels(llm):
    for _ in llm.create_completion("Once", max_tokens=None, logit_bias={0: -100.0}, stream=True, ignore_eos=True):
        break
    assert llm("Once", max_tokens=1)["choices"][0]["finish_reason"] == "length"


def test_formats(llm):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    for asked in (
        {"response_format": {"type": "json_object", "schema": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        {"grammar": LlamaGrammar.from_json_schema(json.dumps(schema))},
    ):
        answer = llm.create_chat_completion(MESSAGES, max_tokens=200, seed=3, **asked)
        assert json.loads(answer["choices"][0]["message"]["content"])["n"] in range(10)
    with pytest.raises(ValueError, match="response_format: expected"):
        llm.create_chat_completion(MESSAGES, response_format={"type": "xml"})
    yes = llm("Yes or no?", max_tokens=9, grammar=LlamaGrammar.from_string('root ::= "yes" | "no"'))
    assert yes["choices"][0]["text"] in ("yes", "no") and yes["choices"][0]["finish_reason"] == "stop"


def test_tokens(llm):
    ids = llm.tokenize("Hello, Zoë".encode(), add_bos=False)
    assert llm.detokenize(ids) == "Hello, Zoë".encode()
    assert llm.n_ctx() == 512


def test_detokenize_gives_exact_bytes(llm):
    text = "🦀 crab, € and Zoë 🎈".encode()
    ids = llm.tokenize(text, add_bos=False)
    pieces = [llm.detokenize([token]) for token in ids]
    assert b"".join(pieces) == llm.detokenize(ids) == text
    # The tokens of an emoji are no characters by themselves.
    assert any(not is_utf8(piece) for piece in pieces)
    before: list = []
    for token, piece in zip(ids, pieces):
        assert llm.detokenize([token], prev_tokens=before) == piece
        before.append(token)
    assert llm.engine.detokenize(ids) == text.decode() and "\ufffd" in llm.engine.detokenize(ids[:1])
    assert llm.engine.detokenize_bytes(ids[:1]) == pieces[0]


def is_utf8(piece):
    try:
        return piece.decode() is not None
    except UnicodeDecodeError:
        return False


def test_several_completions_are_several_choices(llm):
    asked = dict(max_tokens=8, temperature=1.0, seed=5, n=2)
    answer = llm("Once upon a time", **asked)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1] and texts[0] != texts[1] and all(texts)
    assert answer["usage"]["completion_tokens"] == 16
    chunks = [chunk["choices"][0] for chunk in llm("Once upon a time", stream=True, **asked)]
    assert ["".join(chunk["text"] for chunk in chunks if chunk["index"] == index) for index in (0, 1)] == texts
    assert sorted(chunk["index"] for chunk in chunks if chunk["finish_reason"] == "length") == [0, 1]

    answer = llm.create_chat_completion(MESSAGES, **asked)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1] and texts[0] != texts[1]
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["usage"]["total_tokens"] == 16 + answer["usage"]["prompt_tokens"]
    chunks = [chunk["choices"][0] for chunk in llm.create_chat_completion(MESSAGES, stream=True, **asked)]
    for index, text in enumerate(texts):
        deltas = [chunk["delta"] for chunk in chunks if chunk["index"] == index]
        assert deltas[0] == {"role": "assistant"} and "".join(delta.get("content") or "" for delta in deltas) == text
    assert sorted(chunk["index"] for chunk in chunks if chunk["finish_reason"] == "length") == [0, 1]


def test_embeddings_truncate_where_that_is_asked_for():
    with Llama(str(TARGET), embedding=True, n_ctx=64, verbose=False, warmup=False) as llm:
        long = "word " * 500
        assert llm.embed(long) == llm.embed(long + "and more") != llm.embed("word")
        tokens = llm.tokenize(long.encode())[:64]
        assert llm.embed(long) == llm.engine.embed(tokens, embd_normalize=-1)
        assert llm.create_embedding(long)["usage"]["prompt_tokens"] == 64
        with pytest.raises(ValueError):
            llm.embed(long, truncate=False)


def test_failures_are_the_errors_that_llama_cpp_python_raises(llm, tmp_path):
    with pytest.raises(ValueError):
        Llama("/nowhere.gguf")
    (tmp_path / "wrong.gguf").write_bytes(b"not a model")
    with pytest.raises(ValueError):
        Llama(str(tmp_path / "wrong.gguf"))
    with pytest.raises(RuntimeError):
        Llama(str(TARGET), lora_path="/nowhere.gguf", warmup=False)
    with pytest.raises(RuntimeError, match="embedding=True"):
        llm.embed("Hello")
    assert issubclass(foredraft.ModelError, RuntimeError) and issubclass(foredraft.InternalError, RuntimeError)


def test_embeddings():
    with Llama(str(TARGET), embedding=True, verbose=False, warmup=False) as llm:
        one, two = (llm.embed(text) for text in ("Hello", "Good bye"))
        assert len(one) == len(two) and one != two
        both = llm.create_embedding(["Hello", "Good bye"])
        assert [data["index"] for data in both["data"]] == [0, 1]


def test_a_prompt_that_does_not_fit_is_a_value_error(llm):
    with pytest.raises(ValueError):
        llm("Once " * 2000, max_tokens=1)


@pytest.mark.parametrize("call, reason", [
    (lambda llm: Llama.from_pretrained("a/b", filename="x.gguf", local_dir="here"), "HF_HUB_CACHE"),
    (lambda llm: llm.scores, "keeps no logits"),
    (lambda llm: Llama(str(TARGET), chat_handler=print), "chat_format"),
    (lambda llm: Llama(str(TARGET), tokenizer=print), "the model's own"),
])
def test_a_refusal_says_its_reason(llm, call, reason):
    with pytest.raises(NotImplementedError, match=reason):
        call(llm)


def test_what_cannot_be_done_is_refused(llm):
    with pytest.raises(ValueError, match="split_mode"):
        Llama(str(TARGET), split_mode=9)


LOOK = {"name": "look", "description": "Looks", "parameters": {
    "type": "object", "properties": {"place": {"enum": ["river", "hill"]}}, "required": ["place"], "additionalProperties": False}}


@pytest.mark.parametrize("asked", [
    {"tools": [{"type": "function", "function": LOOK}], "tool_choice": "required"},
    {"tools": [{"type": "function", "function": LOOK}], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    {"functions": [LOOK], "function_call": {"name": "look"}},
])
def test_calls(llm, asked):
    answer = llm.create_chat_completion(MESSAGES, max_tokens=200, seed=3, parallel_tool_calls=False, **asked)
    choice = answer["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert call["type"] == "function" and call["id"] and call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"])["place"] in ("river", "hill")
    old = "functions" in asked
    assert choice["finish_reason"] == ("function_call" if old else "tool_calls")
    assert ("function_call" in choice["message"]) == old
    chunks = list(llm.create_chat_completion(MESSAGES, max_tokens=200, seed=3, parallel_tool_calls=False, stream=True, **asked))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert [piece["function"]["name"] for piece in pieces if piece.get("id")] == ["look"]
    assert "".join(piece["function"].get("arguments", "") for piece in pieces) == call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_usage_says_what_was_cached(llm):
    first = llm.create_chat_completion(MESSAGES, max_tokens=4, temperature=0)
    messages = [*MESSAGES, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    usage = llm.create_chat_completion(messages, max_tokens=4, temperature=0)["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    assert usage["completion_tokens_details"].keys() == {"accepted_prediction_tokens", "rejected_prediction_tokens"}


def test_echo_with_logprobs_has_the_prompt_s(llm):
    prompt = "Once upon a time there was"
    choice = llm(prompt, max_tokens=6, temperature=0, logprobs=2, echo=True)["choices"][0]
    logprobs = choice["logprobs"]
    n_prompt = len(llm.tokenize(prompt.encode(), add_bos=False))
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == n_prompt + 6
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert [choice["text"][offset:].startswith(token) for token, offset in zip(logprobs["tokens"], logprobs["text_offset"])] == [True] * (n_prompt + 6)
    # This vocabulary has a BOS, which is not shown, so that the first token of the text is predicted.
    numbers = logprobs["token_logprobs"]
    assert llm.token_bos() >= 0 and all(isinstance(number, float) and number <= 0 for number in numbers)
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])
    # The first token has no probability if there is no BOS before it.
    ids = llm.tokenize(prompt.encode(), add_bos=False)
    of_ids = llm(ids, max_tokens=1, temperature=0, logprobs=1, echo=True)["choices"][0]["logprobs"]
    assert of_ids["token_logprobs"][0] is None and of_ids["top_logprobs"][0] is None and None not in of_ids["token_logprobs"][1:]
    # A completion that is sent back as a prompt has the same probabilities.
    whole = llm.tokenize(prompt.encode()) + llm.tokenize(choice["text"][len(prompt):].encode(), add_bos=False)
    again = llm(whole, max_tokens=1, temperature=0, logprobs=2, echo=True)["choices"][0]["logprobs"]
    assert again["token_logprobs"][:n_prompt + 6] == pytest.approx(numbers, abs=1e-3)
    # The chunks have it, too.
    chunks = [chunk["choices"][0] for chunk in llm(prompt, max_tokens=6, temperature=0, logprobs=2, echo=True, stream=True)]
    assert [token for chunk in chunks if chunk["logprobs"] for token in chunk["logprobs"]["tokens"]] == logprobs["tokens"]
    assert [offset for chunk in chunks if chunk["logprobs"] for offset in chunk["logprobs"]["text_offset"]] == logprobs["text_offset"]


def test_offsets_of_log_probabilities_count_the_prompt(llm):
    prompt = "Once upon a time there was"
    ids = llm.tokenize(prompt.encode(), add_bos=False)
    echoed = llm(prompt, max_tokens=6, temperature=0, logprobs=1, echo=True)["choices"][0]["logprobs"]["text_offset"]
    for given in (prompt, ids):
        request = {"max_tokens": 6, "temperature": 0, "logprobs": 1}
        assert llm(given, **request)["choices"][0]["logprobs"]["text_offset"] == echoed[-6:]
        chunks = [chunk["choices"][0]["logprobs"] for chunk in llm(given, **request, stream=True)]
        assert [offset for logprobs in chunks if logprobs for offset in logprobs["text_offset"]] == echoed[-6:]
    assert echoed[-6] == len(prompt)


def test_what_the_model_is(llm):
    assert llm.metadata["general.architecture"] == "llama"
    assert str(llm.n_embd()) == llm.metadata["llama.embedding_length"]
    assert max(llm.tokenize(b"Hello")) < llm.n_vocab()
    assert llm.tokenize(b"")[0] == llm.token_bos() and llm.token_eos() in llm.engine.model_info()["eog"]
    assert llm.token_nl() == -1 or llm.detokenize([llm.token_nl()]) == b"\n"


def greedy(llm, prompt, n):
    return llm.engine.complete(list(prompt), n_predict=n, temperature=0, repeat_penalty=1, return_tokens=True)["tokens"]


def test_generate_eval_and_sample_go_token_by_token(llm):
    prompt = llm.tokenize(b"Once upon a time")
    expected = greedy(llm, prompt, 12)
    tokens = []
    for token in llm.generate(prompt, temp=0):
        tokens.append(token)
        if len(tokens) == 12:
            break
    assert tokens == expected and llm.input_ids.tolist() == prompt + expected[:-1]
    # The last token is read when the next one is asked for.
    assert llm.n_tokens == len(prompt) + 11

    llm.reset()
    llm.eval(prompt)
    for token in expected[:4]:
        assert llm.sample(temp=0) == token
        llm.eval([token])
    assert llm.n_tokens == len(prompt) + 4 and list(llm.eval_tokens) == prompt + expected[:4]
    # It goes on from there without reset.
    rest = llm.generate([], temp=0, reset=False)
    assert [next(rest) for _ in range(4)] == expected[4:8]
    rest.close()

    # Tokens that are sent are read after the one that was given.
    sent = llm.tokenize(b" and then", add_bos=False)
    running = llm.generate(prompt, temp=0)
    first = next(running)
    assert running.send(sent) == greedy(llm, [*prompt, first, *sent], 1)[0]
    running.close()
    llm.reset()
    with pytest.raises(ValueError, match="do not fit"):
        llm.eval(prompt * 500)
    assert llm.n_tokens == 0
    # A text that ends ends the generator, with the token that ends it.
    ended = list(llm.generate(llm.tokenize(b"<|im_start|>user\nCount from 1 to 5.<|im_end|>\n<|im_start|>assistant\n", special=True), temp=0))
    assert ended[-1] in llm.engine.model_info()["eog"]


def test_states_are_saved_and_loaded(llm):
    prompt = llm.tokenize(b"Once upon a time there was a crow who")
    llm.reset()
    llm.eval(prompt)
    state = llm.save_state()
    assert state.n_tokens == len(prompt) and state.llama_state_size == len(state.llama_state) > 1000
    expected = llm.sample(temp=0)
    llm.reset()
    llm.eval(llm.tokenize(b"Something else"))
    llm.load_state(state)
    assert llm.input_ids.tolist() == prompt and llm.sample(temp=0) == expected
    # The prompt is in the slot: nothing but its last token is decoded again.
    answer = llm.engine.complete(prompt, n_predict=1, id_slot=0)
    assert answer["timings"]["cache_n"] == len(prompt) - 1


def test_a_cache_keeps_the_states_of_completions(llm):
    cache = LlamaRAMCache()
    texts = ["Once upon a time there was a small crow who", "In the garden behind the house there stood a"]
    plain = [llm(text, max_tokens=8, temperature=0)["choices"][0]["text"] for text in texts]
    llm.set_cache(cache)
    try:
        for text, expected in zip(texts, plain):
            assert llm(text, max_tokens=8, temperature=0)["choices"][0]["text"] == expected
        assert 0 < cache.cache_size <= cache.capacity_bytes
        for text, expected in zip(texts, plain):
            # The other prompt is in the slot, this one in the cache.
            chunks = llm(text, max_tokens=8, temperature=0, stream=True)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
        kept = cache[llm.tokenize(texts[0].encode())]
        assert kept.input_ids[:5] == tuple(llm.tokenize(texts[0].encode()))[:5]
        prompt = llm.tokenize(texts[0].encode())
        llm.reset()
        llm._restore(prompt)
        assert llm.engine.complete(prompt, n_predict=1, id_slot=0)["timings"]["cache_n"] == len(prompt) - 1
    finally:
        llm.set_cache(None)
    small = LlamaRAMCache(capacity_bytes=kept.llama_state_size + 1)
    small[[1, 2]] = kept
    small[[3, 4]] = kept
    assert [4] not in small and [3] in small and [1, 2] not in small
    with pytest.raises(KeyError):
        small[[1]]


def test_constants_are_llama_cpp_s():
    assert (foredraft_llama_cpp.LLAMA_SPLIT_MODE_ROW, foredraft_llama_cpp.LLAMA_POOLING_TYPE_LAST, foredraft_llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN) == (2, 3, 2)
    assert (foredraft_llama_cpp.GGML_TYPE_Q8_0, foredraft_llama_cpp.GGML_TYPE_BF16, foredraft_llama_cpp.LLAMA_DEFAULT_SEED) == (8, 30, 0xFFFFFFFF)
    with Llama(str(TARGET), type_k=foredraft_llama_cpp.GGML_TYPE_Q8_0, type_v=foredraft_llama_cpp.GGML_TYPE_Q8_0, flash_attn=True, n_ctx=256,
               split_mode=foredraft_llama_cpp.LLAMA_SPLIT_MODE_LAYER, warmup=False) as llm:
        assert llm.engine.status()["attention"]["target"]["cache_type_k"] == "q8_0"


@pytest.mark.parametrize("name, begins, ends", [
    ("llama-3", "<|start_header_id|>system<|end_header_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    ("chatml", "<|im_start|>system\n", "<|im_start|>assistant\n"),
    ("vicuna", "You tell stories.", "ASSISTANT:"),
    ("gemma", "<start_of_turn>user\n", "<start_of_turn>model\n"),
    ("mistral-v7", "[SYSTEM_PROMPT]", "[/INST]"),
])
def test_chat_formats_are_llama_cpp_s_templates(name, begins, ends):
    with Llama(str(TARGET), chat_format=name, n_ctx=256, warmup=False) as llm:
        prompt = llm.engine.apply_template(MESSAGES)
        assert prompt.lstrip().startswith(begins) and prompt.endswith(ends) and "One about a crow." in prompt
        assert llm.create_chat_completion(MESSAGES, max_tokens=2)["choices"][0]["message"]["content"] is not None


def test_an_unknown_chat_format_is_refused():
    with pytest.raises(ValueError, match="chat_format: llama.cpp has no built-in template for 'saiga'"):
        Llama(str(TARGET), chat_format="saiga", n_ctx=256, warmup=False)


def test_arguments_have_the_order_of_llama_cpp_python():
    sampled = ["top_k", "top_p", "min_p", "typical_p", "temp", "repeat_penalty"]
    mirostat = ["frequency_penalty", "presence_penalty", "tfs_z", "mirostat_mode"]
    order = {
        Llama.generate: ["tokens", *sampled, "reset", *mirostat, "mirostat_tau", "mirostat_eta", "penalize_nl", "logits_processor", "stopping_criteria", "grammar"],
        Llama.sample: [*sampled, *mirostat, "mirostat_eta", "mirostat_tau", "penalize_nl", "logits_processor", "grammar", "idx"],
        Llama.embed: ["input", "normalize", "truncate", "return_count"],
    }
    for function, names in order.items():
        assert list(inspect.signature(function).parameters)[1:len(names) + 1] == names


def test_texts_of_tokens_are_asked_for_once(llm, monkeypatch):
    tokens = llm.tokenize("Zoë saw a fox, and the fox saw Zoë.".encode())
    text = llm.detokenize(tokens)
    monkeypatch.setattr(llm.engine, "detokenize_bytes", lambda *_, **__: pytest.fail("asked again"))
    assert llm.detokenize(tokens) == text == "Zoë saw a fox, and the fox saw Zoë.".encode()
    assert b"".join(llm.detokenize([token], prev_tokens=[tokens[0]]) for token in tokens[1:]).lstrip() == text.lstrip()
    assert llm.detokenize([]) == b""


def test_generate_resets_only_where_nothing_is_common(llm, monkeypatch):
    tokens = llm.tokenize(b"Once upon a time")
    llm.reset()
    expected = next(llm.generate(tokens, temp=0))
    resets, reset = [], llm.reset
    monkeypatch.setattr(llm, "reset", lambda: resets.append(reset()))
    assert next(llm.generate(tokens, temp=0)) == expected and llm.n_tokens == len(tokens) and not resets
    next(llm.generate(llm.tokenize(b"The", add_bos=False), temp=0))
    assert len(resets) == 1


@pytest.mark.parametrize("prompt", [["Once", "Twice"], [b"Once"], [1, "Once"]])
def test_several_prompts_are_refused(llm, prompt):
    with pytest.raises(TypeError, match="each is a call of its own"):
        llm(prompt, max_tokens=1)


def test_a_prompt_can_be_an_array(llm):
    tokens = llm.tokenize(b"Once upon a time")
    llm.reset()
    llm.eval(tokens)
    assert llm(llm.input_ids, max_tokens=4, temperature=0)["choices"][0]["text"] == llm(tokens, max_tokens=4, temperature=0)["choices"][0]["text"]


def test_a_disk_cache_keeps_states_for_the_next_process(llm, tmp_path):
    text, other = "Once upon a time there was a small crow who", "In the garden behind the house there stood a"
    expected = llm(text, max_tokens=8, temperature=0)["choices"][0]["text"]
    llm.set_cache(LlamaDiskCache(str(tmp_path)))
    try:
        llm(text, max_tokens=8, temperature=0)
        llm(other, max_tokens=8, temperature=0)
        cache = LlamaDiskCache(str(tmp_path))
        kept = cache[llm.tokenize(text.encode())]
        assert list(kept.input_ids[:len(llm.tokenize(text.encode()))]) == llm.tokenize(text.encode())
        assert kept.llama_state_size > 1000 and cache.cache_size > kept.llama_state_size
        llm.set_cache(cache)
        assert llm(text, max_tokens=8, temperature=0)["choices"][0]["text"] == expected
    finally:
        llm.set_cache(None)
    assert [999999] not in cache
    with pytest.raises(KeyError):
        cache[[999999]]
    # A file that another program has damaged is no state.
    (tmp_path / "damaged.state").write_bytes(b"{")
    # The one that was used longest ago makes room.
    cache[[1, 2, 3]] = LlamaState([1, 2, 3], b"x" * 100, 7)
    assert (cache[[1, 2, 9]].seed, cache[[1, 2, 9]].input_ids) == (7, (1, 2, 3))
    small = LlamaDiskCache(str(tmp_path), capacity_bytes=300)
    small[[4, 5]] = LlamaState([4, 5], b"y" * 100, None)
    assert small.cache_size <= 300 and small[[4, 5, 6]].llama_state == b"y" * 100


TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def test_a_formatter_renders_and_is_a_chat_handler(tmp_path):
    from foredraft_llama_cpp.llama_chat_format import Jinja2ChatFormatter, hf_tokenizer_config_to_chat_formatter

    formatter = Jinja2ChatFormatter(template=TEMPLATE, eos_token="</s>", bos_token="<s>", stop_token_ids=[2])
    rendered = formatter(messages=MESSAGES)
    shown = f"[system] {MESSAGES[0]['content']}</s>[user] {MESSAGES[1]['content']}</s>[assistant]"
    assert rendered.prompt == shown and rendered.stop == ["</s>"] and rendered.added_special
    assert rendered.stopping_criteria([1, 2], None) and not rendered.stopping_criteria([2, 1], None)
    config = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}
    assert hf_tokenizer_config_to_chat_formatter(config)(messages=MESSAGES).prompt.endswith("[assistant] </s>")
    with pytest.raises(ValueError, match="no such role"):
        Jinja2ChatFormatter("{{ raise_exception('no such role') }}", "", "")(messages=[])
    with Llama(str(TARGET), chat_handler=formatter.to_chat_handler(), verbose=False, warmup=False) as llm:
        assert llm.engine.apply_template(MESSAGES).startswith(f"[system] {MESSAGES[0]['content']}")


def test_the_poolings_have_their_numbers():
    with Llama(str(TARGET), embedding=True, pooling_type=LLAMA_POOLING_TYPE_CLS, verbose=False, warmup=False) as llm:
        assert llm.pooling_type() == LLAMA_POOLING_TYPE_CLS
    with Llama(str(TARGET), embedding=True, pooling_type=LLAMA_POOLING_TYPE_NONE, verbose=False, warmup=False) as llm:
        vectors, count = llm.embed(["Hello", "Good bye, fox"], return_count=True)
        assert [len(each) for each in vectors] == [len(llm.tokenize(text)) for text in (b"Hello", b"Good bye, fox")]
        assert count == sum(map(len, vectors)) and {len(vector) for each in vectors for vector in each} == {llm.n_embd()}
        assert vectors[0][-1] == llm.engine.embed("Hello", embd_normalize=-1)
        assert llm.create_embedding("Hello")["data"][0]["embedding"] == vectors[0]
    with pytest.raises(foredraft.ForedraftError, match="classifier"):
        Llama(str(TARGET), pooling_type=LLAMA_POOLING_TYPE_RANK, verbose=False, warmup=False)


@pytest.mark.parametrize(("key", "heads", "kinds"), [
    ("mamba.ssm.conv_kernel", "0", (True, False)), ("lfm2.shortconv.l_cache", "4", (False, True)), ("kimi-linear.kda.head_dim", "4", (False, True)),
    ("llama.block_count", "4", (False, False)),
])
def test_models_with_states_are_recurrent_or_hybrid(key, heads, kinds):
    architecture = key.partition(".")[0]
    llm = Llama.__new__(Llama)
    llm._info = {"metadata": {"general.architecture": architecture, key: "4", f"{architecture}.attention.head_count": heads}}
    assert (llm._is_recurrent, llm._is_hybrid) == kinds
