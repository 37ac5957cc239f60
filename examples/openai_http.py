"""OpenAI's API over HTTP, for programs that speak only that (lm-eval, litellm, dspy, ...): one engine behind http.server of Python's
standard library. An example, for one user on one machine: it has no TLS, and no limits for each client.

    python3 examples/openai_http.py model.gguf [--draft draft.gguf] [--port 8080] [--api-key KEY]
    OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none any-client

It answers /v1/chat/completions, /v1/completions (both also as a stream of events), /v1/decisions, /v1/embeddings (with --embeddings),
/v1/models and /health; and /v1/systemone, TypeSafe's API for decisions. A request whose client hangs up is cancelled. Settings that a request leaves out are the engine's; ones that are not listed
below have no effect. The package `foredraft` must be installed, or its folder (python/src) be in PYTHONPATH.
"""
import argparse
import base64
import hmac
import json
import selectors
import socket
import struct
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from foredraft import ContextFullError, Engine, ForedraftError

#: The longest body of a request, in bytes.
LONGEST_BODY = 8 << 20
#: Seconds after which a client that neither sends nor reads is disconnected.
PATIENCE = 60
#: Seconds between two looks whether a client is still there.
LOOK = 0.1

#: Settings of a request that the engine knows by OpenAI's name or by llama-server's.
SETTINGS = {
    "max_tokens", "max_completion_tokens", "n", "stop", "seed", "temperature", "top_p", "presence_penalty", "frequency_penalty",
    "logit_bias", "top_k", "min_p", "repeat_penalty", "grammar", "json_schema", "schema_in_prompt", "ignore_eos",
}
CHAT_SETTINGS = SETTINGS | {
    "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "logprobs", "top_logprobs",
    "chat_template_kwargs", "reasoning_format", "continue_final_message",
}


class ApiError(Exception):
    """A failure in OpenAI's form."""

    def __init__(self, status, message, param=None, code=None):
        super().__init__(message)
        self.status = status
        kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    @classmethod
    def of(cls, error):
        """The engine's failure."""
        return cls(error.status, str(error), code="context_length_exceeded" if isinstance(error, ContextFullError) else error.code)


def field(body, name, kind, default=None):
    """A field of a request, which must be of this type."""
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise ApiError(400, f"{name}: expected {kind.__name__}, got {json.dumps(value)[:100]}", param=name)
    return value


def settings(body, names):
    """The settings of a request that the engine gets. A text that does not fit into the context is an error, as with OpenAI."""
    given = {name: body[name] for name in names if body.get(name) is not None}
    return {"on_overflow": "error", "ctx_shift": False, "stream_options": {"include_usage": True}, **given}


def total(answers):
    """The tokens of all choices of a request."""
    return next(answer["usage"] for answer in answers if answer.get("usage"))


def logprobs(answer):
    """Log-probabilities with the key that OpenAI's types require."""
    return {**answer["logprobs"], "refusal": None} if answer.get("logprobs") else None


class Chat:
    """/v1/chat/completions."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(self, engine, body):
        tools = field(body, "tools", list, []) or None
        self.stream = engine.stream(messages=field(body, "messages", list), tools=tools, **settings(body, CHAT_SETTINGS))
        self.count = body.get("n") or 1

    def choices(self):
        """The choices of a whole answer."""
        return [
            {"index": index, "message": {**answer.message, "refusal": None}, "logprobs": logprobs(answer), "finish_reason": answer.finish_reason}
            for index, answer in enumerate(self.stream.completions)
        ]

    def chunks(self):
        """The choice of each chunk of a stream."""
        for index in range(self.count):
            yield {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        for update in self.stream:
            delta = {name: value for name, value in (update.get("delta") or {}).items() if name != "role"}
            if delta or update.get("logprobs"):
                yield {"index": update.index, "delta": delta, "logprobs": logprobs(update), "finish_reason": None}
        for index, answer in enumerate(self.stream.completions):
            yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": answer.finish_reason}


class Completion:
    """/v1/completions."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl-"

    def __init__(self, engine, body):
        if body.get("suffix"):
            raise ApiError(400, "suffix: not supported", param="suffix")
        given = body.get("prompt", "")
        # A text, or the ids of its tokens; or an array of these.
        self.prompts = [given] if isinstance(given, str) or given and isinstance(given, list) and isinstance(given[0], int) else given
        if not isinstance(self.prompts, list) or not self.prompts:
            raise ApiError(400, "prompt: expected a text, token ids, or an array of these", param="prompt")
        self.engine = engine
        self.count = body.get("n") or 1
        self.with_logprobs = body.get("logprobs") is not None
        self.with_echo = field(body, "echo", bool, False)
        request = {"max_tokens": 16, **settings(body, SETTINGS)}
        if self.with_logprobs:
            request["n_probs"] = max(field(body, "logprobs", int), 1)
            if self.with_echo:
                request["prompt_logprobs"] = request["n_probs"]
        self.stream = engine.stream(prompts=self.prompts, **request)
        # As the engine has accepted the prompts, they are texts or ids of tokens.
        self.texts = [self.text(prompt) for prompt in self.prompts]
        self.shown = self.texts if self.with_echo else [""] * len(self.prompts)

    def text(self, prompt):
        return prompt if isinstance(prompt, str) else self.engine.detokenize(prompt)

    def echoed(self, index, answer):
        """The prompt's tokens with their log-probabilities, without what the engine has put before them."""
        entries, prompt = answer.get("prompt_logprobs") or [], self.prompts[index // self.count]
        count = len(self.engine.tokenize(prompt, add_special=False)) if isinstance(prompt, str) else len(prompt)
        return entries[len(entries) - count:] if self.with_echo else []

    def logprobs(self, entries, offset):
        """Tokens with their log-probabilities; the first one begins at this character."""
        if not self.with_logprobs:
            return None
        shown = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            shown["tokens"].append(entry["token"])
            shown["token_logprobs"].append(entry["logprob"])
            best = {other["token"]: other["logprob"] for other in entry.get("top_logprobs") or ()}
            # Nothing predicts the first token.
            shown["top_logprobs"].append(best if entry["logprob"] is not None else None)
            shown["text_offset"].append(offset)
            offset += len(entry["token"])
        return shown

    def choices(self):
        """The choices of a whole answer."""
        def choice(index, answer):
            entries = [*self.echoed(index, answer), *(answer.get("completion_probabilities") or ())]
            offset = 0 if self.with_echo else len(self.texts[index // self.count])
            return {
                "index": index, "text": self.shown[index // self.count] + answer.text, "logprobs": self.logprobs(entries, offset),
                "finish_reason": answer.finish_reason,
            }

        return [choice(index, answer) for index, answer in enumerate(self.stream.completions)]

    def chunks(self):
        """The choice of each chunk of a stream. The log-probabilities of a prompt are in the whole answer only."""
        offsets = [len(text) for text in self.texts for _ in range(self.count)]
        for index in range(len(offsets) if self.with_echo else 0):
            yield {"index": index, "text": self.shown[index // self.count], "logprobs": None, "finish_reason": None}
        for update in self.stream:
            logprobs = self.logprobs(update.get("completion_probabilities") or (), offsets[update.index])
            offsets[update.index] += len(update.text)
            yield {"index": update.index, "text": update.text, "logprobs": logprobs, "finish_reason": None}
        for index, answer in enumerate(self.stream.completions):
            yield {"index": index, "text": "", "logprobs": None, "finish_reason": answer.finish_reason}


def usage_of(answer):
    """The tokens that questions took, under the names of both APIs for decisions."""
    count = answer["usage"]["input_tokens"]
    return {"input_tokens": count, "output_tokens": 0, "total_tokens": count}


class SystemOne:
    """/v1/systemone: the engine's own form."""

    def __init__(self, engine, body):
        if body.get("state") is None:
            raise ApiError(400, "state: expected what the questions are about", param="state")
        self.stream = engine.stream(state=body["state"], questions=field(body, "questions", dict))

    def answers(self, answer):
        return answer["answers"]


class Decisions:
    """/v1/decisions: questions in an array, with names or without."""

    def __init__(self, engine, body):
        given = body.get("input")
        about = {"state": given} if isinstance(given, str) else {"messages": [self.message(item) for item in field(body, "input", list)]}
        self.questions = field(body, "questions", list)
        self.values = []
        asked = {str(index): self.question(f"questions[{index}]", question) for index, question in enumerate(self.questions)}
        names = [question["name"] for question in self.questions if question.get("name") is not None]
        if len(set(names)) < len(names):
            raise ApiError(400, "questions: expected different names", param="questions")
        self.stream = engine.stream(questions=asked, **about)

    def message(self, item):
        """A message of the input, whose parts are texts."""
        content = item.get("content") if isinstance(item, dict) else None
        if isinstance(content, list):
            if not all(isinstance(part, dict) and part.get("type") == "input_text" for part in content):
                raise ApiError(400, "input: expected parts of the type input_text", param="input")
            content = "\n".join(field(part, "text", str) for part in content)
        if not isinstance(content, str):
            raise ApiError(400, "input: expected a text, or messages with a content", param="input")
        return {"role": item.get("role") or "user", "content": content}

    def question(self, name, question):
        """A question as the engine takes it."""
        kind = field(question, "type", str) if isinstance(question, dict) else None
        given = {"instructions": field(question, "instructions", str)} if kind else {}
        if kind == "predicate":
            self.values.append(None)
            return {"type": "noul", **given}
        if kind == "choice":
            options = {json.dumps(choice["value"]).strip('"'): choice for choice in field(question, "choices", list)}
            if len(options) < len(question["choices"]):
                raise ApiError(400, f"{name}.choices: expected different values", param=name)
            self.values.append([choice["value"] for choice in question["choices"]])
            return {"type": "choice", **given, "criteria": {text: choice.get("description") for text, choice in options.items()}}
        if kind == "score":
            levels = field(question, "levels", list)
            self.values.append([level["label"] for level in levels])
            describe = lambda level: ": ".join(filter(None, (level["label"], level.get("description"))))
            return {"type": "score", **given, "criteria": [describe(level) for level in levels]}
        raise ApiError(400, f"{name}.type: expected predicate, choice or score", param=name)

    def answers(self, answer):
        """The answers in the order of the questions."""
        def answered(question, values, found):
            head = {"type": question["type"], "name": question.get("name")}
            if values is None:
                return {**head, "probability": found["noul"]}
            shares = list(found["probabilities"].values())
            if question["type"] == "score":
                probabilities = [{"label": label, "value": level, "probability": share} for level, (label, share) in enumerate(zip(values, shares))]
                return {**head, "score": found["score"], "probabilities": probabilities, "confidence": found["confidence"]}
            probabilities = [{"value": value, "probability": share} for value, share in zip(values, shares)]
            return {**head, "choice": values[shares.index(max(shares))], "probabilities": probabilities, "confidence": found["confidence"]}

        return [answered(*each) for each in zip(self.questions, self.values, answer["answers"].values())]


def embeddings(engine, model, body):
    """/v1/embeddings."""
    given = body.get("input")
    inputs = [given] if isinstance(given, str) or given and isinstance(given, list) and isinstance(given[0], int) else given
    if not isinstance(inputs, list) or not inputs:
        raise ApiError(400, "input: expected a text, token ids, or an array of these", param="input")
    vectors = engine.embed_many(inputs)
    if field(body, "dimensions", int, len(vectors[0])) != len(vectors[0]):
        raise ApiError(400, f"dimensions: the model has {len(vectors[0])}", param="dimensions")
    if body.get("encoding_format") == "base64":
        vectors = [base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() for vector in vectors]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    tokens = sum(len(engine.tokenize(text)) if isinstance(text, str) else len(text) for text in inputs)
    return {"object": "list", "model": model, "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


class Handler(BaseHTTPRequestHandler):
    """One connection; each has a thread of its own."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self):
        self.answer("GET", {"/health": self.health, "/v1/models": self.models, f"/v1/models/{self.server.model}": self.one_model})

    def do_POST(self):
        self.answer("POST", {
            "/v1/chat/completions": lambda: self.complete(Chat), "/v1/completions": lambda: self.complete(Completion),
            "/v1/systemone": lambda: self.decide(SystemOne), "/v1/decisions": lambda: self.decide(Decisions),
            "/v1/embeddings": lambda: self.reply(200, embeddings(self.server.engine, self.server.model, self.body())),
        })

    def answer(self, method, routes):
        self.is_streaming = False
        # Until the body has been read, what follows in the connection is no request.
        self.is_last = self.close_connection
        self.close_connection |= "Content-Length" in self.headers or "Transfer-Encoding" in self.headers
        try:
            route = routes.get(self.path.split("?")[0])
            if route is None:
                raise ApiError(404, f"nothing is at {method} {self.path}")
            self.check_key()
            route()
        except ApiError as error:
            self.fail(error)
        except ForedraftError as error:
            self.fail(ApiError.of(error))
        except OSError:
            self.close_connection = True  # the client has gone
        except Exception as error:
            self.log_error("%r", error)
            self.fail(ApiError(500, f"{type(error).__name__}: {error}"))

    def check_key(self):
        key = self.server.key
        given = self.headers.get("Authorization", "")
        if key and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    def body(self):
        """The request's JSON object."""
        # No web page can send this type to another site without asking first.
        if self.headers.get_content_type() != "application/json":
            raise ApiError(415, "expected Content-Type: application/json")
        length = self.headers.get("Content-Length")
        if length is None or not length.isdigit():
            raise ApiError(411, "expected Content-Length")
        if int(length) > LONGEST_BODY:
            raise ApiError(413, f"the body has more than {LONGEST_BODY} bytes")
        text = self.rfile.read(int(length))
        self.close_connection = self.is_last
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise ApiError(400, "the body is no JSON object")
        return body

    def complete(self, kind):
        body = self.body()
        includes_usage = field(body, "stream_options", dict, {}).get("include_usage")
        answer = kind(self.server.engine, body)
        head = {"id": f"{kind.prefix}{uuid.uuid4().hex}", "created": int(time.time()), "model": self.server.model}
        with answer.stream, self.watched(answer.stream):
            if body.get("stream"):
                self.begin_events()
                head["object"] = kind.chunk_kind
                for choice in answer.chunks():
                    self.send_event({**head, "choices": [choice]})
                if includes_usage:
                    self.send_event({**head, "choices": [], "usage": total(answer.stream.completions)})
                self.wfile.write(b"data: [DONE]\n\n")
            else:
                answer.stream.wait()
                head["object"] = kind.kind
                self.reply(200, {**head, "choices": answer.choices(), "usage": total(answer.stream.completions)})

    def decide(self, kind):
        decision = kind(self.server.engine, self.body())
        with decision.stream, self.watched(decision.stream):
            answer = decision.stream.wait()
        self.reply(200, {"model": self.server.model, "answers": decision.answers(answer), "usage": usage_of(answer)})

    @contextmanager
    def watched(self, stream):
        """Cancels the request when the client hangs up, also while there is nothing to send."""
        has_ended = threading.Event()

        def watch():
            with selectors.DefaultSelector() as selector:
                selector.register(self.connection, selectors.EVENT_READ)
                while not has_ended.wait(LOOK):
                    if selector.select(0) and not self.is_there():
                        return stream.cancel()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            has_ended.set()
            watcher.join()

    def is_there(self):
        """Whether what can be read is more than the connection's end."""
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def begin_events(self):
        self.is_streaming = self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()

    def send_event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def fail(self, error):
        try:
            if self.is_streaming:
                self.send_event(error.body)
            else:
                self.reply(error.status, error.body)
        except OSError:
            self.close_connection = True

    def health(self):
        self.reply(200, {"status": "ok"})

    def models(self):
        self.reply(200, {"object": "list", "data": [self.server.described]})

    def one_model(self):
        self.reply(200, self.server.described)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    #: Connections that may wait to be accepted. The standard library lets 5 wait, and some of 20 at once are lost then.
    request_queue_size = 1024

    def __init__(self, address, engine, model, key):
        super().__init__(address, Handler)
        self.engine, self.model, self.key = engine, model, key
        self.described = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "foredraft"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=Path, help="a draft model")
    parser.add_argument("--ctx", type=int, default=4096, help="tokens of context of each slot (4096)")
    parser.add_argument("--parallel", type=int, default=4, help="requests that run at the same time (4)")
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait; further ones get status 429 (64)")
    parser.add_argument("--threads", type=int, help="threads of the engine")
    parser.add_argument("--embeddings", action="store_true", help="answer /v1/embeddings")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0: one that is free (8080)")
    parser.add_argument("--api-key", help="the key that clients must send")
    args = parser.parse_args()

    config = {"n_ctx": args.ctx, "n_parallel": args.parallel, "max_queue": args.queue, "embedding": args.embeddings}
    if args.threads:
        config["n_threads"] = args.threads
    try:
        with Engine(args.model, model_draft=args.draft, **config) as engine:
            with Server((args.host, args.port), engine, args.model.stem, args.api_key) as server:
                print(f"listening on http://{args.host}:{server.server_port}/v1", flush=True)
                server.serve_forever()
    except (ForedraftError, OSError) as error:
        sys.exit(f"openai_http: {error}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
