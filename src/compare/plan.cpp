#include "prism/compare/plan.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <memory>
#include <set>

#include "prism/compare/layer_speed.h"
#include "prism/core/enum_of.h"
#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/text.h"
#include "prism/data/reader.h"
#include "prism/train/run.h"

namespace prism {
namespace {

/// "softmax_attention input_conv=4" -> "softmax_attention-input_conv-4", a folder's name.
std::string folder_name(const std::string& label) {
  std::string name;
  for (const char c : label) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
    if (plain)
      name += c;
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  return name.empty() || name[0] == '.' ? "_" + name : name;
}

size_t reference_of(const CompareRecipe& recipe, const std::vector<Variant>& variants) {
  if (recipe.compare.reference.empty()) return 0;
  std::vector<std::string> labels;
  labels.reserve(variants.size());
  for (const Variant& variant : variants) labels.push_back(variant.label);
  const auto found = std::find(labels.begin(), labels.end(), recipe.compare.reference);
  if (found == labels.end())
    usage_error("compare: no variant is called \"{}\"{}", recipe.compare.reference,
                did_you_mean(recipe.compare.reference, labels));
  return static_cast<size_t>(found - labels.begin());
}

/// Whether some block has an FFN beside its mixer.
bool has_ffn(const ModelSpec& spec) {
  for (int64_t block = 0; block < spec.model.blocks; ++block)
    if (!spec.mixer.of_block(block).is_whole_block()) return true;
  return false;
}

/// Usage error for an empty list, and for one that says a thing twice: its cells would count as two.
template <class T>
void require_distinct(const char* name, const std::vector<T>& list) {
  if (list.empty()) usage_error("compare: {} is empty", name);
  std::set<T> seen;
  for (const T& entry : list)
    if (!seen.insert(entry).second) usage_error("compare: {} has {} twice", name, entry);
}

std::vector<ProbeTask> probes_of(const CompareRecipe& recipe) {
  const auto& names = EnumNames<ProbeTask>::names;
  std::vector<std::string> wanted;
  for (const std::string& name : recipe.compare.probes)
    if (name == "all")
      wanted.insert(wanted.end(), names.begin(), names.end());
    else
      wanted.push_back(name);
  require_distinct("probes", wanted);
  std::vector<ProbeTask> tasks;
  tasks.reserve(wanted.size());
  for (const std::string& name : wanted) tasks.push_back(enum_of<ProbeTask>(name, "compare", "probe"));
  return tasks;
}

/// Matching would change what the variant asked for.
void require_free_ffn(const Variant& variant) {
  for (const auto& [key, value] : variant.settings)
    if (key == "ffn_width" || key == "ffn_multiple")
      usage_error("compare: variant \"{}\": matching decides the FFN width; leave {} out, or use --no-match",
                  variant.label, key);
}

class Planner {
 public:
  explicit Planner(const CompareRecipe& recipe)
      : recipe_(recipe), variants_(variants_of(recipe)), reference_(reference_of(recipe, variants_)) {}

  Plan run() {
    require_distinct("seeds", recipe_.compare.seeds);
    switch (recipe_.compare.task) {
      case CompareTask::kRecommendation:
        recommendation();
        break;
      case CompareTask::kProbe:
        for (const ProbeTask task : probes_of(recipe_)) probe(task);
        break;
      case CompareTask::kSpeed:
        require_distinct("lengths", recipe_.speed.lengths);
        for (const int64_t length : recipe_.speed.lengths) speed(length);
    }
    std::stable_sort(plan_.cells.begin(), plan_.cells.end(),
                     [](const Cell& a, const Cell& b) { return a.seed < b.seed; });
    return std::move(plan_);
  }

 private:
  void recommendation() {
    if (recipe_.recipe.data.file.empty()) usage_error("compare: no data; name a log with --file");
    ReadReport report;
    const Interactions log = read_interactions(recipe_.recipe.data, report);
    for (const std::string& line : report.text()) info("{}", line);
    log_ = log_fingerprint(log);
    add_item<Recipe>("", log.items.size(), true, [&](Recipe& recipe) { recipe.fit_to(log); });
  }

  void probe(ProbeTask task) {
    add_item<ProbeRecipe>(std::string(enum_name(task)), recipe_.probe.vocabulary, true,
                          [&](ProbeRecipe& recipe) {
                            recipe.fit_to(task);
                            recipe.probe(task);  // its errors, before anything is trained
                          });
  }

  void speed(int64_t length) {
    add_item<SpeedRecipe>(std::to_string(length), 1, false, [&](SpeedRecipe& recipe) {
      recipe.model.model.max_length = std::max(recipe.model.model.max_length, length);
    });
  }

  /// The cells of every variant on one item. `fit` completes a variant's recipe.
  template <class R>
  void add_item(const std::string& item, int64_t items, bool trained, const std::function<void(R&)>& fit) {
    std::vector<std::unique_ptr<R>> recipes;
    for (const Variant& variant : variants_) {
      recipes.push_back(std::make_unique<R>(variant.mixer));
      recipe_.apply(variant, recipes.back()->settings);
      fit(*recipes.back());
    }
    const ParameterCount wanted = count_parameters(recipes[reference_]->model, items);
    for (size_t i = 0; i < variants_.size(); ++i) {
      ModelSpec& spec = recipes[i]->model;
      MatchedBy matched = MatchedBy::kNothing;
      if (trained && recipe_.compare.match && i != reference_) require_free_ffn(variants_[i]);
      if (trained && recipe_.compare.match)
        matched = i == reference_
                      ? MatchedBy::kReference
                      : match_parameters(spec, items, wanted, recipe_.compare.tolerance, variants_[i].label);
      add_model(variants_[i], item, spec, items, matched);
      for (const int64_t seed : trained ? recipe_.compare.seeds : std::vector<int64_t>{0}) {
        recipes[i]->run.seed = seed;
        add_cell(variants_[i], item, matched, seed, recipes[i]->settings);
      }
    }
  }

  void add_model(const Variant& variant, const std::string& item, const ModelSpec& spec, int64_t items,
                 MatchedBy matched) {
    const RecommenderConfig& model = spec.model;
    const int64_t ffn = model.ffn_width > 0 ? model.ffn_width : model.ffn_multiple * model.width;
    plan_.models.push_back({.variant = variant.label,
                            .mixer = variant.mixer,
                            .item = item,
                            .parameters = count_parameters(spec, items),
                            .matched = matched,
                            .width = model.width,
                            .ffn_width = has_ffn(spec) ? ffn : 0});
  }

  void add_cell(const Variant& variant, const std::string& item, MatchedBy matched, int64_t seed,
                const Settings& settings) {
    Cell cell{.config = {.task = recipe_.compare.task,
                         .variant = variant.label,
                         .item = item,
                         .log = log_,
                         .matched = matched},
              .seed = seed};
    cell.path = std::filesystem::path(item) / folder_name(variant.label) / fmt::format("seed-{}", seed);
    Settings head;
    head.bind("cell", cell.config);
    cell.cell_toml = head.to_toml();
    cell.recipe_toml = settings.to_toml();
    plan_.cells.push_back(std::move(cell));
  }

  const CompareRecipe& recipe_;
  std::vector<Variant> variants_;
  size_t reference_;
  std::string log_;
  Plan plan_;
};

}  // namespace

std::vector<Variant> variants_of(const CompareRecipe& recipe) {
  std::vector<Variant> variants;
  for (const std::string& text : recipe.compare.variants) {
    if (text == "all")
      for (const std::string& mixer : mixer_names()) variants.push_back({.label = mixer, .mixer = mixer});
    else
      variants.push_back(parse_variant(text));
  }
  std::set<std::string> names;
  for (const Variant& variant : variants)
    if (!names.insert(folder_name(variant.label)).second)
      usage_error("compare: two variants are called \"{}\"; give one a label, \"LABEL: MIXER ...\"",
                  variant.label);
  if (variants.empty()) usage_error("compare: no variants");
  return variants;
}

Plan plan_comparison(const CompareRecipe& recipe) { return Planner(recipe).run(); }

}  // namespace prism
