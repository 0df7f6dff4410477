// prism compare and prism probe as a user runs them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "apps/process.h"
#include "apps/run_prism.h"
#include "prism/core/random.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

class CompareCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("prism-compare-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
    RandomStream random(5, "log");
    std::string log = "user_id,item_id,timestamp\n";
    for (int user = 0; user < 60; ++user) {
      const auto start = static_cast<int>(random.below(30));
      for (int t = 0; t < 12; ++t) log += fmt::format("u{},i{},{}\n", user, (start + t) % 30, t);
    }
    write_file(path("log.csv"), log);
    write_file(
        path("small.toml"),
        "[compare]\nvariants = [\"prism\", \"one step: prism steps=1\", \"sasrec_block\"]\nseeds = [1, 2]\n"
        "tolerance = 0.1\n"  // so small a model grows in large steps
        "[model]\nwidth = 16\nblocks = 1\nmax_length = 8\n[train]\nepochs = 2\nbatch_size = 16\nwarmup = "
        "0\n");
  }
  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::string words(const std::string& out, const std::string& more = "") const {
    return fmt::format("compare {} --file {} --out {} --threads 1 --python false {}", path("small.toml"),
                       path("log.csv"), path(out), more);
  }
  /// Accuracies alone: times differ from run to run.
  static json accuracies(const json& summary) {
    json found;
    for (const json& row : summary["rows"])
      for (const auto& [name, figure] : row["figures"].items())
        if (name.find('@') != std::string::npos)
          found[row["variant"].get<std::string>()][name] = figure["values"];
    return found;
  }
  fs::path root_;
};

TEST_F(CompareCommand, GivesEqualParametersAndTheSameFiguresOnAnyNumberOfProcesses) {
  const Outcome one = run_prism(words("one", "--json")), two = run_prism(words("two", "--json --jobs 3"));
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(two.status, 0) << two.err;
  const json summary = one.json();
  EXPECT_EQ(accuracies(summary), accuracies(two.json()));
  ASSERT_EQ(summary["rows"].size(), 3U);
  const double wanted = summary["rows"][0]["parameters"];
  for (const json& row : summary["rows"]) {
    EXPECT_NEAR(row["parameters"].get<double>(), wanted, 0.1 * wanted) << row["variant"];
    EXPECT_EQ(row["finished"], 2);
    for (const char* figure : {"test NDCG@10", "positions_per_second", "evaluation_seconds", "state_bytes",
                               "peak_memory_bytes", "markov test HR@10"})
      EXPECT_GT(row["figures"][figure]["mean"].get<double>(), 0) << figure;
    EXPECT_TRUE(row["figures"]["test NDCG@10"]["deviation"].is_number());
  }
  EXPECT_EQ(summary["rows"][0]["matched_by"], "reference");
  EXPECT_EQ(summary["rows"][1]["matched_by"], "ffn_width");
  EXPECT_EQ(summary["rows"][2]["matched_by"], "width");
  EXPECT_THAT(read_file(path("one/tables.md")), HasSubstr("| one step |"));
  EXPECT_THAT(read_file(path("one/results.csv")), HasSubstr("\nmarkov,"));
  const std::string cells = read_file(path("one/cells.csv"));
  EXPECT_EQ(std::count(cells.begin(), cells.end(), '\n'), 1 + 6);
  EXPECT_EQ(run_prism("info " + path("one/cells/prism/seed-1/run")).status, 0) << "a cell's run is a run";
}

TEST_F(CompareCommand, RunsOnlyWhatIsMissingAndRefusesOtherSettings) {
  ASSERT_EQ(run_prism(words("out")).status, 0);
  const fs::path kept = root_ / "out/cells/prism/seed-1/result.json",
                 lost = root_ / "out/cells/prism/seed-2/result.json";
  const auto before = fs::last_write_time(kept);
  fs::remove(lost);
  const Outcome again = run_prism(words("out"));
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.err, HasSubstr("5 of 6 cells are finished already"));
  EXPECT_EQ(fs::last_write_time(kept), before);
  EXPECT_TRUE(fs::exists(lost));
  const Outcome other = run_prism(words("out", "--epochs 3"));
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("was made with other settings"));
  EXPECT_EQ(run_prism(words("out", "--seeds 1,2,3")).status, 0) << "more seeds join";
  write_file(path("log.csv"), read_file(path("log.csv")) + "u1,i1,99\n");
  const Outcome grown = run_prism(words("out"));
  EXPECT_EQ(grown.status, 2);
  EXPECT_THAT(grown.err, HasSubstr("or for another log"));
}

TEST_F(CompareCommand, InterruptedItGoesOnToTheSameFigures) {
  const std::string longer = "--epochs 40 --patience 0 --seeds 1 --json";
  const Outcome whole = run_prism(words("whole", longer));
  ASSERT_EQ(whole.status, 0) << whole.err;
  const Process process(
      {"compare", path("small.toml"), "--file", path("log.csv"), "--out", path("stopped"), "--threads", "1",
       "--epochs", "40", "--patience", "0", "--seeds", "1", "--jobs", "2"},
      root_ / "process");
  while (!fs::exists(root_ / "stopped/cells/prism/seed-1/run/checkpoints/last.safetensors"))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  process.kill(SIGINT);
  const int status = process.wait();
  EXPECT_TRUE(status == 128 + SIGINT || status == 0) << process.err();
  EXPECT_TRUE(fs::exists(root_ / "stopped/tables.md"));
  const Outcome rest = run_prism(words("stopped", longer));
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_EQ(accuracies(rest.json()), accuracies(whole.json()));
}

TEST_F(CompareCommand, AResultThatIsNotTheCellsOwnIsRefused) {
  const std::string speed =
      "compare --task speed --lengths 16,32 --seconds 0 --width 16 --variants prism --python false --json "
      "--out " +
      path("out");
  const Outcome first = run_prism(speed);
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_FALSE(first.json().contains("seeds"));
  const std::string file = path("out/cells/16/prism/seed-0/result.json"), whole = read_file(file);
  json edited = json::parse(whole);
  edited["figures"]["step_seconds"] = 1e-9;
  for (const std::string& text : {edited.dump(), read_file(path("out/cells/32/prism/seed-0/result.json")),
                                  std::string("{\"figures\": {\"step_seconds\": 1}}")}) {
    write_file(file, text);
    const Outcome refused = run_prism(speed);
    EXPECT_EQ(refused.status, 1) << text;
    EXPECT_THAT(refused.err, HasSubstr("is not what its cell.toml and recipe.toml measured")) << text;
  }
  write_file(file, whole);
  EXPECT_EQ(run_prism(speed).status, 0);
}

TEST_F(CompareCommand, MemoryThatRunsOutIsToldInOurWords) {
  const Outcome speed = run_prism(
      "compare --task speed --lengths 1000000 --sequences 1000000 --width 64 --variants gated_delta_net "
      "--python false --out " +
      path("speed"));
  EXPECT_EQ(speed.status, 1);
  EXPECT_THAT(speed.err,
              HasSubstr("out of memory in a pass over 1,000,000,000,000 tokens; lower --sequences"));
}

TEST_F(CompareCommand, DryRunPrintsTheModelsAndWritesNothing) {
  const Outcome plan = run_prism(words("dry", "--dry-run --json"));
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_EQ(plan.json()["rows"].size(), 3U);
  EXPECT_FALSE(fs::exists(root_ / "dry"));
}

TEST_F(CompareCommand, MisuseIsOneLineAndStatusTwo) {
  const std::string base = "compare --file " + path("log.csv") + " --out " + path("never") + " ";
  EXPECT_THAT(run_prism(base + "--variants prism,prism").err, HasSubstr("two variants are called \"prism\""));
  EXPECT_THAT(run_prism(base + "--variants prsm").err, HasSubstr("did you mean \"prism\"?"));
  EXPECT_EQ(run_prism("compare --out " + path("never")).status, 2);
  EXPECT_THAT(run_prism("compare " + path("log.csv")).err, HasSubstr("a comparison is a .toml recipe"));
  EXPECT_EQ(run_prism(base + "--task speed --jobs 2").status, 2);
  const Outcome apart = run_prism(base + "--variants prism,sasrec_block --tolerance 0");
  EXPECT_EQ(apart.status, 2);
  EXPECT_THAT(apart.err, HasSubstr("\"sasrec_block\" cannot be matched within 0 %"));
  EXPECT_FALSE(fs::exists(root_ / "never"));
}

TEST_F(CompareCommand, ProbesAndSpeedGiveAGrid) {
  const Outcome probes = run_prism(
      "compare --task probe --probes parity,mux --variants prism,gated_delta_net --seeds 1 --updates 4 "
      "--batch 4 "
      "--test-samples 16 --length 16 --python false --json --jobs 2 --out " +
      path("probes"));
  ASSERT_EQ(probes.status, 0) << probes.err;
  ASSERT_EQ(probes.json()["rows"].size(), 4U);
  EXPECT_EQ(probes.json()["rows"][2]["item"], "mux");
  EXPECT_EQ(probes.json()["rows"][0]["figures"]["chance"]["mean"], 0.5);
  EXPECT_THAT(read_file(path("probes/tables.md")), HasSubstr("| probe | chance | prism | gated_delta_net |"));
  const Outcome speed = run_prism(
      "compare --task speed --lengths 32,64 --seconds 0 --width 16 --variants prism,softmax_attention "
      "--python false "
      "--json --out " +
      path("speed"));
  ASSERT_EQ(speed.status, 0) << speed.err;
  const json timed = speed.json();
  for (const json& row : timed["rows"])
    for (const char* figure :
         {"train_tokens_per_second", "forward_tokens_per_second", "step_seconds", "state_bytes"})
      EXPECT_GT(row["figures"][figure]["mean"].get<double>(), 0) << figure;
}

TEST_F(CompareCommand, ProbeTellsChanceBesideAccuracy) {
  const std::string sizes = " --updates 4 --batch 4 --test-samples 16 --length 40";
  const Outcome all = run_prism("probe all --json --seed 3" + sizes);
  ASSERT_EQ(all.status, 0) << all.err;
  ASSERT_EQ(all.json().size(), 9U);
  for (const json& probe : all.json()) {
    EXPECT_GT(probe["chance"].get<double>(), 0);
    EXPECT_EQ(probe["settings"]["run"]["seed"], 3);
  }
  EXPECT_THAT(run_prism("probe parity" + sizes).out, HasSubstr("chance"));
  EXPECT_EQ(run_prism("probe nothing").status, 2);
  const Outcome cut = run_prism("probe parity --max-length 10" + sizes);
  EXPECT_EQ(cut.status, 2);
  EXPECT_THAT(cut.err, HasSubstr("--max-length has nothing to cut"));
}

}  // namespace
}  // namespace prism
