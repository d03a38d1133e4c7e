// SPDX-License-Identifier: Apache-2.0
// The few functions of Open MPI that a group of processes needs, from the system's libmpi, which is loaded when they
// are used.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/shared_library.h"

namespace quire::distributed {

// The calls and their parameters. Handles are pointers in Open MPI (and integers elsewhere, so another MPI is refused).
#define QUIRE_MPI_FUNCTIONS(X)                                                                          \
  X(MPI_Get_library_version, (char* text, int* length))                                                 \
  X(MPI_Init_thread, (int* argc, char*** argv, int required, int* provided))                            \
  X(MPI_Finalize, ())                                                                                   \
  X(MPI_Comm_rank, (void* comm, int* rank))                                                             \
  X(MPI_Comm_size, (void* comm, int* size))                                                             \
  X(MPI_Comm_set_errhandler, (void* comm, void* handler))                                               \
  X(MPI_Error_string, (int code, char* text, int* length))                                              \
  X(MPI_Isend, (const void* bytes, int count, void* type, int to, int tag, void* comm, void** request)) \
  X(MPI_Irecv, (void* bytes, int count, void* type, int from, int tag, void* comm, void** request))     \
  X(MPI_Test, (void** request, int* done, void* status))

struct MpiApi {
#define QUIRE_MPI_MEMBER(name, parameters) int(*name) parameters = nullptr;
  QUIRE_MPI_FUNCTIONS(QUIRE_MPI_MEMBER)
#undef QUIRE_MPI_MEMBER
  // Open MPI's handles are the addresses of these objects.
  void* world = nullptr;
  void* byte = nullptr;
  void* errors_return = nullptr;
};

// A loaded libmpi; MPI is not initialised yet. It stays loaded, since MPI leaves threads and handlers behind.
struct MpiLibrary {
  // Loads libmpi.so.40 (or what QUIRE_LIBMPI names); the Error says what to install.
  static Result<MpiLibrary> load();

  std::string error(int code) const;  // what an MPI call returned, in MPI's words

  MpiApi api;
  std::string version;  // "Open MPI v4.1.4"
};

}  // namespace quire::distributed
