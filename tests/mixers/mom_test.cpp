// Mixture of Memories: routing, its equivalence with the base, the balance loss.
#include "prism/mixers/mom.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "mixers/mixer_cases.h"
#include "prism/core/error.h"
#include "prism/mixers/gated_delta_net.h"

namespace prism::test::mom {
namespace {

using at::Tensor;

std::shared_ptr<Mom> make(const MomConfig& config, int64_t width = 8) {
  at::manual_seed(1);
  auto mixer = std::make_shared<Mom>(config, width);
  mixer->to(at::kDouble);
  return mixer;
}

TEST(MemoryRouting, SendsEveryCopyOnceAndInOrder) {
  // Two sequences of 3 and 2 tokens, top 2 of 3 memories and a shared one.
  const Tensor chosen = at::tensor({0, 2, 2, 1, 0, 1, 1, 2, 2, 0}, at::kLong).view({5, 2});
  const MemoryRouting routing(chosen, {0, 3, 5}, 3, true);
  EXPECT_EQ(routing.memories(), 4);
  EXPECT_EQ(routing.packing().offsets(), (std::vector<int64_t>{0, 2, 3, 5, 6, 8, 10, 13, 15}));
  const Tensor x = at::arange(5, at::kDouble).unsqueeze(-1);
  const Tensor routed = at::tensor({0, 2, 4, 1, 2, 3, 0, 1, 3, 4, 0, 1, 2, 3, 4}, at::kDouble);
  EXPECT_TRUE(at::equal(routing.gather(x).flatten(), routed));
  const Tensor own = at::arange(20, at::kDouble).view({5, 4});
  const Tensor memory = at::tensor({0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3}, at::kDouble);
  EXPECT_TRUE(at::equal(routing.gather_own(own).flatten(), 4 * routed + memory));
  // Reads that are the token's number: 3 of each token with weights 0.25 and 0.5 and 1.
  const Tensor o = routing.gather(x).unflatten(2, {1, 1});
  const Tensor weights = at::tensor({0.25, 0.5}, at::kDouble).expand({5, 2});
  EXPECT_TRUE(at::equal(routing.combine(o, weights).flatten(), 1.75 * x.flatten()));
}

TEST(MemoryRouting, NamesMemoriesThatDoNotExist) {
  EXPECT_THROW(MemoryRouting(at::tensor({3}, at::kLong).view({1, 1}), {0, 1}, 3, false), Error);
  EXPECT_THROW(MemoryRouting(at::tensor({0}, at::kLong).view({1, 1}), {0, 2}, 3, false), Error);
}

TEST(Mom, OneMemoryIsTheBase) {  // equivalence 14
  MomConfig config;
  config.memories = config.top_k = 1;
  config.shared_memory = false;
  const auto mom = make(config);
  at::manual_seed(2);
  GatedDeltaNet base({}, 8);
  base.to(at::kDouble);
  const at::NoGradGuard no_gradient;
  auto own = mom->named_parameters();
  for (auto& parameter : base.named_parameters()) parameter.value().copy_(own["base." + parameter.key()]);
  const Tensor x = random_input({1, 17, 8});
  const Packing packing = Packing::packed({9, 0, 8});
  EXPECT_LT(relative_error(mom->forward(x, packing), base.forward(x, packing)), 1e-14);
}

/// Token by token: a memory's state moves only when a token is sent to it.
TEST(Mom, AMemoryRestsBetweenItsTokens) {
  const at::NoGradGuard no_gradient;
  MomConfig config;
  config.top_k = 1;
  const auto mom = make(config);
  MixerState state;
  std::vector<int64_t> moved;
  Tensor before = at::zeros({1, 5, 2, 4, 4}, at::kDouble);
  for (int64_t t = 0; t < 20; ++t) {
    mom->step(random_input({1, 8}, 30 + t), state);
    const Tensor now = state.tensors.at("S").clone();
    const Tensor changed = (now != before).flatten(2).any(-1)[0];
    EXPECT_EQ(changed.narrow(0, 0, 4).sum().item<int64_t>(), 1) << "token " << t;
    EXPECT_TRUE(changed[4].item<bool>()) << "the shared memory sees token " << t;
    moved.push_back(changed.narrow(0, 0, 4).to(at::kLong).argmax().item<int64_t>());
    before = now;
  }
  EXPECT_GT(std::set<int64_t>(moved.begin(), moved.end()).size(), 1u);
}

TEST(Mom, BalanceLossIsOneWhereAllIsEvenAndReachesTheRouter) {
  const Tensor even = at::full({6, 3}, 1.0 / 3, at::kDouble);
  const Tensor chosen = at::tensor({0, 1, 1, 2, 2, 0}, at::kLong).view({3, 2});
  EXPECT_NEAR(balance_loss(even, chosen).item<double>(), 1, 1e-12);
  const Tensor one_sided = at::tensor({1.0, 0.0, 0.0}, at::kDouble).expand({3, 3});
  EXPECT_NEAR(balance_loss(one_sided, at::zeros({3, 1}, at::kLong)).item<double>(), 3, 1e-12);

  const auto mom = make({});
  const Tensor x = random_input({2, 9, 8});
  mom->eval();
  mom->forward(x, Packing::rows());
  EXPECT_FALSE(mom->auxiliary_loss().defined()) << "evaluation leaves no loss";
  mom->train();
  mom->forward(x, Packing::rows());
  const Tensor loss = mom->auxiliary_loss();
  EXPECT_GT(loss.item<double>(), 0.009);
  loss.backward();
  EXPECT_GT(mom->named_parameters()["router_weight"].grad().norm().item<double>(), 0);
}

TEST(Mom, MoreChoicesThanMemoriesAreAUsageError) {
  MomConfig config;
  config.top_k = 5;
  try {
    Mom(config, 8);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("top_k 5 is more than the 4 memories"));
  }
}

}  // namespace
}  // namespace prism::test::mom
