"""llama-cpp-python's package by its names."""
import ctypes
import importlib
import pickle
import sys

import pytest

import foredraft

from conftest import TARGET

MESSAGES = [{"role": "user", "content": "One about a crow."}]


@pytest.fixture()
def llama_cpp():
    import foredraft_llama_cpp

    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "llama_cpp"}
    foredraft_llama_cpp.install()
    yield importlib.import_module("llama_cpp")
    for name in [name for name in sys.modules if name.split(".")[0] == "llama_cpp"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture(scope="module")
def llm():
    from foredraft_llama_cpp import Llama

    with Llama(str(TARGET), n_ctx=256, n_batch=64, chat_format="chatml", verbose=False, warmup=False) as llm:
        yield llm


def test_modules_have_their_names(llama_cpp):
    from llama_cpp import LLAMA_SPLIT_MODE_LAYER, Llama, LlamaGrammar, LogitsProcessorList, StoppingCriteriaList
    from llama_cpp.llama import Llama as same
    from llama_cpp.llama_cache import LlamaRAMCache
    from llama_cpp.llama_grammar import LlamaGrammar as same_grammar
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    from llama_cpp.llama_tokenizer import LlamaTokenizer
    from llama_cpp.llama_types import ChatCompletionRequestMessage, CreateChatCompletionResponse

    import foredraft
    import foredraft_llama_cpp

    assert Llama is same is foredraft_llama_cpp.Llama and LlamaGrammar is same_grammar and llama_cpp.LlamaCache is LlamaRAMCache
    assert LLAMA_SPLIT_MODE_LAYER == 1 and llama_cpp.__version__ == foredraft.version()
    assert {ChatCompletionRequestMessage, CreateChatCompletionResponse, LlamaTokenizer, LogitsProcessorList, StoppingCriteriaList}
    with pytest.raises(AttributeError, match="hardly any of llama.cpp's functions"):
        llama_cpp.llama_decode
    with pytest.raises(AttributeError, match="chat_format"):
        llama_cpp.llama_chat_format.format_llama2
    with pytest.raises(NotImplementedError, match="pictures"):
        llama_cpp.llama_chat_format.Llava15ChatHandler(clip_model_path="clip.gguf")
    with pytest.raises(NotImplementedError, match="vocabulary"):
        llama_cpp.llama_tokenizer.LlamaHFTokenizer.from_pretrained("folder")
    with Llama(str(TARGET), draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4), n_ctx=256, warmup=False) as llm:
        asked = LogitsProcessorList(), StoppingCriteriaList()
        answer = llm("Once", max_tokens=8, logits_processor=asked[0], stopping_criteria=asked[1])
        assert answer["usage"]["completion_tokens"] == 8
        n_calls = []
        asked = LogitsProcessorList([lambda ids, scores: n_calls.append(len(ids)) or scores]), StoppingCriteriaList([lambda ids, _: len(ids) > 8])
        answer = llm("Once", max_tokens=20, logits_processor=asked[0], stopping_criteria=asked[1])
        n_prompt = len(llm.tokenize(b"Once"))
        assert n_calls == list(range(n_prompt, 10)) and answer["usage"]["completion_tokens"] == 9 - n_prompt
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_attributes_and_methods(llm):
    assert (llm.n_batch, llm.chat_format) == (64, "chatml") and llm.n_threads >= 1
    assert llm.context_params.n_ctx == llm.n_ctx() and llm.context_params.n_batch == 64
    tokenizer = llm.tokenizer()
    assert tokenizer.decode(tokenizer.encode("Hello, Zoë", add_bos=False)) == "Hello, Zoë"
    assert tokenizer.tokenize(b"Hello")[0] == llm.token_bos() and tokenizer.detokenize(tokenizer.tokenize(b"Hello")) == b"Hello"
    assert llm.longest_token_prefix([1, 2, 3], [1, 2, 4, 3]) == 2


def test_a_vocabulary_is_read_by_llama_cpps_functions(llm, llama_cpp):
    vocab = llama_cpp.llama_model_get_vocab(llm.model)

    def piece(token, length=32, lstrip=0, special=False):
        buffer = (ctypes.c_char * length)()
        n = llama_cpp.llama_token_to_piece(vocab, token, buffer, length, lstrip, special)
        return n if n < 0 else buffer[:n]

    tokens = llm.tokenize(b"Once upon", add_bos=False)
    assert [piece(token) for token in tokens] == [b"Once", b" upon"] and piece(tokens[1], lstrip=1) == b"upon"
    assert piece(tokens[1], length=2) == -5
    assert piece(llm.token_eos()) == b"" and piece(llm.token_eos(), special=True) == b"<|endoftext|>"
    assert b"".join(piece(token) for token in llm.tokenize("€".encode(), add_bos=False)) == "€".encode()


def test_seeds_follow_from_the_one_that_was_set(llm):
    def text(**more):
        return llm("Once", max_tokens=12, temperature=1.5, **more)["choices"][0]["text"]

    llm.set_seed(5)
    state = llm.save_state()
    texts = [text() for _ in range(2)]
    assert texts[0] != texts[1]
    llm.set_seed(5)
    assert [text() for _ in range(2)] == texts
    llm.load_state(state)
    assert text() == texts[0]
    assert text(seed=5) == text(seed=5) != text(seed=6)
    llm.set_seed(-1)
    assert len({text() for _ in range(8)}) > 1


def test_tokens_after_an_ngram_are_candidates():
    from foredraft_llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    candidates = LlamaPromptLookupDecoding.find_candidate_pred_tokens
    assert candidates([7, 1, 2, 3, 9, 1, 2, 3], 3, 2) == [9, 1]
    assert candidates([1, 2, 4, 3, 5, 3], 3, 5) == [5, 3]
    assert candidates([1, 2, 3], 3, 2) == candidates([1], 2, 2) == candidates([], 2, 2) == []


def test_sample_after_an_earlier_token(llm):
    prompt = llm.tokenize(b"Once upon a time")
    llm.reset()
    llm.eval(prompt)
    last = llm.sample(temp=0)
    assert llm.sample(temp=0, idx=len(prompt) - 1) == last
    assert llm.sample(temp=0, idx=1) == llm.engine.complete(prompt[:2], n_predict=1, temperature=0, return_tokens=True)["tokens"][0]


def test_answers_as_openai_s_objects(llm):
    pytest.importorskip("openai")
    answer = llm.create_chat_completion_openai_v1(MESSAGES, max_tokens=8, temperature=0)
    text = answer.choices[0].message.content
    chunks = llm.create_chat_completion_openai_v1(MESSAGES, max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_embeddings_with_their_count():
    from foredraft_llama_cpp import Llama

    with Llama(str(TARGET), n_ctx=64, embedding=True, warmup=False) as llm:
        one, n_tokens = llm.embed("Hello", return_count=True)
        assert one == llm.embed("Hello") and n_tokens == len(llm.tokenize(b"Hello"))
        both, n_both = llm.embed(["Hello", "Hello"], return_count=True)
        assert both[0] == pytest.approx(one) and n_both == 2 * n_tokens


def test_a_llama_is_pickled(llm):
    with pickle.loads(pickle.dumps(llm)) as other:
        assert other.n_ctx() == 256 and other.chat_format == "chatml"
        assert other("Once", max_tokens=6, temperature=0)["choices"] == llm("Once", max_tokens=6, temperature=0)["choices"]


def test_functions_that_need_no_model(llama_cpp):
    llama_cpp.llama_backend_init()
    assert llama_cpp.llama_supports_mmap() and llama_cpp.llama_supports_mlock() and llama_cpp.llama_max_devices() >= 1
    gpus = [device for device in foredraft.devices()["devices"] if device["type"] != "cpu"]
    assert llama_cpp.llama_supports_gpu_offload() is bool(gpus)
    assert b"cores: " in llama_cpp.llama_print_system_info()
    assert 0 < llama_cpp.llama_time_us() <= llama_cpp.llama_time_us()
    internals = importlib.import_module("llama_cpp._internals")
    with pytest.raises(AttributeError, match="not llama.cpp's structures"):
        internals.LlamaModel
    llama_cpp.llama_backend_free()
