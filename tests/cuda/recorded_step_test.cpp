// A training whose steps are recorded as a graph has the bits of one whose steps are not.
#include <ATen/ops/equal.h>

#include <algorithm>
#include <ostream>

#include "cuda/device.h"
#include "prism/core/log.h"
#include "text/small_tokens.h"
#include "train/language_model_task.h"
#include "train/updater.h"

namespace prism::test {
namespace {

constexpr int64_t kSteps = 14, kBatch = 4, kLength = 48;

struct Recording {
  std::string mixer, precision;
  bool checkpointing = false;
  double dropout = 0;
};
std::ostream& operator<<(std::ostream& out, const Recording& r) {
  return out << r.mixer << " " << r.precision << (r.checkpointing ? " checkpointing" : "")
             << (r.dropout > 0 ? " dropout" : "");
}

/// What a training came to.
struct Trained {
  std::vector<StepFigures> figures;
  Tensors weights;
  bool recorded = false;
};

/// Two documents: a window or two has the border between them, so that steps run eagerly in between. A folder
/// of this test alone, since others run beside it.
std::filesystem::path tokens_of_this_test() {
  std::string text, name = testing::UnitTest::GetInstance()->current_test_info()->name();
  std::replace(name.begin(), name.end(), '/', '-');
  for (int i = 0; i < 1500; ++i) text += static_cast<char>(i == 1000 ? '\n' : 'a' + (i * i + i / 7) % 26);
  return small_tokens("recorded-" + name, text + "\n");
}

std::unique_ptr<LanguageModelRecipe> recipe_of(const Recording& r) {
  auto recipe = std::make_unique<LanguageModelRecipe>(r.mixer);
  const std::vector<std::pair<std::string, std::string>> settings{
      {"model.width", "128"},
      {"model.ffn_width", "192"},
      {"mixer.heads", "2"},
      {"data.length", std::to_string(kLength)},
      {"train.precision", r.precision},
      {"train.batch_size", std::to_string(kBatch)},
      {"train.micro_batches", "2"},
      {"train.validate_every", std::to_string(kSteps)},
      {"train.updates", std::to_string(kSteps)}};
  for (const auto& [key, value] : settings) recipe->settings.set_text(key, value, "test");
  recipe->train.activation_checkpointing = r.checkpointing;
  recipe->model.model.dropout = r.dropout;
  return recipe;
}

Trained train(const Recording& r, const std::filesystem::path& folder, bool record) {
  const TokenDataset tokens(folder);
  const auto tokenizer = load_tokenizer_in(tokens.folder(), tokens.index().tokenizer);
  const auto recipe = recipe_of(r);
  const c10::Device device(c10::kCUDA, 0);
  const auto model = std::make_shared<LanguageModel>(recipe->model, tokens.index().vocabulary, 3);
  model->to(device);
  model->train();
  const TokenSplit split{.train = &tokens, .valid = &tokens, .train_end = tokens.size(), .valid_begin = 0};
  LanguageModelTask task(*recipe, split, *tokenizer, model, device);
  Updater updater(task,
                  {.clip_norm = 0.5,
                   .micro_batches = recipe->train.micro_batches,
                   .precision = recipe->train.precision,
                   .record = record,
                   .rate = [](int64_t step) { return 1e-3 * static_cast<double>(step + 1); }},
                  device);
  task.open_round(0);
  for (int64_t step = 0; step < kSteps; ++step) updater.step(step * kBatch, kBatch, step);
  Trained trained{.figures = updater.take_figures(), .weights = {}, .recorded = updater.has_recorded()};
  for (const at::Tensor& weight : model->parameters()) trained.weights.push_back(weight.detach().cpu());
  return trained;
}

class CudaRecordedStep : public Cuda, public testing::WithParamInterface<Recording> {};

TEST_P(CudaRecordedStep, HasTheBitsOfAnEagerOne) {
  set_log_level(LogLevel::kQuiet);
  const auto folder = tokens_of_this_test();
  const Trained eager = train(GetParam(), folder, false), recorded = train(GetParam(), folder, true);
  EXPECT_FALSE(eager.recorded);
  EXPECT_TRUE(recorded.recorded) << "the log says why not";
  ASSERT_EQ(eager.figures.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(recorded.figures.size(), eager.figures.size());
  for (size_t i = 0; i < eager.figures.size(); ++i) {
    EXPECT_EQ(recorded.figures[i].loss, eager.figures[i].loss) << "step " << i + 1;
    EXPECT_EQ(recorded.figures[i].gradient_norm, eager.figures[i].gradient_norm) << "step " << i + 1;
  }
  EXPECT_NE(eager.figures.front().loss, eager.figures.back().loss);
  ASSERT_EQ(recorded.weights.size(), eager.weights.size());
  for (size_t i = 0; i < eager.weights.size(); ++i)
    EXPECT_TRUE(at::equal(recorded.weights[i], eager.weights[i])) << "weight " << i;
}

/// Backward of a checkpointed block calls forward again on autograd's own thread, under the recording.
TEST_P(CudaRecordedStep, CheckpointingChangesNoBit) {
  set_log_level(LogLevel::kQuiet);
  const auto folder = tokens_of_this_test();
  Recording other = GetParam();
  other.checkpointing = !other.checkpointing;
  const Trained one = train(GetParam(), folder, true), two = train(other, folder, true);
  ASSERT_EQ(one.weights.size(), two.weights.size());
  for (size_t i = 0; i < one.weights.size(); ++i)
    EXPECT_TRUE(at::equal(one.weights[i], two.weights[i])) << "weight " << i;
}

INSTANTIATE_TEST_SUITE_P(
    Trainings, CudaRecordedStep,
    testing::Values(Recording{"prism", "bf16"}, Recording{"prism", "fp32"},
                    Recording{"gated_delta_net", "bf16"}, Recording{"softmax_attention", "bf16"},
                    Recording{"prism", "bf16", true}, Recording{"softmax_attention", "fp32", true},
                    Recording{"prism", "bf16", false, 0.2}, Recording{"prism", "fp32", true, 0.2}));

}  // namespace
}  // namespace prism::test
