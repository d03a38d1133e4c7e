# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2016,SC2154
# make_wheel, for scripts/package: builds the wheel of docs/python.md. Reads $jobs, $cuda and $old_glibc.

# The archives of this machine's apt, as a list of sources: the packages of Debian 11, and the sources of Debian 12.
list_sources() {
  local keys="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" uri name
  apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | sort -u | while read -r uri name; do
    case $name in
      bookworm) printf 'deb %s %s bullseye main\ndeb-src %s %s %s main\n' "$keys" "$uri" "$keys" "$uri" "$name" ;;
      bookworm-security) printf 'deb-src %s %s %s main\n' "$keys" "$uri" "$name" ;;
    esac
  done
}

# old_debian APT_GET_ARGUMENTS...: apt-get with these sources, in $tree/apt; needs no root.
old_debian() {
  local folder=$tree/apt
  if [ ! -e "$folder/ready" ]; then
    { have apt-get && have dpkg-source; } ||
      die "needs Debian 12 with dpkg-dev for a wheel that runs with glibc 2.31 (--system-glibc makes one without it)"
    mkdir -p "$folder/state/lists/partial" "$folder/cache/archives/partial"
    list_sources >"$folder/sources.list"
    touch "$folder/ready"
    old_debian update
  fi
  (cd "$folder" && apt-get -qq -o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State="$folder/state" -o Dir::Cache="$folder/cache" -o Dir::State::status=/var/lib/dpkg/status \
    -o APT::Sandbox::User="$(id -un)" "$@") || {
    rm -f "$folder/ready"
    die "could not get Debian packages for a wheel that runs with glibc 2.31 (--system-glibc makes one without them)"
  }
}

# Unpacks glibc 2.31 and libedit of Debian 11 to $tree/sysroot. Only the linker sees them: it takes the symbols of that
# version, which later ones have, too.
ensure_sysroot() {
  local link sysroot=$tree/sysroot
  [ ! -e "$sysroot/ready" ] || return 0
  banner "unpacking glibc 2.31 for the linker"
  rm -rf "$sysroot"
  mkdir -p "$sysroot"
  set --
  for link in libc6 libc6-dev libgcc-s1 libedit2 libbsd0 libmd0 libtinfo6; do set -- "$@" "$link/bullseye"; done
  old_debian download "$@"
  for link in "$tree"/apt/*.deb; do dpkg -x "$link" "$sysroot"; done
  find "$sysroot" -type l -lname '/*' | while read -r link; do
    ln -sfnr "$sysroot$(readlink "$link")" "$link"
  done
  touch "$sysroot/ready"
}

# Builds a static libcurl that needs OpenSSL alone, from Debian's source, to $tree/curl. Debian's own has 20 dependencies.
ensure_curl() {
  [ ! -e "$tree/curl/ready" ] || return 0
  banner "building libcurl"
  rm -rf "$tree"/apt/curl*
  old_debian source --download-only curl  # apt checks the files
  dpkg-source --no-check -x "$tree"/apt/curl_*.dsc "$tree/apt/curl" >/dev/null 2>&1 || die "could not unpack libcurl's source"
  local option off="BUILD_SHARED_LIBS BUILD_CURL_EXE BUILD_TESTING CURL_ZLIB CURL_BROTLI CURL_ZSTD USE_LIBIDN2 USE_NGHTTP2
    CURL_USE_LIBSSH2 CURL_USE_LIBPSL ENABLE_MANUAL"
  set -- -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON \
    -DOPENSSL_USE_STATIC_LIBS=ON -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_FALLBACK=ON \
    -DCMAKE_INSTALL_PREFIX="$tree/curl" -DCMAKE_INSTALL_LIBDIR=lib
  for option in $off; do set -- "$@" "-D$option=OFF"; done
  if ! { cmake -S "$tree/apt/curl" -B "$tree/apt/curl-build" -G Ninja "$@" &&
    cmake --build "$tree/apt/curl-build" -j "$jobs" && cmake --install "$tree/apt/curl-build"; } >"$tree/curl.log" 2>&1; then
    tail -n 20 "$tree/curl.log" >&2
    die "libcurl could not be built"
  fi
  touch "$tree/curl/ready"
}

# Configures $tree for other machines, and builds what is in the wheel.
build_wheel() {
  local options=(-DQUIRE_BUILD_TESTS=OFF -DQUIRE_UNITY=ON -DQUIRE_CPU=all -DQUIRE_EMULATOR=OFF
    -DQUIRE_CUDA="$cuda" -DQUIRE_CUDA_TARGETS=default -DQUIRE_CUDA_VENV="$QUIRE_ROOT/build/cuda-venv"
    -DQUIRE_PYTHON=on -DQUIRE_PYTHON_EXECUTABLE="$venv/bin/python")
  if [ "$old_glibc" = 1 ]; then
    ensure_sysroot
    ensure_curl
    local libraries kind
    libraries=lib/$(gcc -print-multiarch)
    local flags="--sysroot=$tree/sysroot -B$tree/sysroot/usr/$libraries -L$tree/sysroot/$libraries -static-libstdc++"
    flags="$flags -Wl,--allow-shlib-undefined"
    for kind in EXE SHARED MODULE; do options+=("-DCMAKE_${kind}_LINKER_FLAGS=$flags"); done
    options+=(-DQUIRE_STATIC=ON -DCURL_DIR="$tree/curl/lib/cmake/CURL")
  fi
  banner "building $(basename "$tree") with $jobs jobs"
  configure release -B "$tree" "${options[@]}"
  cmake --build "$tree" -j "$jobs" --target quire_python quire_launcher
}

make_wheel() {
  local tree=$QUIRE_ROOT/build-wheel venv=$QUIRE_ROOT/build/package-venv
  [ "$old_glibc" = 1 ] || tree=$tree-system
  mkdir -p "$tree" "$QUIRE_ROOT/build" dist
  [ "$(uname -s)" = Linux ] || die "a wheel can be made on Linux only"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: -r tools/package/requirements.txt ||
    die "could not install the packages of tools/package/requirements.txt from PyPI"
  build_wheel
  banner "the wheel"
  rm -f dist/quire-*.whl
  "$venv/bin/python" tools/package/wheel.py --library "$(ls "$tree"/libquire.so.?)" --program "$tree/launcher/quire" \
    --module "$tree/python/quire/_quire.abi3.so" --search "$tree/sysroot" --out dist
}
