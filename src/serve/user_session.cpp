// One user's state: a step an item, saved as safetensors.
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <charconv>

#include "prism/core/error.h"
#include "prism/core/safetensors.h"
#include "serve/service_impl.h"

namespace prism {
namespace {

constexpr auto kSessionFormat = "prism session 2";

at::Tensor row_of(const std::vector<int64_t>& values, c10::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

/// The state after the last max_length items, computed anew.
void recompute(SessionImpl& session) {
  Recommender& model = *session.service->parts.model;
  const auto kept = std::min<size_t>(session.items.size(), static_cast<size_t>(model.config().max_length));
  const std::vector<int64_t> items(session.items.end() - static_cast<std::ptrdiff_t>(kept),
                                   session.items.end());
  const std::vector<int64_t> gaps(session.gaps.end() - static_cast<std::ptrdiff_t>(kept), session.gaps.end());
  const c10::Device device = model_device(model);
  Batch batch{.items = row_of(items, device),
              .gaps = model.reads_times() ? row_of(gaps, device) : at::Tensor(),
              .packing = Packing::packed({static_cast<int64_t>(kept)})};
  session.state = {};
  session.vector = model.prefill(batch, session.state)[0].to(at::kCPU, at::kFloat).contiguous();
}

/// One step with the newest item.
void step(SessionImpl& session) {
  Recommender& model = *session.service->parts.model;
  const c10::Device device = model_device(model);
  const at::Tensor gaps = model.reads_times() ? row_of({session.gaps.back()}, device) : at::Tensor();
  session.vector = model.step(row_of({session.items.back()}, device), gaps, session.state)[0]
                       .to(at::kCPU, at::kFloat)
                       .contiguous();
}

int64_t number(const Safetensors& file, const std::string& key, const std::string& path) {
  const auto found = file.metadata.find(key);
  int64_t value = 0;
  check(found != file.metadata.end() &&
            std::from_chars(found->second.data(), found->second.data() + found->second.size(), value).ec ==
                std::errc(),
        "{}: no session of this program: metadata \"{}\" is missing or no number", path, key);
  return value;
}

const at::Tensor& tensor(const Safetensors& file, const std::string& name, const std::string& path) {
  const auto found = file.tensors.find(name);
  check(found != file.tensors.end(), "{}: the session has no tensor {}", path, name);
  return found->second;
}

template <class T>
std::vector<T> values(const at::Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<T>();
  return {data, data + tensor.numel()};
}

}  // namespace

UserSession::UserSession(std::unique_ptr<SessionImpl> impl) : impl_(std::move(impl)) {}
UserSession::UserSession(UserSession&&) noexcept = default;
UserSession& UserSession::operator=(UserSession&&) noexcept = default;
UserSession::~UserSession() = default;

UserSession RecommenderService::start() {
  auto session = std::make_unique<SessionImpl>();
  session->service = impl_.get();
  return UserSession(std::move(session));
}

bool UserSession::append(const std::string& item, std::optional<int64_t> seconds) {
  const int64_t index = impl_->service->parts.items.find(item);
  if (index < 0) return false;
  const c10::NoGradGuard no_grad;
  Recommender& model = *impl_->service->parts.model;
  const EvaluationMode mode(model);
  impl_->items.push_back(static_cast<int32_t>(index));
  impl_->gaps.push_back(seconds && impl_->last_seconds ? *seconds - *impl_->last_seconds : 0);
  if (seconds) impl_->last_seconds = seconds;
  const bool window_is_full = model.has_positions() && length() > model.config().max_length;
  if (window_is_full || model.revises_history())
    recompute(*impl_);
  else
    step(*impl_);
  return true;
}

Recommendations UserSession::recommend(const RecommendOptions& options) {
  std::vector<int32_t> seen = impl_->items;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  return impl_->service->list(impl_->items.empty() ? nullptr : impl_->vector.const_data_ptr<float>(), seen,
                              options);
}

int64_t UserSession::length() const { return static_cast<int64_t>(impl_->items.size()); }

void UserSession::save(const std::filesystem::path& path) const {
  Safetensors file;
  file.metadata = {{"format", kSessionFormat},
                   {"weights", std::to_string(impl_->service->weights_fingerprint())},
                   {"blocks", std::to_string(impl_->state.blocks.size())}};
  if (impl_->last_seconds) file.metadata["last_seconds"] = std::to_string(*impl_->last_seconds);
  if (!impl_->items.empty()) {
    file.tensors["items"] = at::tensor(impl_->items, at::kInt);
    file.tensors["gaps"] = at::tensor(impl_->gaps, at::kLong);
    file.tensors["vector"] = impl_->vector;
    file.tensors["lengths"] = at::tensor(impl_->state.lengths, at::kLong);
  }
  for (size_t block = 0; block < impl_->state.blocks.size(); ++block) {
    const std::string prefix = fmt::format("block.{}.", block);
    file.tensors[prefix + "lengths"] = at::tensor(impl_->state.blocks[block].lengths, at::kLong);
    for (const auto& [name, value] : impl_->state.blocks[block].tensors)
      file.tensors[fmt::format("{}state.{}", prefix, name)] = value;
  }
  file.metadata["checksum"] = checksum_of(file);
  write_safetensors(path, file);
}

UserSession RecommenderService::restore(const std::filesystem::path& path) {
  const Safetensors file = read_safetensors(path);
  const auto format = file.metadata.find("format");
  check(format != file.metadata.end() && format->second == kSessionFormat,
        "{}: not a session of this version (format \"{}\", expected \"{}\")", path.string(),
        format == file.metadata.end() ? "" : format->second, kSessionFormat);
  const auto checksum = file.metadata.find("checksum");
  check(checksum != file.metadata.end() && checksum->second == checksum_of(file),
        "{}: the session was damaged or edited (its checksum does not fit)", path.string());
  check(number(file, "weights", path.string()) == impl_->weights_fingerprint(),
        "{}: the session belongs to a model with other weights; start a new one from the history",
        path.string());
  UserSession session = start();
  SessionImpl& impl = *session.impl_;
  if (file.metadata.contains("last_seconds")) impl.last_seconds = number(file, "last_seconds", path.string());
  const int64_t blocks = number(file, "blocks", path.string());
  if (blocks == 0) return session;
  impl.items = values<int32_t>(tensor(file, "items", path.string()));
  impl.gaps = values<int64_t>(tensor(file, "gaps", path.string()));
  impl.vector = tensor(file, "vector", path.string());
  impl.state.lengths = values<int64_t>(tensor(file, "lengths", path.string()));
  const c10::Device device = model_device(*impl_->parts.model);
  for (int64_t block = 0; block < blocks; ++block) {
    const std::string prefix = fmt::format("block.{}.", block);
    MixerState& state = impl.state.blocks.emplace_back();
    state.lengths = values<int64_t>(tensor(file, prefix + "lengths", path.string()));
    for (const auto& [name, value] : file.tensors)
      if (name.starts_with(prefix + "state."))
        state.tensors[name.substr(prefix.size() + 6)] = value.to(device);
  }
  return session;
}

}  // namespace prism
