"""Downloads models from Hugging Face's hub, or from an address, into the hub's own cache."""
from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence, NoReturn
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ._errors import InvalidRequestError, ModelError, NotFoundError

#: Attempts in a row that bring nothing before a download fails, and the seconds that a connection may be silent.
_ATTEMPTS, _SILENT = 4, 60
_BLOCK = 1 << 20
#: The beginnings of drafters' names, as llama.cpp's converter writes them.
_DRAFTERS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_NAME = r"[A-Za-z0-9_][\w.-]*"
_REFERENCE = re.compile(rf"(?:hf:)?({_NAME}/{_NAME}?)(?:@([\w.-]+))?(?:/(.+\.gguf)|:([\w.-]+))?", re.ASCII)
_ADDRESS = re.compile(rf"(https?://[^/]+)/({_NAME}/{_NAME})/(?:resolve|blob)/([^/]+)/(.+)", re.ASCII)
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.I)

#: Gets the name of a file, the bytes of it that are there, and its size.
Receive = Callable[[str, int, int], None]


class _File(NamedTuple):
    """A file of a repository. Without `blob` it is in the cache already."""

    path: str
    size: int = 0
    blob: str | None = None
    url: str = ""


class _Place(NamedTuple):
    """A folder of the cache, and what of it is meant."""

    name: str
    revision: str
    quant: str | None
    path: str | None
    endpoint: str

    @property
    def folder(self) -> Path:
        return cache() / f"models--{self.name.replace('/', '--')}"


def cache() -> Path:
    """The folder of downloads."""
    get = os.environ.get
    hub = get("HF_HUB_CACHE") or get("HUGGINGFACE_HUB_CACHE")
    return Path(hub).expanduser() if hub else _home() / "hub"


def _home() -> Path:
    return Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface").expanduser()


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


#: The keys of a load for files that lie beside a model.
_BESIDE = ("model_draft", "mmproj")


def is_remote(model: object) -> bool:
    """Whether a model is one to download: `hf:owner/name[:quant]`, or an address."""
    return isinstance(model, str) and model.startswith(("hf:", "http://", "https://"))


def download(reference: str, *, beside: Sequence[str] = _BESIDE, receive: Receive | None = None) -> dict[str, str]:
    """Downloads `owner/name[@revision][:quant]`, `owner/name/file.gguf` or an address into Hugging Face's cache, or finds it there. Returns
    the paths as keys of a load: `model`, and of what lies beside it, those in `beside`. `receive` is told each file's name, bytes and size. Without a quantization it takes Q4_K_M,
    else Q8_0, else the first model, as llama.cpp does. `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` are obeyed."""
    place = _place(reference)
    commit, files = _files(place)
    chosen = _chosen(place, files, beside)
    folder = place.folder / "snapshots" / commit
    for parts in chosen.values():
        for file in parts:
            if file.blob is not None and not (folder / file.path).exists():
                _fetch(place, file, folder / file.path, receive or (lambda *_: None))
    if place.path is None or any(file.blob for file in files):
        with _writing(place.folder):
            (place.folder / "refs").mkdir(parents=True, exist_ok=True)
            (place.folder / "refs" / place.revision).write_text(commit)
    return {key: str(folder / parts[0].path) for key, parts in chosen.items()}


def _place(reference: str) -> _Place:
    if match := _ADDRESS.fullmatch(reference.partition("?")[0]):
        return _Place(match[2], match[3], None, unquote(match[4]), match[1])
    if match := _REFERENCE.fullmatch(reference):
        if ".." not in match[1]:
            return _Place(match[1], match[2] or "main", match[4], match[3], _endpoint())
    if re.match(r"https?://[^/]+/.", reference):
        # A "commit" of its own for each address.
        name = f"{re.sub('[^A-Za-z0-9.]', '-', urlsplit(reference).netloc)}"
        return _Place(name, hashlib.sha256(reference.encode()).hexdigest()[:40], None, urlsplit(reference).path.rpartition("/")[2], reference)
    raise InvalidRequestError(f'model: expected "owner/name", "owner/name:Q4_K_M", "owner/name/file.gguf" or an address, got {reference!r}')


def _files(place: _Place) -> tuple[str, list[_File]]:
    """A commit and its files: those of the hub, or without a connection those of the cache."""
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    why = "HF_HUB_OFFLINE is set"
    if not offline:
        try:
            return _listed(place)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, HTTPError):
                _refused(place, error)
            why = f"{place.endpoint} cannot be reached: {getattr(error, 'reason', error)}"
    ref = place.folder / "refs" / place.revision
    commit = ref.read_text().strip() if ref.is_file() else place.revision
    folder = place.folder / "snapshots" / commit
    files = [_File(path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*.gguf")) if path.exists()]
    if not re.fullmatch("[0-9a-f]{40}", commit) or not files:
        raise NotFoundError(f"{place.name} is not in {cache()}, and {why}")
    return commit, files


def _listed(place: _Place) -> tuple[str, list[_File]]:
    """The files that the server has."""
    if "/" not in place.name:
        with _open(place.endpoint, method="HEAD", attempts=_ATTEMPTS) as head:
            size, etag = head.headers.get("Content-Length"), head.headers.get("ETag", "")
        if size is None or not _is_safe(place.path or ""):
            raise ModelError(f"{place.endpoint}: the server tells no size of a file")
        return place.revision, [_File(place.path or "", int(size), hashlib.sha256(f"{place.endpoint} {etag} {size}".encode()).hexdigest()[:40], place.endpoint)]
    with _open(f"{place.endpoint}/api/models/{place.name}/revision/{quote(place.revision)}?blobs=true", attempts=_ATTEMPTS) as answer:
        text = answer.read()
    files = []
    try:
        listing = json.loads(text)
        commit = listing["sha"]
        if not re.fullmatch("[0-9a-f]{40}", commit):
            raise ValueError
        for entry in listing["siblings"]:
            path = entry["rfilename"]
            blob = (entry.get("lfs") or {}).get("sha256") or entry["blobId"]
            if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob):
                raise ValueError
            if path.endswith(".gguf") and _is_safe(path):
                files.append(_File(path, int(entry["size"]), blob, f"{place.endpoint}/{place.name}/resolve/{commit}/{quote(path)}"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{place.endpoint} gave no list of the files of {place.name}") from None
    return commit, files


def _is_safe(path: str) -> bool:
    """Whether a path stays inside its folder, on every system."""
    return not re.search(r'[\\:\x00-\x1f]', path) and all(part not in ("", ".", "..") for part in path.split("/"))


def _chosen(place: _Place, files: list[_File], keys: Sequence[str]) -> dict[str, list[_File]]:
    """The files that a reference means, by the key of a load: llama.cpp's choice."""
    kinds = {"mmproj": [file for file in files if "mmproj" in file.path],
             "model_draft": [file for file in files if file.path.rpartition("/")[2].startswith(_DRAFTERS)]}
    aside = [*kinds["mmproj"], *kinds["model_draft"]]
    models = [file for file in files if file not in aside and "imatrix" not in file.path and int((_SPLIT.fullmatch(file.path) or "001")[2]) == 1]
    if place.path is not None:
        found = next((file for file in files if file.path == place.path or fnmatch(file.path, place.path)), None)
    else:
        wanted = [place.quant] if place.quant else ["Q4_K_M", "Q8_0"]
        matching = (file for quant in wanted for file in models if re.search(re.escape(quant) + "[.-]", file.path, re.I))
        found = next(matching, None if place.quant else next(iter(models), None))
    if found is None:
        names = ", ".join(file.path for file in models)
        raise NotFoundError(f"{place.name}: no {place.path or place.quant or 'GGUF file'}" + (f"; there is {names}" if names else "; there is no GGUF file"))
    chosen = {"model": _parts(found, files)}
    for key, beside in kinds.items():
        near = [file for file in beside if found.path.startswith(file.path.rpartition("/")[0])]
        if near and key in keys and found not in aside:
            # In the nearest folder, with the most similar quantization.
            chosen[key] = _parts(min(near, key=lambda file: (-file.path.count("/"), abs(_bits(file.path) - _bits(found.path)))), files)
    return chosen


def _bits(path: str) -> int:
    """4 of `name-Q4_K_M.gguf`."""
    name = match[1] if (match := _SPLIT.fullmatch(path)) else path[:-len(".gguf")]
    digits = re.search(r"[-.][A-Za-z_]*(\d+)\w*$", name, re.ASCII)
    return int(digits[1]) if digits else 0


def _parts(file: _File, files: list[_File]) -> list[_File]:
    """All files of a model, the first one first."""
    match = _SPLIT.fullmatch(file.path)
    if not match:
        return [file]
    paths = [f"{match[1]}-{i:05}-of-{match[3]}.gguf" for i in range(1, int(match[3]) + 1)]
    by_path = {other.path: other for other in files}
    if missing := [path for path in paths if path not in by_path]:
        raise NotFoundError(f"{file.path}: {missing[0]} is missing")
    return [by_path[path] for path in paths]


def _fetch(place: _Place, file: _File, target: Path, receive: Receive) -> None:
    """Downloads a file, checks its sum and links it into the snapshot."""
    blob = place.folder / "blobs" / str(file.blob)
    partial = blob.with_name(f"{blob.name}.foredraft.incomplete")
    with _writing(place.folder):
        blob.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
    if not blob.exists():
        if _received(place, file, partial, receive) != blob.name and len(blob.name) == 64:
            partial.unlink(missing_ok=True)
            raise ModelError(f"{file.path}: what {file.url} sent has not the SHA-256 {blob.name}, and was deleted")
        with suppress(FileNotFoundError):  # another process was first
            partial.replace(blob)
    with suppress(FileExistsError), _writing(place.folder):
        try:
            target.symlink_to(os.path.relpath(blob, target.parent))
        except (OSError, NotImplementedError) as error:
            if isinstance(error, FileExistsError):
                raise
            shutil.move(blob, target)  # Windows without the right to make links, as huggingface_hub does


def _received(place: _Place, file: _File, partial: Path, receive: Receive) -> str:
    """Completes a partial file, and returns its SHA-256. Processes that do so at once write the same bytes at the same places, each from an
    end of the file on. So they need no lock, and a file never has a gap."""
    with _writing(place.folder):
        out = open(os.open(partial, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b", buffering=0)
    with out:
        at = out.seek(0, os.SEEK_END)
        if at > file.size:
            at = out.truncate(0)
        failures = 0
        while at < file.size:
            before = at
            try:
                with _open(file.url, {"Range": f"bytes={at}-"} if at else {}) as answer:
                    at = out.seek(at if answer.status == 206 else 0)
                    while at < file.size and (block := answer.read1(min(_BLOCK, file.size - at))):
                        with _writing(place.folder):
                            at += out.write(block)
                        receive(file.path, at, file.size)
                why: Any = "the connection was cut"
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, HTTPError) and not _is_busy(error):
                    _refused(place, error)
                why = error
            if at <= before:
                failures += 1
                if failures == _ATTEMPTS:
                    raise ModelError(f"{file.path}: {at} of {file.size} bytes are there, then {file.url} sent no more: {why}. The next attempt goes on from there.")
                time.sleep(_pause(failures))
            else:
                failures = 0
        digest = hashlib.sha256()
        out.seek(0)
        while block := out.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


class _writing:
    """A block that writes into the cache: its failures name the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileExistsError):
            raise ModelError(f"{self._folder} cannot be written: {error.strerror}. HF_HUB_CACHE names another folder for downloads.") from error


class _Redirects(HTTPRedirectHandler):
    """Takes no token to another host."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            request.remove_header("Authorization")
        return request


def _open(url: str, headers: dict[str, str] | None = None, method: str = "GET", attempts: int = 1) -> Any:
    """Opens an address. A busy server is asked again."""
    request = Request(url, headers={"User-Agent": "foredraft", **(headers or {})}, method=method)
    if (token := _token()) and urlsplit(url)[:2] == urlsplit(_endpoint())[:2]:
        request.add_header("Authorization", f"Bearer {token}")
    for attempt in range(1, attempts + 1):
        try:
            return build_opener(_Redirects).open(request, timeout=_SILENT)
        except HTTPError as error:
            if attempt == attempts or not _is_busy(error):
                raise
            time.sleep(_pause(attempt))
    raise AssertionError


def _is_busy(error: HTTPError) -> bool:
    """Whether the server may answer later."""
    return error.code in (408, 429) or error.code >= 500


def _pause(failures: int) -> float:
    return float(0.1 * 4 ** failures)


def _token() -> str:
    if token := os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return token.strip()
    saved = Path(os.environ.get("HF_TOKEN_PATH") or _home() / "token").expanduser()
    return saved.read_text().strip() if saved.is_file() else ""


def _refused(place: _Place, error: HTTPError) -> NoReturn:
    """Raises the exception for an answer of the server."""
    what = f"{place.name}: {urlsplit(place.endpoint).netloc} answered {error.code}"
    if error.code in (401, 403):
        raise ModelError(f"{what}. It is private, gated or not there: HF_TOKEN gives a token of an account that has access.") from None
    raise NotFoundError(f"{what}: there is no such repository, revision or file" if error.code == 404 else f"{what} {error.reason}") from None


def main() -> Any:
    """The program foredraft-get."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--only-model"]
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        return "foredraft-get [--only-model] owner/name[:quant] | owner/name/file.gguf | address\n\n" + " ".join((download.__doc__ or "").split())
    percent = -1

    def show(path: str, done: int, size: int) -> None:
        nonlocal percent
        if percent != (percent := 100 * done // size):
            print(f"\r{path} {percent} % of {size / 1e6:.0f} MB", end="\n" if done == size else "", file=sys.stderr, flush=True)

    try:
        print(json.dumps(download(arguments[0], beside=() if "--only-model" in sys.argv else _BESIDE, receive=show), indent=2))
    except (InvalidRequestError, ModelError, NotFoundError) as error:
        return f"foredraft-get: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main())
