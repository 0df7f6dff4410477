// The generators of the probes: labels by another way, balance, disjoint vocabularies and streams.
#include "prism/data/probes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "prism/core/error.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
using Vocabulary = ProbeVocabulary;
using Tokens = std::vector<int32_t>;

struct Case {
  ProbeTask task;
  ProbeShape shape;
};

void PrintTo(const Case& c, std::ostream* out) { *out << enum_name(c.task) << " " << c.shape.length; }

std::vector<Case> cases() {
  return {{ProbeTask::kMqar, {.count = 4, .values = 16}},
          {ProbeTask::kMqar, {.vocabulary = 32, .length = 9, .count = 2, .values = 2}},
          {ProbeTask::kPolyRecall, {.count = 2, .values = 8}},
          {ProbeTask::kVarTracking, {.count = 3, .values = 12}},
          {ProbeTask::kVarTracking, {.length = 11, .count = 1, .values = 4}},
          {ProbeTask::kParity, {.count = 3}},
          {ProbeTask::kParity, {.count = 8}},
          {ProbeTask::kLocalXor, {.values = 28}},
          {ProbeTask::kLocalXor, {.values = 5}},
          {ProbeTask::kModuloAdd, {.values = 16}},
          {ProbeTask::kModuloAdd, {.length = 4, .values = 10}},
          {ProbeTask::kPalindrome, {.values = 8}},
          {ProbeTask::kSilenceGate, {.values = 16}},
          {ProbeTask::kMux, {.values = 16}}};
}

/// The meaning of a sequence, read from its tokens alone.
class Reader {
 public:
  Reader(const Probe& probe, const Tokens& tokens)
      : probe_(probe), vocabulary_(probe.vocabulary()), tokens_(tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] < vocabulary_.noise) places_.push_back(i);
  }

  int32_t answer() const {
    switch (probe_.task()) {
      case ProbeTask::kMqar:
        return after(last());
      case ProbeTask::kPolyRecall:
        return in_context(tokens_[tokens_.size() - 2], last());
      case ProbeTask::kVarTracking:
        return resolved(last());
      case ProbeTask::kParity:
        return truth(sum(operands()) % 2 == 1);
      case ProbeTask::kLocalXor:
        return truth((operands()[0] % 2 == 0) != (operands()[1] % 2 == 0));
      case ProbeTask::kModuloAdd:
        return vocabulary_.data +
               static_cast<int32_t>((operands()[0] + operands()[1]) % probe_.shape().values);
      case ProbeTask::kPalindrome:
        return truth(operands()[0] == operands()[2]);
      case ProbeTask::kSilenceGate:
        return word(0) == Vocabulary::kOn ? after(last()) : int32_t{Vocabulary::kNull};
      case ProbeTask::kMux:
        return word(0) == Vocabulary::kSelector0 ? word(1) : word(2);
    }
    return -1;
  }

  int32_t last() const { return tokens_.back(); }
  int32_t word(size_t i) const { return tokens_[places_[i]]; }
  const std::vector<size_t>& places() const { return places_; }

 private:
  int32_t truth(bool holds) const { return vocabulary_.data + (holds ? 1 : 0); }
  /// Numbers of the data tokens right before OP.
  std::vector<int64_t> operands() const {
    std::vector<int64_t> numbers;
    for (const size_t place : places_) {
      if (tokens_[place] == Vocabulary::kOperator) {
        EXPECT_EQ(place - places_[0], numbers.size()) << "operands are adjacent";
        return numbers;
      }
      numbers.push_back(tokens_[place] - vocabulary_.data);
    }
    ADD_FAILURE() << "no operator";
    return {0, 0, 0};
  }
  static int64_t sum(const std::vector<int64_t>& numbers) {
    int64_t total = 0;
    for (const int64_t number : numbers) total += number;
    return total;
  }
  int32_t after(int32_t key) const {
    for (size_t i = 0; i + 1 < tokens_.size(); ++i)
      if (tokens_[i] == key) return tokens_[i + 1];
    return -1;
  }
  int32_t in_context(int32_t context, int32_t key) const {
    for (size_t i = 0; i + 4 < tokens_.size(); ++i)
      if (tokens_[i] == context && tokens_[i + 1] == key) return tokens_[i + 2];
    return -1;
  }
  int32_t resolved(int32_t name) const {
    size_t before = tokens_.size();
    for (int link = 0; link < 3; ++link) {
      size_t i = 0;
      while (i + 1 < before && !(tokens_[i] == name && tokens_[i + 1] == Vocabulary::kEquals)) ++i;
      if (i + 1 >= before) return -1;  // assigned nowhere before its use
      before = i;
      name = tokens_[i + 2];
    }
    return name;
  }

  const Probe& probe_;
  const Vocabulary& vocabulary_;
  const Tokens& tokens_;
  std::vector<size_t> places_;
};

class Probes : public ::testing::TestWithParam<Case> {
 protected:
  Probe probe_{GetParam().task, GetParam().shape};
};

TEST_P(Probes, TokensGiveTheLabel) {
  for (uint64_t index = 0; index < 500; ++index) {
    const ProbeSample sample = probe_.sample(7, ProbePart::kTrain, index);
    ASSERT_EQ(sample.tokens.size(), static_cast<size_t>(probe_.shape().length));
    ASSERT_EQ(Reader(probe_, sample.tokens).answer(), sample.label) << index;
  }
}

TEST_P(Probes, LabelsAreBalanced) {
  const auto kinds = static_cast<uint64_t>(probe_.classes());
  std::map<int32_t, int64_t> counts;
  constexpr int64_t kRounds = 20;
  for (uint64_t index = 0; index < kinds * kRounds; ++index)
    ++counts[probe_.sample(3, ProbePart::kTest, index).label];
  const int64_t silent = counts[Vocabulary::kNull];
  EXPECT_EQ(silent, probe_.task() == ProbeTask::kSilenceGate ? probe_.shape().values * kRounds : 0);
  counts.erase(Vocabulary::kNull);
  const auto labels = static_cast<int64_t>(counts.size());
  for (const auto& [label, count] : counts)
    EXPECT_EQ(count * labels, static_cast<int64_t>(kinds) * kRounds - silent) << label;
}

TEST_P(Probes, MeaningNoiseAndLabelsAreDisjointSets) {
  const Vocabulary& v = probe_.vocabulary();
  EXPECT_LT(Vocabulary::kControls, v.noise);
  EXPECT_LT(v.noise, v.size);
  std::set<int32_t> noise;
  size_t meaningful = 0;
  for (uint64_t index = 0; index < 300; ++index) {
    const ProbeSample sample = probe_.sample(1, ProbePart::kTrain, index);
    const Reader reader(probe_, sample.tokens);
    meaningful = index == 0 ? reader.places().size() : meaningful;
    EXPECT_EQ(reader.places().size(), meaningful) << "noise never looks like meaning";
    EXPECT_GE(*std::min_element(sample.tokens.begin(), sample.tokens.end()), 0);
    for (const int32_t token : sample.tokens)
      if (token >= v.noise) noise.insert(token);
    EXPECT_LT(sample.label, v.noise);
    EXPECT_TRUE(sample.label >= v.data || sample.label == Vocabulary::kNull);
  }
  if (!noise.empty()) {  // a sequence may be full of meaning
    EXPECT_LT(*noise.rbegin(), v.size);
  }
  if (probe_.shape().length > 100) {
    EXPECT_EQ(noise.size(), static_cast<size_t>(v.size - v.noise));
  }
}

TEST_P(Probes, SamplesArePureAndPartsAreDisjoint) {
  std::set<Tokens> seen;
  size_t total = 0;
  for (const ProbePart part : {ProbePart::kTrain, ProbePart::kValid, ProbePart::kTest})
    for (uint64_t index = 0; index < 400; ++index, ++total) {
      const ProbeSample sample = probe_.sample(9, part, index);
      EXPECT_EQ(Probe(GetParam().task, GetParam().shape).sample(9, part, index).tokens, sample.tokens);
      seen.insert(sample.tokens);
    }
  if (probe_.shape().length > 100) {
    EXPECT_EQ(seen.size(), total);
  }
  EXPECT_NE(probe_.sample(9, ProbePart::kTrain, 1).tokens, probe_.sample(10, ProbePart::kTrain, 1).tokens);
}

/// A blind choice among the values that are there, or a constant.
TEST_P(Probes, ChanceIsWhatABlindAnswerGets) {
  const ProbeTask task = probe_.task();
  const int64_t choices =
      task == ProbeTask::kMqar || task == ProbeTask::kPolyRecall || task == ProbeTask::kVarTracking
          ? probe_.shape().count
      : task == ProbeTask::kModuloAdd ? probe_.shape().values
                                      : 2;
  EXPECT_DOUBLE_EQ(probe_.chance() * static_cast<double>(choices), 1);
  if (task != ProbeTask::kMux) return;
  for (uint64_t index = 0; index < 100; ++index) {
    const ProbeSample sample = probe_.sample(2, ProbePart::kTest, index);
    const Reader reader(probe_, sample.tokens);
    EXPECT_NE(reader.word(1), reader.word(2)) << "the channels always differ";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Probes, ::testing::ValuesIn(cases()), [](const auto& one) {
  return std::string(enum_name(one.param.task)) + "_" + std::to_string(one.index);
});

TEST(ProbesErrors, NameTheTaskAndWhatIsMissing) {
  const auto message = [](ProbeTask task, const ProbeShape& shape) -> std::string {
    try {
      Probe(task, shape);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(ProbeTask::kMqar, {.count = 4, .values = 17}),
              HasSubstr("mqar: 34 data tokens are needed, a vocabulary of 64 has 32"));
  EXPECT_THAT(message(ProbeTask::kMqar, {.length = 8, .count = 3, .values = 4}), HasSubstr("do not fit"));
  EXPECT_THAT(message(ProbeTask::kMqar, {.count = 4, .values = 3}), HasSubstr("at least 1 and 4"));
  EXPECT_THAT(message(ProbeTask::kMux, {.values = 1}), HasSubstr("at least 1 and 2"));
  EXPECT_THAT(message(ProbeTask::kParity, {.vocabulary = 16, .count = 3}), HasSubstr("no noise"));
  EXPECT_THAT(message(ProbeTask::kParity, {.length = 4, .count = 3}), HasSubstr("do not fit"));
}

}  // namespace
}  // namespace prism
