#!/usr/bin/env python3
"""Counts the lines of product code (no tests, comments, blank lines) of each crate and folder, and fails where a folder has more than its number
in scripts/budget.txt. So whoever adds code says by how much, in the same commit. A number may be too high; a change that deletes code lowers it.

    scripts/budget.py [--write]      --write: puts today's numbers into the file
"""
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "scripts/budget.txt"
COMMENTS = {
    **dict.fromkeys((".rs", ".c", ".cpp", ".h", ".hpp", ".cmake", ".cs", ".cjs", ".mjs", ".cts", ".mts"), ("//", "/*", "*/")),
    ".py": ("#", '"""', '"""'),
    ".sh": ("#", None, None),
}
FOLDERS = r"(?:src|crates|python|node|csharp)/[^/]+(?=/)|(?:src|build|scripts|benches|examples)(?=/)"
IS_TEST = re.compile(r"(^|/)tests?[_/.]")
TEST_MODULE = re.compile(r"#\[cfg\(.*\btest\b.*\)\]\n(?:#.*\n)*(?:pub(?:\(.*?\))? )?mod \w+ \{\n(?:.*\n)*?\}\n")


def code_lines(path: Path) -> int:
    """The lines of code in a file."""
    line_comment, begin, end = COMMENTS[path.suffix]
    text = path.read_text()
    if path.suffix == ".rs":
        text = TEST_MODULE.sub("", text)
    count, in_comment = 0, False
    for line in filter(None, map(str.strip, text.splitlines())):
        if in_comment:
            in_comment = end not in line
        elif begin is not None and line.startswith(begin):
            in_comment = end not in line[len(begin):]
        else:
            count += not line.startswith(line_comment)
    return count


def counted() -> Counter[str]:
    """The lines of code of each folder."""
    lines: Counter[str] = Counter()
    for name in subprocess.check_output(["git", "-C", str(ROOT), "ls-files"], text=True).splitlines():
        path, folder = ROOT / name, re.match(FOLDERS, name)
        if folder and path.suffix in COMMENTS and not IS_TEST.search(name) and path.is_file():
            lines[folder[0]] += code_lines(path)
    return lines


def main() -> None:
    lines = counted()
    if sys.argv[1:] == ["--write"]:
        BUDGET.write_text("".join(f"{count:6} {folder}\n" for folder, count in sorted(lines.items())))
        return
    budget = {folder: int(count) for count, folder in map(str.split, BUDGET.read_text().splitlines())}
    over = [f"{folder}: {count} lines of code, {budget.get(folder, 0)} in scripts/budget.txt"
            for folder, count in sorted(lines.items()) if count > budget.get(folder, 0)]
    if over:
        sys.exit("\n".join([*over, "Delete some, or raise the number in the commit that says why (scripts/budget.py --write)."]))
    product = sum(count for folder, count in lines.items() if folder.startswith(("src", "crates")))
    print(f"{product} lines of product code in src and crates")


if __name__ == "__main__":
    main()
