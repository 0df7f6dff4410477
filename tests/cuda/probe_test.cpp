// Probes on a GPU: the steps are recorded as a graph, and learn what they learn on the CPU.
#include "prism/train/probe.h"

#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "cuda/device.h"
#include "prism/core/log.h"

namespace prism::test {
namespace {

class CudaProbe : public Cuda, public testing::WithParamInterface<const char*> {};

TEST_P(CudaProbe, LearnsAsOnTheCpu) {
  ProbeRecipe recipe(GetParam());
  const std::vector<std::pair<const char*, const char*>> settings{
      {"probe.length", "33"},         {"probe.updates", "40"}, {"probe.check_every", "10"},
      {"probe.test_samples", "1024"}, {"probe.rate", "0.003"}, {"probe.stop_at", "2"}};
  for (const auto& [key, value] : settings) recipe.settings.set_text(key, value, "test");
  recipe.fit_to(ProbeTask::kMux);
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::kNormal);
  const ProbeResult device = train_probe(recipe, ProbeTask::kMux, c10::Device(c10::kCUDA, 0));
  set_log_level(LogLevel::kQuiet);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(testing::HasSubstr("not recorded")));
  const ProbeResult host = train_probe(recipe, ProbeTask::kMux, c10::kCPU);
  ASSERT_EQ(device.curve.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(device.curve[i].second, host.curve[i].second, 0.05) << i;
  EXPECT_NEAR(device.accuracy, host.accuracy, 0.03);
  EXPECT_EQ(device.updates, host.updates);
}

INSTANTIATE_TEST_SUITE_P(Mixers, CudaProbe,
                         testing::Values("prism", "gated_delta_net", "softmax_attention", "sasrec_block"));

}  // namespace
}  // namespace prism::test
