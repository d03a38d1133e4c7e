# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts in this folder share; sourced, not run. Works with bash 3.2, too, the version of macOS.

set -euo pipefail

QUIRE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
QUIRE_STARTED=$(date +%s)

elapsed() {
  local seconds=$(($(date +%s) - QUIRE_STARTED))
  printf '%d:%02d' $((seconds / 60)) $((seconds % 60))
}

# banner WORDS...: prints a line that starts a phase, with the minutes and seconds since the start of the script.
banner() { printf '== [%s] %s\n' "$(elapsed)" "$*"; }

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

on_macos() { [ "$(uname -s)" = Darwin ]; }

# Runs a command as root: directly as root, else with sudo.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif have sudo; then
    sudo "$@"
  else
    die "needs root to run: $* (run it as root, or install sudo)"
  fi
}

# Number of build jobs: one per core, but at most one per 2 GiB of memory.
build_jobs() {
  local cores gigabytes
  if on_macos; then
    cores=$(sysctl -n hw.ncpu)
    gigabytes=$(($(sysctl -n hw.memsize) >> 30))
  else
    cores=$(nproc)
    gigabytes=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo 2>/dev/null) || gigabytes=$((2 * cores))
  fi
  local limit=$((gigabytes / 2))
  [ "$limit" -ge 1 ] || limit=1
  echo $((cores < limit ? cores : limit))
}

DEBIAN_BUILD_PACKAGES="git ca-certificates curl cmake ninja-build g++ pkg-config libpcre2-dev libcurl4-openssl-dev libssl-dev
  libboost-dev libspdlog-dev libfmt-dev libcli11-dev libedit-dev python3 python3-pip python3-venv"
DEBIAN_TEST_PACKAGES="ccache clang clang-19 libclang-rt-14-dev libgtest-dev libgmock-dev libbenchmark-dev clang-format lld zstd
  python3-dev dpkg-dev file groff zsh fish libzmq5 openmpi-bin libopenmpi3 iproute2"
BREW_BUILD_PACKAGES="cmake ninja pkg-config pcre2 curl openssl@3 boost spdlog fmt cli11 python@3.12"
BREW_TEST_PACKAGES="ccache googletest google-benchmark zstd llvm zeromq open-mpi"

# Installs the Debian packages that are missing; does nothing, and needs no network, if none is.
install_debian() {
  local package missing=""
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  banner "installing:$missing"
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
}

install_brew() {
  have brew || die "needs Homebrew (https://brew.sh) to install the packages"
  local package missing="" installed
  installed=" $(brew list --formula -1 | tr '\n' ' ') "
  for package in "$@"; do
    case $installed in *" $package "*) ;; *) missing="$missing $package" ;; esac
  done
  [ -n "$missing" ] || return 0
  banner "installing:$missing"
  # shellcheck disable=SC2086
  brew install $missing
}

# install_packages build|test: installs what a build needs, or what the tests need in addition.
install_packages() {
  # shellcheck disable=SC2086
  if on_macos; then
    install_brew $BREW_BUILD_PACKAGES
    [ "$1" = build ] || install_brew $BREW_TEST_PACKAGES
    # Homebrew keeps these out of the default search paths.
    CMAKE_PREFIX_PATH="$(brew --prefix openssl@3):$(brew --prefix curl)${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
    PKG_CONFIG_PATH="$(brew --prefix openssl@3)/lib/pkgconfig:$(brew --prefix curl)/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
    export CMAKE_PREFIX_PATH PKG_CONFIG_PATH
  elif have dpkg-query && have apt-get; then
    if [ "$1" = build ]; then
      install_debian $DEBIAN_BUILD_PACKAGES
    else
      install_debian $DEBIAN_BUILD_PACKAGES $DEBIAN_TEST_PACKAGES
    fi
  else
    banner "neither Debian nor macOS: no packages are installed (CONTRIBUTING.md lists what a build needs)"
  fi
}

sha256_of() {
  if have sha256sum; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

# configure PRESET ARGS...: configures a CMake preset, with ccache if it is installed.
configure() {
  local preset=$1
  shift
  # Without these settings ccache would not cache files that use precompiled headers.
  if have ccache; then
    set -- "$@" "-DCMAKE_CXX_COMPILER_LAUNCHER=env;CCACHE_SLOPPINESS=pch_defines,time_macros;ccache"
  fi
  local log="${TMPDIR:-/tmp}/quire-configure.$$"
  if ! (cd "$QUIRE_ROOT" && cmake --preset "$preset" "$@") >"$log" 2>&1 ||
    # The tree was made by another compiler: CMake would start over and forget the preset's settings.
    { grep -q "require your cache to be deleted" "$log" &&
      ! (cd "$QUIRE_ROOT" && cmake --fresh --preset "$preset" "$@") >"$log" 2>&1; }; then
    cat "$log" >&2
    rm -f "$log"
    die "cmake could not configure the preset $preset"
  fi
  rm -f "$log"
}

# Whether the driver of an NVIDIA GPU is there.
has_nvidia_gpu() {
  [ -e /dev/nvidia0 ] || [ -e /dev/dxg ] || { have nvidia-smi && nvidia-smi -L >/dev/null 2>&1; }
}

# Creates build/venv with the packages pinned in tests/requirements.txt, unless it has them already.
ensure_venv() {
  local venv="$QUIRE_ROOT/build/venv" wanted="$QUIRE_ROOT/tests/requirements.txt" stamp
  stamp="$venv/requirements.$(sha256_of "$wanted")"
  [ ! -e "$stamp" ] || return 0
  banner "installing the tests' Python packages into build/venv"
  mkdir -p "$QUIRE_ROOT/build"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: -r "$wanted" ||
    die "could not install the packages of tests/requirements.txt from PyPI"
  touch "$stamp"
}

# Downloads the headers of metal-cpp to build/metal-cpp. The Metal driver needs them, on a Mac for the program and on
# Linux for its tests with a fake Metal. They are in PyPI's macOS wheel of mlx-metal. Without a network the build
# continues without Metal and says so.
METAL_CPP_WHEEL="mlx-metal==0.32.4"
ensure_metal_cpp() {
  local target="$QUIRE_ROOT/build/metal-cpp" stamp wheel
  stamp="$target/.$METAL_CPP_WHEEL"
  [ ! -e "$stamp" ] || return 0
  banner "fetching metal-cpp ($METAL_CPP_WHEEL)"
  wheel=$(mktemp -d)
  rm -rf "$target"
  mkdir -p "$target"
  if python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --platform macosx_15_0_arm64 --dest "$wheel" "$METAL_CPP_WHEEL" &&
    python3 - "$wheel" "$target" <<'PYTHON'; then
import pathlib, sys, zipfile
inside = "mlx/include/metal_cpp/"
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(inside) and not name.endswith("/"):
                file = pathlib.Path(sys.argv[2]) / name[len(inside):]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
PYTHON
    touch "$stamp"
  else
    banner "metal-cpp could not be downloaded from PyPI: continuing without Metal"
  fi
  rm -rf "$wheel"
}

# Creates build/cuda-venv with nvcc from PyPI if the machine has none, so that the CUDA kernels are compiled (the build
# finds it there). CUDA 13.0 is the oldest version that supports all targets, so its kernels run with the most drivers.
CUDA_WHEELS="nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85"
ensure_nvcc() {
  local venv="$QUIRE_ROOT/build/cuda-venv" stamp
  if on_macos || have nvcc || [ -x /usr/local/cuda/bin/nvcc ]; then return 0; fi
  stamp="$venv/nvcc-13.0.88-cccl-13.0.85"
  [ ! -e "$stamp" ] || return 0
  banner "installing nvcc from PyPI into build/cuda-venv"
  mkdir -p "$QUIRE_ROOT/build"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  # shellcheck disable=SC2086
  if "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: $CUDA_WHEELS; then
    touch "$stamp"
  else
    banner "nvcc could not be downloaded from PyPI: continuing without CUDA"
  fi
}
