#include "prism/serve/open_service.h"

#include "prism/ops/device.h"

namespace prism {

RecommenderService make_service(const Run& run) {
  ServiceParts parts{.model = run.model, .items = {}, .titles = run.titles, .item_counts = {}};
  for (int64_t i = 0; i < run.items.size(); ++i) parts.items.add(run.items.name(i));
  const at::Tensor counts = run.item_counts.to(at::kFloat).contiguous();
  parts.item_counts.assign(counts.const_data_ptr<float>(), counts.const_data_ptr<float>() + counts.numel());
  return RecommenderService(std::move(parts));
}

RecommenderService RecommenderService::open(const std::filesystem::path& run, const std::string& device) {
  return make_service(open_run(run, require_device(device)));
}

}  // namespace prism
