"""Checks a program that downloads models against the server of tests/hub/server.py.

    python3 tests/hub/check.py PROGRAM [ARGUMENTS ...]      `PROGRAM ... REFERENCE` is foredraft-get, or does what it does

The program prints a JSON object of the keys of `foredraft_load`, and ends with 0, or it prints a message to its standard error and ends with 1.
"""
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from server import COMMIT, TOKEN, content  # noqa: E402

#: Ends a program that hangs; no check asserts how long anything takes.
HANG = 600
PROGRAM = sys.argv[1:]
BROKEN = "tiny-Q4_K_M.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Case:
    """A folder for the cache, and what runs with it."""

    def __init__(self, server: str, home: Path) -> None:
        self.server, self.home = server, home
        self.hub = home / "hub"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        self.env.update(HF_HOME=str(home), HF_ENDPOINT=server, NO_PROXY="127.0.0.1,localhost", no_proxy="127.0.0.1,localhost")
        self.requests()

    def start(self, *arguments: str, **env: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([*PROGRAM, *arguments], env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, process: "subprocess.Popen[str]", status: int = 0) -> str:
        try:
            out, err = process.communicate(timeout=HANG)
        finally:
            process.kill()
        assert process.returncode == status, f"ended with {process.returncode}, not {status}\n{out}\n{err}"
        assert "Traceback" not in err and "panicked" not in err and "   at " not in err, err
        return err if status else out

    def get(self, *arguments: str, **env: str) -> "dict[str, str]":
        return json.loads(self.end(self.start(*arguments, **env)))

    def fails(self, *arguments: str, **env: str) -> str:
        """The message of a download that fails."""
        return self.end(self.start(*arguments, **env), 1)

    def requests(self) -> "list[list[str]]":
        """The requests since the last call."""
        with urllib.request.urlopen(f"{self.server}/log") as answer:
            return json.load(answer)

    def repository(self, name: str) -> Path:
        return self.hub / ("models--" + name.replace("/", "--"))

    def place_partial(self, repository: str, path: str, size: int) -> Path:
        """What an interrupted download left."""
        data = content(path)
        partial = self.repository(repository) / "blobs" / (sha256(data) + ".foredraft.incomplete")
        partial.parent.mkdir(parents=True)
        partial.write_bytes(data[:size])
        return partial

    def holds(self, repository: str, path: str, file: str, name: "str | None" = None) -> None:
        """The file is where huggingface_hub looks for it, and right, and no partial file is left."""
        folder = self.repository(repository)
        assert Path(file) == folder / "snapshots" / COMMIT / path, file
        assert Path(file).read_bytes() == content(name or path)
        assert os.path.samefile(file, folder / "blobs" / sha256(content(path)))
        assert (folder / "refs/main").read_text() == COMMIT
        assert not [*folder.rglob("*.incomplete")]


def whole_layout(case: Case) -> None:
    """The default quantization, the projector and the drafter of the nearest one, in the hub's layout."""
    found = case.get("tiny/model")
    assert {key: Path(file).name for key, file in found.items()} == {
        "model": "tiny-Q4_K_M.gguf", "model_draft": "mtp-tiny-Q4_K_M.gguf", "mmproj": "mmproj-tiny-Q8_0.gguf"}, found
    for file in found.values():
        case.holds("tiny/model", Path(file).name, file)
    link = os.readlink(found["model"])
    assert link == f"../../blobs/{sha256(content('tiny-Q4_K_M.gguf'))}", link
    assert len(case.requests()) == 1 + 2 * 3
    # A second time only the list of files is asked for.
    assert case.get("tiny/model") == found
    assert [path for _, path, *_ in case.requests()] == ["/api/models/tiny/model/revision/main"]


def quantizations(case: Case) -> None:
    """llama.cpp's choice: the quantization that is asked for, in any case; else Q4_K_M, Q8_0, the first model."""
    for reference, name in {
        "tiny/model:q8_0": "tiny-Q8_0.gguf", "hf:tiny/model:Q8_0": "tiny-Q8_0.gguf", "tiny/plain": "a-F16.gguf", "tiny/eight": "b-Q8_0.gguf",
        "tiny/model/tiny-Q8_0.gguf": "tiny-Q8_0.gguf", f"tiny/model@{COMMIT}:Q8_0": "tiny-Q8_0.gguf",
    }.items():
        assert Path(case.get("--only-model", reference)["model"]).name == name, reference
    for reference in "tiny/model:Q5_K_M", "tiny/model/none.gguf":
        message = case.fails(reference)
        assert "tiny-Q8_0.gguf" in message and "tiny-Q4_K_M.gguf" in message, message
    assert "no GGUF file" in case.fails("tiny/words")


def split_files(case: Case) -> None:
    """All files of a split model, and no other."""
    found = case.get("tiny/model:BF16")
    names = sorted(file.name for file in Path(found["model"]).parent.iterdir())
    assert names == [f"tiny-BF16-0000{i}-of-00003.gguf" for i in (1, 2, 3)], names
    case.holds("tiny/model", "split/tiny-BF16-00001-of-00003.gguf", found["model"])


def cut_connections(case: Case) -> None:
    """A connection that ends early is followed by another one, from there on."""
    case.holds("cut/model", BROKEN, case.get("cut/model")["model"])
    ranges = [asked for _, path, asked, _ in case.requests() if path.startswith("/cdn/")]
    assert ranges[1:] == ["bytes=100000-", "bytes=200000-"], ranges


def resumed(case: Case) -> None:
    """A download goes on where one of an earlier process ended."""
    case.place_partial("tiny/model", BROKEN, 123_456)
    case.holds("tiny/model", BROKEN, case.get("--only-model", "tiny/model")["model"])
    assert [asked for _, path, asked, _ in case.requests() if path.startswith("/cdn/")] == ["bytes=123456-"]


def resumed_after_the_last_byte(case: Case) -> None:
    case.place_partial("tiny/model", BROKEN, len(content(BROKEN)))
    case.holds("tiny/model", BROKEN, case.get("--only-model", "tiny/model")["model"])
    assert not [path for _, path, *_ in case.requests() if path.startswith("/cdn/")]


def partial_file_too_long(case: Case) -> None:
    with open(case.place_partial("tiny/model", BROKEN, 100), "ab") as partial:
        partial.write(bytes(400_000))
    case.holds("tiny/model", BROKEN, case.get("--only-model", "tiny/model")["model"])


def no_ranges(case: Case) -> None:
    """A server that ignores Range sends the file from its beginning."""
    case.place_partial("norange/model", BROKEN, 123_456)
    case.holds("norange/model", BROKEN, case.get("norange/model")["model"])


def dead_connections(case: Case) -> None:
    """It gives up after some attempts that brought nothing."""
    message = case.fails("dead/model")
    assert BROKEN in message, message
    assert len([path for _, path, *_ in case.requests() if path.startswith("/cdn/")]) == 4


def busy_server(case: Case) -> None:
    case.holds("busy/model", BROKEN, case.get("busy/model")["model"])


def wrong_sum(case: Case) -> None:
    message = case.fails("wrong/model")
    assert "SHA-256" in message and BROKEN in message, message
    assert not [*case.repository("wrong/model").rglob("*.gguf")] and not [*(case.repository("wrong/model") / "blobs").iterdir()]


def longer_than_said(case: Case) -> None:
    case.holds("long/model", BROKEN, case.get("long/model")["model"])


def full_disk(case: Case) -> None:
    if PROGRAM[0] == "mono":
        return  # it opens no devices; size_limit has the same end
    partial = case.place_partial("tiny/model", BROKEN, 0)
    partial.unlink()
    partial.symlink_to("/dev/full")
    message = case.fails("--only-model", "tiny/model")
    assert "HF_HUB_CACHE" in message and re.search("no space|disk full", message, re.I), message
    assert not [*case.repository("tiny/model").rglob("*.gguf")]


def size_limit(case: Case) -> None:
    """A process that may write no large files fails like one with a full disk, and what it wrote is used later."""
    process = subprocess.Popen([*PROGRAM, "--only-model", "tiny/model"], env=case.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
    message = case.end(process, 1)
    assert "HF_HUB_CACHE" in message, message
    case.requests()
    case.holds("tiny/model", BROKEN, case.get("--only-model", "tiny/model")["model"])
    assert [asked for _, path, asked, _ in case.requests() if path.startswith("/cdn/")] == ["bytes=200000-"]


def limit() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


def two_at_once(case: Case) -> None:
    processes = [case.start("slow/model") for _ in range(3)]
    for found in [json.loads(case.end(process)) for process in processes]:
        case.holds("slow/model", BROKEN, found["model"])


def killed(case: Case) -> None:
    """What a killed process has received is not received again."""
    process = case.start("held/model")
    partial = case.repository("held/model") / "blobs" / (sha256(content(BROKEN)) + ".foredraft.incomplete")
    while not partial.exists() or not partial.stat().st_size:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    case.requests()
    case.holds("held/model", BROKEN, case.get("held/model")["model"])
    ranges = [asked for _, path, asked, _ in case.requests() if path.startswith("/cdn/")]
    assert len(ranges) == 1 and int(ranges[0][6:-1]) > 0, ranges


def access(case: Case) -> None:
    """The token goes to the endpoint, and to no other host."""
    for message in case.fails("private/model"), case.fails("private/model", HF_TOKEN="hf_other"), case.fails("gated/model", HF_TOKEN=TOKEN):
        assert "HF_TOKEN" in message, message
    case.holds("private/model", BROKEN, case.get("private/model", HF_TOKEN=TOKEN)["model"])
    assert all(path.startswith("/cdn/") != (authorization == f"Bearer {TOKEN}") for _, path, _, authorization in case.requests()[3:])


def saved_token(case: Case) -> None:
    """The token that `hf auth login` saved."""
    (case.home / "token").write_text(TOKEN + "\n")
    case.holds("private/model", BROKEN, case.get("private/model")["model"])


def not_found(case: Case) -> None:
    message = case.fails("no/such")
    assert "no/such" in message and "404" in message, message
    assert not case.repository("no/such").exists()
    for reference in "no-such", "../../etc/passwd", "a/..", "hf:", "a/b/c", "ftp://a/b.gguf", "":
        assert "owner/name" in case.fails(reference), reference


def renamed(case: Case) -> None:
    assert Path(case.get("--only-model", "old/model")["model"]).read_bytes() == content(BROKEN)


def evil_names(case: Case) -> None:
    """A file name that leads out of the folder is never used."""
    before = {*case.home.parent.rglob("*")}
    found = case.get("evil/names")
    case.holds("evil/names", "good-Q8_0.gguf", found["model"])
    for reference in "evil/commit", "evil/sum", "evil/answer":
        assert reference in case.fails(reference)
    outside = [path for path in {*case.home.parent.rglob("*")} - before if case.repository("evil/names") not in [path, *path.parents]]
    assert {*outside} <= {case.hub, *case.home.rglob(".")}, outside


def offline(case: Case) -> None:
    message = case.fails("tiny/model", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in message, message
    found = case.get("--only-model", "tiny/model")
    split = case.get("--only-model", "tiny/model:BF16")
    case.requests()
    for env in {"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}:
        assert case.get("--only-model", "tiny/model", **env) == found
        assert case.get("--only-model", "tiny/model:BF16", **env) == split
        case.fails("tiny/model:Q8_0", **env)
    assert case.requests() == []
    # A split model of which a file is missing is not whole.
    Path(split["model"].replace("00001-of", "00002-of")).unlink()
    assert "00002-of-00003" in case.fails("--only-model", "tiny/model:BF16", HF_HUB_OFFLINE="1")


def addresses(case: Case) -> None:
    """The address of a file of the hub is that file; another address is a file without a sum."""
    for kind in "resolve", "blob":
        found = case.get("--only-model", f"{case.server}/tiny/model/{kind}/main/tiny-Q8_0.gguf?download=true")
        case.holds("tiny/model", "tiny-Q8_0.gguf", found["model"])
    address = f"{case.server}/plain/file.gguf"
    found = case.get(address)
    assert Path(found["model"]).read_bytes() == content("file.gguf") and Path(found["model"]).name == "file.gguf"
    case.requests()
    assert case.get(address) == found == case.get(address, HF_HUB_OFFLINE="1")
    assert [method for method, *_ in case.requests()] == ["HEAD"]
    assert "404" in case.fails(f"{case.server}/plain/none.gguf")


def other_folder(case: Case) -> None:
    folder = case.home / "elsewhere"
    found = case.get("--only-model", "tiny/model", HF_HUB_CACHE=str(folder))
    assert Path(found["model"]).is_relative_to(folder), found


CASES = [
    whole_layout, quantizations, split_files, cut_connections, resumed, resumed_after_the_last_byte, partial_file_too_long, no_ranges, dead_connections,
    busy_server, wrong_sum, longer_than_said, full_disk, size_limit, two_at_once, killed, access, saved_token, not_found, renamed, evil_names, offline, addresses,
    other_folder,
]


def main() -> None:
    server = subprocess.Popen([sys.executable, str(HERE / "server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout and server.stdin
    address = server.stdout.readline().strip()
    failed = []
    only = os.environ.get("HUB_CASES", "").split()
    for case in CASES:
        if only and case.__name__ not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "home").mkdir()
            try:
                case(Case(address, Path(folder) / "home"))
                print(f"ok {case.__name__}", flush=True)
            except Exception as error:  # also a wrong answer of the program
                failed.append(case.__name__)
                place = error.__traceback__
                while place and place.tb_next and place.tb_next.tb_frame.f_code.co_filename == __file__:
                    place = place.tb_next
                print(f"FAILED {case.__name__}, line {place.tb_lineno if place else '?'}: {error!r}", flush=True)
    server.stdin.close()
    server.wait()
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
