// Decoding on a GPU: a recorded step gives what its operations give one after the other.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "cuda/device.h"
#include "prism/serve/text_generator.h"
#include "serve/decoder.h"

namespace prism::test {
namespace {

using at::Tensor;

constexpr int64_t kVocabulary = 257;

std::shared_ptr<LanguageModel> make(const std::string& mixer) {
  LanguageModelSpec spec(mixer);
  Settings settings;
  spec.bind(settings);
  spec.model.width = 128, spec.model.blocks = 2, spec.model.ffn_width = 192;
  auto model = std::make_shared<LanguageModel>(spec, kVocabulary, 5);
  model->to(at::kCUDA);
  model->eval();
  return model;
}

struct Decoded {
  std::vector<Tensor> logits;
  LanguageModelState state;
  bool replays = false;
};

/// Greedy steps after a prompt of three sequences.
Decoded decode(LanguageModel& model, Precision precision, bool record) {
  const c10::NoGradGuard no_gradient;
  const Tensor prompt = at::arange(3 * 17, at::kLong).remainder(kVocabulary).view({3, 17}).to(at::kCUDA);
  Decoded made;
  {
    const Autocast autocast(at::kCUDA, precision);
    model.prefill(prompt, Packing::rows(), made.state);
  }
  Decoder decoder(model, made.state, {.precision = precision, .record = record});
  Tensor tokens = at::tensor({1, 2, 3}, at::kLong);
  for (int i = 0; i < 12; ++i) {
    const Tensor logits = decoder.step(tokens);
    made.logits.push_back(logits.cpu());
    tokens = likeliest_tokens(logits).cpu();
  }
  made.replays = decoder.replays();
  return made;
}

class CudaGenerate : public Cuda {};

TEST_F(CudaGenerate, RecordedStepsGiveTheSameBits) {
  for (const char* mixer :
       {"prism", "gated_delta_net", "mamba2", "preconditioned_delta_net", "kda", "rwkv7"}) {
    const auto model = make(mixer);
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      const Decoded plain = decode(*model, precision, false), recorded = decode(*model, precision, true);
      const std::string note = fmt::format("{} {}", mixer, enum_name(precision));
      EXPECT_TRUE(recorded.replays) << note;
      EXPECT_FALSE(plain.replays) << note;
      for (size_t i = 0; i < plain.logits.size(); ++i)
        EXPECT_TRUE(at::equal(plain.logits[i], recorded.logits[i])) << note << ", step " << i;
      for (size_t block = 0; block < plain.state.blocks.size(); ++block) {
        EXPECT_EQ(plain.state.blocks[block].lengths, recorded.state.blocks[block].lengths) << note;
        for (const auto& [name, tensor] : plain.state.blocks[block].tensors)
          EXPECT_TRUE(at::equal(tensor, recorded.state.blocks[block].tensors.at(name)))
              << note << ", " << name;
      }
    }
  }
}

TEST_F(CudaGenerate, AStateThatGrowsIsNotRecorded) {
  for (const char* mixer : {"softmax_attention", "prism,softmax_attention"}) {
    const auto model = make(mixer);
    EXPECT_FALSE(decode(*model, Precision::kBf16, true).replays) << mixer;
  }
}

/// The same texts as on the CPU, over two calls that each record.
TEST_F(CudaGenerate, GreedyTextsAreThoseOfTheCpu) {
  const auto tokenizer = load_tokenizer("bytes");
  const auto model = make("prism");
  {
    const c10::NoGradGuard no_gradient;
    model->embedding().data().mul_(20);  // no near ties
  }
  std::vector<std::vector<int32_t>> ids;
  for (const at::Device device : {at::Device(at::kCUDA), at::Device(at::kCPU)}) {
    model->to(device);
    TextGenerator generator(*model, *tokenizer, 1);
    generator.read({"hello"}, 100);
    std::vector<int32_t> own;
    for (int call = 0; call < 2; ++call) {
      const auto texts =
          generator.generate({.temperature = 0}, {.max_tokens = 10, .stop = {}, .stop_at_end = false});
      own.insert(own.end(), texts[0].ids.begin(), texts[0].ids.end());
    }
    ids.push_back(own);
  }
  EXPECT_EQ(ids[0], ids[1]);
}

}  // namespace
}  // namespace prism::test
