# SPDX-License-Identifier: Apache-2.0
"""Random templates: expressions and statements drawn from Jinja's grammar over a small context."""

import random

NAMES = ["n", "neg", "zero", "f", "yes", "no", "nil", "s", "empty", "sp", "uni", "quo", "xs", "ys", "mixed", "nested",
         "nothing", "d", "ed", "users", "nope", "messages"]
STRINGS = ["''", "'a'", "'ab c'", "\"x'y\"", "'<b>'", "'%s'", "'{}'", "'1'", "'\\n'", "'é😀'", "' pad '", "'A-b_C'", "'a,b,c'"]
NUMBERS = ["0", "1", "2", "3", "10", "-1", "2.5", "0.1", "1e3", "-2.0"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "list", "first", "last", "sort", "unique|list", "reverse|list",
           "string", "int", "float", "abs", "sum", "min", "max", "join(',')", "tojson", "tojson(indent=1)", "default('d')", "default('d', true)",
           "e", "safe", "wordcount", "map('string')|list", "map('upper')|join('-')", "select|list", "reject('none')|list", "items|list", "dictsort",
           "batch(2)|list", "slice(2)|list", "round", "round(1)", "indent(2)", "truncate(4)", "replace('a', 'b')", "center(9)", "urlencode",
           "map(attribute='name')|list", "selectattr('age')|list", "groupby('age')|list", "pprint", "wordwrap(4)", "format(1)", "striptags",
           "filesizeformat", "xmlattr", "attr('real')", "sort(reverse=true)", "forceescape"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable", "sequence",
         "callable", "odd", "even", "divisibleby(2)", "lower", "upper", "eq(1)", "in([1, 2])", "gt(0)", "sameas(none)", "escaped"]
METHODS = ["upper()", "lower()", "strip()", "split()", "split(',')", "replace('a', 'b')", "startswith('a')", "endswith('b')", "find('a')", "title()",
           "items()|list", "keys()|list", "values()|list", "get('a')", "get('a', 1)", "count('a')", "index('a')", "splitlines()", "join(['x', 'y'])",
           "isdigit()", "zfill(4)", "format(1, a=2)", "a", "name", "0", "copy()", "rsplit('a', 1)", "partition('a')", "lstrip('a')", "capitalize()"]
SUBSCRIPTS = ["[0]", "[-1]", "['a']", "[1:]", "[::-1]", "[:2]", "[::2]", "['name']", "[5]", "[nope]", "[-2:]"]


class Generator:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.fresh = 0

    def expression(self, depth=3):
        r = self.rng
        if depth <= 0 or r.random() < 0.15:
            return r.choice([r.choice(NAMES), r.choice(STRINGS), r.choice(NUMBERS), r.choice(["true", "false", "none", "[]", "{}", "()"])])
        kind = r.randrange(11)
        sub = lambda: self.expression(depth - 1)  # noqa: E731
        if kind <= 1:
            return f"({sub()} {r.choice(BINARY)} {sub()})"
        if kind == 2:
            return f"{sub()}|{r.choice(FILTERS)}"
        if kind == 3:
            return f"({sub()} is {r.choice(['', 'not '])}{r.choice(TESTS)})"
        if kind == 4:
            return f"({sub()}).{r.choice(METHODS)}"
        if kind == 5:
            # Only slices of names: Jinja2 folds a slice of a constant by other rules than it runs it.
            subscript = r.choice(SUBSCRIPTS)
            return f"({r.choice(NAMES) if ':' in subscript else sub()}){subscript}"
        if kind == 6:
            return f"({sub()} if {sub()} else {sub()})"
        if kind == 7:
            return f"[{', '.join(sub() for _ in range(r.randrange(4)))}]"
        if kind == 8:
            return "{" + ", ".join(f"{r.choice(STRINGS)}: {sub()}" for _ in range(r.randrange(3))) + "}"
        if kind == 9:
            return f"({r.choice(['not ', '-', '+'])}{sub()})"
        return r.choice(NAMES)

    def space(self):
        return self.rng.choice(["", "", " ", "\n", "  \n", "\t", " a ", "\n\n", "x\n  "])

    def tag(self, body):
        r = self.rng
        return f"{{%{r.choice(['', '', '-', '+'])} {body} {r.choice(['', '', '-', '+'])}%}}"

    def statement(self, depth=3):
        r = self.rng
        body = lambda: "".join(self.space() + self.statement(depth - 1) for _ in range(r.randrange(1, 4))) + self.space()  # noqa: E731
        name = lambda: r.choice(["v", "w", "n", "s"])  # noqa: E731
        if depth <= 0 or r.random() < 0.3:
            return f"{{{{{r.choice(['', '-'])} {self.expression(1)} {r.choice(['', '-'])}}}}}"
        kind = r.randrange(13)
        if kind == 0:
            return self.tag(f"if {self.expression(1)}") + body() + self.tag("endif")
        if kind == 1:
            return self.tag(f"if {self.expression(1)}") + body() + self.tag(f"elif {self.expression(1)}") + body() + self.tag("else") + body() + self.tag("endif")
        if kind in (2, 3):
            return self.tag(f"for {name()} in {r.choice(['xs', 'ys', 'nothing', 's', 'd', 'users', 'range(3)'])}") + body() + self.tag("endfor")
        if kind == 4:
            what = r.choice(["index", "first", "last", "length", "revindex", "previtem", "nextitem", "depth"])
            return self.tag(f"for {name()} in xs if {self.expression(1)}") + body() + f"{{{{ loop.{what} }}}}" + self.tag("else") + body() + self.tag("endfor")
        if kind in (5, 6):
            return self.tag(f"set {name()} = {self.expression(2)}")
        if kind == 7:
            return self.tag(f"set {name()}") + body() + self.tag("endset")
        if kind == 8:
            self.fresh += 1
            macro = f"m{self.fresh}"
            call = r.choice([f"{macro}(1)", f"{macro}()", f"{macro}(n, w=2)", f"{macro}(v=3)"])
            return self.tag(f"macro {macro}(v, w=1)") + body() + self.tag("endmacro") + f"{{{{ {call} }}}}"
        if kind == 9:
            return self.tag(f"with {name()} = {self.expression(1)}") + body() + self.tag("endwith")
        if kind == 10:
            return self.tag(f"filter {r.choice(['upper', 'trim', 'length', 'replace(1, 2)'])}") + body() + self.tag("endfilter")
        if kind == 11:
            stop = r.choice(["break", "continue"])
            return self.tag("for v in xs") + body() + self.tag(f"if {self.expression(1)}") + self.tag(stop) + self.tag("endif") + body() + self.tag("else") + body() + self.tag("endfor")
        return "{#" + r.choice(["", "-", "+"]) + " c " + r.choice(["", "-", "+"]) + "#}"

    def template(self):
        return "".join(self.space() + self.statement() for _ in range(self.rng.randrange(1, 5))) + self.space()
