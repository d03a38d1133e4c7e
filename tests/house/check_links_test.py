#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feeds check_links.py pages with one broken link each and expects it to find exactly that one."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("check_links.py")
GOOD = """# Title
[a page](docs/page.md), [a heading](docs/page.md#the-second-one), [here](#title), [a folder](docs/),
[outside](https://example.com/nothing.md#nothing), `[code](nothing.md)`, ![picture](docs/a%20picture.svg "words").

```
[fenced](nothing.md)
# not a heading
```

[by name]

[by name]: docs/page.md#same-1
"""
PAGE = "# Page\n## The `second` one\n## Same\n## Same\n[up](../README.md#title)\n"


class CheckLinks(unittest.TestCase):
    def run_on(self, files):
        """The problems' lines, for a good tree with these files besides."""
        good = {"README.md": GOOD, "docs/page.md": PAGE, "docs/a picture.svg": "<svg/>\n"}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (good | files).items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            done = subprocess.run([sys.executable, str(SCRIPT), "--root", folder], capture_output=True, text=True)
            problems = done.stdout.splitlines()[:-1]
            self.assertEqual(done.returncode, 1 if problems else 0, done.stdout + done.stderr)
            return problems

    def expect(self, files, *words):
        problems = self.run_on(files)
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_a_good_tree_passes(self):
        self.assertEqual(self.run_on({}), [])

    def test_a_missing_file_is_found(self):
        self.expect({"docs/new.md": "\n[x](nothing.md)\n"}, "docs/new.md:2", "nothing.md", "does not exist")

    def test_a_missing_picture_is_found(self):
        self.expect({"docs/new.md": "![x](img/nothing.svg)\n"}, "docs/new.md:1", "nothing.svg")

    def test_a_missing_heading_is_found(self):
        self.expect({"docs/new.md": "[x](page.md#third)\n"}, "docs/new.md:1", "no such heading")

    def test_a_missing_heading_of_the_same_page_is_found(self):
        self.expect({"docs/new.md": "# A\n[x](#b)\n"}, "docs/new.md:2", "no such heading")

    def test_a_heading_in_code_is_none(self):
        self.expect({"docs/new.md": "[x](../README.md#not-a-heading)\n"}, "no such heading")

    def test_a_link_out_of_the_repository_is_found(self):
        self.expect({"docs/new.md": "[x](../../elsewhere.md)\n"}, "does not exist")

    def test_a_definition_that_leads_nowhere_is_found(self):
        self.expect({"docs/new.md": "[x]\n\n[x]: nothing.md\n"}, "docs/new.md:3", "nothing.md")


if __name__ == "__main__":
    unittest.main()
