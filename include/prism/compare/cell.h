#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "prism/compare/plan.h"

namespace prism {

/// What a cell measured, by name: "test HR@10", "positions_per_second", ...; docs/compare.md lists them.
using Figures = std::vector<std::pair<std::string, double>>;

/// Files of a cell: cell.toml and recipe.toml (what to measure), result.json (there once it is finished),
/// log.txt, and with a recommendation log the run folder "run".
class CellFolder {
 public:
  explicit CellFolder(std::filesystem::path root) : root_(std::move(root)) {}
  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path cell() const { return root_ / "cell.toml"; }
  std::filesystem::path recipe() const { return root_ / "recipe.toml"; }
  std::filesystem::path result() const { return root_ / "result.json"; }
  std::filesystem::path log() const { return root_ / "log.txt"; }
  std::filesystem::path run() const { return root_ / "run"; }

 private:
  std::filesystem::path root_;
};

/// Measures the cell that lies in `folder`, going on where an interrupted training stopped, and writes its
/// result. Returns 0, or the signal that stopped it.
int run_cell(const CellFolder& folder, c10::Device device);

/// The figures of a finished cell; nothing where there is no result yet.
std::optional<Figures> read_figures(const CellFolder& folder);

}  // namespace prism
