"""Grammars, and the keys of a request that has one."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict


class LlamaGrammar:
    """A GBNF grammar."""

    def __init__(self, grammar: str) -> None:
        self.grammar: str | None = grammar
        self.schema: Any = None

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar of its text."""
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """A grammar of a file."""
        return cls(Path(file).read_text(encoding="utf-8"))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """The texts that are valid under a JSON schema."""
        grammar = cls("")
        grammar.grammar, grammar.schema = None, json.loads(json_schema)
        return grammar


def grammar_of(grammar: LlamaGrammar | None) -> Dict[str, Any]:
    if grammar is None:
        return {}
    return {"json_schema": grammar.schema} if grammar.grammar is None else {"grammar": grammar.grammar}
