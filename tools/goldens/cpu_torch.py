# SPDX-License-Identifier: Apache-2.0
"""Lets PyPI's torch for x86_64 run on the CPU without the gigabytes of CUDA packages that it requires.

The x86_64 wheel links against cuBLAS, cuDNN, NCCL and others, so `import torch` fails when they are absent, although a
CPU run never calls them. This script, run with the venv's own Python and before torch is imported, looks at what
torch's libraries ask of each absent one and compiles a stand-in beside them: the same soname, the same symbol names
and versions, no code. The small CUDA runtime and CUPTI packages must be real (torch registers its kernels with them
while it loads). On other machines (the aarch64 wheel is a CPU build) there is nothing to do.

Usage: python tools/goldens/cpu_torch.py
"""

import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

# Libraries that a machine may lack; the others that torch needs are its own, the system's or the runtime package's.
STAND_INS = re.compile(r"lib(cublas|cublasLt|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparseLt|nccl|nvshmem_host|"
                       r"nvrtc|nvJitLink|nvToolsExt)\.so\.\d+$")
ROOTS = ("libtorch_cuda.so", "libtorch_python.so", "libtorch_nvshmem.so", "libtorch_cuda_linalg.so", "libc10_cuda.so")


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_needs(library: pathlib.Path) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Returns soname -> required version names, and version name ("" for none) -> undefined symbols."""
    sonames: dict[str, set[str]] = {}
    current = None
    for line in output_of("objdump", "-p", str(library)).splitlines():
        if m := re.match(r"\s+NEEDED\s+(\S+)", line):
            sonames.setdefault(m[1], set())
        elif m := re.match(r"\s+required from (\S+):", line):
            current = m[1]
        elif current and (m := re.match(r"\s+0x[0-9a-f]+ 0x[0-9a-f]+ \d+ (\S+)", line)):
            sonames.setdefault(current, set()).add(m[1])
    symbols: dict[str, set[str]] = {}
    for line in output_of("nm", "-D", "--undefined-only", str(library)).splitlines():
        if m := re.search(r" [Uw] ([A-Za-z_]\w*)(?:@(\S+))?$", line):
            symbols.setdefault(m[2] or "", set()).add(m[1])
    return sonames, symbols


def compile_stand_in(target: pathlib.Path, versions: dict[str, set[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "empty.c")
        script = pathlib.Path(folder, "versions.map")
        # Only the names matter: nothing on the CPU path calls these.
        source.write_text("".join(f"void {s}(void) {{}}\n" for v in versions.values() for s in sorted(v)))
        script.write_text("".join(f"{name} {{ global: {' '.join(f'{s};' for s in sorted(syms))} }};\n" if syms else
                                  f"{name} {{ }};\n" for name, syms in sorted(versions.items()) if name))
        command = ["cc", "-shared", "-nostdlib", "-w", f"-Wl,-soname,{target.name}", "-o", str(target), str(source)]
        if any(versions):
            command.insert(4, f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main() -> int:
    lib = pathlib.Path(sysconfig.get_paths()["purelib"], "torch", "lib")
    wanted: dict[str, dict[str, set[str]]] = {}
    for root in ROOTS:
        if not (lib / root).exists():
            continue
        sonames, symbols = read_needs(lib / root)
        for soname, versions in sonames.items():
            if STAND_INS.fullmatch(soname):
                entry = wanted.setdefault(soname, {})
                if not versions:  # NCCL and cuFile have no versions: use the symbols with their name
                    stem = soname[3:].split(".")[0].lower()
                    entry.setdefault("", set()).update(s for s in symbols.get("", ()) if s.lower().startswith(stem))
                for version in versions:
                    entry.setdefault(version, set()).update(symbols.get(version, set()))
    nvidia = lib.parent.parent / "nvidia"
    for soname, versions in wanted.items():
        if not any(nvidia.glob(f"*/lib/{soname}")):
            compile_stand_in(lib / soname, versions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
