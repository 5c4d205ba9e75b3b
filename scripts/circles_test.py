#!/usr/bin/env python3
"""Tests scripts/circles.py on small crates."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import circles


class Circles(unittest.TestCase):
    def found(self, ceiling=0, **files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                file = pathlib.Path(root, "crates/some/src", name.replace("__", "/") + ".rs")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return list(circles.complaints(pathlib.Path(root), {"some": ceiling}))

    def test_a_circle_is_held_to_its_ceiling(self):
        files = {"lib": "mod a; mod b; mod c;", "a": "use crate::b::{self, B};\npub struct A;\n",
                 "b": "pub struct B;\nfn f() { super::c::g() }\n", "c": "use super::a::A;\npub fn g() {}\n"}
        self.assertEqual(self.found(3, **files), [])
        self.assertEqual(self.found(2, **files), ["some: 3 files in a circle, the ceiling is 2: a.rs b.rs c.rs"])
        self.assertIn("lower the ceiling to 3", self.found(4, **files)[0])

    def test_a_reexport_is_its_definition(self):
        files = {"lib": "pub use a::A;\nmod a; mod b;", "a": "use crate::b::B;\npub struct A(B);\n",
                 "b": "use crate::c::C as D;\npub struct B(D);\n", "c": "pub use own::*;\n",
                 "c__own": "pub struct C;\n"}
        self.assertEqual(self.found(**files), [])
        files["c__own"] += "fn f() -> crate::A { todo() }\n"
        self.assertIn("3 files in a circle", self.found(**files)[0])
        self.assertTrue(self.found(**files)[0].endswith(": a.rs b.rs c/own.rs"))

    def test_tests_comments_and_other_crates_are_no_circle(self):
        files = {"lib": "mod a; mod b;", "a": "use crate::b::B;\nuse std::fs;\npub struct A(B);\n",
                 "b": "pub struct B; // crate::a::A\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
                 "fs": "use crate::a::A;\n"}
        self.assertEqual(self.found(**files), [])


if __name__ == "__main__":
    unittest.main()
