#include "modules/compute_cuda/profile.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

namespace ebb::cuda {

void log_profile(Host& host, const std::vector<Plan>& plans) {
  for (const Plan& plan : plans) {
    std::map<std::string, std::pair<double, int>> by_name;
    double total = 0;
    for (const auto& [name, ms] : plan.milliseconds()) {
      by_name[name].first += ms;
      ++by_name[name].second;
      total += ms;
    }
    if (total == 0) continue;
    std::vector<std::pair<std::string, std::pair<double, int>>> rows(by_name.begin(),
                                                                     by_name.end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
    char line[128];
    std::snprintf(line, sizeof(line), "plan of %zu nodes: %.3f ms", plan.n_nodes(), total);
    host.log(LogLevel::info, line);
    for (const auto& [name, sum] : rows) {
      std::snprintf(line, sizeof(line), "%-24s %4d ops %9.3f ms  %5.1f %%", name.c_str(),
                    sum.second, sum.first, sum.first / total * 100);
      host.log(LogLevel::info, line);
    }
  }
}

}  // namespace ebb::cuda
