# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# make_deb and make_tarball, for scripts/package: the packages of docs/installing.md. Read $jobs and $cuda.

# make_with_cpack GENERATOR PATTERN: one package of the program, and the names of its files in dist/.
make_with_cpack() {
  local tree=$QUIRE_ROOT/build-package
  banner "building build-package with $jobs jobs"
  configure release -B "$tree" -DQUIRE_BUILD_TESTS=OFF -DQUIRE_UNITY=ON -DQUIRE_CPU=all -DQUIRE_EMULATOR=OFF \
    -DQUIRE_CUDA="$cuda" -DQUIRE_CUDA_TARGETS=default -DQUIRE_CUDA_VENV="$QUIRE_ROOT/build/cuda-venv"
  cmake --build "$tree" -j "$jobs" --target quire
  banner "cpack $1"
  mkdir -p dist
  # The date in a package is that of the commit, so that the same sources make the same package.
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)} \
    cpack --config "$tree/CPackConfig.cmake" -G "$1" -B "$tree/packages" >"$tree/cpack.log" 2>&1 ||
    die "cpack failed: $(grep -A 3 Error "$tree/cpack.log")"
  # shellcheck disable=SC2086
  cp "$tree"/packages/$2 dist/
  # shellcheck disable=SC2086
  (cd dist && ls -l $2)
}

make_deb() {
  { have dpkg-shlibdeps && have file; } || die "needs dpkg-shlibdeps and file (Debian: apt-get install dpkg-dev file)"
  make_with_cpack DEB 'quire_*.deb'
}

make_tarball() { make_with_cpack TGZ 'quire-*.tar.gz'; }
