// SPDX-License-Identifier: Apache-2.0
// The arrival process: the time at which each request is sent.
#pragma once

#include <string>
#include <vector>

#include "bench/python_random.h"

namespace quire::bench {

// When requests are sent.
struct ArrivalOptions {
  double request_rate = 0;            // requests/s; 0: all at once
  double burstiness = 1;              // gamma shape; infinity: fixed intervals
  std::string ramp_up_strategy = {};  // "", linear, exponential
  double ramp_up_start_rps = 0;
  double ramp_up_end_rps = 0;
};
struct Arrivals {
  std::vector<double> times;  // seconds, ascending; empty: all at once
  std::vector<double> rates;  // the request rate at each request
};
Arrivals make_arrivals(const ArrivalOptions& options, size_t count, NumpyLegacy& numpy);

}  // namespace quire::bench
