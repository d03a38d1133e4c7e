// SPDX-License-Identifier: Apache-2.0
// Draws the gaps between requests as vLLM's client does, from numpy's legacy generator.
#include "bench/arrivals.h"

#include <algorithm>
#include <cmath>

namespace quire::bench {

Arrivals make_arrivals(const ArrivalOptions& options, size_t count, NumpyLegacy& numpy) {
  Arrivals out;
  const bool ramp = !options.ramp_up_strategy.empty();
  if (count == 0 || (!ramp && options.request_rate <= 0)) return out;
  double time = 0;
  for (size_t i = 0; i < count; ++i) {
    double rate = options.request_rate;
    if (ramp) {
      const double progress = static_cast<double>(i) / static_cast<double>(std::max<size_t>(count - 1, 1));
      const double start = options.ramp_up_start_rps, end = options.ramp_up_end_rps;
      rate = options.ramp_up_strategy == "linear" ? start + (end - start) * progress
                                                  : start * std::pow(end / start, progress);
    }
    out.rates.push_back(rate);
    time += std::isinf(options.burstiness) ? 1.0 / rate
                                           : numpy.gamma(options.burstiness, 1.0 / (rate * options.burstiness));
    out.times.push_back(time);
  }
  if (!ramp && time > 0) {  // the last request arrives at exactly count / rate
    const double factor = static_cast<double>(count) / options.request_rate / time;
    for (double& t : out.times) t *= factor;
  }
  return out;
}

}  // namespace quire::bench
