#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "prism/core/error.h"
#include "prism/data/reader.h"

namespace prism {

inline std::filesystem::path shared_rec() { return std::filesystem::path(PRISM_SHARED_DIR) / "data" / "rec"; }

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

/// A file in the test's temporary folder; removed with the object.
class TempFile {
 public:
  TempFile(const std::string& name, const std::string& content)
      : path_(std::filesystem::path(::testing::TempDir()) / (std::to_string(::getpid()) + "-" + name)) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline DataConfig config_for(const std::string& file) {
  DataConfig config;
  config.file = file;
  return config;
}

inline Interactions read(const DataConfig& config) {
  ReadReport report;
  return read_interactions(config, report);
}

/// The message of the Error that `action` throws; a failure when it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline std::string read_error(const DataConfig& config) {
  return error_of([&] { read(config); });
}

/// A user's item ids in time order.
inline std::vector<std::string> ids(const Interactions& log, const std::string& user) {
  std::vector<std::string> names;
  for (const int32_t item : log.history(log.users.find(user))) names.emplace_back(log.items.name(item));
  return names;
}

}  // namespace prism
