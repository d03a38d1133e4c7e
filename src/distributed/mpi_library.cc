// SPDX-License-Identifier: Apache-2.0
// Loads libmpi and looks whether it is Open MPI's.
#include "distributed/mpi_library.h"

#include <algorithm>

#include "base/env.h"

namespace quire::distributed {
namespace {

#ifdef __APPLE__
constexpr const char* kMpiName = "libmpi.40.dylib";
#else
constexpr const char* kMpiName = "libmpi.so.40";
#endif
constexpr size_t kTextChars = 8192;   // more than any MPI's MPI_MAX_LIBRARY_VERSION_STRING and MPI_MAX_ERROR_STRING
constexpr size_t kVersionChars = 80;  // of which this much is shown

}  // namespace

Result<MpiLibrary> MpiLibrary::load() {
  const std::string path = env("QUIRE_LIBMPI").value_or(kMpiName);
  SharedLibrary library(path);
  if (!library) {
    return unavailable({"ranks as processes need Open MPI's library, but ", path,
                        " cannot be loaded: install the package libopenmpi3 (Homebrew: open-mpi)"});
  }
  MpiLibrary out;
#define QUIRE_MPI_SYMBOL(name, parameters) {#name, reinterpret_cast<void**>(&out.api.name)},
  const LibrarySymbol symbols[] = {QUIRE_MPI_FUNCTIONS(QUIRE_MPI_SYMBOL){"ompi_mpi_comm_world", &out.api.world},
                                   {"ompi_mpi_byte", &out.api.byte},
                                   {"ompi_mpi_errors_return", &out.api.errors_return}};
#undef QUIRE_MPI_SYMBOL
  const char* missing = library.find(symbols);
  if (out.api.MPI_Get_library_version != nullptr) {
    char text[kTextChars] = "";
    int length = 0;
    out.api.MPI_Get_library_version(text, &length);
    const std::string all = text;
    out.version = all.substr(0, std::min(all.find_first_of(",\n"), kVersionChars));
  }
  if (missing != nullptr || !out.version.starts_with("Open MPI")) {
    return unavailable(
        {path, " is ", (out.version.empty() ? "no MPI" : "'" + out.version + "'"),
         ", but ranks as processes need Open MPI 3 to 5: install the packages openmpi-bin and libopenmpi3 "
         "(Homebrew: open-mpi), and start with its mpirun"});
  }
  library.keep();
  return out;
}

std::string MpiLibrary::error(int code) const {
  char text[kTextChars] = "";
  int length = 0;
  if (api.MPI_Error_string(code, text, &length) != 0) return "error " + std::to_string(code);
  return text;
}

}  // namespace quire::distributed
