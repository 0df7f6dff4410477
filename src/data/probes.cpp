#include "prism/data/probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "prism/core/error.h"
#include "prism/core/random.h"

namespace prism {
namespace {

using Tokens = std::vector<int32_t>;
using Vocabulary = ProbeVocabulary;

/// Tokens with a meaning: groups that stay together, and the end of the sequence.
struct Draft {
  std::vector<Tokens> groups = {};
  Tokens end = {};
  int32_t label = 0;
};

/// `count` of the numbers [0, bound), `first` before all others.
std::vector<int32_t> distinct(RandomStream& random, int64_t count, int64_t bound, int64_t first) {
  std::vector<int32_t> numbers(static_cast<size_t>(bound));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::swap(numbers[0], numbers[static_cast<size_t>(first)]);
  random.shuffle(std::span(numbers).subspan(1));
  numbers.resize(static_cast<size_t>(count));
  return numbers;
}

/// Writes the samples of one task. `kind` is the class of the sample; numbers name data tokens.
class Writer {
 public:
  Writer(const ProbeShape& shape, const Vocabulary& vocabulary, RandomStream& random, int64_t kind)
      : shape_(shape), vocabulary_(vocabulary), random_(random), kind_(kind) {}

  Draft mqar() {
    const auto values = distinct(random_, shape_.count, shape_.values, kind_);
    const auto keys = distinct(random_, shape_.count, shape_.values, drawn(shape_.values));
    Draft draft;
    for (size_t i = 0; i < keys.size(); ++i) draft.groups.push_back({token(keys[i]), second(values[i])});
    draft.end = {Vocabulary::kQuery, token(keys[0])};
    draft.label = second(values[0]);
    random_.shuffle(std::span(draft.groups));
    return draft;
  }

  Draft poly_recall() {
    const auto values = distinct(random_, shape_.count, shape_.values, kind_);
    const auto contexts = distinct(random_, shape_.count, shape_.values, drawn(shape_.values));
    const int32_t key = third(drawn(shape_.values));
    Draft draft;
    for (size_t i = 0; i < values.size(); ++i)
      draft.groups.push_back({token(contexts[i]), key, second(values[i])});
    draft.end = {token(contexts[0]), key};
    draft.label = second(values[0]);
    random_.shuffle(std::span(draft.groups));
    return draft;
  }

  /// The assignments of a chain stand in the order in which they resolve; chains interleave.
  Draft var_tracking() {
    const auto values = distinct(random_, shape_.count, shape_.values, kind_);
    const int64_t names = vocabulary_.noise - vocabulary_.data - shape_.values;
    const auto variables = distinct(random_, 3 * shape_.count, names, drawn(names));
    std::vector<size_t> order;  // the chain of each assignment
    for (size_t chain = 0; chain < values.size(); ++chain) order.insert(order.end(), 3, chain);
    random_.shuffle(std::span(order));
    std::vector<size_t> done(values.size());
    Draft draft;
    for (const size_t chain : order) {
      const size_t link = done[chain]++;
      const int32_t source = link == 0 ? token(values[chain]) : second(variables[3 * chain + link - 1]);
      draft.groups.push_back({second(variables[3 * chain + link]), Vocabulary::kEquals, source});
    }
    draft.end = {Vocabulary::kQuery, second(variables[2])};
    draft.label = token(values[0]);
    return draft;
  }

  Draft parity() {
    Tokens bits;
    int64_t sum = 0;
    for (int64_t i = 1; i < shape_.count; ++i) {
      const int64_t bit = drawn(2);
      sum += bit;
      bits.push_back(token(bit));
    }
    bits.push_back(token((sum + kind_) % 2));
    return operation(std::move(bits), kind_);
  }

  Draft local_xor() {
    const int64_t a = drawn(shape_.values), parity = (a + kind_) % 2;
    return operation({token(a), token(parity + 2 * drawn((shape_.values + 1 - parity) / 2))}, kind_);
  }

  Draft modulo_add() {
    const int64_t a = drawn(shape_.values);
    return operation({token(a), token((kind_ + shape_.values - a) % shape_.values)}, kind_);
  }

  Draft palindrome() {
    const int64_t a = drawn(shape_.values), b = drawn(shape_.values);
    const int64_t other = (a + 1 + drawn(shape_.values - 1)) % shape_.values;
    return operation({token(a), token(b), token(kind_ == 1 ? a : other)}, kind_);
  }

  Draft silence_gate() {
    const bool on = kind_ % 2 == 1;
    const int32_t key = token(drawn(shape_.values)), value = second(kind_ / 2);
    return {.groups = {{on ? Vocabulary::kOn : Vocabulary::kOff, key, value}},
            .end = {Vocabulary::kQuery, key},
            .label = on ? value : int32_t{Vocabulary::kNull}};
  }

  Draft mux() {
    const auto channels = distinct(random_, 2, shape_.values, kind_ / 2);
    const bool one = kind_ % 2 == 1;
    Draft draft = operation({one ? Vocabulary::kSelector1 : Vocabulary::kSelector0,
                             token(channels[one ? 1 : 0]), token(channels[one ? 0 : 1])},
                            0);
    draft.label = token(channels[0]);
    return draft;
  }

 private:
  int64_t drawn(int64_t bound) { return static_cast<int64_t>(random_.below(static_cast<uint64_t>(bound))); }
  /// Data tokens come in sets of `values`: keys and values never share a token.
  int32_t token(int64_t number) const { return vocabulary_.data + static_cast<int32_t>(number); }
  int32_t second(int64_t number) const { return token(shape_.values + number); }
  int32_t third(int64_t number) const { return token(2 * shape_.values + number); }

  /// Adjacent operands with their operator, asked for at the end.
  Draft operation(Tokens operands, int64_t result) const {
    operands.push_back(Vocabulary::kOperator);
    return {.groups = {std::move(operands)}, .end = {Vocabulary::kQuery}, .label = token(result)};
  }

  const ProbeShape& shape_;
  const Vocabulary& vocabulary_;
  RandomStream& random_;
  int64_t kind_;
};

Draft write(ProbeTask task, Writer writer) {
  switch (task) {
    case ProbeTask::kMqar:
      return writer.mqar();
    case ProbeTask::kPolyRecall:
      return writer.poly_recall();
    case ProbeTask::kVarTracking:
      return writer.var_tracking();
    case ProbeTask::kParity:
      return writer.parity();
    case ProbeTask::kLocalXor:
      return writer.local_xor();
    case ProbeTask::kModuloAdd:
      return writer.modulo_add();
    case ProbeTask::kPalindrome:
      return writer.palindrome();
    case ProbeTask::kSilenceGate:
      return writer.silence_gate();
    case ProbeTask::kMux:
      break;
  }
  return writer.mux();
}

/// What a shape must hold.
struct Needs {
  int64_t count, values;  ///< at least
  int64_t data;           ///< data tokens
  int64_t placed, end;    ///< tokens with a meaning before and at the end
};

Needs needs_of(ProbeTask task, const ProbeShape& s) {
  switch (task) {
    case ProbeTask::kMqar:
      return {1, s.count, 2 * s.values, 2 * s.count, 2};
    case ProbeTask::kPolyRecall:
      return {1, s.count, 3 * s.values, 3 * s.count, 2};
    case ProbeTask::kVarTracking:
      return {1, s.count, s.values + 3 * s.count, 9 * s.count, 2};
    case ProbeTask::kParity:
      return {1, 2, 2, s.count + 1, 1};
    case ProbeTask::kLocalXor:
    case ProbeTask::kModuloAdd:
      return {1, 2, s.values, 3, 1};
    case ProbeTask::kPalindrome:
      return {1, 2, s.values, 4, 1};
    case ProbeTask::kSilenceGate:
      return {1, 1, 2 * s.values, 3, 2};
    case ProbeTask::kMux:
      break;
  }
  return {1, 2, s.values, 4, 1};
}

/// Tokens before the end that may hold groups: the first half with mqar, so that every pair is far away.
int64_t room_of(ProbeTask task, const ProbeShape& shape, int64_t end) {
  return std::min(task == ProbeTask::kMqar ? shape.length / 2 : shape.length, shape.length - end);
}

std::string stream_name(ProbeTask task, ProbePart part, const char* what) {
  constexpr const char* kParts[] = {"train", "valid", "test"};
  return fmt::format("probe {} {} {}", enum_name(task), kParts[static_cast<size_t>(part)], what);
}

}  // namespace

Probe::Probe(ProbeTask task, const ProbeShape& shape) : task_(task), shape_(shape) {
  const auto name = enum_name(task);
  vocabulary_.size = static_cast<int32_t>(shape.vocabulary);
  vocabulary_.noise = Vocabulary::kControls + vocabulary_.size / 2;
  const Needs needs = needs_of(task, shape);
  const int64_t data = vocabulary_.noise - vocabulary_.data;
  if (vocabulary_.noise >= vocabulary_.size)
    usage_error("probe: a vocabulary of {} leaves no noise beside {} control and {} data tokens",
                shape.vocabulary, int64_t{Vocabulary::kControls}, data);
  if (shape.count < needs.count || shape.values < needs.values)
    usage_error("probe {}: count {} and values {}; at least {} and {} are needed", name, shape.count,
                shape.values, needs.count, needs.values);
  if (data < needs.data)
    usage_error("probe {}: {} data tokens are needed, a vocabulary of {} has {}", name, needs.data,
                shape.vocabulary, data);
  if (room_of(task, shape, needs.end) < needs.placed)
    usage_error("probe {}: {} tokens do not fit into a sequence of {}", name, needs.placed + needs.end,
                shape.length);
}

int64_t Probe::classes() const {
  switch (task_) {
    case ProbeTask::kParity:
    case ProbeTask::kLocalXor:
    case ProbeTask::kPalindrome:
      return 2;
    case ProbeTask::kSilenceGate:
    case ProbeTask::kMux:
      return 2 * shape_.values;
    default:
      return shape_.values;
  }
}

double Probe::chance() const {
  switch (task_) {
    case ProbeTask::kMqar:
    case ProbeTask::kPolyRecall:
    case ProbeTask::kVarTracking:
      return 1.0 / static_cast<double>(shape_.count);
    case ProbeTask::kModuloAdd:
      return 1.0 / static_cast<double>(shape_.values);
    default:
      return 0.5;
  }
}

ProbeSample Probe::sample(uint64_t seed, ProbePart part, uint64_t index) const {
  const auto kinds = static_cast<uint64_t>(classes());
  std::vector<int32_t> order(kinds);
  std::iota(order.begin(), order.end(), 0);
  RandomStream(seed, stream_name(task_, part, "classes"), index / kinds).shuffle(std::span(order));
  RandomStream random(seed, stream_name(task_, part, "sample"), index);
  const Draft draft = write(task_, Writer(shape_, vocabulary_, random, order[index % kinds]));

  ProbeSample sample{.tokens = Tokens(static_cast<size_t>(shape_.length)), .label = draft.label};
  for (int32_t& token : sample.tokens)
    token = vocabulary_.noise + static_cast<int32_t>(random.below(vocabulary_.size - vocabulary_.noise));
  std::copy(draft.end.rbegin(), draft.end.rend(), sample.tokens.rbegin());
  // Sorted draws divide the noise before, between and after the groups.
  size_t placed = 0;
  for (const Tokens& group : draft.groups) placed += group.size();
  const auto room = static_cast<size_t>(room_of(task_, shape_, static_cast<int64_t>(draft.end.size())));
  std::vector<size_t> before;
  for (size_t i = 0; i < draft.groups.size(); ++i) before.push_back(random.below(room - placed + 1));
  std::sort(before.begin(), before.end());
  size_t start = 0;
  for (size_t i = 0; i < draft.groups.size(); start += draft.groups[i].size(), ++i)
    std::copy(draft.groups[i].begin(), draft.groups[i].end(),
              sample.tokens.begin() + static_cast<std::ptrdiff_t>(before[i] + start));
  return sample;
}

std::string probe_text(const Probe& probe) {
  const ProbeShape& s = probe.shape();
  switch (probe.task()) {
    case ProbeTask::kMqar:
      return fmt::format("{} pairs of {} keys and {} values", s.count, s.values, s.values);
    case ProbeTask::kPolyRecall:
      return fmt::format("one of {} keys in {} of {} contexts, {} values", s.values, s.count, s.values,
                         s.values);
    case ProbeTask::kVarTracking:
      return fmt::format("{} chains of 3 assignments, {} values", s.count, s.values);
    case ProbeTask::kParity:
      return fmt::format("{} adjacent bits", s.count);
    case ProbeTask::kLocalXor:
      return fmt::format("2 of {} operands", s.values);
    case ProbeTask::kModuloAdd:
      return fmt::format("modulo {}", s.values);
    case ProbeTask::kPalindrome:
      return fmt::format("3 of {} tokens", s.values);
    case ProbeTask::kSilenceGate:
      return fmt::format("one pair of {} keys and {} values", s.values, s.values);
    case ProbeTask::kMux:
      break;
  }
  return fmt::format("2 of {} values", s.values);
}

}  // namespace prism
