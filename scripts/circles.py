#!/usr/bin/env python3
"""Finds source files that depend on each other in a circle, whose number in each crate may only fall."""
import pathlib
import re
import sys

# Files in the largest circle of each crate that has one.
CEILINGS = {"bench": 8, "cli": 4, "interpose": 5, "megapipe": 21, "mmsg": 6, "monitor": 2, "mtcp": 2, "packetdrill": 3,
            "promote": 2, "ring": 4, "steering": 2, "sys": 4, "tcp": 5, "testkit": 4}
USE = re.compile(r"^ *(pub\S* )?use ([\w:*{},\s]+);", re.M)
PATH = re.compile(r"(?<![\w:])(?:[a-z]\w*::)+\w+")
ITEM = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(\w+)")
TEST = re.compile(r"^( *)#\[cfg\((?:test|\w*loom)\)\]\n *(?:[^\n{]*;|[^\n]*\{\n.*?^\1\})", re.M | re.S)
INLINE = re.compile(r"^( *)(?:pub\S* )?mod \w+ \{.*?^\1\}", re.M | re.S)


def leaves(tree):  # the path of each name that a `use` brings, and the name
    tree = re.sub(r"\s", "", tree.replace(" as ", "="))
    while "{" in tree:
        tree = re.sub(r"([\w:]*)\{([^{}]*)\}", lambda g: ",".join(g[1] + s for s in g[2].split(",") if s), tree)
    for path, _, alias in (part.replace("::self", "").partition("=") for part in tree.split(",")):
        yield tuple(path.split("::")), alias or path.split("::")[-1]


def graph(source):  # the files that define what a file's paths name, behind re-exports, without tests
    files, texts, names, items, known = {}, {}, {}, {}, {}
    for file in sorted(source.rglob("*.rs")):
        module = tuple(p for p in file.relative_to(source).with_suffix("").parts if p not in ("mod", "lib", "main"))
        if module not in files:  # src/main.rs beside src/lib.rs is a crate of its own
            text = TEST.sub("", re.sub(r"//.*", "", file.read_text()))
            text = INLINE.sub(lambda found: found[0].replace("super::", "self::"), text)  # that is this file
            names[module] = [(*leaf, bool(public)) for public, tree in USE.findall(text) for leaf in leaves(tree)]
            files[module], texts[module] = str(file.relative_to(source)), USE.sub("", text)
            items[module] = ITEM.findall(text)

    def resolve(module, path, exact=False):  # the module that defines it; None: another crate
        if path and (module, path, exact) not in known:
            known[module, path, exact] = None  # a path that leads to itself leads nowhere
            known[module, path, exact] = look_up(module, path[0], path[1:], exact)
        return known[module, path, exact] if path else module

    def look_up(module, head, rest, exact):
        inner = {"crate": module[:2] if module[:1] == ("bin",) else (), "self": module, "super": module[:-1]}
        if (inner := inner.get(head, (*module, head))) in files:
            return inner if (found := resolve(inner, rest, exact)) is None and not exact else found
        for full, name, _ in names[module]:
            found = resolve(module, (*full, *rest), exact) if name == head != full[0] else None
            if name == "*" and (below := resolve(module, full[:-1])) is not None:
                found = resolve(below, (head, *rest), exact=True)
            if found is not None:
                return found
        return module if head in items[module] else None

    def uses(module):  # paths without those that are only re-exported, or name a module, whose items come by others
        yield from (tuple(path.split("::")) for path in PATH.findall(texts[module]))
        for path, name, public in names[module]:
            needed = not public or re.search(rf"\b{re.escape(name)}\b", texts[module])
            if needed and (name == "*" or (resolve(module, path) or ("",))[-1] != path[-1]):
                yield path[:-1] if name == "*" else path
    return {files[m]: {files[f] for path in uses(m) if (f := resolve(m, path)) is not None} - {files[m]} for m in files}


def largest_circle(edges):
    reach = {file: set(others) for file, others in edges.items()}
    for middle in edges:
        for file in edges:
            reach[file] |= reach[middle] if middle in reach[file] else set()
    return max((sorted(file for file in reach[start] if start in reach[file]) for start in edges), key=len, default=[])


def complaints(root, ceilings):
    for source in sorted(root.glob("crates/*/src")):
        circle, ceiling = largest_circle(graph(source)), ceilings.get(source.parent.name, 0)
        if len(circle) != ceiling:
            advice = f"the ceiling is {ceiling}" if len(circle) > ceiling else f"lower the ceiling to {len(circle)}"
            yield f"{source.parent.name}: {len(circle)} files in a circle, {advice}: {' '.join(circle)}"


if __name__ == "__main__":
    sys.exit("\n".join(complaints(pathlib.Path(__file__).resolve().parents[1], CEILINGS)) or None)
