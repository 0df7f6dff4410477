#include "prism/serve/export_run.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "prism/core/files.h"
#include "prism/core/safetensors.h"
#include "prism/evaluate/user_vectors.h"
#include "serve/npy.h"

namespace prism {
namespace {

constexpr size_t kFlushBytes = 1 << 20;

/// Rows of text written to a file a block at a time.
class TsvFile {
 public:
  explicit TsvFile(const std::filesystem::path& path) : file_(path) {}
  /// One field; tabs, CR, LF and backslashes are escaped as \t \r \n and two backslashes.
  void text(std::string_view value) {
    separate();
    for (const char c : value) {
      const char* escape = c == '\t'   ? "\\t"
                           : c == '\n' ? "\\n"
                           : c == '\r' ? "\\r"
                           : c == '\\' ? "\\\\"
                                       : nullptr;
      if (escape)
        buffer_ += escape;
      else
        buffer_ += c;
    }
  }
  template <class Number>
  void number(Number value) {
    separate();
    fmt::format_to(std::back_inserter(buffer_), "{}", value);  // the shortest text that reads back the same
  }
  void end_row() {
    buffer_ += '\n';
    first_ = true;
    if (buffer_.size() >= kFlushBytes) flush();
  }
  void commit() {
    flush();
    file_.commit();
  }

 private:
  void separate() {
    if (!first_) buffer_ += '\t';
    first_ = false;
  }
  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

  AtomicFile file_;
  std::string buffer_;
  bool first_ = true;
};

/// vectors [rows, D] as NAME.tsv (id, then D numbers), NAME.npy, NAME.safetensors (tensor NAME).
void write_vectors(const at::Tensor& vectors, const std::string& name,
                   const std::vector<std::string_view>& ids, const std::filesystem::path& folder,
                   const ExportFiles& files, std::vector<std::string>& written) {
  const int64_t rows = vectors.size(0), width = vectors.size(1);
  const auto* data = vectors.const_data_ptr<float>();
  if (files.tsv) {
    TsvFile file(folder / written.emplace_back(name + ".tsv"));
    for (int64_t row = 0; row < rows; ++row) {
      file.text(ids[static_cast<size_t>(row)]);
      for (int64_t i = 0; i < width; ++i) file.number(data[row * width + i]);
      file.end_row();
    }
    file.commit();
  }
  if (files.npy) write_npy(folder / written.emplace_back(name + ".npy"), data, rows, width);
  if (files.safetensors)
    write_safetensors(folder / written.emplace_back(name + ".safetensors"),
                      {.tensors = {{name, vectors}}, .metadata = {}});
}

void write_items(const Run& run, const std::filesystem::path& path) {
  const at::Tensor counts = run.item_counts.to(at::kLong).contiguous();
  TsvFile file(path);
  for (const char* column : {"row", "item_id", "train_interactions", "title"}) file.text(column);
  file.end_row();
  for (int64_t i = 0; i < run.items.size(); ++i) {
    file.number(i);
    file.text(run.items.name(i));
    file.number(counts.const_data_ptr<int64_t>()[i]);
    file.text(run.titles.empty() ? "" : run.titles[static_cast<size_t>(i)]);
    file.end_row();
  }
  file.commit();
}

void write_weights(const Run& run, const std::filesystem::path& path) {
  Safetensors file;
  for (const auto& [name, value] : model_tensors(*run.model)) file.tensors[name] = value.detach();
  write_safetensors(path, file);
}

}  // namespace

std::vector<std::string> export_run(const Run& run, const std::filesystem::path& folder,
                                    const ExportFiles& files) {
  const c10::NoGradGuard no_grad;
  require_writable_folder(folder);
  std::vector<std::string> written;
  write_items(run, folder / written.emplace_back("items.tsv"));
  std::vector<std::string_view> ids;
  for (int64_t i = 0; i < run.items.size(); ++i) ids.push_back(run.items.name(i));
  const at::Tensor vectors = run.model->item_vectors().detach().to(at::kCPU, at::kFloat).contiguous();
  write_vectors(vectors, "item_vectors", ids, folder, files, written);
  write_weights(run, folder / written.emplace_back("model.safetensors"));
  write_file(folder / written.emplace_back("config.json"), run.recipe->settings.to_json() + "\n");
  return written;
}

std::vector<std::string> export_users(const Run& run, const Interactions& log,
                                      const std::filesystem::path& folder, const ExportFiles& files) {
  require_writable_folder(folder);
  std::vector<History> histories;
  std::vector<std::string_view> ids;
  for (int64_t user = 0; user < log.users.size(); ++user) {
    if (log.length(user) == 0) continue;
    histories.push_back({.items = log.history(user), .times = log.times(user)});
    ids.push_back(log.users.name(user));
  }
  std::vector<std::string> written;
  TsvFile users(folder / written.emplace_back("users.tsv"));
  users.text("row");
  users.text("user_id");
  users.end_row();
  for (size_t row = 0; row < ids.size(); ++row) {
    users.number(row);
    users.text(ids[row]);
    users.end_row();
  }
  users.commit();
  write_vectors(user_vectors(*run.model, histories, ticks_per_second(log)), "user_vectors", ids, folder,
                files, written);
  return written;
}

}  // namespace prism
