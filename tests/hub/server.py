"""A server that speaks the protocol of Hugging Face's hub, for the tests of downloads in all languages.

    python3 tests/hub/server.py [FOLDER]      prints its address, and serves until its standard input ends

Each repository shows one behaviour of a server or of a network (REPOSITORIES). `stories/NAME` has `stories-NAME.gguf` of FOLDER, and
`local/NAME` has `NAME.gguf`. `/log` answers with the requests so far, and forgets them.
"""
import hashlib
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"
PLAIN = ["tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf"]
REPOSITORIES = {
    "tiny/model": [
        "README.md", "imatrix-tiny.gguf", "mmproj-tiny-F16.gguf", "mmproj-tiny-Q8_0.gguf", "mtp-tiny-Q4_K_M.gguf", "mtp-tiny-Q8_0.gguf", *PLAIN,
        "split/tiny-BF16-00001-of-00003.gguf", "split/tiny-BF16-00002-of-00003.gguf", "split/tiny-BF16-00003-of-00003.gguf",
        "split/tiny-BF16-00001-of-00002.gguf",
    ],
    "tiny/plain": ["a-F16.gguf", "b-Q2_K.gguf"],    # neither of the default quantizations
    "tiny/eight": ["a-F16.gguf", "b-Q8_0.gguf"],    # the second of them
    "tiny/words": ["README.md"],                    # no model
    "cut/model": PLAIN,        # each connection ends after CUT bytes
    "dead/model": PLAIN,       # each connection ends before the first byte of a file
    "wrong/model": PLAIN,      # other bytes than the listing says
    "long/model": PLAIN,       # a file goes on after its end
    "norange/model": PLAIN,    # Range is ignored
    "busy/model": PLAIN,       # the first answer to each question is 503
    "slow/model": PLAIN,       # a file takes a while
    "held/model": PLAIN,       # CUT bytes of a file come, and no more before the client has gone
    "private/model": PLAIN,    # needs the token, and is on another host that must not get it
    "gated/model": PLAIN,      # 403 with every token
    "old/model": PLAIN,        # renamed to tiny/model: relative redirects
    "evil/names": ["../../../evil-Q4_K_M.gguf", "/evil-Q4_K_M.gguf", "a/../../evil-Q4_K_M.gguf", "..\\evil-Q4_K_M.gguf", "C:evil-Q4_K_M.gguf", "good-Q8_0.gguf"],
    "evil/commit": PLAIN,      # a commit that is a path
    "evil/sum": PLAIN,         # a sum that is a path
    "evil/answer": PLAIN,      # a listing that is no JSON
}
CUT = 100_000


def content(path: str) -> bytes:
    """The bytes of a file, about 300 KB."""
    return b"GGUF" + hashlib.sha256(path.encode()).digest() * 9_000


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    log: list[list[str]] = []
    asked: set[str] = set()
    folder = Path(".")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/log":
            with self.lock:
                taken = list(self.log)
                self.log.clear()
            self.say(200, json.dumps(taken).encode())
            return
        with self.lock:
            self.log.append([self.command, path, self.headers.get("Range", ""), self.headers.get("Authorization", "")])
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self.listing(match[1], match[2])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self.file(match[1], match[2])
        elif path == "/plain/file.gguf":
            self.file("tiny/model", "file.gguf")
        else:
            self.say(404, b'{"error": "Repository not found"}')

    def allowed(self, repository: str) -> bool:
        if repository == "private/model" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.say(401, b'{"error": "Invalid username or password."}')
        elif repository == "gated/model":
            self.say(403, b'{"error": "Access to model gated/model is restricted."}')
        elif repository == "busy/model" and self.path not in self.asked:
            self.asked.add(self.path)
            self.say(503, b"busy")
        else:
            return True
        return False

    def bytes_of(self, repository: str, path: str) -> bytes:
        return (self.folder / path).read_bytes() if repository.startswith(("stories/", "local/")) else content(path)

    def listing(self, repository: str, revision: str) -> None:
        owner, name = repository.split("/")
        paths = {"stories": [f"stories-{name}.gguf"], "local": [f"{name}.gguf"]}.get(owner) or REPOSITORIES.get(repository)
        if paths is None or revision not in ("main", COMMIT):
            self.say(404, b'{"error": "Repository not found"}')
            return
        if not self.allowed(repository):
            return
        if repository == "old/model":
            self.say(307, b"", {"Location": self.path.replace("old/model", "tiny/model")})
            return
        if repository == "evil/answer":
            self.say(200, b"<html>Log in first</html>")
            return
        files = []
        for path in paths:
            data = self.bytes_of(repository, path)
            entry = {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
            if path.endswith(".gguf"):
                sha256 = "../../../sum" if repository == "evil/sum" else hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
            files.append(entry)
        commit = "../../commit" if repository == "evil/commit" else COMMIT
        self.say(200, json.dumps({"id": repository, "sha": commit, "siblings": files}).encode(), {"Content-Type": "application/json"})

    def resolve(self, repository: str, revision: str, path: str) -> None:
        """Sends the client to another host, as the hub does for the files of Git LFS."""
        if not self.allowed(repository):
            return
        if repository == "old/model":
            self.say(307, b"", {"Location": self.path.replace("old/model", "tiny/model")})
            return
        data = self.bytes_of(repository, path)
        self.say(302, b"", {
            "Location": f"http://localhost:{self.server.server_port}/cdn/{repository}/{path}", "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
        })

    def file(self, repository: str, path: str) -> None:
        if self.headers.get("Authorization"):
            self.say(400, b"only one authorization is allowed")
            return
        if repository == "busy/model" and not self.allowed(repository):
            return
        data = self.bytes_of(repository, path)
        if repository == "wrong/model":
            data = b"GGUF" + bytes(len(data) - 4)
        if repository == "long/model":
            data += bytes(1_000_000)
        begin, status, more = 0, 200, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}
        given = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if given and repository != "norange/model":
            begin, status = int(given[1]), 206
            if begin >= len(data):
                self.say(416, b"")
                return
            more["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        self.send_response(status)
        for name, value in {**more, "Content-Length": str(len(data) - begin)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        end = len(data)
        if repository == "held/model" and begin == 0:
            self.wfile.write(data[:CUT])
            self.connection.recv(1)
            self.close_connection = True
            return
        if repository in ("cut/model", "dead/model"):
            end = min(end, begin + CUT) if repository == "cut/model" else begin
        for at in range(begin, end, 10_000):
            self.wfile.write(data[at:min(at + 10_000, end)])
            if repository == "slow/model":
                time.sleep(0.05)
        if end < len(data):
            self.close_connection = True

    def say(self, status: int, body: bytes, headers: dict[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that end early are no error."""


def main() -> None:
    if len(sys.argv) > 1:
        Hub.folder = Path(sys.argv[1])
    server = Server(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
