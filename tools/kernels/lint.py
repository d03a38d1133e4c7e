#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds in kernel files what g++ and nvcc accept and Metal would not.

Three looks at each file, which must stand in src/kernels (or use its headers):
- clang compiles it as C++ for OpenCL, whose address spaces are Metal's; its errors and warnings count.
- The syntax tree that clang prints is searched for what only that dialect allows: pointers that fell into the generic
  address space, recursion, lambdas, static members, program-scope variables, virtual functions, if constexpr, goto,
  constants that are indexed by a value known only at run time.
- The text is searched for words of one GPU's own language and for functions that the dialect does not have.

Exit status: 0 clean, 1 findings, 77 no clang that can do it (tests skip).
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CLANGS = ["clang++-19", "clang++-20", "clang++-18", "clang++-17", "clang++-16", "clang++-15", "clang++"]
FLAGS = ["-x", "clcpp", "-cl-std=clc++2021", "-target", "spir64", "-fsyntax-only", "-fno-color-diagnostics", "-Wall",
         "-Wno-unused", "-Xclang", "-finclude-default-header", "-Xclang", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64"]
SKIPPED = 77

# Words that do not belong into the shared kernel source, and why.
WORDS = [
    (r"^\s*#\s*include\s*<", "no header of the system: the dialect is all there is"),
    (r"\bstd\s*::", "no std:: on a GPU"),
    (r"\b(threadgroup_barrier|simdgroup_barrier|__syncthreads|__syncwarp|barrier)\s*\(", "use TG_BARRIER() or SG_BARRIER()"),
    (r"\b(device|constant|threadgroup|thread)\s+(const\s+)?\w+\s*[*&]", "use DEVICE, CONSTANT, TGROUP or THREAD"),
    (r"\b(__\w+__|__shfl\w*|__ldg|threadIdx|blockIdx|blockDim|gridDim|asm)\b", "a word of one GPU's own language"),
    (r"\b(simd_broadcast|simd_prefix\w*|simd_product|quad_\w+|simdgroup_\w+)\b", "not in the dialect"),
    (r"\batomic\w*\b", "no atomics: the order of a sum must not depend on timing"),
    (r"\b(long\s+long|unsigned|long|short|size_t|u?int(8|16|32|64)_t)\b", "use int, uint, i64, ushort, uchar or i8"),
    (r"(?<![\w.])(exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|powr|sin|cos|tan|tanh|sinh|cosh|erf|erfc|rsqrt|cbrt|fmod|"
     r"fast_\w+|native_\w+|half_\w+)\s*\(", "not exact on every GPU: use the q_ functions of compat/float_math.h"),
    (r"(?<![\w.])(fabs|fmin|fmax|fabsf|fminf|fmaxf|sqrtf|floorf|fmaf|round|trunc|ceil|mad|clamp|select|mix)\s*\(",
     "not in the dialect: it has min max abs floor rint sqrt fma"),
    (r"\b(try|throw|catch|dynamic_cast|typeid|new|delete|goto|thread_local|volatile|mutable)\b", "not in Metal"),
]


def strip_comments(text):
    """The text with comments and strings blanked, line for line."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: m[0] if m[0].startswith('"') and
                  "#include" in m.string[m.string.rfind("\n", 0, m.start()) + 1:m.start()] else blank(m), text, flags=re.S)


def check_words(path):
    for number, line in enumerate(strip_comments(path.read_text(encoding="utf-8")).splitlines(), 1):
        for pattern, why in WORDS:
            match = re.search(pattern, line)
            if match:
                yield path, number, "`%s`: %s" % (match[0].strip(), why)


def files_of(path, source, seen):
    """The file and the kernel files that it includes, without compat/, which differs by target."""
    path = path.resolve()
    if path in seen:
        return
    seen.append(path)
    for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(encoding="utf-8"), re.M):
        for candidate in (source / name, path.parent / name):
            if candidate.is_file() and "compat" not in candidate.parts:
                files_of(candidate, source, seen)
                break


# What an index known at compile time is made of. Calls, variables and loads are not among it.
CONSTANT_PARTS = {"IntegerLiteral", "CharacterLiteral", "ConstantExpr", "ParenExpr", "ImplicitCastExpr", "CStyleCastExpr",
                  "CXXStaticCastExpr", "CXXFunctionalCastExpr", "BinaryOperator", "UnaryOperator", "SubstNonTypeTemplateParmExpr",
                  "UnaryExprOrTypeTraitExpr", "DeclRefExpr", "NonTypeTemplateParmDecl"}


def is_constant(node):
    """Whether an expression is known when the kernel is compiled: literals, enumerators, template arguments, and sums of them."""
    if node.get("kind") not in CONSTANT_PARTS:
        return False
    if node["kind"] == "DeclRefExpr":
        return node.get("referencedDecl", {}).get("kind") in ("EnumConstantDecl", "NonTypeTemplateParmDecl")
    return all(is_constant(child) for child in node.get("inner", ()))


class Tree:
    """Walks clang's syntax tree once."""

    def __init__(self, files, source):
        self.files = {str(path): path for path in files}
        self.source = source
        self.file, self.line = "", 0  # clang prints a location only if it changes
        self.findings = set()
        self.calls = {}  # function -> functions that it mentions
        self.names = {}
        self.first = {}  # declaration -> the first declaration of the same function

    def place(self, where):
        if "spellingLoc" in where or "expansionLoc" in where:
            self.place(where.get("spellingLoc", {}))
            self.place(where.get("expansionLoc", {}))
            return
        self.file = where.get("file", self.file)
        self.line = where.get("line", self.line)

    def find(self, here, what):
        path = self.files.get(str(pathlib.Path(here[0]).resolve())) if here[0] else None
        if path is not None:
            self.findings.add((path, here[1], what))

    def walk(self, node, parents, function):
        kind = node.get("kind", "")
        if "loc" in node:
            self.place(node["loc"])
        here = (self.file, self.line)
        if "range" in node:
            self.place(node["range"].get("begin", {}))
            if "loc" not in node:
                here = (self.file, self.line)
            self.place(node["range"].get("end", {}))
        if kind in ("FunctionDecl", "CXXMethodDecl"):
            function = self.first.setdefault(node["id"], self.first.get(node.get("previousDecl"), node["id"]))
            self.names[function] = (node.get("name", ""), here)
            self.calls.setdefault(function, set())
        self.look(kind, node, parents, function, here)
        parents.append(node)
        for child in node.get("inner", ()):
            self.walk(child, parents, function)
        parents.pop()

    def look(self, kind, node, parents, function, here):
        qualified = node.get("type", {}).get("qualType", "")
        if kind in ("VarDecl", "ParmVarDecl", "FieldDecl") and "__generic" in qualified and not node.get("isImplicit"):
            if not any(parent.get("isImplicit") for parent in parents[-2:]):
                self.find(here, "`%s` has no address space: spell DEVICE, CONSTANT, TGROUP or THREAD" % node.get("name", ""))
        if kind == "VarDecl":
            holder = parents[-1].get("kind")
            if holder in ("TranslationUnitDecl", "NamespaceDecl", "LinkageSpecDecl") and "__constant" not in qualified:
                self.find(here, "`%s` is a variable of the program: Metal has none; tables are CTABLE" % node.get("name", ""))
            if holder in ("CXXRecordDecl", "ClassTemplateSpecializationDecl"):
                self.find(here, "`%s` is a static member: use enum { ... } or CTABLE" % node.get("name", ""))
            if node.get("storageClass") == "static" and holder == "DeclStmt":
                self.find(here, "`%s` is a static variable of a function" % node.get("name", ""))
        if kind == "ImplicitCastExpr" and node.get("castKind") == "AddressSpaceConversion" and "__generic" in qualified:
            source = node.get("inner", [{}])[0].get("type", {}).get("qualType", "")
            copies = any(parent.get("kind") in ("CXXConstructExpr", "CXXOperatorCallExpr") for parent in parents[-3:])
            if re.search(r"__(global|local|constant)\b", source) and not copies:
                self.find(here, "a `%s` is used without its address space (a method of it, or an unqualified reference)" % source)
        self.look_at_index(kind, node, qualified, here)
        if kind == "LambdaExpr":
            self.find(here, "a lambda: Metal has none")
        if kind == "IfStmt" and node.get("isConstexpr"):
            self.find(here, "if constexpr is C++17: use a plain if on an enum, or a specialisation")
        if kind == "CXXMethodDecl" and node.get("virtual"):
            self.find(here, "`%s` is virtual" % node.get("name", ""))
        if kind in ("GotoStmt", "CXXThrowExpr", "CXXTryStmt", "CXXNewExpr", "CXXDeleteExpr", "GCCAsmStmt"):
            self.find(here, "%s: not in Metal" % kind)
        if kind == "DecompositionDecl":
            self.find(here, "a structured binding is C++17")
        if function and kind in ("DeclRefExpr", "MemberExpr"):
            target = node.get("referencedDecl", {}).get("id") or node.get("referencedMemberDecl")
            if target:
                self.calls[function].add(self.first.get(target, target))

    def look_at_index(self, kind, node, qualified, here):
        """Finds constants (parameters, tables) that are indexed by a value known only at run time.

        An Apple GPU loads the constants of a launch into registers that all threads share, before the first instruction
        runs, but only those whose addresses are known when the kernel is compiled. An index that is not keeps the whole
        array in memory: every thread then loads its element with a latency of hundreds of cycles, lanes with different
        indices are served one cache line after another, and if the compiler copies the array to the thread's own memory
        instead, it costs registers or spills. Values that depend on an index belong into a DEVICE buffer or threadgroup
        memory, where such loads are expected, or into a switch over a few members.
        """
        if "__constant" not in qualified:
            return
        inner = node.get("inner", ())
        dynamic = kind == "ArraySubscriptExpr" and len(inner) == 2 and not is_constant(inner[1])
        moved = kind in ("BinaryOperator", "CompoundAssignOperator", "UnaryOperator") and qualified.rstrip().endswith("*") and \
            node.get("opcode") in ("+", "-", "+=", "-=", "++", "--") and not all(map(is_constant, inner[1:] or [{}]))
        if dynamic or moved:
            self.find(here, "a constant is indexed at run time: Apple GPUs then read it from memory, thread by thread; pass a buffer")

    def recursion(self):
        """Finds functions that can call themselves."""
        for start in self.calls:
            reached, front = set(), [start]
            while front:
                for target in self.calls.get(front.pop(), ()):
                    if target in self.calls and target not in reached:
                        reached.add(target)
                        front.append(target)
            if start in reached:
                name, here = self.names[start]
                self.find(here, "`%s` calls itself: a GPU has no recursion" % name)


def compile_file(clang, path, sources, extra):
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / "unit.clcpp"
        unit.write_text('#include "%s"\n' % path, encoding="utf-8")
        command = [clang, *FLAGS, *("-I%s" % source for source in sources), *extra, str(unit)]
        return subprocess.run(command, capture_output=True)


def lint(clang, path, sources):
    """The findings in one kernel file and the parts that it includes: (path, line, what)."""
    findings = set()
    messages = compile_file(clang, path, sources, []).stderr.decode(errors="replace")
    for match in re.finditer(r"^(.+?):(\d+):\d+: (?:fatal error|error|warning): (.*)$", messages, re.M):
        findings.add((pathlib.Path(match[1]).resolve(), int(match[2]), match[3]))
    files = []
    files_of(path, sources[0], files)
    for file in files:
        findings.update(check_words(file))
    if not any("error" in message for message in re.findall(r"^.+?:\d+:\d+: (error|fatal error):", messages, re.M)):
        tree = Tree(files, sources[0])
        sys.setrecursionlimit(20000)
        tree.walk(json.loads(compile_file(clang, path, sources, ["-Xclang", "-ast-dump=json"]).stdout), [], None)
        tree.recursion()
        findings |= tree.findings
    return sorted(findings)


def find_clang(wanted):
    for name in [wanted] if wanted else CLANGS:
        clang = shutil.which(name)
        if clang:
            version = subprocess.run([clang, "--version"], capture_output=True, text=True).stdout
            number = re.search(r"version (\d+)", version)
            if "Apple" not in version and number and int(number[1]) >= 15:
                return clang
    return None


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clang", help="the clang++ to use (15 or newer); searched for by default")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="kernel files; all of src/kernels if none is given")
    arguments = parser.parse_args()
    clang = find_clang(arguments.clang)
    if clang is None:
        print("lint: skipped, there is no clang++ 15 or newer (Debian: apt install clang-19)")
        return SKIPPED
    findings = set()
    kernels = sorted(path for path in (root / "src" / "kernels").glob("*.h") if path.name != "embedded.h")
    files = arguments.files or kernels
    for path in files:
        findings.update(lint(clang, path.resolve(), [root / "src", root]))
    for path, line, what in sorted(findings):
        name = path.relative_to(root) if path.is_relative_to(root) else path
        print("%s:%d: %s" % (name, line, what))
    print("%d findings in %d files" % (len(findings), len(files)))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
