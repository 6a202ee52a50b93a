#include "tools/ebb/plot_file.h"

#include "core/text.h"
#include "tools/ebb/output_file.h"
#include "tools/report/page.h"

namespace ebb::cli {

Status probe_plot(const std::string& path) {
  if (path.empty()) return ok_status();
  if (!path.ends_with(".svg") && !path.ends_with(".html")) {
    return make_error(Errc::invalid_argument, "--plot %s: want a name that ends in .svg or .html",
                      printable(path).c_str());
  }
  return probe_file(path);
}

Status write_plot(const std::string& path, const std::string& title, const std::string& note,
                  const std::vector<std::string>& charts) {
  if (path.ends_with(".svg")) return write_file(path, report::plot_svg(charts));
  EBB_ASSIGN(const std::string page, report::plot_page(title, note, charts));
  return write_file(path, page);
}

}  // namespace ebb::cli
