#!/usr/bin/env python3
"""Shows that figures.py finds what is not in a record, and nothing else."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
import figures

PAGE = """
A round trip takes 0.19 us ([r](bench-results/r)), 43,000 a second, on Linux 6.18; the paper has more. It takes `77 us`.

99 names no record.

- 12.5 is not in it (bench-results/r).
- 187 is ([r](../bench-results/r/t.txt)), and 0.23 to 0.26 us.

As in bench-results/r:

| size | time | paper |
|---|---|---|
| 64 | 187 ns | 298 |
| 65 | 188 ns | 299 |

| 64 | 189 |
|---|---|
| 64 | 190 |
"""

with tempfile.TemporaryDirectory() as name:
    figures.ROOT = pathlib.Path(name)
    record = figures.ROOT / "bench-results" / "r"
    record.mkdir(parents=True)
    (record / "t.txt").write_text("8 187 43274 229 256\n")
    (record / "t.jsonl").write_text("12.5\n")  # has a table, which counts
    page = figures.ROOT / "README.md"
    page.write_text(PAGE)
    found = [text for _, records, text, unit in figures.figures([page])
             if not any(figures.is_in(one, text, unit) for one in records)]
if found != ["12.5", "188"]:
    sys.exit(f"found {found}")
