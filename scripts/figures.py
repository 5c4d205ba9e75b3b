#!/usr/bin/env python3
"""Finds figures in README.md, docs/ and the decisions that are not in the record of bench-results that they name.

A paragraph, an item of a list or a row of a table names a record by a link, or a path, into bench-results: a folder or a
file in it. A paragraph that ends with a colon names it for the table below. Each figure there has to be printed in the
record's tables and texts, rounded or, where a unit follows, in another unit; a .jsonl counts where it has no table.
Not looked at: code, columns headed paper, theirs or asked, versions, dates, and numbers up to 10 without a point.
"""
import bisect
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = re.compile(r"bench-results/([\w-]+(?:/[\w-]+\.\w+)?)")
FIGURE = re.compile(r"(?<![\w.-])(\d[\d,]*\d(?:\.\d+)?|\d(?:\.\d+)?)(?![\w-])(?!\.\d)\**((?:(?:,| to| and|;) [\d.,]+)*\s*(?:[unm]?s|[GMK]i?B|million|thousand)\b)?")
RECORDED = re.compile(r"(?<![\d.])\d[\d,]*(?:\.\d+)?")
IGNORED = re.compile(r"`[^`]*`|\]\([^)]*\)|\b(?:Linux|RFC|ADR|commit|section|version)\s*[\d.]+|\b20\d\d(?:-\d\d-\d\d)?\b")
NOT_OURS = re.compile(r"\b(?:paper|asked|theirs)\b", re.I)


def number(text):
    return float(text.replace(",", ""))


@functools.cache
def values(record):
    path = ROOT / "bench-results" / record
    files = path.iterdir() if path.is_dir() else [path]
    tables = [f for f in files if f.suffix in (".txt", ".md", ".csv")
              or f.suffix == ".jsonl" and (f == path or not f.with_suffix(".txt").exists())]
    return sorted({number(text) for file in tables for text in RECORDED.findall(file.read_text())})


def is_in(record, text, unit):
    decimals = len(text.partition(".")[2])
    zeros = len(text.replace(",", "")) - len(text.replace(",", "").rstrip("0")) if not decimals else -decimals
    half = 0.5 * 10 ** zeros  # 43,000 is what 43274 is rounded to
    for scale in (1, 1e3, 1e-3, 1e6) if unit else (1,):
        at = bisect.bisect_left(values(record), (number(text) - half) * scale * (1 - 1e-9))
        if at < len(values(record)) and values(record)[at] <= (number(text) + half) * scale * (1 + 1e-9):
            return True
    return False


def pieces(text):
    """Each paragraph, item and row of a table, with the records that it names."""
    above = []
    for block in re.split(r"\n\s*\n", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("|"):
            heads = lines[0].strip("|").split("|")
            for line in lines[2:]:
                cells = zip(line.strip().strip("|").split("|")[1:], heads[1:])
                yield RECORD.findall(line) or above, " | ".join(cell for cell, head in cells if not NOT_OURS.search(head))
        else:
            yield from ((RECORD.findall(item), item) for item in re.split(r"\n(?=\s*- )", block))
        above = RECORD.findall(block) if block.rstrip().endswith(":") else []


def figures(files):
    for file in files:
        for records, piece in pieces(file.read_text()):
            for text, unit in FIGURE.findall(IGNORED.sub("", piece)) if records else []:
                if "." in text or number(text) > 10:
                    yield file, records, text, unit


def main():
    absent = [(file, text, records) for file, records, text, unit
              in figures([ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])
              if not any(is_in(record, text, unit) for record in records)]
    for file, text, records in absent:
        print(f"{file.relative_to(ROOT)}: {text} is not in bench-results/{', '.join(dict.fromkeys(records))}")
    return len(absent) > 0


if __name__ == "__main__":
    sys.exit(main())
