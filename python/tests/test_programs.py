"""Programs that were written for llama-cpp-python and for OpenAI's client: after changing the import, or the call, they print the same fields."""
import json
import subprocess
import sys

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from conftest import DRAFT, TARGET
from foredraft_llama_cpp import Llama

#: As its documentation writes it.
FOR_LLAMA_CPP_PYTHON = '''
import json, sys
from llama_cpp import Llama

llm = Llama(model_path=sys.argv[1], n_ctx=512, verbose=False)
output = llm("Q: Name the birds. A: ", max_tokens=8, stop=["Q:"], echo=True)
print(json.dumps(sorted(output)), json.dumps(sorted(output["choices"][0])), json.dumps(sorted(output["usage"])))
chat = llm.create_chat_completion(
    messages=[{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "One about a crow."}], max_tokens=8, temperature=0)
print(json.dumps(sorted(chat)), json.dumps(sorted(chat["choices"][0])), chat["choices"][0]["message"]["role"], chat["choices"][0]["finish_reason"])
call = llm.create_chat_completion(
    messages=[{"role": "user", "content": "Extract Jason is 25 years old"}],
    tools=[{"type": "function", "function": {"name": "UserDetail", "parameters": {"type": "object", "title": "UserDetail",
        "properties": {"name": {"title": "Name", "type": "string", "maxLength": 9}, "age": {"title": "Age", "type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["name", "age"]}}}],
    tool_choice={"type": "function", "function": {"name": "UserDetail"}}, max_tokens=200)
function = call["choices"][0]["message"]["tool_calls"][0]["function"]
print(function["name"], json.dumps(sorted(json.loads(function["arguments"]))))
roles = [part["choices"][0]["delta"].get("role") for part in llm.create_chat_completion(
    messages=[{"role": "user", "content": "Hi"}], max_tokens=4, stream=True)]
print(roles[0], set(roles[1:]) == {None})
vectors = Llama(model_path=sys.argv[1], embedding=True, verbose=False).create_embedding("Hello, world!")
print(json.dumps(sorted(vectors)), json.dumps(sorted(vectors["data"][0])), len(llm.tokenize(b"Hello")) > 0)
'''

PRINTED = '''
["choices", "created", "id", "model", "object", "usage"] ["finish_reason", "index", "logprobs", "text"] ["completion_tokens", "prompt_tokens", "total_tokens"]
["choices", "created", "id", "model", "object", "usage"] ["finish_reason", "index", "logprobs", "message"] assistant length
UserDetail ["age", "name"]
assistant True
["data", "model", "object", "usage"] ["embedding", "index", "object"] True
'''

TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"place": {"enum": ["river", "hill"]}}, "required": ["place"], "additionalProperties": False}}}


def test_a_program_for_llama_cpp_python_runs_with_another_import():
    program = FOR_LLAMA_CPP_PYTHON.replace("from llama_cpp import", "from foredraft_llama_cpp import")
    run = subprocess.run([sys.executable, "-c", program, str(TARGET)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == PRINTED.strip()


def described(completion: ChatCompletion) -> list:
    """The parts of an answer that a program for OpenAI's client reads."""
    choice = completion.choices[0]
    calls = [(call.type, call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]
    return [completion.object, choice.index, choice.message.role, choice.message.content, calls, choice.finish_reason,
            completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens]


def test_answers_are_openai_s_types():
    messages = [{"role": "user", "content": "Where is it?"}]
    requests = [
        dict(max_tokens=12), dict(max_tokens=12, logprobs=True, top_logprobs=2),
        dict(max_tokens=100, tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
        dict(max_tokens=100, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}}, parallel_tool_calls=False),
        dict(max_tokens=30, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}}}),
    ]
    with Llama(str(TARGET), n_ctx=512, draft_model=str(DRAFT), verbose=False, warmup=False) as llm:
        for request in requests:
            answer = ChatCompletion.model_validate(llm.create_chat_completion(messages, seed=3, **request), strict=True)
            kind, index, role, content, calls, reason, adds_up = described(answer)
            assert (kind, index, role, adds_up) == ("chat.completion", 0, "assistant", True)
            if "tools" in request:
                assert reason == "tool_calls" and [call[:2] for call in calls] == [("function", "look")]
                assert calls[0][2]["place"] in ("river", "hill")
            else:
                assert content and not calls and reason in ("length", "stop")
            if request.get("logprobs"):
                assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
            # The same, streamed, as such a program puts it together.
            text, arguments, reasons = "", "", []
            for chunk in llm.create_chat_completion(messages, seed=3, stream=True, **request):
                choice = ChatCompletionChunk.model_validate(chunk, strict=True).choices[0]
                text += choice.delta.content or ""
                arguments += "".join(call.function.arguments or "" for call in choice.delta.tool_calls or [])
                reasons.append(choice.finish_reason)
            assert reasons[-1] == reason and set(reasons[:-1]) == {None}
            assert text == (content or "")
            assert not calls or json.loads(arguments) == calls[0][2]
