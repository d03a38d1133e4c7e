# SPDX-License-Identifier: Apache-2.0
# Homebrew formula. There is no release to download yet, so it builds the head of a repository that is named at the
# installation:
#
#   HOMEBREW_QUIRE_REPOSITORY=https://.../quire.git brew install --HEAD --formula ./packaging/quire.rb
class Quire < Formula
  desc "LLM inference server with a paged KV cache in one native binary"
  homepage ENV.fetch("HOMEBREW_QUIRE_REPOSITORY", "https://localhost/quire.git")
  license "Apache-2.0"
  head ENV.fetch("HOMEBREW_QUIRE_REPOSITORY", "https://localhost/quire.git"), branch: "main"

  depends_on "boost" => :build
  depends_on "cli11" => :build
  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "pkgconf" => :build
  depends_on "python@3.12" => :build
  depends_on "curl"
  depends_on "fmt"
  depends_on "openssl@3"
  depends_on "pcre2"
  depends_on "spdlog"

  uses_from_macos "libedit"

  def install
    # The headers of the Metal driver are not in Homebrew; the script takes them from a wheel on PyPI.
    system "bash", "-c", ". scripts/lib.sh && ensure_metal_cpp" if OS.mac?
    args = %w[-DQUIRE_BUILD_TESTS=OFF -DQUIRE_UNITY=ON -DQUIRE_STRICT=OFF -DQUIRE_EMULATOR=OFF -DQUIRE_CUDA=off]
    system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", *args, *std_cmake_args
    system "cmake", "--build", "build", "--target", "quire"
    system "cmake", "--install", "build", "--component", "program"
  end

  service do
    run [opt_bin/"quire", "serve"]
    keep_alive crashed: true
    environment_variables QUIRE_HOME: var/"quire"
    log_path var/"log/quire.log"
    error_log_path var/"log/quire.log"
  end

  test do
    assert_match "quire #{version}", shell_output("#{bin}/quire --version") unless build.head?
    assert_match "cpu", shell_output("#{bin}/quire devices")
    assert_match "serve", shell_output("#{bin}/quire completions bash")
  end
end
