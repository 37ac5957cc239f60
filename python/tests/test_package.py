"""The package itself: its modules, and what its types promise."""
import ast
import importlib.metadata
import sys
from pathlib import Path

import pytest

import foredraft
import foredraft_llama_cpp
from conftest import TARGET
from foredraft import EngineOptions, RequestOptions, SpeculativeOptions

PACKAGES = [Path(package.__file__).parent for package in (foredraft, foredraft_llama_cpp)]


def imports_of(path):
    """The package's modules that a module imports, also those for type checkers only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [name.name for name in node.names]


@pytest.mark.parametrize("folder, module, imported", [(PACKAGES[0], "_engine", "_stream"), (PACKAGES[1], "_llama_steps", "_llama_state")])
def test_no_modules_import_each_other(folder, module, imported):
    imports = {path.stem: set(imports_of(path)) for path in folder.glob("*.py")}
    assert imported in imports[module], "the test must find imports"

    def reached(module, seen):
        for other in imports.get(module, ()):
            if other not in seen:
                seen.add(other)
                reached(other, seen)
        return seen

    circles = [module for module in imports if module in reached(module, set())]
    assert not circles


def test_every_typed_key_is_known_to_the_library(engine):
    keys = [key for key in RequestOptions.__annotations__ if key not in ("prompts", "speculative", "schema")]
    nothing = dict.fromkeys([*keys, *(f"speculative.{key}" for key in SpeculativeOptions.__annotations__)])
    # A null counts as absent, but its key is looked at. (`tag` is null then.)
    answer = engine.complete("Once", **{**nothing, "n_predict": 1})
    assert not [warning for warning in answer.get("warnings", ()) if "unknown" in warning]
    assert [warning for warning in engine.complete("Once", n_predcit=1, n_predict=1)["warnings"] if "n_predcit" in warning]


def test_every_typed_key_of_an_engine_is_known_to_the_library():
    from conftest import DRAFT

    with foredraft.Engine(DRAFT, **{**dict.fromkeys(EngineOptions.__annotations__), "warmup": False}) as engine:
        assert not [warning for warning in engine.status()["warnings"] if "unknown" in warning]


def test_the_module_runs_on_python_3_9():
    # Annotations with newer syntax are fine, because they are not evaluated.
    for path in (path for folder in PACKAGES for path in folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        future = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
        assert future or path.stem == "__init__", path
    assert sys.version_info >= (3, 9)


def test_both_packages_have_the_library_s_version():
    version = foredraft.version()
    assert foredraft.__version__ == foredraft_llama_cpp.__version__ == version
    for name in ("foredraft", "foredraft-llama-cpp"):
        assert importlib.metadata.version(name) == version
    assert importlib.metadata.requires("foredraft-llama-cpp") == [f"foredraft=={version}"]


def test_names_for_llama_cpp_python_are_in_a_package_of_their_own():
    for name in ("Llama", "LlamaGrammar", "LLAMA_SPLIT_MODE_LAYER", "llama_cpp"):
        with pytest.raises(AttributeError, match="foredraft-llama-cpp"):
            getattr(foredraft, name)
    with pytest.raises(AttributeError, match="no attribute 'Engin'"):
        foredraft.Engin


@pytest.mark.skipif(sys.platform != "linux", reason="isolated engines are for Linux")
def test_the_package_carries_the_program_of_isolated_engines():
    texts = set()
    for isolate in (True, False):
        with foredraft.Engine(TARGET, warmup=False, n_threads=1, isolate=isolate) as engine:
            assert ("isolation" in engine.status()) == isolate
            texts.add(engine.complete("Once upon a time", n_predict=12, temperature=0).text)
    assert len(texts) == 1
